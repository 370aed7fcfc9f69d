"""How the rows of one log table become log batches: its formats, its compression, its statistics, its bucket key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike, byte_view
from fluss.client.table_keys import lake_format
from fluss.client.write.rows import RowLayout
from fluss.client.write.splitter import BucketSplitter
from fluss.client.write.table_encoder import BY_KEY, Encoded, TableEncoder, filled_keys
from fluss.errors import FlussError
from fluss.record.compression import ArrowCompression, compress_message
from fluss.record.log_batch import (
    ATTRIBUTE_APPEND_ONLY,
    HEADER_LAYOUTS,
    MAGIC_V0,
    MAGIC_V1,
    LogBatchHeader,
    encode_row_body,
    sealed_header,
)
from fluss.record.statistics import collect_statistics, supports_statistics
from fluss.row import compacted_columns, indexed
from fluss.row.bucketing import HashVariant
from fluss.row.encoded import EncodedRows
from fluss.schema.change_type import ChangeType
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo
from fluss.schema.table_options import STATISTICS_COLUMNS, CompressionType, LogFormat

_ALL_COLUMNS: Final = "*"


@dataclass(frozen=True, slots=True, eq=False)
class LogRecords:
    """A log batch but for its header: what the header says about it, and the bytes that follow."""

    schema_id: int
    record_count: int
    magic: int
    statistics: bytes
    body: BytesLike | pa.Buffer

    @property
    def size_bytes(self) -> int:
        return HEADER_LAYOUTS[self.magic].size + len(self.statistics) + len(memoryview(self.body))

    @property
    def targets(self) -> None:
        return None

    def sealed(self, writer_id: int, batch_sequence: int) -> list[BytesLike]:
        content: list[BytesLike] = [part for part in (self.statistics, byte_view(self.body)) if len(part)]
        header = LogBatchHeader(
            magic=self.magic,
            schema_id=self.schema_id,
            attributes=ATTRIBUTE_APPEND_ONLY,
            last_offset_delta=max(self.record_count - 1, 0),
            writer_id=writer_id,
            batch_sequence=batch_sequence,
            record_count=self.record_count,
            statistics_length=len(self.statistics),
        )
        return [sealed_header(header, content), *content]


class LogEncoder(TableEncoder):
    """Encodes log batches of one table in one of its schemas."""

    def __init__(self, info: TableInfo, hash_variant: HashVariant) -> None:
        self._schema = info.schema
        self._compression = ArrowCompression.from_properties(info.properties)
        self._statistics_columns = _statistics_columns(info.schema, info.properties)
        self._buckets: BucketSplitter | None = None
        if info.bucket_keys:
            self._buckets = BucketSplitter(
                info.schema, info.bucket_keys, info.num_buckets, lake_format(info), hash_variant
            )
        has_rows_by_key = self._buckets is not None and info.num_buckets > 1
        layout = RowLayout.of(
            info.schema,
            info.partition_keys,
            self._buckets.required_keys if self._buckets is not None else (),
            filled_keys=filled_keys(info),
            has_rows_by_key=has_rows_by_key,
        )
        super().__init__(
            info,
            layout,
            has_rows_by_key=has_rows_by_key,
            is_slow=info.log_format is not LogFormat.ARROW or self._compression.type is not CompressionType.NONE,
        )

    def check_keys(self, batch: pa.RecordBatch) -> None:
        super().check_keys(batch)
        if self._buckets is not None:
            self._buckets.check_keys(batch)

    def bucket_of(self, packed_row: bytes) -> int:
        assert self._buckets is not None, "only tables with a bucket key know"
        return int(self._buckets.buckets(self.layout.to_arrow([packed_row]))[0])

    def encode(self, batch: pa.RecordBatch, bucket_id: int | None) -> Encoded:
        if not batch.num_rows:
            return []
        if bucket_id is not BY_KEY:
            return [(bucket_id, self.encode_batch(batch))]
        assert self._buckets is not None, "only tables with a bucket key leave the bucket open"
        return [(number, self.encode_batch(part)) for number, part in self._buckets.split(batch)]

    def encode_batch(self, batch: pa.RecordBatch) -> LogRecords:
        """Encode rows that have the Arrow schema of the table as one batch."""
        types = self._schema.data_types
        statistics = b""
        match self.info.log_format:
            case LogFormat.ARROW:
                statistics = collect_statistics(batch, types, self._statistics_columns)
                body: BytesLike | pa.Buffer = compress_message(batch.serialize(), self._compression)
            case LogFormat.COMPACTED:
                body = _row_body(compacted_columns.encode_rows(batch.columns, types))
            case LogFormat.INDEXED:
                body = _row_body(indexed.encode_rows(batch.columns, types))
        magic = MAGIC_V1 if statistics else MAGIC_V0
        return LogRecords(self.info.schema_id, batch.num_rows, magic, statistics, body)


def _row_body(rows: EncodedRows) -> BytesLike:
    return encode_row_body(rows, np.full(len(rows), ChangeType.AppendOnly, np.uint8))


def _statistics_columns(schema: Schema, properties: Mapping[str, str]) -> list[int]:
    """Return the columns for which the table asks for statistics: all that can have them, or those it names."""
    text = properties.get(STATISTICS_COLUMNS.key, "").strip()
    if text == _ALL_COLUMNS:
        return [index for index, t in enumerate(schema.data_types) if supports_statistics(t)]
    indexes = [schema.index_of(name.strip()) for name in text.split(",") if name.strip()]
    for index in indexes:
        column = schema.columns[index]
        if not supports_statistics(column.data_type):
            raise FlussError(f"'{STATISTICS_COLUMNS.key}' names '{column.name}', whose type has no statistics")
    return indexes
