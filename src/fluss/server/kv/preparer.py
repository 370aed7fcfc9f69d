"""Working out what batches do: old rows, merge, changelog. Nothing is done yet.

``BatchPreparer`` prepares the batches of one version of a table. Everything but its ``check`` takes time and belongs
into a thread, unless the batches have a few rows only.

Batches of different buckets are prepared as one, and so are several of one bucket, because most of what a small batch
costs does not depend on its rows. What is wrong with one of them concerns only that one: what cannot be prepared as one
is prepared in halves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import DECOMPRESSED_BYTES_MAX
from fluss.record.kv_batch import KEY_BYTES_MAX, RECORDS_MAX, KvBatch
from fluss.record.mutations import FoundGroup, FoundRows
from fluss.row.hashed_keys import HashedKeys
from fluss.server.kv.auto_increment import AutoIncrement, IdAllocation
from fluss.server.merge.changelog import ChangelogEncoder
from fluss.server.merge.changes import Changes, MergeInput
from fluss.server.merge.engines import check_targets, merger_of
from fluss.server.merge.joined_batches import JoinedBatches
from fluss.server.model import Table
from fluss.storage.kv.memtable import Memtable
from fluss.storage.kv.state import IdBlock
from fluss.storage.kv.store import KvStore
from fluss.storage.kv.store_lookups import find_in_stores

# What may be prepared on an event loop: some hundred microseconds of work.
QUICK_RECORDS_MAX: Final = 32
_QUICK_COLUMNS_MAX: Final = 32
QUICK_BYTES_MAX: Final = 8 * 1024
# Larger batches gain nothing by being prepared with others: what they cost beyond their rows is little.
_JOINED_BYTES_MAX: Final = 16 * 1024

logger = logging.getLogger(__name__)


class MergeMode(NamedTuple):
    """What batches of a table must have in common to be prepared as one."""

    schema_id: int
    # The columns of a partial update; none for whole rows.
    targets: tuple[int, ...] = ()
    # Whether the merge engine is bypassed: the row of the batch replaces the one that is there.
    is_overwrite: bool = False


@dataclass(slots=True, eq=False)
class BucketShare:
    """The next batches of one bucket, and what there is before them."""

    batches: Sequence[KvBatch]
    store: KvStore
    # Changes that are not in the store yet, newest first.
    pending: Sequence[Memtable] = ()
    # What is left of the reserved ids, and what reserves more; only for tables with an auto-increment column.
    ids: IdBlock | None = None
    reserve_ids: Callable[[int], int] | None = None


@dataclass(slots=True, eq=False)
class PreparedBatch:
    """What a batch does, worked out and not done yet."""

    # The row of each changed key after the batch, for the batches behind it until the store has them.
    memtable: Memtable
    row_count_delta: int | None
    # One log batch, which has no offset yet.
    changelog: bytearray
    # What is left of the reserved ids after it.
    ids_left: IdBlock | None
    # What it keeps in memory, about.
    memory_bytes: int


# What has become of a share: its first batches, as many as could be prepared at once, or why the first cannot be.
ShareOutcome: TypeAlias = list[PreparedBatch] | FlussError
# Finds the rows that keys have before batches: the keys of the first share come first, and end where the numbers say.
FindRows: TypeAlias = Callable[[Sequence[BucketShare], HashedKeys, Sequence[int]], FoundRows]


class NotQuickError(Exception):
    """Something takes longer than an event loop may be kept."""


class BatchPreparer:
    """Made once per version of a table. Has no state: threads share it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.auto_increment = AutoIncrement.of(table)
        self._merger = merger_of(table)
        self._changelog = ChangelogEncoder(table)
        self._has_few_columns = len(table.descriptor.schema.columns) <= _QUICK_COLUMNS_MAX

    def check(self, data: memoryview, targets: Sequence[int], *, is_overwrite: bool) -> KvBatch:
        """Return the batch of a request, whose rows have not been looked at yet. Quick enough for the event loop.

        Raises 14 for damage, 9 for an unknown schema, 13 for too many records, 35 and others for targets that cannot
        be.
        """
        batch = KvBatch.parse(data)
        batch.verify_crc()
        if batch.schema_id not in self.table.schemas:
            raise FlussError(
                f"Table {self.table.path} has no schema of id {batch.schema_id}, known are "
                f"{sorted(self.table.schemas)}; read the schema again",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        if batch.record_count > RECORDS_MAX:
            raise FlussError(
                f"A batch for table {self.table.path} has {batch.record_count} records, it may have {RECORDS_MAX}; "
                "write fewer rows at a time",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        # Whole rows can always be written, unless the server makes up a part of them.
        if targets or self.auto_increment is not None:
            check_targets(self.table, targets, is_overwrite=is_overwrite)
        return batch

    def is_joinable(self, batch: KvBatch) -> bool:
        """Whether a batch may be prepared as one with others. Ids have to be handed out in the order of the log."""
        return self.auto_increment is None and len(batch.data) <= _JOINED_BYTES_MAX

    def are_quick(self, shares: Sequence[BucketShare]) -> bool:
        """Whether ``prepare`` with ``current_rows_in_memory`` may happen on an event loop.

        Reserving ids waits for the coordinator, which an event loop must not.
        """
        if not self._has_few_columns or self.auto_increment is not None or len(shares) > QUICK_RECORDS_MAX:
            return False
        batches = [batch for share in shares for batch in share.batches]
        return (
            sum([batch.record_count for batch in batches]) <= QUICK_RECORDS_MAX
            and sum([len(batch.data) for batch in batches]) <= QUICK_BYTES_MAX
        )

    def prepare(self, mode: MergeMode, shares: Sequence[BucketShare], find_rows: FindRows) -> list[ShareOutcome]:
        """Work out the changes of batches and their changelogs, for each share by itself or for all as one.

        What is prepared for one batch holds whether the others are written or not. Raises NotQuickError, if
        ``find_rows`` does, and nothing else.
        """
        try:
            return self._prepare_as_one(mode, shares, find_rows)
        except NotQuickError:
            raise
        except Exception as error:
            if len(shares) > 1:
                half = len(shares) // 2
                return [
                    *self.prepare(mode, shares[:half], find_rows),
                    *self.prepare(mode, shares[half:], find_rows),
                ]
            if len(shares[0].batches) > 1:
                return self.prepare(mode, [replace(shares[0], batches=shares[0].batches[:1])], find_rows)
            return [self._explained(error)]

    def _explained(self, error: Exception) -> FlussError:
        """Return why a batch was refused. What is a bug fails one batch, and not the bucket."""
        if isinstance(error, FlussError):
            # The traceback would keep everything that was looked at.
            return error.with_traceback(None)
        logger.error("a batch for %s could not be prepared", self.table.path, exc_info=error)
        return FlussError(f"{type(error).__name__}: {error}", ErrorCode.UNKNOWN_SERVER_ERROR)

    def _prepare_as_one(
        self, mode: MergeMode, shares: Sequence[BucketShare], find_rows: FindRows
    ) -> list[ShareOutcome]:
        batches = [batch for share in shares for batch in share.batches]
        batch_counts = [len(share.batches) for share in shares]
        joined = self._joined(batches, batch_counts)
        records, fold = joined.records, joined.fold
        ids = None
        if self.auto_increment is not None and shares[0].reserve_ids is not None:
            assert len(batches) == 1, "ids are handed out batch by batch"
            ids = IdAllocation(self.auto_increment, shares[0].ids, shares[0].reserve_ids)
        old = FoundRows()
        if self._merger.needs_old_values(mode.targets, mode.is_overwrite, bool(records.is_delete.any())):
            old = find_rows(shares, fold.unique_keys, joined.key_ends(batch_counts))
        changes = self._merger.merge(
            MergeInput(*records, mode.schema_id, fold, old, mode.targets, mode.is_overwrite),
            None if ids is None else ids.take,
        )
        parts = joined.split(changes)
        return [
            [
                self._prepared(batch, part, share.ids if ids is None else ids.block)
                for batch, part in zip(share.batches, parts, strict=False)
            ]
            for share in shares
        ]

    def _joined(self, batches: Sequence[KvBatch], batch_counts: Sequence[int]) -> JoinedBatches:
        try:
            joined = JoinedBatches(batches, batch_counts)
        except CorruptRecordError as error:
            # The checksum was right: with the code of damage clients would send the same bytes again and again.
            raise FlussError(
                f"A batch for table {self.table.path} was refused: {error.message}; write it in the KV format",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            ) from error
        longest = int(joined.records.keys.lengths.max(initial=0))
        if longest > KEY_BYTES_MAX:
            raise FlussError(
                f"A batch for table {self.table.path} has a key of {longest} bytes, keys have at most {KEY_BYTES_MAX}; "
                "move what is long to a column that is not part of the primary key",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        return joined

    def _prepared(self, batch: KvBatch, changes: Changes, ids_left: IdBlock | None) -> PreparedBatch:
        changelog = self._changelog.encode(changes, writer_id=batch.writer_id, batch_sequence=batch.batch_sequence)
        memtable = Memtable.over(changes.changed)
        # Keys, and rows that stay as they came, lie in the batch and keep the whole of it in memory.
        memory_bytes = len(changelog) + len(batch.data) + memtable.byte_count
        return PreparedBatch(memtable, changes.row_count_delta, changelog, ids_left, memory_bytes)


def current_rows(shares: Sequence[BucketShare], keys: HashedKeys, key_ends: Sequence[int]) -> FoundRows:
    """Find the current rows of keys: those that are pending, and behind them those of the stores.

    More bytes than can be logged at once raise code 13.
    """
    stores = [(share.store, share.pending) for share in shares]
    return find_in_stores(stores, keys, key_ends, bytes_max=DECOMPRESSED_BYTES_MAX)


def current_rows_in_memory(shares: Sequence[BucketShare], keys: HashedKeys, key_ends: Sequence[int]) -> FoundRows:
    """Find the current rows of a few keys if they are few bytes in memory; NotQuickError if not."""
    groups: list[FoundGroup] = []
    first = 0
    for share, end in zip(shares, key_ends, strict=True):
        some = keys if len(shares) == 1 else keys.some(slice(first, end))
        found = share.store.find_cached(some, pending=share.pending, bytes_max=QUICK_BYTES_MAX)
        if found is None:
            raise NotQuickError
        groups += found.groups if not first else [(numbers + first, stored) for numbers, stored in found.groups]
        first = end
    return FoundRows(groups)
