"""Messages become values of the API and values become messages, without loss.
Shown by the way there and back for every kind of value, and by messages that say what no value can."""

import pytest

from fluss import FlussError, TableBucket, TablePath
from fluss.errors import AuthenticationError, CorruptMessageError, ErrorCode
from fluss.protocol import convert
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclBinding, AclFilter, AclOperation, AclResource, AclResourceType
from fluss.schema.cluster_info import ClusterConfigEntry, ClusterHealth, ConfigChange, ConfigOp, HealthStatus, ServerTag
from fluss.schema.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.schema.schema import AggFunction, Column, Schema
from fluss.schema.serde import database_to_json, schema_to_json, table_to_json
from fluss.schema.table import PartitionSpec
from fluss.schema.types import DataTypes

PATH = TablePath("sales", "orders")
SCHEMA = Schema.builder().column("id", DataTypes.int()).column("day", DataTypes.string()).build()
ALLOWED = AclBinding(AclResource.table(PATH), "User:alice", AclOperation.READ, "10.0.0.1")


def test_an_answer_carries_an_error_unless_its_code_is_zero() -> None:
    answer = pb.PbProduceLogRespForBucket(bucket_id=0)
    convert.raise_failure(answer)
    answer.error_code = 0
    convert.raise_failure(answer)
    convert.set_failure(answer, FlussError("denied", ErrorCode.AUTHENTICATE_EXCEPTION))
    with pytest.raises(AuthenticationError) as caught:
        convert.raise_failure(answer)
    assert str(caught.value) == "FlussError(code=46): denied"


def test_tables_and_partitions_are_named() -> None:
    assert convert.table_path(convert.pb_table_path(PATH)) == PATH
    physical = convert.pb_physical_path(PATH, "2024")
    assert (convert.table_path(physical), physical.partition_name) == (PATH, "2024")
    assert not convert.pb_physical_path(PATH, None).HasField("partition_name")
    spec = PartitionSpec({"day": "2024", "region": "EU"})
    message = convert.pb_partition_spec(spec)
    assert convert.partition_spec(message) == spec
    info = convert.partition_info(pb.PbPartitionInfo(partition_id=7, partition_spec=message))
    assert (info.partition_id, info.partition_name) == (7, "2024$EU")
    message.partition_key_values.add(key="day", value="2025")
    with pytest.raises(FlussError, match="given twice") as caught:
        convert.partition_spec(message)
    assert caught.value.error_code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION


def test_buckets_may_belong_to_a_partition() -> None:
    assert convert.table_bucket(1, pb.PbBucketOffset(bucket_id=2)) == TableBucket(1, 2)
    partition_bucket = convert.table_bucket(1, pb.PbBucketOffset(partition_id=0, bucket_id=2))
    assert partition_bucket == TableBucket.with_partition(1, 0, 2)


def test_tables_and_databases_are_described() -> None:
    descriptor = TableDescriptor(SCHEMA, bucket_count=3, comment="c")
    message = pb.GetTableInfoResponse(
        table_id=5, schema_id=1, table_json=table_to_json(descriptor), created_time=6, modified_time=7
    )
    info = convert.table_info(PATH, message)
    assert (info.table_path, info.table_id, info.schema_id, info.num_buckets) == (PATH, 5, 1, 3)
    assert (info.created_time, info.modified_time, info.schema) == (6, 7, SCHEMA)
    message.table_json = table_to_json(TableDescriptor(SCHEMA))
    with pytest.raises(CorruptMessageError, match="how many buckets"):
        convert.table_info(PATH, message)
    schema = convert.schema_info(pb.GetTableSchemaResponse(schema_id=4, schema_json=schema_to_json(SCHEMA)))
    assert (schema.schema_id, schema.schema) == (4, SCHEMA)
    database_json = database_to_json(DatabaseDescriptor("c"))
    database = convert.database_info(
        "sales", pb.GetDatabaseInfoResponse(database_json=database_json, created_time=1, modified_time=2)
    )
    assert (database.database_name, database.database_descriptor.comment) == ("sales", "c")
    summary = convert.database_summary(pb.PbDatabaseSummary(database_name="sales", created_time=1, table_count=9))
    assert (summary.database_name, summary.created_time, summary.table_count) == ("sales", 1, 9)


@pytest.mark.parametrize(
    "column",
    [
        Column("a", DataTypes.int()),
        Column("a", DataTypes.string(), "a comment", AggFunction.of("listagg", {"delimiter": ";"})),
        Column("a", DataTypes.string(), ""),
    ],
)
def test_new_columns_go_there_and_back(column: Column) -> None:
    message = convert.pb_added_column(column)
    assert message.column_position_type == convert.COLUMN_POSITION_LAST
    assert convert.added_column(message) == column


def test_offsets_of_producers_are_grouped_by_table() -> None:
    offsets = [(TableBucket(1, 0), 5), (TableBucket.with_partition(2, 9, 0), 6), (TableBucket(1, 1), None)]
    messages = convert.pb_producer_offsets(offsets)
    assert [message.table_id for message in messages] == [1, 2]
    assert list(convert.bucket_offsets(messages)) == [offsets[0], offsets[2], offsets[1]]
    answer = pb.GetProducerOffsetsResponse(producer_id="p", expiration_time=3, table_offsets=messages[1:])
    found = convert.producer_offsets(answer)
    assert found is not None
    assert (found.producer_id, found.expiration_time, found.offsets) == ("p", 3, dict(offsets[1:2]))
    assert convert.producer_offsets(pb.GetProducerOffsetsResponse()) is None


def test_lake_snapshots_leave_out_buckets_without_an_offset() -> None:
    message = pb.GetLakeSnapshotResponse(table_id=1, snapshotId=8)
    message.bucket_snapshots.add(bucket_id=0, log_offset=4)
    message.bucket_snapshots.add(bucket_id=1)
    snapshot = convert.lake_snapshot(message)
    assert (snapshot.snapshot_id, snapshot.table_buckets_offset) == (8, {TableBucket(1, 0): 4})


def test_the_state_of_a_cluster_is_read() -> None:
    message = pb.GetClusterHealthResponse(
        num_replicas=4, in_sync_replicas=3, num_leader_replicas=2, active_leader_replicas=1, status=2
    )
    assert convert.cluster_health(message) == ClusterHealth._create(HealthStatus.RED, 4, 3, 2, 1)
    for entry in (ClusterConfigEntry._create("k", "v", True), ClusterConfigEntry._create("k", None, False)):
        assert convert.config_entry(convert.pb_config_entry(entry)) == entry
    assert convert.server_tag(1) is ServerTag.TEMPORARY_OFFLINE
    with pytest.raises(FlussError, match="2 is no server tag"):
        convert.server_tag(2)


def test_changes_of_options_go_there_and_back() -> None:
    messages = convert.pb_config_changes({"a": "1"}, ["b"], {"c": "3"}, {"d": "4"})
    assert convert.config_changes(messages, invalid=ErrorCode.CONFIG_EXCEPTION) == [
        ConfigChange("b", ConfigOp.DELETE, ""),
        ConfigChange("a", ConfigOp.SET, "1"),
        ConfigChange("c", ConfigOp.APPEND, "3"),
        ConfigChange("d", ConfigOp.SUBTRACT, "4"),
    ]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (pb.PbAlterConfig(config_key="a", config_value="1", op_type=4), "operation 4"),
        (pb.PbAlterConfig(config_key="a", op_type=0), "without a value"),
    ],
)
def test_changes_that_make_no_sense_have_the_code_of_the_request(message: pb.PbAlterConfig, problem: str) -> None:
    with pytest.raises(FlussError, match=problem) as caught:
        convert.config_changes([message], invalid=ErrorCode.CONFIG_EXCEPTION)
    assert caught.value.error_code == ErrorCode.CONFIG_EXCEPTION


def test_access_control_entries_go_there_and_back() -> None:
    message = convert.pb_acl(ALLOWED)
    assert convert.acl(message) == ALLOWED
    assert convert.new_acl(message) == ALLOWED
    message.operation_type = 99
    with pytest.raises(CorruptMessageError, match="does not know"):
        convert.acl(message)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"operation_type": 99}, "99"),
        ({"operation_type": AclOperation.ANY}, "ANY is for filters"),
        ({"resource_type": AclResourceType.ANY}, "ANY is for filters"),
        ({"permission_type": 1}, "ANY is for filters"),
        ({"resource_name": ""}, "must not be empty"),
        ({"host": ""}, "must not be empty"),
        ({"resource_type": AclResourceType.CLUSTER}, "the name of the cluster"),
        ({"principal_type": "a:b"}, "must not contain"),
        ({"principal_name": ""}, "Invalid principal"),
    ],
)
def test_new_entries_must_say_exactly_what_they_allow(change: dict[str, int | str], problem: str) -> None:
    message = convert.pb_acl(ALLOWED)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(FlussError, match=problem) as caught:
        convert.new_acl(message)
    assert caught.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("acl_filter", "is_match"),
    [
        (AclFilter(), True),
        (AclFilter.on(ALLOWED.resource), True),
        (AclFilter(principal="User:alice"), True),
        (AclFilter(principal="User:bob"), False),
        (AclFilter(operation=AclOperation.WRITE), False),
        (AclFilter(resource_type=AclResourceType.DATABASE), False),
        (AclFilter(resource_name="sales.other"), False),
        (AclFilter(host="10.0.0.2"), False),
    ],
)
def test_filters_match_by_what_they_say(acl_filter: AclFilter, is_match: bool) -> None:
    assert _matches(convert.pb_acl_filter(acl_filter), ALLOWED) is is_match


def test_half_a_principal_in_a_filter_is_none() -> None:
    message = convert.pb_acl_filter(AclFilter())
    message.principal_name = "bob"
    assert _matches(message, ALLOWED)


def test_a_filter_for_what_is_denied_describes_no_entry() -> None:
    message = convert.pb_acl_filter(AclFilter())
    message.permission_type = 3
    assert not _matches(message, ALLOWED)


def _matches(message: pb.PbAclFilter, acl: AclBinding) -> bool:
    pattern = convert.acl_pattern(message)
    fields = convert.acl_fields(acl)
    return pattern is not None and all(wanted in (None, field) for wanted, field in zip(pattern, fields, strict=True))
