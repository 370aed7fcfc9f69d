"""Appends rows and Arrow data to a log table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from fluss.client.awaitables import AwaitsItself
from fluss.client.write.result import WriteResultHandle
from fluss.client.write.table_writer import TableWriter
from fluss.client.write.writer_client import WriterClient
from fluss.schema.normalize import normalize_batch
from fluss.schema.table import TableInfo


class AppendWriter(AwaitsItself, TableWriter):
    """Appends to one log table. May be shared by threads and event loops; it may also be awaited.

    Calls return as soon as the rows are taken; they are sent in the background, in batches. Rows of one thread stay in
    order within their bucket. When the memory for unsent rows is full, calls wait. A row that does not fit the table is
    refused, and does not affect others.
    """

    def __init__(self, client: WriterClient, table_info: TableInfo) -> None:
        encoder = client.log_encoder(table_info)
        super().__init__(client, encoder)
        layout = encoder.layout
        self._append = layout.append_function(self._row_ways(layout.pack_any))
        # The same as the method below, with a call less per row.
        self.append = self._append  # type: ignore[method-assign,assignment]  # it hides the method on purpose

    def append(self, row: Any) -> WriteResultHandle:
        """Append a row: a dict by column name, or a list or tuple in the order of the columns.

        Columns that may be null can be left out of a dict. A row that does not fit is a FlussError, and nothing is
        written.
        """
        return self._append(row)

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Append an Arrow batch, whose columns must be those of the table, in name, order and type.

        Large batches are sent in pieces; the handle waits for all of them. A batch that does not fit is a FlussError,
        and nothing is written.
        """
        return self._write_batch(batch, self._checked)

    def append_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Append an Arrow batch: another name of ``write_arrow_batch``."""
        return self.write_arrow_batch(batch)

    def write_arrow(self, table: Any) -> None:
        """Append Arrow data: a Table, a RecordBatch, a RecordBatchReader, or what polars, duckdb and others have.

        Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` will do. Data that is all there, such as a table
        or a data frame, is checked before the first row is written. Of a stream only the schema can be; its batches
        are checked one by one, so that those before a bad one have been written.
        """
        self._write_data(table, self._checked)

    def write_pandas(self, df: Any) -> None:
        """Append a pandas data frame. Columns are found by name and converted as long as no value changes.

        The index and columns that the table does not have are left out. pyarrow's own errors say what does not fit;
        nothing is written then.
        """
        self.write_arrow(pa.Table.from_pandas(df, schema=self._info.schema.to_arrow(), preserve_index=False))

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in the physical form of the table, or refuse it."""
        normalized = normalize_batch(batch, self._info.schema)
        self._encoder.check_keys(normalized)
        return normalized
