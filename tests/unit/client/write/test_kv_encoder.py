"""KV batches hold the keys and rows that were written, in their order, in the right bucket, within their size.
Hypothesis draws tables and rows; the decoders of the record and row layers are the oracle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.client.write import encoders
from fluss.client.write.batch import Batch
from fluss.client.write.encoders import BY_KEY, EncodedBatch, EncodedKvBatch, KvEncoder
from fluss.client.write.row_layout import DELETE_MARK
from fluss.errors import FlussError
from fluss.record.kv_batch import KvBatch
from fluss.row import compacted_columns, indexed
from fluss.row.bucketing import bucket_for
from fluss.row.key import bucket_key_encoder, primary_key_encoder
from fluss.row.python_values import from_internal, to_internal
from fluss.row.values import arrow_from_internal
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, Schema, schema_from_columns
from fluss.schema.table import TableInfo, TablePath
from fluss.schema.types import DataType, DataTypes
from fluss.testing.strategies import internal_rows, row_types, scalar_types

BATCH_BYTES = 1 << 20
USERS = Schema(pa.schema([("id", pa.int32()), ("name", pa.string()), ("age", pa.int32())]), primary_keys=["id"])


def info_of(schema: Schema, **arguments: Any) -> TableInfo:
    descriptor = TableDescriptor(schema, **{"bucket_count": 1, **arguments})
    return TableInfo._create(TablePath("fluss", "t"), 1, 4, descriptor, 1, 1)


def encoder_of(schema: Schema, targets: tuple[int, ...] = (), bytes_max: int = BATCH_BYTES, **table: Any) -> KvEncoder:
    return KvEncoder(info_of(schema, **table), "java", targets=targets, batch_bytes_max=bytes_max)


def read_back(records: EncodedBatch) -> KvBatch:
    """Seal a batch like the sender does it, and read it from its bytes."""
    sealed = Batch(records, 0, lambda batch, error: None)
    sealed.writer_id, sealed.sequence = 77, 3
    sealed.seal()
    data = b"".join(sealed.parts)
    assert len(data) == sealed.size_bytes
    read = KvBatch.parse(data)
    read.verify_crc()
    assert (read.schema_id, read.writer_id, read.batch_sequence) == (4, 77, 3)
    return read


def encoded_bytes(encoder: KvEncoder, packed_rows: list[bytes]) -> list[tuple[bytes, bytes | None]]:
    """Return keys and rows of the one batch that packed rows become; None is a delete."""
    ((bucket_id, records),) = encoder.encode(encoder.layout.to_arrow(packed_rows), 0)
    assert bucket_id == 0
    keys, rows, is_delete = read_back(records).records()
    return [
        (key, None if deleted else row)
        for key, row, deleted in zip(keys.to_list(), rows.to_list(), is_delete.tolist(), strict=True)
    ]


@given(st.data(), st.sampled_from(["COMPACTED", "INDEXED"]))
def test_puts_and_deletes_of_any_table_are_found_again(data: st.DataObject, kv_format: str) -> None:
    key_types = data.draw(st.lists(scalar_types(nullable=False), min_size=1, max_size=3))
    types: list[DataType] = [*data.draw(row_types(columns_max=6)), *key_types]
    schema = schema_from_columns(
        [Column(f"c{i}", t) for i, t in enumerate(types)], [f"c{len(types) - 1 - i}" for i in range(len(key_types))]
    )
    key_indexes = schema.primary_key_indexes
    encoder = encoder_of(schema, properties={"table.kv.format": kv_format, "table.log.format": "ARROW"})
    drawn = data.draw(st.lists(st.tuples(internal_rows(types), st.booleans()), min_size=1, max_size=6))
    internal: list[tuple[list[Any], bool]] = []
    packed: list[bytes] = []
    for row, is_delete in drawn:
        values = [from_internal(value, t) for value, t in zip(row, types, strict=True)]
        # Python has no nanoseconds.
        internal.append(([to_internal(value, t, "") for value, t in zip(values, types, strict=True)], is_delete))
        if is_delete:
            packed.append(encoder.layout.pack_delete([values[i] for i in key_indexes])[0])
        else:
            packed.append(encoder.layout.pack_any(values)[0])
    batch = encoder.layout.to_arrow(packed)
    ((_, records),) = encoder.encode(batch, 0)
    keys, rows, deletes = read_back(records).records()
    assert deletes.tolist() == [is_delete for _, is_delete in internal]
    expected_keys = [arrow_from_internal([row[i] for row, _ in internal], types[i]) for i in key_indexes]
    assert compacted_columns.decode_keys(keys, [types[i] for i in key_indexes]) == expected_keys
    codec = indexed if kv_format == "INDEXED" else compacted_columns
    puts = [row for row, is_delete in internal if not is_delete]
    kept = type(rows)(rows.data, rows.starts[~deletes], rows.ends[~deletes])
    expected = [arrow_from_internal([row[i] for row in puts], t) for i, t in enumerate(types)]
    if puts:
        assert codec.decode_rows(kept, types) == expected


def test_rows_and_keys_have_the_bytes_of_the_format() -> None:
    pair = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
    layout = encoder_of(pair).layout
    packed = [layout.pack_any([10, "abc"])[0], layout.pack_any([300, None])[0], layout.pack_delete([-1])[0]]
    compacted = [
        (bytes.fromhex("0a"), bytes.fromhex("00 0a 03 616263")),
        (bytes.fromhex("ac02"), bytes.fromhex("02 ac02")),
        (bytes.fromhex("ffffffff0f"), None),
    ]
    assert encoded_bytes(encoder_of(pair), packed) == compacted
    indexed = encoder_of(pair, properties={"table.kv.format": "INDEXED"})
    assert encoded_bytes(indexed, packed[:1]) == [
        (bytes.fromhex("0a"), bytes.fromhex("00 03000000 0a000000 616263")),
    ]


def test_a_partial_row_has_the_width_of_the_table_and_nulls_in_the_other_columns() -> None:
    partial = encoder_of(USERS, targets=(2, 0))
    assert partial.columns.column_names == ["age", "id"]
    ((_, records),) = partial.encode(partial.layout.to_arrow([partial.layout.pack_any([7, 1])[0]]), 0)
    assert records.targets == (2, 0)
    _, rows, _ = read_back(records).records()
    assert rows.to_list() == [bytes.fromhex("02 01 07")]


def test_a_batch_of_keys_alone_is_a_batch_of_deletes() -> None:
    encoder = encoder_of(USERS)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2], pa.int32()), pa.array([True, True])], names=["id", DELETE_MARK]
    )
    ((_, records),) = encoder.encode(batch, 0)
    keys, _, is_delete = read_back(records).records()
    assert keys.to_list() == [b"\x01", b"\x02"]
    assert is_delete.all()


def test_rows_of_all_buckets_are_found_where_their_keys_belong_and_in_order() -> None:
    encoder = encoder_of(USERS, bucket_count=7)
    packed = [encoder.layout.pack_any([i * 37, f"n{i}", i])[0] for i in range(300)]
    packed += [encoder.layout.pack_delete([i * 37])[0] for i in range(0, 300, 3)]
    seen: list[int] = []
    for bucket_id, records in encoder.encode(encoder.layout.to_arrow(packed), BY_KEY):
        keys, rows, is_delete = read_back(records).records()
        for key in keys.to_list():
            assert bucket_for(key, 7) == bucket_id
        ages = compacted_columns.decode_rows(
            type(rows)(rows.data, rows.starts[~is_delete], rows.ends[~is_delete]), USERS.data_types
        )[2].to_pylist()
        assert ages == sorted(ages)
        # All deletes came after all rows.
        assert is_delete.tolist() == sorted(is_delete.tolist())
        seen += ages
    assert sorted(seen) == list(range(300))
    assert len({encoder.bucket_of(row) for row in packed}) == 7


def test_a_batch_that_waits_keeps_no_rows_of_other_buckets_in_memory() -> None:
    encoder = encoder_of(USERS, bucket_count=16)
    packed = [encoder.layout.pack_any([number, "name", number])[0] for number in range(1000)]
    for _, records in encoder.encode(encoder.layout.to_arrow(packed), BY_KEY):
        assert isinstance(records, EncodedKvBatch)
        assert memoryview(records.body.obj).nbytes <= 2 * records.size_bytes


def test_the_bucket_of_a_packed_row_or_delete_is_the_one_it_is_encoded_for() -> None:
    encoder = encoder_of(USERS, bucket_count=5)
    packed = [encoder.layout.pack_any([i, None, None])[0] for i in range(100)]
    buckets = {
        key: bucket_id
        for bucket_id, records in encoder.encode(encoder.layout.to_arrow(packed), BY_KEY)
        for key in read_back(records).records().keys.to_list()
    }
    for number, row in enumerate(packed):
        key = compacted_columns.encode_keys([pa.array([number], pa.int32())], [DataTypes.int()]).row(0)
        assert encoder.bucket_of(row) == buckets[key]
        assert encoder.bucket_of(encoder.layout.pack_delete([number])[0]) == buckets[key]


def test_pyfluss_buckets_are_an_option() -> None:
    java = KvEncoder(info_of(USERS, bucket_count=16), "java", batch_bytes_max=BATCH_BYTES)
    rust = KvEncoder(info_of(USERS, bucket_count=16), "rust", batch_bytes_max=BATCH_BYTES)
    rows = {number: java.layout.pack_any([number, None, None])[0] for number in (127, 128, 300)}
    assert [java.bucket_of(row) for row in rows.values()] == [10, 2, 5]
    assert [rust.bucket_of(row) for row in rows.values()] == [10, 7, 11]


@pytest.mark.parametrize("bytes_max", [64, 100, 1000, 5000, BATCH_BYTES])
def test_batches_stay_within_their_size_and_are_as_full_as_they_can_be(bytes_max: int) -> None:
    encoder = encoder_of(USERS, bytes_max=bytes_max)
    packed = [encoder.layout.pack_any([i, "x" * (i % 40), i])[0] for i in range(500)]
    encoded = [records for _, records in encoder.encode(encoder.layout.to_arrow(packed), 0)]
    sizes = [records.size_bytes for records in encoded]
    batches = [read_back(records) for records in encoded]
    keys = [batch.records().keys for batch in batches]
    assert [key for part in keys for key in part.to_list()] == [
        key for key, _ in encoded_bytes(encoder_of(USERS), packed)
    ]
    largest_record = 4 + 1 + 2 + 1 + 2 + 1 + 40 + 2
    for size, batch in zip(sizes, batches, strict=True):
        assert size <= bytes_max or batch.record_count == 1
    for size in sizes[:-1]:
        assert size + largest_record > bytes_max


def test_no_batch_has_more_records_than_a_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "RECORDS_MAX", 30)
    ids = list(range(100))
    batch = pa.RecordBatch.from_pydict({"id": ids, "name": ["a"] * 100, "age": ids}, schema=USERS.to_arrow())
    encoded = [read_back(records) for _, records in encoder_of(USERS).encode(batch, 0)]
    assert [each.record_count for each in encoded] == [30, 30, 30, 10]
    keys = [key for each in encoded for key in each.records().keys.to_list()]
    assert keys == compacted_columns.encode_keys([batch.column(0)], [USERS.data_types[0]]).to_list()


def test_a_record_that_is_larger_than_a_batch_is_a_batch_alone() -> None:
    encoder = encoder_of(USERS, bytes_max=200)
    packed = [encoder.layout.pack_any([i, "x" * length, None])[0] for i, length in enumerate([10, 1000, 10, 10])]
    counts = [read_back(records).record_count for _, records in encoder.encode(encoder.layout.to_arrow(packed), 0)]
    assert counts == [1, 1, 2]


@pytest.mark.parametrize("lake", ["paimon", "iceberg", "lance"])
@pytest.mark.parametrize("version", ["1", "2"])
def test_lakes_bring_their_own_keys_and_buckets(lake: str, version: str) -> None:
    key_types = [DataTypes.bigint().not_null()]
    schema = schema_from_columns([Column("id", key_types[0]), Column("name", DataTypes.string())], ["id"])
    properties = {"table.datalake.format": lake, "table.kv.format-version": version}
    encoder = encoder_of(schema, bucket_count=5, properties=properties)
    packed = [encoder.layout.pack_any([i * 1000, "x"])[0] for i in range(50)]
    primary = primary_key_encoder(key_types, lake, int(version), default_bucket_key=True)
    buckets = bucket_key_encoder(key_types, lake)
    found = {
        (bucket_id, key)
        for bucket_id, records in encoder.encode(encoder.layout.to_arrow(packed), BY_KEY)
        for key in read_back(records).records().keys.to_list()
    }
    assert found == {(bucket_for(buckets.encode([i * 1000]), 5, lake), primary.encode([i * 1000])) for i in range(50)}


def test_a_text_that_alone_chooses_the_bucket_must_not_be_empty() -> None:
    schema = Schema(pa.schema([("name", pa.string()), ("age", pa.int32())]), primary_keys=["name"])
    encoder = encoder_of(schema, properties={"table.datalake.format": "iceberg", "table.kv.format-version": "2"})
    for pack, value in ((encoder.layout.pack_any, ["", 1]), (encoder.layout.pack_delete, [""])):
        with pytest.raises(FlussError, match="Field 'name': a key that is empty belongs to no bucket"):
            pack(value)
    batch = pa.RecordBatch.from_pylist([{"name": "a", "age": 1}, {"name": "", "age": 2}], schema=schema.to_arrow())
    with pytest.raises(FlussError, match="Column 'name' has an empty value"):
        encoder.check_keys(batch)
    encoder.check_keys(batch.slice(0, 1))
    encoder.check_keys(batch.slice(0, 0))
    plain = encoder_of(schema)
    assert encoded_bytes(plain, [plain.layout.pack_delete([""])[0]]) == [(b"\x00", None)]


def test_no_rows_are_no_batches() -> None:
    encoder = encoder_of(USERS)
    empty = pa.RecordBatch.from_pylist([], schema=USERS.to_arrow())
    assert encoder.encode(empty, 0) == []
    assert encoder.encode(empty, BY_KEY) == []
