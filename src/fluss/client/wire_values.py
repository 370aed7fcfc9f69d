"""Values of the API as the protocol's messages carry them, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss.errors import CorruptMessageError
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.cluster import ServerNode, ServerType
from fluss.schema.frozen_dict import string_dict
from fluss.schema.partition import PartitionSpec
from fluss.schema.schema import string_list
from fluss.schema.serde import table_from_json
from fluss.schema.table import TableInfo, TablePath


def pb_table_path(path: TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database_name, table_name=path.table_name)


def table_path(message: pb.PbTablePath) -> TablePath:
    return TablePath(message.database_name, message.table_name)


def pb_partition_spec(spec: PartitionSpec) -> pb.PbPartitionSpec:
    values = (pb.PbKeyValue(key=key, value=value) for key, value in spec.spec_map.items())
    return pb.PbPartitionSpec(partition_key_values=values)


def partition_spec(message: pb.PbPartitionSpec) -> PartitionSpec:
    return PartitionSpec({pair.key: pair.value for pair in message.partition_key_values})


def server_node(message: pb.PbServerNode, server_type: ServerType) -> ServerNode:
    return ServerNode._create(message.node_id, message.host, message.port, server_type)


def table_info(path: TablePath, message: pb.PbTableMetadata | pb.GetTableInfoResponse) -> TableInfo:
    """Read the description of a table, in either answer that carries one."""
    descriptor = table_from_json(message.table_json)
    if descriptor.bucket_count is None:
        raise CorruptMessageError(f"the server does not say how many buckets {path} has")
    return TableInfo._create(
        path, message.table_id, message.schema_id, descriptor, message.created_time, message.modified_time
    )


# What an alteration does with an option.
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


def config_changes(
    set_: Mapping[str, str] | None = None,
    reset: Iterable[str] | None = None,
    append: Mapping[str, str] | None = None,
    subtract: Mapping[str, str] | None = None,
) -> list[pb.PbAlterConfig]:
    """Describe changes of options: new values, keys that fall back to their defaults, and changes of list values."""
    changes = [pb.PbAlterConfig(config_key=key, op_type=_DELETE) for key in string_list("the keys to reset", reset)]
    for op_type, values in ((_SET, set_), (_APPEND, append), (_SUBTRACT, subtract)):
        for key, value in string_dict("the options to change", values).items():
            changes.append(pb.PbAlterConfig(config_key=key, config_value=value, op_type=op_type))
    return changes
