"""How a table merges what is written to it: the interface of merge engines, and which one a table has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fluss.errors import ErrorCode, FlussError
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
from fluss.server.merge.changes import Changes, MergeInput, NextIds
from fluss.server.merge.column_roles import generated_column
from fluss.server.merge.decoded_batch import BatchDecoder
from fluss.server.merge.partial_update import PartialUpdateMerger
from fluss.server.merge.row_engines import FirstRowMerger, LastRowMerger, VersionedMerger
from fluss.server.model import Table

# Engines that look at whole rows.
_WHOLE_ROW_ENGINES = (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED)


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


class _TableMerger:
    """Chooses how to merge by what the writer asks for: with the table's engine or without, whole rows or not."""

    def __init__(self, table: Table) -> None:
        self._table = table
        decoder, image = BatchDecoder(table), CHANGELOG_IMAGE.of(table.descriptor.properties)
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
    table: Table, decoder: BatchDecoder, image: ChangelogImage, deletes: DeleteBehavior
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
    decoder: BatchDecoder, image: ChangelogImage, deletes: DeleteBehavior
) -> tuple[LastRowMerger, PartialUpdateMerger]:
    return LastRowMerger(decoder, image, deletes), PartialUpdateMerger(decoder, image, deletes)


def _delete_behavior(table: Table) -> DeleteBehavior:
    properties = table.descriptor.properties
    if DELETE_BEHAVIOR.key not in properties and MERGE_ENGINE.of(properties) is not None:
        return DeleteBehavior.IGNORE
    return DELETE_BEHAVIOR.of(properties)


def _bad_targets(table: Table, reason: str) -> FlussError:
    return FlussError(f"Table {table.path} cannot be written like this: {reason}", ErrorCode.INVALID_TARGET_COLUMN)
