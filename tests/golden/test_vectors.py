"""Every golden vector, in every direction it allows: encode, decode, scalar and columnar.

One checker per group of vectors; a vector without a checker, or a checker without vectors, fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss.errors import ChecksumError, FlussError
from fluss.record.arrow_batch import ColumnProjection, decode_arrow_batch, encode_arrow_batch, project_batch
from fluss.record.arrow_ipc import parse_message
from fluss.record.compression import ArrowCompression
from fluss.record.framing import crc32c
from fluss.record.kv_batch import HEADER_BYTES, KvBatch, encode_kv_batch
from fluss.record.log_batch import (
    HEADER_LAYOUTS,
    LogBatch,
    assign_offset,
    build_batch,
    decode_row_body,
    encode_header,
    encode_row_body,
    read_batch,
    verify_crc,
)
from fluss.record.statistics import collect_statistics
from fluss.record.value_batch import (
    decode_value,
    decode_value_batch,
    encode_value,
    encode_value_batch,
    prefix_schema_id,
    split_values,
)
from fluss.row import compacted, indexed
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
from fluss.row.key import (
    CompactedKeyEncoder,
    HudiKeyEncoder,
    IcebergKeyEncoder,
    PaimonKeyEncoder,
    hudi_hash,
    primary_key_encoder,
)
from fluss.row.partition_names import TimePattern, auto_partition_value, format_partition_value
from fluss.row.slots import decode_aligned_row, encode_aligned_row
from fluss.row.values import Timestamp, arrow_from_internal, internal_from_arrow
from fluss.row.varint import (
    decode_varint32,
    decode_varint64,
    encode_varint32,
    encode_varint64,
    read_varints,
    varint_lengths,
    write_varints,
)
from fluss.schema.arrow import arrow_field, arrow_type
from fluss.schema.table import PartitionSpec, partition_name, spec_of_partition_name
from fluss.schema.table_options import CompressionType, TimeUnit
from fluss.schema.types import (
    BigIntType,
    BinaryType,
    DataType,
    IntType,
    StringType,
    TimestampLtzType,
    TimestampType,
)
from fluss.storage.log.file_names import LogFileKind, LogFileName, TabletLocation, log_file_name
from fluss.storage.log.index import decode_offset_index, decode_time_index, encode_offset_index, encode_time_index
from fluss.storage.log.remote_manifest import decode_manifest, encode_manifest
from fluss.storage.log.writer_state import WriterEntry, decode_writer_snapshot, encode_writer_snapshot
from tests.golden.vectors import (
    Vector,
    all_vectors,
    document,
    expected_bytes,
    field_of,
    internal,
    row_of,
    types_of,
    vector,
    vector_id,
    vectors_of,
)
from tests.unit.record.statistics_model import decode_statistics

Checker = Callable[[Vector], None]
Row = tuple[Any, ...]
_CHECKERS: dict[str, Checker] = {}


def checks(group: str) -> Callable[[Checker], Checker]:
    def register(checker: Checker) -> Checker:
        assert group not in _CHECKERS, group
        _CHECKERS[group] = checker
        return checker

    return register


@pytest.mark.parametrize("of", all_vectors(), ids=vector_id)
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

    # As a key column: alone, and at the end of one with all the others, where it ends with the data.
    types: list[DataType] = [IntType() if bits == 32 else BigIntType()]
    others = [other for other in vectors_of("varint") if kind in other["inputs"]]
    for batch in ([of], [*others, of]):
        numbers = pa.array([other["inputs"][kind] for other in batch], arrow_type(types[0]))
        keys = [expected_bytes(other) for other in batch]
        assert encode_keys([numbers], types).to_list() == keys
        assert decode_keys(EncodedRows.from_list(keys), types)[0].equals(numbers)


@checks("compacted-row")
@checks("compacted-row-nested")
def _compacted(of: Vector) -> None:
    types, values = row_of(of)
    expected = expected_bytes(of)
    assert compacted.encode_row(types, values) == expected
    assert compacted.decode_row(types, expected) == _stored(types, values)

    in_arrow = _types_for_arrow(types, values)
    nulls = (None,) * len(types)
    row, null_row = (values, expected), (nulls, compacted.encode_row(types, nulls))
    for batch in ([row], [row] * 3, [null_row, row, row, null_row, row, null_row]):
        _columnar(in_arrow, batch, encode_rows, decode_rows)
    _columnar_as_declared(types, values, expected, decode_rows)


@checks("key-compacted")
def _compacted_key(of: Vector) -> None:
    if of["id"] == "key.prefix":
        _key_prefix(of)
        return
    types, values = row_of(of)
    expected = expected_bytes(of)
    assert compacted.encode_fields(types, values) == expected
    assert compacted.decode_fields(types, expected) == _stored(types, values)
    if not any(data_type.is_nested for data_type in types):
        encoder = CompactedKeyEncoder(tuple(types))
        assert encoder.encode(values) == expected
        assert encoder.decode(expected) == _stored(types, values)

    for count in (1, 3):
        _columnar(_types_for_arrow(types, values), [(values, expected)] * count, encode_keys, decode_keys)
    _columnar_as_declared(types, values, expected, decode_keys)


def _key_prefix(of: Vector) -> None:
    types, values = row_of(of)
    full, prefix = bytes.fromhex(of["expected_full_key_hex"]), bytes.fromhex(of["expected_prefix_hex"])
    assert full.startswith(prefix)
    for count, key in ((len(types), full), (of["inputs"]["prefix_columns"], prefix)):
        assert compacted.encode_fields(types[:count], values[:count]) == key
        encoder = primary_key_encoder(types[:count], None, 2, default_bucket_key=False)
        assert encoder.encode(values[:count]) == key
        _columnar(types[:count], [(values[:count], key)], encode_keys, decode_keys)


def _columnar(
    types: Sequence[DataType],
    batch: Sequence[tuple[Row, bytes]],
    encode: Callable[..., EncodedRows],
    decode: Callable[..., list[pa.Array]],
) -> None:
    """Encode and decode rows column by column."""
    columns = _columns_of([row for row, _ in batch], types)
    expected = [data for _, data in batch]
    assert encode(columns, types).to_list() == expected
    decoded = decode(EncodedRows.from_list(expected), types)
    for found, column in zip(decoded, columns, strict=True):
        found.validate(full=True)
        assert found.equals(column)


def _columnar_as_declared(
    types: Sequence[DataType], values: Row, expected: bytes, decode: Callable[..., list[pa.Array]]
) -> None:
    """Decode a row that Arrow may not be able to hold: it becomes what Arrow holds of it, or is refused."""
    rows = EncodedRows.from_list([expected] * 3)
    try:
        columns = _columns_of([values] * 3, types)
    except FlussError:
        with pytest.raises(FlussError):
            decode(rows, types)
    else:
        for found, column in zip(decode(rows, types), columns, strict=True):
            assert found.equals(column)


def _types_for_arrow(types: Sequence[DataType], values: Row) -> list[DataType]:
    """Return types of the same bytes in which Arrow holds all of the values.

    Some vectors have more digits than their timestamp declares, or fewer bytes than their BINARY.
    """
    found: list[DataType] = []
    for data_type, value in zip(types, values, strict=True):
        match data_type:
            case BinaryType():
                found.append(BinaryType(len(value)))
            case TimestampType() | TimestampLtzType() if not _arrow_keeps(data_type, value):
                found.append(type(data_type)(3 if data_type.is_compact else 9))
            case _:
                found.append(data_type)
    return found


def _arrow_keeps(data_type: DataType, value: Any) -> bool:
    return internal_from_arrow(arrow_from_internal([value], data_type), data_type) == [value]


def _columns_of(rows: Sequence[Row], types: Sequence[DataType]) -> list[pa.Array]:
    return [arrow_from_internal([row[index] for row in rows], data_type) for index, data_type in enumerate(types)]


def _stored(types: Sequence[DataType], values: Row) -> Row:
    """Return what a row keeps of the values: a timestamp of whole milliseconds has no room for more."""
    return tuple(
        value._replace(nanos=0) if isinstance(value, Timestamp) and getattr(data_type, "is_compact", False) else value
        for data_type, value in zip(types, values, strict=True)
    )


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
    assert encode_aligned_row(types, values) == expected_bytes(of)
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
    texts = of["inputs"]["string_elements"]
    key = hudi_hash(texts)
    assert key == expected_bytes(of)
    values = [int(texts[0]), *texts[1:]]
    assert HudiKeyEncoder((IntType(), StringType())[: len(values)]).encode(values) == key
    _bucket(key, of["inputs"]["num_buckets"], "hudi", of["expected_bucket"])


# Hashes and buckets


@checks("hash")
def _hash(of: Vector) -> None:
    inputs = of["inputs"]
    if "int32" in inputs:
        assert spread(inputs["int32"]) == of["expected_int32"]
        assert spread_all(np.array([inputs["int32"]] * 2, np.int32)).tolist() == [of["expected_int32"]] * 2
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
        # The seed of these vectors is the default, and so are the signs of Java.
        java, rust = byte_hash(key), byte_hash(key, signed_tail=False)
        assert (java, rust) == (of["expected_int32_signed_tail"], of["expected_int32_unsigned_tail"])
        assert of["differs"] == (java != rust)
        assert byte_hashes(keys).tolist() == [java] * 40
        assert byte_hashes(keys, signed_tail=False).tolist() == [rust] * 40


@checks("bucketing")
def _bucketing(of: Vector) -> None:
    inputs = of["inputs"]
    key = bytes.fromhex(inputs["key_hex"])
    lake_format = None if inputs["lake_format"] == "none" else inputs["lake_format"]
    if "type" in inputs:
        data_type, value = field_of(of)
        assert compacted.encode_fields([data_type], [value]) == key
        _bucket(key, inputs["num_buckets"], lake_format, of["expected_bucket_java"])
        _bucket(key, inputs["num_buckets"], lake_format, of["expected_bucket_rust_client"], "rust")
    else:
        _bucket(key, inputs["num_buckets"], lake_format, of["expected_bucket"])


def _bucket(key: bytes, bucket_count: int, lake_format: str | None, expected: int, variant: Any = None) -> None:
    """Choose a bucket with a hash variant; without one, with Java's, which is the default."""
    keys = EncodedRows.from_list([key] * 40)
    named_variants = [(variant,)] if variant else [(), ("java",)]
    for named in named_variants:
        assert bucket_for(key, bucket_count, lake_format, *named) == expected
        assert buckets_for(keys, bucket_count, lake_format, *named).tolist() == [expected] * 40


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
        assert format_partition_value(value, data_type) == of.get("expected_java", of.get("expected"))
        rust = of.get("expected_rust_client", of.get("expected"))
        assert format_partition_value(value, data_type, style="rust") == rust


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
    assert batch.records == expected[header.header_size :]
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
    # Offset and time are left to the leader.
    header = batch.header
    assert (header.base_offset, header.commit_timestamp, header.size) == (0, 0, len(expected_bytes(of)))
    for name in ("schema_id", "writer_id", "batch_sequence", "magic"):
        assert getattr(header, name) == inputs.get(name, getattr(header, name))
    assert batch.statistics.hex() == inputs.get("statistics_hex", "")
    change_types = inputs.get("change_types")
    assert (None if batch.change_types is None else batch.change_types.tolist()) == change_types
    assert header.is_append_only == (change_types is None)
    if "statistics_hex" in inputs:
        types = types_of(of)
        assert collect_statistics(_arrow_rows(of), types, range(len(types))).hex() == inputs["statistics_hex"]
    _java_metadata(batch, of)
    _same_rows(batch, of)

    # These bytes come from another Arrow library, so ours differ; they must hold the same rows.
    ours = encode_arrow_batch(
        _arrow_rows(of),
        schema_id=header.schema_id,
        compression=_compression(of),
        change_types=None if change_types is None else np.array(change_types, np.uint8),
    )
    verify_crc(read_batch(ours))
    _same_rows(read_batch(ours), of)


def _java_metadata(batch: LogBatch, of: Vector) -> None:
    """Check the metadata of an Arrow message of Java with an INT and a STRING column."""
    message = parse_message(batch.arrow_message)
    numbers, texts = _arrow_rows(of).columns
    count = len(numbers)
    assert (message.length, message.codec) == (count, _compression(of).codec)
    assert message.nodes.tolist() == [[count, numbers.null_count], [count, texts.null_count]]
    # Java always writes a validity. None of these buffers is large enough to shrink, so a codec adds only its prefix.
    text_bytes = sum(len(text.encode()) for text in texts.drop_null().to_pylist())
    prefix_bytes = 0 if message.codec is None else 8
    lengths = [prefix_bytes + length for length in (1, 4 * count, 1, 4 * (count + 1), text_bytes)]
    padded = [-(-length // 8) * 8 for length in lengths]
    assert message.buffers.tolist() == [[sum(padded[:i]), length] for i, length in enumerate(lengths)]
    assert message.body_length == sum(padded)


@checks("log-projection")
def _log_projection(of: Vector) -> None:
    inputs = of["inputs"]
    source = vector(inputs["input"])
    stored = bytearray(expected_bytes(source))
    assign_offset(stored, inputs["base_offset"], inputs["commit_timestamp"])
    wanted = inputs["projected_fields"]
    projection = ColumnProjection.of(_arrow_rows(source).schema, wanted)

    expected = read_batch(expected_bytes(of))
    assert expected.header.size == len(expected_bytes(of))
    with pytest.raises(ChecksumError):
        verify_crc(expected)
    _same_rows(expected, source, wanted)

    # With the old checksum kept, only the spelling of the Arrow metadata, and so the length, may differ.
    kept = read_batch(b"".join(project_batch(read_batch(stored), projection, recompute_crc=False)))
    assert kept.header.base_offset == expected.header.base_offset
    assert encode_header(kept.header)[12:] == expected.data[12 : expected.header.header_size]
    assert kept.header.statistics_length == 0
    assert kept.change_type_bytes == expected.change_type_bytes == read_batch(stored).change_type_bytes
    _same_message(kept, expected)
    with pytest.raises(ChecksumError):
        verify_crc(kept)
    _same_rows(kept, source, wanted)

    ours = read_batch(b"".join(project_batch(read_batch(stored), projection)))
    verify_crc(ours)
    assert replace(ours.header, crc=kept.header.crc) == kept.header
    assert ours.data[ours.header.header_size :] == kept.data[kept.header.header_size :]
    _same_rows(ours, source, wanted)


def _same_message(batch: LogBatch, expected: LogBatch) -> None:
    """Check that two Arrow messages say the same and have the same body."""
    left, right = parse_message(batch.arrow_message), parse_message(expected.arrow_message)
    assert (left.length, left.codec, left.body_length) == (right.length, right.codec, right.body_length)
    assert left.nodes.tolist() == right.nodes.tolist()
    assert left.buffers.tolist() == right.buffers.tolist()
    assert batch.arrow_message[left.body_offset :] == expected.arrow_message[right.body_offset :]


def _compression(of: Vector) -> ArrowCompression:
    name = of["inputs"]["compression"].upper()
    return ArrowCompression(CompressionType["LZ4_FRAME" if name == "LZ4" else name])


def _arrow_rows(of: Vector) -> pa.RecordBatch:
    types = types_of(of)
    rows = [tuple(internal(value, t) for value, t in zip(row, types, strict=True)) for row in of["inputs"]["rows"]]
    names = of["inputs"].get("names", ["a", "b", "c"])[: len(types)]
    fields = [arrow_field(name, data_type) for name, data_type in zip(names, types, strict=True)]
    return pa.RecordBatch.from_arrays(_columns_of(rows, types), schema=pa.schema(fields))


def _same_rows(batch: LogBatch, of: Vector, wanted: list[int] | None = None) -> None:
    rows = _arrow_rows(of)
    if wanted is not None:
        rows = rows.select(wanted)
    for trusted in (False, True):
        assert decode_arrow_batch(batch, rows.schema, trusted=trusted).equals(rows)


@checks("statistics")
def _statistics(of: Vector) -> None:
    inputs = of["inputs"]
    types = types_of(of)
    assert bytes(collect_statistics(_arrow_rows(of), types, inputs["column_indexes"])) == expected_bytes(of)

    statistics = decode_statistics(expected_bytes(of), types)
    assert statistics is not None
    assert list(statistics.columns) == inputs["column_indexes"]
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
        assert batch[HEADER_BYTES:] == expected
        return
    header = {name: inputs[name] for name in ("schema_id", "writer_id", "batch_sequence")}
    assert _kv_batch_of(inputs["records"], **header) == expected

    parsed = KvBatch.parse(expected)
    parsed.verify_crc()
    assert {name: getattr(parsed, name) for name in header} == header
    assert parsed.record_count == len(inputs["records"])
    keys, rows, is_delete = parsed.records()
    assert [key.hex() for key in keys.to_list()] == [record["key_hex"] for record in inputs["records"]]
    read = [None if deleted else row.hex() for row, deleted in zip(rows.to_list(), is_delete, strict=True)]
    assert read == [record["row_hex"] for record in inputs["records"]]


def _kv_batch_of(records: list[dict[str, Any]], **header: int) -> bytes:
    keys = [bytes.fromhex(record["key_hex"]) for record in records]
    rows = [None if record["row_hex"] is None else bytes.fromhex(record["row_hex"]) for record in records]
    deletes = np.array([row is None for row in rows], np.bool_)
    return bytes(
        encode_kv_batch(
            EncodedRows.from_list(keys), EncodedRows.from_list([row or b"" for row in rows]), deletes, **header
        )
    )


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
            assert encode_offset_index(inputs["base_offset"], offsets, positions) == expected_bytes(of)
            columns = decode_offset_index(expected_bytes(of), inputs["base_offset"])
            assert np.stack(columns, axis=1).tolist() == inputs["entries"]
        case _, "index.time":
            timestamps, offsets = np.array(inputs["entries"]).T
            assert encode_time_index(inputs["base_offset"], timestamps, offsets) == expected_bytes(of)
            columns = decode_time_index(expected_bytes(of), inputs["base_offset"])
            assert np.stack(columns, axis=1).tolist() == inputs["entries"]
        case "file", _:
            names = {kind: log_file_name(inputs["offset"], kind) for kind in LogFileKind}
            assert {kind.value.lstrip("."): name for kind, name in names.items()} == of["expected"]
            for kind, name in names.items():
                assert LogFileName.parse(name) == LogFileName(inputs["offset"], kind)
        case "writer_snapshot", _:
            entries = [WriterEntry(*entry) for entry in inputs["entries"]]
            assert encode_writer_snapshot(entries).decode() == of["expected_text"]
            assert decode_writer_snapshot(of["expected_text"].encode()) == entries
        case "manifest", _:
            manifest = decode_manifest(of["expected_text"].encode())
            assert manifest.location == TabletLocation(
                inputs["database"],
                inputs["table"],
                inputs["table_id"],
                inputs["bucket"],
                inputs.get("partition_name"),
                inputs.get("partition_id"),
            )
            segments = json.loads(of["expected_text"])["remote_log_segments"]
            assert [segment.end_offset for segment in manifest.segments] == [s["end_offset"] for s in segments]
            assert encode_manifest(manifest).decode() == of["expected_text"]
        case _:
            raise AssertionError(f"no checker for {of['id']}")
