"""Every Fluss type has a Spark type, at every level of nesting, and what Spark has beyond them is refused by name.
Shown by schemas of both sides and by random types; Spark's own function says which Arrow schema it expects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from fluss import DataField, DataType, DataTypes, FlussError, Schema
from fluss.schema.types import (
    ArrayType,
    BinaryType,
    BytesType,
    CharType,
    MapType,
    RowType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
)
from fluss.spark.conversion import spark_arrow_schema
from fluss.spark.type_mapping import (
    changelog_columns,
    check_projection,
    fluss_schema,
    spark_schema,
    spark_type,
    view_schema,
)
from fluss.testing.strategies import data_types
from tests.unit.spark.pyspark_arrow import utc_arrow_schema

ALL_TYPES = [
    (DataTypes.boolean(), "boolean"),
    (DataTypes.tinyint(), "tinyint"),
    (DataTypes.smallint(), "smallint"),
    (DataTypes.int(), "int"),
    (DataTypes.bigint(), "bigint"),
    (DataTypes.float(), "float"),
    (DataTypes.double(), "double"),
    (DataTypes.char(7), "string"),
    (DataTypes.string(), "string"),
    (DataTypes.binary(3), "binary"),
    (DataTypes.bytes(), "binary"),
    (DataTypes.decimal(38, 18), "decimal(38,18)"),
    (DataTypes.date(), "date"),
    (DataTypes.time(), "time(0)"),
    (DataTypes.time(3), "time(3)"),
    (DataTypes.time(9), "time(6)"),
    (DataTypes.timestamp(3), "timestamp_ntz"),
    (DataTypes.timestamp(9), "timestamp_ntz"),
    (DataTypes.timestamp_ltz(), "timestamp"),
    (DataTypes.array(DataTypes.int()), "array<int>"),
    (DataTypes.map(DataTypes.string(), DataTypes.date()), "map<string,date>"),
    (DataTypes.row([DataField("x", DataTypes.int())]), "struct<x:int>"),
]


@pytest.mark.parametrize(("data_type", "text"), ALL_TYPES, ids=str)
def test_a_fluss_type_is_a_spark_type(data_type: DataType, text: str) -> None:
    assert spark_type(data_type).simpleString() == text


def _as_spark_returns_it(data_type: DataType) -> DataType:
    """Return the type that a table has which is made of what Spark shows of this one."""
    match data_type:
        case CharType():
            return StringType(nullable=data_type.nullable)
        case BinaryType():
            return BytesType(nullable=data_type.nullable)
        case TimeType():
            return replace(data_type, precision=min(data_type.precision, 6))
        case TimestampType() | TimestampLtzType():
            return replace(data_type, precision=6)
        case ArrayType():
            return replace(data_type, element_type=_as_spark_returns_it(data_type.element_type))
        case MapType():
            key, value = _as_spark_returns_it(data_type.key_type), _as_spark_returns_it(data_type.value_type)
            return replace(data_type, key_type=key, value_type=value)
        case RowType():
            fields = tuple(replace(f, data_type=_as_spark_returns_it(f.data_type)) for f in data_type.fields)
            row = replace(data_type, fields=fields)
            return _nullable_inside(row) if row.nullable else row
    return data_type


def _nullable_inside(row: RowType) -> RowType:
    """Return a row type in which every field may be null, because the row may."""
    types = (_nullable_inside(t) if isinstance(t, RowType) else t for t in row.field_types)
    fields = (replace(f, data_type=t.with_nullable(True)) for f, t in zip(row.fields, types, strict=True))
    return replace(row, fields=tuple(fields))


@given(st.lists(data_types(), min_size=1, max_size=4))
def test_schemas_survive_the_way_to_spark_and_back_with_the_nullability_of_every_level(types: list[DataType]) -> None:
    builder = Schema.builder()
    for index, data_type in enumerate(types):
        builder.column(f"c{index}", data_type, comment=None if index else "the first")
    schema = builder.build()
    struct = spark_schema(schema)
    returned = fluss_schema(spark.StructType.fromJson(struct.jsonValue()))
    assert [column.data_type for column in returned.columns] == [_as_spark_returns_it(t) for t in types]
    assert [column.comment for column in returned.columns] == [column.comment for column in schema.columns]
    assert spark_arrow_schema(struct).equals(utc_arrow_schema(struct))


def test_keys_are_not_null_on_both_sides() -> None:
    struct = spark.StructType().add("id", "integer").add("name", "string")
    schema = fluss_schema(struct, ["id"])
    assert schema.primary_key == ["id"]
    assert [field.nullable for field in spark_schema(schema)] == [False, True]


def test_char_and_varchar_are_known_in_new_tables() -> None:
    struct = spark.StructType([spark.StructField("c", spark.CharType(3)), spark.StructField("v", spark.VarcharType(9))])
    assert [str(column.data_type) for column in fluss_schema(struct).columns] == ["char(3)", "string"]


@pytest.mark.parametrize(
    ("data_type", "message"),
    [
        (spark.VariantType(), "Column 'c' is variant, and no Fluss type holds such values"),
        (spark.DayTimeIntervalType(), "Column 'c' is interval day to second"),
        (spark.YearMonthIntervalType(), "Column 'c' is interval year to month"),
        (spark.CalendarIntervalType(), "Column 'c' is interval"),
        (spark.NullType(), "Column 'c' is void"),
        (spark.ArrayType(spark.VariantType()), r"Column 'c\[\]' is variant"),
        (spark.MapType(spark.StringType(), spark.VariantType()), "Column 'c.value' is variant"),
        (spark.StructType().add("x", spark.VariantType()), "Column 'c.x' is variant"),
        (spark.StringType("UTF8_LCASE"), "Column 'c' has the collation UTF8_LCASE, but Fluss has UTF8_BINARY only"),
    ],
)
def test_types_that_fluss_does_not_have_are_refused_with_their_column(data_type: spark.DataType, message: str) -> None:
    with pytest.raises(FlussError, match=message):
        fluss_schema(spark.StructType().add("c", data_type))


ORDERS = Schema.builder().column("id", DataTypes.int()).column("price", DataTypes.double()).primary_key(["id"]).build()


def test_columns_are_chosen_by_name_and_in_order() -> None:
    assert spark_schema(ORDERS, ["price", "id"]).names == ["price", "id"]
    with pytest.raises(FlussError, match="Column 'prise' not found"):
        spark_schema(ORDERS, ["prise"])


def test_views_have_columns_that_say_what_a_change_is() -> None:
    change = [field.name for field in changelog_columns()]
    assert change == ["_change_type", "_log_offset", "_commit_timestamp"]
    assert view_schema(ORDERS, "") == spark_schema(ORDERS)
    assert view_schema(ORDERS, "changelog").names == [*change, "id", "price"]
    binlog = view_schema(ORDERS, "binlog")
    assert binlog.names == [*change, "before", "after"]
    # Inside a row that may be missing, everything may be missing.
    assert binlog["before"].dataType == binlog["after"].dataType
    assert binlog["before"].dataType == spark.StructType().add("id", "integer").add("price", "double")
    assert binlog["before"].nullable
    assert view_schema(ORDERS, "changelog", ["id", "_change_type"]).names == ["id", "_change_type"]
    with pytest.raises(FlussError, match="Column '_change_type' not found; columns are 'id', 'price'"):
        view_schema(ORDERS, "", ["_change_type"])


@pytest.mark.parametrize(
    "wanted",
    [
        spark.StructType().add("price", "double"),
        spark.StructType().add("price", "double").add("id", "integer"),
        spark.StructType().add("id", "integer", nullable=False),
    ],
)
def test_a_schema_of_the_user_chooses_columns(wanted: spark.StructType) -> None:
    check_projection(wanted, spark_schema(ORDERS), "sales.orders")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (spark.StructType().add("ID", "integer"), "sales.orders has no column 'ID'; columns are 'id', 'price'"),
        (spark.StructType().add("id", "long"), "Column 'id' of sales.orders is int, not bigint; read it as it is"),
        (spark.StructType().add("price", "double", nullable=False), "Column 'price' of sales.orders may be null"),
    ],
)
def test_a_schema_of_the_user_that_does_not_fit_is_refused(wanted: spark.StructType, message: str) -> None:
    with pytest.raises(FlussError, match=message):
        check_projection(wanted, spark_schema(ORDERS), "sales.orders")


def test_nullability_inside_a_column_may_be_given_up_but_not_made_up() -> None:
    element = spark.StructType().add("x", "integer", nullable=False)
    strict = spark.StructType().add("c", spark.MapType(spark.StringType(), spark.ArrayType(element, False), False))
    loose_element = spark.StructType().add("x", "integer")
    loose = spark.StructType().add("c", spark.MapType(spark.StringType(), spark.ArrayType(loose_element)))
    check_projection(loose, strict, "t")
    with pytest.raises(FlussError, match="read it as it is"):
        check_projection(strict, loose, "t")
