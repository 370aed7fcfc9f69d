"""Bring Arrow data of callers into the one physical form that a table's log batches have.

Only the spelling changes, never a value: 64-bit offsets, views and dictionaries become plain arrays, instants of any
zone are relabelled UTC, child fields get their canonical names. Everything else (another integer width, another
unit, a column too many) is refused; ``fitting`` has converted before what can be. So is what is no value of its type:
text that is not UTF-8, times outside the day, decimals with too many digits. Data that already has the right form
passes through without a copy; a slice stays a slice.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

import fluss.arrow_compute as pc
from fluss.errors import FlussError
from fluss.integers import INT32_MAX
from fluss.schema.arrow import MAP_KEY_NAME, MAP_VALUE_NAME, arrow_type
from fluss.schema.schema import Schema, shown_names
from fluss.schema.types import ArrayType, DataType, MapType, RowType, TypeRoot, child_types

_TEXT_SPELLINGS: Final = (pat.is_string, pat.is_large_string, pat.is_string_view)
_BYTES_SPELLINGS: Final = (pat.is_binary, pat.is_large_binary, pat.is_binary_view)
# Offsets are int32, so no array may have more bytes of text, or more elements, than this.
_OFFSET_MAX: Final = INT32_MAX
# Text without a byte above it is UTF-8.
_ASCII_MAX: Final = 0x7F
# Given a plain number instead, pyarrow would import pandas.
_ZERO: Final = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(bytes(4))])[0]


def normalize_batch(batch: pa.RecordBatch, schema: Schema, *, holder: str = "the table") -> pa.RecordBatch:
    """Return the batch with exactly the Arrow schema of the table, or say which column does not fit.

    ``holder`` is what has these columns, in error messages.
    """
    columns = schema.columns
    if batch.num_columns != len(columns):
        raise FlussError(
            f"RecordBatch has {batch.num_columns} columns but {holder} has {len(columns)}: "
            f"{shown_names(schema.column_names)}"
        )
    for index, (name, column) in enumerate(zip(batch.schema.names, columns, strict=True)):
        if name != column.name:
            raise FlussError(
                f"Column {index} is named '{name}' but {holder} declares '{column.name}'; "
                f"give the columns in the order {shown_names(schema.column_names)}"
            )
    arrays = [
        normalize_array(array, column.data_type, column.name)
        for array, column in zip(batch.columns, columns, strict=True)
    ]
    if not arrays:
        return batch.replace_schema_metadata(None)
    return pa.RecordBatch.from_arrays(arrays, schema=schema.to_arrow())


def normalize_array(array: pa.Array, data_type: DataType, column_name: str) -> pa.Array:
    """Return the array in the physical form of ``data_type``; errors name the column."""
    if not is_spelling(array.type, data_type):
        raise FlussError(
            f"Column '{column_name}' has Arrow type {array.type} but the table declares {arrow_type(data_type)}; "
            "cast it, or build the data with the Arrow schema of the table"
        )
    try:
        normalized = _converted(array, data_type, column_name)
    except pa.ArrowException as error:
        raise FlussError(f"Column '{column_name}' cannot be converted to {arrow_type(data_type)}: {error}") from error
    try:
        normalized = with_valid_content(normalized)
    except pa.ArrowInvalid as error:
        raise FlussError(f"Column '{column_name}' has what is no {data_type}: {error}") from error
    _check_nulls(normalized.null_count, data_type, column_name)
    return normalized


def with_valid_content(array: pa.Array) -> pa.Array:
    """Return an array in physical form, or raise ArrowInvalid if it has bytes that are no value of its type.

    pyarrow reads files without looking at their texts, for instance. Readers of the table would take such a value for
    damage of the log, and nothing behind it could be read.
    """
    if pat.is_string(array.type) and _is_ascii(array):
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        if pat.is_string(array.type):
            raise pa.ArrowInvalid("it is not UTF-8") from None
        if not pat.is_nested(array.type):
            raise
        # What stands inside of values is looked at also in front of a slice and behind it, where it is not written.
        array = array.take(pa.array(np.arange(len(array))))
        array.validate(full=True)
    return array


def _is_ascii(array: pa.Array) -> bool:
    _, offsets, content = array.buffers()
    if not len(array) or content is None:
        return True
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return int(np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]].max(initial=0)) <= _ASCII_MAX


def is_spelling(pa_type: pa.DataType, data_type: DataType) -> bool:
    """Whether an Arrow type is a spelling of the data type. Nullability is a question for the data."""
    if pat.is_dictionary(pa_type):
        return is_spelling(pa_type.value_type, data_type)
    match data_type.root:
        case TypeRoot.CHAR | TypeRoot.STRING:
            return any(is_spelling(pa_type) for is_spelling in _TEXT_SPELLINGS)
        case TypeRoot.BYTES:
            return any(is_spelling(pa_type) for is_spelling in _BYTES_SPELLINGS)
        case TypeRoot.TIMESTAMP_LTZ:
            return pat.is_timestamp(pa_type) and pa_type.tz is not None and pa_type.unit == arrow_type(data_type).unit
    match data_type:
        case ArrayType():
            is_list = pat.is_list(pa_type) or pat.is_large_list(pa_type)
            return is_list and is_spelling(pa_type.value_type, data_type.element_type)
        case MapType():
            return (
                pat.is_map(pa_type)
                and is_spelling(pa_type.key_type, data_type.key_type)
                and is_spelling(pa_type.item_type, data_type.value_type)
            )
        case RowType():
            return (
                pat.is_struct(pa_type)
                and [child.name for child in pa_type] == [f.name for f in data_type.fields]
                and all(
                    is_spelling(child.type, f.data_type) for child, f in zip(pa_type, data_type.fields, strict=True)
                )
            )
    return bool(pa_type == arrow_type(data_type))


def _converted(array: pa.Array, data_type: DataType, path: str) -> pa.Array:
    """Convert an array of an accepted type, and check the nulls inside it (not its own)."""
    if pat.is_dictionary(array.type):
        # Not every spelling of the values can be decoded, so the values are brought into form first.
        values = _converted(array.dictionary, data_type, path)
        return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    target = arrow_type(data_type)
    is_physical = array.type.equals(target, check_metadata=True)
    if is_physical and not _has_required_children(data_type):
        return array
    match data_type:
        case ArrayType():
            lists, elements = list_parts(array)
            converted = _converted_child(elements, data_type.element_type, f"{path}[]", 0)
            return array if is_physical else list_array(target, lists, converted)
        case MapType():
            return _converted_map(array, data_type, path, target, is_physical)
        case RowType():
            children = [
                _converted_child(child, f.data_type, f"{path}.{f.name}", array.null_count)
                for child, f in zip(array.flatten(), data_type.fields, strict=True)
            ]
            return array if is_physical else struct_array(target, array, children)
    return array.cast(target)


def _converted_map(array: pa.Array, data_type: MapType, path: str, target: pa.DataType, is_physical: bool) -> pa.Array:
    lists, entries = list_parts(array)
    keys = _converted_child(entries.field(0), data_type.key_type, f"{path}.{MAP_KEY_NAME}", 0)
    values = _converted_child(entries.field(1), data_type.value_type, f"{path}.{MAP_VALUE_NAME}", 0)
    if is_physical:
        return array
    children = pa.StructArray.from_arrays([keys, values], fields=[target.key_field, target.item_field])
    return list_array(target, lists, children)


def _converted_child(child: pa.Array, data_type: DataType, path: str, null_count_outside: int) -> pa.Array:
    """Convert what is inside an array. A child is null wherever its parent is; those nulls are not its own."""
    converted = _converted(child, data_type, path)
    _check_nulls(converted.null_count - null_count_outside, data_type, path)
    return converted


def _check_nulls(null_count: int, data_type: DataType, path: str) -> None:
    if null_count and not data_type.nullable:
        raise FlussError(
            f"Column '{path}' is non-nullable but contains null ({null_count} of them); "
            "remove these rows, or declare it nullable"
        )


def _has_required_children(data_type: DataType) -> bool:
    """Whether nulls inside the values must be looked for."""
    return any(not child.nullable or _has_required_children(child) for child in child_types(data_type))


# Lists, maps and structs taken apart, and put together again around other children


def list_parts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the lists of a list or map array, and what is in them one after the other: elements, or entries.

    Only what belongs to a list is returned, nothing of what stands before and after a slice, or behind a null.
    """
    if pat.is_map(array.type):
        # Maps are lists of entries, but only lists can be flattened and measured.
        list_type = pa.list_(array.values.type)
        buffers = array.buffers()[:2]
        array = pa.Array.from_buffers(list_type, len(array), buffers, array.null_count, array.offset, [array.values])
    return array, array.flatten()


def list_array(target: pa.DataType, lists: pa.Array, children: pa.Array) -> pa.Array:
    """Build a list or map array of a type from lists and what is to be in them."""
    lengths = pc.coalesce(pc.list_value_length(lists), _ZERO)
    assert not lengths.offset, "it was made just now"
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    # ``to_numpy`` would import pandas.
    dtype = np.int32 if lengths.type == pa.int32() else np.int64
    np.cumsum(np.frombuffer(lengths.buffers()[1], dtype, len(lists)), out=offsets[1:])
    if offsets[-1] > _OFFSET_MAX:
        raise pa.ArrowInvalid(f"{offsets[-1]} elements are more than one batch can hold; split the batch")
    buffers = [_validity(lists), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(target, len(lists), buffers, lists.null_count, children=[children])


def struct_array(target: pa.DataType, array: pa.Array, children: list[pa.Array]) -> pa.Array:
    """Build a struct array of a type that is null where another one is."""
    return pa.Array.from_buffers(target, len(array), [_validity(array)], array.null_count, children=children)


def _validity(array: pa.Array) -> pa.Buffer | None:
    """Return the validity bits of an array, moved to the start of a buffer."""
    if not array.null_count:
        return None
    validity = array.buffers()[0]
    if not array.offset:
        return validity
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=array.offset + len(array), bitorder="little")
    return pa.py_buffer(np.packbits(bits[array.offset :], bitorder="little"))
