"""The columns of encoded rows, read a column at a time from all rows of a batch: the reverse of writing them.

A ``ColumnCursor`` keeps a position in every row; the columnar twin of ``fluss.row.scalars.RowCursor``. ``read_column``
takes the values of the next column from it, after the cursor has checked that the bytes are there, and makes an Arrow
array of them. It refuses what the Arrow type cannot hold. The slots of nulls are zero.

The cursor reads compacted rows; ``fluss.row.indexed`` has a subclass that finds numbers and byte strings in its own
places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import BytesLike, Int64Array, byte_view
from fluss.errors import CorruptRecordError, SizeLimitError
from fluss.row.arrow_arrays import (
    BoolArray,
    ValidMask,
    mask_to_arrow,
    masks_from_null_planes,
    null_byte_count,
    slots_bytes,
)
from fluss.row.encoded import EncodedRows, gather_ranges, offsets_of, unaligned
from fluss.row.scalars import UNSCALED_BYTES_MAX, has_digits, read_unscaled
from fluss.row.values import DAY_MS, NANOS_PER_MILLI, arrow_from_internal
from fluss.row.varint import WORD_BYTES, UInt64Array, read_varints
from fluss.schema.arrow import arrow_type
from fluss.schema.types import BinaryType, DataType, DecimalType, TypeRoot

DecodeNested: TypeAlias = Callable[[DataType, BytesLike], Any]

# Bytes up to this one are characters of their own: such text is UTF-8 wherever it is cut.
ASCII_MAX: Final = 0x7F
# Arrow units in a second.
UNITS_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
FIXED_DTYPES: Final = {TypeRoot.TINYINT: "<i1", TypeRoot.SMALLINT: "<i2", TypeRoot.FLOAT: "<f4", TypeRoot.DOUBLE: "<f8"}
# Arrow's offsets of strings are signed 32-bit. The same limit holds for arrays of fixed-size strings.
COLUMN_BYTES_MAX: Final = 2**31 - 1
# How much of ARRAY, MAP and ROW values is decoded at a time, about: as objects they take many times their bytes.
_NESTED_BYTES: Final = 4 * 1024 * 1024
_NESTED_ROWS: Final = 65_536


class ColumnCursor:
    """Reads rows front to back. A read that needs bytes behind the end of a row is a CorruptRecordError.

    Between ``enter_column`` calls every read takes one number (or range) from each row that has a value in this
    column, and returns an array with zeros for the others. No read looks at memory outside ``data``: numbers are
    gathered only after the row was found long enough, or from positions that are clipped to the end of the data.
    """

    def __init__(self, rows: EncodedRows, decode_nested: DecodeNested, *, arrays_bytes_max: int | None = None) -> None:
        """``decode_nested`` is for ARRAY, MAP and ROW values; ``arrays_bytes_max`` limits what ``count_bytes`` adds."""
        self.decode_nested = decode_nested
        self.data = rows.data
        if len(self.data) < WORD_BYTES:
            # Words can then be read at any position without a case for tiny data.
            self.data = np.concatenate((self.data, np.zeros(WORD_BYTES, dtype=np.uint8)))
        if len(rows) and not (
            rows.starts.min() >= 0 and rows.ends.max() <= len(rows.data) and (rows.starts <= rows.ends).all()
        ):
            raise CorruptRecordError(f"The boundaries of {len(rows)} rows do not lie inside {len(rows.data)} bytes")
        self._positions = rows.starts
        self._ends = rows.ends
        self._before_columns = "The null bits"
        # The index and the type of the column that is being read.
        self._column: tuple[int, DataType] | None = None
        self.valid: ValidMask = None
        self._arrays_bytes_max = arrays_bytes_max
        self._arrays_bytes = 0

    def __len__(self) -> int:
        return len(self._ends)

    def null_bits(self, types: Sequence[DataType]) -> list[ValidMask]:
        """Read which values are null."""
        starts = self._positions
        byte_count = null_byte_count(len(types))
        self._advance(byte_count)
        planes = [self.data[starts + index] for index in range(byte_count)]
        masks = masks_from_null_planes(planes, len(types))
        for index, (data_type, valid) in enumerate(zip(types, masks, strict=True)):
            if valid is not None and not data_type.nullable:
                self.enter_column(index, data_type, None)
                self.refuse("is null", ~valid)
        return masks

    def enter_column(self, index: int, data_type: DataType, valid: ValidMask) -> None:
        """Say what the next reads are about."""
        self._column = index, data_type
        self.valid = valid

    @property
    def column(self) -> str:
        """What is being read, for messages."""
        return self._before_columns if self._column is None else "Column {} ({})".format(*self._column)

    def fixed(self, dtype: str) -> npt.NDArray[Any]:
        """Read numbers of one size."""
        positions = self._positions
        size = np.dtype(dtype).itemsize
        self._advance(size)
        if self.valid is not None:
            # A null may be the last thing in the data.
            positions = np.minimum(positions, len(self.data) - size)
        return self._without_nulls(unaligned(self.data, dtype)[positions])

    def varints(self, bits: int) -> UInt64Array:
        """Read variable-length numbers of 32 or 64 bits, as unsigned."""
        values, lengths = read_varints(self.data, self._positions, bits=bits)
        if self.valid is not None:
            lengths |= ~self.valid
        if not lengths.all():
            self.refuse(f"has no varint of {bits} bits", lengths == 0)
        self._advance(lengths)
        return self._without_nulls(values)

    def ranges(self) -> tuple[Int64Array, Int64Array]:
        """Read the lengths in front of byte strings and move over the strings; return where they start, and lengths."""
        lengths = self.varints(32).astype(np.uint32).view(np.int32).astype(np.int64)
        if len(lengths) and int(lengths.min()) < 0:
            self.refuse("has a negative length", lengths < 0)
        starts = self._positions
        self._advance(lengths)
        return starts, lengths

    def count_bytes(self, byte_count: int) -> None:
        """Add to the bytes that the decoded arrays take; more than is allowed is a SizeLimitError."""
        self._arrays_bytes += byte_count
        if self._arrays_bytes_max is not None and self._arrays_bytes > self._arrays_bytes_max:
            raise SizeLimitError(
                f"{len(self)} rows would take {self._arrays_bytes} bytes of memory or more, the limit is "
                f"{self._arrays_bytes_max}; decode fewer rows at once"
            )

    def finish(self) -> None:
        """Check that nothing is left: bytes behind the last field mean that a row has another schema."""
        rest = self._ends - self._positions
        if rest.any():
            row = int((rest != 0).argmax())
            raise CorruptRecordError(
                f"Row {row} has {rest[row]} bytes behind its last field; "
                "it was written with another schema or is damaged"
            )

    def refuse(self, trouble: str, bad: BoolArray) -> NoReturn:
        """Refuse all rows for what was found in the first bad one."""
        raise CorruptRecordError(f"{self.column} {trouble} in row {int(bad.argmax())}")

    def _advance(self, lengths: npt.NDArray[Any] | int) -> None:
        """Move each position over the bytes of a value; a null has none."""
        positions = self._positions + (lengths if self.valid is None else lengths * self.valid)
        if (positions > self._ends).any():
            bad = positions > self._ends
            row = int(bad.argmax())
            left = self._ends[row] - self._positions[row]
            needed = positions[row] - self._positions[row]
            self.refuse(f"needs {needed} bytes where only {left} are left,", bad)
        self._positions = positions

    def _without_nulls(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.valid is not None:
            values[~self.valid] = 0
        return values


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
        impossible = ((lengths < 1) | (lengths > UNSCALED_BYTES_MAX)) & has_value
        if impossible.any():
            cursor.refuse(f"has a length other than 1 to {UNSCALED_BYTES_MAX} bytes", impossible)
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
    """Decode ARRAY, MAP and ROW values one by one, some rows at a time."""
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
    for index in range(len(rows)) if cursor.valid is None else np.flatnonzero(cursor.valid[rows.start : rows.stop]):
        row = rows[index]
        try:
            values[index] = cursor.decode_nested(data_type, view[starts[row] : starts[row] + lengths[row]])
        except CorruptRecordError as error:
            raise type(error)(f"{cursor.column} is damaged in row {row}: {error.message}") from error
    return values


def _refuse_size(total_bytes: int, data_type: DataType) -> NoReturn:
    raise SizeLimitError(
        f"A column of type {data_type} would need {total_bytes} bytes, but one Arrow array holds {COLUMN_BYTES_MAX}; "
        "decode fewer rows at once"
    )
