"""Sums and products of decimals, in the precision and scale of their column.

Digits that do not fit the scale are rounded, halves away from zero. A result that does not fit the precision is null,
and the next value starts again from there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.row.arrow_arrays import ValidMask, mask_from_arrow, mask_to_arrow
from fluss.row.scalars import UNSCALED_BYTES_MAX
from fluss.server.kv.aggregation.segments import Segments

# Unscaled numbers: 12.30 with scale 2 is 1230.
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
    return _folded(int.__add__, column, segments)


def decimal_products(column: pa.Array, segments: Segments) -> pa.Array:
    """Multiply decimals."""
    return _folded(partial(_rounded_product, 10**column.type.scale), column, segments)


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


def _folded(step: _Step, column: pa.Array, segments: Segments) -> pa.Array:
    """Fold with Python's own numbers, which have no limit."""
    words = _words(column)
    values = (words[:, 1].astype(object) << _WORD_BITS) + words[:, 0].view(np.uint64).astype(object)
    valid = mask_from_arrow(column)
    if valid is not None:
        values[~valid] = None
    limit = 10**column.type.precision
    states = segments.folded(np.frompyfunc(partial(_merged, step, limit), 2, 1), values)
    return _from_integers(column.type, states)


def _merged(step: _Step, limit: int, state: int | None, value: int | None) -> int | None:
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
