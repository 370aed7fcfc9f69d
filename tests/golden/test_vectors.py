"""Every golden vector, in every direction it allows: encode, decode, scalar and columnar.

One checker per group of vectors; a vector without a checker, or a checker without vectors, fails.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss.errors import ChecksumError, FlussError
from fluss.record.arrow_batch import decode_arrow_batch, encode_arrow_batch
from fluss.record.compression import ArrowCompression, CompressionType
from fluss.record.crc import crc32c
from fluss.record.kv_batch import KvBatch, KvBatchBuilder, encode_kv_batch
from fluss.record.log_batch import HEADER_LAYOUTS, LogBatch, assign_offset, build_batch, read_batch, verify_crc
from fluss.record.projection import ColumnProjection, project_batch
from fluss.record.row_batch import decode_row_body, encode_row_body
from fluss.record.statistics import collect_statistics, decode_statistics
from fluss.record.value_batch import (
    decode_value,
    decode_value_batch,
    encode_value,
    encode_value_batch,
    prefix_schema_id,
    split_values,
)
from fluss.row import compacted, indexed
from fluss.row.aligned import decode_aligned_row, encode_aligned_row
from fluss.row.auto_partition import TimePattern, TimeUnit, auto_partition_value
from fluss.row.bucketing import (
    bucket_for,
    buckets_for,
    byte_hash,
    byte_hashes,
    murmur3,
    murmur3_hashes,
    spread,
    spread_all,
)
from fluss.row.compacted_columns import decode_keys, decode_rows, encode_keys, encode_rows
from fluss.row.encoded import EncodedRows
from fluss.row.key import IcebergKeyEncoder, PaimonKeyEncoder, hudi_hash
from fluss.row.partition import partition_value
from fluss.row.values import arrow_from_internal, internal_from_arrow
from fluss.row.varint import decode_varint32, decode_varint64, encode_varint32, encode_varint64
from fluss.row.varint_columns import read_varints, varint_lengths, write_varints
from fluss.schema.arrow import arrow_field
from fluss.schema.partition import PartitionSpec, partition_name, spec_of_partition_name
from fluss.schema.type_text import parse_type
from fluss.schema.types import DataType, FloatType
from fluss.storage.log.names import LogFileKind, LogFileName, log_file_name
from fluss.storage.log.offset_index import OffsetIndex, encode_offset_entries
from fluss.storage.log.remote_manifest import decode_manifest, encode_manifest
from fluss.storage.log.time_index import TimeIndex, encode_time_entries
from fluss.storage.log.writer_snapshot import WriterEntry, decode_writer_snapshot, encode_writer_snapshot
from tests.golden.vectors import Vector, all_vectors, document, expected_bytes, field_of, internal, row_of, vector

Checker = Callable[[Vector], None]
_CHECKERS: dict[str, Checker] = {}


def checks(group: str) -> Callable[[Checker], Checker]:
    def register(checker: Checker) -> Checker:
        assert group not in _CHECKERS, group
        _CHECKERS[group] = checker
        return checker

    return register


@pytest.mark.parametrize("of", all_vectors(), ids=lambda of: of["id"])
def test_vector(of: Vector) -> None:
    _CHECKERS[of["group"]](of)


def test_no_vector_is_left_out() -> None:
    assert len(all_vectors()) == document()["count"] == 246
    assert len({of["id"] for of in all_vectors()}) == 246
    assert {of["group"] for of in all_vectors()} == set(_CHECKERS)


# Rows and keys


@checks("varint")
def _varint(of: Vector) -> None:
    expected = expected_bytes(of)
    ((kind, value),) = of["inputs"].items()
    bits = {"int32": 32, "int64": 64}[kind]
    encode, decode = (encode_varint32, decode_varint32) if bits == 32 else (encode_varint64, decode_varint64)
    assert encode(value) == expected
    assert decode(expected) == (value, len(expected))

    column = np.array([value, value], dtype=f"i{bits // 8}").view(f"u{bits // 8}")
    lengths = varint_lengths(column)
    assert lengths.tolist() == [len(expected)] * 2
    out = np.zeros(2 * len(expected) + 8, np.uint8)
    positions = np.array([0, len(expected)])
    write_varints(out, positions, column, lengths)
    assert out[: 2 * len(expected)].tobytes() == expected * 2
    read, read_lengths = read_varints(out, positions, bits=bits)
    assert read.astype(column.dtype).tolist() == column.tolist()
    assert read_lengths.tolist() == lengths.tolist()


@checks("compacted-row")
@checks("compacted-row-nested")
def _compacted(of: Vector) -> None:
    types, values = row_of(of)
    expected = expected_bytes(of)
    assert compacted.encode_row(types, values) == expected
    assert compacted.decode_row(types, expected) == _stored(types, values)
    _columnar(types, values, expected, encode_rows, decode_rows)


@checks("key-compacted")
def _compacted_key(of: Vector) -> None:
    types, values = row_of(of)
    if of["id"] == "key.prefix":
        prefix = compacted.encode_fields(types[:2], values[:2])
        full = compacted.encode_fields(types, values)
        assert (prefix.hex(), full.hex()) == (of["expected_prefix_hex"], of["expected_full_key_hex"])
        assert full.startswith(prefix)
        return
    expected = expected_bytes(of)
    assert compacted.encode_fields(types, values) == expected
    assert compacted.decode_fields(types, expected) == _stored(types, values)
    _columnar(types, values, expected, encode_keys, decode_keys)


def _columnar(
    types: list[DataType],
    values: tuple[Any, ...],
    expected: bytes,
    encode: Callable[..., EncodedRows],
    decode: Callable[..., list[pa.Array]],
) -> None:
    """Encode and decode three equal rows column by column.

    Arrow holds less than a row: a TIMESTAMP(6) has no nanoseconds, a BINARY(4) is never shorter. Such a vector can
    only be decoded, to what Arrow holds of it, or be refused.
    """
    try:
        columns = [arrow_from_internal([value] * 3, data_type) for value, data_type in zip(values, types, strict=True)]
    except FlussError:
        with pytest.raises(FlussError):
            decode(EncodedRows.from_list([expected] * 3), types)
        return
    decoded = decode(EncodedRows.from_list([expected] * 3), types)
    assert [column.to_pylist() for column in decoded] == [column.to_pylist() for column in columns]
    kept = tuple(internal_from_arrow(column, t)[0] for column, t in zip(columns, types, strict=True))
    if kept == _stored(types, values):
        assert encode(columns, types).to_list() == [expected] * 3


def _stored(types: list[DataType], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a row keeps of the values: floats at their width, no nanoseconds in a compact timestamp."""
    return tuple(_stored_value(t, value) for t, value in zip(types, values, strict=True))


def _stored_value(data_type: DataType, value: Any) -> Any:
    if isinstance(value, list) and hasattr(data_type, "element_type"):
        return [_stored_value(data_type.element_type, item) for item in value]
    if isinstance(data_type, FloatType) and value is not None:
        return float(np.float32(value))
    if value is not None and getattr(data_type, "is_compact", False) and hasattr(value, "nanos"):
        return value._replace(nanos=0)
    return value


@checks("indexed-row")
def _indexed(of: Vector) -> None:
    types, values = row_of(of)
    expected = expected_bytes(of)
    assert indexed.encode_row(types, values) == expected
    read = indexed.decode_row(types, expected)
    if of["id"] == "indexed.char_binary":
        # A BINARY(4) has four bytes once it is stored.
        values = (values[0], values[1].ljust(4, b"\0"))
    assert read == _stored(types, values)


@checks("aligned-row")
def _aligned(of: Vector) -> None:
    types, values = row_of(of)
    assert encode_aligned_row(types, values) == expected_bytes(of)
    assert decode_aligned_row(types, expected_bytes(of)) == values


@checks("key-paimon")
def _paimon(of: Vector) -> None:
    types, values = row_of(of)
    assert PaimonKeyEncoder(tuple(types)).encode(values) == expected_bytes(of)
    assert decode_aligned_row(types, expected_bytes(of)) == _stored(types, values)


@checks("key-iceberg")
def _iceberg(of: Vector) -> None:
    data_type, value = field_of(of)
    key = IcebergKeyEncoder((data_type,)).encode([value])
    assert key == expected_bytes(of)
    assert murmur3(key) == of["expected_murmur3_int32"]
    assert murmur3_hashes(EncodedRows.from_list([key] * 40)).tolist() == [of["expected_murmur3_int32"]] * 40


@checks("key-hudi")
def _hudi(of: Vector) -> None:
    key = hudi_hash(of["inputs"]["string_elements"])
    assert key == expected_bytes(of)
    _bucket(key, of["inputs"]["num_buckets"], "hudi", "java", of["expected_bucket"])


# Hashes and buckets


@checks("hash")
def _hash(of: Vector) -> None:
    inputs = of["inputs"]
    if "int32" in inputs:
        assert spread(inputs["int32"]) == of["expected_int32"]
        assert spread_all(np.array([inputs["int32"]], np.int32)).tolist() == [of["expected_int32"]]
        return
    # Forty equal keys take the columnar way, one alone takes the other.
    key, seed = bytes.fromhex(inputs["bytes_hex"]), inputs["seed"]
    keys = EncodedRows.from_list([key] * 40)
    if of["id"].startswith("hash.murmur3"):
        assert murmur3(key, seed=seed) == of["expected_int32"]
        assert murmur3_hashes(keys, seed=seed).tolist() == [of["expected_int32"]] * 40
        return
    for signed_tail, name in ((True, "expected_int32_signed_tail"), (False, "expected_int32_unsigned_tail")):
        expected = of.get(name, of.get("expected_int32"))
        assert byte_hash(key, seed=seed, signed_tail=signed_tail) == expected
        assert byte_hashes(keys, seed=seed, signed_tail=signed_tail).tolist() == [expected] * 40
    if "differs" in of:
        assert of["differs"] == (byte_hash(key, signed_tail=True) != byte_hash(key, signed_tail=False))


@checks("bucketing")
def _bucketing(of: Vector) -> None:
    inputs = of["inputs"]
    key = bytes.fromhex(inputs["key_hex"])
    lake_format = None if inputs["lake_format"] == "none" else inputs["lake_format"]
    if "type" in inputs:
        data_type, value = field_of(of)
        assert compacted.encode_fields([data_type], [value]) == key
        _bucket(key, inputs["num_buckets"], lake_format, "java", of["expected_bucket_java"])
        _bucket(key, inputs["num_buckets"], lake_format, "rust", of["expected_bucket_rust_client"])
    else:
        _bucket(key, inputs["num_buckets"], lake_format, "java", of["expected_bucket"])


def _bucket(key: bytes, bucket_count: int, lake_format: str | None, variant: Any, expected: int) -> None:
    assert bucket_for(key, bucket_count, lake_format, variant) == expected
    keys = EncodedRows.from_list([key] * 40)
    assert buckets_for(keys, bucket_count, lake_format, variant).tolist() == [expected] * 40


# Partitions


@checks("partition-name")
def _partition(of: Vector) -> None:
    inputs = of["inputs"]
    if "time_unit" in inputs:
        now = datetime.fromisoformat(inputs["local_time"])
        pattern = TimePattern.of(TimeUnit(inputs["time_unit"]))
        assert [auto_partition_value(now, offset, pattern) for offset in inputs["offsets"]] == of["expected"]
    elif "partition_keys" in inputs:
        keys = inputs["partition_keys"]
        spec = PartitionSpec(dict(zip(keys, inputs["values"], strict=True)))
        assert partition_name(spec, keys) == of["expected"]
        assert spec_of_partition_name(of["expected"], keys) == spec
    else:
        data_type, value = field_of(of)
        assert partition_value(value, data_type) == of.get("expected_java", of.get("expected"))
        if "expected_rust_client" in of:
            assert partition_value(value, data_type, style="rust") == of["expected_rust_client"]


# Batches


@checks("crc32c")
def _crc(of: Vector) -> None:
    assert crc32c(of["inputs"]["ascii"].encode()) == of["expected_uint32"]


@checks("log-header")
def _log_header(of: Vector) -> None:
    layout = HEADER_LAYOUTS[of["inputs"]["magic"]]
    found = {**layout.offsets, "header_size": layout.size}
    if "statistics_length" in layout.offsets:
        found["statistics_data"] = layout.size
    assert found == of["expected_offsets"]


@checks("log-batch")
def _log_batch(of: Vector) -> None:
    inputs = of["inputs"]
    expected = expected_bytes(of)
    rows = EncodedRows.from_list([bytes.fromhex(row) for row in inputs.get("rows_hex", [])])
    change_types = np.array(inputs.get("record_change_types", []), np.uint8)
    body = [encode_row_body(rows, change_types)] if len(rows) else []
    facts = {name: inputs[name] for name in ("magic", "schema_id", "append_only", "writer_id", "batch_sequence")}
    extra = {name: inputs[name] for name in ("base_offset", "commit_timestamp", "leader_epoch") if name in inputs}
    assert bytes(build_batch(body, record_count=len(rows), **facts, **extra)) == expected

    batch = read_batch(expected)
    verify_crc(batch)
    header = batch.header
    assert header.record_count == len(rows)
    assert header.is_append_only == facts.pop("append_only")
    assert {name: getattr(header, name) for name in (*facts, *extra)} == {**facts, **extra}
    read_rows, read_change_types = decode_row_body(batch.records, header.record_count)
    assert read_rows.to_list() == rows.to_list()
    assert read_change_types.tolist() == change_types.tolist()


@checks("log-arrow")
def _log_arrow(of: Vector) -> None:
    inputs = of["inputs"]
    batch = read_batch(expected_bytes(of))
    verify_crc(batch)
    for name in ("schema_id", "writer_id", "batch_sequence", "magic"):
        assert getattr(batch.header, name) == inputs.get(name, getattr(batch.header, name))
    assert batch.statistics.hex() == inputs.get("statistics_hex", "")
    change_types = inputs.get("change_types")
    assert (None if batch.change_types is None else batch.change_types.tolist()) == change_types
    if "statistics_hex" in inputs:
        types = [parse_type(text) for text in inputs["types"]]
        rows = _arrow_rows(of)
        assert collect_statistics(rows, types, range(len(types))).hex() == inputs["statistics_hex"]
    _same_rows(batch, of)

    # These bytes come from another Arrow library, so ours differ; they must hold the same rows.
    ours = encode_arrow_batch(
        _arrow_rows(of),
        schema_id=batch.header.schema_id,
        compression=ArrowCompression(CompressionType[_codec_name(of)]),
        change_types=None if change_types is None else np.array(change_types, np.uint8),
    )
    verify_crc(read_batch(ours))
    _same_rows(read_batch(ours), of)


@checks("log-projection")
def _log_projection(of: Vector) -> None:
    inputs = of["inputs"]
    source = vector(inputs["input"])
    stored = bytearray(expected_bytes(source))
    assign_offset(stored, inputs["base_offset"], inputs["commit_timestamp"])
    wanted = inputs["projected_fields"]
    projection = ColumnProjection.of(_arrow_rows(source).schema, wanted)

    expected = read_batch(expected_bytes(of))
    with pytest.raises(ChecksumError):
        verify_crc(expected)
    _same_rows(expected, source, wanted)

    # With the old checksum kept, only the layout of the Arrow metadata may differ from the expected bytes.
    kept = read_batch(b"".join(project_batch(read_batch(stored), projection, recompute_crc=False)))
    for name in (name for name in HEADER_LAYOUTS[kept.header.magic].offsets if name != "length"):
        assert getattr(kept.header, name) == getattr(expected.header, name), name
    assert kept.change_type_bytes == expected.change_type_bytes
    _same_rows(kept, source, wanted)

    ours = read_batch(b"".join(project_batch(read_batch(stored), projection)))
    verify_crc(ours)
    _same_rows(ours, source, wanted)


def _codec_name(of: Vector) -> str:
    codec = of["inputs"]["compression"].upper()
    return "LZ4_FRAME" if codec == "LZ4" else str(codec)


def _arrow_rows(of: Vector) -> pa.RecordBatch:
    types = [parse_type(text) for text in of["inputs"]["types"]]
    names = of["inputs"].get("names", ["a", "b"])
    columns = [
        arrow_from_internal([internal(row[index], data_type) for row in of["inputs"]["rows"]], data_type)
        for index, data_type in enumerate(types)
    ]
    fields = [arrow_field(name, data_type) for name, data_type in zip(names, types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _same_rows(batch: LogBatch, of: Vector, wanted: list[int] | None = None) -> None:
    rows = _arrow_rows(of)
    if wanted is not None:
        rows = rows.select(wanted)
    for trusted in (False, True):
        assert decode_arrow_batch(batch, rows.schema, trusted=trusted).equals(rows)


@checks("statistics")
def _statistics(of: Vector) -> None:
    inputs = of["inputs"]
    types = [parse_type(text) for text in inputs["types"]]
    columns = [
        arrow_from_internal([internal(row[index], t) for row in inputs["rows"]], t) for index, t in enumerate(types)
    ]
    fields = [arrow_field(f"c{index}", data_type) for index, data_type in enumerate(types)]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    assert bytes(collect_statistics(batch, types, inputs["column_indexes"])) == expected_bytes(of)

    statistics = decode_statistics(expected_bytes(of), types)
    assert statistics is not None
    for column_index in inputs["column_indexes"]:
        present = [row[column_index] for row in inputs["rows"] if row[column_index] is not None]
        bounds = statistics.columns[column_index]
        assert bounds.null_count == len(inputs["rows"]) - len(present)
        assert (bounds.minimum, bounds.maximum) == (min(present, default=None), max(present, default=None))


@checks("kv-batch")
def _kv_batch(of: Vector) -> None:
    inputs = of["inputs"]
    expected = expected_bytes(of)
    if "records" not in inputs:
        # A record by itself is what a batch of one has behind its header.
        batch = _kv_batch_of([inputs], schema_id=0, writer_id=-1, batch_sequence=-1)
        assert batch[28:] == expected
        return
    header = {name: inputs[name] for name in ("schema_id", "writer_id", "batch_sequence")}
    assert _kv_batch_of(inputs["records"], **header) == expected

    batch = KvBatch.parse(expected)
    batch.verify_crc()
    assert {name: getattr(batch, name) for name in header} == header
    keys, rows, is_delete = batch.records()
    assert [key.hex() for key in keys.to_list()] == [record["key_hex"] for record in inputs["records"]]
    read = [None if deleted else row.hex() for row, deleted in zip(rows.to_list(), is_delete, strict=True)]
    assert read == [record["row_hex"] for record in inputs["records"]]


def _kv_batch_of(records: list[dict[str, Any]], **header: int) -> bytes:
    """Build a batch both ways: of whole columns, and record by record."""
    keys = [bytes.fromhex(record["key_hex"]) for record in records]
    rows = [None if record["row_hex"] is None else bytes.fromhex(record["row_hex"]) for record in records]
    builder = KvBatchBuilder()
    for key, row in zip(keys, rows, strict=True):
        assert builder.append(key, row)
    deletes = np.array([row is None for row in rows], np.bool_)
    columnar = encode_kv_batch(
        EncodedRows.from_list(keys), EncodedRows.from_list([row or b"" for row in rows]), deletes, **header
    )
    assert builder.build(**header) == columnar
    return bytes(columnar)


@checks("kv-value")
def _kv_value(of: Vector) -> None:
    inputs, expected = of["inputs"], expected_bytes(of)
    records = inputs.get("records", [inputs])
    values = [encode_value(record["schema_id"], bytes.fromhex(record["row_hex"])) for record in records]
    for value, record in zip(values, records, strict=True):
        schema_id, row = decode_value(value)
        assert (schema_id, row.hex()) == (record["schema_id"], record["row_hex"])
        one_row = EncodedRows.from_list([bytes(row)])
        assert prefix_schema_id(one_row, schema_id).to_list() == [value]
    if "records" not in inputs:
        assert values == [expected]
        return
    assert bytes(encode_value_batch(EncodedRows.from_list(values))) == expected
    schema_ids, rows = split_values(decode_value_batch(expected))
    assert schema_ids.tolist() == [record["schema_id"] for record in records]
    assert [row.hex() for row in rows.to_list()] == [record["row_hex"] for record in records]


# Files


@checks("log-files")
def _log_files(of: Vector) -> None:
    inputs = of["inputs"]
    match of["id"].partition(".")[0], of["id"]:
        case _, "index.offset":
            offsets, positions = np.array(inputs["entries"]).T
            assert encode_offset_entries(inputs["base_offset"], offsets, positions) == expected_bytes(of)
            index = OffsetIndex.parse(expected_bytes(of), inputs["base_offset"])
            assert [list(index.lookup(offset)) for offset in offsets.tolist()] == inputs["entries"]
        case _, "index.time":
            timestamps, offsets = np.array(inputs["entries"]).T
            assert encode_time_entries(inputs["base_offset"], timestamps, offsets) == expected_bytes(of)
            times = TimeIndex.parse(expected_bytes(of), inputs["base_offset"])
            assert [[t, times.lookup(t)] for t in timestamps.tolist()] == inputs["entries"]
        case "file", _:
            names = {kind.value.lstrip("."): log_file_name(inputs["offset"], kind) for kind in LogFileKind}
            assert names == of["expected"]
            for name in names.values():
                parsed = LogFileName.parse(name)
                assert parsed is not None
                assert parsed.offset == inputs["offset"]
        case "writer_snapshot", _:
            entries = [WriterEntry(*entry) for entry in inputs["entries"]]
            assert encode_writer_snapshot(entries).decode() == of["expected_text"]
            assert decode_writer_snapshot(of["expected_text"].encode()) == entries
        case "manifest", _:
            manifest = decode_manifest(of["expected_text"].encode())
            location = manifest.location
            assert (location.database, location.table, location.table_id) == (
                inputs["database"],
                inputs["table"],
                inputs["table_id"],
            )
            assert (location.partition_name, location.partition_id, location.bucket_id) == (
                inputs.get("partition_name"),
                inputs.get("partition_id"),
                inputs["bucket"],
            )
            assert encode_manifest(manifest).decode() == of["expected_text"]
        case _:
            raise AssertionError(f"no checker for {of['id']}")
