"""What a coordinator keeps besides tables and partitions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fluss.schema.database import DatabaseDescriptor
from fluss.server.model import Partition, Table


@dataclass(frozen=True, slots=True)
class Database:
    """A database as the catalog has it. A change makes a new value."""

    name: str
    descriptor: DatabaseDescriptor
    created_ms: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StoredCatalog:
    """Everything the catalog is made of when a server starts."""

    databases: Collection[Database]
    tables: Collection[Table]
    partitions: Collection[Partition]
    table_id_next: int
    partition_id_next: int


@dataclass(frozen=True, slots=True)
class BucketOffset:
    """How far a producer had written a bucket; None if it did not say."""

    table_id: int
    partition_id: int | None
    bucket_id: int
    offset_next: int | None


@dataclass(frozen=True, slots=True)
class ProducerOffsets:
    """The offsets that a producer registered, until they expire."""

    producer_id: str
    expires_ms: int
    offsets: tuple[BucketOffset, ...]
