"""Upserts and deletes rows of a table with a primary key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fluss.client.write.result import WriteResultHandle
from fluss.client.write.rows import DELETE_MARK
from fluss.client.write.table_writer import TableWriter
from fluss.client.write.writer_client import WriterClient
from fluss.errors import FlussError
from fluss.schema.normalize import normalize_array
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo


class UpsertWriter(TableWriter):
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
        layout = encoder.layout
        self._upsert = layout.append_function(self._row_ways(layout.pack_any))
        self._delete = layout.delete_function(self._row_ways(layout.pack_delete))
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

    def delete(self, pk: Any) -> WriteResultHandle:
        """Delete the row of a key: a dict with exactly the key columns, or a list or tuple in the order of the key.

        A key that does not exist is no error. With a partial update, only its columns are set to null; the row goes
        when nothing but the key is left.
        """
        return self._delete(pk)

    # Arrow

    def upsert_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Upsert an Arrow batch, whose columns must be those of the table, in name, order and type.

        With a partial update these are its columns, in the order in which it names them. If a key is in the batch
        several times, the last row wins. Large batches are sent in pieces; the handle waits for all of them. A batch
        that does not fit is a FlussError, and nothing is written.
        """
        return self._write_batch(batch, self._checked)

    def upsert_arrow(self, data: Any) -> None:
        """Upsert Arrow data: a Table, a RecordBatch, a RecordBatchReader, or what polars, duckdb and others have.

        The columns are as in ``upsert_arrow_batch``. Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` will
        do. Data that is all there, such as a table or a data frame, is checked before the first row is written. Of a
        stream only the schema can be; its batches are checked one by one, so that those before a bad one have been
        written.
        """
        self._write_data(data, self._checked)

    def delete_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Delete the rows of many keys: an Arrow batch of exactly the key columns, in any order; like ``delete``."""
        return self._write_batch(batch, self._checked_keys)

    def delete_arrow(self, keys: Any) -> None:
        """Delete the rows of many keys: Arrow data, as ``upsert_arrow`` takes it, of exactly the key columns."""
        self._write_data(keys, self._checked_keys)

    def write_pandas(self, df: Any) -> None:
        """Upsert a pandas data frame. Columns are found by name and converted as long as no value changes.

        The index and columns that are not written are left out. pyarrow's own errors say what does not fit; nothing is
        written then.
        """
        self.upsert_arrow(pa.Table.from_pandas(df, schema=self._columns.to_arrow(), preserve_index=False))

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in the physical form of the columns that are written, or refuse it."""
        return self._kv_encoder.checked(batch, holder=self._columns_holder)

    def _checked_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of keys as a batch of deletes, or refuse it."""
        names = self._info.primary_keys
        if sorted(batch.schema.names) != sorted(names):
            raise FlussError(
                f"A delete takes exactly the primary-key columns {shown_names(names)}, in any order; the data has "
                f"{shown_names(batch.schema.names)}. Select the key columns, for instance with select({names})"
            )
        arrays = [normalize_array(batch.column(name), self._info.schema.column(name).data_type, name) for name in names]
        marks = pa.array(np.ones(batch.num_rows, np.bool_))
        deletes = pa.RecordBatch.from_arrays([*arrays, marks], names=[*names, DELETE_MARK])
        self._encoder.check_keys(deletes)
        return deletes
