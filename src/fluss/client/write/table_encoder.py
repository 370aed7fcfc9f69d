"""How the rows of one table become log batches: its formats, its compression, its statistics, its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike
from fluss.client.write.rows import RowLayout
from fluss.client.write.splitter import BucketSplitter, PartitionSplitter
from fluss.errors import FlussError
from fluss.record.compression import ArrowCompression, CompressionType, compress_message
from fluss.record.log_batch import MAGIC_V0, MAGIC_V1
from fluss.record.row_batch import encode_row_body
from fluss.record.statistics import collect_statistics, supports_statistics
from fluss.row.bucketing import HashVariant
from fluss.row.compacted_columns import encode_rows
from fluss.row.encoded import EncodedRows
from fluss.row.indexed import encode_row
from fluss.row.values import internal_from_arrow
from fluss.schema.change_type import ChangeType
from fluss.schema.formats import LogFormat
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo

STATISTICS_COLUMNS_PROPERTY: Final = "table.statistics.columns"
LAKE_FORMAT_PROPERTY: Final = "table.datalake.format"
_ALL_COLUMNS: Final = "*"


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRecords:
    """A batch but for its header: what the header says about it, and the bytes that follow."""

    schema_id: int
    record_count: int
    magic: int
    statistics: bytes
    body: BytesLike | pa.Buffer

    @property
    def size_bytes(self) -> int:
        return len(self.statistics) + len(memoryview(self.body))


class TableEncoder:
    """Encodes batches of one table in one of its schemas. Has no state: threads may share it."""

    def __init__(self, info: TableInfo, hash_variant: HashVariant) -> None:
        self.info = info
        self._schema = info.schema
        self._compression = ArrowCompression.from_properties(info.properties)
        self._statistics_columns = _statistics_columns(info.schema, info.properties)
        self.partitions = PartitionSplitter(info.schema, info.partition_keys) if info.is_partitioned() else None
        self.buckets: BucketSplitter | None = None
        if info.bucket_keys:
            self.buckets = BucketSplitter(
                info.schema,
                info.bucket_keys,
                info.num_buckets,
                _lake_format(info.properties),
                hash_variant,
            )
        required_keys = self.buckets.required_keys if self.buckets is not None else ()
        self.layout = RowLayout.of(
            info.schema, info.partition_keys, required_keys, has_rows_by_key=self.has_rows_by_key
        )

    @property
    def has_rows_by_key(self) -> bool:
        """Whether the bucket of a row depends on its key."""
        return self.buckets is not None and self.info.num_buckets > 1

    def check_keys(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that belong to no partition or to no bucket."""
        if self.partitions is not None:
            self.partitions.check_keys(batch)
        if self.buckets is not None:
            self.buckets.check_keys(batch)

    def bucket_of(self, packed_row: bytes) -> int:
        """Return the bucket of a row by its bucket key."""
        assert self.buckets is not None, "only tables with a bucket key know"
        return int(self.buckets.buckets(self.layout.to_arrow([packed_row]))[0])

    @property
    def is_compressing(self) -> bool:
        """Whether encoding takes much longer than copying the rows."""
        return self.info.log_format is not LogFormat.ARROW or self._compression.type is not CompressionType.NONE

    def encode(self, batch: pa.RecordBatch) -> EncodedRecords:
        """Encode rows that have the Arrow schema of the table. Takes a while: not for event loops."""
        statistics = b""
        match self.info.log_format:
            case LogFormat.ARROW:
                statistics = collect_statistics(batch, self._schema.data_types, self._statistics_columns)
                body: BytesLike | pa.Buffer = compress_message(batch.serialize(), self._compression)
            case LogFormat.COMPACTED:
                body = _row_body(encode_rows(batch.columns, self._schema.data_types))
            case LogFormat.INDEXED:
                body = _row_body(_indexed_rows(batch, self._schema))
        magic = MAGIC_V1 if statistics else MAGIC_V0
        return EncodedRecords(self.info.schema_id, batch.num_rows, magic, statistics, body)


def _row_body(rows: EncodedRows) -> BytesLike:
    return encode_row_body(rows, np.full(len(rows), ChangeType.AppendOnly, np.uint8))


def _indexed_rows(batch: pa.RecordBatch, schema: Schema) -> EncodedRows:
    types = schema.data_types
    columns = (internal_from_arrow(column, t) for column, t in zip(batch.columns, types, strict=True))
    return EncodedRows.from_list([encode_row(types, row) for row in zip(*columns, strict=True)])


def _statistics_columns(schema: Schema, properties: Mapping[str, str]) -> list[int]:
    """Return the columns for which the table asks for statistics: all that can have them, or those it names."""
    text = properties.get(STATISTICS_COLUMNS_PROPERTY, "").strip()
    if text == _ALL_COLUMNS:
        return [index for index, t in enumerate(schema.data_types) if supports_statistics(t)]
    indexes = [schema.index_of(name.strip()) for name in text.split(",") if name.strip()]
    for index in indexes:
        column = schema.columns[index]
        if not supports_statistics(column.data_type):
            raise FlussError(f"'{STATISTICS_COLUMNS_PROPERTY}' names '{column.name}', whose type has no statistics")
    return indexes


def _lake_format(properties: Mapping[str, str]) -> str | None:
    text = properties.get(LAKE_FORMAT_PROPERTY)
    return None if text is None else text.lower()
