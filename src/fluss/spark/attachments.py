"""Which Fluss databases Spark knows by name, kept up to date."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from fluss.errors import FlussError
from fluss.schema.names import name_problem
from fluss.schema.table import TablePath
from fluss.spark.catalog import FlussCatalog
from fluss.spark.names import spark_name
from fluss.spark.option_values import TableName
from fluss.spark.providers import AttachedDatabase, AttachedTable, describe_tables
from fluss.spark.sql.text import quoted_name


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
        name = quoted_name(spark_database)
        is_empty = not self._spark.sql(f"SHOW TABLES IN {name}").where("NOT isTemporary").take(1)
        if is_empty and self._spark.catalog.currentDatabase() != spark_database and spark_database != "default":
            self._spark.sql(f"DROP DATABASE IF EXISTS {name}")

    def database_of(self, spark_database: str) -> str | None:
        """Return the Fluss database that a database of Spark stands for, if it does."""
        attached = self._databases.get(spark_name(spark_database))
        return None if attached is None else attached.database

    def table_of(self, spark_database: str, spark_table: str) -> TableName | None:
        """Return the table, or the view of one, that a name of Spark stands for, if it is attached."""
        attached = self._databases.get(spark_name(spark_database))
        entry = None if attached is None else attached.tables.get(spark_name(spark_table))
        return None if entry is None else entry.name

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
            attached = known[0] if known else self._database(name.database, _hidden_name(name.database))
            return attached.attach(infos, name.view)[0]

    def _all_of(self, database: str) -> list[AttachedDatabase]:
        """Return what Spark knows of a Fluss database, under the names that users have given first."""
        found = [attached for attached in self._databases.values() if attached.database == database]
        return sorted(found, key=lambda attached: attached.spark_database == _hidden_name(database))

    def follow(self, database: str, table: str | None) -> None:
        """Take over a change: of a table that was created, altered or dropped, or of a database that was dropped."""
        if table is None:
            if not self._catalog.database_exists(database):
                self.detach(database)
            return
        with self._lock:
            for attached in self._all_of(database):
                if attached.spark_database == _hidden_name(database) and not attached.entries_of(table):
                    continue
                infos = describe_tables(self._settings, [TablePath(database, table)])
                if infos:
                    attached.attach(infos)
                    self._refresh_views(attached, {table})
                else:
                    attached.detach(attached.entries_of(table))


def _hidden_name(database: str) -> str:
    """Return the name in Spark of a database that nobody has attached, for those of its tables that a query names."""
    return f"fluss__{spark_name(database)}"
