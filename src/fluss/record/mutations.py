"""Rows by key as they go into a store, and as they come out of it: columns of bytes, no object per row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array, UInt8Array
from fluss.record.value_batch import SCHEMA_ID_BYTES, encode_value, split_values
from fluss.row.encoded import EncodedRows, offsets_of, packed_rows, side_by_side
from fluss.row.hashed_keys import HashedKeys


class MutationSizes(NamedTuple):
    """How large keys and rows are."""

    # What keys and rows have.
    byte_count: int
    # Of the longest row; 0 if there is none.
    row_bytes_max: int
    # Of the shortest key; None if there is none.
    key_bytes_min: int | None


_NO_SIZES = MutationSizes(0, 0, None)


@dataclass(slots=True, eq=False)
class Mutations:
    """The new rows of different keys, all of one schema. An empty row is a tombstone: it removes its key.

    They never change. They are measured when that is first asked for, if it was not done before.
    """

    keys: HashedKeys
    rows: EncodedRows
    schema_id: int
    _sizes: MutationSizes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        assert len(self.keys.hashes) == len(self.rows.starts), f"{len(self.keys)} keys and {len(self.rows)} rows"

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def sizes(self) -> MutationSizes:
        if self._sizes is None:
            self._sizes = self._measure(np.array([len(self)]))[0]
        return self._sizes

    @property
    def byte_count(self) -> int:
        """What keys and rows have."""
        return self.sizes.byte_count

    def split(self, ends: Int64Array) -> list[Mutations]:
        """Return pieces that end where the numbers say, the last one at the end, and none of them copied."""
        pieces, first = [], 0
        for end, sizes in zip(ends.tolist(), self._measure(ends), strict=True):
            some = slice(first, end)
            pieces.append(Mutations(self.keys.some(some), self.rows.some(some), self.schema_id, sizes))
            first = end
        return pieces

    def _measure(self, ends: Int64Array) -> list[MutationSizes]:
        """Measure pieces, all at once: for a few rows every operation on arrays costs as much as for thousands."""
        key_lengths, row_lengths = self.keys.keys.lengths, self.rows.lengths
        starts = np.append(0, ends[:-1])
        byte_counts = np.diff(offsets_of(key_lengths + row_lengths)[ends], prepend=0).tolist()
        is_there = ends > starts
        sizes = [_NO_SIZES] * len(ends)
        # What belongs to nothing would be taken from the piece behind it.
        firsts = starts[is_there]
        if len(firsts):
            rows_max = np.maximum.reduceat(row_lengths, firsts).tolist()
            keys_min = np.minimum.reduceat(key_lengths, firsts).tolist()
            numbers = np.flatnonzero(is_there).tolist()
            for number, row_max, key_min in zip(numbers, rows_max, keys_min, strict=True):
                sizes[number] = MutationSizes(byte_counts[number], row_max, key_min)
        return sizes


def copied_entries(changes: Iterable[Mutations]) -> tuple[list[bytes], list[bytes]]:
    """Copy out the keys of changes and their rows as values, empty ones where a key is removed.

    What lies in the same memory is copied at once: small batches that were prepared as one.
    """
    keys: list[bytes] = []
    values: list[bytes] = []
    for _, group in groupby(changes, lambda some: (id(some.keys.keys.data), id(some.rows.data), some.schema_id)):
        members = list(group)
        keys += side_by_side([mutations.keys.keys for mutations in members]).to_list()
        values += _values(members[0].schema_id, side_by_side([mutations.rows for mutations in members]))
    return keys, values


@dataclass(slots=True, eq=False)
class StoredValues:
    """Values of a store, taken apart: rows, and the id of the schema that each was written with."""

    rows: EncodedRows
    schema_ids: npt.NDArray[np.int16]

    @classmethod
    def from_list(cls, values: Sequence[bytes]) -> StoredValues:
        """Take values apart; a value that is none is a CorruptRecordError."""
        schema_ids, rows = split_values(EncodedRows.from_list(values))
        return cls(rows, schema_ids)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def byte_count(self) -> int:
        """What the values have, their schema ids included."""
        return int(self.rows.lengths.sum()) + SCHEMA_ID_BYTES * len(self)

    def to_list(self) -> list[bytes]:
        """Copy the rows out, each behind the id of its schema; the value of a removed key is empty."""
        schema_ids = set(self.schema_ids.tolist())
        if len(schema_ids) == 1:
            return _values(schema_ids.pop(), self.rows)
        pairs = zip(self.schema_ids.tolist(), self.rows.to_list(), strict=True)
        return [encode_value(schema_id, row) if row else row for schema_id, row in pairs]


def _values(schema_id: int, rows: EncodedRows) -> list[bytes]:
    prefix = encode_value(schema_id, b"")
    return [prefix + row if row else row for row in rows.to_list()]


# The numbers of some keys, and the row of each.
FoundGroup: TypeAlias = tuple[Int64Array, StoredValues]


class FoundRows:
    """The rows of some keys, as many as there are, in any order. Keys are known by their numbers."""

    def __init__(self, groups: Sequence[FoundGroup] = ()) -> None:
        """Take what was found, from as many sources as there are; no number comes twice."""
        self.groups = tuple(groups)

    @cached_property
    def numbers(self) -> Int64Array:
        """The keys that have a row, in the order of the rows."""
        return np.concatenate([numbers for numbers, _ in self.groups] or [np.empty(0, np.int64)])

    @cached_property
    def value_lengths(self) -> Int64Array:
        """How many bytes each row has, its schema id included."""
        return SCHEMA_ID_BYTES + np.concatenate(
            [stored.rows.lengths for _, stored in self.groups] or [np.empty(0, np.int64)]
        )

    def by_key(self, key_count: int) -> tuple[EncodedRows, EncodedRows]:
        """Return the schema id of each key's row, as bytes, and the row; both are empty where there is none."""
        schema_ids = np.zeros(key_count, "<i2")
        is_found = np.zeros(key_count, np.bool_)
        starts, ends = np.zeros((2, key_count), np.int64)
        # Bytes from several sources are put together. Those from a single one stay where they are.
        is_single = len(self.groups) == 1
        sources: list[UInt8Array] = [np.empty(0, np.uint8)]
        byte_count = 0
        for numbers, stored in self.groups:
            rows = stored.rows if is_single else packed_rows(stored.rows)
            is_found[numbers] = True
            schema_ids[numbers] = stored.schema_ids
            starts[numbers] = rows.starts + byte_count
            ends[numbers] = rows.ends + byte_count
            byte_count += len(rows.data)
            sources.append(rows.data)
        id_ends = np.cumsum(is_found) * SCHEMA_ID_BYTES
        ids = EncodedRows(schema_ids[is_found].view(np.uint8), id_ends - is_found * SCHEMA_ID_BYTES, id_ends)
        return ids, EncodedRows(sources[-1] if is_single else np.concatenate(sources), starts, ends)
