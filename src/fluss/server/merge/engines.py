"""How a table merges what is written to it: which merge engine it has, and the engines that choose among whole rows.

| engine          | what becomes of the rows of a key                              |
|-----------------|----------------------------------------------------------------|
| default         | the last one stays                                             |
| ``first_row``   | the first one stays; later ones vanish                         |
| ``versioned``   | the last one, unless its version is lower than that of another |
| ``aggregation`` | they are combined, column by column: see ``aggregation``       |

Writes of some columns go through ``partial_update``, if the table has the default engine or is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.errors import ErrorCode, FlussError
from fluss.record.mutations import Mutations
from fluss.row.arrow_arrays import BoolArray, mask_from_arrow, take_rows
from fluss.schema.schema import shown_names
from fluss.schema.table_options import (
    CHANGELOG_IMAGE,
    DELETE_BEHAVIOR,
    MERGE_ENGINE,
    MERGE_ENGINE_VERSION_COLUMN,
    ChangelogImage,
    DeleteBehavior,
    MergeEngine,
)
from fluss.server.merge.aggregation import AggregationMerger
from fluss.server.merge.changes import Changes, MergeInput, NextIds, Transitions
from fluss.server.merge.column_roles import generated_column
from fluss.server.merge.decoded_batch import DecodedKvBatch, KvBatchDecoder
from fluss.server.merge.key_fold import KeyFold
from fluss.server.merge.partial_update import PartialUpdateMerger
from fluss.server.model import Table

# Engines that look at whole rows.
_WHOLE_ROW_ENGINES = (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED)
# A null is the lowest version.
_VERSION_LOWEST = np.iinfo(np.int64).min


class Merger(Protocol):
    """Turns a KV batch and the values that are there into changes. Made once per version of a table.

    Has no state, so threads may share it, and raises before it has done anything.
    """

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        """Whether a batch like this can be merged only if the stored values of its keys are known."""
        ...

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        """Work out what the batch changes.

        ``next_ids`` is for tables with an auto-increment column, None for all others; it is asked at most once.
        Code 57 refuses deletes, 15 rows that do not fit the table; KvDamagedError: a stored value cannot be read.
        """
        ...


def merger_of(table: Table) -> Merger:
    """Return the merger of a table, by its properties."""
    return _TableMerger(table)


def check_targets(table: Table, targets: Sequence[int], *, is_overwrite: bool = False) -> None:
    """Refuse a list of target columns that the table cannot have (code 35). An empty list stands for whole rows."""
    schema = table.descriptor.schema
    names, chosen = schema.column_names, set(targets)
    unknown = chosen.difference(range(len(names)))
    if unknown:
        raise _bad_targets(table, f"there is no column {min(unknown)}; columns are numbered 0 to {len(names) - 1}")
    generated = generated_column(schema)
    if generated is not None and (not targets or generated in chosen):
        raise _bad_targets(
            table,
            f"the server makes up the auto-increment column '{names[generated]}'; name the other columns as targets",
        )
    if not targets:
        return
    engine = MERGE_ENGINE.of(table.descriptor.properties)
    if engine in _WHOLE_ROW_ENGINES and not is_overwrite:
        raise _bad_targets(table, f"the merge engine '{engine}' takes whole rows only; name no target columns")
    missing_keys = [name for name in schema.get_primary_keys() if schema.index_of(name) not in chosen]
    if missing_keys:
        raise _bad_targets(table, f"the primary key is not complete, it lacks {shown_names(missing_keys)}")
    if is_partial(table, targets):
        keys = schema.get_primary_keys()
        required = [c.name for c in schema.columns if not c.data_type.nullable and c.name not in keys]
        if required:
            raise _bad_targets(
                table,
                f"partial updates need nullable columns, but {shown_names(required)} are NOT NULL; write whole rows",
            )


def is_partial(table: Table, targets: Sequence[int]) -> bool:
    """Whether a write with these targets leaves columns out. If it names all of them, it is a write of whole rows."""
    return 0 < len(set(targets)) < len(table.descriptor.schema.columns)


def _bad_targets(table: Table, reason: str) -> FlussError:
    return FlussError(f"Table {table.path} cannot be written like this: {reason}", ErrorCode.INVALID_TARGET_COLUMN)


class _TableMerger:
    """Chooses how to merge by what the writer asks for: with the table's engine or without, whole rows or not."""

    def __init__(self, table: Table) -> None:
        self._table = table
        decoder, image = KvBatchDecoder(table), CHANGELOG_IMAGE.of(table.descriptor.properties)
        deletes = _delete_behavior(table)
        engine = _engine_merger(table, decoder, image, deletes)
        # For whole rows, and for partial updates.
        self._merging = _last_row_mergers(decoder, image, deletes) if engine is None else (engine, engine)
        self._overwriting = _last_row_mergers(decoder, image, DeleteBehavior.ALLOW)

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return self._merger(targets, is_overwrite).needs_old_values(targets, is_overwrite, has_deletes)

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        return self._merger(batch.targets, batch.is_overwrite).merge(batch, next_ids)

    def _merger(self, targets: Sequence[int], is_overwrite: bool) -> Merger:
        for_whole_rows, for_partial_updates = self._overwriting if is_overwrite else self._merging
        return for_partial_updates if is_partial(self._table, targets) else for_whole_rows


def _engine_merger(
    table: Table, decoder: KvBatchDecoder, image: ChangelogImage, deletes: DeleteBehavior
) -> Merger | None:
    properties = table.descriptor.properties
    match MERGE_ENGINE.of(properties):
        case MergeEngine.FIRST_ROW:
            return FirstRowMerger(decoder, image, deletes)
        case MergeEngine.VERSIONED:
            version_column = MERGE_ENGINE_VERSION_COLUMN.of(properties)
            assert version_column is not None, "checked when the table was created"
            return VersionedMerger(decoder, image, deletes, table.descriptor.schema.index_of(version_column))
        case MergeEngine.AGGREGATION:
            return AggregationMerger(decoder, deletes)
    return None


def _last_row_mergers(
    decoder: KvBatchDecoder, image: ChangelogImage, deletes: DeleteBehavior
) -> tuple[LastRowMerger, PartialUpdateMerger]:
    return LastRowMerger(decoder, image, deletes), PartialUpdateMerger(decoder, image, deletes)


def _delete_behavior(table: Table) -> DeleteBehavior:
    properties = table.descriptor.properties
    if DELETE_BEHAVIOR.key not in properties and MERGE_ENGINE.of(properties) is not None:
        return DeleteBehavior.IGNORE
    return DELETE_BEHAVIOR.of(properties)


class LastRowMerger:
    """Puts replace, deletes remove. Rows are stored as they were received."""

    def __init__(self, decoder: KvBatchDecoder, image: ChangelogImage, deletes: DeleteBehavior) -> None:
        self._decoder = decoder
        self._image = image
        self._deletes = deletes

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        if self._image is ChangelogImage.FULL:
            return True
        # A WAL image shows what was there only when it goes.
        return has_deletes and self._deletes is DeleteBehavior.ALLOW

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        rows = self._decoder.decode(batch, self._deletes)
        # Whether a key is new is known only if the stored values are, so a WAL image says +U for both.
        return _last_row_changes(rows, self._image, inserts_are_updates=self._image is ChangelogImage.WAL)


def _last_row_changes(rows: DecodedKvBatch, image: ChangelogImage, *, inserts_are_updates: bool = False) -> Changes:
    """Return the changes if every record takes effect: each received row replaces what was there."""
    fold = rows.fold
    before = rows.stored[fold.slots]
    if not fold.is_unique:
        # A delete has received no row: its key is absent for the next record.
        before = np.where(fold.previous >= 0, rows.received[fold.previous], before)
    transitions = Transitions(before, rows.received)
    entries = transitions.log_entries(image, inserts_are_updates=inserts_are_updates)
    keys, records = rows.final_state(transitions.has_effect)
    return Changes(
        changed=Mutations(keys, rows.received_rows(records), rows.schema_id),
        rows=take_rows(rows.rows, entries.rows),
        change_types=entries.change_types,
        row_count_delta=transitions.row_count_delta if image is ChangelogImage.FULL else None,
        changed_slots=fold.slots[records],
        row_slots=fold.slots[entries.records],
    )


class FirstRowMerger:
    """Writes the rows of new keys. Deletes are ignored or refused."""

    def __init__(self, decoder: KvBatchDecoder, image: ChangelogImage, deletes: DeleteBehavior) -> None:
        assert deletes is not DeleteBehavior.ALLOW, "a first row cannot be deleted"
        self._decoder = decoder
        self._image = image
        self._deletes = deletes

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        # Only whether a key has a row matters, not what it is.
        is_stored = np.zeros(len(batch.fold.unique_keys), np.bool_)
        is_stored[batch.old.numbers] = True
        rows = self._decoder.decode(batch, self._deletes, with_stored_rows=False)
        is_first = (rows.fold.previous < 0) & ~is_stored[rows.fold.slots]
        return _last_row_changes(rows.only(np.flatnonzero(is_first)), self._image)


class VersionedMerger:
    """Compares rows by one column of type INT, BIGINT or TIMESTAMP. Deletes are ignored or refused."""

    def __init__(
        self, decoder: KvBatchDecoder, image: ChangelogImage, deletes: DeleteBehavior, version_column: int
    ) -> None:
        assert deletes is not DeleteBehavior.ALLOW, "a delete has no version"
        self._decoder = decoder
        self._image = image
        self._deletes = deletes
        self._version_column = version_column

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        rows = self._decoder.decode(batch, self._deletes)
        wins = self._wins(rows)
        return _last_row_changes(rows.only(np.flatnonzero(wins)), self._image)

    def _wins(self, rows: DecodedKvBatch) -> BoolArray:
        """Return which rows replace the ones before them."""
        # One more version at the end is what the number of no row, -1, leads to.
        versions = np.append(_versions(rows.rows.column(self._version_column)), _VERSION_LOWEST)
        received, stored = versions[rows.received], versions[rows.stored[rows.fold.slots]]
        return received >= stored if rows.fold.is_unique else _is_highest_so_far(rows.fold, received, stored)


def _versions(column: pa.Array) -> Int64Array:
    numbers = np.frombuffer(column.buffers()[1] or b"", f"<i{column.type.bit_width // 8}")
    versions = numbers[column.offset :][: len(column)].astype(np.int64, copy=False)
    valid = mask_from_arrow(column)
    return versions if valid is None else np.where(valid, versions, _VERSION_LOWEST)


def _is_highest_so_far(fold: KeyFold, received: Int64Array, stored: Int64Array) -> BoolArray:
    """Return which records have a version that no earlier one of their key exceeds, nor the stored one.

    Ranks instead of versions leave room to lift the records of each key above those of all keys before it. One running
    maximum over all records then starts anew with every key.
    """
    order, starts = fold.runs()
    firsts = starts[:-1]
    versions = np.concatenate((received[order], stored[order[firsts]]))
    ranks = np.unique(versions, return_inverse=True)[1]
    lift = np.arange(len(firsts)) * len(ranks)
    own = ranks[: len(order)] + np.repeat(lift, np.diff(starts))
    first_before = ranks[len(order) :] + lift
    so_far = own.copy()
    so_far[firsts] = np.maximum(so_far[firsts], first_before)
    before = np.empty_like(own)
    before[1:] = np.maximum.accumulate(so_far)[:-1]
    before[firsts] = first_before
    wins = np.empty(len(order), np.bool_)
    wins[order] = own >= before
    return wins
