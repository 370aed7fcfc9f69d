"""The text form of data types can be read in every spelling, and what str(type) prints reads back as the same type.
Shown with a table of spellings, a table of mistakes with the message each gets, and drawn types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import DataField, DataTypes, FlussError
from fluss.schema.type_parser import parse_type
from fluss.schema.types import NESTING_DEPTH_MAX, ArrayType, DataType, RowType
from fluss.testing.strategies import data_types

SPELLINGS = [
    ("INT", DataTypes.int()),
    ("integer", DataTypes.int()),
    ("Boolean", DataTypes.boolean()),
    ("bool", DataTypes.boolean()),
    ("double precision", DataTypes.double()),
    ("CHAR", DataTypes.char(1)),
    ("char(20)", DataTypes.char(20)),
    ("binary( 16 )", DataTypes.binary(16)),
    ("DECIMAL", DataTypes.decimal(10, 0)),
    ("DECIMAL(5)", DataTypes.decimal(5, 0)),
    ("DECIMAL(10, 2)", DataTypes.decimal(10, 2)),
    ("NUMERIC(10,2)", DataTypes.decimal(10, 2)),
    ("TIME", DataTypes.time(0)),
    ("time(3) without time zone", DataTypes.time(3)),
    ("timestamp", DataTypes.timestamp(6)),
    ("TIMESTAMP(3) WITHOUT TIME ZONE", DataTypes.timestamp(3)),
    ("TIMESTAMP_LTZ(3)", DataTypes.timestamp_ltz(3)),
    ("TIMESTAMP(3) WITH LOCAL TIME ZONE", DataTypes.timestamp_ltz(3)),
    ("  INT  NOT\tNULL ", DataTypes.int().not_null()),
    ("INT NULL", DataTypes.int()),
    ("ARRAY<INT NOT NULL> NOT NULL", DataTypes.array(DataTypes.int().not_null()).not_null()),
    ("map<string NOT NULL,int>", DataTypes.map(DataTypes.string(), DataTypes.int())),
    ("MAP<STRING, ARRAY<INT>>", DataTypes.map(DataTypes.string(), DataTypes.array(DataTypes.int()))),
    ("row<>", DataTypes.row([])),
    (
        "ROW<x INT NOT NULL, y STRING>",
        DataTypes.row([DataField("x", DataTypes.int().not_null()), DataField("y", DataTypes.string())]),
    ),
    (
        "ROW(x INT, y ROW(z DATE))",
        DataTypes.row(
            [DataField("x", DataTypes.int()), DataField("y", DataTypes.row([DataField("z", DataTypes.date())]))]
        ),
    ),
    (
        "row<a: int, first name: string>",
        DataTypes.row([DataField("a", DataTypes.int()), DataField("first name", DataTypes.string())]),
    ),
    (
        "ROW<`a: b, <c>` INT, `d``e`: STRING>",
        DataTypes.row([DataField("a: b, <c>", DataTypes.int()), DataField("d`e", DataTypes.string())]),
    ),
    ("row<größe-1.x int>", DataTypes.row([DataField("größe-1.x", DataTypes.int())])),
]

MISTAKES = [
    ("", "expected a type name at position 0, found the end"),
    ("7", "expected a type name at position 0, found '7'"),
    ("INTX", "expected the name of a data type at position 0, found 'INTX'"),
    ("ARRAY", "expected '<' at position 5"),
    ("ARRAY<INT", "expected '>' at position 9, found the end"),
    ("ARRAY<INT)", "expected '>' at position 9"),
    ("MAP<INT>", "expected ',' at position 7"),
    ("INT INT", "expected the end of the text at position 4"),
    ("INT(3)", "expected the end of the text at position 3"),
    ("INT NOT", "expected NULL at position 7"),
    ("TIMESTAMP WITH TIME ZONE", "expected LOCAL at position 15"),
    ("TIME WITH LOCAL TIME ZONE", "expected the end of the text at position 5"),
    ("CHAR(1, 2)", "expected at most 1 parameter(s) for CHAR at position 0"),
    ("CHAR(99999999999)", "expected a number of at most ten digits at position 5"),
    ("CHAR(" + "9" * 10_000 + ")", "expected a number of at most ten digits at position 5"),
    ("CHAR(-1)", "expected a number of at most ten digits at position 5"),
    ("CHAR(0)", "char length must be between 1 and 2147483647, got 0, at position 0"),
    ("ARRAY<DECIMAL(39, 2)>", "decimal precision must be between 1 and 38, got 39, at position 6"),
    ("DECIMAL(5, 6)", "decimal scale must be between 0 and 5, got 6"),
    ("ROW<INT>", "expected a type name at position 7"),
    ("ROW<: INT>", "expected a field name with at least one non-blank character at position 4"),
    ("ROW<` ` INT>", "expected a field name with at least one non-blank character"),
    ("ROW<`a INT>", "expected a field name at position 4"),
    ("ROW<a INT, a INT>", "two fields named 'a'"),
    ("ROW<a INT,>", "expected a field name at position 10"),
]


@pytest.mark.parametrize(("text", "data_type"), SPELLINGS)
def test_every_spelling_is_understood(text: str, data_type: DataType) -> None:
    assert parse_type(text) == data_type


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_are_named_with_their_position(text: str, message: str) -> None:
    with pytest.raises(FlussError) as caught:
        parse_type(text)
    assert message in caught.value.message
    assert len(caught.value.message) < 500


@given(data_types(max_leaves=10))
def test_printed_types_read_back_as_the_same_type(data_type: DataType) -> None:
    assert parse_type(str(data_type)) == data_type
    assert parse_type(str(data_type).upper()).root is data_type.root


def test_types_may_be_nested_to_the_limit_and_not_deeper() -> None:
    data_type: DataType = DataTypes.int()
    for level in range(NESTING_DEPTH_MAX - 1):
        data_type = ArrayType(data_type) if level % 2 else RowType((DataField("a", data_type),))
    assert parse_type(str(data_type)) == data_type
    with pytest.raises(FlussError, match="nested at most 64 levels"):
        parse_type(f"array<{data_type}>")


@pytest.mark.parametrize("bomb", ["array<", "row<a ", "map<int,", "row<a:", "ROW(`x` "])
def test_endless_nesting_is_refused_without_exhausting_the_stack(bomb: str) -> None:
    with pytest.raises(FlussError, match="nested at most 64 levels"):
        parse_type(bomb * 100_000)


@given(st.text(alphabet="ROWARYINTMP<>(),:` 0127aé\n", max_size=40))
def test_any_text_is_a_type_or_a_fluss_error(text: str) -> None:
    try:
        data_type = parse_type(text)
    except FlussError:
        return
    assert isinstance(data_type, DataType)


def test_something_other_than_text_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="must be given as str, got int"):
        parse_type(5)  # type: ignore[arg-type]
