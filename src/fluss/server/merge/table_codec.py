"""The rows and the keys of one primary-key table between their stored bytes and Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.errors import CorruptRecordError
from fluss.record.value_batch import decode_by_schema
from fluss.row import compacted_columns, indexed
from fluss.row.encoded import EncodedRows, gather_ranges, offsets_of
from fluss.row.key import encode_key_columns, primary_key_encoder
from fluss.schema.schema import Schema
from fluss.schema.table_options import KV_FORMAT_VERSION, LAKE_FORMAT, KvFormat
from fluss.schema.types import DataType
from fluss.server.model import Table


class TableRowCodec:
    """Encodes and decodes the rows of one table in its KV format.

    Made per version of the table. Has no state: threads may share it. Decoded rows always have the newest schema;
    columns that were added after a row was written are null in it.
    """

    def __init__(
        self, table: Table, row_format: KvFormat | None = None, *, arrays_bytes_max: int | None = None
    ) -> None:
        """Take the KV format of the table, or another one: a log of rows may have its own.

        ``arrays_bytes_max`` is for rows that may be anything: decoding them is a SizeLimitError if they take more.
        """
        self.schema_id = table.schema_id
        self.schema = table.descriptor.schema
        self._arrow_schema = self.schema.to_arrow()
        self._schemas = table.schemas
        self._arrays_bytes_max = arrays_bytes_max
        self._decode_rows, self._encode_rows = _CODECS[row_format or table.descriptor.kv_format]

    def schema_of(self, schema_id: int) -> Schema:
        """Return a schema by its id; one that the table never had is a CorruptRecordError."""
        schema = self._schemas.get(schema_id)
        if schema is None:
            raise CorruptRecordError(f"There is no schema {schema_id}; the table has {sorted(self._schemas)}")
        return schema

    def padded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Add the columns that rows of an older schema lack."""
        missing = self._arrow_schema.types[rows.num_columns :]
        if not missing:
            return rows
        columns = rows.columns + [pa.nulls(rows.num_rows, arrow_type) for arrow_type in missing]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)

    def decode(self, rows: EncodedRows, schema_id: int) -> pa.RecordBatch:
        """Decode rows of one schema. Bytes that do not follow the format are a CorruptRecordError."""
        schema = self.schema_of(schema_id)
        columns = self._decode_rows(rows, schema.data_types, arrays_bytes_max=self._arrays_bytes_max)
        return self.padded(pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow()))

    def decode_mixed(self, rows: EncodedRows, schema_ids: npt.NDArray[np.int16]) -> pa.RecordBatch:
        """Decode rows of several schemas, keeping their order."""
        if not len(rows):
            return self.decode(rows, self.schema_id)
        return decode_by_schema(rows, schema_ids, self.decode)

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        """Encode rows of the newest schema. A null in a NOT NULL column is a FlussError."""
        return self._encode_rows(rows.columns, self.schema.data_types)


class _Decoder(Protocol):
    def __call__(
        self, rows: EncodedRows, types: Sequence[DataType], *, arrays_bytes_max: int | None
    ) -> list[pa.Array]: ...


_Encoder = Callable[[Sequence[pa.Array], Sequence[DataType]], EncodedRows]
_CODECS: dict[KvFormat, tuple[_Decoder, _Encoder]] = {
    KvFormat.COMPACTED: (compacted_columns.decode_rows, compacted_columns.encode_rows),
    KvFormat.INDEXED: (indexed.decode_rows, indexed.encode_rows),
}


# So many keys are encoded one by one in the time that it takes to begin with columns.
_FEW_ROWS: Final = 16


class TableKeyEncoder:
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
