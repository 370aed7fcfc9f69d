"""Rows of one task into a primary-key table, each applied exactly once over all attempts.

The changelog does not say which rows were written, only what they changed: rows cannot be taken away from one
another. So every attempt makes the same batches, and a batch has the same number in all of them. A later attempt looks
which numbers the changelog has, checks that what they changed are keys of its own batches, and sends the others. If two
attempts write at the same time, the server takes each number once, from either.

A task that is tried again gets the same rows, but not always in the same order. To make the same batches again,
``KeyedRecords`` sorts the records of a bucket by a hash of their key. Records of equal hash keep the order in which
they came, and a batch never ends between them: so the order of rows of different keys does not matter, and that of
rows of one key decides which of them is the last.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import IO, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from fluss import FlussTable
from fluss.buffers import Int64Array, UInt8Array, byte_view
from fluss.client.bulk import SequencedWriter, TableSplitter, gathered, upsert_encoder, writer_batch_bytes
from fluss.errors import FlussError
from fluss.record.log_batch import LogBatchHeader
from fluss.row.arrow_arrays import number_array
from fluss.row.encoded import large_binary_array, offsets_of, rows_of
from fluss.schema.table import TableBucket
from fluss.spark.naming import format_bucket
from fluss.spark.write.row_hashes import UInt64Array, row_hashes
from fluss.spark.write.sink_rows import SinkRows, WriteSummary
from fluss.spark.write.writer_record import LOST_TRACK, NOT_REPEATABLE, ROWS_PER_BATCH, Attempt

# Attempts must have the same hashes.
_SEED: Final = 0
_BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
_MEMORY_BYTES_MAX: Final = 128 * 1024 * 1024
# About how many bytes are merged at once.
_MERGE_BYTES: Final = 16 * 1024 * 1024
# What is kept of a record besides its bytes: hash and length.
_RECORD_BYTES: Final = 16
# A batch of one key ends after so many times the records that a batch should have.
_ONE_KEY_FACTOR: Final = 4
_HASH_END: Final = 1 << 64
ScalarT = TypeVar("ScalarT", bound=np.generic)


class KeyedWrite:
    """Writes the rows of one task to a primary-key table. To be used once."""

    def __init__(self, table: FlussTable, attempt: Attempt, target_columns: Sequence[str] | None = None) -> None:
        self._table = table
        self._attempt = attempt
        self._target_columns = target_columns
        self._encoder = upsert_encoder(table, target_columns)
        self._keys = self._encoder.keys
        self._places = TableSplitter.of(table)

    def write(self, batches: Iterable[SinkRows]) -> WriteSummary:
        """Write all rows, and return when they are stored."""
        with KeyedRecords() as records:
            for batch in batches:
                self._add(records, batch)
            if not records.record_count and not self._attempt.is_begun():
                return WriteSummary()
            partition_ids = {bucket.partition_id for bucket in records.buckets}
            self._attempt.open(partition_ids, rows_per_batch=self._rows_per_batch(records))
            found = self._read_back() if self._attempt.is_resumed else _Found(self._table)
            writer = self._writer(found)
            try:
                return self._send(records, found, writer)
            except FlussError as error:
                if error.error_code not in LOST_TRACK or not self._is_forgotten(writer.failed_bucket, found):
                    raise
            self._attempt.renew()
            found = self._read_back()
            return self._send(records, found, self._writer(found))

    def _add(self, records: KeyedRecords, batch: SinkRows) -> None:
        rows = self._encoder.checked(batch.rows, batch.is_delete)
        keys, encoded = self._encoder.encode_records(rows)
        hashes = row_hashes(keys, _SEED)
        for bucket, numbers in self._places.groups(rows, keys):
            data, lengths = gathered(encoded, numbers)
            records.add(bucket, Records(hashes[numbers], lengths, data))

    def _rows_per_batch(self, records: KeyedRecords) -> int:
        """Return how many rows make a batch of a good size. One of the longest rows must not be too large either."""
        if not records.record_count:
            return ROWS_PER_BATCH
        good_size = int(writer_batch_bytes(self._table) * records.record_count / records.byte_count)
        return max(1, min(ROWS_PER_BATCH, good_size, _BATCH_BYTES_MAX // records.record_bytes_max))

    def _writer(self, found: _Found) -> SequencedWriter:
        writer_id = self._attempt.record.writer_id
        return SequencedWriter(
            self._table,
            writer_id,
            next_sequences=found.next_sequences(writer_id),
            target_columns=self._target_columns,
        )

    def _send(self, records: KeyedRecords, found: _Found, writer: SequencedWriter) -> WriteSummary:
        summary = WriteSummary()
        with writer:
            self._check_same(records, found)
            for bucket in records.buckets:
                done_count = len(found.batches.get(bucket, ()))
                text = format_bucket(self._places.partition_name(bucket), bucket.bucket_id)
                for number, batch in enumerate(records.batches(bucket, self._attempt.rows_per_batch)):
                    if number < done_count:
                        summary.rows_found += len(batch)
                    else:
                        writer.put(bucket, byte_view(batch.data), len(batch))
                    summary.rows += len(batch)
                    summary.rows_by_bucket[text] += len(batch)
            writer.flush()
        return summary

    # What is there

    def _read_back(self) -> _Found:
        found = _Found(self._table)
        for batch in self._attempt.written(self._keys.key_names):
            hashes = np.empty(0, np.uint64)
            if batch.rows is not None:
                hashes = row_hashes(self._keys.encode(batch.rows.columns), _SEED)
            found.add(batch.bucket, batch.header, hashes)
        return found

    def _check_same(self, records: KeyedRecords, found: _Found) -> None:
        """Make sure that what was written belongs to the batches that have the same numbers now."""
        for bucket, written in found.batches.items():
            batches = records.batches(bucket, self._attempt.rows_per_batch)
            for number, hashes in enumerate(written):
                batch = next(batches, None)
                # Sorted, because numpy 2.0 cannot look unsigned numbers of 64 bits up in a table.
                if batch is None or not bool(np.isin(hashes, batch.hashes, kind="sort").all()):
                    raise FlussError(
                        f"Batch {number} that an earlier attempt of this task wrote to {bucket} of "
                        f"{self._table.table_path} has keys that are not in its rows now: {NOT_REPEATABLE}"
                    )

    def _is_forgotten(self, bucket: TableBucket | None, found: _Found) -> bool:
        """Whether a server no longer knows the writer in the bucket that refused a number, although the changelog does.

        If the changelog has more than was found in it, the number was wrong because another attempt writes, too.
        """
        if bucket is None or bucket not in found.batches:
            return False
        return len(self._read_back().batches.get(bucket, ())) == len(found.batches[bucket])


class _Found:
    """What the changelog has of a task: for each bucket and number, the hashes of the keys that were changed."""

    def __init__(self, table: FlussTable) -> None:
        self._table = table
        self.batches: dict[TableBucket, list[UInt64Array]] = {}
        self._counts: dict[tuple[int, TableBucket], int] = {}

    def add(self, bucket: TableBucket, header: LogBatchHeader, hashes: UInt64Array) -> None:
        number = self._counts.get((header.writer_id, bucket), 0)
        if header.batch_sequence != number:
            raise FlussError(
                f"The changelog of {bucket} of {self._table.table_path} has batch {header.batch_sequence} of writer "
                f"{header.writer_id} where {number} is expected, so nobody knows what this task has written; start the "
                "query with a new checkpoint location"
            )
        self._counts[header.writer_id, bucket] = number + 1
        self.batches.setdefault(bucket, []).append(hashes)

    def next_sequences(self, writer_id: int) -> dict[TableBucket, int]:
        return {bucket: count for (id_, bucket), count in self._counts.items() if id_ == writer_id}


# Records in the order of their keys


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

    def __init__(self, *, memory_bytes_max: int = _MEMORY_BYTES_MAX) -> None:
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
