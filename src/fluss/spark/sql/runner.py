"""Run SQL statements: in Fluss if they are about something there, in Spark otherwise.

Tables of Fluss in a statement for Spark are made known to Spark before; see ``fluss.spark.sql.names`` for what a name
means. A table that is about to be created belongs to Fluss if its database is attached and no provider is given, or if
it is created ``USING fluss``.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fluss.errors import FlussError
from fluss.spark.attachments import Attachments
from fluss.spark.catalog import FlussCatalog
from fluss.spark.sql.execution import Execution, TableWriter
from fluss.spark.sql.head import Head, head_of
from fluss.spark.sql.names import NameMeanings
from fluss.spark.sql.parser import parse
from fluss.spark.sql.rewrite import with_spark_names
from fluss.spark.sql.statements import (
    FLUSS_CATALOG,
    CreateDatabase,
    CreateTable,
    DescribeDatabase,
    DropDatabase,
    ShowDatabases,
    ShowTables,
)
from fluss.spark.sql.text import Token, tokens_of

_ABOUT_DATABASES = (CreateDatabase, DropDatabase, DescribeDatabase, ShowDatabases)


class StatementRunner:
    """Runs statements in one session, on one cluster. ``write`` writes the rows of CREATE TABLE AS."""

    def __init__(
        self, spark: SparkSession, catalog: FlussCatalog, attachments: Attachments, write: TableWriter
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._write = write
        self._names = NameMeanings(spark, attachments)
        self._execution = Execution(spark, catalog, attachments, self._names)

    def run(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> DataFrame:
        """Run one statement. ``args`` are the parameters of a statement that goes to Spark."""
        try:
            tokens = tokens_of(text)
        except FlussError:
            # Spark says it better, and may know quotes that are not known here.
            return self._spark.sql(text, args=args)
        head = head_of(tokens)
        if head is None or not self._is_about_fluss(head):
            return self._run_in_spark(text, tokens, args)
        if args:
            raise FlussError(f"{head.verb} takes no parameters here; write the values into the statement")
        statement = parse(text, tokens, head)
        return self._execution.do(statement, text, query=self.run, write=self._write)

    def _run_in_spark(self, text: str, tokens: list[Token], args: dict[str, Any] | list[Any] | None) -> DataFrame:
        return self._spark.sql(with_spark_names(text, tokens, self._names.spark_name), args=args)

    def _is_about_fluss(self, head: Head) -> bool:
        name = head.name
        if head.kind in _ABOUT_DATABASES:
            return name is None or not name.is_of_spark
        if head.kind is ShowTables:
            return self._names.database_of_tables(name) is not None
        if name is None:
            return False
        if head.kind is CreateTable and head.using is not None:
            return head.using == FLUSS_CATALOG
        path = self._names.table(name)
        if path is None:
            return False
        # A name in an attached database may also be a view or a table of Spark's.
        return head.kind is CreateTable or name.is_of_fluss or self._catalog.table_exists(path)
