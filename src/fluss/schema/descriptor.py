"""What a user asks for when creating a database or a table, and what a server stores about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluss.errors import FlussError
from fluss.integers import int32
from fluss.schema.schema import Schema, shown_names
from fluss.schema.table_options import KV_FORMAT, LOG_FORMAT, KvFormat, LogFormat
from fluss.schema.value_objects import FrozenDict, ServerMade, string_dict, string_list


class TableDescriptor:
    """Schema, partition keys, distribution over buckets, and properties. Never changes once made.

    Without ``bucket_count`` the server decides. A primary-key table without ``bucket_keys`` is distributed by its
    primary key minus the partition keys.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        partition_keys: Sequence[str] | None = None,
        bucket_count: int | None = None,
        bucket_keys: Sequence[str] | None = None,
        comment: str | None = None,
        log_format: str | None = None,
        kv_format: str | None = None,
        properties: Mapping[str, str] | None = None,
        custom_properties: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(schema, Schema):
            raise TypeError(f"schema must be a fluss.Schema, got {type(schema).__name__}")
        if comment is not None and not isinstance(comment, str):
            raise TypeError(f"comment must be str, got {type(comment).__name__}")
        self._schema = schema
        self._comment = comment
        self._partition_keys = tuple(string_list("partition_keys", partition_keys))
        self._bucket_count = None if bucket_count is None else int32("bucket_count", bucket_count)
        self._bucket_keys = tuple(string_list("bucket_keys", bucket_keys)) or self._default_bucket_keys()
        self._custom_properties = string_dict("custom_properties", custom_properties)
        self._properties = _with_formats(string_dict("properties", properties), log_format, kv_format)
        self._check_partition_keys()
        self._check_distribution()

    def _default_bucket_keys(self) -> tuple[str, ...]:
        return tuple(key for key in self._schema.get_primary_keys() if key not in self._partition_keys)

    def _check_partition_keys(self) -> None:
        self._check_columns("Partition key", self._partition_keys)
        primary_key = self._schema.get_primary_keys()
        if not primary_key:
            return
        for key in self._partition_keys:
            if key not in primary_key:
                raise FlussError(f"Partition key '{key}' must be part of the primary key {shown_names(primary_key)}")
        if not self._default_bucket_keys():
            raise FlussError(
                f"Primary key {shown_names(primary_key)} should not be same with partition fields; "
                "add a key column that is not a partition key"
            )

    def _check_distribution(self) -> None:
        if self._bucket_count is not None and self._bucket_count <= 0:
            raise FlussError(f"bucket_count must be positive, got {self._bucket_count}")
        self._check_columns("Bucket key", self._bucket_keys)
        primary_key = self._schema.get_primary_keys()
        for key in self._bucket_keys:
            if key in self._partition_keys:
                raise FlussError(f"Bucket key '{key}' must not be a partition key")
            if primary_key and key not in primary_key:
                raise FlussError(
                    f"Bucket keys must be a subset of primary keys {shown_names(primary_key)}, but '{key}' is not"
                )

    def _check_columns(self, what: str, names: tuple[str, ...]) -> None:
        columns = self._schema.column_names
        for name in names:
            if name not in columns:
                raise FlussError(f"{what} '{name}' not found in schema; columns are {shown_names(columns)}")
        if len(set(names)) != len(names):
            raise FlussError(f"{what} columns must be given once each, got {shown_names(names)}")

    @staticmethod
    def builder() -> TableDescriptorBuilder:
        """Begin a descriptor that is put together step by step."""
        return TableDescriptorBuilder()

    @property
    def schema(self) -> Schema:
        """The columns and the primary key."""
        return self._schema

    @property
    def partition_keys(self) -> list[str]:
        """The columns whose values make up a partition."""
        return list(self._partition_keys)

    @property
    def bucket_keys(self) -> list[str]:
        """The columns that decide about the bucket of a row."""
        return list(self._bucket_keys)

    @property
    def bucket_count(self) -> int | None:
        """The number of buckets; None leaves it to the server."""
        return self._bucket_count

    @property
    def properties(self) -> dict[str, str]:
        """The table options."""
        return dict(self._properties)

    @property
    def custom_properties(self) -> dict[str, str]:
        """Properties that mean something to users only."""
        return dict(self._custom_properties)

    @property
    def comment(self) -> str | None:
        """What the table is about."""
        return self._comment

    @property
    def log_format(self) -> LogFormat:
        """The format of the log, stated or by default."""
        return LogFormat.parse(self._properties.get(LOG_FORMAT.key, LogFormat.ARROW))

    @property
    def kv_format(self) -> KvFormat:
        """The format of the key-value store, stated or by default."""
        return KvFormat.parse(self._properties.get(KV_FORMAT.key, KvFormat.COMPACTED))

    @property
    def physical_primary_keys(self) -> list[str]:
        """The primary key without the partition keys: what tells rows of one partition apart."""
        return list(self._default_bucket_keys())

    def get_schema(self) -> Schema:
        """Return the columns and the primary key."""
        return self._schema

    def has_primary_key(self) -> bool:
        """Whether rows have a key; if not, it is a log table."""
        return self._schema.primary_key is not None

    def is_partitioned(self) -> bool:
        """Whether the table consists of partitions."""
        return bool(self._partition_keys)

    def has_distribution(self) -> bool:
        """Whether anything is said about buckets; if not, the server's defaults hold."""
        return bool(self._bucket_keys) or self._bucket_count is not None

    def _key(self) -> tuple[Any, ...]:
        return (
            self._schema,
            self._partition_keys,
            self._bucket_count,
            self._bucket_keys,
            self._comment,
            self._properties,
            self._custom_properties,
        )

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, TableDescriptor) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return (
            f"TableDescriptor(schema={self._schema!r}, partition_keys={self.partition_keys!r}, "
            f"bucket_count={self._bucket_count!r}, bucket_keys={self.bucket_keys!r}, comment={self._comment!r}, "
            f"properties={self.properties!r}, custom_properties={self.custom_properties!r})"
        )


def _with_formats(
    properties: FrozenDict[str, str], log_format: str | None, kv_format: str | None
) -> FrozenDict[str, str]:
    formats: dict[str, str] = {}
    if log_format is not None:
        formats[LOG_FORMAT.key] = LogFormat.parse(log_format).value
    if kv_format is not None:
        formats[KV_FORMAT.key] = KvFormat.parse(kv_format).value
    for key, value in formats.items():
        if properties.get(key, value).upper() != value:
            raise FlussError(f"'{key}' is given twice: as {properties[key]!r} in the properties, and as {value!r}")
    return FrozenDict({**properties, **formats})


class TableDescriptorBuilder:
    """Collects what a ``TableDescriptor`` is made of; ``build`` checks it."""

    def __init__(self) -> None:
        self._schema: Schema | None = None
        self._comment: str | None = None
        self._partition_keys: list[str] = []
        self._bucket_count: int | None = None
        self._bucket_keys: list[str] = []
        self._log_format: str | None = None
        self._kv_format: str | None = None
        self._properties: dict[str, str] = {}
        self._custom_properties: dict[str, str] = {}

    def schema(self, schema: Schema) -> TableDescriptorBuilder:
        """Set the columns and the primary key."""
        self._schema = schema
        return self

    def log_format(self, log_format: str) -> TableDescriptorBuilder:
        """Set the format of the log: ARROW, INDEXED or COMPACTED."""
        self._log_format = log_format
        return self

    def kv_format(self, kv_format: str) -> TableDescriptorBuilder:
        """Set the format of the rows of a primary-key table: COMPACTED or INDEXED."""
        self._kv_format = kv_format
        return self

    def property(self, key: str, value: str) -> TableDescriptorBuilder:
        """Set one table option."""
        self._properties[key] = value
        return self

    def properties(self, properties: Mapping[str, str]) -> TableDescriptorBuilder:
        """Set several table options."""
        self._properties.update(properties)
        return self

    def custom_property(self, key: str, value: str) -> TableDescriptorBuilder:
        """Set one property of the user's own."""
        self._custom_properties[key] = value
        return self

    def custom_properties(self, properties: Mapping[str, str]) -> TableDescriptorBuilder:
        """Set several properties of the user's own."""
        self._custom_properties.update(properties)
        return self

    def partitioned_by(self, keys: Sequence[str]) -> TableDescriptorBuilder:
        """Set the columns whose values make up a partition."""
        self._partition_keys = string_list("keys", keys)
        return self

    def distributed_by(
        self, bucket_count: int | None, bucket_keys: Sequence[str] | None = None
    ) -> TableDescriptorBuilder:
        """Set the number of buckets and the columns that decide about the bucket of a row."""
        self._bucket_count = bucket_count
        self._bucket_keys = string_list("bucket_keys", bucket_keys)
        return self

    def comment(self, comment: str) -> TableDescriptorBuilder:
        """Say what the table is about."""
        self._comment = comment
        return self

    def build(self) -> TableDescriptor:
        """Return the descriptor; one that cannot be is a FlussError."""
        if self._schema is None:
            raise FlussError("A table needs a schema: call schema() before build()")
        return TableDescriptor(
            self._schema,
            partition_keys=self._partition_keys,
            bucket_count=self._bucket_count,
            bucket_keys=self._bucket_keys,
            comment=self._comment,
            log_format=self._log_format,
            kv_format=self._kv_format,
            properties=self._properties,
            custom_properties=self._custom_properties,
        )


@dataclass(frozen=True, slots=True, init=False, repr=False)
class DatabaseDescriptor:
    """Comment and properties of a database. No comment and an empty one are different things."""

    comment: str | None
    _custom_properties: FrozenDict[str, str]

    def __init__(self, comment: str | None = None, custom_properties: Mapping[str, str] | None = None) -> None:
        if comment is not None and not isinstance(comment, str):
            raise TypeError(f"comment must be str, got {type(comment).__name__}")
        object.__setattr__(self, "comment", comment)
        object.__setattr__(self, "_custom_properties", string_dict("custom_properties", custom_properties))

    @staticmethod
    def builder() -> DatabaseDescriptorBuilder:
        """Begin a descriptor that is put together step by step."""
        return DatabaseDescriptorBuilder()

    @property
    def custom_properties(self) -> dict[str, str]:
        """Properties that mean something to users only."""
        return dict(self._custom_properties)

    def get_custom_properties(self) -> dict[str, str]:
        """Return the properties that mean something to users only."""
        return self.custom_properties

    def __repr__(self) -> str:
        return f"DatabaseDescriptor(comment={self.comment!r}, custom_properties={self.custom_properties!r})"


class DatabaseDescriptorBuilder:
    """Collects what a ``DatabaseDescriptor`` is made of."""

    def __init__(self) -> None:
        self._comment: str | None = None
        self._custom_properties: dict[str, str] = {}

    def comment(self, comment: str) -> DatabaseDescriptorBuilder:
        """Say what the database is about."""
        self._comment = comment
        return self

    def custom_property(self, key: str, value: str) -> DatabaseDescriptorBuilder:
        """Set one property of the user's own."""
        self._custom_properties[key] = value
        return self

    def custom_properties(self, properties: Mapping[str, str]) -> DatabaseDescriptorBuilder:
        """Set several properties of the user's own."""
        self._custom_properties.update(properties)
        return self

    def build(self) -> DatabaseDescriptor:
        """Return the descriptor."""
        return DatabaseDescriptor(self._comment, self._custom_properties)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class DatabaseInfo(ServerMade):
    """A database as a server knows it. Times are epoch milliseconds."""

    database_name: str
    created_time: int
    modified_time: int
    _descriptor: DatabaseDescriptor

    @classmethod
    def _create(
        cls, database_name: str, descriptor: DatabaseDescriptor, created_time: int, modified_time: int
    ) -> DatabaseInfo:
        return cls._with_fields(
            database_name=database_name,
            created_time=created_time,
            modified_time=modified_time,
            _descriptor=descriptor,
        )

    @property
    def database_descriptor(self) -> DatabaseDescriptor:
        """Comment and properties."""
        return self._descriptor

    def get_database_descriptor(self) -> DatabaseDescriptor:
        """Return comment and properties."""
        return self._descriptor

    def __repr__(self) -> str:
        return (
            f"DatabaseInfo(database_name={self.database_name!r}, created_time={self.created_time}, "
            f"modified_time={self.modified_time})"
        )


@dataclass(frozen=True, slots=True, init=False)
class DatabaseSummary(ServerMade):
    """A line in a list of databases. The time is epoch milliseconds."""

    database_name: str
    created_time: int
    table_count: int

    @classmethod
    def _create(cls, database_name: str, created_time: int, table_count: int) -> DatabaseSummary:
        return cls._with_fields(database_name=database_name, created_time=created_time, table_count=table_count)
