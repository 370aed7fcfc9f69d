"""Tables, partitions and buckets by name and number, which names they may have, and what a server tells about them.

Names become directory names, so the alphabet is small: 1 to 200 characters from ``A-Z a-z 0-9 _ -``. The prefix ``__``
belongs to the system. Column names may be any text; a few are taken by views that add columns of their own.

A partition's name is its values in partition-key order, joined with ``$``: ``2024-01-15$EMEA``. Messages show the
qualified name, ``day=2024-01-15/region=EMEA``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fluss.amounts import format_count
from fluss.errors import ErrorCode, FlussError
from fluss.integers import int32, int64
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.table_options import KvFormat, LogFormat
from fluss.schema.value_objects import FrozenDict, ServerMade, string_dict

NAME_CHARS_MAX: Final = 200
RESERVED_PREFIX: Final = "__"
RESERVED_COLUMN_NAMES: Final = frozenset(
    {"__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp"}
)
_FOREIGN_CHAR = re.compile(r"[^A-Za-z0-9_-]")


def name_problem(name: str) -> str | None:
    """Say what is wrong with a name that will be part of a path, or return None. The prefix is not looked at."""
    if not name:
        return "it is empty"
    if len(name) > NAME_CHARS_MAX:
        return f"it has {len(name)} characters, at most {NAME_CHARS_MAX} are allowed"
    foreign = _FOREIGN_CHAR.search(name)
    if foreign is not None:
        return f"it contains {foreign[0]!r}; only ASCII letters, digits, '_' and '-' are allowed"
    return None


def matching_name(name: str, names: Iterable[str], *, is_case_sensitive: bool) -> str | None:
    """Return which of the names is meant: the same one, or one that differs in upper and lower case only.

    None if there is none. Several that differ so, and none that is the same, are a FlussError.
    """
    known = list(names)
    if name in known:
        return name
    similar = [] if is_case_sensitive else [each for each in known if each.lower() == name.lower()]
    if len(similar) > 1:
        shown = ", ".join(f"'{each}'" for each in similar)
        raise FlussError(f"'{name}' may be one of {shown}, which differ in upper and lower case only; write it exactly")
    return similar[0] if similar else None


def new_name_problem(name: str) -> str | None:
    """Say what is wrong with a name for something new, which must also stay out of the system's names."""
    if name.startswith(RESERVED_PREFIX):
        return f"the prefix '{RESERVED_PREFIX}' is reserved"
    return name_problem(name)


def check_database_name(name: str) -> None:
    """Refuse a name that no database can have (code 16)."""
    problem = new_name_problem(name)
    if problem is not None:
        raise FlussError(f"Database name {_shown(name)} is invalid: {problem}", ErrorCode.INVALID_DATABASE_EXCEPTION)


def check_table_name(name: str) -> None:
    """Refuse a name that no table can have (code 15)."""
    problem = new_name_problem(name)
    if problem is not None:
        raise FlussError(f"Table name {_shown(name)} is invalid: {problem}", ErrorCode.INVALID_TABLE_EXCEPTION)


def check_partition_value(value: str, *, creating: bool) -> None:
    """Refuse a text that no partition value can be (code 43); only the system may create reserved ones."""
    problem = new_name_problem(value) if creating else name_problem(value)
    if problem is not None:
        raise FlussError(
            f"Partition value {_shown(value)} is invalid: {problem}", ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
        )


def check_column_name(name: str) -> None:
    """Refuse a column name that the system uses itself (code 15)."""
    if name in RESERVED_COLUMN_NAMES:
        raise FlussError(f"Column name '{name}' is reserved; choose another one", ErrorCode.INVALID_TABLE_EXCEPTION)


def _shown(name: str) -> str:
    return repr(name if len(name) <= NAME_CHARS_MAX else name[:NAME_CHARS_MAX] + "...")


VALUE_SEPARATOR: Final = "$"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class TablePath:
    """A database and a table in it, by name: ``TablePath("sales", "orders")``.

    The keywords are ``database_name`` and ``table_name``, or ``database`` and ``table``. Whether such names can
    exist is checked by the server.
    """

    database_name: str
    table_name: str

    def __init__(
        self,
        database_name: str | None = None,
        table_name: str | None = None,
        *,
        database: str | None = None,
        table: str | None = None,
    ) -> None:
        object.__setattr__(self, "database_name", _one_name("database_name", database_name, database))
        object.__setattr__(self, "table_name", _one_name("table_name", table_name, table))

    @classmethod
    def of(cls, path: TablePath | str) -> TablePath:
        """Return a path that is given as such, or as a text, ``"database.table"``."""
        if isinstance(path, TablePath):
            return path
        if not isinstance(path, str):
            raise TypeError(f"table_path must be a TablePath or a text 'database.table', got {type(path).__name__}")
        database_name, dot, table_name = path.partition(".")
        if not (database_name and dot and table_name) or "." in table_name:
            raise FlussError(f"A table is named 'database.table', such as 'fluss.orders', got {path!r}")
        return cls(database_name, table_name)

    @property
    def database(self) -> str:
        """The name of the database."""
        return self.database_name

    @property
    def table(self) -> str:
        """The name of the table."""
        return self.table_name

    def table_path_str(self) -> str:
        """Return ``database.table``."""
        return f"{self.database_name}.{self.table_name}"

    def __str__(self) -> str:
        return self.table_path_str()

    def __repr__(self) -> str:
        return f"TablePath({self.database_name!r}, {self.table_name!r})"


def _one_name(what: str, first: str | None, second: str | None) -> str:
    if (first is None) == (second is None):
        raise TypeError(f"TablePath needs one {what}")
    name = second if first is None else first
    if not isinstance(name, str):
        raise TypeError(f"{what} must be str, got {type(name).__name__}")
    return name


@dataclass(frozen=True, slots=True, init=False, repr=False)
class TableBucket:
    """One bucket of a table, or of a partition of it: ``TableBucket(table_id=1, bucket=0)``."""

    table_id: int
    partition_id: int | None
    bucket_id: int

    def __init__(self, table_id: int, bucket: int | None = None, *, bucket_id: int | None = None) -> None:
        number = bucket_id if bucket is None else bucket
        if number is None or (bucket is not None and bucket_id is not None):
            raise TypeError("TableBucket needs one bucket")
        object.__setattr__(self, "table_id", int64("table_id", table_id))
        object.__setattr__(self, "partition_id", None)
        object.__setattr__(self, "bucket_id", int32("bucket", number))

    @classmethod
    def with_partition(cls, table_id: int, partition_id: int, bucket: int) -> TableBucket:
        """Return a bucket of a partition."""
        table_bucket = cls(table_id, bucket)
        object.__setattr__(table_bucket, "partition_id", int64("partition_id", partition_id))
        return table_bucket

    @classmethod
    def new_with_partition(cls, table_id: int, partition_id: int | None, bucket_id: int) -> TableBucket:
        """Return a bucket of a partition, or of a table without partitions when there is no partition id."""
        if partition_id is None:
            return cls(table_id, bucket_id)
        return cls.with_partition(table_id, partition_id, bucket_id)

    def __repr__(self) -> str:
        partition = "" if self.partition_id is None else f"partition_id={self.partition_id}, "
        return f"TableBucket(table_id={self.table_id}, {partition}bucket={self.bucket_id})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class PartitionSpec:
    """Partition columns and their values as text: ``PartitionSpec({"region": "US"})``. Order does not matter."""

    _values: FrozenDict[str, str]

    def __init__(self, spec_map: Mapping[str, str]) -> None:
        if spec_map is None:
            raise TypeError("a partition spec must be a dict of str to str, got NoneType")
        object.__setattr__(self, "_values", string_dict("the partition spec", spec_map))

    @classmethod
    def of(cls, spec: PartitionSpec | Mapping[str, str]) -> PartitionSpec:
        """Take a spec in either form in which users give it."""
        return spec if isinstance(spec, PartitionSpec) else cls(spec)

    @property
    def spec_map(self) -> dict[str, str]:
        """The values by column."""
        return dict(self._values)

    def get_spec_map(self) -> dict[str, str]:
        """Return the values by column."""
        return self.spec_map

    def is_contained_in(self, other: PartitionSpec) -> bool:
        """Whether every value given here is the same there; a partial spec filters partitions with it."""
        return self._values.items() <= other._values.items()

    def __repr__(self) -> str:
        return f"PartitionSpec({self.spec_map!r})"


def ordered_values(spec: PartitionSpec, partition_keys: Sequence[str]) -> list[str]:
    """Return the values in key order; a spec that has other keys than the table is refused (code 43)."""
    given = spec.spec_map
    if set(given) != set(partition_keys):
        raise FlussError(
            f"The partition spec has the keys {list(given)}, but the table is partitioned by {list(partition_keys)}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    return [given[key] for key in partition_keys]


def check_partition_spec(spec: PartitionSpec, partition_keys: Sequence[str], *, creating: bool) -> None:
    """Refuse a spec that names no possible partition of a table (code 43)."""
    for value in ordered_values(spec, partition_keys):
        check_partition_value(value, creating=creating)


def partition_name(spec: PartitionSpec, partition_keys: Sequence[str]) -> str:
    """Return the name of a partition, such as ``2024-01-15$EMEA``."""
    return VALUE_SEPARATOR.join(ordered_values(spec, partition_keys))


def qualified_partition_name(spec: PartitionSpec, partition_keys: Sequence[str]) -> str:
    """Return the name for messages, such as ``day=2024-01-15/region=EMEA``."""
    values = ordered_values(spec, partition_keys)
    return "/".join(f"{key}={value}" for key, value in zip(partition_keys, values, strict=True))


def spec_of_partition_name(name: str, partition_keys: Sequence[str]) -> PartitionSpec:
    """Take a partition name apart again (code 43 when it has not one value per key)."""
    values = name.split(VALUE_SEPARATOR)
    if len(values) != len(partition_keys):
        raise FlussError(
            f"The partition name {name!r} has {len(values)} values, "
            f"but the table is partitioned by {list(partition_keys)}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    return PartitionSpec(dict(zip(partition_keys, values, strict=True)))


@dataclass(frozen=True, slots=True, init=False, repr=False)
class TableInfo(ServerMade):
    """A table as a server knows it. Times are epoch milliseconds."""

    table_path: TablePath
    table_id: int
    schema_id: int
    created_time: int
    modified_time: int
    _descriptor: TableDescriptor

    @classmethod
    def _create(
        cls,
        table_path: TablePath,
        table_id: int,
        schema_id: int,
        descriptor: TableDescriptor,
        created_time: int,
        modified_time: int,
    ) -> TableInfo:
        assert descriptor.bucket_count is not None, "a server states the number of buckets of every table"
        return cls._with_fields(
            table_path=table_path,
            table_id=table_id,
            schema_id=schema_id,
            created_time=created_time,
            modified_time=modified_time,
            _descriptor=descriptor,
        )

    @property
    def num_buckets(self) -> int:
        """The number of buckets of the table, or of each of its partitions."""
        bucket_count = self._descriptor.bucket_count
        assert bucket_count is not None, "checked when the value was made"
        return bucket_count

    @property
    def comment(self) -> str | None:
        """What the table is about."""
        return self._descriptor.comment

    @property
    def schema(self) -> Schema:
        """The columns and the primary key."""
        return self._descriptor.schema

    @property
    def primary_keys(self) -> list[str]:
        """The key columns in key order; none for a log table."""
        return self.schema.get_primary_keys()

    @property
    def physical_primary_keys(self) -> list[str]:
        """The primary key without the partition keys: what tells rows of one partition apart."""
        return self._descriptor.physical_primary_keys

    @property
    def partition_keys(self) -> list[str]:
        """The columns whose values make up a partition."""
        return self._descriptor.partition_keys

    @property
    def bucket_keys(self) -> list[str]:
        """The columns that decide about the bucket of a row."""
        return self._descriptor.bucket_keys

    @property
    def properties(self) -> dict[str, str]:
        """The table options that are set."""
        return self._descriptor.properties

    @property
    def custom_properties(self) -> dict[str, str]:
        """Properties that mean something to users only."""
        return self._descriptor.custom_properties

    @property
    def log_format(self) -> LogFormat:
        """The format of the log, stated or by default."""
        return self._descriptor.log_format

    @property
    def kv_format(self) -> KvFormat:
        """The format of the rows of a primary-key table, stated or by default."""
        return self._descriptor.kv_format

    def get_schema(self) -> Schema:
        """Return the columns and the primary key."""
        return self.schema

    def get_primary_keys(self) -> list[str]:
        """Return the key columns in key order; none for a log table."""
        return self.primary_keys

    def get_partition_keys(self) -> list[str]:
        """Return the columns whose values make up a partition."""
        return self.partition_keys

    def get_bucket_keys(self) -> list[str]:
        """Return the columns that decide about the bucket of a row."""
        return self.bucket_keys

    def get_properties(self) -> dict[str, str]:
        """Return the table options that are set."""
        return self.properties

    def get_custom_properties(self) -> dict[str, str]:
        """Return the properties that mean something to users only."""
        return self.custom_properties

    def get_column_names(self) -> list[str]:
        """Return the names of the columns in their order."""
        return self.schema.column_names

    def get_column_count(self) -> int:
        """Return the number of columns."""
        return len(self.schema.column_names)

    def has_primary_key(self) -> bool:
        """Whether rows have a key; if not, it is a log table."""
        return self._descriptor.has_primary_key()

    def is_partitioned(self) -> bool:
        """Whether the table consists of partitions."""
        return self._descriptor.is_partitioned()

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {type_text}" for name, type_text in self.schema.get_columns())
        keys = f", primary_keys={self.primary_keys}" if self.primary_keys else ""
        partitions = f", partition_keys={self.partition_keys}" if self.partition_keys else ""
        return (
            f"TableInfo(table_path={self.table_path!r}, table_id={self.table_id}, schema_id={self.schema_id}, "
            f"num_buckets={self.num_buckets}, columns=[{columns}]{keys}{partitions})"
        )

    def _repr_html_(self) -> str:
        kind = "table with a primary key" if self.has_primary_key() else "log table"
        caption = f"{self.table_path}: {kind}, {format_count(self.num_buckets, 'bucket')}"
        if self.is_partitioned():
            caption += f" in each partition by {', '.join(self.partition_keys)}"
        return self.schema._html(caption, self.partition_keys)


@dataclass(frozen=True, slots=True, init=False)
class SchemaInfo(ServerMade):
    """One of the schemas that a table has had, and its number."""

    schema_id: int
    schema: Schema

    @classmethod
    def _create(cls, schema_id: int, schema: Schema) -> SchemaInfo:
        return cls._with_fields(schema_id=schema_id, schema=schema)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class TableStats(ServerMade):
    """How many rows are in a table now: in all, and per bucket."""

    _row_counts: FrozenDict[TableBucket, int]

    @classmethod
    def _create(cls, row_counts: Mapping[TableBucket, int]) -> TableStats:
        return cls._with_fields(_row_counts=FrozenDict(row_counts))

    @property
    def row_count(self) -> int:
        """The rows of all buckets together."""
        return sum(self._row_counts.values())

    @property
    def row_count_by_bucket(self) -> dict[TableBucket, int]:
        """The rows of each bucket."""
        return dict(self._row_counts)

    def __repr__(self) -> str:
        return f"TableStats(row_count={self.row_count}, buckets_count={len(self._row_counts)})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class PartitionInfo(ServerMade):
    """A partition that exists, with its id and its values."""

    partition_id: int
    partition_name: str
    _spec: PartitionSpec

    @classmethod
    def _create(cls, partition_id: int, spec: PartitionSpec, partition_keys: Sequence[str]) -> PartitionInfo:
        return cls._with_fields(
            partition_id=partition_id, partition_name=partition_name(spec, partition_keys), _spec=spec
        )

    def get_partition_id(self) -> int:
        """Return the number of the partition, which is never used again."""
        return self.partition_id

    def get_partition_name(self) -> str:
        """Return the values joined with ``$``, such as ``2024-01-15$EMEA``."""
        return self.partition_name

    def get_partition_spec(self) -> PartitionSpec:
        """Return the values by column."""
        return self._spec

    def __repr__(self) -> str:
        return f"PartitionInfo(partition_id={self.partition_id}, partition_name={self.partition_name!r})"


class DroppedPartition(NamedTuple):
    """A partition that is gone, and where its logs ended, by bucket: -1, or nothing at all, where it is not known."""

    info: PartitionInfo
    log_ends: tuple[int, ...]

    def log_end(self, bucket_id: int) -> int | None:
        """Return where the log of a bucket ended, None if it is not known."""
        end = self.log_ends[bucket_id] if bucket_id < len(self.log_ends) else -1
        return None if end < 0 else end
