"""Partitions made and dropped by the clock.

A table with ``table.auto-partition.enabled`` always has the partition of the current day (or hour, month, ...) and some
of the next ones, and loses those that are older than it wants to keep. It is looked at when it is created or altered,
when the server starts, and at an interval.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.row.partition_names import TimePattern, auto_partition_value
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.table import VALUE_SEPARATOR
from fluss.schema.table_options import (
    AUTO_PARTITION_ENABLED,
    AUTO_PARTITION_NUM_PRECREATE,
    AUTO_PARTITION_NUM_RETENTION,
    AUTO_PARTITION_TIME_FORMAT,
    AUTO_PARTITION_TIME_UNIT,
    AUTO_PARTITION_TIME_ZONE,
    TimeUnit,
)
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.coordinator.table_validation import auto_partition_key, check_bucket_count, check_replicas
from fluss.server.model import Clock, Table
from fluss.server.periodic import Periodic

# Tables by day are not all extended at midnight: each one has its own delay of less than a day.
_JITTER_MINUTES: Final = 1380
_MINUTE_MS: Final = 60_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutoPartitionRule:
    """What one table wants, as functions of the time in epoch milliseconds."""

    is_enabled: bool
    # Whether the user chose the way in which the time is written.
    has_own_pattern: bool
    pattern: TimePattern
    zone: tzinfo
    # Which of the values in a partition's name is the time; None if the table does not say.
    key_index: int | None
    has_several_keys: bool
    precreate_count: int
    # Negative keeps everything.
    retention_count: int

    @classmethod
    def of(cls, descriptor: TableDescriptor, server_zone: tzinfo) -> AutoPartitionRule:
        """Read the rule of a partitioned table."""
        properties = descriptor.properties
        time_format = AUTO_PARTITION_TIME_FORMAT.of(properties)
        key = auto_partition_key(descriptor)
        keys = descriptor.partition_keys
        return cls(
            AUTO_PARTITION_ENABLED.of(properties),
            time_format is not None,
            TimePattern.of(AUTO_PARTITION_TIME_UNIT.of(properties), time_format),
            AUTO_PARTITION_TIME_ZONE.of(properties) or server_zone,
            keys.index(key) if key in keys else None,
            len(keys) > 1,
            AUTO_PARTITION_NUM_PRECREATE.of(properties),
            AUTO_PARTITION_NUM_RETENTION.of(properties),
        )

    @property
    def has_pattern(self) -> bool:
        """Whether the values of the time column have to follow the pattern."""
        return self.is_enabled or self.has_own_pattern

    def names_to_have(self, now_ms: int, *, count_max: int) -> list[str]:
        """Return the current partition and the next ones, at most ``count_max``. With several keys there are none."""
        if self.has_several_keys:
            return []
        now = self._local(now_ms)
        names = []
        for offset in range(min(self.precreate_count, count_max)):
            try:
                names.append(auto_partition_value(now, offset, self.pattern))
            except FlussError:
                # The calendar ends.
                break
        return names

    def expired_names(self, names: Iterable[str], now_ms: int) -> list[str]:
        """Return which partitions are older than the table wants to keep, made by the clock or not."""
        oldest = self._oldest_value(now_ms)
        if oldest is None or self.key_index is None:
            return []
        return [name for name in names if name.split(VALUE_SEPARATOR)[self.key_index] < oldest]

    def check_new_values(self, values: Sequence[str], now_ms: int) -> None:
        """Refuse a new partition that is none of the table's times, or would be dropped at once (code 43)."""
        if self.key_index is None or not self.has_pattern:
            return
        value = values[self.key_index]
        self.pattern.parse(value)
        oldest = self._oldest_value(now_ms) if self.is_enabled else None
        if oldest is not None and value < oldest:
            raise FlussError(
                f"Partition value '{value}' is older than '{oldest}', the oldest one that the table keeps; "
                f"raise '{AUTO_PARTITION_NUM_RETENTION.key}' to keep more",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )

    def _oldest_value(self, now_ms: int) -> str | None:
        """Return the oldest value that is kept; None if all are."""
        if self.retention_count < 0:
            return None
        try:
            return auto_partition_value(self._local(now_ms), -self.retention_count, self.pattern)
        except FlussError:
            # Longer ago than the calendar goes.
            return None

    def _local(self, now_ms: int) -> datetime:
        return datetime.fromtimestamp(now_ms / 1000, self.zone)


class AutoPartitioner:
    """Looks after all tables with such a rule. What cannot be done now is logged and tried again at the next look."""

    def __init__(
        self,
        catalog: Catalog,
        settings: CoordinatorSettings,
        *,
        clock: Clock,
        rng: random.Random,
        server_count: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._server_count = server_count
        self._delays_ms: dict[int, int] = {}
        # The tables without room for all their partitions. That is logged once, until there is room again.
        self._crowded_ids: set[int] = set()
        self._periodic = Periodic("auto partition", settings.auto_partition_check_interval_ms, self.look)

    async def start(self) -> None:
        """Look at all tables at once, then at an interval."""
        for table in self._catalog.tables():
            await self.look_at(table)
        self._periodic.start()

    async def stop(self) -> None:
        await self._periodic.stop()

    @property
    def crowded_count(self) -> int:
        """How many tables lack partitions because a limit of partitions or buckets is reached."""
        return len(self._crowded_ids)

    def partitions_at_once(self, descriptor: TableDescriptor) -> int:
        """Return how many partitions a new table gets as soon as it is there."""
        if not descriptor.is_partitioned() or not AUTO_PARTITION_ENABLED.of(descriptor.properties):
            return 0
        rule = AutoPartitionRule.of(descriptor, self._settings.time_zone)
        return len(rule.names_to_have(self._clock(), count_max=self._settings.partition_count_max))

    async def look(self) -> None:
        """Look at all tables as at every interval: tables by day are extended with their own delay."""
        tables = self._catalog.tables()
        ids = {table.table_id for table in tables}
        self._delays_ms = {key: delay_ms for key, delay_ms in self._delays_ms.items() if key in ids}
        self._crowded_ids &= ids
        for table in tables:
            await self._look_at(table, is_delayed=True)

    async def look_at(self, table: Table) -> None:
        """Look at one table without any delay, because it is new or was changed, or because the server starts."""
        await self._look_at(table, is_delayed=False)

    async def _look_at(self, table: Table, *, is_delayed: bool) -> None:
        if not table.is_partitioned or not AUTO_PARTITION_ENABLED.of(table.descriptor.properties):
            self._crowded_ids.discard(table.table_id)
            return
        rule = AutoPartitionRule.of(table.descriptor, self._settings.time_zone)
        now_ms = self._clock()
        try:
            # First, because it makes room.
            await self._drop(table, now_ms)
            await self._create(table, rule, now_ms, self._delay_ms(table, rule) if is_delayed else 0)
        except FlussError as error:
            logger.warning("the partitions of %s could not be brought up to date: %s", table.path, error)
        except Exception:
            logger.exception("the partitions of %s could not be brought up to date", table.path)

    async def _create(self, table: Table, rule: AutoPartitionRule, now_ms: int, delay_ms: int) -> None:
        existing = self._catalog.partitions_of(table.table_id)
        count_max = self._settings.partition_count_max
        wanted = rule.names_to_have(now_ms - delay_ms, count_max=count_max)
        # What was current a delay ago may have expired since.
        expired = rule.expired_names(wanted, now_ms)
        missing = [name for name in wanted if name not in existing and name not in expired]
        if not missing:
            self._crowded_ids.discard(table.table_id)
            return
        check_bucket_count(table.bucket_count, self._settings.bucket_count_max)
        check_replicas(table.descriptor, self._server_count())
        room = max(0, min(count_max - len(existing), self._catalog.bucket_room // table.bucket_count))
        created = await self._catalog.create_partitions(table.table_id, missing[:room], count_max=count_max)
        if created:
            logger.info("created the partitions %s of %s", ", ".join(p.name for p in created), table.path)
        if len(missing) <= room:
            self._crowded_ids.discard(table.table_id)
        elif table.table_id not in self._crowded_ids:
            self._crowded_ids.add(table.table_id)
            logger.warning(
                "%s has %d partitions of %d buckets, and there is no room for %d more: a table may have %d partitions "
                "('max.partition.num'), and the server has room for %d buckets more ('server.max-buckets'). They are "
                "created when there is room",
                table.path,
                len(existing) + len(created),
                table.bucket_count,
                len(missing) - room,
                count_max,
                self._catalog.bucket_room,
            )

    async def _drop(self, table: Table, now_ms: int) -> None:
        if not self._expired(table, now_ms):
            return
        # What counts is what the table wants by then: it may have been altered to keep them while others were dropped.
        dropped = await self._catalog.drop_partitions(table.table_id, lambda current: self._expired(current, now_ms))
        if dropped:
            logger.info("dropped the expired partitions %s of %s", ", ".join(p.name for p in dropped), table.path)

    def _expired(self, table: Table, now_ms: int) -> list[str]:
        if not AUTO_PARTITION_ENABLED.of(table.descriptor.properties):
            return []
        rule = AutoPartitionRule.of(table.descriptor, self._settings.time_zone)
        return rule.expired_names(self._catalog.partitions_of(table.table_id), now_ms)

    def _delay_ms(self, table: Table, rule: AutoPartitionRule) -> int:
        if rule.pattern.unit is not TimeUnit.DAY:
            return 0
        if table.table_id not in self._delays_ms:
            self._delays_ms[table.table_id] = self._rng.randrange(_JITTER_MINUTES) * _MINUTE_MS
        return self._delays_ms[table.table_id]
