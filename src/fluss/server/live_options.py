"""Options that take effect while the server runs: each one is read when the server starts, and whenever it changes."""

from __future__ import annotations

from fluss.server.coordinator.dynamic_configs import DynamicConfigs
from fluss.server.kv.runtime import KvRuntime
from fluss.server.listeners import SharedUsers
from fluss.server.options import ServerOptions
from fluss.server.tablet.disk_guard import DiskGuard
from fluss.server.tablet.retention import Retention


def follow_changes(
    configs: DynamicConfigs, users: SharedUsers, disk_guard: DiskGuard, retention: Retention, kv_runtime: KvRuntime
) -> None:
    """Give everybody the values that count, now and from now on. ``configs`` has a text for every option."""

    def text(key: str) -> str:
        return configs.text(key) or ""

    limit, recover = ServerOptions.disk_write_limit_ratio, ServerOptions.disk_write_recover_ratio
    rolls, credentials = ServerOptions.log_retention_rolls_active_segment, ServerOptions.sasl_users
    flush_interval = ServerOptions.kv_flush_interval_ms

    def set_ratios(_: str | None = None) -> None:
        limit_ratio, recover_ratio = limit.value_type.read(text(limit.key)), recover.value_type.read(text(recover.key))
        # One may come from a stored change, the other from a configuration that was edited since.
        disk_guard.set_ratios(limit_ratio=limit_ratio, recover_ratio=min(recover_ratio, limit_ratio))

    def set_rolls(_: str | None = None) -> None:
        retention.rolls_active_segment = rolls.value_type.read(text(rolls.key))

    def set_flush_interval(_: str | None = None) -> None:
        kv_runtime.set_flush_interval(flush_interval.value_type.read(text(flush_interval.key)))

    set_ratios()
    set_rolls()
    set_flush_interval()
    users.replace(text(credentials.key))
    configs.on_change(limit.key, set_ratios)
    configs.on_change(recover.key, set_ratios)
    configs.on_change(rolls.key, set_rolls)
    configs.on_change(flush_interval.key, set_flush_interval)
    configs.on_change(credentials.key, users.replace, check=users.check)
