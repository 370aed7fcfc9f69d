"""Fluss tables by name in Spark SQL: which databases Spark knows, kept up to date.

Spark does not hand over the options of a table in its catalog. So the data source of such a table is a class of its
own, which knows its table: ``CREATE TABLE sales.orders (...) USING fluss__sales__orders``. An entry in Spark's catalog
holds the columns of the table as they were when it was attached.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimeType

from fluss import FlussAdmin
from fluss.client.bulk import wait_for
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.filter.lexer import quoted_name, quoted_string
from fluss.schema.table import TableInfo, TablePath, name_problem
from fluss.spark.connections import await_answer, open_connection
from fluss.spark.data_source import FlussDataSource
from fluss.spark.fluss_catalog import FlussCatalog
from fluss.spark.naming import (
    TableName,
    TableView,
    provider_name,
    spark_name,
    spark_table_name,
    unique_spark_name,
)
from fluss.spark.pushdown.installation import CATALOG
from fluss.spark.type_mapping import view_schema

_PROVIDER_LINE: Final = re.compile(r"^Provider: (.*)$", re.MULTILINE)
_HIDDEN_PREFIX: Final = "fluss__"
_TIME_TYPE_ENABLED: Final = "spark.sql.timeType.enabled"
# Spark compares every name with every part of a pattern; for more names than this, asking for all is faster.
_PATTERN_NAMES_MAX: Final = 20
# How many tables are described at a time; each is one request.
_DESCRIBED_MAX: Final = 16
# What the names in Spark's catalog stand for now, by application: the catalog is one for all sessions and clusters.
_current: dict[tuple[str, str], AttachedTable] = {}

logger = logging.getLogger(__name__)


class Attachments:
    """The attached databases of one session. May be used by several threads, one at a time."""

    def __init__(
        self, spark: SparkSession, settings: Mapping[str, str], options: Callable[[], Mapping[str, str]]
    ) -> None:
        """``settings`` are those of the client; ``options`` says which ones every query on an attached table has."""
        self._spark = spark
        self._settings = dict(settings)
        self._options = options
        self._catalog = FlussCatalog(settings)
        self._lock = threading.RLock()
        # By the name in Spark.
        self._databases: dict[str, AttachedDatabase] = {}

    def attach(self, database: str, tables: Sequence[str] | None = None, *, name: str | None = None) -> list[str]:
        """Make a database known to Spark, as ``name`` if given, with all its tables or some; return their names there.

        Done again, it takes over what has changed, and forgets what has been dropped.
        """
        wanted = set(self._catalog.list_tables(database))
        if tables is not None:
            for missing in [table for table in tables if table not in wanted]:
                raise FlussError(f"The database '{database}' has no table '{missing}'")
            wanted = set(tables)
        with self._lock:
            attached = self._database(database, spark_name(name or database))
            if tables is None or tables:
                attached.check_no_other_cluster()
            infos = describe_tables(self._settings, [TablePath(database, table) for table in sorted(wanted)])
            attached.attach(infos)
            self._refresh_views(attached, {info.table_path.table_name for info in infos})
            if tables is None:
                attached.detach([entry for entry in attached.tables.values() if entry.name.table not in wanted])
            return sorted(f"{attached.spark_database}.{table}" for table in attached.tables)

    def _database(self, database: str, spark_database: str) -> AttachedDatabase:
        attached = self._databases.get(spark_database)
        if attached is None:
            attached = AttachedDatabase(self._spark, self._options, database, spark_database)
            self._databases[spark_database] = attached
            return attached
        if attached.database != database:
            raise FlussError(
                f"Spark's database {spark_database} is Fluss's '{attached.database}' already; "
                f"attach '{database}' under another name: attach({database!r}, name=...)"
            )
        attached.look_around()
        return attached

    def _refresh_views(self, attached: AttachedDatabase, tables: set[str]) -> None:
        for entry in [entry for entry in attached.tables.values() if entry.name.view and entry.name.table in tables]:
            attached.attach(describe_tables(self._settings, [entry.name.path]), entry.name.view)

    def detach(self, database: str) -> None:
        """Let Spark forget a database, under whatever name; nothing happens if it does not know it."""
        with self._lock:
            for attached in self._all_of(database):
                attached.detach()
                del self._databases[attached.spark_database]
                self._drop_if_empty(attached.spark_database)

    def _drop_if_empty(self, spark_database: str) -> None:
        """Drop a database of Spark, unless users have put views and tables of their own into it, or are in it."""
        name = _sql_name(spark_database)
        is_empty = not self._spark.sql(f"SHOW TABLES IN {name}").where("NOT isTemporary").take(1)
        if is_empty and self._spark.catalog.currentDatabase() != spark_database and spark_database != "default":
            self._spark.sql(f"DROP DATABASE IF EXISTS {name}")

    def database_of(self, name: str) -> str | None:
        """Return the Fluss database that a name stands for in Spark, or that is attached under another one."""
        attached = self._attached(name)
        return None if attached is None else attached.database

    def _attached(self, name: str) -> AttachedDatabase | None:
        # Spark does not tell upper and lower case apart; nothing else is taken for the same.
        attached = self._databases.get(name.lower())
        if attached is None:
            attached = next((each for each in self._all_of(name) if not each.is_hidden), None)
        return attached

    def table_of(self, database: str, table: str) -> TableName | None:
        """Return the table, or the view of one, that a name stands for in Spark, if it is attached.

        The name of a table in Fluss goes before the name of another one in Spark.
        """
        attached = self._attached(database)
        if attached is None:
            return None
        for entry in attached.tables.values():
            if str(entry.name) == f"{attached.database}.{table}":
                return entry.name
        known = attached.tables.get(table.lower())
        return None if known is None else known.name

    def attach_one(self, name: TableName) -> AttachedTable | None:
        """Make one table, or a view of one, known to Spark if it is not; None if there is no such table.

        If its database is not attached, it stays so: what a query names in full has a place of its own in Spark.
        """
        if name_problem(name.database) or name_problem(name.table):
            return None
        with self._lock:
            known = self._all_of(name.database)
            for attached in known:
                for entry in attached.entries_of(name.table):
                    if entry.name == name and attached.is_current(entry):
                        return entry
            infos = describe_tables(self._settings, [name.path])
            if not infos:
                return None
            for attached in known:
                # A name in Spark may belong to another table of the database already.
                if attached.is_hidden or not attached.is_taken(name):
                    return attached.attach(infos, name.view)[0]
            return self._database(name.database, hidden_name(name.database)).attach(infos, name.view)[0]

    def _all_of(self, database: str) -> list[AttachedDatabase]:
        """Return what Spark knows of a Fluss database, under the names that users have given first."""
        found = [attached for attached in self._databases.values() if attached.database == database]
        return sorted(found, key=lambda attached: attached.is_hidden)

    def follow(self, database: str, table: str | None) -> None:
        """Take over a change: of a table that was created, altered or dropped, or of a database that was dropped."""
        if table is None:
            if not self._catalog.database_exists(database):
                self.detach(database)
            return
        with self._lock:
            for attached in self._all_of(database):
                if attached.is_hidden and not attached.entries_of(table):
                    continue
                infos = describe_tables(self._settings, [TablePath(database, table)])
                if not infos:
                    attached.detach(attached.entries_of(table))
                elif attached.is_taken(TableName(database, table, "")):
                    logger.warning(
                        "Spark's name %s.%s belongs to another table of the database; write %s.%s with FlussSpark.sql",
                        attached.spark_database,
                        spark_name(table),
                        database,
                        quoted_name(table),
                    )
                else:
                    attached.attach(infos)
                    self._refresh_views(attached, {table})


def hidden_name(database: str) -> str:
    """Return the name in Spark of a database that is not attached, for those of its tables that a query names."""
    return f"{_HIDDEN_PREFIX}{unique_spark_name(database)}"


def _sql_name(database: str, *table: str) -> str:
    """Return the name of a database of Spark, or of a table in it, as a statement has it.

    There is a catalog that has the name of the database ``fluss``, and would be meant.
    """
    catalog = ("spark_catalog",) if database == CATALOG else ()
    return quoted_name(*catalog, database, *table)


# One database


@dataclass(frozen=True)
class AttachedTable:
    """An entry in Spark's catalog, and what it stands for."""

    name: TableName
    spark_database: str
    spark_table: str
    table_id: int
    schema_id: int
    comment: str | None
    # The options of every query on it, the table among them. They may contain a password.
    options: Mapping[str, str] = field(repr=False)

    @property
    def sql_name(self) -> str:
        """The name as a statement has it."""
        return _sql_name(self.spark_database, self.spark_table)

    @property
    def provider(self) -> str:
        return provider_name(self.spark_database, self.spark_table)


class AttachedDatabase:
    """The tables of one Fluss database that Spark knows by name.

    ``options`` says which ones every query on them has, the connection among them. ``spark_database`` is the name of
    the database in Spark. Not to be used by several threads at a time.
    """

    def __init__(
        self, spark: SparkSession, options: Callable[[], Mapping[str, str]], database: str, spark_database: str
    ) -> None:
        self._spark = spark
        self._options = options
        self.database = database
        self.spark_database = spark_database
        # By the name in Spark.
        self.tables: dict[str, AttachedTable] = {}
        self._application = spark.conf.get("spark.app.id") or ""
        self.look_around()

    @property
    def is_hidden(self) -> bool:
        """Whether users have not given the database this name."""
        return self.spark_database == hidden_name(self.database)

    def is_taken(self, name: TableName) -> bool:
        """Whether the name that a table, or a view of one, would have in Spark is that of another one."""
        entry = self.tables.get(self._spark_table(name))
        return entry is not None and entry.name != name

    def _spark_table(self, name: TableName) -> str:
        # Names that no user writes can be such that no two tables share one.
        plain = name._replace(table=unique_spark_name(name.table)) if self.is_hidden else name
        return spark_table_name(plain)

    def look_around(self) -> None:
        """Notice what users have done to the database in Spark: dropped entries of it, or all of it."""
        name = _sql_name(self.spark_database)
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {name}")
        if self.tables:
            present = {row.tableName for row in self._spark.sql(f"SHOW TABLES IN {name}").collect()}
            self.tables = {table: entry for table, entry in self.tables.items() if table in present}

    def attach(self, infos: Sequence[TableInfo], view: TableView = "") -> list[AttachedTable]:
        """Make tables known, or a view of each; those that are known and have not changed cost nothing.

        A name that stands for a table of another cluster stands for this one from now on.
        """
        options = self._options()
        entries = [self._entry(info, view, options) for info in infos]
        changed = [(entry, info) for entry, info in zip(entries, infos, strict=True) if not self.is_current(entry)]
        self._check_names([entry for entry, _ in changed])
        present = self._present([entry for entry, _ in changed])
        for entry, info in changed:
            self._create(entry, view_schema(info.schema, view), is_present=entry.spark_table in present)
        return entries

    def is_current(self, entry: AttachedTable) -> bool:
        """Whether Spark knows a table just like this, in this session and for this cluster."""
        return self.tables.get(entry.spark_table) == entry == _current.get((self._application, entry.sql_name))

    def check_no_other_cluster(self) -> None:
        """Refuse to take over names that stand for tables of another cluster."""
        servers = self._options().get(Config.bootstrap_servers.key)
        for (application, _), entry in list(_current.items()):
            other = entry.options.get(Config.bootstrap_servers.key)
            if application == self._application and entry.spark_database == self.spark_database and other != servers:
                raise FlussError(
                    f"Spark's database {self.spark_database} has tables of another cluster, {other}; "
                    f"attach this one under another name: attach({self.database!r}, name=...)"
                )

    def _entry(self, info: TableInfo, view: TableView, options: Mapping[str, str]) -> AttachedTable:
        path = info.table_path
        name = TableName(path.database_name, path.table_name, view)
        return AttachedTable(
            name,
            self.spark_database,
            self._spark_table(name),
            info.table_id,
            info.schema_id,
            info.comment,
            {**options, "table": str(name)},
        )

    def _check_names(self, entries: Sequence[AttachedTable]) -> None:
        """Refuse tables whose names Spark cannot tell apart."""
        taken = {name: entry.name for name, entry in self.tables.items()}
        for entry in entries:
            other = taken.setdefault(entry.spark_table, entry.name)
            if other != entry.name:
                raise FlussError(
                    f"{other} and {entry.name} would both be {entry.spark_database}.{entry.spark_table} in Spark; "
                    "name those to attach with tables=[...]"
                )

    def _present(self, entries: Sequence[AttachedTable]) -> set[str]:
        """Return which of these names Spark's catalog has; one that is there for something else is a FlussError."""
        providers = {entry.spark_table: entry.provider for entry in entries}
        if not providers:
            return set()
        # One statement for all tables. Names of Spark contain nothing that is special in a pattern.
        pattern = "|".join(providers) if len(providers) <= _PATTERN_NAMES_MAX else "*"
        rows = self._spark.sql(
            f"SHOW TABLE EXTENDED IN {_sql_name(self.spark_database)} LIKE {quoted_string(pattern)}"
        ).collect()
        present = {r.tableName: r.information for r in rows if r.tableName in providers and not r.isTemporary}
        for name, information in present.items():
            line = _PROVIDER_LINE.search(information)
            found = "a view" if line is None else line[1]
            if found != providers[name]:
                raise FlussError(
                    f"Spark has a table {self.spark_database}.{name} of its own ({found}); drop it, or attach the "
                    "database under another name: attach(database, name=...)"
                )
        return set(present)

    def _create(self, entry: AttachedTable, schema: StructType, *, is_present: bool) -> None:
        self._spark.dataSource.register(bound_provider(entry.provider, entry.options))
        if is_present:
            # To drop an entry, which may be of another session, Spark needs its provider.
            self._spark.sql(f"DROP TABLE {entry.sql_name}")
        self.tables.pop(entry.spark_table, None)
        if _has_time(schema):
            # Spark reads and writes the type, but does not let it into its catalog unless told so.
            self._spark.conf.set(_TIME_TYPE_ENABLED, "true")
        comment = "" if entry.comment is None else f" COMMENT {quoted_string(entry.comment)}"
        self._spark.sql(
            f"CREATE TABLE {entry.sql_name} ({schema.toDDL()}) USING {quoted_name(entry.provider)}{comment}"
        )
        self.tables[entry.spark_table] = _current[self._application, entry.sql_name] = entry

    def detach(self, entries: Iterable[AttachedTable] | None = None) -> None:
        """Forget tables, by default all; the tables themselves stay as they are."""
        for entry in list(self.tables.values() if entries is None else entries):
            if self.is_current(entry):
                self._spark.sql(f"DROP TABLE IF EXISTS {entry.sql_name}")
                del _current[self._application, entry.sql_name]
            self.tables.pop(entry.spark_table, None)

    def entries_of(self, table: str) -> list[AttachedTable]:
        """Return what is attached of one Fluss table: itself, and views of it."""
        return [entry for entry in self.tables.values() if entry.name.table == table]


def bound_provider(name: str, options: Mapping[str, str]) -> type[FlussDataSource]:
    """Make the data source of one table. Spark sends it to its workers whole, not by its name."""

    class BoundProvider(FlussDataSource):
        """A data source that knows its table."""

        bound_options: ClassVar[Mapping[str, str]] = dict(options)

        @classmethod
        def name(cls) -> str:
            return name

    return BoundProvider


def describe_tables(settings: Mapping[str, str], paths: Sequence[TablePath]) -> list[TableInfo]:
    """Ask for many tables at a time. Those that have been dropped in the meantime are left out."""

    async def describe_all(admin: FlussAdmin) -> list[TableInfo]:
        slots = asyncio.Semaphore(_DESCRIBED_MAX)

        async def describe(path: TablePath) -> TableInfo | None:
            async with slots:
                try:
                    return await admin.get_table_info(path)
                except FlussError as error:
                    if error.error_code == ErrorCode.TABLE_NOT_EXIST:
                        return None
                    raise

        return [info for info in await asyncio.gather(*map(describe, paths)) if info is not None]

    return await_answer(settings, lambda: wait_for(describe_all(open_connection(settings).get_admin())))


def _has_time(data_type: DataType) -> bool:
    match data_type:
        case TimeType():
            return True
        case StructType():
            return any(_has_time(field.dataType) for field in data_type)
        case ArrayType():
            return _has_time(data_type.elementType)
        case MapType():
            return _has_time(data_type.keyType) or _has_time(data_type.valueType)
    return False
