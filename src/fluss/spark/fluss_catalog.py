"""Databases, tables and partitions of a Fluss cluster, from a program that uses Spark.

The columns of a new table may be given in several forms (``ColumnsLike``). Its properties are one list, as in SQL
(``table_shape``).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from fluss import FlussAdmin
from fluss.client.bulk import wait_for
from fluss.errors import FlussError
from fluss.schema.descriptor import DatabaseDescriptor, DatabaseInfo
from fluss.schema.schema import AggFunction, Column, Schema
from fluss.schema.table import PartitionInfo, PartitionSpec, TableInfo, TablePath
from fluss.schema.value_objects import string_list
from fluss.spark.connections import await_answer, open_connection
from fluss.spark.naming import table_path
from fluss.spark.table_shape import COMMENT, COMMENT_STAYS, TableShape
from fluss.spark.text_limits import limit_properties
from fluss.spark.type_mapping import fluss_schema, spark_schema

T = TypeVar("T")
# A Spark schema, its text form, the columns of a DataFrame, or a schema of Arrow or of this library.
ColumnsLike: TypeAlias = spark.StructType | str | DataFrame | pa.Schema | Schema


class FlussCatalog:
    """Creates, describes and drops what a cluster holds. Get it from ``FlussSpark.catalog``.

    Tables are named ``database.table``. What the cluster refuses is a ``FlussError`` with its code. Names that are
    attached to Spark follow what is done here. May be used by several threads.
    """

    def __init__(self, settings: Mapping[str, str], on_change: Callable[[str, str | None], None] | None = None) -> None:
        """Use the cluster of these client settings. ``on_change`` hears of database and table whenever one changes."""
        self._settings = dict(settings)
        self._on_change = on_change

    def _ask(self, question: Callable[[FlussAdmin], Awaitable[T]]) -> T:
        """Ask a question that changes nothing; a cluster that is away for a moment is waited for."""
        return await_answer(self._settings, lambda: wait_for(question(open_connection(self._settings).get_admin())))

    def _change(self, change: Callable[[FlussAdmin], Awaitable[T]]) -> T:
        """Change something, once: a second time it could be refused because the first time worked."""
        connection = await_answer(self._settings, lambda: open_connection(self._settings))
        return wait_for(change(connection.get_admin()))

    def _changed(self, database: str, table: str | None = None) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(database, table)
        except Exception as error:
            error.add_note(f"In Fluss the change of {database}{f'.{table}' if table else ''} has been made.")
            raise

    # Databases

    def create_database(
        self,
        name: str,
        *,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
        if_not_exists: bool = False,
    ) -> None:
        """Create a database; code 6 if it exists."""
        descriptor = DatabaseDescriptor(comment, properties)
        self._change(lambda admin: admin.create_database(name, descriptor, if_not_exists))

    def alter_database(
        self,
        name: str,
        *,
        comment: str | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] = (),
    ) -> None:
        """Change the comment of a database, which an empty one removes, and properties. Code 4 if it is missing."""
        keys = string_list("reset_properties", reset_properties)
        self._change(
            lambda admin: admin.alter_database(
                name, comment=comment, set_properties=set_properties or {}, reset_properties=keys
            )
        )

    def drop_database(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None:
        """Drop a database; code 4 if it is missing, 5 if it has tables and ``cascade`` lets them stay."""
        self._change(lambda admin: admin.drop_database(name, if_exists, cascade))
        self._changed(name)

    def list_databases(self) -> list[str]:
        """List the databases, sorted by name."""
        return sorted(self._ask(lambda admin: admin.list_databases()))

    def database_exists(self, name: str) -> bool:
        """Whether there is a database of this name."""
        return self._ask(lambda admin: admin.database_exists(name))

    def database_info(self, name: str) -> DatabaseInfo:
        """Describe a database; code 4 if it is missing."""
        return self._ask(lambda admin: admin.get_database_info(name))

    # Tables

    def create_table(
        self,
        table: str | TablePath,
        columns: ColumnsLike,
        *,
        primary_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        bucket_count: int | None = None,
        bucket_keys: Sequence[str] = (),
        aggregations: Mapping[str, AggFunction | str] | None = None,
        auto_increment_column: str | None = None,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
        if_not_exists: bool = False,
    ) -> None:
        """Create a table; code 8 if it exists, 4 if its database is missing.

        ``columns`` are a Spark schema, its text (``"id BIGINT, name STRING"``), a DataFrame that has them, or a
        schema of Arrow or of ``fluss``. With ``primary_keys`` rows are written over by key. Without ``bucket_count``
        the server decides; without ``bucket_keys`` rows go by primary key, or round about. ``properties`` take options
        such as ``table.log.ttl``, and properties of the user's own.
        """
        schema = schema_of(columns)
        functions = {
            name: AggFunction.of(function) if isinstance(function, str) else function
            for name, function in (aggregations or {}).items()
        }
        shape = TableShape(
            primary_keys=tuple(string_list("primary_keys", primary_keys)) or tuple(schema.get_primary_keys()),
            partition_keys=tuple(string_list("partition_keys", partition_keys)),
            bucket_keys=tuple(string_list("bucket_keys", bucket_keys)),
            bucket_count=bucket_count,
            aggregations=functions or {c.name: c.aggregation for c in schema.columns if c.aggregation is not None},
            auto_increment_columns=tuple(
                schema.get_auto_increment_columns() if auto_increment_column is None else [auto_increment_column]
            ),
            comment=comment,
        ).with_properties({**limit_properties_of(columns), **(properties or {})})
        path = table_path(table)
        descriptor = shape.descriptor(schema)
        self._change(lambda admin: admin.create_table(path, descriptor, if_not_exists))
        self._changed(path.database_name, path.table_name)

    def drop_table(self, table: str | TablePath, *, if_exists: bool = False) -> None:
        """Drop a table with all its data; code 7 if it is missing."""
        path = table_path(table)
        self._change(lambda admin: admin.drop_table(path, if_exists))
        self._changed(path.database_name, path.table_name)

    def alter_table(
        self,
        table: str | TablePath,
        *,
        add_columns: ColumnsLike | Sequence[Column | pa.Field] | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] = (),
    ) -> None:
        """Add columns at the end, and change properties; code 7 if the table is missing, 56 if it cannot be done.

        New columns must be nullable. The server changes either columns or properties at a time: when both are given
        and the second change is refused, the first one has been made.
        """
        path = table_path(table)
        if COMMENT in {*(set_properties or ()), *reset_properties}:
            # Spark takes this property for the comment; in Fluss it would be another text beside it.
            raise FlussError(f"{path}: {COMMENT_STAYS}")
        if add_columns is not None:
            new_columns = added_columns(add_columns)
            set_properties = {**limit_properties_of(add_columns), **(set_properties or {})}
            self._change(lambda admin: admin.alter_table(path, add_columns=new_columns))
            self._changed(path.database_name, path.table_name)
        if set_properties or reset_properties:
            keys = string_list("reset_properties", reset_properties)
            self._change(
                lambda admin: admin.alter_table(path, set_properties=set_properties or {}, reset_properties=keys)
            )

    def list_tables(self, database: str) -> list[str]:
        """List the tables of a database, sorted by name; code 4 if it is missing."""
        return sorted(self._ask(lambda admin: admin.list_tables(database)))

    def table_exists(self, table: str | TablePath) -> bool:
        """Whether there is a table of this name."""
        path = table_path(table)
        return self._ask(lambda admin: admin.table_exists(path))

    def table_info(self, table: str | TablePath) -> TableInfo:
        """Describe a table as it is now; code 7 if it is missing."""
        path = table_path(table)
        return self._ask(lambda admin: admin.get_table_info(path))

    def table_schema(self, table: str | TablePath) -> spark.StructType:
        """Return the columns of a table as Spark has them."""
        return spark_schema(self.table_info(table).schema)

    # Partitions

    def add_partition(
        self, table: str | TablePath, spec: PartitionSpec | Mapping[str, str], *, if_not_exists: bool = False
    ) -> None:
        """Create a partition; code 42 if it exists, 43 if the spec does not fit the table."""
        path, partition = table_path(table), _spec(spec)
        self._change(lambda admin: admin.create_partition(path, partition, if_not_exists))

    def drop_partition(
        self, table: str | TablePath, spec: PartitionSpec | Mapping[str, str], *, if_exists: bool = False
    ) -> None:
        """Drop a partition with its data; code 36 if it is missing."""
        path, partition = table_path(table), _spec(spec)
        self._change(lambda admin: admin.drop_partition(path, partition, if_exists))

    def list_partitions(
        self, table: str | TablePath, spec: PartitionSpec | Mapping[str, str] | None = None
    ) -> list[PartitionInfo]:
        """List the partitions of a table, all or those with the given values, sorted by name."""
        path, partial = table_path(table), None if spec is None else _spec(spec)
        found = self._ask(lambda admin: admin.list_partition_infos(path, partial))
        return sorted(found, key=lambda partition: partition.partition_name)

    def __repr__(self) -> str:
        return f"FlussCatalog({self._settings.get('bootstrap.servers', '')!r})"


def _spec(spec: PartitionSpec | Mapping[str, str]) -> PartitionSpec:
    """Take the values of a partition as text, in which the server has them: a year may be given as a number."""
    if isinstance(spec, PartitionSpec):
        return spec
    return PartitionSpec({column: str(value) for column, value in spec.items()})


# Columns of a new table


def schema_of(columns: ColumnsLike) -> Schema:
    """Return the columns as those of a Fluss table, without keys; a type that Fluss does not have is a FlussError.

    Of a DataFrame every column may be null, as with CREATE TABLE AS: what a query returned says little about what a
    table will hold.
    """
    match columns:
        case Schema():
            return columns
        case pa.Schema():
            return Schema(columns)
        case str():
            return fluss_schema(struct_of_text(columns))
        case spark.StructType():
            return fluss_schema(columns)
        case DataFrame():
            return fluss_schema(nullable_struct(columns.schema))
    raise TypeError(
        "columns are a Spark schema, its text such as 'id BIGINT, name STRING', a DataFrame or a pyarrow.Schema, "
        f"got {type(columns).__name__}"
    )


def limit_properties_of(columns: ColumnsLike | Sequence[Column | pa.Field]) -> dict[str, str]:
    """Return the properties that keep what the types of Fluss do not say: the lengths of VARCHAR columns."""
    match columns:
        case str():
            return limit_properties(struct_of_text(columns))
        case spark.StructType():
            return limit_properties(columns)
    return {}


def added_columns(columns: ColumnsLike | Sequence[Column | pa.Field]) -> list[Column | pa.Field]:
    """Return columns that are to be added to a table."""
    if isinstance(columns, Sequence) and not isinstance(columns, str):
        return list(columns)
    return list(schema_of(columns).columns)


def struct_of_text(text: str) -> spark.StructType:
    """Read a schema in the form of CREATE TABLE with Spark's own parser."""
    try:
        struct = spark.DataType.fromDDL(text)
    except ParseException as error:
        raise FlussError(
            f"{text!r} is no list of columns such as 'id BIGINT, name STRING': {reason_of(error)}"
        ) from None
    if not isinstance(struct, spark.StructType):
        raise FlussError(f"{text!r} is one type, not a list of columns such as 'id BIGINT, name STRING'")
    return struct


def reason_of(error: ParseException) -> str:
    """Return the sentence of an error of Spark's parser, without the statement, of which it saw only a part."""
    first_line = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[[A-Z_.]+\]\s*|\s*SQLSTATE:.*$|\s*\(line \d+, pos \d+\).*$", "", first_line)


def nullable_struct(struct: spark.StructType) -> spark.StructType:
    """Return a schema in which everything may be null."""
    return spark.StructType(
        [spark.StructField(field.name, _nullable(field.dataType), True, field.metadata) for field in struct]
    )


def _nullable(data_type: spark.DataType) -> spark.DataType:
    match data_type:
        case spark.StructType():
            return nullable_struct(data_type)
        case spark.ArrayType():
            return spark.ArrayType(_nullable(data_type.elementType), True)
        case spark.MapType():
            return spark.MapType(_nullable(data_type.keyType), _nullable(data_type.valueType), True)
    return data_type
