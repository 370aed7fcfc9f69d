"""Run SQL statements: in Fluss if they are about something there, in Spark otherwise.

What a name in a statement means:

- ``fluss.sales.orders`` is a table in Fluss, ``fluss.sales`` a database there; ``spark_catalog.x`` is Spark's.
- ``sales.orders`` is a table in Fluss if ``sales`` is attached. ``orders`` alone is one if the current database is.
  That is the table of this very name in Fluss; if there is none, one whose name differs in upper and lower case only;
  and in statements that change no table the one that Spark knows by the name, such as ``my_orders`` for ``my-orders``.
- Statements about databases are about those of Fluss, unless they say ``spark_catalog``.
- The database called ``fluss``, which every cluster has at first, is Fluss's without being attached: ``fluss.orders``.
- A table that is about to be created belongs to Fluss if its database is attached and no provider is given, or if it
  is created ``USING fluss``.

Tables of Fluss in a statement for Spark are made known to Spark before, and get the names that Spark knows them by.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from fluss.errors import FlussError
from fluss.filter.lexer import Token, quoted_name, quoted_string
from fluss.schema.descriptor import DatabaseInfo
from fluss.schema.schema import shown_names
from fluss.schema.table import PartitionInfo, TableInfo, TablePath, name_problem, qualified_partition_name
from fluss.spark.attachments import Attachments
from fluss.spark.fluss_catalog import FlussCatalog, reason_of
from fluss.spark.naming import TableName, table_name
from fluss.spark.session.noise import plain_errors
from fluss.spark.sql.parser import Head, head_of, parse
from fluss.spark.sql.statements import (
    FLUSS_CATALOG,
    AddColumns,
    AddPartitions,
    ColumnText,
    CommentOnDatabase,
    CreateDatabase,
    CreateTable,
    DeleteRows,
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
    UpdateRows,
)
from fluss.spark.sql.tokens import fail, statement_tokens
from fluss.spark.table_shape import shown_properties
from fluss.spark.text_limits import declared_schema
from fluss.spark.type_mapping import spark_schema

# Statements that change nothing.
_LOOKS = (ShowPartitions, ShowCreateTable, ShowProperties, DescribeTable)
_ABOUT_DATABASES = (CreateDatabase, DropDatabase, CommentOnDatabase, DescribeDatabase, ShowDatabases)
_DescribeRow: TypeAlias = tuple[str, str, str | None]


class RowWrites(NamedTuple):
    """What statements do to the rows of a table: those of CREATE TABLE AS, and those for which a condition holds."""

    write: Callable[[DataFrame, TablePath], None]
    delete: Callable[[TablePath, str], None]
    update: Callable[[TablePath, Mapping[str, str], str | None], None]


class StatementRunner:
    """Runs statements in one session, on one cluster."""

    def __init__(
        self,
        spark: SparkSession,
        catalog: FlussCatalog,
        attachments: Attachments,
        rows: RowWrites,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._attachments = attachments
        self._rows = rows
        self._names = NameMeanings(spark, attachments, catalog)

    def run(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> DataFrame:
        """Run one statement. ``args`` are the parameters of a statement that goes to Spark."""
        try:
            tokens = statement_tokens(text)
        except FlussError:
            # The error of Spark is better, and Spark may know quotes that are not known here.
            return self._spark.sql(text, args=args)
        head = head_of(tokens)
        if head is None or not self._is_about_fluss(head):
            return self._run_in_spark(text, tokens, args)
        if args:
            raise FlussError(f"{head.verb} takes no parameters here; write the values into the statement")
        return self._do(parse(text, tokens, head), text)

    def _for_spark(self, expression: str) -> str:
        """Return an expression with the names by which Spark knows the tables of its subqueries."""
        return with_spark_names(expression, statement_tokens(expression), self._names.spark_name)

    def _run_in_spark(self, text: str, tokens: list[Token], args: dict[str, Any] | list[Any] | None) -> DataFrame:
        named = with_spark_names(text, tokens, self._names.spark_name)
        with plain_errors():
            return self._spark.sql(named, args=args)

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
        if head.kind is CreateTable:
            return self._names.new_table(name) is not None
        path = self._names.table(name, is_changed=head.kind not in _LOOKS)
        if path is None:
            return False
        # A name in an attached database may also be a view or a table of Spark's.
        return name.is_of_fluss or self._catalog.table_exists(path)

    # Statements about Fluss

    def _do(self, statement: Statement, text: str) -> DataFrame:
        """Do what a statement says, and return its answer, which may be empty. ``text`` is for messages."""
        match statement:
            case CreateTable():
                self._create_table(statement, text)
            case CreateDatabase() | DropDatabase():
                self._change_database(statement)
            case CommentOnDatabase():
                self._catalog.alter_database(self._names.database(statement.name), comment=statement.comment or "")
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
            case DeleteRows():
                self._rows.delete(self._path(statement.name), self._for_spark(statement.condition or "TRUE"))
            case UpdateRows():
                values = {column: self._for_spark(value) for column, value in statement.values.items()}
                condition = None if statement.condition is None else self._for_spark(statement.condition)
                self._rows.update(self._path(statement.name), values, condition)
            case _:
                return self._spark.createDataFrame(self._answer(statement))
        return self._spark.range(0).select()

    def _path(self, name: Name, *, is_changed: bool = True) -> TablePath:
        path = self._names.table(name, is_changed=is_changed)
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
        # A program that creates a database in SQL is going to use it there. Tables of one that exists are found by use.
        self._attachments.attach(name, [])

    def _create_table(self, statement: CreateTable, text: str) -> None:
        path = self._names.created_table(statement.name)
        if statement.query is not None and self._catalog.table_exists(path):
            if statement.if_not_exists:
                return
            raise FlussError(f"The table {path} exists already; drop it first, or use INSERT INTO")
        rows = None if statement.query is None else self.run(statement.query)
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
                self._rows.write(rows, path)
            except BaseException:
                # CREATE TABLE AS leaves a table with all rows, or none.
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
                return _show_databases(self._catalog.list_databases(), statement.pattern)
            case DescribeDatabase():
                return _describe_database(self._catalog.database_info(self._names.database(statement.name)))
            case ShowTables():
                database = self._names.database_of_tables(statement.database)
                assert database is not None, "a statement is done here if its name means a database of Fluss"
                return _show_tables(database, self._catalog.list_tables(database), statement.pattern)
            case ShowPartitions():
                info = self._catalog.table_info(self._path(statement.name, is_changed=False))
                found = self._catalog.list_partitions(info.table_path, statement.spec or None)
                return _show_partitions(found, info.partition_keys)
            case ShowCreateTable():
                return _show_create_table(self._catalog.table_info(self._path(statement.name, is_changed=False)))
            case ShowProperties():
                return _show_properties(
                    self._catalog.table_info(self._path(statement.name, is_changed=False)), statement.key
                )
            case DescribeTable():
                info = self._catalog.table_info(self._path(statement.name, is_changed=False))
                return _describe_table(info, is_extended=statement.is_extended)
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


# What names mean


class NameMeanings:
    """Knows what names mean in one session, with the databases that are attached to it."""

    def __init__(self, spark: SparkSession, attachments: Attachments, catalog: FlussCatalog) -> None:
        self._spark = spark
        self._attachments = attachments
        self._catalog = catalog

    def database(self, name: Name) -> str:
        """Return the database in a statement about databases of Fluss."""
        if name.is_of_fluss and len(name.parts) == 2:
            return name.parts[1]
        if len(name.parts) != 1:
            raise FlussError(f"'{name}' is no database: write sales or fluss.sales")
        named, attached = name.parts[0], self._attachments.database_of(name.parts[0])
        if attached is None or attached == named:
            return named
        if self._catalog.database_exists(named):
            raise FlussError(
                f"'{named}' is what Spark calls the database '{attached}', and there is a database '{named}', too; "
                f"write fluss.{quoted_name(attached)} or fluss.{quoted_name(named)}"
            )
        return attached

    def database_of_tables(self, name: Name | None) -> str | None:
        """Return the Fluss database whose tables are meant, without a name the current one; None if it is Spark's."""
        if name is None:
            return self._attachments.database_of(self._spark.catalog.currentDatabase())
        if name.is_of_fluss:
            return name.parts[-1] if len(name.parts) <= 2 else None
        return self._attachments.database_of(name.parts[0]) if len(name.parts) == 1 else None

    def table(self, name: Name, *, is_changed: bool) -> TablePath | None:
        """Return the Fluss table that is meant, whether there is one or not; None if it is Spark's.

        A table that ``is_changed``, or dropped, is meant only by its own name: that of another one is a FlussError.
        """
        path = self.new_table(name)
        if path is None or name.is_of_fluss:
            return path
        if name_problem(path.table_name):
            # A view of a table in Fluss, or something of Spark's.
            return None
        existing = self._catalog.list_tables(path.database_name)
        if path.table_name in existing:
            return path
        similar = [table for table in existing if table.lower() == path.table_name.lower()]
        if len(similar) > 1:
            raise FlussError(
                f"There is no table '{path.table_name}' in {path.database_name}, but there are "
                f"{shown_names(similar)}; write the one that is meant"
            )
        if similar:
            return TablePath(path.database_name, similar[0])
        known = self._attachments.table_of(*self._qualified(name))
        if known is None:
            return path
        if is_changed:
            raise FlussError(
                f"There is no table '{path.table_name}' in {path.database_name}; it is what Spark calls "
                f"'{known.table}': write {quoted_name(path.database_name, known.table)} if that is meant"
            )
        return known.path

    def new_table(self, name: Name) -> TablePath | None:
        """Return the Fluss table of exactly this name; None if it is Spark's."""
        parts = name.parts
        if name.is_of_spark:
            return None
        if name.is_of_fluss and len(parts) > 1:
            if len(parts) > 3:
                raise FlussError(f"'{name}' is no table: write it as fluss.sales.orders")
            return TablePath(*parts[-2:])
        if len(parts) > 2:
            return None
        database, table = self._qualified(name)
        attached = self._attachments.database_of(database)
        return None if attached is None else TablePath(attached, table)

    def _qualified(self, name: Name) -> tuple[str, str]:
        """Return a name of one or two parts as database and table."""
        return name.parts[-2] if len(name.parts) > 1 else self._spark.catalog.currentDatabase(), name.parts[-1]

    def created_table(self, name: Name) -> TablePath:
        """Return the Fluss table that is about to be created, also in a database that is not attached."""
        path = self.new_table(name)
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
        for name in self._tables_or_views(parts):
            entry = self._attachments.attach_one(name)
            if entry is not None:
                return entry.sql_name
        return None

    def _tables_or_views(self, parts: tuple[str, ...]) -> Iterator[TableName]:
        """Yield what a name may mean: first the table of this very name, if there is one."""
        database, table = parts[-2:]
        known = None
        if parts[0].lower() != FLUSS_CATALOG:
            attached = self._attachments.database_of(database)
            if attached is None:
                return
            known = self._attachments.table_of(database, table)
            database = attached
        with suppress(FlussError):
            yield table_name(f"{database}.{table}")
        if known is not None:
            yield known


def with_spark_names(text: str, tokens: list[Token], spark_name_of: Callable[[tuple[str, ...]], str | None]) -> str:
    """Replace names of tables. ``spark_name_of`` gets the parts of a name, and returns what to write, if anything.

    It is asked about ``fluss.sales.orders`` and about ``sales.orders``, also where they are only the beginning of the
    name of a column. Everything else, comments and spaces too, stays as it is.
    """
    pieces: list[str] = []
    position = 0
    for parts in _dotted_names(tokens):
        for length in (3, 2) if parts[0].value.lower() == FLUSS_CATALOG else (2,):
            named = parts[:length]
            replacement = spark_name_of(tuple(token.value for token in named)) if len(named) == length else None
            if replacement is not None:
                pieces += [text[position : named[0].start], replacement]
                position = named[-1].stop
                break
    return "".join([*pieces, text[position:]])


def _dotted_names(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yield the parts of every name that has dots in it."""
    index = 0
    while index < len(tokens):
        parts: list[Token] = []
        while tokens[index].is_name:
            parts.append(tokens[index])
            if not (tokens[index + 1].is_symbol(".") and tokens[index + 2].is_name):
                break
            index += 2
        index += 1
        if len(parts) > 1:
            yield parts


# What SHOW and DESCRIBE answer: tables of text, with the columns that answers of Spark have


def _show_databases(names: Iterable[str], pattern: str | None) -> pa.Table:
    return _table(namespace=_matching(names, pattern))


def _show_tables(database: str, names: Iterable[str], pattern: str | None) -> pa.Table:
    found = _matching(names, pattern)
    return pa.table(
        {
            "namespace": pa.array([database] * len(found), pa.string()),
            "tableName": pa.array(found, pa.string()),
            "isTemporary": pa.array([False] * len(found), pa.bool_()),
        }
    )


def _show_partitions(found: Sequence[PartitionInfo], partition_keys: Sequence[str]) -> pa.Table:
    return _table(partition=[qualified_partition_name(info.get_partition_spec(), partition_keys) for info in found])


def _show_properties(info: TableInfo, key: str | None) -> pa.Table:
    shown = shown_properties(info)
    if key is not None:
        shown = {key: shown.get(key, f"Table {info.table_path} does not have property: {key}")}
    return _table(key=list(shown), value=list(shown.values()))


def _show_create_table(info: TableInfo) -> pa.Table:
    """Return the statement that creates such a table again; types are as exact as Spark can say them."""
    path = info.table_path
    lines = [StructType([field]).toDDL() for field in declared_schema(info, spark_schema(info.schema))]
    if info.primary_keys:
        lines.append(f"PRIMARY KEY ({_shown_names(info.primary_keys)})")
    statement = (
        f"CREATE TABLE fluss.{quoted_name(path.database_name, path.table_name)} (\n  " + ",\n  ".join(lines) + ")"
    )
    if info.partition_keys:
        statement += f"\nPARTITIONED BY ({_shown_names(info.partition_keys)})"
    if info.comment is not None:
        statement += f"\nCOMMENT {quoted_string(info.comment)}"
    entries = (f"{quoted_string(key)} = {quoted_string(value)}" for key, value in shown_properties(info).items())
    statement += "\nTBLPROPERTIES (\n  " + ",\n  ".join(entries) + ")"
    return _table(createtab_stmt=[statement])


def _describe_database(info: DatabaseInfo) -> pa.Table:
    descriptor = info.database_descriptor
    facts = {
        "Catalog Name": "fluss",
        "Namespace Name": info.database_name,
        "Comment": descriptor.comment or "",
        "Properties": _shown_map(descriptor.custom_properties),
        "Created": _shown_time(info.created_time),
    }
    return _table(info_name=list(facts), info_value=list(facts.values()))


def _describe_table(info: TableInfo, *, is_extended: bool) -> pa.Table:
    """Return columns and keys, and if asked everything else that is known of a table."""
    columns = {
        field.name: (field.name, field.dataType.simpleString(), _comment(field.metadata))
        for field in declared_schema(info, spark_schema(info.schema))
    }
    rows: list[_DescribeRow] = list(columns.values())
    for title, names in (("# Primary Key", info.primary_keys), ("# Partition Information", info.partition_keys)):
        if names:
            rows += [(title, "", ""), ("# col_name", "data_type", "comment"), *(columns[name] for name in names)]
    if is_extended:
        rows += [("", "", ""), ("# Detailed Table Information", "", ""), *_facts(info)]
    names_, types, comments = zip(*rows, strict=True)
    return _table(col_name=names_, data_type=types, comment=comments)


def _facts(info: TableInfo) -> Iterable[_DescribeRow]:
    facts = {
        "Catalog": "fluss",
        "Database": info.table_path.database_name,
        "Table": info.table_path.table_name,
        "Type": "primary-key table" if info.has_primary_key() else "log table",
        "Table Id": str(info.table_id),
        "Schema Id": str(info.schema_id),
        "Buckets": str(info.num_buckets),
        "Bucket Key": ", ".join(info.bucket_keys),
        "Log Format": info.log_format.value,
        "Created": _shown_time(info.created_time),
        "Modified": _shown_time(info.modified_time),
        "Comment": info.comment or "",
        "Table Properties": _shown_map({**info.properties, **info.custom_properties}),
    }
    return [(name, value, "") for name, value in facts.items() if value]


def _comment(metadata: Mapping[str, object] | None) -> str | None:
    comment = (metadata or {}).get("comment")
    return None if comment is None else str(comment)


def _matching(names: Iterable[str], pattern: str | None) -> list[str]:
    """Return the names that match a pattern as Spark has it: ``*`` is any text, ``|`` separates alternatives."""
    if pattern is None:
        return sorted(names)
    alternatives = (".*".join(map(re.escape, part.strip().split("*"))) for part in pattern.split("|"))
    matches = re.compile("|".join(alternatives), re.IGNORECASE).fullmatch
    return sorted(name for name in names if matches(name))


def _shown_names(names: Sequence[str]) -> str:
    return ", ".join(map(quoted_name, names))


def _shown_map(values: Mapping[str, str]) -> str:
    return f"[{','.join(f'{key}={value}' for key, value in sorted(values.items()))}]" if values else ""


def _shown_time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _table(**columns: Sequence[str | None]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
