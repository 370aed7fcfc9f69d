"""The properties of tables: every ``table.*`` key with its type, its default and whether it can be changed later.

The constants below are the table of options. ``LOG_TTL.of(descriptor.properties)`` reads one; a property that is not
set has the default. Which values may stand together is another matter: the server validates tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from fluss.errors import ErrorCode, FlussError
from fluss.options import (
    BOOLEAN,
    DURATION_MS,
    INT32,
    INT64,
    TEXT,
    TIME_ZONE,
    Option,
    ValueType,
    choice_of,
    suggestion,
)

T = TypeVar("T")

TABLE_PREFIX: Final = "table."
LAKE_PREFIX: Final = "table.datalake."
AUTO_PARTITION_PREFIX: Final = "table.auto-partition."
ZSTD_LEVEL_MIN, ZSTD_LEVEL_MAX = 1, 22


class _Format(StrEnum):
    @classmethod
    def _described(cls, what: str, text: str) -> Self:
        if not isinstance(text, str):
            raise TypeError(f"the {what} must be str, got {type(text).__name__}")
        try:
            return cls(text.upper())
        except ValueError:
            raise FlussError(f"Unknown {what}: {text!r}; known are {', '.join(cls)}") from None


class LogFormat(_Format):
    """The encoding of rows in log batches; readers take ARROW when a table does not say."""

    ARROW = "ARROW"
    INDEXED = "INDEXED"
    COMPACTED = "COMPACTED"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the format of a name in any case."""
        return cls._described("log format", text)


class KvFormat(_Format):
    """The encoding of rows in the key-value store; readers take COMPACTED when a table does not say."""

    COMPACTED = "COMPACTED"
    INDEXED = "INDEXED"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the format of a name in any case."""
        return cls._described("kv format", text)


class CompressionType(StrEnum):
    """How the Arrow bodies of batches are compressed."""

    NONE = "NONE"
    LZ4_FRAME = "LZ4_FRAME"
    ZSTD = "ZSTD"


class TimeUnit(StrEnum):
    """How much time one auto-created partition spans."""

    YEAR = "YEAR"
    QUARTER = "QUARTER"
    MONTH = "MONTH"
    DAY = "DAY"
    HOUR = "HOUR"


class MergeEngine(StrEnum):
    """What a primary-key table does with a second row of one key."""

    FIRST_ROW = "first_row"
    VERSIONED = "versioned"
    AGGREGATION = "aggregation"


class DeleteBehavior(StrEnum):
    """What a primary-key table does with a delete."""

    ALLOW = "allow"
    IGNORE = "ignore"
    DISABLE = "disable"


class ChangelogImage(StrEnum):
    """Whether the changelog has the old rows, too."""

    FULL = "FULL"
    WAL = "WAL"


class LakeFormat(StrEnum):
    """The formats of lake tables; a table's format also decides how its keys are encoded."""

    PAIMON = "paimon"
    ICEBERG = "iceberg"
    LANCE = "lance"
    HUDI = "hudi"


class Alterable(Enum):
    """Whether a property of an existing table can be set and reset."""

    NEVER = auto()
    ALWAYS = auto()
    PRIMARY_KEY_TABLES = auto()


class TableOption(Option[T]):
    """A property of tables, and whether it can be changed later."""

    def __init__(
        self,
        key: str,
        value_type: ValueType[T],
        default: T | str,
        doc: str,
        *,
        alterable: Alterable = Alterable.NEVER,
    ) -> None:
        super().__init__(key, value_type, default, doc, error_code=ErrorCode.INVALID_CONFIG_EXCEPTION)
        self.alterable = alterable
        assert key not in _registry, f"{key} is defined twice"
        _registry[key] = self

    def of(self, properties: Mapping[str, str]) -> T:
        """Return the value a table has; an unreadable text is a FlussError with code 39."""
        text = properties.get(self.key)
        return self.default if text is None else self.parse(text)


_registry: dict[str, TableOption[Any]] = {}
# Every option by its key.
TABLE_OPTIONS: Final[Mapping[str, TableOption[Any]]] = MappingProxyType(_registry)


def _optional(value_type: ValueType[T]) -> ValueType[T | None]:
    """Return the type of a property without a default: not set is None."""
    return ValueType(value_type.expected, value_type.read, value_type.unit)


REPLICATION_FACTOR = TableOption(
    "table.replication.factor",
    _optional(INT32),
    None,
    "Replicas of each bucket. The server writes its default into every table that does not say.",
)
LOG_FORMAT = TableOption(
    "table.log.format", choice_of(LogFormat), LogFormat.ARROW, "The encoding of rows in the log or the changelog."
)
LOG_ARROW_COMPRESSION_TYPE = TableOption(
    "table.log.arrow.compression.type",
    choice_of(CompressionType),
    CompressionType.ZSTD,
    "How Arrow bodies are compressed, by writers and by the server for changelogs.",
)
LOG_ARROW_COMPRESSION_ZSTD_LEVEL = TableOption(
    "table.log.arrow.compression.zstd.level", INT32, 3, "The effort of ZSTD, 1 to 22."
)
KV_FORMAT = TableOption("table.kv.format", choice_of(KvFormat), KvFormat.COMPACTED, "The encoding of stored rows.")
KV_FORMAT_VERSION = TableOption(
    "table.kv.format-version",
    INT32,
    1,
    "The generation of key encodings; new primary-key tables get 2. It matters only together with a lake format.",
)
KV_STANDBY_REPLICA_ENABLED = TableOption(
    "table.kv.standby-replica.enabled",
    BOOLEAN,
    False,
    "Whether one follower is kept ready to take over; new primary-key tables get true.",
    alterable=Alterable.PRIMARY_KEY_TABLES,
)
AUTO_PARTITION_ENABLED = TableOption(
    "table.auto-partition.enabled",
    BOOLEAN,
    False,
    "Whether the server creates and drops partitions by the clock.",
    alterable=Alterable.ALWAYS,
)
AUTO_PARTITION_KEY = TableOption(
    "table.auto-partition.key",
    _optional(TEXT),
    None,
    "Which partition key holds the time; needed when there are several.",
)
AUTO_PARTITION_TIME_UNIT = TableOption(
    "table.auto-partition.time-unit", choice_of(TimeUnit), TimeUnit.DAY, "How much time one partition spans."
)
AUTO_PARTITION_TIME_FORMAT = TableOption(
    "table.auto-partition.time-format",
    _optional(TEXT),
    None,
    "How the time is written, such as yyyy-MM-dd; each unit has a default.",
)
AUTO_PARTITION_TIME_ZONE = TableOption(
    "table.auto-partition.time-zone",
    _optional(TIME_ZONE),
    None,
    "Whose clock decides; the server's own zone if not set.",
)
AUTO_PARTITION_NUM_PRECREATE = TableOption(
    "table.auto-partition.num-precreate",
    INT32,
    2,
    "How many partitions are kept ready, the current one included.",
    alterable=Alterable.ALWAYS,
)
AUTO_PARTITION_NUM_RETENTION = TableOption(
    "table.auto-partition.num-retention",
    INT32,
    7,
    "How many past partitions are kept; a negative number keeps all.",
    alterable=Alterable.ALWAYS,
)
LOG_TTL = TableOption(
    "table.log.ttl",
    DURATION_MS,
    "7 d",
    "How long records are kept; 0 ms keeps them for ever. Changes of a primary-key table go only if it is set.",
    alterable=Alterable.ALWAYS,
)
LOG_LOCAL_TTL = TableOption(
    "table.log.local-ttl",
    _optional(DURATION_MS),
    None,
    "How long records that were copied to remote storage are kept on the server's own disk, too; as long as "
    "table.log.ttl says if not set.",
    alterable=Alterable.ALWAYS,
)
LOG_TIERED_LOCAL_SEGMENTS = TableOption(
    "table.log.tiered.local-segments",
    INT32,
    2,
    "How many segments stay on the server's own disk after they were copied to remote storage.",
    alterable=Alterable.ALWAYS,
)
LAKE_ENABLED = TableOption(
    "table.datalake.enabled", BOOLEAN, False, "Whether the table is tiered to a lake.", alterable=Alterable.ALWAYS
)
LAKE_FORMAT = TableOption(
    "table.datalake.format",
    _optional(choice_of(LakeFormat)),
    None,
    "The format of the lake table; it also decides how keys are encoded.",
)
LAKE_FRESHNESS = TableOption(
    "table.datalake.freshness",
    DURATION_MS,
    "3 min",
    "How old the lake's copy may become.",
    alterable=Alterable.ALWAYS,
)
LAKE_AUTO_COMPACTION = TableOption(
    "table.datalake.auto-compaction",
    BOOLEAN,
    False,
    "Whether the tiering service compacts the lake table.",
    alterable=Alterable.ALWAYS,
)
LAKE_AUTO_EXPIRE_SNAPSHOT = TableOption(
    "table.datalake.auto-expire-snapshot", BOOLEAN, False, "Whether the tiering service expires lake snapshots."
)
LAKE_HISTORICAL_PARTITION_ENABLED = TableOption(
    "table.datalake.historical-partition.enabled",
    BOOLEAN,
    False,
    "Whether lookups of expired partitions are answered from the lake.",
    alterable=Alterable.ALWAYS,
)
MERGE_ENGINE = TableOption(
    "table.merge-engine",
    _optional(choice_of(MergeEngine)),
    None,
    "What happens to a second row of one key; the last one wins if not set.",
)
MERGE_ENGINE_VERSION_COLUMN = TableOption(
    "table.merge-engine.versioned.ver-column",
    _optional(TEXT),
    None,
    "The column that tells which of two rows is newer, for the versioned merge engine.",
)
DELETE_BEHAVIOR = TableOption(
    "table.delete.behavior",
    choice_of(DeleteBehavior),
    DeleteBehavior.ALLOW,
    "What happens to deletes; tables with a merge engine get ignore.",
)
AUTO_INCREMENT_CACHE_SIZE = TableOption(
    "table.auto-increment.cache-size", INT64, 100_000, "How many ids a bucket reserves at a time."
)
CHANGELOG_IMAGE = TableOption(
    "table.changelog.image",
    choice_of(ChangelogImage),
    ChangelogImage.FULL,
    "Whether the changelog has rows before an update, too.",
)
STATISTICS_COLUMNS = TableOption(
    "table.statistics.columns",
    _optional(TEXT),
    None,
    "For which columns writers add bounds to their batches: * or names separated by commas.",
    alterable=Alterable.ALWAYS,
)


def unknown_option_text(key: str) -> str:
    """Say that there is no such table property, and which one might have been meant."""
    if not key.startswith(TABLE_PREFIX):
        return (
            f"'{key}' is not a table property; those start with '{TABLE_PREFIX}'. Put it into the custom properties"
            f"{suggestion(key, TABLE_OPTIONS)}"
        )
    return f"'{key}' is not a known table property{suggestion(key, TABLE_OPTIONS)}"


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse keys that are no table properties, then texts that are no values of them (code 39)."""
    for key in properties:
        if key not in TABLE_OPTIONS:
            raise FlussError(unknown_option_text(key), ErrorCode.INVALID_CONFIG_EXCEPTION)
    for key, text in properties.items():
        TABLE_OPTIONS[key].parse(text)
