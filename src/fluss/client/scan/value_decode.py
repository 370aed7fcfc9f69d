"""Value batches to record batches: rows of a primary-key table as they are stored, with the columns of a scan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from fluss.client.scan.decode import BatchDecoder, ScanColumns
from fluss.record.value_batch import decode_value_batch, split_values
from fluss.row.encoded import EncodedRows
from fluss.row.plain_arrays import empty_batch, number_array
from fluss.schema.formats import KvFormat, LogFormat
from fluss.schema.schema import Schema
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
        return self.decode_values(decode_value_batch(records)) if records else self._joined([])

    def decode_values(self, values: EncodedRows) -> pa.RecordBatch:
        """Return the rows of stored values in their order."""
        schema_ids, rows = split_values(values)
        if len(rows) and (schema_ids == schema_ids[0]).all():
            return self._decoder.decode_rows(rows, int(schema_ids[0]))
        pieces, places = [], []
        for schema_id in np.unique(schema_ids).tolist():
            indexes = np.flatnonzero(schema_ids == schema_id)
            group = EncodedRows(rows.data, rows.starts[indexes], rows.ends[indexes])
            pieces.append(self._decoder.decode_rows(group, schema_id))
            places.append(indexes)
        joined = self._joined(pieces)
        # Each schema has been decoded for itself; this is the way back to the order of the batch.
        return joined.take(number_array(np.argsort(np.concatenate(places)))) if pieces else joined

    def _joined(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return pa.concat_batches([empty_batch(self._columns.arrow_schema), *batches])
