"""Encoded batches on their way to their buckets: the queue of each bucket, and the sequence numbers of batches.

Sequence numbers let a server recognise a batch that it has already stored, and one that is missing. A writer has an id
from the server, and numbers its batches per bucket: 0, 1, 2. A batch gets its number when it is first sent and keeps it
when it is sent again. Several batches of a bucket may be in flight, but after a failure only the oldest of them is sent
again: the others would be out of order.

| the server says | it means | so |
|---|---|---|
| 32 duplicate | stored before, the answer was lost | success |
| 31 out of order, number already acknowledged | the same | success |
| 31 out of order, number not the next one expected | one before it is still missing | send it again |
| 31 out of order otherwise | the server has lost track of this writer | failure, new writer id |
| 33 unknown writer | the server has forgotten this writer | failure, new writer id |
| a final error | see below | failure |

When a batch has failed for good, what becomes of its number depends on whether one of its requests may have stored it,
or may do so yet: all but those that the server has refused (``_REFUSALS``).

- None may have. Then its number is a gap: as long as nobody else gets it, the server can store no batch behind it, so
  those with later numbers lose them and are sent as new ones. When all of them are back, numbers go on from the gap.
- One may have. Then it is not known which number the server expects next, and if another batch got this one it could be
  taken for a duplicate. So the bucket begins at 0 under a new writer id, as soon as no batch is left under the old one.
  Those that are out keep it and are sent again: they may be stored behind the one that failed. One that the server
  refuses makes a gap as above, unless an earlier request with it may still arrive: then it fails, because under another
  id it could be stored twice.

Other buckets keep the old writer id. Only if the server has lost track of the writer do all of them begin anew.

Small batches of rows with keys that wait behind each other are sent as one: what a batch costs a server does hardly
depend on its rows.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from itertools import accumulate, islice
from operator import attrgetter

from fluss.buffers import BytesLike
from fluss.client.kernel.cluster import Cluster
from fluss.client.write.blocks import PhysicalTable
from fluss.client.write.encoders import EncodedBatch
from fluss.errors import ErrorCode, FlussError, error_for_code
from fluss.protocol import api as apis
from fluss.protocol.convert import pb_table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.kv_batch import RECORDS_MAX
from fluss.record.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID
from fluss.retry import Backoff, RetryPolicy
from fluss.schema.table import TableBucket, TablePath

_LOST_TRACK = (ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION)
# Errors from before a batch is stored, or even sent. With all others, also unknown ones, it may have been stored.
_REFUSALS = frozenset(
    int(code)
    for code in (
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.TABLE_NOT_EXIST,
        ErrorCode.SCHEMA_NOT_EXIST,
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        ErrorCode.CORRUPT_RECORD_EXCEPTION,
        ErrorCode.INVALID_TABLE_EXCEPTION,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
        ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION,
        ErrorCode.INVALID_TARGET_COLUMN,
        ErrorCode.PARTITION_NOT_EXISTS,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        ErrorCode.AUTHENTICATE_EXCEPTION,
        ErrorCode.AUTHORIZATION_EXCEPTION,
        ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION,
        ErrorCode.DELETION_DISABLED_EXCEPTION,
        ErrorCode.DISK_WRITE_LOCKED,
        ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION,
        ErrorCode.HISTORICAL_PARTITION_THROTTLED,
    )
)
_BY_ORDER = attrgetter("order")
_BY_SEQUENCE = attrgetter("sequence")


class Batch:
    """Bytes to be written, and what the sender knows about them. Belongs to the event loop.

    The header names writer and sequence, and its checksum covers everything, so it is made when the batch is sent;
    and again when a failure before it has led to another sequence.
    """

    __slots__ = (
        "_on_done",
        "_sealed_as",
        "attempts",
        "bucket_id",
        "is_out",
        "may_be_stored",
        "order",
        "parts",
        "queued_at_s",
        "records",
        "sequence",
        "sequences",
        "size_bytes",
        "targets",
        "writer_id",
    )

    def __init__(self, records: EncodedBatch, bucket_id: int, on_done: Callable[[Batch, FlussError | None], None]):
        self.records = records
        self.bucket_id = bucket_id
        # What its request must say about the columns that are written; None for a log.
        self.targets = records.targets
        self._on_done = on_done
        self.size_bytes = records.size_bytes
        # The bytes as they are sent; valid after ``seal``.
        self.parts: Sequence[BytesLike] = ()
        # The place among the batches of its bucket, also when it comes back.
        self.order = 0
        self.queued_at_s = 0.0
        # How often the batch was put back after a failure.
        self.attempts = 0
        self.writer_id = NO_WRITER_ID
        self.sequence = NO_BATCH_SEQUENCE
        # The sequence numbers it was counted with; None as long as it has none of them.
        self.sequences: BucketSequences | None = None
        # Whether it was sent and is neither answered nor given up.
        self.is_out = False
        # Whether a request with its present number may have stored it, or may still do so.
        self.may_be_stored = False
        self._sealed_as: tuple[int, int] | None = None

    def seal(self) -> None:
        """Make the header for the current writer and sequence."""
        if self._sealed_as == (self.writer_id, self.sequence):
            return
        self._sealed_as = self.writer_id, self.sequence
        self.parts = self.records.sealed(self.writer_id, self.sequence)

    def end(self, error: FlussError | None = None) -> None:
        """Report the end to the owner of the rows, once."""
        self._on_done(self, error)

    def joined(self, later: Sequence[Batch]) -> Batch:
        """Return one batch in place of this one and those after it; its end is the end of all of them."""
        members = [self, *later]

        def on_done(_: Batch, error: FlussError | None) -> None:
            for member in members:
                member.end(error)

        records = self.records.joined([member.records for member in later])
        for member in members:
            # What it had by itself would be in memory twice.
            member.records = records
        batch = Batch(records, self.bucket_id, on_done)
        batch.order = self.order
        batch.queued_at_s = self.queued_at_s
        batch.attempts = max([member.attempts for member in members])
        return batch


class BucketQueue:
    """The batches of one bucket in the order in which they must arrive. Belongs to the event loop."""

    __slots__ = ("_order_next", "backoff", "bucket_id", "table", "trouble", "waiting")

    def __init__(self, table: PhysicalTable, bucket_id: int, retry: RetryPolicy) -> None:
        self.table = table
        self.bucket_id = bucket_id
        self.waiting: list[Batch] = []
        self.backoff = Backoff(retry)
        # Why its batches have not been stored yet, if something is wrong.
        self.trouble: FlussError | None = None
        self._order_next = 0

    def add(self, batch: Batch, now_s: float) -> None:
        """Put a new batch at the end."""
        batch.order = self._order_next
        batch.queued_at_s = now_s
        self._order_next += 1
        self.waiting.append(batch)

    def put_back(self, batch: Batch) -> None:
        """Put a batch that has to be sent again where it was, before all that came after it."""
        insort(self.waiting, batch, key=_BY_ORDER)

    def is_worth_waiting(self, joined_bytes_max: int) -> bool:
        """Whether what waits is so little that it had better be joined with what comes next."""
        if not joined_bytes_max or self.waiting[0].records.joined_kind is None:
            return False
        # No further than needed: with a slow server there may be thousands, and each new one asks.
        return all(
            byte_count < joined_bytes_max for byte_count in accumulate(batch.size_bytes for batch in self.waiting)
        )

    def take(self, joined_bytes_max: int) -> Batch:
        """Take out the batch that is to be sent, or several as one batch of no more than so many bytes."""
        first = self.waiting[0]
        count = self._count_joinable(joined_bytes_max)
        later = self.waiting[1:count]
        del self.waiting[:count]
        return first.joined(later) if later else first

    def _count_joinable(self, bytes_max: int) -> int:
        """Count the batches at the head of the queue that may be sent as one."""
        first = self.waiting[0]
        kind = first.records.joined_kind
        if kind is None or first.sequences is not None:
            return 1
        count, byte_count, record_count = 1, first.size_bytes, first.records.record_count
        for batch in islice(self.waiting, 1, None):
            byte_count += batch.size_bytes
            record_count += batch.records.record_count
            # What was sent before is known to the server, maybe, as it was.
            if batch.sequences is not None or batch.records.joined_kind != kind:
                break
            if byte_count > bytes_max or record_count > RECORDS_MAX:
                break
            count += 1
        return count


class BucketSequences:
    """The numbers of one writer id in one bucket."""

    __slots__ = ("acknowledged", "gap", "in_flight", "is_given_up", "next", "writer_id")

    def __init__(self) -> None:
        # Given with the first number.
        self.writer_id = NO_WRITER_ID
        self.next = 0
        self.acknowledged = NO_BATCH_SEQUENCE
        # Batches that have a number and no end yet, by number: those on their way, and those to be sent again.
        self.in_flight: list[Batch] = []
        # A number that the server has not got and will not get, so that it has no later one either.
        self.gap: int | None = None
        # Whether no more numbers are given: the bucket begins anew when those in flight have ended.
        self.is_given_up = False

    def is_behind_gap(self, batch: Batch) -> bool:
        """Whether a batch cannot be stored with the number that it has."""
        return self.gap is not None and batch.sequence >= self.gap

    def close_gap(self, gap: int) -> None:
        """Go on with the number of the gap, if no batch has a later one any more."""
        if not self.in_flight or self.in_flight[-1].sequence < gap:
            self.next, self.gap = gap, None


class Verdict(Enum):
    """What an error about a batch means."""

    STORED = auto()  # It is there, whatever the error says.
    RETRY = auto()  # Sending it again can succeed.
    UNKNOWN = auto()  # An earlier request with it may still arrive: under another writer id it could be stored twice.
    FINAL = auto()  # Nothing about sequences speaks for sending it again.


class Idempotence:
    """Numbers batches, and judges errors. Without idempotence it only counts what is in flight.

    Belongs to the event loop.
    """

    def __init__(self, *, is_enabled: bool, in_flight_max: int) -> None:
        self.is_enabled = is_enabled
        self.writer_id = NO_WRITER_ID
        self._in_flight_max = in_flight_max
        self._buckets: dict[TableBucket, BucketSequences] = {}

    def needs_writer_id(self, bucket: TableBucket) -> bool:
        """Whether the next new batch of a bucket has to wait for a writer id."""
        return self.is_enabled and self.writer_id == NO_WRITER_ID == self._sequences(bucket).writer_id

    def forget_writer(self) -> None:
        """Begin anew with another writer id, in all buckets."""
        self.writer_id = NO_WRITER_ID
        for sequences in self._buckets.values():
            sequences.is_given_up = True

    def may_send(self, batch: Batch, bucket: TableBucket, *, alone: bool = False) -> bool:
        """Whether the first waiting batch of a bucket may be sent now; ``alone``: if it is the only one then."""
        sequences = self._sequences(bucket)
        if self.is_enabled and batch.sequences is sequences:
            return sequences.in_flight[0] is batch
        if sequences.gap is not None or sequences.is_given_up:
            # First those that have a number must have ended, or be back to get another one.
            return False
        return len(sequences.in_flight) < (1 if alone else self._in_flight_max)

    def begin(self, batch: Batch, bucket: TableBucket) -> None:
        """The batch is about to be sent: give it its number, unless it has one."""
        sequences = self._sequences(bucket)
        batch.is_out = True
        if batch.sequences is sequences:
            return
        # A partition that was dropped and created again is another bucket, with numbers of its own.
        self._leave(batch)
        batch.sequences = sequences
        batch.may_be_stored = False
        if self.is_enabled:
            if sequences.writer_id == NO_WRITER_ID:
                sequences.writer_id = self.writer_id
            batch.writer_id = sequences.writer_id
            batch.sequence = sequences.next
            sequences.next += 1
        insort(sequences.in_flight, batch, key=_BY_SEQUENCE)

    def put_back(self, batch: Batch) -> None:
        """The batch waits to be sent again."""
        batch.is_out = False
        sequences = batch.sequences
        if not self.is_enabled or sequences is None:
            self._leave(batch)
        elif sequences.is_given_up and not batch.may_be_stored:
            self._open_gap(sequences, batch.sequence)
        else:
            self._take_numbers_back(sequences)

    def acknowledged(self, batch: Batch) -> None:
        """The batch is stored."""
        sequences = self._leave(batch)
        if sequences is not None:
            sequences.acknowledged = max(sequences.acknowledged, batch.sequence)
            if sequences.is_behind_gap(batch):
                # The server has stored what it has refused: its numbers are not what they seem.
                self._give_up(sequences)

    def judge(self, batch: Batch, error_code: int) -> Verdict:
        """Say what an error means for a batch that was sent, as far as sequences have a say in it."""
        if not self.is_enabled:
            return Verdict.FINAL
        if error_code == ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION:
            return Verdict.STORED
        sequences = batch.sequences
        assert sequences is not None, "only batches that were sent are answered"
        if error_code not in _REFUSALS:
            batch.may_be_stored = True
        if error_code not in _LOST_TRACK:
            return Verdict.FINAL
        is_out_of_order = error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        if is_out_of_order and batch.sequence <= sequences.acknowledged:
            return Verdict.STORED
        if sequences.is_behind_gap(batch):
            return Verdict.RETRY
        if sequences.is_given_up:
            if not batch.may_be_stored:
                return Verdict.RETRY
            return Verdict.RETRY if is_out_of_order and sequences.in_flight[0] is not batch else Verdict.UNKNOWN
        is_next = batch.sequence == sequences.acknowledged + 1
        return Verdict.RETRY if is_out_of_order and not is_next else Verdict.FINAL

    def failed(self, batch: Batch, error_code: int) -> None:
        """The batch will not be sent again."""
        sequences = self._leave(batch)
        if not self.is_enabled or sequences is None:
            return
        has_lost_track = error_code in _LOST_TRACK and not sequences.is_given_up
        if batch.may_be_stored:
            self._give_up(sequences)
        else:
            self._open_gap(sequences, batch.sequence)
        if has_lost_track:
            self.forget_writer()

    def _give_up(self, sequences: BucketSequences) -> None:
        sequences.is_given_up = True
        if self.writer_id == sequences.writer_id:
            self.writer_id = NO_WRITER_ID

    def _open_gap(self, sequences: BucketSequences, number: int) -> None:
        sequences.gap = number if sequences.gap is None else min(sequences.gap, number)
        self._take_numbers_back(sequences)

    def _take_numbers_back(self, sequences: BucketSequences) -> None:
        """Make new ones of the batches behind a gap; those that are on their way are when they are back."""
        for batch in list(sequences.in_flight):
            if sequences.is_behind_gap(batch) and not batch.is_out:
                if batch.may_be_stored:
                    # Its request may come late, and must not find its number expected.
                    self._give_up(sequences)
                self._leave(batch)
                batch.sequences = None
                batch.writer_id = NO_WRITER_ID
                batch.sequence = NO_BATCH_SEQUENCE
                batch.may_be_stored = False

    def _leave(self, batch: Batch) -> BucketSequences | None:
        """Count a batch out; nothing happens if it was never counted."""
        sequences = batch.sequences
        if sequences is None:
            return None
        sequences.in_flight.remove(batch)
        if not self.is_enabled:
            batch.sequences = None
        return sequences

    def _sequences(self, bucket: TableBucket) -> BucketSequences:
        sequences = self._buckets.get(bucket)
        if sequences is None or (sequences.is_given_up and not sequences.in_flight):
            sequences = self._buckets[bucket] = BucketSequences()
        if sequences.gap is not None and not sequences.is_given_up:
            sequences.close_gap(sequences.gap)
        return sequences

    def partition_ids(self, table_id: int) -> set[int]:
        """Return the partitions of a table in which batches have numbers."""
        ids = {bucket.partition_id for bucket in self._buckets if bucket.table_id == table_id}
        return {id_ for id_ in ids if id_ is not None}

    def forget(self, table_id: int, partition_ids: Collection[int]) -> None:
        """Forget the numbers in partitions that are gone: their ids do not come back, so nothing is written to them.

        In one that can be written to, the server would take new batches with old numbers for those that it has.
        """
        for bucket, sequences in list(self._buckets.items()):
            if bucket.table_id == table_id and bucket.partition_id in partition_ids and not sequences.in_flight:
                del self._buckets[bucket]


class GivenSequences(Idempotence):
    """Numbers batches for a caller that keeps account of them: under a given writer id, from given numbers on.

    A number stands for one batch, for ever. So the id is not changed after a failure, and no number given twice: what
    comes after a batch that failed would be out of order, and is refused by the server.
    """

    def __init__(self, writer_id: int, next_sequences: Mapping[TableBucket, int], *, in_flight_max: int) -> None:
        super().__init__(is_enabled=True, in_flight_max=in_flight_max)
        self.writer_id = writer_id
        for bucket, sequence in next_sequences.items():
            sequences = self._sequences(bucket)
            sequences.next = sequence
            sequences.acknowledged = sequence - 1

    def failed(self, batch: Batch, error_code: int) -> None:
        self._leave(batch)


async def allocate_writer_id(cluster: Cluster, paths: Collection[TablePath]) -> int:
    """Ask any tablet server for a writer id; it checks whether these tables may be written.

    Asked once: whether and when to ask again is the caller's to decide, by the code of the error.
    """
    request = pb.InitWriterRequest(table_path=map(pb_table_path, paths))
    try:
        return (await cluster.request_any_tablet(apis.INIT_WRITER, request)).writer_id
    except FlussError as error:
        raise error_for_code(error.error_code, f"Writer ID allocation failed: {error.message}") from error
