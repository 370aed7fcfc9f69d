"""Rows of one task into a primary-key table, each applied exactly once over all attempts.

The changelog does not say which rows were written, only what they changed: rows cannot be taken away from one
another. So every attempt makes the same batches (see ``keyed_records``), and a batch has the same number in all of
them. A later attempt looks which numbers the changelog has, checks that what they changed are keys of its own batches,
and sends the others. If two attempts write at the same time, the server takes each number once, from either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from fluss.buffers import byte_view
from fluss.client.bulk.sequenced_writer import SequencedWriter, upsert_encoder
from fluss.client.bulk.table_facts import writer_batch_bytes
from fluss.client.bulk.table_splitter import TableSplitter
from fluss.client.table import FlussTable
from fluss.client.write.kv_encoder import gathered
from fluss.errors import FlussError
from fluss.record.log_batch import LogBatchHeader
from fluss.schema.table import TableBucket
from fluss.spark.bucket_texts import bucket_text
from fluss.spark.keyed_records import KeyedRecords, Records
from fluss.spark.row_hashes import UInt64Array, row_hashes
from fluss.spark.write_summary import SinkRows, WriteSummary
from fluss.spark.writer_record import LOST_TRACK, NOT_REPEATABLE, ROWS_PER_BATCH, Account

# Attempts must have the same hashes.
_SEED: Final = 0
_BATCH_BYTES_MAX: Final = 32 * 1024 * 1024


class KeyedWrite:
    """Writes the rows of one task to a primary-key table. To be used once."""

    def __init__(self, table: FlussTable, account: Account, target_columns: Sequence[str] | None = None) -> None:
        self._table = table
        self._account = account
        self._target_columns = target_columns
        self._encoder = upsert_encoder(table, target_columns)
        self._keys = self._encoder.keys
        self._places = TableSplitter.of(table)

    def write(self, batches: Iterable[SinkRows]) -> WriteSummary:
        """Write all rows, and return when they are stored."""
        with KeyedRecords() as records:
            for batch in batches:
                self._add(records, batch)
            if not records.record_count and not self._account.is_begun():
                return WriteSummary()
            partition_ids = {bucket.partition_id for bucket in records.buckets}
            self._account.open(partition_ids, rows_per_batch=self._rows_per_batch(records))
            found = self._read_back() if self._account.is_resumed else _Found(self._table)
            try:
                return self._send(records, found)
            except FlussError as error:
                if error.error_code not in LOST_TRACK or not self._is_forgotten(records, found):
                    raise
            self._account.renew()
            return self._send(records, self._read_back())

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

    def _send(self, records: KeyedRecords, found: _Found) -> WriteSummary:
        self._check_same(records, found)
        summary = WriteSummary()
        record = self._account.record
        with SequencedWriter(
            self._table,
            record.writer_id,
            next_sequences=found.next_sequences(record.writer_id),
            target_columns=self._target_columns,
        ) as writer:
            for bucket in records.buckets:
                done_count = len(found.batches.get(bucket, ()))
                text = bucket_text(self._places.partition_name(bucket), bucket.bucket_id)
                for number, batch in enumerate(records.batches(bucket, self._account.rows_per_batch)):
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
        for batch in self._account.written(self._keys.key_names):
            hashes = np.empty(0, np.uint64)
            if batch.rows is not None:
                hashes = row_hashes(self._keys.encode(batch.rows.columns), _SEED)
            found.add(batch.bucket, batch.header, hashes)
        return found

    def _check_same(self, records: KeyedRecords, found: _Found) -> None:
        """Make sure that what was written belongs to the batches that have the same numbers now."""
        for bucket, written in found.batches.items():
            batches = records.batches(bucket, self._account.rows_per_batch)
            for number, hashes in enumerate(written):
                batch = next(batches, None)
                if batch is None or not bool(np.isin(hashes, batch.hashes).all()):
                    raise FlussError(
                        f"Batch {number} that an earlier attempt of this task wrote to {bucket} of "
                        f"{self._table.table_path} has keys that are not in its rows now: {NOT_REPEATABLE}"
                    )

    def _is_forgotten(self, records: KeyedRecords, found: _Found) -> bool:
        """Whether a server no longer knows the writer although the changelog does: there was more to write, and it
        was refused. Otherwise the numbers were wrong because another attempt has written meanwhile.
        """
        now = self._read_back()
        rows_per_batch = self._account.rows_per_batch
        return any(
            len(now.batches[bucket]) == len(written) < sum(1 for _ in records.batches(bucket, rows_per_batch))
            for bucket, written in found.batches.items()
        )


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
