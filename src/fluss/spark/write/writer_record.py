"""What all attempts of a task must know to write its rows once: one writer id, and where its batches can be.

The record of a task is made before its first row is written, and is never changed: when it has to say more, a new one
takes its place. A later attempt finds the batches of the writer in the log, from the recorded offsets on.

| field | meaning |
|---|---|
| table_id | the table; if it was dropped and created again, nothing that was written is there any more |
| writer_id | the id under which batches are written |
| earlier_writer_ids | ids that were used before, until the server had forgotten them; oldest first |
| rows_per_batch | about how many rows the batches of a primary-key table have; 0: as many as suit the rows |
| starts | by bucket, ``"<partition id or nothing>:<bucket>"``: its latest offset before the first row was written |
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

from fluss import FlussTable
from fluss.client.bulk import WrittenBatch, new_writer_id, offsets_of, partitions_of, writer_batches
from fluss.errors import ErrorCode, FlussError
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket
from fluss.spark.naming import format_bucket, format_table_bucket, parse_table_bucket

ROWS_PER_BATCH: Final = 8192
_VERSION: Final = 1
# How often a record is extended again because another attempt did so at the same time.
_TRIES_MAX: Final = 5

NOT_REPEATABLE: Final = (
    "the query does not give the same rows when it is repeated. Its source must be able to be read again, and it must "
    "not use rand(), uuid(), the current time or a number of partitions that changes"
)

# Answers of a server to sequence numbers that do not follow those it knows of a writer.
LOST_TRACK: Final = (ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION)


@dataclass(frozen=True)
class WriterRecord:
    """See above. It can be sent to tasks, and kept as text."""

    table_id: int
    writer_id: int
    starts: Mapping[str, int]
    earlier_writer_ids: tuple[int, ...] = ()
    rows_per_batch: int = ROWS_PER_BATCH

    @classmethod
    def begin(
        cls, table: FlussTable, partition_ids: Iterable[int | None] = (None,), *, rows_per_batch: int = ROWS_PER_BATCH
    ) -> WriterRecord:
        """Make the record of a task that has not written anything to these partitions, or to a table without any."""
        starts = latest_offsets(table, partition_ids)
        return cls(table.get_table_info().table_id, new_writer_id(table), starts, rows_per_batch=rows_per_batch)

    @property
    def writer_ids(self) -> tuple[int, ...]:
        """All ids, the oldest first."""
        return (*self.earlier_writer_ids, self.writer_id)

    def with_new_partitions(self, table: FlussTable) -> WriterRecord:
        """Return the record with the partitions that were created since it was made, from their beginnings.

        Of a table that was created again this changes nothing that counts.
        """
        info = table.get_table_info()
        if not info.is_partitioned():
            return self
        existing = partitions_of(table)
        buckets = [format_bucket(each.partition_id, number) for each in existing for number in range(info.num_buckets)]
        return replace(self, starts={**dict.fromkeys(buckets, 0), **self.starts})

    def to_json(self) -> str:
        return json.dumps({"version": _VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> WriterRecord:
        """Read a record; a FlussError says that it is none."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("version") != _VERSION:
                raise ValueError
            fields["earlier_writer_ids"] = tuple(fields["earlier_writer_ids"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise FlussError(
                "The record of what a task has written is damaged, or of a version that is not known; nothing is "
                "written, because rows could be written twice"
            ) from None


def latest_offsets(table: FlussTable, partition_ids: Iterable[int | None]) -> dict[str, int]:
    """Return where the logs of all buckets of partitions end now."""
    info = table.get_table_info()
    buckets = [
        TableBucket.new_with_partition(info.table_id, partition_id, number)
        for partition_id in partition_ids
        for number in range(info.num_buckets)
    ]
    offsets = offsets_of(table, buckets, OffsetSpec.latest())
    return {format_table_bucket(bucket): offset for bucket, offset in offsets.items()}


class RecordStore(Protocol):
    """Where the record of one task is kept, for its next attempt."""

    def load(self) -> WriterRecord | None:
        """Return the record as it is now, None if there is none."""
        ...

    def put(self, record: WriterRecord) -> bool:
        """Keep a record in the place of the one that was loaded or put last; False if another attempt was faster."""
        ...


@dataclass
class DriverRecord:
    """Keeps a record that the driver made for the task, and gives to the next attempt, too.

    Changes of it are lost with the attempt. So its offsets should be those of all partitions that there are, with those
    that were created since (``with_new_partitions``) if it is not the first attempt. A writer id that the server has
    forgotten cannot be replaced.
    """

    record: WriterRecord

    def load(self) -> WriterRecord | None:
        return self.record

    def put(self, record: WriterRecord) -> bool:
        if record.writer_id != self.record.writer_id:
            raise FlussError(
                f"The server has forgotten the writer id {self.record.writer_id}, under which rows were written; start "
                "the job anew"
            )
        added = {bucket: 0 for bucket in record.starts if bucket not in self.record.starts}
        self.record = replace(record, starts={**self.record.starts, **added})
        return True


@dataclass
class Attempt:
    """The record of one task during one attempt."""

    table: FlussTable
    store: RecordStore
    # Whether an attempt before this one may have written something.
    is_resumed: bool = True
    # Whether a table that was created again since an attempt is written to from the beginning, or refused.
    accepts_new_table: bool = False
    _record: WriterRecord | None = field(default=None, init=False)
    _suitable_rows: int = field(default=ROWS_PER_BATCH, init=False)

    @property
    def record(self) -> WriterRecord:
        assert self._record is not None, "it was opened"
        return self._record

    @property
    def rows_per_batch(self) -> int:
        """About how many rows a batch has, in all attempts."""
        return self.record.rows_per_batch or self._suitable_rows

    def is_begun(self) -> bool:
        """Whether an attempt before this one had rows, as far as the record tells."""
        return self.is_resumed and self._load() is not None

    def _load(self) -> WriterRecord | None:
        """Return the record of the attempts before this one; None if they wrote to a table that is not there now."""
        record = self.store.load()
        if record is None or not self.accepts_new_table:
            return record
        return record if record.table_id == self.table.get_table_info().table_id else None

    def open(self, partition_ids: Collection[int | None], *, rows_per_batch: int = ROWS_PER_BATCH) -> None:
        """Get the record, or make it, for rows of these partitions, of which so many suit a batch."""
        self._suitable_rows = rows_per_batch
        self._record = self._load()
        if self._record is None:
            made = WriterRecord.begin(self.table, partition_ids, rows_per_batch=rows_per_batch)
            if self.store.put(made):
                self._record, self.is_resumed = made, False
                return
            self._record = self.store.load()
        table_id = self.table.get_table_info().table_id
        if self.record.table_id != table_id:
            raise FlussError(
                f"Table {self.table.table_path} was dropped and created again since the query wrote to it (its id was "
                f"{self.record.table_id} and is {table_id}); begin with a new checkpoint to write all rows, or set "
                "'sink.on-table-change'=accept to go on with new ones"
            )
        # Nothing has been read back yet, so what another attempt adds at the same time is no trouble.
        if not any(self._covers(partition_ids) for _ in range(_TRIES_MAX)):
            raise concurrent_attempt(self.table)

    def cover(self, partition_ids: Collection[int | None]) -> None:
        """See to it that the record has the offsets of these partitions before something is written to them.

        If another attempt has added some of them since the record was opened, it may have written rows there that were
        not read back.
        """
        if not self._covers(partition_ids):
            raise concurrent_attempt(self.table)

    def _covers(self, partition_ids: Collection[int | None]) -> bool:
        """Add the partitions that are missing to the record; False if another attempt has changed it meanwhile."""
        missing = [id_ for id_ in dict.fromkeys(partition_ids) if format_bucket(id_, 0) not in self.record.starts]
        if not missing:
            return True
        starts = {**self.record.starts, **latest_offsets(self.table, missing)}
        return self._put(replace(self.record, starts=starts))

    def renew(self) -> None:
        """Go on under a new writer id, because the server has forgotten the one there is."""
        record = self.record
        if not self._put(replace(record, writer_id=new_writer_id(self.table), earlier_writer_ids=record.writer_ids)):
            raise concurrent_attempt(self.table)

    def _put(self, record: WriterRecord) -> bool:
        is_put = self.store.put(record)
        self._record = self.store.load()
        return is_put

    def buckets(self) -> list[TableBucket]:
        """Return the buckets that the task may have written to, as far as they still exist."""
        info = self.table.get_table_info()
        buckets = [parse_table_bucket(info.table_id, text) for text in self.record.starts]
        if not info.is_partitioned():
            return buckets
        existing = {partition.partition_id for partition in partitions_of(self.table)}
        return [bucket for bucket in buckets if bucket.partition_id in existing]

    def written(
        self, columns: Sequence[str] | None, after: Mapping[TableBucket, int] | None = None
    ) -> Iterator[WrittenBatch]:
        """Yield what the task has written, from the recorded offsets on, or from later ones where these are given."""
        recorded = self.record.starts
        starts = {bucket: recorded[format_table_bucket(bucket)] for bucket in self.buckets()}
        try:
            yield from writer_batches(self.table, self.record.writer_ids, {**starts, **(after or {})}, columns=columns)
        except FlussError as error:
            raise FlussError(
                f"What the query has written to {self.table.table_path} cannot be read back, so nobody knows which "
                f"rows are missing: {error.message}. To go on nevertheless, and maybe write rows twice, set "
                "sink.delivery-guarantee to at-least-once for the next micro-batch",
                error.error_code,
            ) from error


def concurrent_attempt(table: FlussTable) -> FlussError:
    """Return the error of an attempt that is not alone."""
    return FlussError(
        f"Another attempt of this task is writing to {table.table_path} at the same time; this one gives up. Do not "
        "use speculative execution (spark.speculation) for streams that write"
    )
