"""Which lake table is tiered when, and by which service.

| state | entered when | left for |
|---|---|---|
| scheduled | the table got its lake, the server started, or a round finished | pending, when the freshness is over |
| pending | due, failed, or finished by force; the epoch is counted on | tiering, when a service asks, in this order |
| tiering | handed to a service | scheduled or pending, when it reports, or is silent for two minutes |

Everything is in memory. After a start all tables are scheduled, and services that still have a table of the time
before are told by the epoch of the coordinator that it is not theirs any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table_options import LAKE_ENABLED, LAKE_FRESHNESS
from fluss.server.coordinator.catalog import Catalog
from fluss.server.model import Clock, Table

# A service that has not been heard of for so long has lost its tables.
HEARTBEAT_TIMEOUT_MS: Final = 120_000

logger = logging.getLogger(__name__)


class TieringState(StrEnum):
    SCHEDULED = "scheduled"
    PENDING = "pending"
    TIERING = "tiering"


@dataclass(slots=True)
class TieredTable:
    """A table in the schedule."""

    table_id: int
    freshness_ms: int
    # Since when the lake's copy grows old.
    tiered_ms: int
    state: TieringState = TieringState.SCHEDULED
    epoch: int = 0
    # When it became pending, or a service was last heard of.
    since_ms: int = 0
    failure_count: int = 0
    # What the last round has reported, None where it has not.
    file_bytes: int | None = None
    record_count: int | None = None

    @property
    def due_ms(self) -> int:
        return self.tiered_ms + self.freshness_ms


class LakeTiering:
    """The schedule. Belongs to one event loop; what time does to it happens when it is next asked."""

    def __init__(self, catalog: Catalog, coordinator_epoch: int, clock: Clock) -> None:
        self.coordinator_epoch = coordinator_epoch
        self._catalog = catalog
        self._clock = clock
        self._tables: dict[int, TieredTable] = {}
        # Ids of pending tables, the first to be handed out first.
        self._queue: list[int] = []

    def start(self) -> None:
        """Schedule all lake tables; how old their copies are is not known, and counts from now."""
        for table in self._catalog.tables():
            self.look_at(table)

    def look_at(self, table: Table) -> None:
        """Take over that a table was created or altered."""
        properties = table.descriptor.properties
        if not LAKE_ENABLED.of(properties):
            self._remove(table.table_id)
            return
        freshness_ms = LAKE_FRESHNESS.of(properties)
        entry = self._tables.get(table.table_id)
        if entry is None:
            self._tables[table.table_id] = TieredTable(table.table_id, freshness_ms, self._clock())
        else:
            entry.freshness_ms = freshness_ms

    # What services report, after ``advance``

    def renew(self, table_id: int, coordinator_epoch: int, tiering_epoch: int) -> None:
        """Note that a service is still at a table. Raises what ``_of_service`` does."""
        self._of_service(table_id, coordinator_epoch, tiering_epoch).since_ms = self._clock()

    def finish(
        self,
        table_id: int,
        coordinator_epoch: int,
        tiering_epoch: int,
        *,
        by_force: bool = False,
        file_bytes: int | None = None,
        record_count: int | None = None,
    ) -> None:
        """Note the end of a round. One that ended ``by_force`` had to leave something for the next, which is due."""
        entry = self._of_service(table_id, coordinator_epoch, tiering_epoch)
        entry.tiered_ms = self._clock()
        entry.file_bytes, entry.record_count = file_bytes, record_count
        if by_force:
            self._make_pending(entry)
        else:
            entry.state = TieringState.SCHEDULED

    def fail(self, table_id: int, coordinator_epoch: int, tiering_epoch: int) -> None:
        """Note that a round has failed; the next is due at once."""
        entry = self._of_service(table_id, coordinator_epoch, tiering_epoch)
        entry.failure_count += 1
        self._make_pending(entry)

    def request(self, may_have: Callable[[Table], bool] = lambda table: True) -> tuple[Table, int] | None:
        """Hand out the first pending table that the service may have, with the epoch of the round."""
        self.advance()
        for table_id in list(self._queue):
            table = self._catalog.table_by_id(table_id)
            if table is None:
                self._remove(table_id)
            elif may_have(table):
                self._queue.remove(table_id)
                entry = self._tables[table_id]
                entry.state, entry.since_ms = TieringState.TIERING, self._clock()
                return table, entry.epoch
        return None

    def tables(self) -> Iterable[TieredTable]:
        """Return the schedule as it is now."""
        self.advance()
        return self._tables.values()

    def _of_service(self, table_id: int, coordinator_epoch: int, tiering_epoch: int) -> TieredTable:
        """Return a table that is being tiered in the round that a service names.

        Raises code 23 if it was handed out before the server started, 7 if there is no such lake table any more, 50 if
        another round has begun, and -1 if it is not being tiered.
        """
        if coordinator_epoch != self.coordinator_epoch:
            raise FlussError(
                f"The coordinator has epoch {self.coordinator_epoch}, the request has {coordinator_epoch}; "
                "forget the tables that you have, and ask for new ones",
                ErrorCode.INVALID_COORDINATOR_EXCEPTION,
            )
        entry = self._tables.get(table_id)
        if entry is None:
            raise FlussError(
                f"The table of id {table_id} is not tiered to a lake: it was dropped, or its lake was switched off",
                ErrorCode.TABLE_NOT_EXIST,
            )
        if entry.epoch != tiering_epoch:
            raise FlussError(
                f"The table of id {table_id} has tiering epoch {entry.epoch}, the request has {tiering_epoch}; this "
                "round was given up, do not commit it",
                ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
            )
        if entry.state is not TieringState.TIERING:
            raise FlussError(
                f"The table of id {table_id} is not being tiered, it is {entry.state}", ErrorCode.UNKNOWN_SERVER_ERROR
            )
        return entry

    # What time does

    def advance(self) -> None:
        """Bring the schedule up to date. It goes through all tables: do it once before reports, not for each one."""
        now_ms = self._clock()
        for table_id in [each for each in self._tables if self._catalog.table_by_id(each) is None]:
            self._remove(table_id)
        silent = [
            entry
            for entry in self._tables.values()
            if entry.state is TieringState.TIERING and now_ms - entry.since_ms > HEARTBEAT_TIMEOUT_MS
        ]
        for entry in sorted(silent, key=lambda each: each.since_ms):
            logger.warning("the service that tiered the table of id %d is silent; another may have it", entry.table_id)
            entry.failure_count += 1
            self._make_pending(entry)
        due = [e for e in self._tables.values() if e.state is TieringState.SCHEDULED and e.due_ms <= now_ms]
        for entry in sorted(due, key=lambda each: each.due_ms):
            self._make_pending(entry)

    def _make_pending(self, entry: TieredTable) -> None:
        entry.state, entry.since_ms = TieringState.PENDING, self._clock()
        entry.epoch += 1
        self._queue.append(entry.table_id)

    def _remove(self, table_id: int) -> None:
        if self._tables.pop(table_id, None) is not None and table_id in self._queue:
            self._queue.remove(table_id)
