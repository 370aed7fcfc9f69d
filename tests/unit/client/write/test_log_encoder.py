"""What a writer makes of rows is what readers of every log format find, statistics included.
Hypothesis draws tables; the decoders of the record layer are the oracle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.client.write.batch import Batch
from fluss.client.write.encoders import BY_KEY, EncodedBatch, LogEncoder
from fluss.errors import FlussError
from fluss.record.arrow_batch import decode_arrow_batch
from fluss.record.log_batch import MAGIC_V0, MAGIC_V1, LogBatch, decode_row_body, read_batch, verify_crc
from fluss.row.compacted_columns import decode_rows
from fluss.row.indexed import decode_row
from fluss.row.values import arrow_from_internal
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, Schema, schema_from_columns
from fluss.schema.table import TableInfo, TablePath
from fluss.schema.types import DataType
from fluss.testing.strategies import arrow_batches
from tests.unit.record.statistics_model import decode_statistics

ORDERS = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("body", pa.binary()), ("price", pa.float64())]))


def info_of(schema: Schema, **arguments: Any) -> TableInfo:
    descriptor = TableDescriptor(schema, bucket_count=3, **arguments)
    return TableInfo._create(TablePath("fluss", "t"), 1, 4, descriptor, 1, 1)


def read_back(records: EncodedBatch) -> LogBatch:
    """Read a batch from its bytes."""
    sealed = Batch(records, 0, lambda batch, error: None)
    sealed.writer_id, sealed.sequence = 77, 3
    sealed.seal()
    data = b"".join(sealed.parts)
    assert len(data) == sealed.size_bytes
    read = read_batch(data)
    verify_crc(read)
    return read


def written(encoder: LogEncoder, batch: pa.RecordBatch) -> LogBatch:
    """Encode a batch and read it back from its bytes."""
    read = read_back(encoder.encode_batch(batch))
    assert (read.header.schema_id, read.header.writer_id, read.header.batch_sequence) == (4, 77, 3)
    assert read.header.is_append_only
    assert (read.header.record_count, read.header.last_offset_delta) == (batch.num_rows, batch.num_rows - 1)
    return read


def decoded(read: LogBatch, log_format: str, types: list[DataType], schema: pa.Schema) -> pa.RecordBatch:
    if log_format == "ARROW":
        return decode_arrow_batch(read, schema)
    rows, change_types = decode_row_body(read.records, read.header.record_count)
    assert not change_types.any()
    if log_format == "COMPACTED":
        columns = decode_rows(rows, types)
    else:
        values = [decode_row(types, row) for row in rows.to_list()]
        columns = [arrow_from_internal([row[i] for row in values], t) for i, t in enumerate(types)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@given(
    arrow_batches(), st.sampled_from(["ARROW", "COMPACTED", "INDEXED"]), st.sampled_from(["NONE", "LZ4_FRAME", "ZSTD"])
)
def test_rows_of_any_table_are_found_again(
    drawn: tuple[list[DataType], pa.RecordBatch], log_format: str, compression: str
) -> None:
    types, batch = drawn
    if not batch.num_rows:
        return
    schema = schema_from_columns([Column(f"c{i}", t) for i, t in enumerate(types)])
    properties = {"table.log.format": log_format, "table.log.arrow.compression.type": compression}
    read = written(LogEncoder(info_of(schema, properties=properties), "java"), batch)
    assert read.header.magic == MAGIC_V0
    assert decoded(read, log_format, types, schema.to_arrow()).equals(batch)


def test_statistics_are_collected_when_the_table_asks_for_them() -> None:
    batch = pa.record_batch([[3, 1], ["b", None], [b"", b""], [0.5, 2.5]], schema=ORDERS.to_arrow())
    all_columns = LogEncoder(info_of(ORDERS, properties={"table.statistics.columns": "*"}), "java")
    read = written(all_columns, batch)
    assert read.header.magic == MAGIC_V1
    statistics = decode_statistics(read.statistics, ORDERS.data_types)
    assert statistics is not None
    assert list(statistics.columns) == [0, 1, 3], "bytes have none"
    assert (statistics.columns[0].minimum, statistics.columns[0].maximum) == (1, 3)
    assert statistics.columns[1].null_count == 1
    assert decode_arrow_batch(read, ORDERS.to_arrow()).equals(batch)
    some = LogEncoder(info_of(ORDERS, properties={"table.statistics.columns": "price, id"}), "java")
    statistics = decode_statistics(written(some, batch).statistics, ORDERS.data_types)
    assert statistics is not None
    assert list(statistics.columns) == [3, 0]


def test_statistics_that_cannot_be_are_refused_when_the_writer_is_made() -> None:
    for columns, message in (("body", "names 'body'"), ("nothing", "Column 'nothing' not found")):
        with pytest.raises(FlussError, match=message):
            LogEncoder(info_of(ORDERS, properties={"table.statistics.columns": columns}), "java")


def test_the_bucket_of_a_packed_row_is_the_one_it_is_split_into() -> None:
    encoder = LogEncoder(info_of(ORDERS, bucket_keys=["id", "name"]), "java")
    rows = [encoder.layout.pack_any([i, str(i), b"", None])[0] for i in range(50)]
    encoded = encoder.encode(encoder.layout.to_arrow(rows), BY_KEY)
    found = {
        i: bucket_id
        for bucket_id, records in encoded
        for i in decode_arrow_batch(read_back(records), ORDERS.to_arrow()).column(0).to_pylist()
    }
    assert found == {i: encoder.bucket_of(row) for i, row in enumerate(rows)}
    assert len(encoded) == 3


def test_lakes_bring_their_own_buckets() -> None:
    plain = LogEncoder(info_of(ORDERS, bucket_keys=["id"]), "java")
    lake = LogEncoder(info_of(ORDERS, bucket_keys=["id"], properties={"table.datalake.format": "ICEBERG"}), "java")
    rows = [plain.layout.pack_any([i, None, None, None])[0] for i in range(50)]
    assert [plain.bucket_of(row) for row in rows] != [lake.bucket_of(row) for row in rows]
