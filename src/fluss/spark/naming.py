"""Names as texts: of tables as users of Spark write them, of tables in Spark's own catalog, and of buckets.

A bucket is ``"<partition or nothing>:<bucket>"``. The partition is its id where a program reads the text again, as in
checkpoints, and its name where people do.
"""

from __future__ import annotations

import re
import zlib
from typing import Final, Literal, NamedTuple, cast, get_args

from fluss.errors import FlussError
from fluss.schema.table import TableBucket, TablePath

TableView = Literal["", "changelog", "binlog", "lake"]

_VIEWS: Final[tuple[TableView, ...]] = get_args(TableView)
_CATALOG_PREFIX: Final = "fluss"
_PROVIDER_SEPARATOR: Final = "__"
_NOT_FOR_SPARK: Final = re.compile(r"[^a-z0-9_]")


class TableName(NamedTuple):
    """A table, and which view of it: its rows, or with ``$changelog`` and ``$binlog`` its changes."""

    database: str
    table: str
    view: TableView

    @property
    def path(self) -> TablePath:
        return TablePath(self.database, self.table)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}" + (f"${self.view}" if self.view else "")

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read what ``str`` shows; ValueError for another text, FlussError for a view that there is not."""
        path, dollar, view = text.strip().partition("$")
        database, dot, table = path.partition(".")
        if not (database and dot and table) or "." in table:
            raise ValueError
        if dollar and (not view or view.lower() not in _VIEWS):
            raise FlussError(f"a table has no view '${view}'; there are $changelog, $binlog and $lake")
        return cls(database, table, cast(TableView, view.lower()))


def table_name(table: str | TablePath) -> TableName:
    """Read the name of a table or of a view of it: ``sales.orders``, ``fluss.sales.orders$changelog``."""
    if isinstance(table, TablePath):
        return TableName(table.database_name, table.table_name, "")
    if not isinstance(table, str):
        raise TypeError(f"a table is named by text such as 'sales.orders', got {type(table).__name__}")
    catalog, dot, rest = table.strip().partition(".")
    text = rest if catalog.lower() == _CATALOG_PREFIX and "." in rest else catalog + dot + rest
    try:
        return TableName.parse(text)
    except ValueError:
        raise FlussError(
            f"{table!r} names no table: write the database and the table, such as 'sales.orders'"
        ) from None


def table_path(table: str | TablePath) -> TablePath:
    """Read the name of a table; a view of one is a FlussError."""
    name = table_name(table)
    if name.view:
        raise FlussError(f"{name} is a view of a table, which can only be read; write {name.path} for the table")
    return name.path


# In the catalog of Spark


def spark_name(name: str) -> str:
    """Return the name under which Spark's catalog knows a database or a table: in lower case, with ``_`` for ``-``."""
    return _NOT_FOR_SPARK.sub("_", name.lower())


def spark_table_name(name: TableName) -> str:
    """Return the name under which Spark's catalog knows a table or a view of it: ``orders``, ``orders__changelog``.

    Two tables may have the same one: the caller has to see that each name has one table.
    """
    return spark_name(name.table) + (f"__{name.view}" if name.view else "")


def unique_spark_name(name: str) -> str:
    """Return a name for Spark's catalog that no other name has: for places where no user has to write it."""
    folded = spark_name(name)
    return folded if folded == name else f"{folded}{_PROVIDER_SEPARATOR}{zlib.crc32(name.encode()):08x}"


def provider_name(database: str, table: str) -> str:
    """Return the name of the provider of a table with these names in Spark's catalog; no two tables share one."""
    name = _PROVIDER_SEPARATOR.join((_CATALOG_PREFIX, database, table))
    if _PROVIDER_SEPARATOR not in f"{database}.{table}" and not database.endswith("_") and not table.startswith("_"):
        return name
    # Otherwise a__b.c and a.b__c would have the same.
    return f"{name}{_PROVIDER_SEPARATOR}{zlib.crc32(f'{database}.{table}'.encode()):08x}"


# Buckets


def format_bucket(partition: str | int | None, bucket_id: int) -> str:
    """Return the text of a bucket of a partition, or of a table without any."""
    return f"{'' if partition is None else partition}:{bucket_id}"


def format_table_bucket(bucket: TableBucket) -> str:
    """Return the text of a bucket, with the id of its partition."""
    return format_bucket(bucket.partition_id, bucket.bucket_id)


def parse_table_bucket(table_id: int, text: str) -> TableBucket:
    """Read what ``format_table_bucket`` wrote; another text is a ValueError."""
    partition_id, _, bucket_id = text.partition(":")
    return TableBucket.new_with_partition(table_id, int(partition_id) if partition_id else None, int(bucket_id))
