"""Encoded records of a primary-key table, put in an order that depends on nothing but their keys.

A task that is tried again gets the same rows, but not always in the same order. To make the same batches again, it
sorts the records of a bucket by a hash of their key. Records of equal hash keep the order in which they came, and a
batch never ends between them: so it does not matter in which order the rows of different keys came, and for rows of
one key it only matters to those who care, as they do when the last of them counts.

Records are kept in memory up to a limit. Beyond it they are sorted and written to a temporary file, and such files are
merged in the end: for one range of hashes after the other, what each of them has is put together and sorted again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import IO, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array, UInt8Array
from fluss.row.arrow_arrays import number_array
from fluss.row.encoded import large_binary_array, offsets_of, rows_of
from fluss.schema.table import TableBucket
from fluss.spark.row_hashes import UInt64Array

MEMORY_BYTES_MAX: Final = 128 * 1024 * 1024
# About how many bytes are merged at once.
_MERGE_BYTES: Final = 16 * 1024 * 1024
# What is kept of a record besides its bytes: hash and length.
_RECORD_BYTES: Final = 16
# A batch of one key ends after so many times the records that a batch should have.
_ONE_KEY_FACTOR: Final = 4
_HASH_END: Final = 1 << 64

ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records back to back, each with the hash of its key. The arrays may be in memory or in a file."""

    hashes: UInt64Array
    lengths: Int64Array
    data: UInt8Array

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def byte_count(self) -> int:
        return len(self.data) + _RECORD_BYTES * len(self)

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """Put parts one behind the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.data for part in parts]),
        )

    def ordered(self) -> Records:
        """Return the records by hash; equals stay in their order."""
        order = np.argsort(self.hashes, kind="stable")
        rows = rows_of(large_binary_array(self.data, offsets_of(self.lengths)).take(number_array(order)))
        return Records(self.hashes[order], self.lengths[order], rows.data)

    def cut(self, bounds: Sequence[int]) -> Iterator[Records]:
        """Cut at record numbers, from the first to the last of them. Nothing is copied."""
        offsets = offsets_of(self.lengths)
        for start, end in pairwise(bounds):
            yield Records(
                self.hashes[start:end], self.lengths[start:end], self.data[int(offsets[start]) : int(offsets[end])]
            )


class KeyedRecords:
    """The records of one task. First all are added, then those of each bucket can be read, any number of times.

    A context manager: leaving it deletes the temporary files.
    """

    def __init__(self, *, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._bytes_in_memory = 0
        self._new: dict[TableBucket, list[Records]] = {}
        # Sorted records by bucket, in the order in which they came.
        self._runs: list[dict[TableBucket, Records]] = []
        self._files = ExitStack()
        self.record_count = 0
        self.byte_count = 0
        self.record_bytes_max = 0

    def add(self, bucket: TableBucket, records: Records) -> None:
        self._new.setdefault(bucket, []).append(records)
        self.record_count += len(records)
        self.byte_count += len(records.data)
        self.record_bytes_max = max(self.record_bytes_max, int(records.lengths.max(initial=0)))
        self._bytes_in_memory += records.byte_count
        if self._bytes_in_memory > self._memory_bytes_max:
            self._runs.append(self._spilled(self._sorted_new()))

    @property
    def buckets(self) -> list[TableBucket]:
        """The buckets that have records."""
        return list(dict.fromkeys(chain(*self._runs, self._new)))

    def batches(self, bucket: TableBucket, records_per_batch: int) -> Iterator[Records]:
        """Yield the records of a bucket in batches of about so many; the last may have fewer.

        The batches depend on the keys alone, and not on where memory ended.
        """
        rest: list[Records] = []
        for part in self._in_order(bucket):
            waiting = Records.joined([*rest, part])
            bounds = [0, *_ends(waiting.hashes, records_per_batch)]
            *whole, last = waiting.cut([*bounds, len(waiting)])
            yield from whole
            rest = [last] if len(last) else []
        yield from rest

    def _in_order(self, bucket: TableBucket) -> Iterator[Records]:
        """Yield all records of a bucket by hash, in parts; records of equal hash are in one part."""
        if self._new:
            self._runs.append(self._sorted_new())
        runs = [run[bucket] for run in self._runs if bucket in run]
        if len(runs) <= 1:
            yield from runs
            return
        part_count = -(-sum(run.byte_count for run in runs) // _MERGE_BYTES)
        limits = np.array([_HASH_END * number // part_count for number in range(1, part_count)], np.uint64)
        cuts = [[0, *np.searchsorted(run.hashes, limits).tolist(), len(run)] for run in runs]
        for parts in zip(*(run.cut(bounds) for run, bounds in zip(runs, cuts, strict=True)), strict=True):
            merged = Records.joined([part for part in parts if len(part)] or [parts[0]])
            if len(merged):
                yield merged.ordered()

    def _sorted_new(self) -> dict[TableBucket, Records]:
        new, self._new, self._bytes_in_memory = self._new, {}, 0
        run: dict[TableBucket, Records] = {}
        for bucket in list(new):
            run[bucket] = Records.joined(new.pop(bucket)).ordered()
        return run

    def _spilled(self, run: dict[TableBucket, Records]) -> dict[TableBucket, Records]:
        """Move records to a file."""
        file = tempfile.TemporaryFile(prefix="fluss-sink-")  # noqa: SIM115 - closed at the end of its owner
        self._files.callback(file.close)
        return {
            bucket: Records(_in_file(file, part.hashes), _in_file(file, part.lengths), _in_file(file, part.data))
            for bucket, part in run.items()
        }

    def close(self) -> None:
        self._new.clear()
        self._runs.clear()
        self._files.close()

    def __enter__(self) -> KeyedRecords:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _ends(hashes: UInt64Array, records_per_batch: int) -> Iterator[int]:
    """Yield where batches end: with the first key that fills them, but within one that would fill several."""
    key_ends = np.append(np.flatnonzero(hashes[1:] != hashes[:-1]) + 1, len(hashes))
    end = 0
    while (number := int(np.searchsorted(key_ends, end + records_per_batch))) < len(key_ends):
        end = min(int(key_ends[number]), end + _ONE_KEY_FACTOR * records_per_batch)
        yield end


def _in_file(file: IO[bytes], array: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """Append an array to a file, and return a view of it there."""
    if not len(array):
        return array
    position = file.seek(0, os.SEEK_END)
    file.write(np.ascontiguousarray(array).data)
    file.flush()
    view: np.memmap[Any, np.dtype[ScalarT]] = np.memmap(file, array.dtype, "r", position, array.shape)
    return view
