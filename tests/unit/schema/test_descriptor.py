"""A table descriptor says how a table is partitioned, distributed and stored, and refuses contradictions.
Shown through the constructor and the builder, with a table of refused combinations."""

import pickle

import pyarrow as pa
import pytest

from fluss import FlussError, KvFormat, LogFormat, Schema, TableDescriptor

ARROW = pa.schema([("id", pa.int32()), ("region", pa.string()), ("day", pa.string()), ("v", pa.int64())])
LOG = Schema(ARROW)
KEYED = Schema(ARROW, primary_keys=["id", "region"])


def test_a_descriptor_without_options_leaves_everything_to_the_server() -> None:
    descriptor = TableDescriptor(LOG)
    assert descriptor.schema is descriptor.get_schema() is LOG
    assert (descriptor.partition_keys, descriptor.bucket_keys, descriptor.bucket_count) == ([], [], None)
    assert (descriptor.properties, descriptor.custom_properties, descriptor.comment) == ({}, {}, None)
    assert not descriptor.has_primary_key()
    assert not descriptor.is_partitioned()
    assert not descriptor.has_distribution()
    assert (descriptor.log_format, descriptor.kv_format) == (LogFormat.ARROW, KvFormat.COMPACTED)


def test_all_options_are_kept() -> None:
    descriptor = TableDescriptor(
        KEYED,
        partition_keys=["region"],
        bucket_count=3,
        bucket_keys=["id"],
        comment="c",
        log_format="arrow",
        kv_format=KvFormat.INDEXED,
        properties={"table.replication.factor": "1"},
        custom_properties={"k": "v"},
    )
    assert (descriptor.partition_keys, descriptor.bucket_keys, descriptor.bucket_count) == (["region"], ["id"], 3)
    assert descriptor.properties == {
        "table.replication.factor": "1",
        "table.log.format": "ARROW",
        "table.kv.format": "INDEXED",
    }
    assert descriptor.custom_properties == {"k": "v"}
    assert descriptor.comment == "c"
    assert (descriptor.log_format, descriptor.kv_format) == (LogFormat.ARROW, KvFormat.INDEXED)
    assert descriptor.has_primary_key()
    assert descriptor.is_partitioned()
    descriptor.properties["x"] = "changing the copy changes nothing"
    assert "x" not in descriptor.properties


def test_the_builder_makes_the_same_descriptor() -> None:
    built = (
        TableDescriptor.builder()
        .schema(KEYED)
        .partitioned_by(["region"])
        .distributed_by(3, ["id"])
        .comment("c")
        .log_format(LogFormat.ARROW)
        .kv_format("indexed")
        .property("a", "1")
        .properties({"b": "2"})
        .custom_property("c", "3")
        .custom_properties({"d": "4"})
        .build()
    )
    direct = TableDescriptor(
        KEYED,
        partition_keys=["region"],
        bucket_count=3,
        bucket_keys=["id"],
        comment="c",
        log_format="ARROW",
        kv_format="INDEXED",
        properties={"a": "1", "b": "2"},
        custom_properties={"c": "3", "d": "4"},
    )
    assert built == direct
    assert hash(built) == hash(direct)
    with pytest.raises(FlussError, match="A table needs a schema"):
        TableDescriptor.builder().build()


def test_a_keyed_table_is_distributed_by_its_key_without_the_partition_keys() -> None:
    assert TableDescriptor(KEYED).bucket_keys == ["id", "region"]
    descriptor = TableDescriptor(KEYED, partition_keys=["region"])
    assert descriptor.bucket_keys == descriptor.physical_primary_keys == ["id"]
    assert descriptor.has_distribution()


REFUSED = [
    (LOG, {"log_format": "PARQUET"}, "Unknown log format: 'PARQUET'"),
    (LOG, {"kv_format": "ARROW"}, "Unknown kv format: 'ARROW'"),
    (LOG, {"log_format": "ARROW", "properties": {"table.log.format": "INDEXED"}}, "'table.log.format' is given twice"),
    (LOG, {"partition_keys": ["x"]}, "Partition key 'x' not found in schema"),
    (LOG, {"partition_keys": ["day", "day"]}, "Partition key columns must be given once each"),
    (LOG, {"bucket_keys": ["x"]}, "Bucket key 'x' not found in schema"),
    (LOG, {"bucket_keys": ["day"], "partition_keys": ["day"]}, "Bucket key 'day' must not be a partition key"),
    (LOG, {"bucket_count": 0}, "bucket_count must be positive, got 0"),
    (LOG, {"bucket_count": -3}, "bucket_count must be positive"),
    (KEYED, {"partition_keys": ["day"]}, "Partition key 'day' must be part of the primary key"),
    (KEYED, {"partition_keys": ["id", "region"]}, "should not be same with partition fields"),
    (KEYED, {"bucket_keys": ["v"]}, "Bucket keys must be a subset of primary keys"),
]


@pytest.mark.parametrize(("schema", "options", "message"), REFUSED)
def test_contradictions_are_refused(schema: Schema, options: dict[str, object], message: str) -> None:
    with pytest.raises(FlussError) as caught:
        TableDescriptor(schema, **options)  # type: ignore[arg-type]
    assert message in caught.value.message
    assert caught.value.error_code == -2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"partition_keys": "day"}, TypeError),
        ({"bucket_keys": "id"}, TypeError),
        ({"bucket_count": "3"}, TypeError),
        ({"bucket_count": 1.0}, TypeError),
        ({"bucket_count": 2**31}, OverflowError),
        ({"comment": 5}, TypeError),
        ({"log_format": 5}, TypeError),
        ({"properties": {"a": 1}}, TypeError),
        ({"properties": {1: "a"}}, TypeError),
        ({"custom_properties": [("a", "b")]}, TypeError),
        ({"unknown_option": 1}, TypeError),
    ],
)
def test_wrong_classes_are_type_errors(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        TableDescriptor(LOG, **options)  # type: ignore[arg-type]


def test_options_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        TableDescriptor(LOG, ["day"])  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"schema must be a fluss\.Schema, got Schema"):
        TableDescriptor(ARROW)


def test_descriptors_are_values_whatever_the_order_of_their_properties() -> None:
    one = TableDescriptor(LOG, properties={"a": "1", "b": "2"})
    assert one == TableDescriptor(LOG, properties={"b": "2", "a": "1"})
    assert one != TableDescriptor(LOG)
    assert one != "descriptor"
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(one).startswith('TableDescriptor(schema=Schema(columns=[("id", "int"), ')


@pytest.mark.parametrize(
    ("text", "log_format"), [("arrow", "ARROW"), ("Indexed", "INDEXED"), ("COMPACTED", "COMPACTED")]
)
def test_log_formats_are_read_in_any_case(text: str, log_format: str) -> None:
    assert TableDescriptor(LOG, log_format=text).log_format == LogFormat(log_format) == log_format
