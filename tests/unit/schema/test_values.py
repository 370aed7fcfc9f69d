"""The small values of the API: paths, buckets, partitions, databases, servers, offsets, change types, lake snapshots.
Shown with their documented reprs word for word, as dictionary keys, and through pickle."""

import copy
import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest

import fluss
from fluss import (
    ChangeType,
    DatabaseDescriptor,
    DatabaseInfo,
    FlussError,
    LakeSnapshot,
    OffsetSpec,
    OffsetType,
    PartitionInfo,
    PartitionSpec,
    Schema,
    ServerNode,
    ServerType,
    TableBucket,
    TableDescriptor,
    TableInfo,
    TablePath,
)

SCHEMA = Schema(pa.schema([("id", pa.int32()), ("region", pa.string())]), primary_keys=["id", "region"])
DESCRIPTOR = TableDescriptor(
    SCHEMA, partition_keys=["region"], bucket_count=3, comment="c", properties={"p": "1"}, custom_properties={"q": "2"}
)
TABLE_INFO = TableInfo._create(TablePath("db", "t"), 7, 1, DESCRIPTOR, 1000, 2000)
PARTITION_INFO = PartitionInfo._create(1000, PartitionSpec({"region": "US"}), ["region"])
DATABASE_INFO = DatabaseInfo._create("d", DatabaseDescriptor("c", {"k": "v"}), 1, 1)
COORDINATOR = ServerNode._create(0, "h", 9123, ServerType.COORDINATOR_SERVER)
SNAPSHOT = LakeSnapshot._create(3, {TableBucket(1, 0): 5, TableBucket.with_partition(1, 2, 3): 6})

REPRS = [
    (TablePath("db", "t"), "TablePath('db', 't')"),
    (TableBucket(1, 0), "TableBucket(table_id=1, bucket=0)"),
    (TableBucket.with_partition(1, 2, 3), "TableBucket(table_id=1, partition_id=2, bucket=3)"),
    (PARTITION_INFO, "PartitionInfo(partition_id=1000, partition_name='US')"),
    (PartitionSpec({"region": "US"}), "PartitionSpec({'region': 'US'})"),
    (DatabaseDescriptor("c", {"k": "v"}), "DatabaseDescriptor(comment='c', custom_properties={'k': 'v'})"),
    (DatabaseDescriptor(), "DatabaseDescriptor(comment=None, custom_properties={})"),
    (DATABASE_INFO, "DatabaseInfo(database_name='d', created_time=1, modified_time=1)"),
    (COORDINATOR, "ServerNode(id=0, host='h', port=9123, server_type='CoordinatorServer')"),
    (LakeSnapshot(3), "LakeSnapshot(snapshot_id=3, buckets_count=0)"),
    (SNAPSHOT, "LakeSnapshot(snapshot_id=3, buckets_count=2)"),
    (OffsetSpec.earliest(), "OffsetSpec.earliest()"),
    (OffsetSpec.latest(), "OffsetSpec.latest()"),
    (OffsetSpec.timestamp(5), "OffsetSpec.timestamp(5)"),
    (ChangeType.Insert, "ChangeType.Insert"),
    (
        TABLE_INFO,
        "TableInfo(table_path=TablePath('db', 't'), table_id=7, schema_id=1, num_buckets=3, "
        "columns=[id int NOT NULL, region string NOT NULL], primary_keys=['id', 'region'], partition_keys=['region'])",
    ),
]
VALUES = [
    *(value for value, _ in REPRS),
    OffsetType.LATEST,
    ServerType.TABLET_SERVER,
    fluss.LogFormat.ARROW,
    fluss.KvFormat.INDEXED,
    fluss.Column("a", fluss.DataTypes.int(), "c", fluss.AggFunction.of("sum")),
    fluss.DataField("a", fluss.DataTypes.int()),
    fluss.DataTypes.decimal(10, 2),
    SCHEMA,
    DESCRIPTOR,
    fluss.ErrorCode.TABLE_NOT_EXIST,
]


@pytest.mark.parametrize(("value", "text"), REPRS, ids=lambda v: type(v).__name__)
def test_reprs_are_as_documented(value: object, text: str) -> None:
    assert repr(value) == text


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_are_pickled_copied_and_hashed(value: object) -> None:
    for twin in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert twin == value
        assert hash(twin) == hash(value)
        assert repr(twin) == repr(value)
    assert value != "something else"
    assert type(value).__module__ in ("fluss", "fluss.schema.types")


@pytest.mark.parametrize("cls", [TableInfo, PartitionInfo, ServerNode, DatabaseInfo, OffsetSpec, fluss.Predicate])
def test_what_only_the_client_makes_cannot_be_constructed(cls: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="cannot be constructed"):
        cls()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (TABLE_INFO, "table_id"),
        (COORDINATOR, "host"),
        (TablePath("a", "b"), "table_name"),
        (TableBucket(1, 2), "bucket_id"),
        (LakeSnapshot(1), "snapshot_id"),
        (SCHEMA, "columns"),
        (DESCRIPTOR, "comment"),
    ],
)
def test_values_cannot_be_changed(value: object, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(value, name, 5)


def test_a_table_path_is_made_with_either_spelling() -> None:
    path = TablePath("db", "t")
    assert path == TablePath(database_name="db", table_name="t") == TablePath(database="db", table="t")
    assert (path.database_name, path.table_name, path.database, path.table) == ("db", "t", "db", "t")
    assert str(path) == path.table_path_str() == "db.t"
    assert path != "db.t"
    assert {path: 1}[TablePath("db", "t")] == 1


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [((), {}), (("db",), {}), (("db", 5), {}), (("db", "t"), {"table": "t"}), ((b"db", "t"), {})],
)
def test_a_table_path_needs_two_names(arguments: tuple[str, ...], keywords: dict[str, str]) -> None:
    with pytest.raises(TypeError):
        TablePath(*arguments, **keywords)


def test_a_bucket_is_made_with_either_spelling() -> None:
    bucket = TableBucket(table_id=1, bucket=0)
    assert bucket == TableBucket(1, bucket_id=0) == TableBucket.new_with_partition(1, None, 0)
    assert (bucket.table_id, bucket.bucket_id, bucket.partition_id) == (1, 0, None)
    assert TableBucket.new_with_partition(1, 2, 0) == TableBucket.with_partition(1, 2, 0) != bucket
    assert {bucket: "x"}[TableBucket(1, 0)] == "x"


def test_bucket_numbers_are_checked() -> None:
    for arguments, error in [
        ((1,), TypeError),
        (("1", 0), TypeError),
        ((1, 2**31), OverflowError),
        ((2**63, 0), OverflowError),
    ]:
        with pytest.raises(error):
            TableBucket(*arguments)
    with pytest.raises(TypeError, match="needs one bucket"):
        TableBucket(1, 0, bucket_id=0)


def test_table_info_answers_by_property_and_by_method() -> None:
    info = TABLE_INFO
    assert (info.table_id, info.schema_id, info.table_path) == (7, 1, TablePath("db", "t"))
    assert (info.created_time, info.modified_time, info.num_buckets, info.comment) == (1000, 2000, 3, "c")
    assert info.schema is info.get_schema()
    assert info.primary_keys == info.get_primary_keys() == ["id", "region"]
    assert info.partition_keys == info.get_partition_keys() == ["region"]
    assert info.bucket_keys == info.get_bucket_keys() == info.physical_primary_keys == ["id"]
    assert info.properties == info.get_properties() == {"p": "1"}
    assert info.custom_properties == info.get_custom_properties() == {"q": "2"}
    assert info.get_column_names() == ["id", "region"]
    assert info.get_column_count() == 2
    assert info.has_primary_key()
    assert info.is_partitioned()
    assert (info.log_format, info.kv_format) == ("ARROW", "COMPACTED")


def test_partition_info_answers_by_property_and_by_method() -> None:
    assert PARTITION_INFO.get_partition_id() == PARTITION_INFO.partition_id == 1000
    assert PARTITION_INFO.get_partition_name() == PARTITION_INFO.partition_name == "US"
    assert PARTITION_INFO.get_partition_spec() == PartitionSpec({"region": "US"})


def test_databases_keep_no_comment_and_an_empty_one_apart() -> None:
    built = DatabaseDescriptor.builder().comment("").custom_property("a", "1").custom_properties({"b": "2"}).build()
    assert built == DatabaseDescriptor("", {"b": "2", "a": "1"})
    assert built != DatabaseDescriptor(None, {"a": "1", "b": "2"})
    assert built.comment == ""
    assert built.custom_properties == built.get_custom_properties() == {"a": "1", "b": "2"}
    assert DATABASE_INFO.get_database_descriptor() is DATABASE_INFO.database_descriptor
    with pytest.raises(TypeError):
        DatabaseDescriptor(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        DatabaseDescriptor(custom_properties={"a": 5})  # type: ignore[dict-item]


def test_servers_have_a_unique_name() -> None:
    assert COORDINATOR.uid == "cs-0"
    assert ServerNode._create(1, "h", 9, ServerType.TABLET_SERVER).uid == "ts-1"
    assert ServerNode._create(-1, "h", 9, ServerType.UNKNOWN).uid == "unknown-h:9"
    assert type(COORDINATOR.server_type) is str


def test_lake_snapshots_know_the_offsets_of_their_buckets() -> None:
    assert SNAPSHOT.table_buckets_offset == {TableBucket(1, 0): 5, TableBucket.with_partition(1, 2, 3): 6}
    assert SNAPSHOT.get_bucket_offset(TableBucket(1, 0)) == 5
    assert SNAPSHOT.get_bucket_offset(TableBucket(1, 9)) is None
    assert SNAPSHOT.get_table_buckets() == [TableBucket(1, 0), TableBucket.with_partition(1, 2, 3)]
    assert LakeSnapshot(3).table_buckets_offset == {}


def test_offsets_are_named_by_spec_or_text() -> None:
    assert OffsetSpec.of("Earliest") == OffsetSpec.of(OffsetType.EARLIEST) == OffsetSpec.earliest()
    assert OffsetSpec.of("LATEST") == OffsetSpec.latest() != OffsetSpec.earliest()
    assert OffsetSpec.of("timestamp", 5) == OffsetSpec.timestamp(5) == OffsetSpec.of(OffsetSpec.timestamp(5))
    assert (OffsetType.EARLIEST, OffsetType.LATEST, OffsetType.TIMESTAMP) == ("earliest", "latest", "timestamp")
    with pytest.raises(FlussError, match="timestamp must be provided"):
        OffsetSpec.of("timestamp")
    with pytest.raises(FlussError, match="Invalid offset_type: 'newest'"):
        OffsetSpec.of("newest")
    with pytest.raises(TypeError):
        OffsetSpec.of(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        OffsetSpec.timestamp("5")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        OffsetSpec.timestamp(2**63)
    assert (fluss.EARLIEST_OFFSET, fluss.LATEST_OFFSET) == (-2, -1)


def test_change_types_are_numbers_that_print_as_signs() -> None:
    signs = ["+A", "+I", "-U", "+U", "-D"]
    assert [change.short_string() for change in ChangeType] == signs
    assert [str(change) for change in ChangeType] == signs
    assert [f"{change}" for change in ChangeType] == signs
    assert f"{ChangeType.Delete:>4}" == "  -D"
    assert [int(change) for change in ChangeType] == [0, 1, 2, 3, 4]
    assert ChangeType.UpdateAfter == 3
