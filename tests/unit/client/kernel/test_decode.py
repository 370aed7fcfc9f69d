"""Batches become the columns that were asked for, whatever schema and format they were written with.
Drawn batches in all formats and projections against picking columns by hand, schema changes in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.client.kernel.decode import BatchDecoder, DecodedBatch, ScanColumns
from fluss.errors import ChecksumError, CorruptRecordError, ErrorCode, FlussError
from fluss.filter.row_filter import RowFilter
from fluss.record.arrow_batch import ColumnProjection, encode_arrow_batch, project_batch
from fluss.record.arrow_ipc import parse_message
from fluss.record.compression import NO_COMPRESSION, ArrowCompression
from fluss.record.log_batch import LogBatch, build_batch, encode_row_body, read_batch
from fluss.row import compacted_columns, indexed
from fluss.row.encoded import EncodedRows
from fluss.row.values import internal_from_arrow
from fluss.schema.schema import Column, Schema
from fluss.schema.table_options import CompressionType, LogFormat
from fluss.schema.types import DataTypes
from fluss.testing.strategies import arrow_batches

COMPRESSIONS = [NO_COMPRESSION, ArrowCompression(), ArrowCompression(CompressionType.LZ4_FRAME)]

OLD = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
NEW = OLD.with_added_columns([Column("price", DataTypes.double()), Column("tags", DataTypes.array(DataTypes.string()))])
SCHEMAS = {1: OLD, 2: NEW}
OLD_ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
NEW_ROWS = [{"id": 3, "name": "c", "price": 0.5, "tags": ["x", None]}]


def no_other_schema(schema_id: int) -> Schema:
    raise AssertionError(f"schema {schema_id} was asked for")


def encode(
    batch: pa.RecordBatch,
    log_format: LogFormat = LogFormat.ARROW,
    *,
    schema: Schema,
    schema_id: int = 1,
    compression: ArrowCompression = NO_COMPRESSION,
    changes: list[int] | None = None,
) -> LogBatch:
    change_types = None if changes is None else np.array(changes, np.uint8)
    if log_format is LogFormat.ARROW:
        facts: dict[str, Any] = {"base_offset": 10, "commit_timestamp": 99, "change_types": change_types}
        return read_batch(encode_arrow_batch(batch, schema_id, compression, **facts))
    types = schema.data_types
    if log_format is LogFormat.COMPACTED:
        rows = compacted_columns.encode_rows(batch.columns, types)
    else:
        columns = [internal_from_arrow(c, t) for c, t in zip(batch.columns, types, strict=True)]
        rows = EncodedRows.from_list([indexed.encode_row(types, row) for row in zip(*columns, strict=True)])
    body = encode_row_body(rows, np.zeros(batch.num_rows, np.uint8) if change_types is None else change_types)
    return read_batch(
        build_batch(
            [body] if batch.num_rows else [],
            schema_id=schema_id,
            record_count=batch.num_rows,
            append_only=change_types is None,
            base_offset=10,
            commit_timestamp=99,
        )
    )


def batch_of(rows: list[dict[str, Any]], schema: Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema.to_arrow())


def projected(batch: LogBatch, schema: Schema, columns: ScanColumns) -> LogBatch:
    """What a server makes of a batch when columns are pushed down."""
    cut = ColumnProjection.of(schema.to_arrow(), columns.pushdown)
    return read_batch(b"".join(project_batch(batch, cut, recompute_crc=False)))


@pytest.mark.parametrize("log_format", list(LogFormat))
@given(data=st.data())
def test_any_columns_in_any_order_come_out_as_they_went_in(log_format: LogFormat, data: st.DataObject) -> None:
    types, batch = data.draw(arrow_batches())
    builder = Schema.builder()
    for index, data_type in enumerate(types):
        builder.column(f"c{index}", data_type)
    schema = builder.build()
    batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema.to_arrow())
    chosen = data.draw(st.none() | st.lists(st.integers(0, len(types) - 1), min_size=1, max_size=8))
    columns = ScanColumns(1, schema, chosen)
    encoded = encode(batch, log_format, schema=schema, compression=data.draw(st.sampled_from(COMPRESSIONS)))
    decoder = BatchDecoder(columns, log_format, no_other_schema)
    expected = batch if chosen is None else batch.select(chosen)
    results = [decoder.decode(encoded, is_projected=False)]
    if chosen is not None and log_format is LogFormat.ARROW:
        results.append(decoder.decode(projected(encoded, schema, columns), is_projected=True))
    for decoded in results:
        decoded.rows.validate(full=True)
        assert decoded.rows.equals(expected)
        assert decoded.rows.schema.equals(columns.arrow_schema, check_metadata=True)
        assert (decoded.base_offset, decoded.timestamp_ms, decoded.change_types) == (10, 99, None)
        assert decoded.data_types == tuple(column.data_type for column in columns.columns)


def decode_one(
    rows: list[dict[str, Any]],
    written: int,
    columns: ScanColumns,
    log_format: LogFormat = LogFormat.ARROW,
    **options: Any,
) -> DecodedBatch:
    encoded = encode(batch_of(rows, SCHEMAS[written]), log_format, schema=SCHEMAS[written], schema_id=written)
    return BatchDecoder(columns, log_format, SCHEMAS.__getitem__).decode(encoded, is_projected=False, **options)


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_columns_that_were_added_later_are_null(log_format: LogFormat) -> None:
    decoded = decode_one(OLD_ROWS, 1, ScanColumns(2, NEW), log_format)
    assert decoded.rows.schema == NEW.to_arrow()
    assert decoded.rows.to_pylist() == [{**row, "price": None, "tags": None} for row in OLD_ROWS]


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_columns_that_the_scan_does_not_know_are_left_out(log_format: LogFormat) -> None:
    decoded = decode_one(NEW_ROWS, 2, ScanColumns(1, OLD), log_format)
    assert decoded.rows.schema == OLD.to_arrow()
    assert decoded.rows.to_pylist() == [{"id": 3, "name": "c"}]


def test_without_alignment_rows_keep_the_columns_they_were_written_with() -> None:
    assert decode_one(OLD_ROWS, 1, ScanColumns(2, NEW), aligned=False).rows.to_pylist() == OLD_ROWS
    newer = decode_one(NEW_ROWS, 2, ScanColumns(1, OLD), aligned=False)
    assert newer.rows.to_pylist() == NEW_ROWS
    assert newer.data_types == NEW.data_types
    # Chosen columns stay what they were when the scan began.
    assert decode_one(NEW_ROWS, 2, ScanColumns(1, OLD, [1]), aligned=False).rows.to_pylist() == [{"name": "c"}]


def test_a_projection_may_mix_old_and_new_columns() -> None:
    columns = ScanColumns(2, NEW, [2, 0])
    assert decode_one(OLD_ROWS, 1, columns).rows.to_pylist() == [{"price": None, "id": 1}, {"price": None, "id": 2}]
    only_new = ScanColumns(2, NEW, [3])
    assert decode_one(OLD_ROWS, 1, only_new).rows.to_pylist() == [{"tags": None}, {"tags": None}]
    # A server that cuts what there is.
    encoded = encode(batch_of(OLD_ROWS, OLD), schema=OLD)
    cut = read_batch(b"".join(project_batch(encoded, ColumnProjection.of(OLD.to_arrow(), [0]))))
    decoder = BatchDecoder(columns, LogFormat.ARROW, SCHEMAS.__getitem__)
    assert decoder.decode(cut, is_projected=True).rows.column("id").to_pylist() == [1, 2]


def test_a_schema_is_loaded_once_and_a_failure_to_load_it_passes_through() -> None:
    loaded = []
    encoded = encode(batch_of(OLD_ROWS, OLD), schema=OLD)

    def load(schema_id: int) -> Schema:
        loaded.append(schema_id)
        if len(loaded) == 1:
            raise FlussError("not now", ErrorCode.NETWORK_EXCEPTION)
        return SCHEMAS[schema_id]

    decoder = BatchDecoder(ScanColumns(2, NEW), LogFormat.ARROW, load)
    with pytest.raises(FlussError, match="not now"):
        decoder.decode(encoded, is_projected=False)
    for _ in range(3):
        assert decoder.decode(encoded, is_projected=False).rows.num_rows == 2
    assert loaded == [1, 1]


def test_a_column_that_may_not_be_null_cannot_be_made_up() -> None:
    strict = Schema(
        pa.schema([("id", pa.int32()), ("name", pa.string()), pa.field("must", pa.int32(), nullable=False)])
    )
    encoded = encode(batch_of(OLD_ROWS, OLD), schema=OLD)
    with pytest.raises(CorruptRecordError, match="'must', which must not be null"):
        BatchDecoder(ScanColumns(2, strict), LogFormat.ARROW, SCHEMAS.__getitem__).decode(encoded, is_projected=False)


def test_a_column_that_has_changed_its_type_is_an_error() -> None:
    changed = Schema(pa.schema([("id", pa.int32()), ("name", pa.list_(pa.int32()))]))
    encoded = encode(batch_of(OLD_ROWS, OLD), schema=OLD)
    with pytest.raises(CorruptRecordError, match="'name' was written as string"):
        BatchDecoder(ScanColumns(2, changed), LogFormat.ARROW, SCHEMAS.__getitem__).decode(encoded, is_projected=False)


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_change_types_come_along_in_every_format(log_format: LogFormat) -> None:
    encoded = encode(batch_of(OLD_ROWS, OLD), log_format, schema=OLD, changes=[2, 3])
    decoded = BatchDecoder(ScanColumns(1, OLD), log_format, no_other_schema).decode(encoded, is_projected=False)
    assert decoded.change_types is not None
    assert decoded.change_types.tolist() == [2, 3]
    # What was received with the batch is not kept in memory by them.
    assert not np.shares_memory(decoded.change_types, np.frombuffer(encoded.data, np.uint8))


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_a_wrong_checksum_is_found_unless_the_server_has_cut_the_batch(log_format: LogFormat) -> None:
    encoded = bytearray(encode(batch_of(OLD_ROWS, OLD), log_format, schema=OLD).data)
    encoded[21] ^= 1
    decoder = BatchDecoder(ScanColumns(1, OLD, [0, 1]), log_format, no_other_schema)
    with pytest.raises(ChecksumError):
        decoder.decode(read_batch(encoded), is_projected=False)
    assert decoder.decode(read_batch(encoded), is_projected=True).rows.num_rows == 2


def test_rows_without_a_batch_are_decoded_with_their_schema() -> None:
    rows = compacted_columns.encode_rows(batch_of(OLD_ROWS, OLD).columns, OLD.data_types)
    decoder = BatchDecoder(ScanColumns(2, NEW, [2, 1]), LogFormat.COMPACTED, SCHEMAS.__getitem__)
    assert decoder.decode_rows(rows, 1).to_pylist() == [{"price": None, "name": "a"}, {"price": None, "name": None}]


WIDE = Schema(pa.schema([("id", pa.int32()), ("name", pa.string()), ("price", pa.float64())]))


def wide_batch(prices: list[float | None], **options: Any) -> LogBatch:
    rows = [{"id": index, "name": f"name {index % 7}", "price": price} for index, price in enumerate(prices)]
    return encode(batch_of(rows, WIDE), schema=WIDE, **options)


def filtered(condition: str, positions: list[int] | None = None) -> BatchDecoder:
    columns = ScanColumns(1, WIDE, positions, RowFilter.of([condition], WIDE))
    return BatchDecoder(columns, LogFormat.ARROW, no_other_schema)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("positions", [None, [1], [2], [1, 0]])
@pytest.mark.parametrize("wanted", [[5], list(range(250)), list(range(0, 1000, 2)), list(range(1000)), []])
def test_rows_that_a_filter_keeps_have_their_offsets_and_change_types(
    compression: ArrowCompression, positions: list[int] | None, wanted: list[int]
) -> None:
    decoder = filtered("price > 0", positions)
    changes = [1 + index % 4 for index in range(1000)]
    prices = [1.0 if index in wanted else None for index in range(1000)]
    batch = wide_batch(prices, changes=changes, compression=compression)
    # Also behind a batch of which nothing is wanted, when columns of the filter are looked at first.
    for price_before in (1.0, None):
        decoder.decode(wide_batch([price_before] * 100, compression=compression), is_projected=False)
        decoded = decoder.decode(batch, is_projected=False)
        offsets = [10 + index for index in range(1000)] if decoded.offsets is None else decoded.offsets.tolist()
        assert offsets == [10 + index for index in wanted]
        assert decoded.change_types is not None
        assert decoded.change_types.tolist() == [changes[index] for index in wanted]
        expected = {"id": list(wanted), "name": [f"name {index % 7}" for index in wanted], "price": [1.0] * len(wanted)}
        names = WIDE.column_names if positions is None else [WIDE.column_names[position] for position in positions]
        assert decoded.rows.to_pydict() == {name: expected[name] for name in names}


def test_where_no_row_is_wanted_only_the_columns_of_the_filter_are_decompressed() -> None:
    columns = ScanColumns(1, WIDE, [1], RowFilter.of(["price > 0"], WIDE))

    def damaged(price: float) -> LogBatch:
        batch = projected(wide_batch([0.0] * 999 + [price], compression=ArrowCompression()), WIDE, columns)
        data = bytearray(batch.data)
        message = parse_message(batch.arrow_message)
        body = len(data) - message.body_length
        # The texts of the names come behind their validity and their offsets.
        start, size = message.buffers[2].tolist()
        data[body + start + 8 : body + start + size] = bytes(size - 8)
        return read_batch(data)

    decoder = filtered("price > 0", [1])
    for _ in range(2):
        assert decoder.decode(damaged(0.0), is_projected=True).rows.num_rows == 0
        with pytest.raises(CorruptRecordError, match="damaged"):
            decoder.decode(damaged(1.0), is_projected=True)
