"""Rows that have nothing but a primary key, made from the bytes of their keys."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.kv_batch import encode_kv_batch
from fluss.row.compacted_columns import decode_keys
from fluss.row.encoded import EncodedRows
from fluss.row.key import CompactedKeyEncoder
from fluss.row.partition_names import parse_partition_value
from fluss.row.values import arrow_from_internal
from fluss.schema.table import VALUE_SEPARATOR
from fluss.server.merge.table_codec import TableKeyEncoder, TableRowCodec
from fluss.server.model import Partition, Table


class KeyOnlyRows:
    """Makes rows of one version of a table, or of one of its partitions. Has no state: threads may share it."""

    def __init__(self, table: Table, partition: Partition | None) -> None:
        """Take a table whose keys can be read back; others are refused (code 15)."""
        encoder = TableKeyEncoder(table).encoder
        if not isinstance(encoder, CompactedKeyEncoder):
            raise FlussError(
                f"A lookup cannot insert rows into table {table.path}: its keys are encoded for a lake, and their "
                "columns cannot be read back; upsert the rows instead",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        self._key_types = encoder.types
        self._key_names = table.descriptor.physical_primary_keys
        self._partition_values = _partition_values(table, partition)
        self._codec = TableRowCodec(table)
        # The columns that the rows set: what a partial update with these rows names as its targets.
        self.targets: tuple[int, ...] = tuple(sorted(table.descriptor.schema.primary_key_indexes))

    def batch(self, keys: Sequence[bytes]) -> bytearray:
        """Return a KV batch that puts one row under each key. Bytes that are no key are refused (code -1)."""
        encoded_keys = EncodedRows.from_list(keys)
        try:
            key_columns = decode_keys(encoded_keys, self._key_types)
        except CorruptRecordError as error:
            # Not with the code of damaged records: clients would send the same bytes again and again.
            raise FlussError(
                f"Rows cannot be inserted under these keys: {error.message}", ErrorCode.UNKNOWN_SERVER_ERROR
            ) from error
        schema = self._codec.schema.to_arrow()
        columns = {field.name: pa.nulls(len(keys), field.type) for field in schema}
        columns |= zip(self._key_names, key_columns, strict=True)
        columns |= {name: pa.repeat(value, len(keys)) for name, value in self._partition_values.items()}
        rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
        return encode_kv_batch(encoded_keys, self._codec.encode(rows), schema_id=self._codec.schema_id)


def _partition_values(table: Table, partition: Partition | None) -> dict[str, pa.Scalar]:
    """Return, by the names of the partition columns, what every row of the partition has in them."""
    if partition is None:
        return {}
    descriptor = table.descriptor
    texts = partition.name.split(VALUE_SEPARATOR)
    values = {}
    for name, text in zip(descriptor.partition_keys, texts, strict=True):
        data_type = descriptor.schema.column(name).data_type
        try:
            values[name] = arrow_from_internal([parse_partition_value(text, data_type)], data_type)[0]
        except FlussError as error:
            raise FlussError(
                f"A lookup cannot insert rows into partition '{partition.name}' of table {table.path}: {error.message}",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            ) from error
    return values
