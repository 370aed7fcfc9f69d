"""The keys of rows of one table, by the encoder that its primary key has."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from fluss.row.encoded import EncodedRows, gather_ranges, offsets_of
from fluss.row.key import encode_key_columns, primary_key_encoder
from fluss.server.model import Table
from fluss.server.table_options import KV_FORMAT_VERSION, LAKE_FORMAT

# So many keys are encoded one by one in the time that it takes to begin with columns.
_FEW_ROWS: Final = 16


class RowKeys:
    """Encodes the key columns of rows. Made per version of a table, has no state."""

    def __init__(self, table: Table) -> None:
        descriptor = table.descriptor
        names = descriptor.physical_primary_keys
        self.indexes = [descriptor.schema.index_of(name) for name in names]
        types = [descriptor.schema.column(name).data_type for name in names]
        self.encoder = primary_key_encoder(
            types,
            LAKE_FORMAT.of(descriptor.properties),
            KV_FORMAT_VERSION.of(descriptor.properties),
            descriptor.bucket_keys == names,
        )

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        """Return the key of every row; the keys lie back to back."""
        columns = [rows.column(index) for index in self.indexes]
        return encode_key_columns(self.encoder, columns, one_by_one_rows_max=_FEW_ROWS)

    def first_difference(self, keys: EncodedRows, rows: pa.RecordBatch) -> int | None:
        """Return the first row whose key is not the one given for it; None if there is no such row."""
        expected = self.encode(rows)
        lengths = expected.lengths
        other_length = lengths != keys.lengths
        if bool(other_length.any()):
            return int(other_length.argmax())
        given = gather_ranges(keys.data, keys.starts, lengths)
        differs = given != expected.data
        if not bool(differs.any()):
            return None
        return int(np.searchsorted(offsets_of(lengths), differs.argmax(), side="right")) - 1
