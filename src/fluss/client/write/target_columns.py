"""Target columns: which columns of a table with a primary key a writer writes, and whether it may."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from fluss.errors import FlussError
from fluss.schema.schema import Schema, shown_names
from fluss.schema.table import TableInfo
from fluss.schema.value_objects import string_list


def checked_targets(info: TableInfo, columns: Sequence[str] | None) -> tuple[int, ...]:
    """Return the positions of the columns that are written, none for all of them; columns by name, None for all.

    Columns that cannot be written are a FlussError.
    """
    return checked_positions(info.schema, None if columns is None else indexes_of(columns, info.schema))


def checked_positions(schema: Schema, targets: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the positions of the columns that are written, none for all of them, or say why they cannot be."""
    if targets is None:
        _check_whole_rows(schema)
        return ()
    _check_targets(targets, schema)
    return targets


def indexes_of(names: Sequence[str], schema: Schema) -> tuple[int, ...]:
    """Return the positions of columns, each once; a name that the schema does not have is a FlussError."""
    known = schema.column_names
    for name in string_list("columns", names):
        if name not in known:
            raise FlussError(f"Cannot find target column '{name}'; columns are {shown_names(known)}")
    return tuple(dict.fromkeys(map(schema.index_of, names)))


def checked_indexes(column_indices: Sequence[int], schema: Schema) -> tuple[int, ...]:
    """Return positions of columns, each once; those that the schema does not have are refused."""
    indexes = [operator.index(index) for index in column_indices]
    count = len(schema.column_names)
    for index in indexes:
        if index < 0:
            raise OverflowError(f"a target column index cannot be negative, got {index}")
        if index >= count:
            raise FlussError(f"Invalid target column index: {index}; the table has {count} columns")
    return tuple(dict.fromkeys(indexes))


def _check_whole_rows(schema: Schema) -> None:
    for name in schema.get_auto_increment_columns():
        others = [other for other in schema.column_names if other != name]
        raise FlussError(
            f"'{name}' is an auto increment column, whose values the server makes up; write the other columns with "
            f"partial_update_by_name({others})"
        )


def _check_targets(targets: Sequence[int], schema: Schema) -> None:
    names = [schema.column_names[index] for index in targets]
    primary_key = schema.get_primary_keys()
    missing = [name for name in primary_key if name not in names]
    if missing:
        raise FlussError(
            f"The target columns of a partial update must contain the primary key columns; {shown_names(missing)} "
            "is not among them"
        )
    for name in schema.get_auto_increment_columns():
        if name in names:
            raise FlussError(
                f"'{name}' is an auto increment column, whose values the server makes up; it cannot be a target column"
            )
    for column in schema.columns:
        if not column.data_type.nullable and column.name not in primary_key:
            raise FlussError(
                f"A partial update needs all columns but the primary key to be nullable, and '{column.name}' is "
                f"{column.data_type}; write whole rows"
            )
