"""Arrow data in any accepted spelling becomes the physical form of the table with the same values; the rest is refused.
Shown for every spelling, whole and sliced, on its own and nested, and with a table of misfits and their messages."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import FlussError, Schema
from fluss.row.values import arrow_from_internal
from fluss.schema.arrow import arrow_type
from fluss.schema.normalize import normalize_array, normalize_batch
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType
from fluss.testing.strategies import arrow_batches, data_types, internal_values

TEXT_SPELLINGS = [pa.string(), pa.large_string(), pa.string_view()]
BYTES_SPELLINGS = [pa.binary(), pa.large_binary(), pa.binary_view()]


def check_same_values(array: pa.Array, data_type: DataType) -> pa.Array:
    for part in (array, array[1:], array[1:2], array[:0]):
        normalized = normalize_array(part, data_type, "c")
        normalized.validate(full=True)
        assert normalized.type.equals(arrow_type(data_type), check_metadata=True)
        assert normalized.to_pylist() == part.to_pylist()
    return normalize_array(array, data_type, "c")


@pytest.mark.parametrize("spelling", TEXT_SPELLINGS, ids=str)
def test_texts_become_plain_strings_at_every_depth(spelling: pa.DataType) -> None:
    check_same_values(pa.array(["a", None, "ccc", ""], spelling), parse_type("string"))
    check_same_values(pa.array([["a"], None, [], ["b", None]], pa.list_(spelling)), parse_type("array<string>"))
    check_same_values(pa.array([["a"], None, [], ["b", None]], pa.large_list(spelling)), parse_type("array<string>"))
    maps = pa.array([[("a", "x")], None, [], [("k", None), ("z", "zz")]], pa.map_(spelling, spelling, keys_sorted=True))
    check_same_values(maps, parse_type("map<string,string>"))
    rows = pa.array(
        [{"a": "x", "b": [[("k", "v")]]}, None, {"a": None, "b": None}],
        pa.struct([("a", spelling), ("b", pa.large_list(pa.map_(spelling, spelling)))]),
    )
    check_same_values(rows, parse_type("row<a: string, b: array<map<string,string>>>"))


@pytest.mark.parametrize("spelling", BYTES_SPELLINGS, ids=str)
def test_bytes_become_plain_binary(spelling: pa.DataType) -> None:
    check_same_values(pa.array([b"a", None, b""], spelling), parse_type("bytes"))


@pytest.mark.parametrize("spelling", TEXT_SPELLINGS, ids=str)
def test_dictionaries_are_decoded(spelling: pa.DataType) -> None:
    words = pa.array(["x", "y", None], spelling)
    array = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 2, 1], pa.int8()), words)
    assert check_same_values(array, parse_type("string")).to_pylist() == ["y", None, "x", None, "y"]
    numbers = pa.array([7, 7, None], pa.int32()).dictionary_encode()
    check_same_values(numbers, parse_type("int"))


def test_instants_of_another_zone_keep_their_instant() -> None:
    array = pa.array([0, 1_700_000_000_000_000, None], pa.timestamp("us", "America/New_York"))
    normalized = normalize_array(array, parse_type("timestamp_ltz"), "c")
    assert normalized.type == pa.timestamp("us", "UTC")
    assert normalized.cast(pa.int64()).to_pylist() == [0, 1_700_000_000_000_000, None]


def test_data_in_the_physical_form_is_not_copied() -> None:
    for text in ("int", "string", "array<string>", "row<a: array<int>>"):
        array = pa.array([], arrow_type(parse_type(text)))
        assert normalize_array(array, parse_type(text), "c") is array


@given(arrow_batches(rows_max=8), st.integers(0, 8))
def test_batches_in_the_physical_form_pass_unchanged(drawn: tuple[list[DataType], pa.RecordBatch], start: int) -> None:
    types, batch = drawn
    builder = Schema.builder()
    for name, data_type in zip(batch.schema.names, types, strict=True):
        builder.column(name, data_type)
    schema = builder.build()
    part = batch[start:]
    normalized = normalize_batch(part, schema)
    assert normalized.equals(part)
    assert normalized.schema.equals(schema.to_arrow(), check_metadata=True)


def respelled(arrow: pa.DataType) -> pa.DataType:
    """The same type with every part spelled differently."""
    if pa.types.is_string(arrow):
        return pa.large_string()
    if pa.types.is_binary(arrow):
        return pa.binary_view()
    if pa.types.is_list(arrow):
        return pa.large_list(pa.field("element", respelled(arrow.value_type)))
    if pa.types.is_map(arrow):
        return pa.map_(respelled(arrow.key_type), respelled(arrow.item_type), keys_sorted=True)
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(child.name, respelled(child.type)) for child in arrow])
    return arrow


@given(st.data(), data_types(max_leaves=6).filter(lambda t: t.is_nested), st.integers(0, 5))
def test_nested_data_in_another_spelling_comes_back_equal(data: st.DataObject, data_type: DataType, start: int) -> None:
    array = arrow_from_internal(data.draw(st.lists(internal_values(data_type), max_size=8)), data_type)[start:]
    other = pa.array(array.to_pylist(), respelled(array.type))
    normalized = normalize_array(other, data_type, "c")
    normalized.validate()
    assert normalized.equals(array)
    assert normalized.type.equals(arrow_type(data_type), check_metadata=True)


def _text_of(content: bytes) -> pa.Array:
    """Each byte as a text of its own, whatever it is, as pyarrow reads it from files."""
    offsets = pa.array(range(len(content) + 1), pa.int32())
    return pa.Array.from_buffers(pa.string(), len(content), [None, offsets.buffers()[1], pa.py_buffer(content)])


NO_VALUES = [
    (_text_of(b"a\xffb"), "string"),
    (_text_of(b"a\xffb").dictionary_encode(), "string"),
    (pa.array([0, 86_400_000, 1], pa.int32()).cast(pa.time32("ms")), "time(3)"),
    (
        pa.Array.from_buffers(pa.decimal128(3, 0), 3, pa.array([1, 1000, 2], pa.decimal128(9, 0)).buffers()),
        "decimal(3,0)",
    ),
    (pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), _text_of(b"a\xffb")), "array<string>"),
    (pa.StructArray.from_arrays([_text_of(b"a\xffb")], names=["a"]), "row<a: string>"),
    (
        pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), _text_of(b"abc"), _text_of(b"a\xffb")),
        "map<string,string>",
    ),
]


@pytest.mark.parametrize(("array", "type_text"), NO_VALUES, ids=[str(array.type) for array, _ in NO_VALUES])
def test_what_is_no_value_of_its_type_is_refused_and_what_stands_beside_it_is_not(
    array: pa.Array, type_text: str
) -> None:
    data_type = parse_type(type_text)
    with pytest.raises(FlussError, match="Column 'c' has what is no "):
        normalize_array(array, data_type, "c")
    for part in (array[:1], array[2:], array[1:1]):
        normalize_array(part, data_type, "c").validate(full=True)
    assert normalize_array(array[2:], data_type, "c").to_pylist() == array[2:].to_pylist()


MISFITS = [
    (pa.array([1]), "int", "Column 'c' has Arrow type int64 but the table declares int32"),
    (pa.array([1], pa.uint32()), "int", "Arrow type uint32 but the table declares int32"),
    (pa.array([None]), "int", "Arrow type null but the table declares int32"),
    (pa.array([1.5]), "float", "Arrow type double but the table declares float"),
    (pa.array([b"a"]), "string", "Arrow type binary but the table declares string"),
    (pa.array(["a"]), "bytes", "Arrow type string but the table declares binary"),
    (pa.array([b"abc"]), "binary(3)", "Arrow type binary but the table declares fixed_size_binary[3]"),
    (pa.array([b"abc"], pa.binary(3)), "bytes", "Arrow type fixed_size_binary[3] but the table declares binary"),
    (pa.array([0], pa.date64()), "date", "Arrow type date64[ms] but the table declares date32[day]"),
    (pa.array([0], pa.timestamp("ms")), "timestamp", "Arrow type timestamp[ms] but the table declares timestamp[us]"),
    (pa.array([0], pa.timestamp("us")), "timestamp_ltz", "but the table declares timestamp[us, tz=UTC]"),
    (
        pa.array([0], pa.timestamp("us", "UTC")),
        "timestamp",
        "timestamp[us, tz=UTC] but the table declares timestamp[us]",
    ),
    (pa.array([0], pa.timestamp("ms", "UTC")), "timestamp_ltz", "timestamp[ms, tz=UTC] but the table declares"),
    (pa.array([1], pa.decimal128(10, 2)), "decimal(11,2)", "decimal128(10, 2) but the table declares"),
    (pa.array([[1]], pa.list_(pa.int64())), "array<int>", "list<item: int64> but the table declares list<item: int32>"),
    (pa.array([["a"]], pa.list_(pa.string(), 1)), "array<string>", "fixed_size_list"),
    (
        pa.array([{"b": 1, "a": 2}], pa.struct([("b", pa.int32()), ("a", pa.int32())])),
        "row<a: int, b: int>",
        "struct<b",
    ),
    (pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), "row<a: int, b: int>", "struct<a: int32> but"),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "map<string,int>", "map<string, int64> but"),
    (pa.array([1], pa.int32()).dictionary_encode(), "bigint", "dictionary<values=int32"),
    (pa.array([b"0" * 16], pa.uuid()), "binary(16)", "extension<arrow.uuid>"),
]


@pytest.mark.parametrize(("array", "text", "message"), MISFITS)
def test_other_types_are_refused_without_casting(array: pa.Array, text: str, message: str) -> None:
    with pytest.raises(FlussError) as caught:
        normalize_array(array, parse_type(text), "c")
    assert message in caught.value.message


NULLS = [
    (pa.array(["a", None]), "string not null", "Column 'c' is non-nullable but contains null"),
    (pa.array([["a", None]]), "array<string not null>", "Column 'c[]' is non-nullable but contains null"),
    (pa.array([{"x": None}], pa.struct([("x", pa.string())])), "row<x string not null>", "Column 'c.x' is non-null"),
    (pa.array([[("a", None)]], pa.map_(pa.string(), pa.int32())), "map<string,int not null>", "Column 'c.value' is"),
    (
        pa.array([[{"x": [("a", None)]}]], pa.list_(pa.struct([("x", pa.map_(pa.string_view(), pa.int32()))]))),
        "array<row<x map<string,int not null>>>",
        "Column 'c[].x.value' is non-nullable but contains null",
    ),
]


@pytest.mark.parametrize(("array", "text", "message"), NULLS)
def test_nulls_are_found_wherever_they_are_forbidden(array: pa.Array, text: str, message: str) -> None:
    with pytest.raises(FlussError) as caught:
        normalize_array(array, parse_type(text), "c")
    assert message in caught.value.message


def test_nulls_below_a_null_parent_are_no_nulls() -> None:
    rows = pa.array([{"x": "a"}, None, {"x": "b"}], pa.struct([("x", pa.string())]))
    assert normalize_array(rows, parse_type("row<x string not null>"), "c").to_pylist() == rows.to_pylist()
    # A null list may cover elements that no row refers to.
    hidden = pa.ListArray.from_arrays([0, 1, 3], pa.array(["a", None, "b"]), mask=pa.array([False, True]))
    assert normalize_array(hidden, parse_type("array<string not null>"), "c").to_pylist() == [["a"], None]
    large = pa.LargeListArray.from_arrays([0, 1, 3], pa.array(["a", None, "b"]), mask=pa.array([False, True]))
    assert normalize_array(large, parse_type("array<string not null>"), "c").to_pylist() == [["a"], None]


def test_nulls_outside_a_slice_do_not_count() -> None:
    array = pa.array([["a", None], ["b"], ["c"]], pa.large_list(pa.string()))
    assert normalize_array(array[1:], parse_type("array<string not null>"), "c").to_pylist() == [["b"], ["c"]]


def test_more_elements_than_int32_offsets_can_count_are_refused() -> None:
    children = pa.Array.from_buffers(pa.struct([]), 2**31, [None])
    offsets = pa.py_buffer(np.array([0, 2**31], np.int64))
    array = pa.Array.from_buffers(pa.large_list(pa.struct([])), 1, [None, offsets], children=[children])
    with pytest.raises(FlussError, match="2147483648 elements are more than one batch can hold"):
        normalize_array(array, parse_type("array<row<>>"), "c")


@pytest.fixture
def schema() -> Schema:
    return Schema(pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string())]), primary_keys=["id"])


def test_batches_get_the_schema_of_the_table(schema: Schema) -> None:
    fields = [pa.field("id", pa.int32(), metadata={"k": "v"}), pa.field("name", pa.large_string(), nullable=False)]
    batch = pa.record_batch([[1, 2], ["a", "b"]], schema=pa.schema(fields, metadata={"m": "n"}))
    normalized = normalize_batch(batch, schema)
    assert normalized.schema.equals(schema.to_arrow(), check_metadata=True)
    assert normalized.to_pylist() == batch.to_pylist()


def test_batches_with_other_columns_are_refused(schema: Schema) -> None:
    with pytest.raises(FlussError, match="RecordBatch has 1 columns but the table has 2"):
        normalize_batch(pa.record_batch({"id": pa.array([1], pa.int32())}), schema)
    with pytest.raises(FlussError, match="Column 0 is named 'name' but the table declares 'id'"):
        normalize_batch(pa.record_batch({"name": ["a"], "id": pa.array([1], pa.int32())}), schema)
    with pytest.raises(FlussError, match="Column 'id' is non-nullable but contains null"):
        normalize_batch(pa.record_batch({"id": pa.array([None], pa.int32()), "name": ["a"]}), schema)


def test_a_table_without_columns_takes_batches_without_columns() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert normalize_batch(batch, Schema(pa.schema([]))).num_rows == 2
