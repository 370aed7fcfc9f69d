"""Partial updates of the default merge engine: some columns are written, the others stay what they are.

All records of a batch have the same targets, which makes the state of a key after any number of them a simple thing:

    targets         those of the last put, or null after a delete
    other columns   those of the stored row: a delete keeps them, and if it removes a row, then because they are null

So no record needs to wait for the one before it, and each column of the result is one ``take`` from the stored and the
received rows.

An auto-increment column is never a target. The server fills it in when a key is new, and then it is one of the others:
a later delete keeps the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.record.mutations import Mutations
from fluss.row.arrow_arrays import BoolArray, mask_from_arrow, number_array
from fluss.schema.table_options import ChangelogImage, DeleteBehavior
from fluss.server.merge.changes import NO_ROW, Changes, MergeInput, NextIds, Transitions
from fluss.server.merge.column_roles import ColumnRoles, drawn_ids
from fluss.server.merge.decoded_batch import DecodedKvBatch, KvBatchDecoder, spread


class PartialUpdateMerger:
    """Merges the target columns of rows into stored rows, which are encoded anew in the newest schema."""

    def __init__(self, decoder: KvBatchDecoder, image: ChangelogImage, deletes: DeleteBehavior) -> None:
        self._decoder = decoder
        self._image = image
        self._deletes = deletes
        self._schema = decoder.codec.schema

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        rows = self._decoder.decode(batch, self._deletes)
        roles = ColumnRoles.of(self._schema, batch.targets)
        presence = _Presence.of(rows, roles)
        ids = None
        if roles.generated is not None:
            ids = drawn_ids(self._schema.columns[roles.generated], len(presence.inserts), next_ids)
        states = _States(rows, roles, presence, ids)
        transitions = states.transitions(presence, only_keys=not roles.targets)
        entries = transitions.log_entries(self._image)
        self._check_size(batch, rows, entries.rows)
        keys, records = rows.final_state(transitions.has_effect)
        is_there = presence.after[records]
        codec = self._decoder.codec
        final_rows = codec.encode(states.take(rows.stored_count + records[is_there]))
        return Changes(
            changed=Mutations(keys, spread(final_rows, is_there), codec.schema_id),
            rows=states.take(entries.rows),
            change_types=entries.change_types,
            row_count_delta=transitions.row_count_delta if self._image is ChangelogImage.FULL else None,
            changed_slots=rows.fold.slots[records],
            row_slots=rows.fold.slots[entries.records],
        )

    def _check_size(self, batch: MergeInput, rows: DecodedKvBatch, numbers: Int64Array) -> None:
        """Refuse (code 13) many records for the key of a large row, which the changelog would repeat with each."""
        fold = rows.fold
        if fold.is_unique:
            return
        # One more at the end is what NO_ROW leads to.
        stored_bytes = np.append(batch.old.value_lengths, 0)
        key_bytes = fold.unique_keys.keys.lengths
        # No state is larger than what is stored, what is received and the key, together.
        state_bytes = rows.encoded.lengths + (stored_bytes[rows.stored] + key_bytes)[fold.slots]
        row_bytes = np.concatenate((stored_bytes[:-1], state_bytes))
        self._decoder.check_size(len(numbers), int(row_bytes[numbers].sum()))


@dataclass(frozen=True, slots=True, eq=False)
class _Presence:
    """Whether the key of each record has a row, before the record and after it."""

    before: BoolArray
    after: BoolArray
    # The records that give a row to a key that has none.
    inserts: Int64Array
    # Slot -> its first put; behind all records if it has none.
    first_puts: Int64Array

    @classmethod
    def of(cls, rows: DecodedKvBatch, roles: ColumnRoles) -> _Presence:
        fold, is_put = rows.fold, ~rows.is_delete
        first_puts = np.full(len(fold.unique_keys), len(rows))
        puts = np.flatnonzero(is_put)[::-1]
        first_puts[fold.slots[puts]] = puts
        is_stored = rows.stored[fold.slots] >= 0
        is_kept = _is_kept(rows, roles)[fold.slots]
        # A row that deletes keep is there from its first put on; any other one is if the last record was a put.
        has_been_there = is_stored | (np.arange(len(rows)) > first_puts[fold.slots])
        has_just_come = np.where(fold.previous >= 0, is_put[fold.previous], is_stored)
        before = np.where(is_kept, has_been_there, has_just_come)
        after = is_put | (is_kept & before)
        return cls(before, after, np.flatnonzero(is_put & ~before), first_puts)


def _is_kept(rows: DecodedKvBatch, roles: ColumnRoles) -> BoolArray:
    """Return for each slot whether a delete leaves something of its row."""
    # A stored row keeps what is in its other columns; a new row will have its generated value.
    others = roles.others if roles.generated is None else (*roles.others, roles.generated)
    has_others = np.zeros(rows.stored_count, np.bool_)
    for index in others:
        valid = mask_from_arrow(rows.rows.column(index).slice(0, rows.stored_count))
        has_others |= True if valid is None else valid
    is_kept = np.full(len(rows.stored), roles.generated is not None)
    is_stored = rows.stored >= 0
    is_kept[is_stored] = has_others[rows.stored[is_stored]]
    return is_kept


class _States:
    """The rows of all keys at all times, by number: the stored rows, then the row after each record.

    They are not made; each role of columns knows the stored or received row that has its values.
    """

    def __init__(self, rows: DecodedKvBatch, roles: ColumnRoles, presence: _Presence, ids: pa.Array | None) -> None:
        self._rows = rows
        self._columns = rows.rows.columns
        slots = rows.fold.slots
        stored = rows.stored[slots]
        first_received = np.append(rows.received, NO_ROW)[presence.first_puts[slots]]
        any_row = np.where(stored >= 0, stored, first_received)
        sources = [
            (roles.keys, np.where(rows.is_delete, any_row, rows.received)),
            (roles.targets, rows.received),
            (roles.others, stored),
        ]
        if roles.generated is not None:
            # The new ids are numbered behind the values that are there.
            id_numbers = np.full(len(rows.stored), NO_ROW)
            id_numbers[slots[presence.inserts]] = rows.rows.num_rows + np.arange(len(presence.inserts))
            sources.append(((roles.generated,), np.where(stored >= 0, stored, id_numbers[slots])))
            self._columns[roles.generated] = pa.concat_arrays([self._columns[roles.generated], ids])
        stored_rows = np.arange(rows.stored_count)
        self._sources = [(columns, np.concatenate((stored_rows, numbers))) for columns, numbers in sources]

    def transitions(self, presence: _Presence, *, only_keys: bool) -> Transitions:
        """Return which state follows which. A put of nothing but the key does nothing to a row that is there."""
        rows, fold = self._rows, self._rows.fold
        numbers = rows.stored_count + np.arange(len(rows))
        before = np.where(fold.previous >= 0, rows.stored_count + fold.previous, rows.stored[fold.slots])
        has_effect = ~(presence.before & ~rows.is_delete) if only_keys else np.True_
        return Transitions(
            before=np.where(presence.before & has_effect, before, NO_ROW),
            after=np.where(presence.after & has_effect, numbers, NO_ROW),
        )

    def take(self, numbers: Int64Array) -> pa.RecordBatch:
        """Make states by their numbers."""
        arrow_schema = self._rows.rows.schema
        columns: list[pa.Array] = [None] * len(arrow_schema)
        for indexes, sources in self._sources:
            picked = sources[numbers]
            row_numbers = number_array(picked, picked < 0)
            for index in indexes:
                columns[index] = self._columns[index].take(row_numbers)
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)
