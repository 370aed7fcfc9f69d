"""The tables and buckets a server hosts, in memory: by table, by partition, by number.

A table without partitions is kept like one with a single partition that has no id. Everything here belongs to the
event loop.

``BatchCheck`` knows what a batch must be to be stored in a table, so that every reader can decode it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import DECOMPRESSED_BYTES_MAX, buffer_bounds
from fluss.record.arrow_ipc import ColumnLayout, column_layout, parse_message
from fluss.record.compression import examine_buffers
from fluss.record.framing import split_length_prefixed
from fluss.record.log_batch import CHANGE_TYPE_BYTES, LogBatch, iter_batches, verify_crc
from fluss.schema.table import TableBucket
from fluss.schema.table_options import LogFormat
from fluss.server.model import Partition, Table, format_bucket
from fluss.storage.log.tablet import LogTablet

if TYPE_CHECKING:
    from fluss.server.kv.bucket import KvBucket


class Waiter(Protocol):
    """A delayed fetch, as its buckets know it. Called on the event loop; may be called more than once."""

    def bucket_advanced(self) -> None:
        """The high watermark of the bucket has moved, or the bucket is gone."""
        ...


class HostedBucket:
    """One bucket: its log, or why there is none, its rows by key, and the fetches that wait for it.

    Thousands of these may lie idle: what belongs to rows by key is made when it is first needed.
    """

    __slots__ = ("_kv", "_log", "_new_kv", "_problem", "_waiters", "bucket", "idle_answer", "idle_high_watermark")

    def __init__(
        self, bucket: TableBucket, log: LogTablet | FlussError, new_kv: Callable[[LogTablet], KvBucket] | None = None
    ) -> None:
        """``new_kv`` is for the buckets of primary-key tables, None for all others."""
        self.bucket = bucket
        self._new_kv = new_kv
        self._kv: KvBucket | None = None
        self._log: LogTablet | None = None
        self._problem: FlussError | None = None
        if isinstance(log, LogTablet):
            self._log = log
            log.on_advance(self._advanced)
        else:
            self._problem = log
        self._waiters: set[Waiter] | None = None
        # What fetches that find nothing are told, encoded, and the high watermark for which it holds.
        self.idle_high_watermark = -1
        self.idle_answer = b""

    @property
    def tablet(self) -> LogTablet | None:
        """The log, if there is one that works; ``log`` raises why there is none."""
        return self._log

    def log(self) -> LogTablet:
        """Return the log. A bucket that is offline raises why (code 26), one that was dropped code 21."""
        if self._log is not None:
            return self._log
        if self._problem is None:
            raise unknown_bucket(self.bucket)
        raise self._problem.copied()

    @property
    def kv(self) -> KvBucket | None:
        """The rows by key, if there is a log that works and the table has a primary key; see ``key_values``."""
        if self._kv is None and self._new_kv is not None and self._log is not None:
            self._kv = self._new_kv(self._log)
        return self._kv if self._log is not None else None

    @property
    def kv_in_use(self) -> KvBucket | None:
        """The rows by key, if a request has asked for them since the server started."""
        return self._kv

    def key_values(self) -> KvBucket:
        """Return the rows by key. Raises what ``log`` raises, and code 20 if the table has no primary key."""
        self.log()
        kv = self.kv
        if kv is None:
            raise FlussError(
                f"The table of {format_bucket(self.bucket)} has no primary key: it is a log, read and append to it",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )
        return kv

    @property
    def is_log_active(self) -> bool:
        """Whether the log takes reads and writes."""
        return self._log is not None and self._log.failure is None

    @property
    def is_active(self) -> bool:
        """Whether the bucket takes reads and writes, by key as well if it has keys."""
        return self.is_log_active and (self._kv is None or self._kv.is_available)

    def forget_log(self) -> None:
        """The bucket is dropped: requests that know it find nothing any more, those that wait wake up."""
        self._log = self._problem = None
        self._wake()

    def add_waiter(self, waiter: Waiter) -> None:
        if self._waiters is None:
            self._waiters = {waiter}
        else:
            self._waiters.add(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        """Forget a waiter; one that is not there changes nothing."""
        if self._waiters is not None:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._waiters = None

    def _advanced(self, log: LogTablet) -> None:
        if self._waiters is not None:
            self._wake()

    def _wake(self) -> None:
        # A waiter may take itself out while it is told.
        for waiter in tuple(self._waiters or ()):
            waiter.bucket_advanced()


class HostedTable:
    """A table and those of its partitions that this server has. Altering it replaces what is known about it."""

    __slots__ = ("_batch_check", "_groups", "log_format", "table")

    def __init__(self, table: Table) -> None:
        self._groups: dict[int | None, Sequence[HostedBucket]] = {}
        self.update(table)

    def update(self, table: Table) -> None:
        """Take over new properties and schemas."""
        self.table = table
        self.log_format: LogFormat = table.descriptor.log_format
        self._batch_check: BatchCheck | None = None

    @property
    def batch_check(self) -> BatchCheck:
        if self._batch_check is None:
            self._batch_check = BatchCheck(self.table)
        return self._batch_check

    def add(self, partition: Partition | None, buckets: Sequence[HostedBucket]) -> None:
        self._groups[_group_key(partition)] = buckets

    def remove(self, partition: Partition | None) -> Sequence[HostedBucket]:
        """Take the buckets of a partition out, or those of a table without partitions; none if there are none."""
        return self._groups.pop(_group_key(partition), ())

    def has(self, partition: Partition | None) -> bool:
        return _group_key(partition) in self._groups

    @property
    def is_empty(self) -> bool:
        return not self._groups

    def group(self, partition_id: int | None) -> Sequence[HostedBucket]:
        """Return the buckets of a partition by number; none if it is not here."""
        return self._groups.get(partition_id, ())

    def __iter__(self) -> Iterator[HostedBucket]:
        for group in self._groups.values():
            yield from group


def _group_key(partition: Partition | None) -> int | None:
    return None if partition is None else partition.partition_id


def unknown_bucket(bucket: TableBucket) -> FlussError:
    """Build the error for a bucket that does not exist (any more)."""
    return FlussError(
        f"Unknown table or bucket: {format_bucket(bucket)}; it may have been dropped",
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
    )


def not_hosted(bucket: TableBucket) -> FlussError:
    """Build the error for a bucket that exists but is not ready here."""
    return FlussError(
        f"This server is not leader or follower of {format_bucket(bucket)} yet; try again",
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )


class BatchCheck:
    """Checks the batches that clients produce to one table. Made once per version of the table.

    A batch that is stored is stored for good, and one that no reader can decode stops every reader at its offset. So
    its schema must be known, and its body must have the shape of that schema: for ARROW the nodes and buffers of the
    metadata, each buffer large enough for its values, for row formats the framing of the rows. Values are not decoded;
    this costs microseconds per batch, not per record.

    Readers look at all of this again: a server cannot vouch for the bytes of a client.
    """

    def __init__(self, table: Table) -> None:
        self._path = table.path
        self._is_arrow = table.descriptor.log_format is LogFormat.ARROW
        self._layouts: Mapping[int, ColumnLayout] = {
            schema_id: column_layout(schema.to_arrow()) for schema_id, schema in table.schemas.items()
        }

    def check(self, records: memoryview) -> None:
        """Refuse records that do not fit the table, with code 15: sending them again would not help.

        Bytes that were damaged on their way are another matter: for them the checksum is left to complain, whose code
        tells a client to try again. A batch at the end that is not whole is not looked at.
        """
        for batch in iter_batches(records):
            try:
                self._check_batch(batch)
            except CorruptRecordError as error:
                verify_crc(batch)
                raise self._misfit(error.message) from error
            except FlussError:
                verify_crc(batch)
                raise

    def _check_batch(self, batch: LogBatch) -> None:
        header = batch.header
        layout = self._layouts.get(header.schema_id)
        if layout is None:
            raise self._misfit(f"it has the schema id {header.schema_id}, known are {sorted(self._layouts)}")
        if header.last_offset_delta != max(header.record_count - 1, 0):
            raise self._misfit(f"it has {header.record_count} records and spans {header.last_offset_delta + 1} offsets")
        if not header.record_count and not len(batch.records):
            return
        # Some clients send the Arrow message of no rows as a batch without records.
        if self._is_arrow:
            self._check_arrow(batch, layout)
        else:
            split_length_prefixed(
                batch.records, header.record_count, what="log record", payload_bytes_min=CHANGE_TYPE_BYTES
            )

    def _check_arrow(self, batch: LogBatch, layout: ColumnLayout) -> None:
        if not batch.header.is_append_only:
            raise self._misfit("it has change types, and a log table takes appends only")
        view = batch.arrow_message
        message = parse_message(view)
        if message.length != batch.header.record_count:
            raise self._misfit(f"it has {batch.header.record_count} records, its Arrow message has {message.length}")
        layout.check(message)
        # Readers that ask for some columns get them cut out along these boundaries.
        buffer_bounds(message)
        contents = examine_buffers(view, message, DECOMPRESSED_BYTES_MAX)
        layout.check_sizes(message.nodes, contents.lengths)

    def _misfit(self, reason: str) -> FlussError:
        return FlussError(
            f"A batch for table {self._path} was refused: {reason}; write it in the table's schema and log format",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
