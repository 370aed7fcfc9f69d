"""Streaming tables for Python."""

from fluss._version import __version__
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.schema.aggregation import AggFunction
from fluss.schema.change_type import ChangeType
from fluss.schema.cluster import ServerNode, ServerType
from fluss.schema.database import DatabaseDescriptor, DatabaseInfo
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.formats import KvFormat, LogFormat
from fluss.schema.offsets import EARLIEST_OFFSET, LATEST_OFFSET, LakeSnapshot, OffsetSpec, OffsetType
from fluss.schema.partition import PartitionInfo, PartitionSpec
from fluss.schema.predicate import ColumnRef, Predicate, col
from fluss.schema.schema import Column, Schema
from fluss.schema.table import TableBucket, TableInfo, TablePath
from fluss.schema.types import DataField, DataType, DataTypes

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "AggFunction",
    "ChangeType",
    "Column",
    "ColumnRef",
    "Config",
    "DataField",
    "DataType",
    "DataTypes",
    "DatabaseDescriptor",
    "DatabaseInfo",
    "ErrorCode",
    "FlussError",
    "KvFormat",
    "LakeSnapshot",
    "LogFormat",
    "OffsetSpec",
    "OffsetType",
    "PartitionInfo",
    "PartitionSpec",
    "Predicate",
    "Schema",
    "ServerNode",
    "ServerType",
    "TableBucket",
    "TableDescriptor",
    "TableInfo",
    "TablePath",
    "__version__",
    "col",
]

# Users meet these classes as fluss.Schema, not by the file they live in: in reprs, tracebacks and pickles.
for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
del _name
