"""What the optimizer of Spark tells a reader, as options of the query, and what the reader answers.

    fluss.pushdown.snapshot   the rows to read, as an earlier reader of the DataFrame answered; "" for the first one
    fluss.pushdown.filter     a condition, as in scan.filter, that Spark evaluates again
    fluss.pushdown.limit      no task has to return more rows than this
    fluss.pushdown.given      the rows to read, as they were chosen when the DataFrame was made
    fluss.pushdown.shared     some of the options belong to the table, and are not all for this kind of query

Only the rule in ``java_source``, the catalog in ``catalog_source`` and ``read.native_lake`` set these options; and only
where there is the first one is an answer expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_PREFIX: Final = "fluss.pushdown."
SNAPSHOT_KEY: Final = f"{_PREFIX}snapshot"
FILTER_KEY: Final = f"{_PREFIX}filter"
LIMIT_KEY: Final = f"{_PREFIX}limit"
GIVEN_KEY: Final = f"{_PREFIX}given"
SHARED_KEY: Final = f"{_PREFIX}shared"
# What an answer has.
SNAPSHOT: Final = "snapshot"
ROW_COUNT: Final = "row_count"


@dataclass(frozen=True, slots=True)
class Hints:
    """What a reader may leave out. Without a ``snapshot``, not even an empty one, the rule awaits no answer."""

    snapshot: str | None = None
    filter: str | None = None
    limit: int | None = None
    given: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Hints:
        limit = options.get(LIMIT_KEY)
        rows = None if limit is None else int(limit)
        return cls(options.get(SNAPSHOT_KEY), options.get(FILTER_KEY), rows, options.get(GIVEN_KEY))


def without_hints(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a user has given."""
    return {key: text for key, text in options.items() if not key.startswith(_PREFIX)}
