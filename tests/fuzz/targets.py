"""Every decoder that meets bytes of strangers, with valid inputs to damage.

Where two decoders must agree, their disagreement is a finding, too: the scalar and the columnar row codec, and a
projected batch against the same columns of the whole one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.errors import FlussError
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages, lookup_messages
from fluss.protocol.codec import MessageCodec
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.predicates import predicate_from_pb, predicate_to_pb
from fluss.protocol.sasl import UserTable
from fluss.protocol.scram import ScramServer
from fluss.protocol.session import ClientSession, RequestReceived, ResponseReceived, ServerSession
from fluss.protocol.stored_password import StoredPassword
from fluss.record.arrow_batch import ColumnProjection, decode_arrow_batch, encode_arrow_batch, project_batch
from fluss.record.batch_columns import BatchColumns
from fluss.record.batch_heads import BatchHeads, heads_of
from fluss.record.compression import ArrowCompression
from fluss.record.kv_batch import KvBatch, encode_kv_batch
from fluss.record.log_batch import (
    MAGIC_V1,
    LogBatch,
    build_batch,
    decode_row_body,
    downgrade_to_v0,
    encode_row_body,
    iter_batches,
    measure_batches,
    read_batch,
    verify_crc,
)
from fluss.record.statistics import WantedColumn, collect_statistics, read_statistics
from fluss.record.value_batch import decode_value, decode_value_batch, encode_value, encode_value_batch, split_values
from fluss.row import compacted, indexed
from fluss.row.arrow_arrays import empty_batch
from fluss.row.compacted_columns import decode_keys, decode_rows, encode_keys, encode_rows
from fluss.row.encoded import EncodedRows
from fluss.row.slots import decode_aligned_row, encode_aligned_row
from fluss.row.values import Timestamp, arrow_from_internal, internal_from_arrow
from fluss.schema.arrow import arrow_field, data_type_from_arrow
from fluss.schema.predicate import col
from fluss.schema.schema import Schema
from fluss.schema.serde import database_from_json, schema_from_json, table_from_json
from fluss.schema.table import TableBucket
from fluss.schema.table_options import CompressionType
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType
from fluss.server.merge.roaring import union
from fluss.storage.log.checkpoint_file import decode_checkpoint, encode_checkpoint
from fluss.storage.log.index import decode_offset_index, decode_time_index, encode_offset_index, encode_time_index
from fluss.storage.log.remote_manifest import decode_manifest
from fluss.storage.log.writer_state import WriterEntry, decode_writer_snapshot, encode_writer_snapshot
from tests.fakes.checking_session import CheckingSession
from tests.fuzz.engine import Target
from tests.fuzz.key_targets import key_targets
from tests.golden.vectors import vector
from tests.unit.server.merge.bitmap_samples import READERS, WRITERS, java_bitmaps

# No input here is longer than some kilobytes; nothing may need more than this to decode.
BYTES_MAX = 1 << 20

_SCALARS: list[tuple[str, list[Any]]] = [
    ("BOOLEAN", [True, False, None]),
    ("TINYINT", [-128, 5, None]),
    ("SMALLINT", [-32768, 5, 32767]),
    ("INT NOT NULL", [0, 300, -(2**31)]),
    ("BIGINT", [2**63 - 1, None, -1]),
    ("FLOAT", [1.5, None, float("inf")]),
    ("DOUBLE", [-0.0, 2.5e300, None]),
    ("STRING", ["", "text", "ünïcödé and rather longer"]),
    ("CHAR(3)", ["abc", None, "x"]),
    ("BYTES", [b"", None, b"\x00\xff" * 9]),
    ("BINARY(2)", [b"ab", b"\0\0", None]),
    ("DECIMAL(10,2)", [12345, -99, None]),
    ("DECIMAL(38,4)", [10**37, None, -(10**30)]),
    ("DATE", [0, -719162, 20000]),
    ("TIME(3)", [0, 86_399_999, None]),
    ("TIMESTAMP(3)", [Timestamp(-1), None, Timestamp(1_700_000_000_000)]),
    ("TIMESTAMP(6)", [Timestamp(-1, 999_000), None, Timestamp(1_700_000_000_000, 1000)]),
    ("TIMESTAMP_LTZ(9)", [Timestamp(1, 1), Timestamp(0), None]),
]
_NESTED: list[tuple[str, list[Any]]] = [
    ("ARRAY<INT>", [[1, None, 3], [], None]),
    ("ARRAY<STRING>", [["a", None, "longer than seven"], [], ["b"]]),
    ("ARRAY<ARRAY<DECIMAL(30,2)>>", [[[1, None], None, []], [], [[10**29]]]),
    ("MAP<STRING,TIMESTAMP(6)>", [[("k", Timestamp(1, 1000)), ("key-two-long", None)], [], None]),
    ("ROW<x INT,y ARRAY<ROW<z BYTES>>>", [(1, [(b"z",), (None,)]), None, (None, None)]),
]


def all_targets() -> list[Target]:
    """Return every target; the order decides which case goes where."""
    return [
        *_row_targets(),
        *_batch_targets(),
        *_protocol_targets(),
        *_text_targets(),
        *_file_targets(),
        *_bitmap_targets(),
        *key_targets(),
    ]


# Rows


def _row_targets() -> Iterator[Target]:
    scalar_types, scalar_rows = _rows(_SCALARS)
    all_types, all_rows = _rows(_SCALARS[3:8] + _NESTED)
    for name, types, rows in (("flat", scalar_types, scalar_rows), ("nested", all_types, all_rows)):
        encoded = [compacted.encode_row(types, row) for row in rows]
        yield Target(f"compacted-{name}", encoded, _both_decoders(types, compacted.decode_row, decode_rows))
        encoded = [indexed.encode_row(types, row) for row in rows]
        yield Target(f"indexed-{name}", encoded, _both_decoders(types, indexed.decode_row, indexed.decode_rows))
    for narrow in (slice(3, 4), slice(4, 5), slice(7, 8), slice(9, 10), slice(12, 13), slice(16, 17)):
        # Few columns: most of the damage hits the one codec.
        types, rows = _rows(_SCALARS[narrow])
        encoded = [compacted.encode_row(types, row) for row in rows]
        yield Target(f"compacted-{types[0].root}", encoded, _both_decoders(types, compacted.decode_row, decode_rows))
    key_types, key_rows = _rows([(text, [v for v in values if v is not None][:1]) for text, values in _SCALARS])
    keys = [compacted.encode_fields(key_types, row) for row in key_rows]
    yield Target("key", keys, _both_decoders(key_types, compacted.decode_fields, decode_keys))
    for text, values in _NESTED:
        data_type = parse_type(text)
        seeds = [compacted.encode_nested(data_type, value) for value in values if value is not None]
        yield Target(f"nested-{text}", seeds, _decoder(compacted.decode_nested, data_type))
    yield Target(
        "aligned",
        [encode_aligned_row(scalar_types, row) for row in scalar_rows],
        _decoder(decode_aligned_row, scalar_types),
    )


def _rows(columns: Sequence[tuple[str, list[Any]]]) -> tuple[list[DataType], list[tuple[Any, ...]]]:
    return [parse_type(text) for text, _ in columns], list(zip(*(values for _, values in columns), strict=True))


def _decoder(decode: Callable[[Any, bytes], object], types: Any) -> Callable[[bytes], object]:
    return lambda data: decode(types, data)


def _both_decoders(
    types: list[DataType],
    decode_one: Callable[[list[DataType], bytes], tuple[Any, ...]],
    decode_many: Callable[[EncodedRows, list[DataType]], list[pa.Array]],
) -> Callable[[bytes], object]:
    """Decode a row by both codecs. Arrow may refuse what a row can hold, but never the other way round."""

    def decode(data: bytes) -> object:
        rows = EncodedRows.from_list([data, data])
        try:
            values = decode_one(types, data)
        except FlussError:
            try:
                decode_many(rows, types)
            except FlussError:
                raise
            raise AssertionError("the columnar decoder accepts what the scalar one refuses") from None
        expected = [arrow_from_internal([value, value], t) for value, t in zip(values, types, strict=True)]
        columns = decode_many(rows, types)
        for column, wanted in zip(columns, expected, strict=True):
            # Arrow's equality treats NaN as unequal; its text does not.
            assert column.equals(wanted) or str(column) == str(wanted), f"{column} is not {wanted}"
        return columns

    return decode


# Batches


def _batch_targets() -> Iterator[Target]:
    small, schema = _arrow_batch(_SCALARS[3:8])
    nested, nested_schema = _arrow_batch(_SCALARS[:1] + _SCALARS[7:8] + _SCALARS[12:13] + _NESTED)
    long = pa.record_batch({"n": pa.array(range(2000), pa.int64()), "s": pa.array(["fluss"] * 2000)})
    changes = np.array([1, 2, 3], np.uint8)
    for compression in map(ArrowCompression, CompressionType):
        name = compression.type.value
        seeds = [_encoded(small, compression), _encoded(small, compression, change_types=changes)]
        yield Target(f"log-arrow-{name}", seeds, _arrow_decoder(schema, [1, 3]))
        yield Target(f"log-arrow-nested-{name}", [_encoded(nested, compression)], _arrow_decoder(nested_schema, [3, 5]))
        yield Target(f"log-arrow-long-{name}", [_encoded(long, compression)], _arrow_decoder(long.schema, [1]))
    java = [bytes.fromhex(vector(f"log.arrow.java.{id}")["expected_hex"]) for id in ("none", "zstd", "lz4", "v1.stats")]
    java_schema = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.string())])
    yield Target("log-arrow-java", java, _arrow_decoder(java_schema, [1]))
    yield Target("log-batches", [b"".join(java), java[0] * 3, java[3]], _walk_batches)

    types, rows = _rows(_SCALARS[3:8])
    encoded = EncodedRows.from_list([compacted.encode_row(types, row) for row in rows])
    row_batch = build_batch(
        [encode_row_body(encoded, changes)], schema_id=1, record_count=3, append_only=False, writer_id=7
    )
    yield Target("log-rows", [bytes(row_batch)], _row_batch_decoder(types))
    columns = [arrow_from_internal([row[i] for row in rows], t) for i, t in enumerate(types)]
    keys = encode_keys(columns[:1], types[:1])
    put = encode_kv_batch(keys, encode_rows(columns, types), np.array([False, True, False]), schema_id=1, writer_id=9)
    yield Target("kv-batch", [bytes(put), bytes(encode_kv_batch(keys, None, schema_id=0))], _kv_batch_decoder(types))
    values = [encode_value(3, row) for row in encoded.to_list()]
    yield Target("value", values, decode_value)
    value_batch = bytes(encode_value_batch(EncodedRows.from_list(values)))
    yield Target("value-batch", [value_batch], lambda data: split_values(decode_value_batch(data, size_max=BYTES_MAX)))
    flat_types = [parse_type(text) for text, _ in _SCALARS if not text.startswith(("BYTES", "BINARY"))]
    flat, _ = _arrow_batch([column for column in _SCALARS if not column[0].startswith(("BYTES", "BINARY"))])
    block = bytes(collect_statistics(flat, flat_types, range(len(flat_types))))
    asked = [WantedColumn(index, data_type) for index, data_type in enumerate(flat_types)]
    yield Target("statistics", [block], lambda data: read_statistics(_heads_with(data), lambda _: flat_types, asked))


def _heads_with(block: bytes) -> BatchHeads:
    batch = build_batch([], schema_id=1, record_count=1, append_only=True, magic=MAGIC_V1, statistics=block)
    return heads_of(batch)


def _arrow_batch(columns: Sequence[tuple[str, list[Any]]]) -> tuple[pa.RecordBatch, pa.Schema]:
    types = [parse_type(text) for text, _ in columns]
    schema = pa.schema([arrow_field(f"c{i}", t) for i, t in enumerate(types)])
    arrays = [arrow_from_internal(values, t) for (_, values), t in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), schema


def _encoded(batch: pa.RecordBatch, compression: ArrowCompression, **facts: Any) -> bytes:
    return bytes(encode_arrow_batch(batch, schema_id=1, compression=compression, **facts))


def _arrow_decoder(schema: pa.Schema, wanted: list[int]) -> Callable[[bytes], object]:
    types = [data_type_from_arrow(field.type, field.nullable) for field in schema]
    projection = ColumnProjection.of(schema, wanted)
    projected_schema = pa.schema([schema.field(index) for index in wanted])

    def decode(data: bytes) -> object:
        batch = read_batch(data, size_max=BYTES_MAX)
        projected = _projected(batch, projection, projected_schema)
        by_column = [_by_column(batch, schema, trusted=trusted) for trusted in (False, True)]
        rows = decode_arrow_batch(batch, schema, bytes_max=BYTES_MAX)
        decode_arrow_batch(batch, schema, bytes_max=BYTES_MAX, trusted=True)
        for columns in by_column:
            assert columns is not None, "what can be read at once can be read column by column"
            assert columns.serialize().equals(rows.serialize())
        # Serialising compares bit by bit: NaN, unlike in Arrow's equality, is what it is.
        assert projected is None or projected.serialize().equals(rows.select(wanted).serialize())
        # Every value is looked at, so that memory which is not there would be noticed.
        values = [internal_from_arrow(column, t) for column, t in zip(rows.columns, types, strict=True)]
        return values, batch.change_types

    return decode


def _by_column(batch: LogBatch, schema: pa.Schema, *, trusted: bool) -> pa.RecordBatch | None:
    """Read the columns one by one, the last one first; None stands for a refusal."""
    if not batch.header.record_count:
        return empty_batch(schema)
    try:
        columns = BatchColumns(batch, schema, bytes_max=BYTES_MAX, trusted=trusted, trusted_bytes_min=0)
        arrays = [columns.column(index) for index in reversed(range(len(schema)))]
    except FlussError:
        return None
    return pa.RecordBatch.from_arrays(arrays[::-1], schema=schema)


def _projected(batch: LogBatch, projection: ColumnProjection, schema: pa.Schema) -> pa.RecordBatch | None:
    """Project and decode; damage in columns that are left out does not show, so None stands for a refusal."""
    try:
        parts = project_batch(batch, projection)
        whole = read_batch(b"".join(parts))
    except FlussError:
        return None
    if batch.header.record_count:
        verify_crc(whole)
    try:
        return decode_arrow_batch(whole, schema, bytes_max=BYTES_MAX)
    except FlussError:
        return None


def _walk_batches(data: bytes) -> object:
    consumed = 0
    for batch in iter_batches(data, size_max=BYTES_MAX):
        consumed += batch.header.size
        read_batch(downgrade_to_v0(batch))
    assert consumed <= len(data)
    assert consumed == measure_batches(data, size_max=BYTES_MAX).byte_count
    return consumed


def _row_batch_decoder(types: list[DataType]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        batch = read_batch(data, size_max=BYTES_MAX)
        rows, change_types = decode_row_body(batch.records, batch.header.record_count)
        return decode_rows(rows, types), change_types

    return decode


def _kv_batch_decoder(types: list[DataType]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        keys, rows, is_delete = KvBatch.parse(data, size_max=BYTES_MAX).records()
        key_columns = decode_keys(keys, types[:1])
        puts = EncodedRows(rows.data, rows.starts[~is_delete], rows.ends[~is_delete])
        return [internal_from_arrow(column, types[0]) for column in key_columns], decode_rows(puts, types)

    return decode


# Protocol


def _protocol_targets() -> Iterator[Target]:
    payload = bytes(range(256)) * 2
    bucket = bulk_messages.BucketRecords(3, payload, 7)
    produce = bulk_messages.ProduceLogRequest(-1, 5, 30000, [bucket, bulk_messages.BucketRecords(0, b"")])
    put = bulk_messages.PutKvRequest(-1, 5, 30000, [0, 2], [bucket], 1)
    remote = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir="/remote", first_start_pos=9)
    fetched = bulk_messages.FetchedBucket(1, high_watermark=100, log_start_offset=0, records=payload)
    failed = bulk_messages.FetchedBucket(
        2, 8, error_code=19, error_message="out of range", remote_log_fetch_info=remote
    )
    fetch = bulk_messages.FetchLogResponse([bulk_messages.FetchedTable(5, [fetched, failed])])
    limit = bulk_messages.LimitScanResponse(is_log_table=True, records=payload)
    scan = bulk_messages.ScanKvResponse(scanner_id=b"id", has_more_results=True, records=payload, log_offset=5)
    spliced: list[tuple[Any, Any]] = [
        (bulk_messages.PRODUCE_LOG_REQUEST, produce),
        (bulk_messages.PUT_KV_REQUEST, put),
        (bulk_messages.FETCH_LOG_RESPONSE, fetch),
        (bulk_messages.LIMIT_SCAN_RESPONSE, limit),
        (bulk_messages.SCAN_KV_RESPONSE, scan),
    ]
    for codec, message in spliced:
        yield Target(codec.message_name, [b"".join(codec.encode(message))], codec.decode)
    metadata = pb.MetadataResponse()
    metadata.coordinator_server.node_id, metadata.coordinator_server.port = 0, 9123
    metadata.coordinator_server.host = "localhost"
    values = lookup_messages.LookupAnswer(3, encoded=lookup_messages.encode_values([b"one", None, payload]))
    looked_up = b"".join(lookup_messages.lookup_response([values]).parts)
    yield Target("LookupResponse", [looked_up], _decode_looked_up)
    yield Target("MetadataResponse", [metadata.SerializeToString()], apis.GET_METADATA.response.decode)
    entries = b"".join(bulk_messages.FETCH_LOG_RESPONSE.encode(fetch))
    yield Target("fetched-entries", [entries], lambda data: list(bulk_messages.fetched_entries(data)))
    yield _filter_target()

    requests = [
        _request(apis.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="f", client_software_version="1")),
        _request(apis.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=b"\0bob\0pw")),
        _request(apis.PRODUCE_LOG, produce),
        _request(apis.GET_METADATA, pb.MetadataRequest()),
    ]
    yield Target("server-session", [b"".join(requests), *requests], _feed_server)
    yield Target("client-session", [_answers(requests, produce)], _feed_client)
    yield Target("scram-first", [b"n,,n=user,r=abc", "y,a=ж=2C,n=ж=2C,r=a%c,x=y".encode()], _scram().first)
    yield Target("scram-final", [b"c=biws,r=abcdef,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="], _scram_final)
    stored = str(StoredPassword(b"0123456789abcdef", 4096, bytes(32), bytes(range(32)))).encode()
    yield Target("stored-password", [stored], lambda data: StoredPassword.parse(data.decode(errors="replace")))


def _filter_target() -> Target:
    builder = Schema.builder()
    for index, (type_text, _) in enumerate(_SCALARS):
        builder.column(f"c{index}", parse_type(type_text))
    schema = builder.build()
    condition = ((col("c1") > 5) & col("c7").starts_with("ü")) | col("c3").is_in([1, 2]) | col("c0").is_null()
    codec = MessageCodec(pb.PbPredicate)
    seeds = [predicate_to_pb(each.bind(schema)).SerializeToString() for each in (condition, col("c5") == 1.5)]
    return Target("filter", seeds, lambda data: predicate_to_pb(predicate_from_pb(codec.decode(data), schema)))


def _scram() -> ScramServer:
    return ScramServer(lambda username: (username.encode()[:16], 4096), nonce="def")


def _scram_final(data: bytes) -> object:
    server = _scram()
    server.first(b"n,,n=user,r=abc")
    server.final(data)
    return server.signature(StoredPassword(b"salt", 4096, bytes(32), bytes(32)))


def _request(api: Any, message: Any) -> bytes:
    return b"".join(ClientSession().request(api, message)[1])


def _server(check_credentials: Any = None) -> ServerSession:
    return CheckingSession(apis.APIS, check_credentials=check_credentials, frame_bytes_max=1 << 20)


def _feed_server(data: bytes) -> object:
    """Feed one session whole and one in two pieces; the events must be the same. Nothing may be raised."""
    whole, cut = _server(UserTable({"bob": "pw"})), _server(UserTable({"bob": "pw"}))
    events = whole.feed(data)
    pieces = [*cut.feed(data[: len(data) // 3]), *cut.feed(data[len(data) // 3 :])]
    assert [type(event) for event in events] == [type(event) for event in pieces]
    for event in events:
        if isinstance(event, RequestReceived):
            _decode_quietly(event.decode)
    return events


def _answers(requests: Sequence[bytes], produce: Any) -> bytes:
    server, answers = _server(), []
    for event in server.feed(b"".join(requests)):
        if isinstance(event, RequestReceived):
            answers.append(b"".join(server.error(event.request_id, FlussError("no", 7))))
        else:
            answers.append(b"".join(event.parts))
    answers.append(b"".join(server.failure(FlussError("bad", 46))))
    return b"".join(answers)


def _decode_looked_up(data: bytes) -> object:
    answer = apis.LOOKUP_MANY.response.decode(data)
    return [lookup_messages.values_of([entry])[0].to_list() for entry in answer.buckets_resp]


def _feed_client(data: bytes) -> object:
    client = ClientSession(frame_bytes_max=1 << 20)
    for _ in range(4):
        client.request(apis.GET_METADATA, pb.MetadataRequest())
    events = client.feed(data)
    for event in events:
        if isinstance(event, ResponseReceived):
            _decode_quietly(lambda body=event.body: apis.GET_METADATA.response.decode(body))
    return events


def _decode_quietly(decode: Callable[[], object]) -> None:
    try:
        decode()
    except FlussError:
        return


# Texts


def _text_targets() -> Iterator[Target]:
    schema = {
        "version": 1,
        "columns": [
            {"name": "id", "data_type": {"type": "INTEGER", "nullable": False}, "id": 0},
            {"name": "tags", "data_type": {"type": "MAP", **_map_types()}, "comment": "c", "id": 1},
            {"name": "total", "data_type": {"type": "BIGINT"}, "agg_function": {"type": "sum"}, "id": 3},
        ],
        "primary_key": ["id"],
        "highest_field_id": 3,
    }
    table = {
        "version": 1,
        "schema": schema,
        "comment": "t",
        "partition_key": [],
        "bucket_key": ["id"],
        "bucket_count": 3,
        "properties": {"table.replication.factor": "1"},
        "custom_properties": {},
    }
    database = {"version": 1, "comment": "d", "custom_properties": {"k": "v"}}
    yield Target("schema-json", [json.dumps(schema).encode()], schema_from_json)
    yield Target("table-json", [json.dumps(table).encode()], table_from_json)
    yield Target("database-json", [json.dumps(database).encode()], database_from_json)
    texts = [b"DECIMAL(10, 2) NOT NULL", b"map<string NOT NULL,row<a: int, `b``c` array<timestamp_ltz(3)>>>"]
    yield Target("type-text", texts, lambda data: parse_type(data.decode(errors="replace")))


def _map_types() -> dict[str, Any]:
    row = {
        "type": "ROW",
        "fields": [{"name": "x", "field_type": {"type": "DECIMAL", "precision": 9, "scale": 2}, "field_id": 2}],
    }
    return {"key_type": {"type": "STRING", "nullable": False}, "value_type": row}


# Files


def _file_targets() -> Iterator[Target]:
    numbers = np.array([110, 120, 130])
    yield Target(
        "offset-index", [encode_offset_index(100, numbers, numbers * 64)], lambda data: decode_offset_index(data, 100)
    )
    yield Target("time-index", [encode_time_index(100, numbers, numbers)], lambda data: decode_time_index(data, 100))
    yield Target("writer-snapshot", [encode_writer_snapshot([WriterEntry(1, 2, 30, 4, 5)])], decode_writer_snapshot)
    manifests = [vector(f"manifest.json.{kind}")["expected_text"].encode() for kind in ("table", "partition")]
    yield Target("remote-manifest", manifests, decode_manifest)
    offsets = {TableBucket(1, 0): 10, TableBucket.with_partition(2, 5, 1): 20}
    yield Target("checkpoint", [encode_checkpoint(offsets)], decode_checkpoint)


# Bitmaps


def _bitmap_targets() -> Iterator[Target]:
    for bits in (32, 64):
        seeds = [sample.java for sample in java_bitmaps() if sample.bits == bits and len(sample.java) < 2000]
        yield Target(f"bitmap-{bits}", seeds, _bitmap_reader(bits))


def _bitmap_reader(bits: int) -> Callable[[bytes], object]:
    """Read a bitmap; whatever is accepted must be a bitmap that can be united, written and read again."""

    def decode(data: bytes) -> object:
        made_small = union({}, READERS[bits](data))
        assert READERS[bits](WRITERS[bits](made_small)) == made_small
        return made_small

    return decode
