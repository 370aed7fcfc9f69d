"""Functions of numbers: sums, products, the largest and the smallest value, logical and, logical or.

A null takes part as the value that changes nothing (0 in a sum, 1 in a product, the lowest one in a maximum). Whether a
state is null is another matter: it is as long as no entry had a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from fluss.row.arrow_arrays import BoolArray, mask_from_arrow, mask_to_arrow, number_array, unpacked_bits
from fluss.server.kv.aggregation.segments import Segments

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
    """Compare the places that the values have among each other instead of the values."""
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
