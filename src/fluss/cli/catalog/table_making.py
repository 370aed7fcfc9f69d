"""A new table: from options of the command line, from a statement of SQL, or from the columns of a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import click

from fluss.cli.kernel.parameters import mapping_of, names_of
from fluss.cli.kernel.session import full_name
from fluss.errors import FlussError
from fluss.schema.arrow import data_type_from_arrow
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, Schema, schema_from_columns
from fluss.schema.type_parser import parse_type
from fluss.spark.sql.parser import head_of, parse
from fluss.spark.sql.statements import FLUSS_CATALOG, ColumnText, CreateTable
from fluss.spark.sql.tokens import fail, statement_tokens
from fluss.spark.table_shape import TableShape

_COLUMN: Final = re.compile(
    r"""(?:(?P<quoted>`(?:[^`]|``)+`|"(?:[^"]|"")+")|(?P<plain>[^\s`"]\S*))\s+(?P<type>\S.*)""", re.DOTALL
)


class NewTable(NamedTuple):
    """A table that is to be created."""

    path: str
    descriptor: TableDescriptor
    if_not_exists: bool = False


@dataclass(frozen=True)
class TableFlags:
    """What the options of ``fluss table create`` say beside the columns."""

    primary_key: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    bucket_key: Sequence[str] = ()
    buckets: int | None = None
    comment: str | None = None
    properties: Sequence[tuple[str, str]] = ()

    @property
    def is_empty(self) -> bool:
        return self == TableFlags()

    def shape(self) -> TableShape:
        return TableShape(
            primary_keys=tuple(names_of(self.primary_key)),
            partition_keys=tuple(names_of(self.partition_by)),
            bucket_keys=tuple(names_of(self.bucket_key)),
            bucket_count=self.buckets,
            comment=self.comment,
        ).with_properties(mapping_of(self.properties, "property"))


def from_statement(text: str) -> NewTable:
    """Read CREATE TABLE; anything else, and what is wrong in it, is a FlussError that shows the place."""
    tokens = statement_tokens(text)
    head = head_of(tokens)
    if head is None or head.kind is not CreateTable:
        raise FlussError(
            "only CREATE TABLE is taken here, such as: CREATE TABLE sales.orders (id BIGINT, price DECIMAL(10, 2), "
            "PRIMARY KEY (id))"
        )
    statement = parse(text, tokens, head)
    assert isinstance(statement, CreateTable)
    if statement.query is not None:
        fail(text, statement.name.position, "CREATE TABLE AS is a matter of `fluss spark sql`")
    parts = statement.name.parts
    if len(parts) == 3 and parts[0].lower() == FLUSS_CATALOG:
        parts = parts[1:]
    if len(parts) > 2:
        fail(text, statement.name.position, f"'{statement.name}' names no table; write DATABASE.TABLE")
    columns = [_column(each, text) for each in statement.columns]
    shape = TableShape(
        primary_keys=statement.primary_keys,
        partition_keys=statement.partition_keys,
        bucket_keys=statement.bucket_keys,
        bucket_count=statement.bucket_count,
        comment=statement.comment,
    ).with_properties(statement.properties)
    descriptor = shape.descriptor(schema_from_columns(columns))
    return NewTable(full_name(".".join(parts)), descriptor, statement.if_not_exists)


def _column(column: ColumnText, text: str) -> Column:
    try:
        data_type = parse_type(column.type_text)
    except FlussError as error:
        fail(text, column.position, f"the type of column '{column.name}' is not understood: {error.message}")
    return Column(column.name, data_type if column.nullable else data_type.not_null(), column.comment)


def column_of(text: str) -> Column:
    """Read a column of an option: ``'price DECIMAL(10, 2)'``, or ``'`unit price` INT'``."""
    found = _COLUMN.fullmatch(text.strip())
    if found is None:
        raise click.UsageError(f"'{text}' is no column: write its name and its type, such as 'price DECIMAL(10, 2)'")
    if found["quoted"] is not None:
        quote = found["quoted"][0]
        name = found["quoted"][1:-1].replace(quote * 2, quote)
    else:
        name = found["plain"]
    return Column(name, parse_type(found["type"]))


def from_columns(path: str, columns: Sequence[str], flags: TableFlags) -> NewTable:
    """Make a table of columns that are given one by one."""
    return NewTable(path, flags.shape().descriptor(schema_from_columns([column_of(text) for text in columns])))


def from_file(path: str, file: str, flags: TableFlags, *, overrides: Sequence[str] = ()) -> NewTable:
    """Make a table with the columns of a file; ``overrides`` are columns that have another type, or come besides."""
    from fluss.cli.rows.file_schemas import schema_of_file

    found = schema_of_file(file)
    # Fields of a ROW get ids with their columns; those of a schema have some already.
    types = {field.name: data_type_from_arrow(field.type, field.nullable) for field in found}
    columns = {each.name: Column(each.name, types[each.name], each.comment) for each in Schema(found).columns}
    for text in overrides:
        column = column_of(text)
        columns[column.name] = column
    # The ids are those of the new schema.
    plain = [Column(each.name, each.data_type, each.comment) for each in columns.values()]
    return NewTable(path, flags.shape().descriptor(schema_from_columns(plain)))
