"""Every Fluss type has one Arrow type, and every accepted Arrow type has a Fluss type.
Shown with the full table of accepted types, the refused ones by name, and drawn types there and back."""

import pyarrow as pa
import pytest
from hypothesis import given

from fluss import FlussError
from fluss.schema.arrow import arrow_field, arrow_type, data_type_from_arrow
from fluss.schema.type_parser import parse_type
from fluss.schema.types import CharType, DataType
from fluss.testing.strategies import data_types

# Arrow type, text of the Fluss type, Arrow type on the way back (None: the same).
ACCEPTED = [
    (pa.bool_(), "boolean", None),
    (pa.int8(), "tinyint", None),
    (pa.uint8(), "tinyint", pa.int8()),
    (pa.int16(), "smallint", None),
    (pa.uint16(), "smallint", pa.int16()),
    (pa.int32(), "int", None),
    (pa.uint32(), "int", pa.int32()),
    (pa.int64(), "bigint", None),
    (pa.uint64(), "bigint", pa.int64()),
    (pa.float32(), "float", None),
    (pa.float64(), "double", None),
    (pa.string(), "string", None),
    (pa.large_string(), "string", pa.string()),
    (pa.string_view(), "string", pa.string()),
    (pa.dictionary(pa.int32(), pa.string()), "string", pa.string()),
    (pa.binary(), "bytes", None),
    (pa.large_binary(), "bytes", pa.binary()),
    (pa.binary_view(), "bytes", pa.binary()),
    (pa.binary(16), "binary(16)", None),
    (pa.date32(), "date", None),
    (pa.date64(), "date", pa.date32()),
    (pa.time32("s"), "time", None),
    (pa.time32("ms"), "time(3)", None),
    (pa.time64("us"), "time(6)", None),
    (pa.time64("ns"), "time(9)", None),
    (pa.timestamp("s"), "timestamp(0)", None),
    (pa.timestamp("ms"), "timestamp(3)", None),
    (pa.timestamp("us"), "timestamp", None),
    (pa.timestamp("ns"), "timestamp(9)", None),
    (pa.timestamp("s", "UTC"), "timestamp_ltz(0)", None),
    (pa.timestamp("us", "Europe/Paris"), "timestamp_ltz", pa.timestamp("us", "UTC")),
    (pa.decimal128(10, 2), "decimal(10,2)", None),
    (pa.decimal128(38, 38), "decimal(38,38)", None),
    (pa.list_(pa.string()), "array<string>", None),
    (pa.large_list(pa.int32()), "array<int>", pa.list_(pa.int32())),
    (pa.list_(pa.field("element", pa.int32(), nullable=False)), "array<int NOT NULL>", None),
    (pa.map_(pa.string(), pa.int32()), "map<string NOT NULL,int>", None),
    (
        pa.struct([pa.field("seq", pa.int32()), pa.field("label", pa.string(), nullable=False)]),
        "row<seq: int, label: string NOT NULL>",
        None,
    ),
    (pa.list_(pa.map_(pa.string(), pa.int32())), "array<map<string NOT NULL,int>>", None),
]

REFUSED = [
    pa.null(),
    pa.float16(),
    pa.duration("us"),
    pa.decimal32(5, 2),
    pa.decimal64(5, 2),
    pa.decimal256(50, 2),
    pa.decimal128(5, -2),
    pa.decimal128(5, 7),
    pa.list_(pa.int32(), 3),
    pa.list_view(pa.int32()),
    pa.sparse_union([pa.field("a", pa.int32())]),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.month_day_nano_interval(),
    pa.uuid(),
    pa.binary(0),
]

PRECISIONS = [(0, "s"), (1, "ms"), (3, "ms"), (4, "us"), (6, "us"), (7, "ns"), (9, "ns")]


@pytest.mark.parametrize(("arrow", "text", "back"), ACCEPTED)
def test_accepted_arrow_types_have_a_fluss_type(arrow: pa.DataType, text: str, back: pa.DataType | None) -> None:
    data_type = data_type_from_arrow(arrow)
    assert str(data_type) == text
    assert arrow_type(data_type) == (arrow if back is None else back)
    assert str(data_type_from_arrow(arrow, nullable=False)) == f"{text} NOT NULL"


@pytest.mark.parametrize("arrow", REFUSED, ids=str)
def test_other_arrow_types_are_refused_by_name(arrow: pa.DataType) -> None:
    with pytest.raises(FlussError) as caught:
        data_type_from_arrow(arrow)
    assert str(arrow) in caught.value.message
    with pytest.raises(FlussError):
        data_type_from_arrow(pa.list_(pa.struct([("inner", arrow)])))


@pytest.mark.parametrize(("precision", "unit"), PRECISIONS)
def test_the_unit_follows_the_precision(precision: int, unit: str) -> None:
    assert arrow_type(parse_type(f"timestamp({precision})")) == pa.timestamp(unit)
    assert arrow_type(parse_type(f"timestamp_ltz({precision})")) == pa.timestamp(unit, "UTC")
    time_type = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    assert arrow_type(parse_type(f"time({precision})")) == time_type


def test_children_have_their_canonical_names() -> None:
    assert arrow_type(parse_type("array<int>")).value_field.name == "item"
    map_type = arrow_type(parse_type("map<int,int>"))
    assert (map_type.key_field.name, map_type.item_field.name) == ("key", "value")
    assert not map_type.key_field.nullable
    assert arrow_type(CharType(5)) == pa.string()


def test_fields_carry_nullability_and_no_metadata() -> None:
    assert arrow_field("a", parse_type("int not null")).equals(pa.field("a", pa.int32(), nullable=False), True)


@given(data_types(max_leaves=8))
def test_arrow_to_fluss_to_arrow_is_the_identity_on_physical_types(data_type: DataType) -> None:
    physical = arrow_type(data_type)
    assert arrow_type(data_type_from_arrow(physical)).equals(physical, check_metadata=True)


def test_deeply_nested_arrow_types_are_refused() -> None:
    arrow = pa.int32()
    for _ in range(500):
        arrow = pa.list_(arrow)
    with pytest.raises(FlussError, match="more than 64 levels"):
        data_type_from_arrow(arrow)
