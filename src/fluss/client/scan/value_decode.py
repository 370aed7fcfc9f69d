"""Value batches to record batches: rows of a primary-key table as they are stored, with the columns of a scan."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from fluss.client.scan.decode import BatchDecoder, ScanColumns
from fluss.record.value_batch import decode_by_schema, decode_value_batch, split_values
from fluss.row.arrow_arrays import empty_batch
from fluss.row.encoded import EncodedRows
from fluss.schema.schema import Schema
from fluss.schema.table_options import KvFormat, LogFormat
from fluss.schema.types import DataType


class ValueDecoder:
    """Decodes the value batches of one table for one scan. Used by one thread at a time.

    Every row is decoded with the schema it was written with, and then has the columns of the scan, null where it is
    older than a column. ``load_schema`` and errors are as for ``BatchDecoder``.
    """

    def __init__(self, columns: ScanColumns, kv_format: KvFormat, load_schema: Callable[[int], Schema]) -> None:
        row_format = LogFormat.INDEXED if kv_format is KvFormat.INDEXED else LogFormat.COMPACTED
        self._columns = columns
        self._decoder = BatchDecoder(columns, row_format, load_schema)

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """The types of the columns, in their order."""
        return tuple(column.data_type for column in self._columns.columns)

    def decode(self, records: memoryview) -> pa.RecordBatch:
        """Return the rows of a value batch in their order; no bytes at all are no rows."""
        return self.decode_values(decode_value_batch(records)) if records else self._nothing()

    def decode_values(self, values: EncodedRows) -> pa.RecordBatch:
        """Return the rows of stored values in their order."""
        schema_ids, rows = split_values(values)
        return decode_by_schema(rows, schema_ids, self._decoder.decode_rows) if len(rows) else self._nothing()

    def _nothing(self) -> pa.RecordBatch:
        return empty_batch(self._columns.arrow_schema)
