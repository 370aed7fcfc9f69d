"""What a name in a statement means.

- ``fluss.sales.orders`` is a table in Fluss, ``fluss.sales`` a database there; ``spark_catalog.x`` is Spark's.
- ``sales.orders`` is a table in Fluss if ``sales`` is attached. ``orders`` alone is one if the current database is.
- Statements about databases are about those of Fluss, unless they say ``spark_catalog``.

The database called ``fluss``, which every cluster has at first, is Fluss's without being attached: ``fluss.orders``.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from fluss.errors import FlussError
from fluss.schema.table import TablePath
from fluss.spark.attachments import Attachments
from fluss.spark.names import table_name
from fluss.spark.option_values import TableName
from fluss.spark.sql.statements import FLUSS_CATALOG, Name


class NameMeanings:
    """Knows what names mean in one session, with the databases that are attached to it."""

    def __init__(self, spark: SparkSession, attachments: Attachments) -> None:
        self._spark = spark
        self._attachments = attachments

    def database(self, name: Name) -> str:
        """Return the database in a statement about databases of Fluss."""
        if name.is_of_fluss and len(name.parts) == 2:
            return name.parts[1]
        if len(name.parts) != 1:
            raise FlussError(f"'{name}' is no database: write sales or fluss.sales")
        return self._attachments.database_of(name.parts[0]) or name.parts[0]

    def database_of_tables(self, name: Name | None) -> str | None:
        """Return the Fluss database whose tables are meant, without a name the current one; None if it is Spark's."""
        if name is None:
            return self._attachments.database_of(self._spark.catalog.currentDatabase())
        if name.is_of_fluss:
            return name.parts[-1] if len(name.parts) <= 2 else None
        return self._attachments.database_of(name.parts[0]) if len(name.parts) == 1 else None

    def table(self, name: Name) -> TablePath | None:
        """Return the Fluss table that is meant, whether there is one or not; None if it is Spark's."""
        parts = name.parts
        if name.is_of_spark:
            return None
        if name.is_of_fluss and len(parts) > 1:
            if len(parts) > 3:
                raise FlussError(f"'{name}' is no table: write it as fluss.sales.orders")
            return TablePath(*parts[-2:])
        if len(parts) == 1:
            parts = (self._spark.catalog.currentDatabase(), *parts)
        database = self._attachments.database_of(parts[0]) if len(parts) == 2 else None
        if database is None:
            return None
        known = self._attachments.table_of(*parts)
        return TablePath(database, parts[1]) if known is None else known.path

    def new_table(self, name: Name) -> TablePath:
        """Return the Fluss table that is about to be created, also in a database that is not attached."""
        path = self.table(name)
        if path is not None:
            return path
        if len(name.parts) != 2:
            raise FlussError(f"In which database? Write it before the name, such as sales.{name.parts[-1]}")
        return TablePath(*name.parts)

    def spark_name(self, parts: tuple[str, ...]) -> str | None:
        """Return the name that Spark knows a table by, after making it known; None if it is not a table of Fluss.

        ``parts`` are ``fluss``, database and table, or database and table. The table may be a view, such as
        ``orders$changelog``.
        """
        name = self._table_or_view(parts)
        entry = None if name is None else self._attachments.attach_one(name)
        return None if entry is None else entry.sql_name

    def _table_or_view(self, parts: tuple[str, ...]) -> TableName | None:
        database, table = parts[-2:]
        if parts[0].lower() != FLUSS_CATALOG:
            known = self._attachments.table_of(database, table)
            if known is not None:
                return known
            attached = self._attachments.database_of(database)
            if attached is None:
                return None
            database = attached
        try:
            return table_name(f"{database}.{table}")
        except FlussError:
            return None
