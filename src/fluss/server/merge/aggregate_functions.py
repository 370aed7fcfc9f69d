"""The aggregate functions: what a column of a row becomes with each new value for its key.

A function gets the values of a column in the order in which they are merged, cut into one segment per key: the stored
value first, if there is one, then the new ones. It returns the state after every single entry, because the changelog
shows them all. Where a function does not say otherwise, a null changes nothing.

| function | state |
|---|---|
| sum, product | in the type of the column: integers wrap around, a DECIMAL that does not fit is null |
| max, min | by the order of the type: NaN is above all numbers, -0.0 below 0.0, strings compare as UTF-8 bytes |
| last_value | the new value, null too |
| last_value_ignore_nulls | the new value unless it is null |
| first_value, first_value_ignore_nulls | the first value that is not null |
| listagg, string_agg | all values with a delimiter between them |
| bool_and, bool_or | logical |
| rbm32, rbm64 | the union of serialized bitmaps |

Each is exact, whatever the order of work: the results are those of merging one row after the other.

The changelog shows each state in full: a thousand records for one key in one batch make a thousand copies of a row that
may be large already, and strings and bitmaps grow with each of them. ``check_states_size`` is the bound without which a
small request could use up the memory of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from fluss.buffers import Int64Array
from fluss.errors import CorruptRecordError, ErrorCode, FlussError, KvDamagedError
from fluss.row.arrow_arrays import BoolArray, ValidMask, mask_from_arrow, mask_to_arrow, number_array, unpacked_bits
from fluss.row.encoded import gather_ranges, join_rows, large_binary_array, offsets_of
from fluss.row.scalars import UNSCALED_BYTES_MAX
from fluss.schema.schema import AggFunction, Column, Schema
from fluss.schema.types import TypeRoot
from fluss.server.merge.roaring import Bitmap, read_bitmap32, read_bitmap64, union, write_bitmap32, write_bitmap64
from fluss.server.merge.segments import Segments

# Makes the states of a column from its values.
StatesFunction: TypeAlias = Callable[[pa.Array, Segments], pa.Array]

DEFAULT_FUNCTION: Final = AggFunction("last_value_ignore_nulls")
# The states of one column, all together. With both images of an update this stays far below the limit of a log batch.
STATES_BYTES_MAX: Final = 256 << 20


def states_function(column: Column) -> StatesFunction:
    """Return the function of a column that is not part of the key; its type has been checked against the function."""
    function = column.aggregation or DEFAULT_FUNCTION
    bitmap_format = bitmap_format_of(column)
    if bitmap_format is not None:
        return partial(united_bitmaps, bitmap_format)
    if function.name in ("listagg", "string_agg"):
        return partial(joined_strings, function.delimiter)
    if column.data_type.root is TypeRoot.DECIMAL and function.name in _DECIMAL_FUNCTIONS:
        return _DECIMAL_FUNCTIONS[function.name]
    return _FUNCTIONS[function.name]


def last_values(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep the last value, null or not."""
    return column


def last_present_values(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep the last value that is not null."""
    valid = mask_from_arrow(column)
    return column if valid is None else taken(column, segments.last_valid(valid))


def first_present_values(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep the first value that is not null."""
    valid = mask_from_arrow(column)
    return taken(column, segments.first_entries if valid is None else segments.first_valid(valid))


def taken(column: pa.Array, entries: Int64Array) -> pa.Array:
    """Return the values at some entries."""
    return column.take(number_array(entries))


# Numbers and booleans. A null takes part as the value that changes nothing (0 in a sum, 1 in a product, the lowest one
# in a maximum). Whether a state is null is told apart from that: it is null as long as no entry had a value.

_DTYPES: dict[pa.DataType, npt.DTypeLike] = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
# What can be read like integers of the same width, because it has the same order.
_INTEGERS_BY_BITS: dict[int, pa.DataType] = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def sums(column: pa.Array, segments: Segments) -> pa.Array:
    """Add integers, wrapping around, or floating-point numbers, in their own precision."""
    # -0.0 and not 0.0 is what leaves every number as it is, -0.0 included.
    return _folded_numbers(np.add, -0.0 if pat.is_floating(column.type) else 0, column, segments)


def products(column: pa.Array, segments: Segments) -> pa.Array:
    """Multiply integers, wrapping around, or floating-point numbers, in their own precision."""
    return _folded_numbers(np.multiply, 1, column, segments)


def maxima(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep the largest value of any type that has an order."""
    return _extremes(np.maximum, column, segments)


def minima(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep the smallest value of any type that has an order."""
    return _extremes(np.minimum, column, segments)


def conjunctions(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep true as long as there was no false."""
    return _folded_booleans(np.logical_and, column, segments)


def disjunctions(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep false as long as there was no true."""
    return _folded_booleans(np.logical_or, column, segments)


def values_of(column: pa.Array) -> npt.NDArray[Any]:
    """View the numbers of a column that has one of the plain numeric types. Those of nulls mean nothing."""
    dtype = np.dtype(_DTYPES[column.type])
    return np.frombuffer(column.buffers()[1], dtype)[column.offset :][: len(column)]


def _folded_numbers(step: np.ufunc, neutral: float, column: pa.Array, segments: Segments) -> pa.Array:
    values, valid = values_of(column), mask_from_arrow(column)
    if valid is not None:
        values = np.where(valid, values, values.dtype.type(neutral))
    return _array(column.type, segments.folded(step, values), segments.any_valid(valid))


def _folded_booleans(step: np.ufunc, column: pa.Array, segments: Segments) -> pa.Array:
    values, valid = unpacked_bits(column.buffers()[1], column.offset, len(column)), mask_from_arrow(column)
    if valid is not None:
        values = np.where(valid, values, step.identity)
    states = np.packbits(segments.folded(step, values), bitorder="little")
    return _array(column.type, states, segments.any_valid(valid), len(column))


def _extremes(step: np.ufunc, column: pa.Array, segments: Segments) -> pa.Array:
    if pat.is_floating(column.type):
        return _extreme_floats(step, column, segments)
    if pat.is_string(column.type) or pat.is_decimal(column.type):
        return _extreme_ranks(step, column, segments)
    integers = _INTEGERS_BY_BITS[column.type.bit_width]
    return _extreme_integers(step, column.view(integers), segments).view(column.type)


def _extreme_integers(step: np.ufunc, column: pa.Array, segments: Segments) -> pa.Array:
    limits = np.iinfo(_DTYPES[column.type])
    return _folded_numbers(step, limits.min if step is np.maximum else limits.max, column, segments)


def _extreme_floats(step: np.ufunc, column: pa.Array, segments: Segments) -> pa.Array:
    """Compare the bits as integers: apart from the sign, which has to be turned round, they are in order."""
    values = values_of(column)
    # A NaN with a sign would be the lowest instead of the highest.
    numbers = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    integers = _INTEGERS_BY_BITS[column.type.bit_width]
    codes = _array(integers, _sign_turned(numbers.view(_DTYPES[integers])), mask_from_arrow(column))
    states = _extreme_integers(step, codes, segments)
    return _array(column.type, _sign_turned(values_of(states)), mask_from_arrow(states))


def _sign_turned(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Reverse the order of the negative ones among the bits of floating-point numbers. Twice is not at all."""
    turned: npt.NDArray[Any] = bits ^ ((bits >> (bits.itemsize * 8 - 1)) & np.iinfo(bits.dtype).max)
    return turned


def _extreme_ranks(step: np.ufunc, column: pa.Array, segments: Segments) -> pa.Array:
    """Compare the ranks of the values instead of the values."""
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    entry_by_rank = np.zeros(int(ranks.max(initial=0)) + 1, np.int64)
    entry_by_rank[ranks] = segments.numbers
    valid = mask_from_arrow(column)
    neutral = 0 if step is np.maximum else len(entry_by_rank)
    known = ranks if valid is None else np.where(valid, ranks, neutral)
    states = segments.folded(step, known)
    # A state that is still neutral is null, like its entry.
    entries = segments.numbers.copy()
    is_known = states != neutral
    entries[is_known] = entry_by_rank[states[is_known]]
    return column.take(number_array(entries))


def _array(
    arrow_type: pa.DataType, content: npt.NDArray[Any], valid: BoolArray | None, count: int | None = None
) -> pa.Array:
    length = len(content) if count is None else count
    return pa.Array.from_buffers(arrow_type, length, [mask_to_arrow(valid), pa.py_buffer(content)])


# Decimals, in the precision and scale of their column. Digits that do not fit the scale are rounded, halves away from
# zero. A result that does not fit the precision is null, and the next value starts again from there.

# A step works on unscaled numbers: 12.30 with scale 2 is 1230.
_Step: TypeAlias = Callable[[int, int], int]

# With so many digits, two numbers can be added in 64 bits.
_WORD_DIGITS: Final = 18
_WORD_BITS: Final = 64
_WORD_MASK: Final = (1 << _WORD_BITS) - 1


def decimal_sums(column: pa.Array, segments: Segments) -> pa.Array:
    """Add decimals."""
    if column.type.precision <= _WORD_DIGITS:
        states = _word_sums(column, segments)
        if states is not None:
            return states
    return _folded_integers(int.__add__, column, segments)


def decimal_products(column: pa.Array, segments: Segments) -> pa.Array:
    """Multiply decimals."""
    return _folded_integers(partial(_rounded_product, 10**column.type.scale), column, segments)


def _word_sums(column: pa.Array, segments: Segments) -> pa.Array | None:
    """Add in 64 bits; None if any sum has too many digits.

    Sums that follow one with too many digits are meaningless, but that first one is right: it needs one bit more at
    most.
    """
    valid = mask_from_arrow(column)
    low = _words(column)[:, 0]
    states = segments.folded(np.add, low if valid is None else np.where(valid, low, 0))
    limit = 10**column.type.precision
    if len(states) and (states.max() >= limit or states.min() <= -limit):
        return None
    return _decimal_array(column.type, states, states >> (_WORD_BITS - 1), segments.any_valid(valid))


def _folded_integers(step: _Step, column: pa.Array, segments: Segments) -> pa.Array:
    """Fold with Python's own numbers, which have no limit."""
    words = _words(column)
    values = (words[:, 1].astype(object) << _WORD_BITS) + words[:, 0].view(np.uint64).astype(object)
    valid = mask_from_arrow(column)
    if valid is not None:
        values[~valid] = None
    limit = 10**column.type.precision
    states = segments.folded(np.frompyfunc(partial(_decimal_step, step, limit), 2, 1), values)
    return _from_integers(column.type, states)


def _decimal_step(step: _Step, limit: int, state: int | None, value: int | None) -> int | None:
    if state is None or value is None:
        return value if state is None else state
    result = step(state, value)
    return result if -limit < result < limit else None


def _rounded_product(unit: int, one: int, other: int) -> int:
    product = one * other
    quotient, rest = divmod(abs(product), unit)
    if 2 * rest >= unit:
        quotient += 1
    return quotient if product >= 0 else -quotient


def _words(column: pa.Array) -> npt.NDArray[np.int64]:
    """View the unscaled numbers: low and high word of each. Those of nulls mean nothing."""
    words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)
    return words[column.offset :][: len(column)]


def _from_integers(arrow_type: pa.DataType, states: npt.NDArray[Any]) -> pa.Array:
    valid = np.fromiter((state is not None for state in states), np.bool_, len(states))
    numbers = np.where(valid, states, 0)
    low = (numbers & _WORD_MASK).astype(np.uint64).view(np.int64)
    high = (numbers >> _WORD_BITS).astype(np.int64)
    return _decimal_array(arrow_type, low, high, None if valid.all() else valid)


def _decimal_array(arrow_type: pa.DataType, low: Int64Array, high: Int64Array, valid: ValidMask) -> pa.Array:
    words = np.stack((low, high), axis=1)
    assert words.itemsize * 2 == UNSCALED_BYTES_MAX
    return pa.Array.from_buffers(arrow_type, len(low), [mask_to_arrow(valid), pa.py_buffer(words)])


# Strings. The last state of a key begins with every earlier one: the values are joined once, and each state is a piece
# of that.


def joined_strings(delimiter: str, column: pa.Array, segments: Segments) -> pa.Array:
    """Join the values of a STRING or CHAR column that are not null."""
    valid = mask_from_arrow(column)
    has_value = np.ones(len(column), np.bool_) if valid is None else valid
    # A delimiter comes before each value but the first.
    is_later = has_value & (segments.first_valid(has_value) < segments.numbers)
    delimiter_bytes = delimiter.encode()
    delimiters = large_binary_array(
        delimiter_bytes * int(np.count_nonzero(is_later)), offsets_of(is_later * len(delimiter_bytes))
    )
    joined = join_rows([delimiters, column.cast(pa.large_binary())])
    starts = joined.starts[segments.first_entries]
    lengths = joined.ends - starts
    check_states_size(int(lengths.sum()))
    content = gather_ranges(joined.data, starts, lengths)
    buffers = [
        mask_to_arrow(segments.any_valid(valid)),
        pa.py_buffer(offsets_of(lengths).astype(np.int32)),
        pa.py_buffer(content),
    ]
    return pa.Array.from_buffers(column.type, len(column), buffers)


# Bitmaps are united value by value: they have no columnar form.


@dataclass(frozen=True, slots=True)
class BitmapFormat:
    """How a column holds bitmaps."""

    read: Callable[[bytes], Bitmap]
    write: Callable[[Bitmap], bytes]


_FORMATS: Final = {
    "rbm32": BitmapFormat(read_bitmap32, write_bitmap32),
    "rbm64": BitmapFormat(read_bitmap64, write_bitmap64),
}


def bitmap_format_of(column: Column) -> BitmapFormat | None:
    """Return how the values of a column are serialized if its function takes bitmaps."""
    return _FORMATS.get(column.aggregation.name) if column.aggregation is not None else None


def check_bitmaps(schema: Schema, rows: pa.RecordBatch) -> None:
    """Refuse (code 15) received values that are no bitmaps, before they are stored and in the way of later ones."""
    for column, values in zip(schema.columns, rows.columns, strict=True):
        bitmap_format = bitmap_format_of(column)
        if bitmap_format is not None:
            _check_values(bitmap_format, column.name, values.drop_null().to_pylist())


def _check_values(bitmap_format: BitmapFormat, column_name: str, values: Iterable[bytes]) -> None:
    try:
        for value in values:
            bitmap_format.read(value)
    except CorruptRecordError as error:
        raise FlussError(
            f"A value of column '{column_name}' is no serialized bitmap: {error.message}",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        ) from error


def united_bitmaps(bitmap_format: BitmapFormat, column: pa.Array, segments: Segments) -> pa.Array:
    """Unite the values that are not null. Received ones have been checked; a damaged stored one is KvDamagedError."""
    states: list[bytes | None] = column.to_pylist()
    byte_count = 0
    for start, end in pairwise([*segments.starts.tolist(), len(states)]):
        if end - start > 1:
            try:
                byte_count = _unite(bitmap_format, states, range(start + 1, end), byte_count)
            except CorruptRecordError as error:
                raise KvDamagedError(f"A stored bitmap cannot be read: {error.message}") from error
    return pa.array(states, pa.binary())


def _unite(bitmap_format: BitmapFormat, states: list[bytes | None], entries: range, byte_count: int) -> int:
    """Turn each value into the union with the one before it; add the sizes of the results to ``byte_count``."""
    # The state before an entry as a bitmap, once that is needed.
    held: Bitmap | None = None
    for entry in entries:
        state, value = states[entry - 1], states[entry]
        if value is None:
            states[entry] = value = state
        elif state is not None:
            held = union(bitmap_format.read(state) if held is None else held, bitmap_format.read(value))
            states[entry] = value = bitmap_format.write(held)
        byte_count += 0 if value is None else len(value)
        check_states_size(byte_count)
    return byte_count


def check_states_size(byte_count: int) -> None:
    """Refuse (code 13) a batch that would make larger states than this."""
    if byte_count > STATES_BYTES_MAX:
        raise FlussError(
            f"The rows that one batch makes of its keys have more than {STATES_BYTES_MAX} bytes in one column, because "
            "each record for a key repeats what is there; write fewer records for the same key at once",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )


_FUNCTIONS: Final[dict[str, StatesFunction]] = {
    "sum": sums,
    "product": products,
    "max": maxima,
    "min": minima,
    "last_value": last_values,
    "last_value_ignore_nulls": last_present_values,
    "first_value": first_present_values,
    "first_value_ignore_nulls": first_present_values,
    "bool_and": conjunctions,
    "bool_or": disjunctions,
}
_DECIMAL_FUNCTIONS: Final[dict[str, StatesFunction]] = {"sum": decimal_sums, "product": decimal_products}
