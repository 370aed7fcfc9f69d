"""Everything that ``import fluss`` offers. Loaded by the first name that a program takes from ``fluss``."""

# ruff: noqa: F403, F405 - the plain values have a list of their own, which three modules offer

from fluss.client.admin.admin import FlussAdmin
from fluss.client.connection import FlussConnection, connect
from fluss.client.consume.consumer import Consumer
from fluss.client.fluss_table import FlussTable
from fluss.client.lookup.lookupers import Lookuper, PrefixLookuper, TableLookup, TablePrefixLookup
from fluss.client.scan.batch_scanner import BatchScanner
from fluss.client.scan.log_scanner import LogScanner
from fluss.client.scan.table_scan import TableScan
from fluss.client.write.result import WriteResultHandle
from fluss.client.write.writers import AppendWriter, TableAppend, TableUpsert, UpsertWriter
from fluss.public_names import *

# The name of the same thing in another language.
RecordBatchLogScanner = LogScanner

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "NO_COMMIT_TIMESTAMP",
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclResource",
    "AclResourceType",
    "AggFunction",
    "AppendWriter",
    "BatchScanner",
    "ChangeType",
    "ClusterConfigEntry",
    "ClusterHealth",
    "Column",
    "ColumnRef",
    "Config",
    "Consumer",
    "ConsumerBucket",
    "ConsumerFencedError",
    "ConsumerInfo",
    "DataField",
    "DataType",
    "DataTypes",
    "DatabaseDescriptor",
    "DatabaseInfo",
    "DatabaseSummary",
    "ErrorCode",
    "FlussAdmin",
    "FlussConnection",
    "FlussError",
    "FlussTable",
    "GenericRow",
    "HealthStatus",
    "InternalRow",
    "KvFormat",
    "LakeSnapshot",
    "LogFormat",
    "LogScanner",
    "Lookuper",
    "OffsetSpec",
    "OffsetType",
    "PartitionInfo",
    "PartitionSpec",
    "Predicate",
    "PrefixLookuper",
    "ProducerOffsets",
    "RecordBatch",
    "RecordBatchLogScanner",
    "ScanBatch",
    "ScanRecord",
    "ScanRecords",
    "Schema",
    "SchemaInfo",
    "ServerNode",
    "ServerTag",
    "ServerType",
    "TableAppend",
    "TableBucket",
    "TableDescriptor",
    "TableInfo",
    "TableLookup",
    "TablePath",
    "TablePrefixLookup",
    "TableScan",
    "TableStats",
    "TableUpsert",
    "UpsertWriter",
    "WriteResultHandle",
    "__version__",
    "col",
    "connect",
]

# Users meet these classes as fluss.Schema, not by the file they live in: in reprs, tracebacks and pickles.
for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = "fluss"
del _name
