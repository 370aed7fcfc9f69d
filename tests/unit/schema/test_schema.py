"""A schema keeps columns, keys and ids, and refuses what no table can have.
Shown through pyarrow schemas and the builder, with the documented texts word for word."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given

from fluss import AggFunction, Column, DataField, DataTypes, FlussError, Schema
from fluss.schema.schema import schema_from_columns
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType, field_ids
from fluss.testing.strategies import row_types


def schema_of(*columns: str, primary_keys: list[str] | None = None) -> Schema:
    """Build a schema from texts such as ``id INT``."""
    builder = Schema.builder()
    for text in columns:
        name, _, type_text = text.partition(" ")
        builder.column(name, parse_type(type_text))
    return builder.primary_key(primary_keys or []).build()


def test_a_schema_is_made_from_a_pyarrow_schema() -> None:
    schema = Schema(pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string())]))
    assert str(schema) == 'Schema: columns=[("id", "int"), ("name", "string")]'
    assert schema.get_column_names() == schema.column_names == ["id", "name"]
    assert schema.get_column_types() == ["int", "string"]
    assert schema.get_columns() == [("id", "int"), ("name", "string")]
    assert schema.get_primary_keys() == []
    assert schema.primary_key is None
    assert schema.primary_key_indexes == []
    assert schema.get_auto_increment_columns() == []


def test_nullability_is_kept_and_printed() -> None:
    fields = [
        pa.field("a", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("b", pa.map_(pa.string(), pa.struct([("seq", pa.int32()), ("label", pa.string())]))),
    ]
    assert Schema(pa.schema(fields)).get_column_types() == [
        "array<int NOT NULL> NOT NULL",
        "map<string NOT NULL,row<seq: int, label: string>>",
    ]


def test_key_columns_are_never_null_and_keep_the_order_of_the_key() -> None:
    arrow = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.string()), pa.field("c", pa.int64())])
    schema = Schema(schema=arrow, primary_keys=("c", "a"))
    assert schema.get_column_types() == ["int NOT NULL", "string", "bigint NOT NULL"]
    assert schema.get_primary_keys() == schema.primary_key == ["c", "a"]
    assert schema.primary_key_indexes == [2, 0]
    columns = '[("a", "int NOT NULL"), ("b", "string"), ("c", "bigint NOT NULL")]'
    assert repr(schema) == f"Schema(columns={columns}, primary_keys=['c', 'a'])"


def test_comments_come_from_field_metadata() -> None:
    schema = Schema(pa.schema([pa.field("a", pa.int32(), metadata={"comment": "größe"}), pa.field("b", pa.int32())]))
    assert [column.comment for column in schema.columns] == ["größe", None]
    with pytest.raises(FlussError, match="the comment is not valid UTF-8"):
        Schema(pa.schema([pa.field("a", pa.int32(), metadata={b"comment": b"\xff"})]))


def test_the_arrow_schema_has_no_metadata() -> None:
    fields = [pa.field("id", pa.uint32(), metadata={"comment": "c"}), pa.field("at", pa.timestamp("us", "Asia/Tokyo"))]
    schema = Schema(pa.schema(fields, metadata={"k": "v"}), primary_keys=["id"])
    expected = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"))])
    assert schema.to_arrow().equals(expected, check_metadata=True)


def test_a_schema_may_be_empty() -> None:
    schema = Schema(pa.schema([]))
    assert schema.columns == []
    assert schema.highest_field_id == -1


ARROW = pa.schema([pa.field("id", pa.int32()), pa.field("n", pa.int64()), pa.field("s", pa.string())])
REFUSED = [
    ({"schema": "id INT"}, "Failed to convert PyArrow schema: expected a pyarrow.Schema, got str"),
    ({"schema": pa.schema([("x", pa.float16())])}, "Column 'x': Unsupported Arrow type halffloat"),
    ({"schema": pa.schema([("x", pa.int32()), ("x", pa.int32())])}, "Duplicate column names: 'x'"),
    ({"schema": pa.schema([(" ", pa.int32())])}, "at least one non-blank character"),
    ({"schema": ARROW, "primary_keys": ["nope"]}, "Primary key column 'nope' not found in schema"),
    ({"schema": ARROW, "primary_keys": ["id", "id"]}, "Primary key has duplicate columns: 'id'"),
    ({"schema": ARROW, "primary_keys": ["id"], "auto_increment_column": "x"}, "Auto increment column 'x' not found"),
    (
        {"schema": ARROW, "primary_keys": ["id"], "auto_increment_column": "id"},
        "Auto increment column 'id' must not be",
    ),
    (
        {"schema": ARROW, "primary_keys": ["id"], "auto_increment_column": "s"},
        "Auto increment column 's' must be INT or",
    ),
    ({"schema": ARROW, "auto_increment_column": "n"}, "Auto increment column 'n' needs a table with a primary key"),
    ({"schema": ARROW, "auto_increment_column": "n"}, "primary_keys=[...] makes it a primary-key table"),
    ({"schema": ARROW, "primary_keys": ["id"], "auto_increment_column": "id"}, "can not be used as the primary key"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_impossible_schemas_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(FlussError) as caught:
        Schema(**arguments)  # type: ignore[arg-type]
    assert message in caught.value.message
    assert caught.value.error_code == -2


@pytest.mark.parametrize("keys", ["id", b"id", 5, [1], [None]])
def test_keys_must_be_a_sequence_of_str(keys: object) -> None:
    with pytest.raises(TypeError, match="primary_keys must"):
        Schema(ARROW, primary_keys=keys)  # type: ignore[arg-type]


def test_the_builder_makes_the_same_schema() -> None:
    built = (
        Schema.builder()
        .column("id", DataTypes.int())
        .column("n", DataTypes.bigint())
        .column("s", DataTypes.string(), "a comment")
        .primary_key(["id"])
        .enable_auto_increment("n")
        .build()
    )
    arrow = ARROW.set(2, pa.field("s", pa.string(), metadata={"comment": "a comment"}))
    assert built == Schema(arrow, primary_keys=["id"], auto_increment_column="n")
    assert built.get_auto_increment_columns() == ["n"]
    assert built.columns[2] == Column("s", DataTypes.string(), "a comment")
    with pytest.raises(FlussError, match="one auto increment column only"):
        Schema.builder().column("a", DataTypes.int()).enable_auto_increment("a").enable_auto_increment("b").build()
    with pytest.raises(TypeError, match="must be a DataType, got str"):
        Schema.builder().column("a", "INT")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a column name must be str"):
        Column(1, DataTypes.int())  # type: ignore[arg-type]


def test_columns_and_nested_fields_are_numbered_depth_first() -> None:
    schema = schema_of("id INT", "nested ROW<x INT,label STRING>", "deep ROW<inner ROW<n INT>>")
    assert [column.column_id for column in schema.columns] == [0, 1, 4]
    assert [list(field_ids(column.data_type)) for column in schema.columns] == [[], [2, 3], [5, 6]]
    assert schema.highest_field_id == 6
    mixed = schema_of("a ARRAY<ROW<x INT>>", "m MAP<ROW<k INT>,ROW<v ROW<w INT>>>", "z INT")
    assert [column.column_id for column in mixed.columns] == [0, 2, 6]
    assert [list(field_ids(column.data_type)) for column in mixed.columns] == [[1], [3, 4, 5], []]


@given(row_types())
def test_ids_are_unique_and_dense(types: list[DataType]) -> None:
    schema = schema_of(*(f"c{i} {data_type}" for i, data_type in enumerate(types)))
    ids = [column.column_id for column in schema.columns]
    for column in schema.columns:
        ids.extend(field_ids(column.data_type))
    assert sorted(ids) == list(range(schema.highest_field_id + 1))
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_ids_that_came_with_the_columns_are_kept_and_checked() -> None:
    columns = [Column("a", DataTypes.int(), column_id=7), Column("b", DataTypes.int(), column_id=3)]
    assert schema_from_columns(columns).highest_field_id == 7
    assert schema_from_columns(columns, highest_field_id=9).highest_field_id == 9
    with pytest.raises(FlussError, match="highest_field_id is 6, but must be between 7"):
        schema_from_columns(columns, highest_field_id=6)
    with pytest.raises(FlussError, match="1 of 3 columns have no id"):
        schema_from_columns([*columns, Column("c", DataTypes.int())])
    with pytest.raises(FlussError, match="Field ids must be unique, but 7 is repeated"):
        schema_from_columns([*columns, Column("c", DataTypes.int(), column_id=7)])
    with pytest.raises(FlussError, match="Field ids must be between 0"):
        schema_from_columns([Column("c", DataTypes.int(), column_id=-5)])
    nested = DataTypes.row([DataField("x", DataTypes.int(), field_id=1)])
    with pytest.raises(FlussError, match="Nested fields have ids but their columns have none"):
        schema_from_columns([Column("r", nested)])


def test_nested_fields_without_ids_are_numbered_after_numbered_columns() -> None:
    nested = DataTypes.row([DataField("x", DataTypes.int()), DataField("y", DataTypes.int())])
    schema = schema_from_columns([Column("a", DataTypes.int(), column_id=0), Column("r", nested, column_id=1)])
    assert list(field_ids(schema.columns[1].data_type)) == [2, 3]
    assert schema.highest_field_id == 3


def test_added_columns_continue_after_every_id_ever_used() -> None:
    schema = schema_from_columns([Column("a", DataTypes.int(), column_id=0)], highest_field_id=4)
    grown = schema.with_added_columns([Column("r", parse_type("row<x int>")), Column("b", DataTypes.string())])
    assert [(c.name, c.column_id) for c in grown.columns] == [("a", 0), ("r", 5), ("b", 7)]
    assert grown.highest_field_id == 7
    assert schema.column_names == ["a"]
    assert grown.with_added_columns([]) == grown


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([Column("a", DataTypes.int())], "Column 'a' already exists"),
        ([Column("b", DataTypes.int()), Column("b", DataTypes.int())], "Column 'b' already exists"),
        ([Column("b", DataTypes.int().not_null())], "Column 'b' must be nullable"),
    ],
)
def test_impossible_additions_are_refused(columns: list[Column], message: str) -> None:
    with pytest.raises(FlussError, match=message) as caught:
        schema_of("a INT").with_added_columns(columns)
    assert caught.value.error_code == 56


def test_columns_are_found_by_name() -> None:
    schema = schema_of("a INT", "b STRING")
    assert schema.index_of("b") == 1
    assert schema.column("b").data_type == DataTypes.string()
    assert schema.data_types == (DataTypes.int(), DataTypes.string())
    assert str(schema.row_type) == "row<a: int, b: string> NOT NULL"
    with pytest.raises(FlussError, match="Column 'c' not found; columns are 'a', 'b'"):
        schema.index_of("c")


def test_messages_do_not_list_thousands_of_columns() -> None:
    schema = schema_of(*(f"c{i} INT" for i in range(3000)))
    with pytest.raises(FlussError, match=r"'c19', \.\.\.$"):
        schema.column("x")


def test_schemas_are_values() -> None:
    one, other = schema_of("a INT", primary_keys=["a"]), schema_of("a INT", primary_keys=["a"])
    assert one == other
    assert hash(one) == hash(other)
    assert one != schema_of("a INT")
    assert one != "a INT"


def test_deeply_nested_columns_are_refused() -> None:
    data_type: DataType = DataTypes.int()
    for _ in range(64):
        data_type = DataTypes.array(data_type)
    with pytest.raises(FlussError, match="more than 64 levels"):
        Schema.builder().column("a", data_type).build()


def test_aggregate_functions_are_checked_against_their_column() -> None:
    listagg = AggFunction.of("LISTAGG", delimiter=";")
    assert (listagg.name, listagg.delimiter) == ("listagg", ";")
    assert AggFunction("Last-Value-Ignore-Nulls") == AggFunction("last_value_ignore_nulls")
    assert AggFunction("string_agg").delimiter == ","
    schema = (
        Schema.builder()
        .column("id", DataTypes.int())
        .column("total", DataTypes.decimal(10, 2), aggregation=AggFunction("sum"))
        .column("names", DataTypes.string(), aggregation=listagg)
        .primary_key(["id"])
        .build()
    )
    assert pickle.loads(pickle.dumps(schema)).columns[2].aggregation == listagg


@pytest.mark.parametrize(
    ("function", "type_text", "message"),
    [
        (AggFunction("sum"), "string", "'sum' does not work on column 'a' of type string; it takes BIGINT, DECIMAL"),
        (AggFunction("max"), "boolean", "'max' does not work"),
        (AggFunction("bool_or"), "int", "it takes BOOLEAN"),
        (AggFunction("rbm32"), "binary(4)", "it takes BYTES"),
        (AggFunction.of("sum", delimiter=","), "int", "has no 'delimiter'"),
        (AggFunction.of("listagg", {"delimiter": ""}), "string", "'delimiter' .* must not be empty"),
    ],
)
def test_aggregate_functions_that_do_not_fit_are_refused(function: AggFunction, type_text: str, message: str) -> None:
    builder = Schema.builder().column("a", parse_type(type_text), aggregation=function)
    with pytest.raises(FlussError, match=message) as caught:
        builder.build()
    assert caught.value.error_code == 39


def test_unknown_aggregate_functions_and_those_on_keys_are_refused() -> None:
    with pytest.raises(FlussError, match="Unknown aggregate function 'median'") as caught:
        AggFunction("median")
    assert caught.value.error_code == 39
    builder = Schema.builder().column("a", DataTypes.int(), aggregation=AggFunction("sum")).primary_key(["a"])
    with pytest.raises(FlussError, match="Primary key column 'a' must not have an aggregate function"):
        builder.build()


def test_functions_may_be_given_by_name_and_beside_an_arrow_schema():
    built = (
        Schema.builder().column("id", DataTypes.int()).column("total", DataTypes.bigint(), aggregation="sum").build()
    )
    assert built.column("total").aggregation == AggFunction("sum")
    arrow = pa.schema([("id", pa.int32()), ("total", pa.int64()), ("names", pa.string())])
    listagg = AggFunction.of("listagg", delimiter=";")
    schema = Schema(arrow, primary_keys=["id"], aggregations={"total": "SUM", "names": listagg})
    assert [column.aggregation for column in schema.columns] == [None, AggFunction("sum"), listagg]


def test_functions_beside_an_arrow_schema_are_checked():
    arrow = pa.schema([("id", pa.int32()), ("name", pa.string())])
    with pytest.raises(FlussError, match="'nobody' has an aggregate function but is not one of 'id', 'name'"):
        Schema(arrow, aggregations={"nobody": "sum"})
    with pytest.raises(FlussError, match="'sum' does not work on column 'name'"):
        Schema(arrow, aggregations={"name": "sum"})
    with pytest.raises(FlussError, match="Unknown aggregate function 'median'"):
        Schema(arrow, aggregations={"name": "median"})
