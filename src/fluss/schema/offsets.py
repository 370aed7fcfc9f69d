"""Changes in the log of a bucket: their kinds, and how to name positions among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from fluss.errors import FlussError
from fluss.integers import int64
from fluss.schema.table import TableBucket
from fluss.schema.value_objects import FrozenDict, ServerMade

# Start at the oldest record the server still has. Servers understand this number.
EARLIEST_OFFSET: Final = -2
# Start after the newest record. The client looks the real offset up before it asks for records.
LATEST_OFFSET: Final = -1


class ChangeType(IntEnum):
    """The kind of a change; the number is the byte in log batches."""

    AppendOnly = 0
    Insert = 1
    UpdateBefore = 2
    UpdateAfter = 3
    Delete = 4

    def short_string(self) -> str:
        """Return the sign of the change, such as ``+I``."""
        return _SHORT_STRINGS[self]

    def __str__(self) -> str:
        return self.short_string()

    def __format__(self, format_spec: str) -> str:
        return format(self.short_string(), format_spec)

    def __repr__(self) -> str:
        return f"ChangeType.{self.name}"


_SHORT_STRINGS: Final = ("+A", "+I", "-U", "+U", "-D")


class OffsetType(StrEnum):
    """The ways to name an offset, as text."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class OffsetSpec(ServerMade):
    """Which offset of a bucket is asked for. Made by ``earliest()``, ``latest()`` and ``timestamp(ms)``."""

    offset_type: OffsetType
    timestamp_ms: int | None

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """The offset of the oldest record."""
        return cls._with_fields(offset_type=OffsetType.EARLIEST, timestamp_ms=None)

    @classmethod
    def latest(cls) -> OffsetSpec:
        """The offset that the next record will get."""
        return cls._with_fields(offset_type=OffsetType.LATEST, timestamp_ms=None)

    @classmethod
    def timestamp(cls, ts: int) -> OffsetSpec:
        """The offset of the first record at or after a time in epoch milliseconds."""
        return cls._with_fields(offset_type=OffsetType.TIMESTAMP, timestamp_ms=int64("ts", ts))

    @classmethod
    def of(cls, offset: OffsetSpec | str, timestamp_ms: int | None = None) -> OffsetSpec:
        """Take an ``OffsetSpec``, or one of the names of ``OffsetType`` in any case."""
        if isinstance(offset, OffsetSpec):
            return offset
        if not isinstance(offset, str):
            raise TypeError(f"the offset must be an OffsetSpec or str, got {type(offset).__name__}")
        match offset.lower():
            case OffsetType.EARLIEST:
                return cls.earliest()
            case OffsetType.LATEST:
                return cls.latest()
            case OffsetType.TIMESTAMP:
                if timestamp_ms is None:
                    raise FlussError("timestamp must be provided with offset_type 'timestamp'")
                return cls.timestamp(timestamp_ms)
        raise FlussError(f"Invalid offset_type: {offset!r}; known are {', '.join(OffsetType)}")

    def __repr__(self) -> str:
        argument = "" if self.timestamp_ms is None else self.timestamp_ms
        return f"OffsetSpec.{self.offset_type}({argument})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class LakeSnapshot:
    """A snapshot of a table in the lake, and per bucket the offset up to which the lake has the records."""

    snapshot_id: int
    _offsets: FrozenDict[TableBucket, int]

    def __init__(self, snapshot_id: int) -> None:
        object.__setattr__(self, "snapshot_id", int64("snapshot_id", snapshot_id))
        object.__setattr__(self, "_offsets", FrozenDict())

    @classmethod
    def _create(cls, snapshot_id: int, offsets: Mapping[TableBucket, int]) -> LakeSnapshot:
        snapshot = cls(snapshot_id)
        object.__setattr__(snapshot, "_offsets", FrozenDict(offsets))
        return snapshot

    @property
    def table_buckets_offset(self) -> dict[TableBucket, int]:
        """The next offset per bucket; buckets the lake knows nothing of are missing."""
        return dict(self._offsets)

    def get_bucket_offset(self, bucket: TableBucket) -> int | None:
        """Return the offset up to which the lake has a bucket; None if it knows nothing of it."""
        return self._offsets.get(bucket)

    def get_table_buckets(self) -> list[TableBucket]:
        """Return the buckets that the lake knows."""
        return list(self._offsets)

    def __repr__(self) -> str:
        return f"LakeSnapshot(snapshot_id={self.snapshot_id}, buckets_count={len(self._offsets)})"


@dataclass(frozen=True, slots=True, init=False)
class ProducerOffsets(ServerMade):
    """Positions that a producer has registered. They are kept until a time in epoch milliseconds."""

    producer_id: str
    expiration_time: int
    _offsets: FrozenDict[TableBucket, int]

    @classmethod
    def _create(cls, producer_id: str, expiration_time: int, offsets: Mapping[TableBucket, int]) -> ProducerOffsets:
        return cls._with_fields(producer_id=producer_id, expiration_time=expiration_time, _offsets=FrozenDict(offsets))

    @property
    def offsets(self) -> dict[TableBucket, int]:
        """The offset of each bucket."""
        return dict(self._offsets)
