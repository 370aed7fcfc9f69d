"""What an unfinished copy of a table must know to go on: kept with the target, as one of its custom properties.

The target is created with it, so there is never a half-copied table that does not say so. It fixes what is copied (the
offsets at which each bucket of the source begins and ends) and under which writer id, by which a second run finds what
the first has written. When everything is there and was compared, a note that it is finished takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from fluss.errors import FlussError
from fluss.schema.table import TableInfo

STATE_PROPERTY: Final = "bulk.copy.state"
_VERSION: Final = 1
# A property is part of everything that clients are told about a table.
_TEXT_CHARS_MAX: Final = 500_000


@dataclass(frozen=True)
class CopyState:
    """See above. Times are epoch milliseconds."""

    source: str
    source_table_id: int
    source_created_ms: int
    ranges: Mapping[str, tuple[tuple[int, int], ...]]
    """The first offset of each bucket and the one behind its last, by partition; a table without any has ''."""
    writer_ids: tuple[int, ...] = ()
    """The last one is used, servers have forgotten the others. Without any, nothing has been written."""
    writer_since_ms: int = 0
    rows_finished: int | None = None
    """All rows, when they are there."""

    @classmethod
    def begin(cls, info: TableInfo, ranges: Mapping[str, tuple[tuple[int, int], ...]]) -> CopyState:
        """Return the state of a copy that has not begun."""
        return cls(str(info.table_path), info.table_id, info.created_time, ranges)

    @property
    def is_finished(self) -> bool:
        """Whether all rows are in the target."""
        return self.rows_finished is not None

    def finished(self, rows: int) -> CopyState:
        """Return the note that is left when all is done."""
        return replace(self, writer_ids=(), ranges={}, rows_finished=rows)

    def with_writer(self, writer_id: int, now_ms: int) -> CopyState:
        """Go on under another writer id."""
        return replace(self, writer_ids=(*self.writer_ids, writer_id), writer_since_ms=now_ms)

    def check_source(self, info: TableInfo, target: str) -> None:
        """Refuse to go on with another source than the copy began with."""
        if (self.source_table_id, self.source_created_ms) != (info.table_id, info.created_time):
            raise FlussError(
                f"{target} has an unfinished copy of {self.source} (table id {self.source_table_id}), which is not the "
                f"table {info.table_path} (table id {info.table_id}) of now; drop {target} to copy anew"
            )

    def to_text(self) -> str:
        """Return the text of the property."""
        text = json.dumps({"version": _VERSION, **asdict(self)}, separators=(",", ":"))
        if len(text) > _TEXT_CHARS_MAX:
            raise FlussError(
                f"{self.source} has {len(self.ranges)} partitions, which are too many for one copy; export it, and "
                "load what was exported"
            )
        return text

    @classmethod
    def from_text(cls, text: str, target: str) -> CopyState:
        """Read the text of the property."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("version") != _VERSION:
                raise ValueError
            fields["writer_ids"] = tuple(fields["writer_ids"])
            fields["ranges"] = {
                partition: tuple((int(start), int(stop)) for start, stop in buckets)
                for partition, buckets in fields["ranges"].items()
            }
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise FlussError(
                f"The property '{STATE_PROPERTY}' of {target} is damaged, or of a version that is not known; drop "
                f"{target} to copy anew"
            ) from None
