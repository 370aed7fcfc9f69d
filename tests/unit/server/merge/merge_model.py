"""The merge rules of primary-key tables, record by record and row by row: slow, and easy to compare with the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.unit.server.merge.merging import Change, Delete, Row

# A row without a version counts as having this one, as upstream's do.
_VERSION_LOWEST = -(2**63)


@dataclass
class MergeModel:
    """One table. Rows are tuples of the newest schema."""

    key_indexes: frozenset[int]
    engine: str | None = None
    is_wal: bool = False
    deletes: str = "allow"
    version_index: int | None = None
    generated_index: int | None = None
    rows: dict[bytes, Row] = field(default_factory=dict)
    id_last: int = 0

    def put(
        self, records: Sequence[tuple[bytes, Row | Delete]], targets: Sequence[int], *, overwrite: bool, width: int
    ) -> list[Change]:
        """Apply the records of one batch and return the changelog. A batch with refused deletes is a ValueError."""
        deletes = "allow" if overwrite else self.deletes
        if deletes == "disable" and any(isinstance(record, Delete) for _, record in records):
            raise ValueError("deletes are disabled")
        is_partial = 0 < len(set(targets)) < width
        log: list[Change] = []
        for key, record in records:
            before = self.rows.get(key)
            if isinstance(record, Delete):
                if deletes == "ignore" or before is None:
                    continue
                after = self._partly_deleted(before, targets) if is_partial else None
            else:
                after = self._merged(before, record, targets if is_partial else (), overwrite)
                if after is before:
                    continue
            blind = self.is_wal and not is_partial and (overwrite or self.engine is None)
            log += self._changes(before, after, blind)
            if after is None:
                del self.rows[key]
            else:
                self.rows[key] = after
        return log

    def widen(self, width: int) -> None:
        """Give all rows the columns that were added to the table."""
        self.rows = {key: row + (None,) * (width - len(row)) for key, row in self.rows.items()}

    def _merged(self, before: Row | None, row: Row, targets: Sequence[int], overwrite: bool) -> Row:
        if targets:
            if before is not None and set(targets) == self.key_indexes:
                return before
            others = before or (None,) * len(row)
            merged = [row[i] if i in targets else others[i] for i in range(len(row))]
            if before is None and self.generated_index is not None:
                self.id_last += 1
                merged[self.generated_index] = self.id_last
            return tuple(merged)
        if before is None or overwrite or self.engine is None:
            return row
        if self.engine == "first_row":
            return before
        assert self.engine == "versioned"
        assert self.version_index is not None
        old, new = before[self.version_index], row[self.version_index]
        return row if old in (None, _VERSION_LOWEST) or (new is not None and new >= old) else before

    def _partly_deleted(self, before: Row, targets: Sequence[int]) -> Row | None:
        if all(value is None for i, value in enumerate(before) if i not in targets):
            return None
        return tuple(None if i in targets and i not in self.key_indexes else value for i, value in enumerate(before))

    def _changes(self, before: Row | None, after: Row | None, blind: bool) -> list[Change]:
        if after is None:
            assert before is not None
            return [("-D", before)]
        if blind:
            return [("+U", after)]
        if before is None:
            return [("+I", after)]
        return [("+U", after)] if self.is_wal else [("-U", before), ("+U", after)]
