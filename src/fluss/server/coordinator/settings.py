"""What a coordinator can be told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

from fluss.integers import INT32_MAX

_LOCAL_ZONE_FILE = "/etc/localtime"


def server_zone() -> tzinfo:
    """Return the time zone of this process; UTC where it has none."""
    try:
        if "TZ" in os.environ:
            return ZoneInfo(os.environ["TZ"].removeprefix(":"))
        with open(_LOCAL_ZONE_FILE, "rb") as zone_file:
            return ZoneInfo.from_file(zone_file, key="local")
    except (OSError, LookupError, ValueError):
        return UTC


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Defaults and limits for tables and partitions, and how often things are looked after."""

    default_bucket_count: int = 1
    default_replication_factor: int = 1
    # Of one table, or of one partition.
    bucket_count_max: int = 4096
    # Of all tables together.
    total_bucket_count_max: int = INT32_MAX
    # Of one table.
    partition_count_max: int = 1000
    log_tables_allowed: bool = True
    kv_tables_allowed: bool = True
    auto_partition_check_interval_ms: int = 600_000
    # By whose clock partitions are made when their table does not say.
    time_zone: tzinfo = field(default_factory=server_zone)
    producer_offsets_ttl_ms: int = 86_400_000
    # What a producer may ask for, how many ids one user may have, and how much is kept for all of them.
    producer_offsets_ttl_ms_max: int = 7 * 86_400_000
    producers_per_user_max: int = 1000
    producer_offsets_count_max: int = 262_144
    producer_offsets_cleanup_interval_ms: int = 3_600_000
    # How long the answer "no such partition" is held back: some clients ask again at once, without end.
    missing_partition_delay_ms: int = 30
    # Where remote storage is, each place as often as tables and partitions go there; empty if there is none.
    remote_locations: tuple[str, ...] = ()
    # Whose passwords are those of the server's own configuration, whatever is set by request.
    is_super_user: Callable[[str], bool] = field(default=lambda name: False, repr=False, compare=False)
