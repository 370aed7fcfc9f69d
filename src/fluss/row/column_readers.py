"""One column of all rows of a batch as an Arrow array: the reverse of ``fluss.row.column_writers``.

Each reader takes its values from the cursor, which has checked that the bytes are there, and refuses what the Arrow
type cannot hold. Slots of null values are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import Int64Array, byte_view
from fluss.errors import CorruptRecordError, SizeLimitError
from fluss.row.arrow_sizes import slots_bytes
from fluss.row.byte_ranges import gather_ranges, offsets_of
from fluss.row.column_writers import ASCII_MAX, FIXED_DTYPES, UNITS_PER_SECOND
from fluss.row.cursor_columns import ColumnCursor
from fluss.row.decimal_columns import DECIMAL_BYTES, has_digits, read_unscaled
from fluss.row.null_columns import mask_to_arrow
from fluss.row.values import DAY_MS, NANOS_PER_MILLI, arrow_from_internal
from fluss.schema.arrow import arrow_type
from fluss.schema.types import BinaryType, DataType, DecimalType, TypeRoot

# Arrow's offsets of strings are signed 32-bit. The same limit holds for arrays of fixed-size strings.
COLUMN_BYTES_MAX = 2**31 - 1
# Of ARRAY, MAP and ROW values, what is decoded at a time, about.
_NESTED_BYTES = 4 * 1024 * 1024
_NESTED_ROWS = 65_536


def read_column(cursor: ColumnCursor, data_type: DataType) -> pa.Array:
    """Read the next column. The cursor has entered it."""
    root = data_type.root
    if isinstance(data_type, BinaryType) and len(cursor) * data_type.length > COLUMN_BYTES_MAX:
        _refuse_size(len(cursor) * data_type.length, data_type)
    if cursor.valid is not None and not cursor.valid.any():
        return pa.nulls(len(cursor), arrow_type(data_type))
    if root in FIXED_DTYPES:
        return _array(cursor, data_type, [cursor.fixed(FIXED_DTYPES[root])])
    match root:
        case TypeRoot.BOOLEAN:
            # Any byte but zero is true.
            return _array(cursor, data_type, [np.packbits(cursor.fixed("<u1"), bitorder="little")])
        case TypeRoot.INTEGER | TypeRoot.DATE:
            return _array(cursor, data_type, [cursor.varints(32).astype(np.uint32)])
        case TypeRoot.BIGINT:
            return _array(cursor, data_type, [cursor.varints(64)])
        case TypeRoot.TIME:
            return _read_times(cursor, data_type)
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _read_timestamps(cursor, data_type)
        case TypeRoot.DECIMAL:
            assert isinstance(data_type, DecimalType)
            return _read_decimals(cursor, data_type)
        case TypeRoot.CHAR | TypeRoot.STRING | TypeRoot.BYTES:
            return _read_strings(cursor, data_type)
        case TypeRoot.BINARY:
            assert isinstance(data_type, BinaryType)
            return _read_fixed_strings(cursor, data_type)
    return _read_nested(cursor, data_type)


def _array(cursor: ColumnCursor, data_type: DataType, content: Sequence[npt.NDArray[Any]]) -> pa.Array:
    """Put an array together from the buffers behind its validity."""
    buffers = [mask_to_arrow(cursor.valid), *(pa.py_buffer(part) for part in content)]
    return pa.Array.from_buffers(arrow_type(data_type), len(cursor), buffers)


def _read_times(cursor: ColumnCursor, data_type: DataType) -> pa.Array:
    millis = cursor.varints(32).view(np.int64)
    if int(millis.max(initial=0)) >= DAY_MS:
        cursor.refuse("is outside the day", millis >= DAY_MS)
    target = arrow_type(data_type)
    units_per_second = UNITS_PER_SECOND[target.unit]
    if units_per_second == 1:
        return _array(cursor, data_type, [(millis // 1000).astype(np.int32)])
    numbers = millis * (units_per_second // 1000)
    return _array(cursor, data_type, [numbers.astype(np.int32) if target.bit_width == 32 else numbers])


def _read_timestamps(cursor: ColumnCursor, data_type: DataType) -> pa.Array:
    millis = cursor.varints(64).view(np.int64)
    unit = arrow_type(data_type).unit
    if unit == "s":
        return _array(cursor, data_type, [millis // 1000])
    if unit == "ms":
        return _array(cursor, data_type, [millis])
    nanos = cursor.varints(32).view(np.int64)
    if int(nanos.max(initial=0)) >= NANOS_PER_MILLI:
        cursor.refuse(f"has {NANOS_PER_MILLI} nanoseconds in a millisecond or more", nanos >= NANOS_PER_MILLI)
    units_per_milli = UNITS_PER_SECOND[unit] // 1000
    # int64 arithmetic wraps around silently; a wrapped result does not divide back into the milliseconds.
    numbers = millis * units_per_milli + nanos // (NANOS_PER_MILLI // units_per_milli)
    wrapped = numbers // units_per_milli != millis
    if wrapped.any():
        cursor.refuse(f"is beyond the 64-bit range of Arrow's {unit}", wrapped)
    return _array(cursor, data_type, [numbers])


def _read_decimals(cursor: ColumnCursor, data_type: DecimalType) -> pa.Array:
    words = np.empty((len(cursor), 2), dtype=np.int64)
    if data_type.is_compact:
        words[:, 0] = cursor.varints(64).view(np.int64)
        words[:, 1] = words[:, 0] >> 63
    else:
        starts, lengths = cursor.ranges()
        has_value = True if cursor.valid is None else cursor.valid
        impossible = ((lengths < 1) | (lengths > DECIMAL_BYTES)) & has_value
        if impossible.any():
            cursor.refuse(f"has a length other than 1 to {DECIMAL_BYTES} bytes", impossible)
        low, high = read_unscaled(cursor.data, starts, np.maximum(lengths, 1))
        words[:, 0], words[:, 1] = low.view(np.int64), high
        if cursor.valid is not None:
            words[~cursor.valid] = 0
    good = has_digits(words[:, 0].view(np.uint64), words[:, 1], data_type.precision)
    if not good.all():
        cursor.refuse("has too many digits", ~good)
    return _array(cursor, data_type, [words])


def _read_strings(cursor: ColumnCursor, data_type: DataType) -> pa.Array:
    starts, lengths = cursor.ranges()
    offsets = offsets_of(lengths)
    if int(offsets[-1]) > COLUMN_BYTES_MAX:
        _refuse_size(int(offsets[-1]), data_type)
    content = gather_ranges(cursor.data, starts, lengths)
    array = _array(cursor, data_type, [offsets.astype(np.int32), content])
    if data_type.root != TypeRoot.BYTES and int(content.max(initial=0)) > ASCII_MAX:
        _check_utf8(cursor, array)
    return array


def _check_utf8(cursor: ColumnCursor, array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptRecordError(f"{cursor.column} is not UTF-8: {error}") from error


def _read_fixed_strings(cursor: ColumnCursor, data_type: BinaryType) -> pa.Array:
    starts, lengths = cursor.ranges()
    wrong = lengths != data_type.length
    if cursor.valid is not None:
        wrong &= cursor.valid
    if wrong.any():
        cursor.refuse(f"has {lengths[wrong.argmax()]} bytes", wrong)
    content = gather_ranges(cursor.data, starts, lengths)
    if cursor.valid is not None:
        slots = np.zeros((len(cursor), data_type.length), dtype=np.uint8)
        slots[cursor.valid] = content.reshape(-1, data_type.length)
        content = slots
    return _array(cursor, data_type, [content])


def _read_nested(cursor: ColumnCursor, data_type: DataType) -> pa.Array:
    """Decode ARRAY, MAP and ROW values one by one, some rows at a time: as objects they take many times their bytes."""
    starts, lengths = cursor.ranges()
    offsets = offsets_of(lengths)
    arrays: list[pa.Array] = []
    first = 0
    while not arrays or first < len(cursor):
        fitting = int(np.searchsorted(offsets, offsets[first] + _NESTED_BYTES, side="right")) - 1
        end = min(max(fitting, first + 1), first + _NESTED_ROWS, len(cursor))
        array = arrow_from_internal(_nested_values(cursor, data_type, starts, lengths, range(first, end)), data_type)
        cursor.count_bytes(array.nbytes - slots_bytes([data_type], len(array)))
        arrays.append(array)
        first = end
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _nested_values(
    cursor: ColumnCursor, data_type: DataType, starts: Int64Array, lengths: Int64Array, rows: range
) -> list[Any]:
    values: list[Any] = [None] * len(rows)
    view = byte_view(cursor.data)
    for place in range(len(rows)) if cursor.valid is None else np.flatnonzero(cursor.valid[rows.start : rows.stop]):
        row = rows[place]
        try:
            values[place] = cursor.decode_nested(data_type, view[starts[row] : starts[row] + lengths[row]])
        except CorruptRecordError as error:
            raise type(error)(f"{cursor.column} is damaged in row {row}: {error.message}") from error
    return values


def _refuse_size(total_bytes: int, data_type: DataType) -> NoReturn:
    raise SizeLimitError(
        f"A column of type {data_type} would need {total_bytes} bytes, but one Arrow array holds {COLUMN_BYTES_MAX}; "
        "decode fewer rows at once"
    )
