"""Sets of 16-bit numbers as roaring bitmaps store them: three forms, their bytes, and the union of two sets.

A roaring bitmap cuts the numbers it holds into a high part, which finds a container, and the low 16 bits, which the
container holds. Both serialized formats (see ``roaring``) use the same bytes for containers, all
little-endian:

    RUN     uint16 number of runs, then per run: uint16 first number, uint16 how many more follow it; ascending
    BITMAP  65536 bits; number i is bit i & 7 of byte i >> 3
    ARRAY   uint16 per number, ascending

A container never changes.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array, UInt8Array
from fluss.errors import CorruptRecordError

_UInt16Array: TypeAlias = npt.NDArray[np.uint16]

# The numbers of the forms in the 64-bit format.
RUN: Final = 0
BITMAP: Final = 1
ARRAY: Final = 2

BITMAP_BYTES: Final = 8192
# An array of more numbers would be larger than a bitmap.
ARRAY_COUNT_MAX: Final = 4096
COUNT_MAX: Final = 1 << 16
RUN_COUNT_BYTES: Final = 2
RUN_BYTES: Final = 4
NUMBER_BYTES: Final = 2


class Container(NamedTuple):
    """At least one number, in one of the forms."""

    form: int
    number_count: int
    content: bytes


def checked_container(form: int, count: int, content: bytes) -> Container:
    """Return the container that these bytes describe. CorruptRecordError if they do not follow the format."""
    container = Container(form, count, content)
    if form == ARRAY:
        is_valid = len(content) == count * NUMBER_BYTES and (count == 1 or _is_ascending(_numbers(content)))
    elif form == BITMAP:
        is_valid = len(content) == BITMAP_BYTES and _bit_count(np.frombuffer(content, "<u8")) == count
    elif form == RUN:
        is_valid = _run_form_is_valid(container)
    else:
        raise CorruptRecordError(f"The bitmap has a container of the unknown form {form}")
    if not is_valid or not count:
        raise CorruptRecordError(f"The bitmap has a damaged container: form {form}, {count} numbers")
    return container


def united(one: Container, other: Container) -> Container:
    """Return the numbers of both sets, in the smallest form."""
    if BITMAP in (one.form, other.form):
        return _from_bits(_bits(one) | _bits(other))
    if one.form == other.form == ARRAY:
        numbers = np.concatenate((_numbers(one.content), _numbers(other.content)))
        numbers.sort(kind="stable")
        return _from_numbers(numbers)
    firsts, lasts = (np.concatenate(pair) for pair in zip(_runs(one), _runs(other), strict=True))
    order = np.argsort(firsts, kind="stable")
    return _from_runs(*_merged_runs(firsts[order], lasts[order]))


def smallest(container: Container) -> Container:
    """Return the same set in the form that takes the fewest bytes."""
    if container.form == BITMAP:
        return _from_bits(_bits(container))
    if container.form == ARRAY and len(container.content) <= RUN_COUNT_BYTES + RUN_BYTES:
        # Not even a single run would be smaller.
        return container
    return _from_runs(*_merged_runs(*_runs(container)))


def _is_ascending(numbers: _UInt16Array) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())


def _numbers(content: bytes) -> _UInt16Array:
    return np.frombuffer(content, "<u2")


def _run_form_is_valid(container: Container) -> bool:
    numbers = _numbers(container.content)
    if len(numbers) < 1 or len(numbers) != 1 + 2 * int(numbers[0]):
        return False
    firsts, lasts = _runs(container)
    if len(firsts) and lasts[-1] >= COUNT_MAX:
        return False
    return bool((firsts[1:] > lasts[:-1]).all()) and int((lasts - firsts + 1).sum()) == container.number_count


def _runs(container: Container) -> tuple[Int64Array, Int64Array]:
    """Return the first and the last number of each run of an ARRAY or RUN container; neighbours may touch."""
    numbers = _numbers(container.content).astype(np.int64)
    if container.form == ARRAY:
        return numbers, numbers
    firsts = numbers[1::2]
    return firsts, firsts + numbers[2::2]


def _merged_runs(firsts: Int64Array, lasts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Join runs that overlap or touch. ``firsts`` is ascending."""
    reached = np.maximum.accumulate(lasts)
    begins = np.flatnonzero(firsts[1:] > reached[:-1] + 1) + 1
    return firsts[np.append(0, begins)], reached[np.append(begins - 1, len(reached) - 1)]


def _from_runs(firsts: Int64Array, lasts: Int64Array) -> Container:
    """Choose the smallest form for runs that neither overlap nor touch."""
    lengths = lasts - firsts + 1
    count = int(lengths.sum())
    if _runs_are_smallest(len(firsts), count):
        content = np.empty(1 + 2 * len(firsts), "<u2")
        content[0] = len(firsts)
        content[1::2] = firsts
        content[2::2] = lengths - 1
        return Container(RUN, count, content.tobytes())
    numbers = np.repeat(firsts - np.cumsum(lengths) + lengths, lengths) + np.arange(count)
    if count <= ARRAY_COUNT_MAX:
        return Container(ARRAY, count, numbers.astype("<u2").tobytes())
    return Container(BITMAP, count, _bits_of(numbers).tobytes())


def _from_numbers(numbers: _UInt16Array) -> Container:
    """Choose the smallest form for numbers in order; some may come twice."""
    steps = numbers[1:] - numbers[:-1]
    if not steps.all():
        numbers = numbers[np.append(True, steps != 0)]
        steps = steps[steps != 0]
    if _runs_are_smallest(1 + int(np.count_nonzero(steps != 1)), len(numbers)):
        wide = numbers.astype(np.int64)
        return _from_runs(*_merged_runs(wide, wide))
    if len(numbers) <= ARRAY_COUNT_MAX:
        return Container(ARRAY, len(numbers), numbers.tobytes())
    return Container(BITMAP, len(numbers), _bits_of(numbers).tobytes())


def _from_bits(bits: UInt8Array) -> Container:
    words = bits.view("<u8")
    count = _bit_count(words)
    # A run begins at each bit whose lower neighbour is not set; the highest bit of the word before is one of those.
    neighbours = words << np.uint64(1)
    neighbours[1:] |= words[:-1] >> np.uint64(63)
    run_count = _bit_count(words & ~neighbours)
    if count > ARRAY_COUNT_MAX and not _runs_are_smallest(run_count, count):
        return Container(BITMAP, count, bits.tobytes())
    numbers = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    return _from_runs(*_merged_runs(numbers, numbers))


def _bits(container: Container) -> UInt8Array:
    if container.form == BITMAP:
        return np.frombuffer(container.content, np.uint8)
    if container.form == ARRAY:
        return _bits_of(_numbers(container.content))
    firsts, lasts = _runs(container)
    edges = np.zeros(COUNT_MAX + 1, np.int8)
    edges[firsts] += 1
    edges[lasts + 1] -= 1
    return np.packbits(np.cumsum(edges[:-1], dtype=np.int8).view(np.uint8), bitorder="little")


def _bits_of(numbers: npt.NDArray[np.integer]) -> UInt8Array:
    flags = np.zeros(COUNT_MAX, np.bool_)
    flags[numbers] = True
    return np.packbits(flags, bitorder="little")


def _bit_count(words: npt.NDArray[np.uint64]) -> int:
    return int(np.bitwise_count(words).sum(dtype=np.int64))


def _runs_are_smallest(run_count: int, count: int) -> bool:
    other_bytes = min(count * NUMBER_BYTES, BITMAP_BYTES)
    return RUN_COUNT_BYTES + run_count * RUN_BYTES < other_bytes
