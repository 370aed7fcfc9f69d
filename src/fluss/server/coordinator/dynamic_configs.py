"""Configuration of the cluster that can be changed while it runs.

A value set by request is stored and wins over the one in the server's configuration file, also after a restart. Only
the keys below can be changed; parts of the server that ask to be told about a change act on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from fluss.errors import ErrorCode, FlussError
from fluss.options import (
    BOOLEAN,
    DURATION_MS,
    HIDDEN,
    INT32,
    MEMORY_BYTES,
    RATIO,
    TEXT,
    Option,
    ValueType,
    choice_of,
    is_secret_key,
    quotas_of,
    suggestion,
    without_passwords,
)
from fluss.schema.cluster_info import ClusterConfigEntry, ConfigChange, ConfigOp
from fluss.schema.table_options import LAKE_PREFIX, LakeFormat
from fluss.server.coordinator.metadata.metadata_store import MetadataStore
from fluss.server.listener_parsing import parse_users

CLUSTER_LAKE_PREFIX: Final = "datalake."
CLUSTER_LAKE_FORMAT_KEY: Final = "datalake.format"
CLUSTER_LAKE_ENABLED_KEY: Final = "datalake.enabled"
_LAKE_FORMAT: Final = Option(
    CLUSTER_LAKE_FORMAT_KEY,
    choice_of(LakeFormat),
    "",
    "The format of the cluster's lake.",
    error_code=ErrorCode.INVALID_CONFIG_EXCEPTION,
)
_LAKE_ENABLED: Final = Option(
    CLUSTER_LAKE_ENABLED_KEY,
    BOOLEAN,
    "true",
    "Whether tables can be tiered to it.",
    error_code=ErrorCode.INVALID_CONFIG_EXCEPTION,
)
CREDENTIALS_KEY: Final = "security.sasl.plain.credentials"
DISK_WRITE_LIMIT_KEY: Final = "server.data-disk.write-limit-ratio"
DISK_WRITE_RECOVER_KEY: Final = "server.data-disk.write-recover-ratio"
# A list of ten thousand users; appending must not go on for ever.
_TEXT_CHARS_MAX: Final = 1024 * 1024

# Told the new text of a key, None if it has none any more. Called on the event loop after the change was stored.
OnChange: TypeAlias = Callable[[str | None], None]
# Asked before anything changes; raises FlussError to refuse the new text of a key.
CheckChange: TypeAlias = Callable[[str | None], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """The lake of the cluster. With a format but not enabled, the format is recorded on new tables and that is all."""

    lake_format: LakeFormat | None = None
    is_enabled: bool = False
    # What lake tables show: without secrets, under the names of table properties.
    table_properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> LakeConfig:
        """Read the keys ``datalake.*`` of the cluster's configuration."""
        format_text = configs.get(CLUSTER_LAKE_FORMAT_KEY)
        if format_text is None:
            return cls()
        lake_format = _LAKE_FORMAT.parse(format_text)
        is_enabled = _LAKE_ENABLED.parse(configs.get(CLUSTER_LAKE_ENABLED_KEY, "true"))
        prefix = f"{CLUSTER_LAKE_PREFIX}{lake_format}."
        shown = {
            LAKE_PREFIX + key.removeprefix(CLUSTER_LAKE_PREFIX): without_passwords(value)
            for key, value in configs.items()
            if key.startswith(prefix) and not is_secret_key(key)
        }
        return cls(lake_format, is_enabled, shown)


class _Shape(Enum):
    SINGLE = auto()
    LIST = auto()  # Values separated by commas.
    MAP = auto()  # key:value, separated by commas.
    EQUALS_MAP = auto()  # key=value, separated by commas: keys may hold colons.


@dataclass(frozen=True, slots=True)
class _DynamicOption:
    value_type: ValueType[Any]
    shape: _Shape = _Shape.SINGLE


def _read_map(text: str, separator: str = ":") -> dict[str, str]:
    pairs = (item.partition(separator) for item in _items(text))
    return {key.strip(): value for key, _, value in pairs}


def _name_of(item: str) -> str:
    return item.partition(":")[0].strip()


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _read_not_negative(text: str) -> int:
    value = INT32.read(text)
    if value < 0:
        raise ValueError(text)
    return value


_NOT_NEGATIVE: Final = ValueType("an integer that is not negative", _read_not_negative)
_CREDENTIALS: Final = ValueType("user:password, several separated by commas", parse_users)
_OPTIONS: Final[dict[str, _DynamicOption]] = {
    CLUSTER_LAKE_FORMAT_KEY: _DynamicOption(choice_of(LakeFormat)),
    CLUSTER_LAKE_ENABLED_KEY: _DynamicOption(BOOLEAN),
    "kv.snapshot.interval": _DynamicOption(DURATION_MS),
    "kv.leader-replica.memory-reserved": _DynamicOption(MEMORY_BYTES),
    "log.replica.min-in-sync-replicas-number": _DynamicOption(INT32),
    "log.retention.roll-active-segment.enabled": _DynamicOption(BOOLEAN),
    DISK_WRITE_LIMIT_KEY: _DynamicOption(RATIO),
    DISK_WRITE_RECOVER_KEY: _DynamicOption(RATIO),
    "remote.data.dirs": _DynamicOption(TEXT, _Shape.LIST),
    "remote.data.dirs.weights": _DynamicOption(TEXT, _Shape.LIST),
    "remote.data.dirs.strategy": _DynamicOption(TEXT),
    CREDENTIALS_KEY: _DynamicOption(_CREDENTIALS, _Shape.MAP),
    "quota.produce.bytes-per-second": _DynamicOption(MEMORY_BYTES),
    "quota.produce.bytes-per-second.overrides": _DynamicOption(quotas_of(MEMORY_BYTES), _Shape.EQUALS_MAP),
    "quota.fetch.bytes-per-second": _DynamicOption(MEMORY_BYTES),
    "quota.fetch.bytes-per-second.overrides": _DynamicOption(quotas_of(MEMORY_BYTES), _Shape.EQUALS_MAP),
    "quota.requests-per-second": _DynamicOption(_NOT_NEGATIVE),
    "quota.requests-per-second.overrides": _DynamicOption(quotas_of(INT32), _Shape.EQUALS_MAP),
}


def _option(key: str) -> _DynamicOption:
    option = _OPTIONS.get(key)
    if option is not None:
        return option
    if key.startswith(CLUSTER_LAKE_PREFIX) and key != CLUSTER_LAKE_PREFIX:
        return _DynamicOption(TEXT)
    raise _invalid(
        f"'{key}' cannot be changed while the cluster runs{suggestion(key, _OPTIONS)}; an option of the server is set "
        "when it is started"
    )


class DynamicConfigs:
    """The configuration of the cluster. It belongs to one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        initial: Mapping[str, str],
        dynamic: Mapping[str, str],
        *,
        is_super_user: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._store = store
        self._is_super_user = is_super_user
        self._initial = dict(initial)
        self._dynamic = dict(dynamic)
        self._watchers: list[tuple[str, OnChange, CheckChange | None]] = []
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        store: MetadataStore,
        initial: Mapping[str, str],
        *,
        is_super_user: Callable[[str], bool] = lambda name: False,
    ) -> DynamicConfigs:
        """Load what was set by request; ``initial`` is the configuration of the server itself (code 64)."""
        for key, text in initial.items():
            if key in _OPTIONS:
                _check_value(key, _OPTIONS[key], text)
        return cls(store, initial, await store.load_configs(), is_super_user=is_super_user)

    def values(self) -> dict[str, str]:
        """Return every key with the value that counts, as text."""
        return {**self._initial, **self._dynamic}

    def value(self, key: str) -> str | None:
        """Return the value of a key that counts, as text; None if it is set nowhere."""
        return self._dynamic.get(key, self._initial.get(key))

    def lake(self) -> LakeConfig:
        """Return the lake that the cluster has now."""
        return LakeConfig.of(self.values())

    def on_change(self, key: str, callback: OnChange, *, check: CheckChange | None = None) -> Callable[[], None]:
        """Be told when the text of a key changes, and be asked before if there is a ``check``.

        Returns a function that ends it.
        """
        watcher = (key, callback, check)
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def describe(self) -> list[ClusterConfigEntry]:
        """Return all keys in alphabetical order, fit for showing."""
        return [
            ClusterConfigEntry._create(key, _shown(key, text), key in self._dynamic)
            for key, text in sorted(self.values().items())
        ]

    async def alter(self, changes: Iterable[ConfigChange]) -> None:
        """Apply changes, all or none. What cannot be changed, or not to this value, is refused with code 64."""
        async with self._lock:
            dynamic = dict(self._dynamic)
            for change in changes:
                self._apply(change, dynamic)
            before, after = self.values(), {**self._initial, **dynamic}
            _check_together(after)
            changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
            self._check_with_watchers(changed, after)
            if dynamic == self._dynamic:
                return
            await self._store.replace_configs(dynamic)
            self._dynamic = dynamic
            logger.info("configuration of the cluster changed: %s", ", ".join(sorted(changed)) or "same values")
            self._tell_watchers(changed)

    def _apply(self, change: ConfigChange, dynamic: dict[str, str]) -> None:
        if change.op is ConfigOp.DELETE and dynamic.pop(change.key, None) is not None:
            # Also a key that an earlier version of the server took.
            return
        option = _option(change.key)
        if change.op is ConfigOp.DELETE:
            return
        text = change.value
        if change.key == CREDENTIALS_KEY:
            self._refuse_super_users(text)
        if change.op is not ConfigOp.SET:
            if option.shape is _Shape.SINGLE:
                raise _invalid(
                    f"'{change.key}' is a single value: it can be set and deleted, not {change.op.name.lower()}ed"
                )
            before = dynamic.get(change.key, self._initial.get(change.key, ""))
            if change.key == CREDENTIALS_KEY:
                # Those of super users stay where they are: in the configuration of the server.
                before = ",".join(item for item in _items(before) if not self._is_super_user(_name_of(item)))
            text = _combined(option.shape, change, before)
        if not text and option.shape is not _Shape.SINGLE:
            dynamic.pop(change.key, None)
            return
        _check_value(change.key, option, text)
        dynamic[change.key] = text

    def _refuse_super_users(self, credentials: str) -> None:
        """Refuse credentials that name a super user, without a look at the password: the answer tells nothing of it."""
        for item in _items(credentials):
            if self._is_super_user(_name_of(item)):
                raise _invalid(
                    f"'{_name_of(item)}' is a super user, whose password is that of the server's own configuration; "
                    "change it there, and restart the server"
                )

    def _check_with_watchers(self, changed: set[str], after: Mapping[str, str]) -> None:
        for key, _, check in self._watchers:
            if key in changed and check is not None:
                try:
                    check(after.get(key))
                except FlussError as error:
                    raise _invalid(error.message) from None

    def _tell_watchers(self, changed: set[str]) -> None:
        for key, callback, _ in tuple(self._watchers):
            if key in changed:
                try:
                    callback(self.value(key))
                except Exception:
                    # The change is stored; a part that cannot follow it must not keep others from it.
                    logger.exception("a change of '%s' could not be followed", key)


def _combined(shape: _Shape, change: ConfigChange, before: str) -> str:
    """Return a list or map with items added or taken out. A map item is taken out by its key."""
    if shape is _Shape.LIST:
        items, others = _items(before), _items(change.value)
        if change.op is ConfigOp.APPEND:
            return ",".join(dict.fromkeys((*items, *others)))
        removed = set(others)
        return ",".join(item for item in items if item not in removed)
    separator = "=" if shape is _Shape.EQUALS_MAP else ":"
    pairs, other_pairs = _read_map(before, separator), _read_map(change.value, separator)
    if change.op is ConfigOp.APPEND:
        pairs.update(other_pairs)
    else:
        pairs = {key: value for key, value in pairs.items() if key not in other_pairs}
    return ",".join(f"{key}{separator}{value}" for key, value in pairs.items())


def _check_value(key: str, option: _DynamicOption, text: str) -> None:
    if len(text) > _TEXT_CHARS_MAX:
        raise _invalid(f"The value of '{key}' would have {len(text)} characters, at most {_TEXT_CHARS_MAX} are allowed")
    try:
        option.value_type.read(text)
    except (ValueError, FlussError):
        raise _invalid(
            f"'{_shown(key, text)}' is no value for '{key}': expected {option.value_type.expected}"
        ) from None


def _check_together(values: Mapping[str, str]) -> None:
    if BOOLEAN.read(values.get(CLUSTER_LAKE_ENABLED_KEY, "false")) and CLUSTER_LAKE_FORMAT_KEY not in values:
        raise _invalid(f"'{CLUSTER_LAKE_ENABLED_KEY}' needs '{CLUSTER_LAKE_FORMAT_KEY}' to be set, too")
    limit, recover = values.get(DISK_WRITE_LIMIT_KEY), values.get(DISK_WRITE_RECOVER_KEY)
    if limit is not None and recover is not None and RATIO.read(recover) >= RATIO.read(limit):
        raise _invalid(f"'{DISK_WRITE_RECOVER_KEY}' must be below '{DISK_WRITE_LIMIT_KEY}'")


def _shown(key: str, text: str) -> str:
    if key == CREDENTIALS_KEY and all(":" in item for item in _items(text)):
        return ",".join(f"{user}:{HIDDEN}" for user in _read_map(text))
    return HIDDEN if is_secret_key(key) else without_passwords(text)


def _invalid(text: str) -> FlussError:
    return FlussError(text, ErrorCode.CONFIG_EXCEPTION)
