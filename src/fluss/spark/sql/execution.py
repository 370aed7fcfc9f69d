"""Do the statements about Fluss: one method for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from fluss.errors import FlussError
from fluss.schema.table import TablePath
from fluss.spark.attachments import Attachments
from fluss.spark.catalog import FlussCatalog
from fluss.spark.sql import answers
from fluss.spark.sql.names import NameMeanings
from fluss.spark.sql.statements import (
    AddColumns,
    AddPartitions,
    ColumnText,
    CreateDatabase,
    CreateTable,
    DescribeDatabase,
    DescribeTable,
    DropDatabase,
    DropPartitions,
    DropTable,
    Name,
    SetProperties,
    ShowCreateTable,
    ShowDatabases,
    ShowPartitions,
    ShowProperties,
    ShowTables,
    Statement,
    UnsetProperties,
)
from fluss.spark.sql.text import fail
from fluss.spark.table_columns import reason_of


class QueryRunner(Protocol):
    """Runs the query of CREATE TABLE AS."""

    def __call__(self, text: str) -> DataFrame: ...


class TableWriter(Protocol):
    """Writes the rows of CREATE TABLE AS."""

    def __call__(self, rows: DataFrame, table: TablePath) -> None: ...


class Execution:
    """Does what statements say, with a catalog. Attached names follow the catalog by themselves."""

    def __init__(
        self, spark: SparkSession, catalog: FlussCatalog, attachments: Attachments, names: NameMeanings
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._attachments = attachments
        self._names = names

    def do(self, statement: Statement, text: str, query: QueryRunner, write: TableWriter) -> DataFrame:
        """Do what a statement says, and return its answer, which may be empty. ``text`` is for messages."""
        match statement:
            case CreateTable():
                self._create_table(statement, text, query, write)
            case CreateDatabase() | DropDatabase():
                self._change_database(statement)
            case DropTable():
                self._catalog.drop_table(self._path(statement.name), if_exists=statement.if_exists)
            case AddColumns():
                self._catalog.alter_table(self._path(statement.name), add_columns=_struct(statement.columns, text))
            case SetProperties():
                self._catalog.alter_table(self._path(statement.name), set_properties=statement.properties)
            case UnsetProperties():
                self._catalog.alter_table(self._path(statement.name), reset_properties=statement.keys)
            case AddPartitions() | DropPartitions():
                self._change_partitions(statement)
            case _:
                return self._spark.createDataFrame(self._answer(statement))
        return self._spark.range(0).select()

    def _path(self, name: Name) -> TablePath:
        path = self._names.table(name)
        assert path is not None, "a statement is done here if its name means a table of Fluss"
        return path

    def _change_database(self, statement: CreateDatabase | DropDatabase) -> None:
        name = self._names.database(statement.name)
        if isinstance(statement, DropDatabase):
            self._catalog.drop_database(name, if_exists=statement.if_exists, cascade=statement.cascade)
            return
        self._catalog.create_database(
            name, comment=statement.comment, properties=statement.properties, if_not_exists=statement.if_not_exists
        )
        # Whoever creates a database in SQL is going to use it there. Tables of one that exists are found by use.
        self._attachments.attach(name, [])

    def _create_table(self, statement: CreateTable, text: str, query: QueryRunner, write: TableWriter) -> None:
        path = self._names.new_table(statement.name)
        if statement.query is not None and self._catalog.table_exists(path):
            if statement.if_not_exists:
                return
            raise FlussError(f"The table {path} exists already; drop it first, or use INSERT INTO")
        rows = None if statement.query is None else query(statement.query)
        self._catalog.create_table(
            path,
            _struct(statement.columns, text) if rows is None else rows,
            primary_keys=statement.primary_keys,
            partition_keys=statement.partition_keys,
            bucket_keys=statement.bucket_keys,
            bucket_count=statement.bucket_count,
            comment=statement.comment,
            properties=statement.properties,
            if_not_exists=statement.if_not_exists,
        )
        if rows is not None:
            try:
                write(rows, path)
            except BaseException:
                # The statement has not happened, as far as anybody can see.
                self._catalog.drop_table(path, if_exists=True)
                raise

    def _change_partitions(self, statement: AddPartitions | DropPartitions) -> None:
        path = self._path(statement.name)
        for spec in statement.specs:
            if isinstance(statement, AddPartitions):
                self._catalog.add_partition(path, spec, if_not_exists=statement.if_not_exists)
            else:
                self._catalog.drop_partition(path, spec, if_exists=statement.if_exists)

    def _answer(self, statement: Statement) -> pa.Table:
        match statement:
            case ShowDatabases():
                return answers.databases(self._catalog.list_databases(), statement.pattern)
            case DescribeDatabase():
                return answers.description_of_database(
                    self._catalog.database_info(self._names.database(statement.name))
                )
            case ShowTables():
                database = self._names.database_of_tables(statement.database)
                assert database is not None, "a statement is done here if its name means a database of Fluss"
                return answers.tables(database, self._catalog.list_tables(database), statement.pattern)
            case ShowPartitions():
                info = self._catalog.table_info(self._path(statement.name))
                found = self._catalog.list_partitions(info.table_path, statement.spec or None)
                return answers.partitions(found, info.partition_keys)
            case ShowCreateTable():
                return answers.create_statement(self._catalog.table_info(self._path(statement.name)))
            case ShowProperties():
                return answers.properties(self._catalog.table_info(self._path(statement.name)), statement.key)
            case DescribeTable():
                info = self._catalog.table_info(self._path(statement.name))
                return answers.description_of_table(info, is_extended=statement.is_extended)
        raise AssertionError(f"no answer for {statement!r}")


def _struct(columns: Sequence[ColumnText], text: str) -> StructType:
    """Return the columns of a statement. Spark's own parser reads their types."""
    fields = []
    for column in columns:
        try:
            data_type = DataType.fromDDL(column.type_text)
        except ParseException as error:
            fail(text, column.position, f"the type of column '{column.name}' is not understood: {reason_of(error)}")
        metadata = None if column.comment is None else {"comment": column.comment}
        fields.append(StructField(column.name, data_type, column.nullable, metadata))
    return StructType(fields)
