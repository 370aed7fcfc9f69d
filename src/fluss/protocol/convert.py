"""Messages of the protocol as values of the API, and back: the one place that knows both.

``pb_table_path(path)`` makes the message of a value, ``table_path(message)`` reads it. What a message can say and a
value cannot is an error of the reader: ``CorruptMessageError`` where only servers send the message, otherwise the code
that the protocol has for it. Bulk messages, which carry rows, have codecs of their own in ``bulk_messages``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol

from fluss.errors import CorruptMessageError, ErrorCode, FlussError, error_for_code
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    AclResource,
    AclResourceType,
    split_principal,
)
from fluss.schema.cluster_info import (
    ClusterConfigEntry,
    ClusterHealth,
    ConfigChange,
    ConfigOp,
    HealthStatus,
    ServerNode,
    ServerTag,
    ServerType,
)
from fluss.schema.descriptor import DatabaseInfo, DatabaseSummary
from fluss.schema.offsets import LakeSnapshot, ProducerOffsets
from fluss.schema.schema import AggFunction, Column
from fluss.schema.serde import (
    data_type_from_json,
    data_type_to_json,
    database_from_json,
    schema_from_json,
    table_from_json,
)
from fluss.schema.table import (
    DroppedPartition,
    PartitionInfo,
    PartitionSpec,
    SchemaInfo,
    TableBucket,
    TableInfo,
    TablePath,
    spec_of_partition_name,
)
from fluss.schema.value_objects import string_dict, string_list

# New columns come last; the protocol has numbers for other places, and no server supports them.
COLUMN_POSITION_LAST: Final = 0
_PERMISSION_ANY: Final = 1
_PERMISSION_ALLOW: Final = 2
_SOURCE_DYNAMIC: Final = "DYNAMIC_SERVER_CONFIG"
_SOURCE_INITIAL: Final = "INITIAL_SERVER_CONFIG"


# What messages have in common


class _Answer(Protocol):
    """A message that carries either an answer or an error."""

    @property
    def error_code(self) -> int | None: ...

    @property
    def error_message(self) -> str | None: ...


class _WritableAnswer(Protocol):
    """The same, to be written."""

    error_code: int
    error_message: str


class _PartitionedMessage(Protocol):
    """A message about a partition, or about a table without partitions."""

    partition_id: int

    def HasField(self, field_name: Literal["partition_id"], /) -> bool: ...  # noqa: N802


class _BucketMessage(_PartitionedMessage, Protocol):
    """A message about a bucket."""

    bucket_id: int


# Failures


def raise_failure(answer: _Answer) -> None:
    """Raise the error in an answer, if there is one. Code 0 is success, whether the field is there or not."""
    if answer.error_code:
        raise error_for_code(answer.error_code, answer.error_message)


def set_failure(answer: _WritableAnswer, error: FlussError) -> None:
    """Let an answer carry an error."""
    answer.error_code, answer.error_message = error.error_code, error.public_message


# Tables, partitions, buckets


def pb_table_path(path: TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database_name, table_name=path.table_name)


def table_path(message: pb.PbTablePath | pb.PbPhysicalTablePath) -> TablePath:
    return TablePath(message.database_name, message.table_name)


def pb_physical_path(path: TablePath, partition_name: str | None) -> pb.PbPhysicalTablePath:
    """Name a table, or one of its partitions."""
    return pb.PbPhysicalTablePath(
        database_name=path.database_name, table_name=path.table_name, partition_name=partition_name
    )


def partition_id(message: _PartitionedMessage) -> int | None:
    return message.partition_id if message.HasField("partition_id") else None


def table_bucket(table_id: int, message: _BucketMessage) -> TableBucket:
    """Read the bucket that an entry of a message is about."""
    return TableBucket.new_with_partition(table_id, partition_id(message), message.bucket_id)


def pb_partition_spec(spec: PartitionSpec) -> pb.PbPartitionSpec:
    values = (pb.PbKeyValue(key=key, value=value) for key, value in spec.spec_map.items())
    return pb.PbPartitionSpec(partition_key_values=values)


def partition_spec(message: pb.PbPartitionSpec) -> PartitionSpec:
    """Read a spec; a key that is given twice has code 43."""
    values = {pair.key: pair.value for pair in message.partition_key_values}
    if len(values) != len(message.partition_key_values):
        raise FlussError("A key is given twice in the partition spec", ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION)
    return PartitionSpec(values)


def partition_info(message: pb.PbPartitionInfo) -> PartitionInfo:
    """Read a partition. Servers list the values in the order of the partition keys."""
    spec = partition_spec(message.partition_spec)
    return PartitionInfo._create(message.partition_id, spec, list(spec.spec_map))


def dropped_partition(message: pb.PbDroppedPartition, partition_keys: Sequence[str]) -> DroppedPartition:
    spec = spec_of_partition_name(message.partition_name, partition_keys)
    info = PartitionInfo._create(message.partition_id, spec, partition_keys)
    return DroppedPartition(info, tuple(message.log_end_offsets))


def table_info(path: TablePath, message: pb.PbTableMetadata | pb.GetTableInfoResponse) -> TableInfo:
    """Read the description of a table, in either answer that carries one."""
    descriptor = table_from_json(message.table_json)
    if descriptor.bucket_count is None:
        raise CorruptMessageError(f"the server does not say how many buckets {path} has")
    return TableInfo._create(
        path, message.table_id, message.schema_id, descriptor, message.created_time, message.modified_time
    )


def schema_info(message: pb.GetTableSchemaResponse) -> SchemaInfo:
    return SchemaInfo._create(message.schema_id, schema_from_json(message.schema_json))


def pb_added_column(column: Column) -> pb.PbAddColumn:
    message = pb.PbAddColumn(
        column_name=column.name,
        data_type_json=data_type_to_json(column.data_type),
        comment=column.comment,
        column_position_type=COLUMN_POSITION_LAST,
    )
    if column.aggregation is not None:
        message.agg_function_type = column.aggregation.name
        for key, value in column.aggregation.parameters:
            message.agg_function_params.add(key=key, value=value)
    return message


def added_column(message: pb.PbAddColumn) -> Column:
    """Read a new column, whatever its position; one that cannot be has code 15."""
    function = None
    data_type = data_type_from_json(message.data_type_json)
    if message.HasField("agg_function_type"):
        function = AggFunction.of(message.agg_function_type, {p.key: p.value for p in message.agg_function_params})
    comment = message.comment if message.HasField("comment") else None
    try:
        return Column(message.column_name, data_type, comment, function)
    except FlussError as error:
        raise FlussError(error.message, ErrorCode.INVALID_TABLE_EXCEPTION) from None


# Databases


def database_info(name: str, message: pb.GetDatabaseInfoResponse) -> DatabaseInfo:
    descriptor = database_from_json(message.database_json)
    return DatabaseInfo._create(name, descriptor, message.created_time, message.modified_time)


def database_summary(message: pb.PbDatabaseSummary) -> DatabaseSummary:
    return DatabaseSummary._create(message.database_name, message.created_time, message.table_count)


# Offsets


def lake_snapshot(message: pb.GetLakeSnapshotResponse) -> LakeSnapshot:
    """Read how far the lake has a table; buckets of which it has nothing are left out."""
    offsets = {
        table_bucket(message.table_id, bucket): bucket.log_offset
        for bucket in message.bucket_snapshots
        if bucket.HasField("log_offset")
    }
    return LakeSnapshot._create(message.snapshotId, offsets)


def pb_producer_offsets(offsets: Iterable[tuple[TableBucket, int | None]]) -> list[pb.PbProducerTableOffsets]:
    """Write the offsets of buckets by table; None is a bucket whose offset the producer did not say."""
    tables: dict[int, pb.PbProducerTableOffsets] = {}
    for bucket, offset in offsets:
        table = tables.setdefault(bucket.table_id, pb.PbProducerTableOffsets(table_id=bucket.table_id))
        table.bucket_offsets.add(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset)
    return list(tables.values())


def bucket_offsets(messages: Iterable[pb.PbProducerTableOffsets]) -> Iterator[tuple[TableBucket, int | None]]:
    """Read what ``pb_producer_offsets`` writes."""
    for table in messages:
        for bucket in table.bucket_offsets:
            offset = bucket.log_end_offset if bucket.HasField("log_end_offset") else None
            yield table_bucket(table.table_id, bucket), offset


def producer_offsets(message: pb.GetProducerOffsetsResponse) -> ProducerOffsets | None:
    """Read what a producer has registered, if anything."""
    if not message.HasField("producer_id"):
        return None
    offsets = {bucket: offset or 0 for bucket, offset in bucket_offsets(message.table_offsets)}
    return ProducerOffsets._create(message.producer_id, message.expiration_time, offsets)


# The cluster


def server_node(message: pb.PbServerNode, server_type: ServerType) -> ServerNode:
    return ServerNode._create(message.node_id, message.host, message.port, server_type)


def cluster_health(message: pb.GetClusterHealthResponse) -> ClusterHealth:
    return ClusterHealth._create(
        HealthStatus(message.status),
        message.num_replicas,
        message.in_sync_replicas,
        message.num_leader_replicas,
        message.active_leader_replicas,
    )


def server_tag(number: int) -> ServerTag:
    """Read a tag; an unknown one has code -1."""
    try:
        return ServerTag(number)
    except ValueError:
        raise FlussError(
            f"{number} is no server tag; known are 0 permanent offline and 1 temporary offline",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ) from None


# Configuration


def pb_config_entry(entry: ClusterConfigEntry) -> pb.PbDescribeConfig:
    return pb.PbDescribeConfig(
        config_key=entry.key,
        config_value=entry.value,
        config_source=_SOURCE_DYNAMIC if entry.is_dynamic else _SOURCE_INITIAL,
    )


def config_entry(message: pb.PbDescribeConfig) -> ClusterConfigEntry:
    value = message.config_value if message.HasField("config_value") else None
    return ClusterConfigEntry._create(message.config_key, value, message.config_source == _SOURCE_DYNAMIC)


def pb_config_changes(
    set_: Mapping[str, str] | None = None,
    reset: Iterable[str] | None = None,
    append: Mapping[str, str] | None = None,
    subtract: Mapping[str, str] | None = None,
) -> list[pb.PbAlterConfig]:
    """Write changes of options: new values, keys that fall back to their defaults, and changes of list values."""
    keys = string_list("the keys to reset", reset)
    changes = [pb.PbAlterConfig(config_key=key, op_type=ConfigOp.DELETE) for key in keys]
    for op, values in ((ConfigOp.SET, set_), (ConfigOp.APPEND, append), (ConfigOp.SUBTRACT, subtract)):
        for key, value in string_dict("the options to change", values).items():
            changes.append(pb.PbAlterConfig(config_key=key, config_value=value, op_type=op))
    return changes


def config_changes(messages: Iterable[pb.PbAlterConfig], *, invalid: ErrorCode) -> list[ConfigChange]:
    """Read changes of options; ``invalid`` is the code for a change that makes no sense by itself."""
    return [_config_change(message, invalid) for message in messages]


def _config_change(message: pb.PbAlterConfig, invalid: ErrorCode) -> ConfigChange:
    try:
        op = ConfigOp(message.op_type)
    except ValueError:
        raise FlussError(
            f"'{message.config_key}' cannot be changed by operation {message.op_type}; "
            "known are 0 set, 1 delete, 2 append and 3 subtract",
            invalid,
        ) from None
    if op is not ConfigOp.DELETE and not message.HasField("config_value"):
        raise FlussError(f"'{message.config_key}' cannot be changed without a value", invalid)
    return ConfigChange(message.config_key, op, message.config_value)


# Access control


def pb_acl(acl: AclBinding) -> pb.PbAclInfo:
    principal_type, principal_name = split_principal(acl.principal)
    return pb.PbAclInfo(
        resource_name=acl.resource.name,
        resource_type=acl.resource.resource_type,
        principal_name=principal_name,
        principal_type=principal_type,
        host=acl.host,
        operation_type=acl.operation,
        permission_type=_PERMISSION_ALLOW,
    )


def acl(message: pb.PbAclInfo) -> AclBinding:
    """Read an entry that a server has."""
    try:
        resource_type, operation = AclResourceType(message.resource_type), AclOperation(message.operation_type)
    except ValueError as error:
        raise CorruptMessageError(f"the server has an ACL that this version does not know: {error}") from None
    resource = AclResource(resource_type, message.resource_name)
    return AclBinding(resource, f"{message.principal_type}:{message.principal_name}", operation, message.host)


def new_acl(message: pb.PbAclInfo) -> AclBinding:
    """Read an entry that a client wants to add. It must say exactly what it allows: only filters may be vague."""
    try:
        resource_type, operation = AclResourceType(message.resource_type), AclOperation(message.operation_type)
    except ValueError as error:
        raise _invalid_acl(str(error)) from None
    is_vague = resource_type is AclResourceType.ANY or operation is AclOperation.ANY
    if is_vague or message.permission_type != _PERMISSION_ALLOW:
        raise _invalid_acl("it must name the resource type and the operation, and allow it; ANY is for filters")
    if not message.resource_name or not message.host:
        raise _invalid_acl(f"resource and host must not be empty; '{WILDCARD}' stands for all of them")
    if resource_type is AclResourceType.CLUSTER and message.resource_name not in (CLUSTER_NAME, WILDCARD):
        raise _invalid_acl(f"the name of the cluster is '{CLUSTER_NAME}', not '{message.resource_name}'")
    if ":" in message.principal_type:
        raise _invalid_acl("the type of a principal must not contain ':'")
    try:
        principal = f"{message.principal_type}:{message.principal_name}"
        return AclBinding(AclResource(resource_type, message.resource_name), principal, operation, message.host)
    except FlussError as error:
        raise _invalid_acl(error.message) from None


def _invalid_acl(problem: str) -> FlussError:
    return FlussError(f"The ACL is invalid: {problem}", ErrorCode.UNKNOWN_SERVER_ERROR)


def pb_acl_filter(acl_filter: AclFilter) -> pb.PbAclFilter:
    message = pb.PbAclFilter(
        resource_name=acl_filter.resource_name,
        resource_type=acl_filter.resource_type,
        host=acl_filter.host,
        operation_type=acl_filter.operation,
        permission_type=_PERMISSION_ANY,
    )
    if acl_filter.principal is not None:
        message.principal_type, message.principal_name = split_principal(acl_filter.principal)
    return message


def acl_fields(acl: AclBinding) -> tuple[int | str, ...]:
    """Return what a filter may say of an entry."""
    return acl.resource.resource_type, acl.resource.name, acl.principal, acl.operation, acl.host


def acl_pattern(acl_filter: pb.PbAclFilter) -> tuple[int | str | None, ...] | None:
    """Return the ``acl_fields`` of the entries that a filter describes, each None if it may be anything.

    None if it describes no entry at all. Numbers and names that no entry has are taken as they are.
    """
    if acl_filter.permission_type not in (_PERMISSION_ANY, _PERMISSION_ALLOW):
        return None
    has_principal = acl_filter.HasField("principal_name") and acl_filter.HasField("principal_type")
    return (
        None if acl_filter.resource_type == AclResourceType.ANY else acl_filter.resource_type,
        acl_filter.resource_name if acl_filter.HasField("resource_name") else None,
        f"{acl_filter.principal_type}:{acl_filter.principal_name}" if has_principal else None,
        None if acl_filter.operation_type == AclOperation.ANY else acl_filter.operation_type,
        acl_filter.host if acl_filter.HasField("host") else None,
    )
