"""Batches of every type go to Spark in exactly the form it expects, and come back as they were; what does not fit is
refused by column. Shown by random batches, and by the oddities of what Spark sends: zones, nullability, order."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import types as spark

from fluss import DataField, DataType, DataTypes, FlussError, Schema
from fluss.row.values import Timestamp, internal_from_arrow
from fluss.schema.schema import Column, schema_from_columns
from fluss.schema.types import ArrayType, MapType, RowType, TimestampLtzType, TimestampType, TimeType
from fluss.spark.conversion import FromSpark, ToSpark
from fluss.spark.type_mapping import spark_schema
from fluss.testing.strategies import arrow_batches
from tests.unit.spark.pyspark_arrow import utc_arrow_schema


def _schema(**types: DataType) -> Schema:
    builder = Schema.builder()
    for name, data_type in types.items():
        builder.column(name, data_type)
    return builder.build()


def _batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _cut(value: Any, data_type: DataType) -> Any:
    """Return an internal value with the digits that are left after the way to Spark and back."""
    if value is None:
        return None
    match data_type:
        case TimeType():
            step = 10 ** max(0, 3 - data_type.precision)
            return value // step * step
        case TimestampType() | TimestampLtzType():
            step = 10 ** (9 - min(data_type.precision, 6))
            nanos = (value.millis * 10**6 + value.nanos) // step * step
            return Timestamp(nanos // 10**6, nanos % 10**6)
        case ArrayType():
            return [_cut(each, data_type.element_type) for each in value]
        case MapType():
            return [(_cut(key, data_type.key_type), _cut(each, data_type.value_type)) for key, each in value]
        case RowType():
            return tuple(map(_cut, value, data_type.field_types))
    return value


def _plain(value: Any) -> Any:
    """Make sequences of any kind comparable."""
    if isinstance(value, Timestamp):
        return value
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


@given(arrow_batches(rows_max=6))
def test_batches_of_all_types_survive_the_way_to_spark_and_back(drawn: tuple[list[DataType], pa.RecordBatch]) -> None:
    types, batch = drawn
    schema = schema_from_columns([Column(f"c{index}", data_type) for index, data_type in enumerate(types)])
    struct = spark_schema(schema)
    in_spark = ToSpark(struct)(batch)
    in_spark.validate(full=True)
    assert in_spark.schema.equals(utc_arrow_schema(struct))
    # A batch may be a part of a larger one.
    rows = batch.num_rows // 2
    for sent, expected in ((in_spark, batch), (ToSpark(struct)(batch.slice(rows)), batch.slice(rows))):
        back = FromSpark(schema)(sent)
        back.validate(full=True)
        assert back.schema.equals(schema.to_arrow(), check_metadata=True)
        for column, data_type in zip(schema.columns, types, strict=True):
            values = [_cut(value, data_type) for value in internal_from_arrow(expected[column.name], data_type)]
            assert _plain(internal_from_arrow(back[column.name], data_type)) == _plain(values)


def test_columns_that_fit_are_not_copied() -> None:
    schema = _schema(id=DataTypes.bigint(), name=DataTypes.string(), at=DataTypes.timestamp_ltz(6))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2]), pa.array(["a", "b"]), pa.array([1, 2], pa.timestamp("us", "UTC"))], schema=schema.to_arrow()
    )
    in_spark = ToSpark(spark_schema(schema))(batch)
    back = FromSpark(schema)(in_spark)
    for name in schema.column_names:
        addresses = [buffer.address for buffer in batch[name].buffers() if buffer is not None]
        for other in (in_spark, back):
            assert [buffer.address for buffer in other[name].buffers() if buffer is not None] == addresses


# To Spark


def test_columns_are_found_by_name_in_any_order_and_others_left_out() -> None:
    struct = spark.StructType().add("b", "string").add("a", "long", nullable=False)
    batch = _batch(a=pa.array([1]), x=pa.array([0]), b=pa.array(["x"]))
    to_spark = ToSpark(struct)
    assert to_spark(batch).to_pydict() == {"b": ["x"], "a": [1]}
    # The next batch may come in another order.
    assert to_spark(batch.select(["b", "a"])).to_pydict() == {"b": ["x"], "a": [1]}
    assert to_spark(batch).schema.field("a").nullable is False


def test_a_column_that_is_not_there_is_null_unless_it_must_not_be() -> None:
    batch = _batch(a=pa.array([1]))
    assert ToSpark(spark.StructType().add("a", "long").add("b", "date"))(batch).to_pydict() == {"a": [1], "b": [None]}
    with pytest.raises(FlussError, match="Column 'b' is NOT NULL, so it must be among 'a'"):
        ToSpark(spark.StructType().add("b", "long", nullable=False))(batch)


def test_nulls_in_a_column_that_must_not_have_any_are_noticed() -> None:
    with pytest.raises(FlussError, match="Column 'a' is NOT NULL, but there are rows in which it is null"):
        ToSpark(spark.StructType().add("a", "long", nullable=False))(_batch(a=pa.array([1, None])))


def test_nanoseconds_are_cut_towards_the_past() -> None:
    nanos = pa.array([1, 999, 1000, -1, -999, -1000, -1001, None, 2**63 - 1, -(2**63)])
    expected = [0, 0, 1, -1, -1, -1, -2, None, (2**63 - 1) // 1000, -(2**63) // 1000]
    schema = _schema(local=DataTypes.timestamp(9), instant=DataTypes.timestamp_ltz(9))
    batch = _batch(local=nanos.view(pa.timestamp("ns")), instant=nanos.view(pa.timestamp("ns", "UTC")))
    in_spark = ToSpark(spark_schema(schema))(batch)
    assert in_spark["local"].view(pa.int64()).to_pylist() == expected
    assert in_spark["instant"].view(pa.int64()).to_pylist() == expected


def test_times_are_cut_to_the_digits_of_their_type() -> None:
    for precision, expected in ((0, 0), (1, 1), (2, 12), (3, 123), (4, 1234), (5, 12345), (6, 123456), (9, 123456)):
        schema = _schema(t=DataTypes.time(precision))
        nanos = 10**9 + 123_456_789
        unit = schema.to_arrow().field("t").type.unit
        value = nanos // {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
        batch = _batch(t=pa.array([value, None], schema.to_arrow().field("t").type))
        in_spark = ToSpark(spark_schema(schema))(batch)
        digits = min(precision, 6)
        assert in_spark["t"].view(pa.int64()).to_pylist() == [10**9 + expected * 10 ** (9 - digits), None]


def test_a_time_that_spark_cannot_hold_is_refused_with_its_column() -> None:
    schema = _schema(at=DataTypes.timestamp(3))
    with pytest.raises(FlussError, match="Column 'at' has a value that does not fit"):
        ToSpark(spark_schema(schema))(_batch(at=pa.array([2**62], pa.timestamp("ms"))))


# From Spark


@pytest.mark.parametrize("zone", ["America/New_York", "Etc/UTC", "UTC", "+05:30", "GMT+1", "Z", "CET"])
def test_instants_come_in_any_zone_and_stay_the_same_instants(zone: str) -> None:
    schema = _schema(at=DataTypes.timestamp_ltz(3), list=DataTypes.array(DataTypes.timestamp_ltz(6)))
    micros = pa.array([1_700_000_000_123_456, -1])
    lists = pa.array([[5], None], pa.list_(pa.int64())).cast(pa.list_(pa.int64()))
    zoned = pa.ListArray.from_arrays(lists.offsets, lists.values.view(pa.timestamp("us", zone)))
    rows = FromSpark(schema)(_batch(at=micros.view(pa.timestamp("us", zone)), list=zoned))
    assert rows.schema.field("at").type == pa.timestamp("ms", "UTC")
    assert rows["at"].view(pa.int64()).to_pylist() == [1_700_000_000_123, -1]
    assert rows["list"].values.view(pa.int64()).to_pylist() == [5]


def test_not_null_columns_of_a_plan_fit_nullable_ones_at_every_level() -> None:
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    items = pa.list_(pa.field("element", inner, nullable=False))
    pairs = pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))
    schema = _schema(
        items=DataTypes.array(DataTypes.row([DataField("x", DataTypes.int())])),
        pairs=DataTypes.map(DataTypes.string(), DataTypes.int()),
    )
    rows = FromSpark(schema)(_batch(items=pa.array([[{"x": 1}], []], items), pairs=pa.array([[("k", 1)], None], pairs)))
    assert rows.to_pydict() == {"items": [[{"x": 1}], []], "pairs": [[("k", 1)], None]}
    assert rows.schema.equals(schema.to_arrow(), check_metadata=True)


@pytest.mark.parametrize(
    ("data_type", "values", "message"),
    [
        (DataTypes.int().not_null(), pa.array([1, None], pa.int32()), "Column 'c' is non-nullable but contains null"),
        (
            DataTypes.array(DataTypes.int().not_null()),
            pa.array([[1, None]], pa.list_(pa.int32())),
            r"Column 'c\[\]' is non-nullable but contains null",
        ),
        (
            DataTypes.row([DataField("x", DataTypes.int().not_null())]),
            pa.array([{"x": None}], pa.struct([pa.field("x", pa.int32())])),
            "Column 'c.x' is non-nullable but contains null",
        ),
    ],
)
def test_nulls_where_the_table_has_none_are_refused(data_type: DataType, values: pa.Array, message: str) -> None:
    with pytest.raises(FlussError, match=message):
        FromSpark(_schema(c=data_type))(_batch(c=values))


def test_missing_columns_become_null_and_strange_ones_are_refused() -> None:
    schema = _schema(id=DataTypes.int().not_null(), name=DataTypes.string(), place=DataTypes.string())
    assert FromSpark(schema)(_batch(name=pa.array(["a"]), id=pa.array([1], pa.int32()))).to_pydict() == {
        "id": [1],
        "name": ["a"],
        "place": [None],
    }
    with pytest.raises(FlussError, match="Column 'id' is NOT NULL, so it must be among 'name'"):
        FromSpark(schema)(_batch(name=pa.array(["a"])))
    with pytest.raises(FlussError, match="The table has no column 'nmae' to write to; did you mean 'name'"):
        FromSpark(schema)(_batch(id=pa.array([1], pa.int32()), nmae=pa.array(["a"])))
    with pytest.raises(FlussError, match="Two of the columns 'id', 'id' have the same name"):
        FromSpark(schema)(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([1])], names=["id", "id"]))


def test_a_part_of_the_columns_can_be_written() -> None:
    schema = _schema(id=DataTypes.int(), name=DataTypes.string(), place=DataTypes.string())
    rows = FromSpark(schema, ["place", "id"])(_batch(id=pa.array([1], pa.int32()), place=pa.array(["x"])))
    assert rows.to_pydict() == {"place": ["x"], "id": [1]}


def test_fields_of_structs_are_found_by_name() -> None:
    row = DataTypes.row([DataField("x", DataTypes.bigint()), DataField("y", DataTypes.string())])
    sent = pa.array([{"y": "a", "x": 1}, None], pa.struct([("y", pa.string()), ("x", pa.int32())]))
    assert FromSpark(_schema(c=row))(_batch(c=sent))["c"].to_pylist() == [{"x": 1, "y": "a"}, None]
    part = pa.array([{"x": 1}], pa.struct([("x", pa.int64())]))
    assert FromSpark(_schema(c=row))(_batch(c=part))["c"].to_pylist() == [{"x": 1, "y": None}]
    with pytest.raises(FlussError, match="Column 'c' has no field 'z'; fields are 'x', 'y'"):
        FromSpark(_schema(c=row))(_batch(c=pa.array([{"z": 1}])))
    strict = DataTypes.row([DataField("x", DataTypes.bigint()), DataField("y", DataTypes.string().not_null())])
    with pytest.raises(FlussError, match=r"Column 'c\.y' is NOT NULL, so it must be among 'x'"):
        FromSpark(_schema(c=strict))(_batch(c=part))


def test_fields_of_structs_are_found_in_any_case_unless_told_apart() -> None:
    inner = DataTypes.row([DataField("Id", DataTypes.bigint()), DataField("Name", DataTypes.string())])
    schema = _schema(c=inner, many=DataTypes.array(inner), named=DataTypes.map(DataTypes.string(), inner))
    sent = pa.struct([("NAME", pa.string()), ("id", pa.int64())])
    rows = _batch(
        c=pa.array([{"NAME": "a", "id": 1}, None], sent),
        many=pa.array([[{"NAME": "b", "id": 2}], []], pa.list_(sent)),
        named=pa.array([[("k", {"NAME": None, "id": 3})], None], pa.map_(pa.string(), sent)),
    )
    assert FromSpark(schema, is_case_sensitive=False)(rows).to_pylist() == [
        {"c": {"Id": 1, "Name": "a"}, "many": [{"Id": 2, "Name": "b"}], "named": [("k", {"Id": 3, "Name": None})]},
        {"c": None, "many": [], "named": None},
    ]
    with pytest.raises(FlussError, match="Column 'c' has no field 'NAME'; fields are 'Id', 'Name'"):
        FromSpark(schema)(rows)
    twice = pa.array([{"id": 1, "ID": 2}], pa.struct([("id", pa.int64()), ("ID", pa.int64())]))
    with pytest.raises(FlussError, match="Two of the fields 'id', 'ID' of column 'c' are for its field 'Id'"):
        FromSpark(_schema(c=inner), is_case_sensitive=False)(_batch(c=twice))
    both = DataTypes.row([DataField("id", DataTypes.bigint()), DataField("ID", DataTypes.bigint())])
    # Names that are the same come first: both fields are there.
    assert FromSpark(_schema(c=both), is_case_sensitive=False)(_batch(c=twice))["c"].to_pylist() == [{"id": 1, "ID": 2}]


@pytest.mark.parametrize(
    ("data_type", "sent", "expected"),
    [
        (DataTypes.bigint(), pa.array([1], pa.int8()), 1),
        (DataTypes.tinyint(), pa.array([-128], pa.int64()), -128),
        (DataTypes.double(), pa.array([3], pa.int32()), 3.0),
        (DataTypes.double(), pa.array([1.5], pa.float32()), 1.5),
        # As Spark assigns numbers when it stores them: the nearest one of a FLOAT or DOUBLE will do.
        (DataTypes.double(), pa.array([Decimal("1.25")], pa.decimal128(10, 2)), 1.25),
        (DataTypes.double(), pa.array([Decimal("0.333333333333333333")], pa.decimal128(38, 18)), 1 / 3),
        (DataTypes.double(), pa.array([Decimal("0.25")], pa.decimal128(24, 13)), 0.25),
        (DataTypes.float(), pa.array([Decimal("2.5")]), 2.5),
        (DataTypes.decimal(38, 18), pa.array([0.1]), Decimal("0.1")),
        (DataTypes.double(), pa.array([2**53 + 1]), 2.0**53),
        (DataTypes.decimal(5, 2), pa.array([0.1]), Decimal("0.10")),
        (DataTypes.int(), pa.array([1.0]), 1),
        (DataTypes.int(), pa.array([Decimal("7.00")]), 7),
        (DataTypes.decimal(38, 30), pa.array([1]), Decimal(1)),
        (DataTypes.decimal(5, 2), pa.array([12], pa.int64()), Decimal("12.00")),
        (DataTypes.decimal(5, 2), pa.array([Decimal("1.5")], pa.decimal128(38, 1)), Decimal("1.50")),
        (DataTypes.binary(2), pa.array([b"ab"]), b"ab"),
        (DataTypes.char(2), pa.array(["ab  "]), "ab"),
        (DataTypes.date(), pa.array([dt.date(1969, 12, 31)]), dt.date(1969, 12, 31)),
        (DataTypes.string(), pa.array([None]), None),
        (DataTypes.array(DataTypes.int()), pa.array([None]), None),
    ],
    ids=str,
)
def test_values_are_brought_into_the_type_of_the_column(data_type: DataType, sent: pa.Array, expected: object) -> None:
    assert FromSpark(_schema(c=data_type))(_batch(c=sent))["c"].to_pylist() == [expected]


@pytest.mark.parametrize(
    ("data_type", "sent", "message"),
    [
        (DataTypes.tinyint(), pa.array([128]), "Column 'c' has a value that does not fit int8"),
        (DataTypes.decimal(5, 2), pa.array([1000]), "Column 'c' has a value that does not fit decimal128"),
        (DataTypes.decimal(5, 2), pa.array([Decimal("0.001")]), "Column 'c' has a value that does not fit decimal128"),
        (DataTypes.binary(2), pa.array([b"abc"]), "Column 'c' has a value that does not fit fixed_size_binary"),
        (DataTypes.timestamp(9), pa.array([2**60], pa.timestamp("us")), "Column 'c' has a value that does not fit"),
        (DataTypes.int(), pa.array(["1"]), "Column 'c' holds string, which cannot become int32; cast it in Spark"),
        (DataTypes.int(), pa.array([1.5]), "Column 'c' has a value that does not fit int32"),
        (DataTypes.int(), pa.array([Decimal("7.50")]), "Column 'c' has a value that does not fit int32"),
        (DataTypes.decimal(5, 2), pa.array([0.125]), "Column 'c' has a value that does not fit decimal128"),
        (DataTypes.boolean(), pa.array([1.0]), "holds double, which cannot become bool"),
        (DataTypes.string(), pa.array([1]), "holds int64, which cannot become string"),
        (DataTypes.boolean(), pa.array([1]), "holds int64, which cannot become bool"),
        (DataTypes.timestamp(), pa.array([1], pa.timestamp("us", "UTC")), "which cannot become timestamp"),
        (DataTypes.timestamp_ltz(), pa.array([1], pa.timestamp("us")), "which cannot become timestamp"),
        (DataTypes.time(), pa.array([1], pa.timestamp("us")), "which cannot become time32"),
        (DataTypes.decimal(38, 30), pa.array([10**9]), "Column 'c' has a value that does not fit decimal128"),
        (DataTypes.array(DataTypes.int()), pa.array(["1"]), "holds string, which cannot become list"),
        (DataTypes.array(DataTypes.int()), pa.array([["1"]]), r"Column 'c\[\]' holds string"),
        (DataTypes.map(DataTypes.string(), DataTypes.int()), pa.array([1]), "holds int64, which cannot become map"),
        (DataTypes.row([DataField("x", DataTypes.int())]), pa.array([1]), "holds int64, which cannot become struct"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused_with_their_column(
    data_type: DataType, sent: pa.Array, message: str
) -> None:
    with pytest.raises(FlussError, match=message):
        FromSpark(_schema(c=data_type))(_batch(c=sent))


def test_values_behind_a_null_or_outside_a_slice_are_not_looked_at() -> None:
    schema = _schema(c=DataTypes.array(DataTypes.tinyint()))
    lists = pa.array([[1000], [1], None, [2]])
    hidden = pa.ListArray.from_arrays(lists.offsets, lists.values, mask=pa.array([True, False, True, False]))
    assert FromSpark(schema)(_batch(c=hidden))["c"].to_pylist() == [None, [1], None, [2]]
    assert FromSpark(schema)(_batch(c=lists.slice(1)))["c"].to_pylist() == [[1], None, [2]]


def test_whether_a_plan_can_be_written_is_known_before_its_first_row() -> None:
    schema = _schema(id=DataTypes.int().not_null(), name=DataTypes.string())
    FromSpark(schema).check(spark.StructType().add("name", "string").add("id", "long"))
    for struct, message in (
        (spark.StructType().add("id", "string"), "Column 'id' holds string, which cannot become int32"),
        (spark.StructType().add("name", "string"), "Column 'id' is NOT NULL"),
        (
            spark.StructType().add("id", "integer").add("v", spark.VariantType()),
            "Column 'v': Values of the Spark type variant cannot be exchanged with Fluss",
        ),
    ):
        with pytest.raises(FlussError, match=message):
            FromSpark(schema).check(struct)
