"""The beginning of an upsert: chooses columns, and makes writers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

import pyarrow as pa

from fluss.client.write.result import WriteResultHandle
from fluss.client.write.upsert_writer import UpsertWriter
from fluss.client.write.writer_client import WriterClient
from fluss.errors import FlussError
from fluss.schema.schema import Schema, shown_names
from fluss.schema.table import TableInfo
from fluss.schema.value_objects import string_list


class TableUpsert:
    """Makes writers for one table with a primary key; see ``FlussTable.new_upsert``.

    It never changes: the methods that choose columns return a new one. It can also be used as a writer itself, with
    all methods of ``UpsertWriter``; the writer is made by the first of them.
    """

    def __init__(
        self,
        writer_client: Callable[[], WriterClient],
        table_info: TableInfo,
        columns: Sequence[str] | None = None,
        column_indices: Sequence[int] | None = None,
    ) -> None:
        """``columns`` or ``column_indices`` choose what a partial update writes; without them, it is the whole row."""
        if columns is not None and column_indices is not None:
            raise FlussError("Give the columns of a partial update by name or by index, not both")
        self._writer_client = writer_client
        self._info = table_info
        self._targets: tuple[int, ...] | None = None
        if columns is not None:
            self._targets = _indexes_of(columns, table_info.schema)
        elif column_indices is not None:
            self._targets = _checked_indexes(column_indices, table_info.schema)
        self._own_writer: UpsertWriter | None = None

    # Choosing columns

    def partial_update_by_name(self, columns: Sequence[str]) -> TableUpsert:
        """Return a builder whose writers write these columns only; the others keep their values.

        The primary key must be among them, and all other columns of the table must be able to be null. A column that
        is named twice counts once.
        """
        return TableUpsert(self._writer_client, self._info, columns=columns)

    def partial_update_by_index(
        self, column_indices: Sequence[int] | None = None, *, indices: Sequence[int] | None = None
    ) -> TableUpsert:
        """Return a builder whose writers write the columns at these positions only; as by name.

        Guides call the argument ``indices``, releases ``column_indices``; one of the two is needed.
        """
        chosen = column_indices if indices is None else indices
        if chosen is None or None not in (column_indices, indices):
            raise TypeError("partial_update_by_index() takes column_indices, which may also be named indices, once")
        return TableUpsert(self._writer_client, self._info, column_indices=chosen)

    def partial_update(self, column_indices: Sequence[int] | None = None) -> TableUpsert:
        """Return a builder for the columns at these positions, or for whole rows."""
        return TableUpsert(self._writer_client, self._info, column_indices=column_indices)

    def partial_update_with_column_names(self, columns: Sequence[str]) -> TableUpsert:
        """Return a builder for these columns: another name of ``partial_update_by_name``."""
        return self.partial_update_by_name(columns)

    def create_writer(self) -> UpsertWriter:
        """Return a new writer. It needs no closing: closing the connection sends what was written."""
        return UpsertWriter(self._writer_client(), self._info, self._checked_targets())

    def _checked_targets(self) -> tuple[int, ...]:
        """Return the positions of the columns that are written, none for all of them, or say why they cannot be."""
        if self._targets is None:
            _check_whole_rows(self._info.schema)
            return ()
        _check_targets(self._targets, self._info.schema)
        return self._targets

    # As a writer

    def _writer(self) -> UpsertWriter:
        # Two threads may make one each; both work, and one of them stays.
        writer = self._own_writer
        if writer is None:
            writer = self._own_writer = self.create_writer()
        return writer

    def upsert(self, row: Any) -> WriteResultHandle:
        """Insert or update a row; see ``UpsertWriter.upsert``."""
        return self._writer().upsert(row)

    def delete(self, pk: Any) -> WriteResultHandle:
        """Delete the row of a key; see ``UpsertWriter.delete``."""
        return self._writer().delete(pk)

    def upsert_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Upsert an Arrow batch; see ``UpsertWriter.upsert_arrow_batch``."""
        return self._writer().upsert_arrow_batch(batch)

    def upsert_arrow(self, data: Any) -> None:
        """Upsert Arrow data; see ``UpsertWriter.upsert_arrow``."""
        self._writer().upsert_arrow(data)

    def delete_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Delete the rows of many keys; see ``UpsertWriter.delete_arrow_batch``."""
        return self._writer().delete_arrow_batch(batch)

    def delete_arrow(self, keys: Any) -> None:
        """Delete the rows of many keys; see ``UpsertWriter.delete_arrow``."""
        self._writer().delete_arrow(keys)

    def write_pandas(self, df: Any) -> None:
        """Upsert a pandas data frame; see ``UpsertWriter.write_pandas``."""
        self._writer().write_pandas(df)

    async def flush(self) -> None:
        """Send everything that was written on this connection, and wait until it is stored."""
        await self._writer().flush()

    async def __aenter__(self) -> Self:
        self._writer()
        return self

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> bool:
        return await self._writer().__aexit__(exception_type, *exception)

    def __repr__(self) -> str:
        return "TableUpsert()"


def _indexes_of(names: Sequence[str], schema: Schema) -> tuple[int, ...]:
    known = schema.column_names
    for name in string_list("columns", names):
        if name not in known:
            raise FlussError(f"Cannot find target column '{name}'; columns are {shown_names(known)}")
    return tuple(dict.fromkeys(map(schema.index_of, names)))


def _checked_indexes(column_indices: Sequence[int], schema: Schema) -> tuple[int, ...]:
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
