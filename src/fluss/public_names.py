"""The names that mean the same in ``fluss``, ``fluss.aio`` and ``fluss.blocking``: options, errors, values."""

from __future__ import annotations

from fluss._version import __version__
from fluss.client.consume.consumer_info import ConsumerBucket, ConsumerInfo
from fluss.client.kernel.input_rows import GenericRow, InternalRow
from fluss.client.scan.records import NO_COMMIT_TIMESTAMP, RecordBatch, ScanBatch, ScanRecord, ScanRecords
from fluss.config import Config
from fluss.errors import ConsumerFencedError, ErrorCode, FlussError
from fluss.schema.acl import AclBinding, AclFilter, AclOperation, AclResource, AclResourceType
from fluss.schema.cluster_info import ClusterConfigEntry, ClusterHealth, HealthStatus, ServerNode, ServerTag, ServerType
from fluss.schema.descriptor import DatabaseDescriptor, DatabaseInfo, DatabaseSummary, TableDescriptor
from fluss.schema.offsets import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ChangeType,
    LakeSnapshot,
    OffsetSpec,
    OffsetType,
    ProducerOffsets,
)
from fluss.schema.predicate import ColumnRef, Predicate, col
from fluss.schema.schema import AggFunction, Column, Schema
from fluss.schema.table import PartitionInfo, PartitionSpec, SchemaInfo, TableBucket, TableInfo, TablePath, TableStats
from fluss.schema.table_options import KvFormat, LogFormat
from fluss.schema.types import DataField, DataType, DataTypes

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
    "ChangeType",
    "ClusterConfigEntry",
    "ClusterHealth",
    "Column",
    "ColumnRef",
    "Config",
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
    "FlussError",
    "GenericRow",
    "HealthStatus",
    "InternalRow",
    "KvFormat",
    "LakeSnapshot",
    "LogFormat",
    "OffsetSpec",
    "OffsetType",
    "PartitionInfo",
    "PartitionSpec",
    "Predicate",
    "ProducerOffsets",
    "RecordBatch",
    "ScanBatch",
    "ScanRecord",
    "ScanRecords",
    "Schema",
    "SchemaInfo",
    "ServerNode",
    "ServerTag",
    "ServerType",
    "TableBucket",
    "TableDescriptor",
    "TableInfo",
    "TablePath",
    "TableStats",
    "__version__",
    "col",
]
