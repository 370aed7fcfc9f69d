"""Creating and altering lake tables, by the rules that go with Fluss tables."""

import pytest
from pyiceberg.transforms import BucketTransform, IdentityTransform

from fluss.errors import ErrorCode, FlussError
from fluss.lake.catalogs import open_catalog
from fluss.lake.commits import commit_files
from fluss.lake.lake_tables import LakeTables
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataField, DataTypes
from tests.unit.lake.lakes import BUCKETS, PATH, key_descriptor, log_descriptor, open_lake, rows, written


@pytest.fixture
def lake(tmp_path) -> LakeTables:
    return open_lake(tmp_path)


@pytest.fixture(params=["hadoop", "sql"])
def any_lake(request, tmp_path) -> LakeTables:
    if request.param == "hadoop":
        return open_lake(tmp_path)
    pytest.importorskip("sqlalchemy")
    return LakeTables.open(
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    )


def test_a_log_table_has_the_columns_of_the_system_and_a_partition_per_bucket(any_lake):
    table = any_lake.create(PATH, log_descriptor(properties={"iceberg.a": "1", "table.log.ttl": "7d"}))
    assert [field.name for field in table.schema().fields] == ["id", "name", "__bucket", "__offset", "__timestamp"]
    assert [field.required for field in table.schema().fields] == [False, False, True, True, True]
    assert [(field.name, field.transform) for field in table.spec().fields] == [("__bucket", IdentityTransform())]
    assert [str(field.direction) for field in table.sort_order().fields] == ["ASC"]
    assert table.properties["a"] == "1"
    assert table.properties["fluss.table.log.ttl"] == "7d"
    assert table.metadata.format_version == 2
    assert any_lake.load(PATH).metadata == table.metadata


def test_a_table_with_keys_is_bucketed_by_its_key_and_merged_on_read(lake):
    schema = (
        Schema.builder()
        .column("day", DataTypes.string().not_null())
        .column("id", DataTypes.bigint().not_null())
        .primary_key(["day", "id"])
        .build()
    )
    table = lake.create(PATH, TableDescriptor(schema, partition_keys=["day"], bucket_count=BUCKETS))
    assert [(field.name, field.transform) for field in table.spec().fields] == [
        ("day", IdentityTransform()),
        ("id_bucket", BucketTransform(BUCKETS)),
    ]
    assert table.schema().identifier_field_names() == {"day", "id"}
    assert table.properties["write.delete.mode"] == "merge-on-read"


@pytest.mark.parametrize(
    ("descriptor", "code", "text"),
    [
        (
            TableDescriptor(Schema.builder().column("__offset", DataTypes.int()).build(), bucket_count=1),
            ErrorCode.INVALID_TABLE_EXCEPTION,
            "rename the column",
        ),
        (
            TableDescriptor(
                Schema.builder().column("a", DataTypes.int()).column("b", DataTypes.int()).build(),
                bucket_count=1,
                bucket_keys=["a", "b"],
            ),
            ErrorCode.INVALID_TABLE_EXCEPTION,
            "choose one of a, b",
        ),
        (
            TableDescriptor(
                Schema.builder().column("a", DataTypes.int()).build(), bucket_count=1, partition_keys=["a"]
            ),
            ErrorCode.INVALID_TABLE_EXCEPTION,
            "type STRING",
        ),
        (
            TableDescriptor(
                Schema.builder()
                .column("a.b", DataTypes.int())
                .column("a", DataTypes.row([DataField("b", DataTypes.int())]))
                .build(),
                bucket_count=1,
            ),
            ErrorCode.INVALID_TABLE_EXCEPTION,
            "rename a column",
        ),
        (
            TableDescriptor(
                Schema.builder()
                .column("a", DataTypes.int().not_null())
                .column("b", DataTypes.double().not_null())
                .primary_key(["a", "b"])
                .build(),
                bucket_count=1,
                bucket_keys=["a"],
            ),
            ErrorCode.INVALID_TABLE_EXCEPTION,
            "'b' is double",
        ),
        (
            TableDescriptor(Schema.builder().column("a", DataTypes.float()).build(), bucket_count=1, bucket_keys=["a"]),
            ErrorCode.INVALID_TABLE_EXCEPTION,
            "cannot be bucketed",
        ),
        (
            TableDescriptor(
                Schema.builder().column("a", DataTypes.timestamp(7).not_null()).primary_key(["a"]).build(),
                bucket_count=1,
            ),
            ErrorCode.INVALID_TABLE_EXCEPTION,
            "precision of 6",
        ),
        (
            key_descriptor(custom_properties={"iceberg.write.delete.mode": "copy-on-write"}),
            ErrorCode.INVALID_CONFIG_EXCEPTION,
            "cannot be set",
        ),
    ],
)
def test_what_cannot_be_mirrored_is_refused_and_leaves_nothing(lake, descriptor, code, text):
    with pytest.raises(FlussError, match=text) as refused:
        lake.create(PATH, descriptor)
    assert refused.value.error_code == code
    assert lake.find(PATH) is None


def test_an_existing_table_is_taken_if_it_fits_and_is_empty(lake):
    first = lake.create(PATH, log_descriptor())
    assert lake.create(PATH, log_descriptor()).metadata == first.metadata
    for other in (key_descriptor(), log_descriptor(bucket_keys=["id"]), log_descriptor(properties={"iceberg.a": "1"})):
        with pytest.raises(FlussError, match="exists in the lake") as refused:
            lake.create(PATH, other)
        assert refused.value.error_code == ErrorCode.LAKE_TABLE_ALREADY_EXIST
    commit_files(first, added=written(first, rows([1])))
    with pytest.raises(FlussError, match="has rows already"):
        lake.create(PATH, log_descriptor())
    assert lake.create(PATH, log_descriptor(), must_be_empty=False).metadata.current_snapshot() is not None


def test_columns_are_added_before_those_of_the_system_and_only_once(any_lake):
    any_lake.create(PATH, log_descriptor())
    columns = [
        Column("price", DataTypes.decimal(10, 2), "in euros"),
        Column("tags", DataTypes.array(DataTypes.string())),
    ]
    any_lake.add_columns(PATH, columns[:1])
    any_lake.add_columns(PATH, columns)
    names = [field.name for field in any_lake.load(PATH).schema().fields]
    assert names == ["id", "name", "price", "tags", "__bucket", "__offset", "__timestamp"]
    assert any_lake.load(PATH).schema().find_field("price").doc == "in euros"
    with pytest.raises(FlussError, match="cannot be added as") as refused:
        any_lake.add_columns(PATH, [Column("price", DataTypes.string())])
    assert refused.value.error_code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION


def test_properties_are_set_and_reset_under_their_names_in_the_lake(lake):
    lake.create(PATH, log_descriptor(custom_properties={"iceberg.a": "1", "owner": "me"}))
    lake.alter_properties(PATH, {"iceberg.b": "2", "owner": "you"}, removed=["iceberg.a", "never.there"])
    properties = lake.load(PATH).properties
    assert (properties.get("a"), properties["b"], properties["fluss.owner"]) == (None, "2", "you")
    with pytest.raises(FlussError, match="does not exist in the lake"):
        lake.alter_properties(PATH.__class__("shop", "other"), {"a": "b"})


@pytest.mark.parametrize("prefix", ["", "file://", "file:"])
def test_a_warehouse_may_have_any_name(tmp_path, prefix):
    directory = tmp_path / "the lake %20 ä"
    lake = LakeTables.open({"warehouse": f"{prefix}{directory}"})
    table = lake.create(PATH, log_descriptor())
    commit_files(table, added=written(table, rows([1])))
    assert list(directory.rglob("*.parquet"))
    assert lake.load(PATH).scan().to_arrow().num_rows == 1


def test_a_catalog_that_cannot_be_opened_says_why_without_secrets():
    with pytest.raises(FlussError, match="it has no 'warehouse'"):
        open_catalog({})
    with pytest.raises(FlussError, match="object stores") as refused:
        open_catalog({"warehouse": "s3://bucket/warehouse"})
    assert "type 'rest'" in str(refused.value)
    assert refused.value.error_code == ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION
    with pytest.raises(FlussError, match="cannot be opened") as refused:
        open_catalog({"type": "unheard-of", "uri": "http://me:verysecret@localhost:1"})
    assert "verysecret" not in str(refused.value)
