"""Log batches with a right checksum and a wrong content: each is one lie that a writer could tell."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_ipc import BodyCodec, build_metadata, column_layout, parse_message
from fluss.record.compression import LENGTH_PREFIX, NO_COMPRESSION, ArrowCompression, compress_message
from fluss.record.log_batch import (
    ATTRIBUTE_APPEND_ONLY,
    MAGIC_V1,
    MAGIC_V2,
    NO_BATCH_SEQUENCE,
    LogBatchHeader,
    sealed_header,
)
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import table_to_json
from fluss.schema.table_options import CompressionType

ROW_COUNT = 4
_TIMEOUT_S = 300
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("clock", pa.time32("ms")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("pair", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])),
        pa.field("raw", pa.binary()),
    ]
)
_LAYOUT = column_layout(SCHEMA)


def rows(first: int = 0, row_count: int = ROW_COUNT) -> pa.RecordBatch:
    """Return good rows."""
    numbers = range(first, first + row_count)
    return pa.RecordBatch.from_pydict(
        {
            "id": list(numbers),
            "name": [None if number % 4 == 3 else f"name {number}" for number in numbers],
            "price": [decimal.Decimal(number) for number in numbers],
            "day": [datetime.date(2024, 1, 1)] * row_count,
            "at": [datetime.datetime(2024, 1, 1)] * row_count,
            "clock": [datetime.time(12)] * row_count,
            "tags": [["x", "y"]] * row_count,
            "pair": [{"a": 1, "b": "z"}] * row_count,
            "raw": [b"\x00\xff"] * row_count,
        },
        schema=SCHEMA,
    )


def header(**fields: Any) -> LogBatchHeader:
    """Return the header of good rows, with other values for some fields."""
    good = LogBatchHeader(
        schema_id=1, attributes=ATTRIBUTE_APPEND_ONLY, last_offset_delta=ROW_COUNT - 1, record_count=ROW_COUNT
    )
    return replace(good, **fields)


def header_of(row_count: int) -> LogBatchHeader:
    return header(record_count=row_count, last_offset_delta=row_count - 1)


def sealed(facts: LogBatchHeader, *parts: bytes) -> bytes:
    """Return a batch whose checksum is right, whatever is in it."""
    return b"".join((sealed_header(facts, parts), *parts))


def good_batch(first: int = 0, compression: ArrowCompression = NO_COMPRESSION) -> bytes:
    return sealed(header(), bytes(compress_message(rows(first).serialize(), compression)))


class Message:
    """The Arrow message of good rows, taken apart so that any of it can be changed."""

    def __init__(self, compression: ArrowCompression = NO_COMPRESSION, row_count: int = ROW_COUNT) -> None:
        view = memoryview(compress_message(rows(0, row_count).serialize(), compression))
        parsed = parse_message(view)
        self.length = parsed.length
        self.nodes = parsed.nodes.copy()
        self.buffers = parsed.buffers.copy()
        self.codec = parsed.codec
        self.body = bytearray(view[parsed.body_offset : parsed.body_offset + parsed.body_length])

    def buffer(self, column: str, index: int) -> int:
        """Return the position of a buffer of a column in ``buffers``."""
        return int(_LAYOUT.buffer_starts[SCHEMA.get_field_index(column)]) + index

    def node(self, column: str) -> int:
        return int(_LAYOUT.node_starts[SCHEMA.get_field_index(column)])

    def write(self, column: str, index: int, data: bytes, *, at_end: bool = False) -> None:
        """Overwrite the first or the last bytes of a buffer."""
        start, length = self.buffers[self.buffer(column, index)].tolist()
        if at_end:
            start += length - len(data)
        self.body[start : start + len(data)] = data

    def encode(self) -> bytes:
        metadata = build_metadata(self.length, self.nodes, self.buffers, self.codec, len(self.body))
        return metadata + bytes(self.body)


def _with_message(change: Callable[[Message], None], compression: ArrowCompression = NO_COMPRESSION) -> bytes:
    message = Message(compression)
    change(message)
    return sealed(header(), message.encode())


def _header_lies() -> Iterator[tuple[str, bytes]]:
    body = bytes(rows().serialize())
    for name, fields in {
        "one record more": {"record_count": ROW_COUNT + 1, "last_offset_delta": ROW_COUNT},
        "one record less": {"record_count": ROW_COUNT - 1, "last_offset_delta": ROW_COUNT - 2},
        "no records": {"record_count": 0, "last_offset_delta": 0},
        "negative record count": {"record_count": -1},
        "two billion records": {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2},
        "too many offsets": {"last_offset_delta": 1000},
        "all offsets": {"last_offset_delta": 2**31 - 1},
        "negative offsets": {"last_offset_delta": -5},
        "schema of the future": {"schema_id": 2},
        "schema zero": {"schema_id": 0},
        "negative schema": {"schema_id": -1},
        "highest schema": {"schema_id": 2**15 - 1},
        "change types that are missing": {"attributes": 0},
        "unknown attributes": {"attributes": 0x7F},
        "negative writer": {"writer_id": -2, "batch_sequence": 0},
        "lowest writer": {"writer_id": -(2**63), "batch_sequence": 0},
        "writer without a sequence": {"writer_id": 2**62, "batch_sequence": NO_BATCH_SEQUENCE},
        "negative sequence": {"writer_id": 2**62, "batch_sequence": -(2**31)},
        "sequence at its end": {"writer_id": 2**62 + 1, "batch_sequence": 2**31 - 1},
        "sequence without a writer": {"batch_sequence": 5},
        "offset of another place": {"base_offset": 2**62, "commit_timestamp": -1},
        "statistics that are the body": {"magic": MAGIC_V1, "statistics_length": 100},
        "statistics that are everything": {"magic": MAGIC_V2, "statistics_length": len(body)},
        "negative statistics": {"magic": MAGIC_V2, "statistics_length": -1},
    }.items():
        yield name, sealed(header(**fields), body)
    yield "no body", sealed(header())
    yield "half a body", sealed(header(), body[: len(body) // 2])
    yield "more than a body", sealed(header(), body, bytes(64))
    yield "noise for a body", sealed(header(), bytes(range(256)))
    yield "statistics of noise", sealed(header(magic=MAGIC_V1, statistics_length=64), bytes(range(64)), body)
    yield "half a batch behind", good_batch() + good_batch()[:40]
    yield "length that goes on", _patched(good_batch(), 8, struct.pack("<i", 2**31 - 1))
    yield "length of nothing", _patched(good_batch(), 8, struct.pack("<i", 0))
    yield "unknown magic", _patched(good_batch(), 12, b"\x03")


def _patched(batch: bytes, at: int, data: bytes) -> bytes:
    return batch[:at] + data + batch[at + len(data) :]


def _metadata_lies() -> Iterator[tuple[str, bytes]]:
    """Yield lies about where things are and how many."""

    def set_node(column: str, length: int, nulls: int) -> Callable[[Message], None]:
        def change(message: Message) -> None:
            message.nodes[message.node(column)] = (length, nulls)

        return change

    def set_buffer(column: str, index: int, offset: int | None, length: int) -> Callable[[Message], None]:
        def change(message: Message) -> None:
            row = message.buffers[message.buffer(column, index)]
            row[:] = (row[0] if offset is None else offset, length)

        return change

    def set_child(column: str, child: int, length: int) -> Callable[[Message], None]:
        def change(message: Message) -> None:
            message.nodes[message.node(column) + child] = (length, 0)

        return change

    def set_length(message: Message) -> None:
        message.length = 2**40

    def swap_buffers(message: Message) -> None:
        first, second = message.buffer("id", 1), message.buffer("raw", 2)
        message.buffers[[first, second]] = message.buffers[[second, first]]

    def fewer_buffers(message: Message) -> None:
        message.buffers = message.buffers[:-1]

    def all_nodes_longer(message: Message) -> None:
        message.nodes[:, 0] = 1_000_000

    yield "message of a trillion rows", _with_message(set_length)
    yield "column of more rows", _with_message(set_node("id", 2**40, 0))
    yield "all columns of more rows", _with_message(all_nodes_longer)
    yield "more nulls than rows", _with_message(set_node("id", ROW_COUNT, ROW_COUNT + 1))
    yield "nulls without a validity buffer", _with_message(set_node("id", ROW_COUNT, ROW_COUNT))
    yield "negative null count", _with_message(set_node("name", ROW_COUNT, -1))
    yield "swapped buffers", _with_message(swap_buffers)
    yield "one buffer less", _with_message(fewer_buffers)
    for column, index in (("id", 1), ("name", 0), ("name", 1), ("price", 1), ("at", 1), ("tags", 1)):
        yield f"empty buffer {index} of {column}", _with_message(set_buffer(column, index, None, 0))
    yield "short values", _with_message(set_buffer("id", 1, None, 3))
    yield "buffer behind the body", _with_message(set_buffer("raw", 2, 2**40, 8))
    yield "buffer before the body", _with_message(set_buffer("raw", 2, -8, 8))
    yield "buffer of all memory", _with_message(set_buffer("raw", 2, None, 2**62))
    yield "crooked buffer", _with_message(set_buffer("raw", 2, 3, 1))
    yield "list of a long child", _with_message(set_child("tags", 1, 2**33))
    yield "struct of a short child", _with_message(set_child("pair", 1, 1))
    yield "struct of a long child", _with_message(set_child("pair", 2, 2**40))


def _value_lies(row_count: int) -> Iterator[tuple[str, bytes]]:
    """Yield lies inside the buffers, which only a reader that looks at the values can find."""

    def told(change: Callable[[Message], None]) -> bytes:
        message = Message(row_count=row_count)
        change(message)
        return sealed(header_of(row_count), message.encode())

    def write(column: str, index: int, data: bytes, *, at_end: bool = False) -> bytes:
        return told(lambda message: message.write(column, index, data, at_end=at_end))

    far = struct.pack("<i", 2**31 - 1)
    yield "text offsets beyond the text", write("name", 1, far, at_end=True)
    yield "text offsets far away", write("name", 1, struct.pack("<5i", *range(2**30, 2**30 + 5)))
    yield "text offsets going back", write("name", 1, struct.pack("<5i", 0, 8, 4, 2, 0))
    yield "negative text offsets", write("name", 1, struct.pack("<5i", -(2**31), -1, 0, 1, 2))
    yield "text that is not UTF-8", write("name", 2, b"\xff\xfe\xc0\x80\xed\xa0\x80")
    yield "list offsets beyond the list", write("tags", 1, far, at_end=True)
    yield "list offsets going back", write("tags", 1, struct.pack("<5i", 8, 6, 4, 2, 0))
    yield "bytes beyond the bytes", write("raw", 1, far, at_end=True)
    yield "decimal beyond its precision", write("price", 1, b"\xff" * 15 + b"\x7f")
    yield "day beyond the calendar", write("day", 1, struct.pack("<4i", 2**31 - 1, -(2**31), 0, 0))
    yield "time beyond the calendar", write("at", 1, struct.pack("<4q", 2**63 - 1, -(2**63), 0, 0))
    yield "clock beyond midnight", write("clock", 1, struct.pack("<4i", 2**31 - 1, -1, 86_400_000, 0))

    def wrong_null_count(message: Message) -> None:
        message.nodes[message.node("name"), 1] += 1

    def short_child(message: Message) -> None:
        # What the list points to is not there any more, though the buffers are.
        message.nodes[message.node("tags") + 1] = (1, 0)

    yield "wrong null count", told(wrong_null_count)
    yield "list of a short child", told(short_child)


def _compression_lies() -> Iterator[tuple[str, bytes]]:
    zstd = ArrowCompression(CompressionType.ZSTD)
    zeros = memoryview(bytes(16 * 1024 * 1024))

    def claim(length: int) -> Callable[[Message], None]:
        return lambda message: message.write("id", 1, LENGTH_PREFIX.pack(length))

    def frame(codec: BodyCodec, payload: bytes, claimed: int) -> bytes:
        """Put a frame where the values of the column ``raw`` are: the last buffer."""

        def change(message: Message) -> None:
            index = message.buffer("raw", 2)
            message.codec = codec
            start = int(message.buffers[index, 0])
            content = LENGTH_PREFIX.pack(claimed) + payload
            message.buffers[index, 1] = len(content)
            message.body[start:] = content + bytes(-len(content) % 8)

        return _with_message(change, zstd)

    bomb = pa.Codec("zstd").compress(zeros, asbytes=True)
    lz4_bomb = pa.Codec("lz4").compress(zeros, asbytes=True)
    yield "buffer claiming to be endless", _with_message(claim(2**62), zstd)
    yield "buffer claiming to be negative", _with_message(claim(-2), zstd)
    yield "buffer claiming to be empty", _with_message(claim(0), zstd)
    yield "frame that claims less than it holds", frame(BodyCodec.ZSTD, bomb, 8)
    yield "frame that holds all it claims", frame(BodyCodec.ZSTD, bomb, len(zeros))
    yield "frame that claims more than it holds", frame(BodyCodec.ZSTD, pa.Codec("zstd").compress(b"x" * 8), 16_000)
    yield "frame of noise", frame(BodyCodec.ZSTD, bytes(range(200)), 800)
    yield "LZ4 frame that claims less than it holds", frame(BodyCodec.LZ4_FRAME, lz4_bomb, 8)
    yield "LZ4 frame that holds all it claims", frame(BodyCodec.LZ4_FRAME, lz4_bomb, len(zeros))
    yield "LZ4 frame of noise", frame(BodyCodec.LZ4_FRAME, bytes(range(200)), 800)
    yield "half a frame", frame(BodyCodec.ZSTD, bomb[: len(bomb) // 2], len(zeros))


def refused_lies() -> dict[str, bytes]:
    """Return what a server can find without looking at the values."""
    told = dict([*_header_lies(), *_metadata_lies(), *_compression_lies()])
    return {name: batch for name, batch in told.items() if name not in _HARMLESS and name not in _HIDDEN}


def harmless_lies() -> dict[str, bytes]:
    """Return what makes no difference to anybody."""
    told = dict([*_header_lies(), *_compression_lies()])
    return {name: told[name] for name in _HARMLESS}


def hidden_lies(row_count: int) -> dict[str, bytes]:
    """Return what only a reader can find. Large batches are checked in another way than small ones."""
    told = dict(_compression_lies())
    return {**dict(_value_lies(row_count)), **{name: told[name] for name in _HIDDEN}}


async def tell_lies(port: int, prefix: str, lies: Mapping[str, bytes]) -> dict[str, tuple[str, list[Any]]]:
    """Write a good batch, a lie and a good batch to a table for each lie.

    Returns, by the name of the lie, the name of the table and what the server said about the three.
    """
    told = {}
    async with await Channel.connect("127.0.0.1", port) as channel:
        for number, (name, lie) in enumerate(lies.items()):
            table = f"{prefix}_{number}"
            path = pb.PbTablePath(database_name="fluss", table_name=table)
            create = pb.CreateTableRequest(
                table_path=path,
                table_json=table_to_json(TableDescriptor(Schema(SCHEMA), bucket_count=1)),
                ignore_if_exists=False,
            )
            await channel.request(apis.CREATE_TABLE, create, timeout_s=_TIMEOUT_S)
            info = await channel.request(
                apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path), timeout_s=_TIMEOUT_S
            )
            answers = []
            for records in (good_batch(0), lie, good_batch(100)):
                request = ProduceLogRequest(-1, info.table_id, _TIMEOUT_S * 1000, [BucketRecords(0, records)])
                answer = await channel.request(apis.PRODUCE_LOG, request, timeout_s=_TIMEOUT_S)
                answers += answer.buckets_resp
            told[name] = (table, answers)
    return told


_HARMLESS = (
    "unknown attributes",
    "negative writer",
    "lowest writer",
    "sequence without a writer",
    "offset of another place",
    "more than a body",
    "statistics of noise",
    "half a batch behind",
    "frame that holds all it claims",
    "LZ4 frame that holds all it claims",
)
_HIDDEN = (
    "frame that claims less than it holds",
    "frame that claims more than it holds",
    "frame of noise",
    "LZ4 frame that claims less than it holds",
    "LZ4 frame of noise",
)
