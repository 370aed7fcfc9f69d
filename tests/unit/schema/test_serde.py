"""Schemas and descriptors have one JSON form; other generations' forms are read, and damage is always a typed error.
Shown byte for byte, as round trips of drawn schemas, and by damaging valid documents in every way we could think of."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import AggFunction, Column, DatabaseDescriptor, DataField, DataTypes, FlussError, Schema, TableDescriptor
from fluss.schema.schema import schema_from_columns
from fluss.schema.serde import (
    data_type_from_json,
    data_type_to_json,
    database_from_json,
    database_to_json,
    schema_from_json,
    schema_to_json,
    table_from_json,
    table_to_json,
)
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType, field_ids
from fluss.testing.strategies import data_types, row_types

KEYED = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
TABLE_JSON = (
    b'{"version":1,"schema":{"version":1,"columns":['
    b'{"name":"id","data_type":{"type":"INTEGER","nullable":false},"id":0},'
    b'{"name":"name","data_type":{"type":"STRING"},"id":1}],"primary_key":["id"],"highest_field_id":1},'
    b'"partition_key":[],"bucket_key":["id"],"bucket_count":1,"properties":{"table.replication.factor":"1",'
    b'"table.kv.format-version":"2","table.kv.standby-replica.enabled":"true"},"custom_properties":{}}'
)
RICH = TableDescriptor(
    Schema.builder()
    .column("id", DataTypes.bigint())
    .column("seq", DataTypes.int())
    .column("größe", DataTypes.decimal(10, 2), 'a "comment"', aggregation=AggFunction("sum"))
    .column("names", DataTypes.string(), aggregation=AggFunction.of("listagg", delimiter=";"))
    .column(
        "deep",
        DataTypes.row(
            [
                DataField("m", parse_type("map<int,array<row<x int, y char(3)>>>"), "d"),
                DataField("n", DataTypes.time(3)),
            ]
        ),
    )
    .column("day", DataTypes.string())
    .primary_key(["day", "id"])
    .enable_auto_increment("seq")
    .build(),
    partition_keys=["day"],
    bucket_count=4,
    comment="c",
    properties={"table.merge-engine": "aggregation"},
    custom_properties={"k": ""},
)


def test_a_table_reads_and_prints_byte_for_byte() -> None:
    properties = {
        "table.replication.factor": "1",
        "table.kv.format-version": "2",
        "table.kv.standby-replica.enabled": "true",
    }
    descriptor = TableDescriptor(KEYED, bucket_count=1, bucket_keys=["id"], properties=properties)
    assert table_to_json(descriptor) == TABLE_JSON
    assert table_from_json(TABLE_JSON) == descriptor
    assert table_to_json(table_from_json(memoryview(TABLE_JSON))) == TABLE_JSON
    assert table_from_json(TABLE_JSON.decode()) == descriptor


def test_keys_are_left_out_when_there_is_nothing_to_say() -> None:
    log_table = TableDescriptor(Schema(pa.schema([("a", pa.int32())])))
    assert table_to_json(log_table) == (
        b'{"version":1,"schema":{"version":1,"columns":[{"name":"a","data_type":{"type":"INTEGER"},"id":0}],'
        b'"highest_field_id":0},"partition_key":[],"properties":{},"custom_properties":{}}'
    )
    counted = TableDescriptor(log_table.schema, bucket_count=3)
    assert b'"bucket_key":[],"bucket_count":3,' in table_to_json(counted)
    assert b'"bucket_key":["id"],"properties"' in table_to_json(TableDescriptor(KEYED))
    for descriptor in (log_table, counted, TableDescriptor(KEYED)):
        assert table_from_json(table_to_json(descriptor)) == descriptor


def test_every_part_of_a_table_survives() -> None:
    data = table_to_json(RICH)
    assert '"größe"'.encode() in data
    assert b'"agg_function":{"type":"sum"},"id":2}' in data
    assert b'"agg_function":{"type":"listagg","parameters":{"delimiter":";"}},"id":3}' in data
    assert b'"auto_increment_column":["seq"]' in data
    assert b'"description":"d","field_id":5}' in data
    restored = table_from_json(data)
    assert restored == RICH
    assert table_to_json(restored) == data


TYPES = [
    ("boolean", '{"type":"BOOLEAN"}'),
    ("tinyint", '{"type":"TINYINT"}'),
    ("smallint", '{"type":"SMALLINT"}'),
    ("int NOT NULL", '{"type":"INTEGER","nullable":false}'),
    ("bigint", '{"type":"BIGINT"}'),
    ("float", '{"type":"FLOAT"}'),
    ("double", '{"type":"DOUBLE"}'),
    ("string", '{"type":"STRING"}'),
    ("bytes", '{"type":"BYTES"}'),
    ("date", '{"type":"DATE"}'),
    ("char(3) NOT NULL", '{"type":"CHAR","nullable":false,"length":3}'),
    ("binary(4)", '{"type":"BINARY","length":4}'),
    ("decimal(10,2)", '{"type":"DECIMAL","precision":10,"scale":2}'),
    ("time(3)", '{"type":"TIME_WITHOUT_TIME_ZONE","precision":3}'),
    ("timestamp", '{"type":"TIMESTAMP_WITHOUT_TIME_ZONE","precision":6}'),
    ("timestamp_ltz(9)", '{"type":"TIMESTAMP_WITH_LOCAL_TIME_ZONE","precision":9}'),
    ("array<int>", '{"type":"ARRAY","element_type":{"type":"INTEGER"}}'),
    (
        "map<string,int>",
        '{"type":"MAP","key_type":{"type":"STRING","nullable":false},"value_type":{"type":"INTEGER"}}',
    ),
    ("row<a: int>", '{"type":"ROW","fields":[{"name":"a","field_type":{"type":"INTEGER"}}]}'),
]


@pytest.mark.parametrize(("text", "expected"), TYPES)
def test_every_type_has_its_json(text: str, expected: str) -> None:
    data_type = parse_type(text)
    assert data_type_to_json(data_type).decode() == expected
    assert data_type_from_json(expected) == data_type


@given(row_types(columns_max=6), st.booleans())
def test_schemas_survive_the_round_trip(types: list[DataType], keyed: bool) -> None:
    builder = Schema.builder()
    for index, data_type in enumerate(types):
        builder.column(f"c{index}", data_type, comment=f"{index}" if index % 2 else None)
    schema = builder.primary_key(["c0"] if keyed else []).build()
    data = schema_to_json(schema)
    restored = schema_from_json(data)
    assert restored == schema
    assert schema_to_json(restored) == data
    assert schema_from_json(json.dumps(_without_ids(json.loads(data)))).row_type == schema.row_type


@given(data_types(max_leaves=8))
def test_types_survive_the_round_trip(data_type: DataType) -> None:
    assert data_type_from_json(data_type_to_json(data_type)) == data_type


def _without_ids(node: Any) -> Any:
    """What a client sends that knows nothing of ids."""
    if isinstance(node, dict):
        return {k: _without_ids(v) for k, v in node.items() if k not in ("id", "field_id", "highest_field_id")}
    return [_without_ids(item) for item in node] if isinstance(node, list) else node


def test_missing_ids_are_numbered_depth_first() -> None:
    columns = [
        {"name": "id", "data_type": {"type": "INTEGER"}},
        {"name": "nested", "data_type": data_values("row<x int, label string>")},
        {"name": "deep", "data_type": data_values("row<inner row<n int>>")},
    ]
    schema = schema_from_json(json.dumps({"version": 1, "columns": columns}))
    assert [column.column_id for column in schema.columns] == [0, 1, 4]
    assert [list(field_ids(column.data_type)) for column in schema.columns] == [[], [2, 3], [5, 6]]
    assert schema.highest_field_id == 6


def data_values(text: str) -> Any:
    return json.loads(data_type_to_json(parse_type(text)))


def test_ids_are_given_to_all_columns_or_to_none() -> None:
    values = json.loads(schema_to_json(KEYED))
    del values["columns"][1]["id"]
    with pytest.raises(FlussError, match="1 of 2 columns have no id; give ids to all or to none") as caught:
        schema_from_json(json.dumps(values))
    assert caught.value.error_code == 15


def test_ids_may_have_gaps_and_the_highest_is_kept() -> None:
    schema = schema_from_columns([Column("a", DataTypes.int(), column_id=3)], highest_field_id=8)
    restored = schema_from_json(schema_to_json(schema))
    assert (restored.columns[0].column_id, restored.highest_field_id) == (3, 8)


def test_what_other_generations_write_is_read() -> None:
    table = json.loads(TABLE_JSON)
    table["version"] = 99
    table["something new"] = {"a": [1]}
    table["comment"] = None
    table["properties"] = {"a": 1, "b": True, "c": 1.50, "d": "x"}
    table["schema"]["columns"][1]["agg_function"] = {"type": "a function of the future", "parameters": {"a": "b"}}
    descriptor = table_from_json(json.dumps(table))
    assert descriptor.comment is None
    assert descriptor.properties == {"a": "1", "b": "true", "c": "1.5", "d": "x"}
    assert descriptor.schema.columns[1].aggregation is None
    table["schema"]["columns"][1]["agg_function"] = {"type": "LAST-VALUE"}
    assert table_from_json(json.dumps(table)).schema.columns[1].aggregation == AggFunction("last_value")


@pytest.mark.parametrize(
    ("descriptor", "expected"),
    [
        (DatabaseDescriptor(), b'{"version":1,"custom_properties":{}}'),
        (DatabaseDescriptor("", {"a": "b"}), b'{"version":1,"comment":"","custom_properties":{"a":"b"}}'),
    ],
)
def test_databases_have_their_json(descriptor: DatabaseDescriptor, expected: bytes) -> None:
    assert database_to_json(descriptor) == expected
    assert database_from_json(expected) == descriptor


WRONG_TABLES: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("no schema", lambda t: t.pop("schema"), "schema is missing"),
    ("no partition key", lambda t: t.pop("partition_key"), "partition_key is missing"),
    ("no properties", lambda t: t.pop("properties"), "properties is missing"),
    ("no custom properties", lambda t: t.pop("custom_properties"), "custom_properties is missing"),
    ("no bucket key", lambda t: t.pop("bucket_key"), "bucket_key is missing, but bucket_count is given"),
    ("no columns", lambda t: t["schema"].pop("columns"), "schema.columns is missing"),
    ("no name", lambda t: t["schema"]["columns"][1].pop("name"), "schema.columns[1].name is missing"),
    ("list as schema", lambda t: t.update(schema=[]), "schema must be an object, found a list"),
    ("text as keys", lambda t: t.update(partition_key="a"), "partition_key must be a list of strings, found 'a'"),
    ("number as key", lambda t: t.update(partition_key=[1]), "partition_key must be a list of strings"),
    ("text as count", lambda t: t.update(bucket_count="3"), "bucket_count must be an integer, found '3'"),
    ("true as count", lambda t: t.update(bucket_count=True), "bucket_count must be an integer, found True"),
    ("fraction as count", lambda t: t.update(bucket_count=1.5), "bucket_count must be an integer, found '1.5'"),
    ("zero buckets", lambda t: t.update(bucket_count=0), "bucket_count must be between 1 and 2147483647"),
    ("huge count", lambda t: t.update(bucket_count=2**31), "bucket_count must be between 1 and 2147483647"),
    (
        "null property",
        lambda t: t.update(properties={"a": None}),
        "properties must be an object with strings as values",
    ),
    (
        "nested property",
        lambda t: t.update(properties={"a": {}}),
        "properties must be an object with strings as values",
    ),
    ("number as comment", lambda t: t.update(comment=5), "comment must be a string, found 5"),
    ("half a character", lambda t: t.update(comment="\ud800"), "comment must be a string, found '\\ud800'"),
    ("half a key", lambda t: t.update(properties={"\ud800": "a"}), "properties must be an object with strings"),
    ("empty key", lambda t: t["schema"].update(primary_key=[]), "schema.primary_key must not be empty"),
    ("unknown key", lambda t: t["schema"].update(primary_key=["x"]), "Primary key column 'x' not found in schema"),
    ("twice the name", lambda t: t["schema"]["columns"][0].update(name="name"), "Duplicate column names: 'name'"),
    ("blank name", lambda t: t["schema"]["columns"][0].update(name=" "), "at least one non-blank character"),
    ("twice the id", lambda t: t["schema"]["columns"][0].update(id=1), "Field ids must be unique, but 1 is repeated"),
    ("negative id", lambda t: t["schema"]["columns"][0].update(id=-2), "id must be between -1 and 2147483647"),
    ("huge id", lambda t: t["schema"]["columns"][0].update(id=2**40), "id must be between -1 and 2147483647"),
    (
        "low highest id",
        lambda t: t["schema"].update(highest_field_id=0),
        "highest_field_id is 0, but must be between 1",
    ),
    ("two counters", lambda t: t["schema"].update(auto_increment_column=["a", "b"]), "one auto increment column only"),
    ("unknown partition", lambda t: t.update(partition_key=["x"]), "Partition key 'x' not found in schema"),
    ("whole key", lambda t: t.update(partition_key=["id"]), "should not be same with partition fields"),
    ("unknown bucket key", lambda t: t.update(bucket_key=["name"]), "subset of primary keys"),
]


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in WRONG_TABLES], ids=[c[0] for c in WRONG_TABLES])
def test_wrong_tables_are_refused_with_code_15(change: Callable[[dict[str, Any]], object], message: str) -> None:
    table = json.loads(TABLE_JSON)
    change(table)
    with pytest.raises(FlussError) as caught:
        table_from_json(json.dumps(table))
    assert message in caught.value.message
    assert caught.value.error_code == 15


WRONG_TYPES = [
    ("{}", "type is missing"),
    ('{"type":"VARCHAR"}', "type is not a known data type: 'VARCHAR'"),
    ('{"type":"integer"}', "type is not a known data type"),
    ('{"type":5}', "type must be a string, found 5"),
    ('{"type":"INTEGER","nullable":"false"}', "nullable must be true or false, found 'false'"),
    ('{"type":"INTEGER","nullable":0}', "nullable must be true or false"),
    ('{"type":"CHAR"}', "length is missing"),
    ('{"type":"CHAR","length":0}', "char length must be between 1"),
    ('{"type":"BINARY","length":4294967296}', "binary length must be between 1"),
    ('{"type":"DECIMAL","precision":39,"scale":0}', "decimal precision must be between 1 and 38"),
    ('{"type":"DECIMAL","precision":5,"scale":6}', "decimal scale must be between 0 and 5"),
    ('{"type":"TIME_WITHOUT_TIME_ZONE","precision":10}', "time precision must be between 0 and 9"),
    ('{"type":"ARRAY"}', "element_type is missing"),
    ('{"type":"ARRAY","element_type":[]}', "element_type must be an object, found a list"),
    ('{"type":"MAP","key_type":{"type":"INTEGER"}}', "value_type is missing"),
    ('{"type":"ROW","fields":{}}', "fields must be a list of objects, found an object"),
    ('{"type":"ROW","fields":[1]}', "fields must be a list of objects"),
    ('{"type":"ROW","fields":[{"name":"a"}]}', "fields[0].field_type is missing"),
    ('{"type":"ROW","fields":[{"name":"","field_type":{"type":"DATE"}}]}', "at least one non-blank character"),
    ("[]", "the JSON must be an object, found a list"),
    ("null", "the JSON must be an object, found None"),
    ('"INTEGER"', "the JSON must be an object"),
    ("", "not valid JSON"),
    ("{", "not valid JSON"),
    ('{"type":"INTEGER"}}', "not valid JSON"),
    ('{"type":"CHAR","length":NaN}', "NaN is not a JSON number"),
    ('{"type":"CHAR","length":-Infinity}', "-Infinity is not a JSON number"),
    ('{"type":"CHAR","length":' + "9" * 5000 + "}", "not valid JSON"),
    ('{"type":"CHAR","length":1e400}', "length must be an integer, found '1e400'"),
    ('{"type":"DATE","type":"DATE"}', "a key is given twice"),
    ("[" * 100_000, "nested too deeply"),
    ('{"a":' * 100_000, "nested too deeply"),
    ('{"type":"ARRAY","element_type":' * 65 + '{"type":"INTEGER"}' + "}" * 65, "nested too deeply"),
]


@pytest.mark.parametrize(("document", "message"), WRONG_TYPES)
def test_wrong_types_are_refused_with_code_15(document: str, message: str) -> None:
    with pytest.raises(FlussError) as caught:
        data_type_from_json(document)
    assert message in caught.value.message
    assert caught.value.error_code == 15
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "document", [b"[]", b"{}", b'{"custom_properties":[]}', b'{"comment":1,"custom_properties":{}}', b"\xff", b"{\0}"]
)
def test_wrong_databases_are_refused_with_code_16(document: bytes) -> None:
    with pytest.raises(FlussError, match="Invalid database descriptor: ") as caught:
        database_from_json(document)
    assert caught.value.error_code == 16


def test_limits_are_those_of_the_caller() -> None:
    with pytest.raises(FlussError, match=r"the JSON has \d+ bytes, at most 100 are accepted") as caught:
        table_from_json(TABLE_JSON, bytes_max=100)
    assert caught.value.error_code == 15
    nested = data_type_to_json(parse_type("array<array<int>>"))
    assert data_type_from_json(nested, depth_max=3) == parse_type("array<array<int>>")
    with pytest.raises(FlussError, match="nested too deeply"):
        data_type_from_json(nested, depth_max=2)


def test_texts_that_are_not_unicode_cannot_be_written() -> None:
    with pytest.raises(FlussError, match="must be valid Unicode text"):
        database_to_json(DatabaseDescriptor("\ud800"))


REPLACEMENTS: list[Any] = [
    None,
    True,
    -1,
    2**70,
    1.5,
    "",
    "\ud800",
    "id",
    [],
    ["id"],
    [[]],
    {},
    {"type": "ROW"},
    {"": ""},
]


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


def test_any_value_replaced_or_removed_gives_a_table_or_code_15() -> None:
    document = json.loads(table_to_json(RICH))
    place_count = sum(1 for _ in _places(document))
    assert place_count > 60
    for place in range(place_count):
        for replacement in [*REPLACEMENTS, KeyError]:
            damaged = copy.deepcopy(document)
            parent, key = list(_places(damaged))[place]
            if replacement is KeyError:
                del parent[key]
            else:
                parent[key] = replacement
            assert_table_or_code_15(json.dumps(damaged).encode())


def test_cut_and_flipped_bytes_give_a_table_or_code_15() -> None:
    data = table_to_json(RICH)
    for length in range(len(data)):
        assert_table_or_code_15(data[:length])
    rng = random.Random(1)
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.choice([rng.randrange(256), *b'"{}[]:,0-\\'])
        assert_table_or_code_15(bytes(damaged))


def assert_table_or_code_15(data: bytes) -> None:
    outcome = table_or_code(data)
    if isinstance(outcome, TableDescriptor):
        # What was accepted is whole: it can be written, and reads back as itself.
        assert table_from_json(table_to_json(outcome)) == outcome
    else:
        assert outcome == 15


def table_or_code(data: bytes) -> TableDescriptor | int:
    try:
        return table_from_json(data)
    except FlussError as error:
        return error.error_code
