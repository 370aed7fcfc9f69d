"""The writers that users hold: they take rows and Arrow data, and hand them to the writer of the connection.

    TableAppend  -> AppendWriter   appends to a log table
    TableUpsert  -> UpsertWriter   upserts and deletes rows of a table with a primary key, or some of their columns

``WriterBase`` is what both writers have in common: how rows and Arrow data come into blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa

from fluss.client.kernel.runtime import AwaitsItself
from fluss.client.write import arrow_input
from fluss.client.write.blocks import Block, RowDestination, raise_first
from fluss.client.write.encoders import BY_KEY, TableEncoder
from fluss.client.write.result import CompletedWrite, JoinedWrites, PendingWrite, WriteResultHandle
from fluss.client.write.row_compiler import RowSink, append_function, delete_function
from fluss.client.write.row_layout import DELETE_MARK
from fluss.client.write.target_columns import checked_indexes, checked_positions, indexes_of
from fluss.errors import FlussError
from fluss.retry import checked_timeout_s
from fluss.row.arrow_arrays import empty_batch
from fluss.schema.fitting import DataFitter
from fluss.schema.normalize import normalize_array, normalize_batch
from fluss.schema.schema import Schema, schema_from_columns, shown_names
from fluss.schema.table import TableInfo
from fluss.schema.types import TypeRoot

if TYPE_CHECKING:
    from fluss.client.write.writer_client import WriterClient

# Partitions that a writer finds by the values of its last rows. More than this many are looked up by name.
_DESTINATIONS_MAX: Final = 10_000
# Returns a batch in the physical form in which it is written, or refuses it.
BatchCheck: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
# Equal values of these types can have different texts (0.0 and -0.0), so values do not lead to partitions.
_UNEQUAL_ROOTS: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)


class TableAppend:
    """Makes writers for one log table; see ``FlussTable.new_append``."""

    def __init__(self, writer_client: Callable[[], WriterClient], table_info: TableInfo) -> None:
        self._writer_client = writer_client
        self._info = table_info

    def create_writer(self) -> AppendWriter:
        """Return a new writer. It needs no closing: closing the connection sends what was written."""
        return AppendWriter(self._writer_client(), self._info)

    def __repr__(self) -> str:
        return "TableAppend()"


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
            self._targets = indexes_of(columns, table_info.schema)
        elif column_indices is not None:
            self._targets = checked_indexes(column_indices, table_info.schema)
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
        return UpsertWriter(self._writer_client(), self._info, checked_positions(self._info.schema, self._targets))

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

    def upsert_many(self, rows: Iterable[Any]) -> WriteResultHandle:
        """Insert or update many rows; see ``UpsertWriter.upsert_many``."""
        return self._writer().upsert_many(rows)

    def delete_many(self, pks: Iterable[Any]) -> WriteResultHandle:
        """Delete the rows of many keys; see ``UpsertWriter.delete_many``."""
        return self._writer().delete_many(pks)

    def upsert_arrow_batch(self, batch: pa.RecordBatch, *, strict: bool = False) -> WriteResultHandle:
        """Upsert an Arrow batch; see ``UpsertWriter.upsert_arrow_batch``."""
        return self._writer().upsert_arrow_batch(batch, strict=strict)

    def upsert_arrow(self, data: Any, *, strict: bool = False) -> None:
        """Upsert Arrow data; see ``UpsertWriter.upsert_arrow``."""
        self._writer().upsert_arrow(data, strict=strict)

    def delete_arrow_batch(self, batch: pa.RecordBatch, *, strict: bool = False) -> WriteResultHandle:
        """Delete the rows of many keys; see ``UpsertWriter.delete_arrow_batch``."""
        return self._writer().delete_arrow_batch(batch, strict=strict)

    def delete_arrow(self, keys: Any, *, strict: bool = False) -> None:
        """Delete the rows of many keys; see ``UpsertWriter.delete_arrow``."""
        self._writer().delete_arrow(keys, strict=strict)

    def write_pandas(self, df: Any, *, strict: bool = False) -> None:
        """Upsert a pandas data frame; see ``UpsertWriter.write_pandas``."""
        self._writer().write_pandas(df, strict=strict)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything that was written, and wait until it is stored; see ``UpsertWriter.flush``."""
        await self._writer().flush(timeout)

    async def __aenter__(self) -> Self:
        self._writer()
        return self

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> Literal[False]:
        return await self._writer().__aexit__(exception_type, *exception)

    def __repr__(self) -> str:
        return "TableUpsert()"


class WriterBase:
    """Base of the writers of one table. May be shared by threads and event loops."""

    def __init__(self, client: WriterClient, encoder: TableEncoder) -> None:
        self._client = client
        self._info = info = encoder.info
        self._encoder = encoder
        # It stands for this writer where rows of several writers are together.
        self._owner = object()
        # Where rows go: one destination, or one per partition that was written to, by name and by partition values.
        self._destination = None if info.is_partitioned() else client.destination(encoder, None, self._owner)
        self._destinations_by_name: dict[str, RowDestination] = {}
        self._destinations_by_values: dict[Any, RowDestination] = {}
        self._forgotten_count = client.forgotten_count
        key_roots = [info.schema.column(name).data_type.root for name in info.partition_keys]
        self._values_name_partitions = not any(root in _UNEQUAL_ROOTS for root in key_roots)

    # Rows

    def _row_sink(self, pack_any: Callable[[Any], tuple[bytes, str | None]]) -> RowSink:
        """Return where a compiled function puts its rows; ``pack_any`` packs those that are not ordinary."""
        return RowSink(
            destination=self._destination,
            destinations=self._destinations_by_values,
            find_destination=self._find_destination,
            append_any=partial(self._append_any, pack_any),
            append_packed=self._append_packed,
            append_late=self._append_late,
        )

    def _append_any(self, pack_any: Callable[[Any], tuple[bytes, str | None]], row: Any) -> WriteResultHandle:
        try:
            packed_row, partition_name = pack_any(row)
        except FlussError as error:
            # What is wrong is in the message, and in the line of the user.
            raise error.with_traceback(None) from error.__cause__
        destination = self._destination if partition_name is None else self._destination_of(partition_name)
        assert destination is not None, "a row has a partition, or the table has none"
        return self._append_packed(destination, packed_row, destination.block)

    def _append_packed(self, destination: RowDestination, packed_row: bytes, hint: Block) -> WriteResultHandle:
        return _row_handle(self._client.accumulator.append(destination, packed_row, hint), packed_row)

    def _append_late(self, destination: RowDestination, packed_row: bytes, block: Block) -> WriteResultHandle:
        """Go on with a row that was added to a block while another thread closed it."""
        if self._client.accumulator.take_back_late(block, packed_row):
            return self._append_packed(destination, packed_row, block)
        return _row_handle(block, packed_row)

    def _find_destination(self, values: Any) -> RowDestination:
        """Find the destination of a row by its partition values."""
        destination = self._destination_of(self._encoder.layout.partition_name(values))
        if self._values_name_partitions:
            if len(self._destinations_by_values) >= _DESTINATIONS_MAX:
                self._destinations_by_values.clear()
            self._destinations_by_values[values] = destination
        return destination

    def _destination_of(self, partition_name: str) -> RowDestination:
        destination = self._destinations_by_name.get(partition_name)
        if destination is None:
            if self._forgotten_count != self._client.forgotten_count:
                self._forget_gone_partitions()
            if len(self._destinations_by_name) >= _DESTINATIONS_MAX:
                self._destinations_by_name.clear()
            destination = self._destinations_by_name[partition_name] = self._client.destination(
                self._encoder, partition_name, self._owner
            )
        return destination

    def _forget_gone_partitions(self) -> None:
        self._forgotten_count = self._client.forgotten_count
        found: dict[Any, RowDestination]
        for found in (self._destinations_by_name, self._destinations_by_values):
            # Another thread may write with one right now: it finds it again.
            for key, destination in list(found.items()):
                if destination.table.is_gone:
                    found.pop(key, None)

    def _append_many(self, append: Callable[[Any], WriteResultHandle], rows: Iterable[Any]) -> WriteResultHandle:
        """Write rows one by one, and return the handle of all of them."""
        arrow_input.check_rows(rows)
        writes: dict[int, PendingWrite] = {}
        count = 0
        try:
            for row in rows:
                write = append(row)._write
                writes[id(write)] = write
                count += 1
        except FlussError as error:
            raise type(error)(
                f"Row {count} was not written, the {count} before it were: {error.message}", error.error_code
            ) from None
        return WriteResultHandle(JoinedWrites(list(writes.values())))

    # Arrow

    def _write_batch(self, batch: Any, check: BatchCheck, fitter: DataFitter | None) -> WriteResultHandle:
        """Write one batch, if ``check`` takes it, after ``fitter`` has brought it into form."""
        blocks = self._write(_checked_all(arrow_input.record_batch(batch), check, fitter))
        if not blocks:
            return WriteResultHandle(CompletedWrite())
        return WriteResultHandle(blocks[0] if len(blocks) == 1 else JoinedWrites(blocks))

    def _write_data(self, data: Any, check: BatchCheck, fitter: DataFitter | None) -> None:
        """Write Arrow data of any kind. What is all there is checked before the first row is written."""
        if not arrow_input.is_stream(data):
            self._write(_checked_all(arrow_input.record_batches(data), check, fitter))
            return
        with arrow_input.record_batch_stream(data) as reader:
            _checked(empty_batch(reader.schema), 0, check, fitter)
            row_first = 0
            while True:
                with arrow_input.readable():
                    batch = next(reader, None)
                if batch is None:
                    return
                self._write([_checked(batch, row_first, check, fitter)])
                row_first += batch.num_rows

    def _write(self, batches: Sequence[pa.RecordBatch]) -> list[Block]:
        for batch in batches:
            self._client.check_sizes(batch)
        return [block for batch in batches for block in self._client.write_arrow(self._encoder, batch, self._owner)]

    # The end

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything that was written on this connection, and wait until the rows of this writer are stored.

        Raises the first failure of its rows, also of those whose handles were not waited for; it waits for all of them
        even so. Rows of other writers, and rows that are written in the meantime, are not waited for.

        After ``timeout`` seconds it raises RequestTimeoutError (code 25), which says what is not stored and why. The
        rows are sent even so: another flush waits for them.
        """
        timeout_s = checked_timeout_s("timeout", timeout)
        waiting = self._client.flush(self._owner, self._info.table_id, timeout_s)
        raise_first(await self._client.runtime.bridge(waiting, cancels=True), self._owner)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exception_type: type[BaseException] | None, *exception: object) -> Literal[False]:
        try:
            await self.flush()
        except FlussError:
            if exception_type is None:
                raise
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _checked_all(
    batches: Sequence[pa.RecordBatch], check: BatchCheck, fitter: DataFitter | None
) -> list[pa.RecordBatch]:
    starts = itertools.accumulate((batch.num_rows for batch in batches), initial=0)
    return [_checked(batch, start, check, fitter) for batch, start in zip(batches, starts, strict=False)]


def _checked(batch: pa.RecordBatch, row_first: int, check: BatchCheck, fitter: DataFitter | None) -> pa.RecordBatch:
    """Fit a batch whose first row has a number, and check it; a refusal names the row where it can."""
    fitted = batch if fitter is None else fitter.fit(batch, row_first)
    try:
        return check(fitted)
    except FlussError as error:
        if fitter is not None and fitted is batch:
            fitter.explain(batch, row_first, error)
        raise


def _row_handle(block: Block, packed_row: bytes) -> WriteResultHandle:
    handle = WriteResultHandle(block)
    if block.bucket_id is BY_KEY:
        # The block has rows of several buckets, and each of them can fail alone.
        handle._packed_row = packed_row
    return handle


class AppendWriter(AwaitsItself, WriterBase):
    """Appends to one log table. May be shared by threads and event loops; it may also be awaited.

    Calls return as soon as the rows are taken; they are sent in the background, in batches. Rows of one thread stay in
    order within their bucket. When the memory for unsent rows is full, calls wait. A row that does not fit the table is
    refused, and does not affect others.
    """

    def __init__(self, client: WriterClient, table_info: TableInfo) -> None:
        encoder = client.log_encoder(table_info)
        super().__init__(client, encoder)
        layout = encoder.layout
        self._fitter = DataFitter(table_info.schema)
        self._append = append_function(layout, self._row_sink(layout.pack_any))
        # The same as the method below, with a call less per row.
        self.append = self._append  # type: ignore[method-assign,assignment]  # it hides the method on purpose

    def append(self, row: Any) -> WriteResultHandle:
        """Append a row: a dict by column name, or a list or tuple in the order of the columns.

        Columns that may be null can be left out of a dict. A row that does not fit is a FlussError, and nothing is
        written.
        """
        return self._append(row)

    def append_many(self, rows: Iterable[Any]) -> WriteResultHandle:
        """Append any number of rows, each as ``append`` takes it; one handle waits for all of them.

        The rows may come from a generator; when the memory for unsent rows is full, it waits. A row that does not fit
        is a FlussError with its number, counted from 0; those before it are written.
        """
        return self._append_many(self._append, rows)

    def write_arrow_batch(self, batch: pa.RecordBatch, *, strict: bool = False) -> WriteResultHandle:
        """Append an Arrow batch; its columns are brought into form as by ``write_arrow``.

        Large batches are sent in pieces; the handle waits for all of them. A batch that does not fit is a FlussError,
        and nothing is written.
        """
        return self._write_batch(batch, self._checked, None if strict else self._fitter)

    def append_arrow_batch(self, batch: pa.RecordBatch, *, strict: bool = False) -> WriteResultHandle:
        """Append an Arrow batch: another name of ``write_arrow_batch``."""
        return self.write_arrow_batch(batch, strict=strict)

    def write_arrow(self, table: Any, *, strict: bool = False) -> None:
        """Append Arrow data: a Table, a RecordBatch, a RecordBatchReader, or what polars, duckdb and others have.

        Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` will do. Columns are found by name; those that may
        be null can be missing, those that the table does not have are refused. Values are converted where the column
        holds exactly the same, such as integers of another width, and texts that say what the column holds. A refusal
        is a FlussError with column, value and row. With ``strict`` nothing is converted: columns must be those of the
        table, in name, order and type.

        Data that is all there, such as a table or a data frame, is checked before the first row is written. Of a stream
        only the schema can be; its batches are checked one by one, so that those before a bad one have been written.
        """
        if arrow_input.is_pandas(table):
            self.write_pandas(table, strict=strict)
        else:
            self._write_data(table, self._checked, None if strict else self._fitter)

    def write_pandas(self, df: Any, *, strict: bool = False) -> None:
        """Append a pandas data frame; columns and values as for ``write_arrow``, NaN being null.

        A named level of the index is a column if the table has one of its name; else the index is left out. With
        ``strict`` pyarrow converts the columns by its own rules, which may round or cut values.
        """
        frame = arrow_input.pandas_table(df, self._info.schema, holder="the table", strict=strict)
        self._write_data(frame, self._checked, None if strict else self._fitter)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in the physical form of the table, or refuse it."""
        normalized = normalize_batch(batch, self._info.schema)
        self._encoder.check_keys(normalized)
        return normalized


class UpsertWriter(WriterBase):
    """Writes to one table with a primary key: whole rows, or some of their columns.

    May be shared by threads and event loops. Calls return as soon as the rows are taken; they are sent in the
    background, in batches. What one thread writes to a key takes effect in the order of the calls, whichever writers of
    the connection it uses. When the memory for unsent rows is full, calls wait. A row that does not fit the table is
    refused, and does not affect others.

    ``TableUpsert`` has checked the ``targets``: the positions of the columns that are written, none for all of them.
    """

    def __init__(self, client: WriterClient, table_info: TableInfo, targets: tuple[int, ...] = ()) -> None:
        encoder = client.kv_encoder(table_info, targets)
        super().__init__(client, encoder)
        self._kv_encoder = encoder
        self._columns = encoder.columns
        self._columns_holder = "the partial update" if targets else "the table"
        self._fitter = DataFitter(encoder.columns, self._columns_holder)
        self._key_fitter = _KeyFitter(_key_schema(table_info), "the primary key")
        layout = encoder.layout
        self._upsert = append_function(layout, self._row_sink(layout.pack_any))
        self._delete = delete_function(layout, self._row_sink(layout.pack_delete))
        # The same as the methods below, with a call less per row.
        self.upsert = self._upsert  # type: ignore[method-assign,assignment]  # it hides the method on purpose
        self.delete = self._delete  # type: ignore[method-assign,assignment]  # it hides the method on purpose

    # Rows

    def upsert(self, row: Any) -> WriteResultHandle:
        """Insert a row, or update the one that has its key: a dict by column name, or a list or tuple.

        The columns are those of the table, or those of the partial update, in their order. Columns that may be null can
        be left out of a dict; they become null then, also where there was a value. A row that does not fit is a
        FlussError, and nothing is written.
        """
        return self._upsert(row)

    def upsert_many(self, rows: Iterable[Any]) -> WriteResultHandle:
        """Insert or update any number of rows, each as ``upsert`` takes it; one handle waits for all of them.

        A row that does not fit is a FlussError with its number, counted from 0; those before it are written.
        """
        return self._append_many(self._upsert, rows)

    def delete_many(self, pks: Iterable[Any]) -> WriteResultHandle:
        """Delete the rows of any number of keys, each as ``delete`` takes it; as ``upsert_many``."""
        return self._append_many(self._delete, pks)

    def delete(self, pk: Any) -> WriteResultHandle:
        """Delete the row of a key: a dict with exactly the key columns, or a list or tuple in the order of the key.

        A key that does not exist is no error. With a partial update, only its columns are set to null; the row goes
        when nothing but the key is left.
        """
        return self._delete(pk)

    # Arrow

    def upsert_arrow_batch(self, batch: pa.RecordBatch, *, strict: bool = False) -> WriteResultHandle:
        """Upsert an Arrow batch; its columns are brought into form as by ``upsert_arrow``.

        If a key is in the batch several times, the last row wins. Large batches are sent in pieces; the handle waits
        for all of them. A batch that does not fit is a FlussError, and nothing is written.
        """
        return self._write_batch(batch, self._checked, None if strict else self._fitter)

    def upsert_arrow(self, data: Any, *, strict: bool = False) -> None:
        """Upsert Arrow data: a Table, a RecordBatch, a RecordBatchReader, or what polars, duckdb and others have.

        Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` will do. The columns are those of the table, or of
        the partial update. They are found by name; those that may be null can be missing and become null then, also
        where there was a value; others are refused. Values are converted where the column holds exactly the same, such
        as integers of another width, and texts that say what the column holds. A refusal is a FlussError with column,
        value and row. With ``strict`` nothing is converted: columns must be the right ones in name, order and type.

        Data that is all there, such as a table or a data frame, is checked before the first row is written. Of a stream
        only the schema can be; its batches are checked one by one, so that those before a bad one have been written.
        """
        if arrow_input.is_pandas(data):
            self.write_pandas(data, strict=strict)
        else:
            self._write_data(data, self._checked, None if strict else self._fitter)

    def delete_arrow_batch(self, batch: pa.RecordBatch, *, strict: bool = False) -> WriteResultHandle:
        """Delete the rows of many keys: an Arrow batch of exactly the key columns, in any order; like ``delete``."""
        return self._write_batch(batch, self._checked_keys, None if strict else self._key_fitter)

    def delete_arrow(self, keys: Any, *, strict: bool = False) -> None:
        """Delete the rows of many keys: Arrow data, as ``upsert_arrow`` takes it, of exactly the key columns."""
        if arrow_input.is_pandas(keys):
            _check_key_names(list(keys.columns), self._info.primary_keys)
            keys = arrow_input.pandas_table(keys, _key_schema(self._info), holder="the primary key", strict=strict)
        self._write_data(keys, self._checked_keys, None if strict else self._key_fitter)

    def write_pandas(self, df: Any, *, strict: bool = False) -> None:
        """Upsert a pandas data frame; columns and values as for ``upsert_arrow``, NaN being null.

        A named level of the index is a column if one of its name is written; else the index is left out. With
        ``strict`` pyarrow converts the columns by its own rules, which may round or cut values.
        """
        frame = arrow_input.pandas_table(df, self._columns, holder=self._columns_holder, strict=strict)
        self._write_data(frame, self._checked, None if strict else self._fitter)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in the physical form of the columns that are written, or refuse it."""
        return self._kv_encoder.checked(batch, holder=self._columns_holder)

    def _checked_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of keys as a batch of deletes, or refuse it."""
        names = self._info.primary_keys
        _check_key_names(batch.schema.names, names)
        arrays = [normalize_array(batch.column(name), self._info.schema.column(name).data_type, name) for name in names]
        marks = pa.array(np.ones(batch.num_rows, np.bool_))
        deletes = pa.RecordBatch.from_arrays([*arrays, marks], names=[*names, DELETE_MARK])
        self._encoder.check_keys(deletes)
        return deletes


class _KeyFitter(DataFitter):
    """Fits keys, which are exactly the columns of the primary key."""

    def fit(self, batch: pa.RecordBatch, row_first: int = 0) -> pa.RecordBatch:
        _check_key_names(batch.schema.names, self.column_names)
        return super().fit(batch, row_first)


def _check_key_names(names: Sequence[str], key_names: Sequence[str]) -> None:
    if sorted(names) != sorted(key_names):
        raise FlussError(
            f"A delete takes exactly the primary-key columns {shown_names(key_names)}, in any order; the data has "
            f"{shown_names(names)}. Select the key columns, for instance with select({key_names})"
        )


def _key_schema(info: TableInfo) -> Schema:
    return schema_from_columns([info.schema.column(name) for name in info.primary_keys])
