"""Rows of a lake, and the changes that have come since: which rows have changed, and what they are now.

Most rows of a large table have not changed, and finding that out must cost less than reading them. Keys that are
numbers are looked up in a table of bits first, by a hash; only the few that are found there are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

import fluss.arrow_compute as pc
from fluss.buffers import Int64Array
from fluss.client.kernel.decode import ScanColumns
from fluss.client.scan.changelog_fold import ChangelogFold, encoded_keys, without_deletes
from fluss.row.arrow_arrays import (
    BoolArray,
    buffer_numbers,
    joined_batches,
    number_array,
    true_indexes,
    without_rows,
)
from fluss.schema.table import TableBucket

# A table has so many bits for each key, as long as it fits into the caches of a processor.
_BITS_PER_KEY: Final = 32
_TABLE_BITS_MIN: Final = 10
_TABLE_BITS_MAX: Final = 20
# By so many numbers it is found out that they are in no order.
_FIRST_NUMBERS: Final = 1024
# An odd number with its bits spread: keys that differ in a few bits get other hashes.
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


class ChangedRows:
    """The last change of every key of a bucket, of those that have changed.

    ``fold`` has the changes, with those that delete, in the columns ``with_keys``.
    """

    def __init__(
        self, fold: ChangelogFold, bucket: TableBucket, with_keys: ScanColumns, key_names: Sequence[str]
    ) -> None:
        names = [column.name for column in with_keys.columns]
        self._changes = fold.changes(bucket)
        self._positions = {name: names.index(name) for name in key_names}
        self._types = [with_keys.columns[position].data_type for position in self._positions.values()]
        self._numbers: dict[str, _NumberSet] = {}
        if self._changes is None or not self._changes.num_rows:
            return
        for name, position in self._positions.items():
            numbers = _numbers(self._changes[str(position)].combine_chunks())
            if numbers is not None:
                self._numbers[name] = _NumberSet(numbers)

    def number_range(self, key_name: str) -> tuple[int, int] | None:
        """Return the smallest and the largest value of a key column, None if it has no numbers."""
        found = self._numbers.get(key_name)
        return None if found is None else found.range

    @property
    def number_key(self) -> str | None:
        """The key column, if it is the only one and has numbers."""
        return next(iter(self._numbers)) if len(self._numbers) == len(self._positions) == 1 else None

    def find_among(self, numbers: Int64Array, *, is_ascending: bool) -> Int64Array:
        """Return in ascending order where keys are among ``numbers`` that have changed; for a ``number_key`` only."""
        if not self._numbers:
            # Nothing has changed.
            return np.zeros(0, np.int64)
        (changed,) = self._numbers.values()
        return changed.find_in_ascending(numbers) if is_ascending else changed.find(numbers)

    def find(self, rows: pa.RecordBatch) -> Int64Array:
        """Return in ascending order which rows have changed, given with their key; for a ``number_key`` only."""
        for name in self._numbers:
            numbers = key_numbers(rows.column(name))
            return self.find_among(numbers, is_ascending=is_ascending(numbers))
        # Nothing has changed.
        return np.zeros(0, np.int64)

    def unchanged(self, batches: Iterable[pa.RecordBatch], columns: ScanColumns) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows whose keys have not changed. Batches have the key columns, too.

        For a ``number_key`` it takes less to leave out what ``find`` returns.
        """
        changes = self._changes
        if changes is None or not changes.num_rows:
            yield from (chosen_columns(batch, columns) for batch in batches)
            return
        keys = changes["key"].combine_chunks()
        # A search begins with an index of all keys, so it is made for as many rows as there are keys.
        for rows in joined_batches(batches, len(keys)):
            candidates = self._candidates(rows)
            key_columns = rows.select(list(self._positions)).take(number_array(candidates))
            found = encoded_keys(key_columns, range(len(self._positions)), self._types)
            gone = candidates[true_indexes(pc.is_in(found, value_set=keys))]
            yield without_rows(chosen_columns(rows, columns), gone)

    def _candidates(self, rows: pa.RecordBatch) -> Int64Array:
        """Return the rows that may have changed, as far as their numbers tell."""
        candidates: BoolArray = np.ones(rows.num_rows, bool)
        for name, found in self._numbers.items():
            candidates &= found.may_have(key_numbers(rows.column(name)))
        return np.flatnonzero(candidates)

    def rows(self, columns: ScanColumns) -> Iterator[pa.RecordBatch]:
        """Yield the rows that changed and are there; ``columns`` are the first of those of the changes."""
        changes = self._changes
        if changes is None:
            return
        schema = columns.arrow_schema
        for batch in without_deletes(changes).select(range(len(schema))).to_batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


class _NumberSet:
    """A set of numbers. It is quick to say of most numbers that they are not in it."""

    def __init__(self, numbers: Int64Array) -> None:
        # Of a key of several columns, one number may be there several times.
        self._sorted = np.sort(numbers)
        wanted = (len(self._sorted) * _BITS_PER_KEY).bit_length()
        self._shift = np.uint64(64 - min(max(wanted, _TABLE_BITS_MIN), _TABLE_BITS_MAX))
        self._bits = np.zeros(1 << (64 - int(self._shift)), bool)
        self._bits[self._hash(self._sorted)] = True

    @property
    def range(self) -> tuple[int, int]:
        return int(self._sorted[0]), int(self._sorted[-1])

    def _hash(self, numbers: Int64Array) -> Int64Array:
        hashes: npt.NDArray[np.uint64] = (numbers.view(np.uint64) * _MULTIPLIER) >> self._shift
        return hashes.view(np.int64)

    def may_have(self, numbers: Int64Array) -> BoolArray:
        """Say of each number whether it may be in the set."""
        found: BoolArray = self._bits.take(self._hash(numbers))
        return found

    def find(self, numbers: Int64Array) -> Int64Array:
        """Return the positions of the numbers that are in the set."""
        candidates = np.flatnonzero(self.may_have(numbers))
        found = numbers[candidates]
        places = np.minimum(np.searchsorted(self._sorted, found), len(self._sorted) - 1)
        positions: Int64Array = candidates[self._sorted[places] == found]
        return positions

    def find_in_ascending(self, numbers: Int64Array) -> Int64Array:
        """Return what ``find`` does for numbers of which each is larger than the one before."""
        if not len(numbers):
            return np.zeros(0, np.int64)
        begin, end = np.searchsorted(self._sorted, numbers[0]), np.searchsorted(self._sorted, numbers[-1], "right")
        wanted = self._sorted[begin:end]
        places = np.searchsorted(numbers, wanted)
        positions: Int64Array = places[numbers[places] == wanted]
        return positions


def is_ascending(numbers: Int64Array) -> bool:
    """Whether each number is larger than the one before."""
    first = numbers[:_FIRST_NUMBERS]
    # Numbers in no order are found out by the first few.
    return all(bool((each[1:] > each[:-1]).all()) for each in (first, numbers))


def chosen_columns(batch: pa.RecordBatch, columns: ScanColumns) -> pa.RecordBatch:
    """Return columns in their order, in which one may be twice."""
    names = batch.schema.names
    arrays = [batch.column(names.index(column.name)) for column in columns.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.arrow_schema)


def key_numbers(column: pa.Array) -> Int64Array:
    """Return the values of a key column of which the changes have numbers, as numbers."""
    numbers = _numbers(column)
    assert numbers is not None, "rows of the lake have the types of the changes, and a key is never null"
    return numbers


def has_numbers(data_type: pa.DataType) -> bool:
    """Whether values of a type have numbers that are the same exactly if the values are."""
    return bool(pat.is_signed_integer(data_type) or pat.is_temporal(data_type))


def _numbers(column: pa.Array) -> Int64Array | None:
    """Return values as numbers that are the same exactly if the values are; None if they are none."""
    if not has_numbers(column.type) or column.null_count:
        return None
    width = column.type.bit_width
    return buffer_numbers(column, f"<i{width // 8}").astype(np.int64, copy=False)
