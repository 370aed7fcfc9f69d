"""KV batches with a right checksum and a wrong content: each is one lie that a writer could tell.

All are about one table of many types, in both of its row formats. A row that lies about a column is written by the
codec itself, with another type for the column that has the same layout in bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from fluss.errors import ErrorCode
from fluss.record.framing import crc32c
from fluss.record.kv_batch import RECORDS_MAX
from fluss.row import compacted, indexed
from fluss.row.values import Timestamp
from fluss.schema.schema import Schema
from fluss.schema.table_options import KvFormat
from fluss.schema.type_parser import parse_type

MIB: Final = 1024 * 1024
COLUMNS: Final = {
    "id": "INT NOT NULL",
    "name": "STRING NOT NULL",
    "note": "STRING",
    "raw": "BINARY(4)",
    "price": "DECIMAL(10, 2)",
    "wealth": "DECIMAL(30, 2)",
    "at": "TIMESTAMP(6)",
    "since": "TIMESTAMP_LTZ(9)",
    "clock": "TIME",
    "tags": "ARRAY<STRING>",
    "counts": "ARRAY<INT NOT NULL>",
    "pair": "ROW<a INT, b STRING>",
    "places": "MAP<STRING, INT>",
}
_TYPES: Final = {name: parse_type(text) for name, text in COLUMNS.items()}
_NAMES: Final = tuple(COLUMNS)
_CODECS: Final[dict[KvFormat, ModuleType]] = {KvFormat.COMPACTED: compacted, KvFormat.INDEXED: indexed}

DAMAGED: Final = ErrorCode.CORRUPT_RECORD_EXCEPTION
MISFIT: Final = ErrorCode.INVALID_TABLE_EXCEPTION
TOO_LARGE: Final = ErrorCode.RECORD_TOO_LARGE_EXCEPTION
UNKNOWN_SCHEMA: Final = ErrorCode.SCHEMA_NOT_EXIST


@dataclass(frozen=True)
class Lie:
    """A batch, and the code that it is refused with."""

    name: str
    batch: bytes
    code: ErrorCode


def schema() -> Schema:
    builder = Schema.builder()
    for name, data_type in _TYPES.items():
        builder.column(name, data_type)
    return builder.primary_key(["id"]).build()


def values(number: int = 1) -> tuple[Any, ...]:
    """Return a good row as internal values."""
    return (
        *(number, f"name {number}", None, b"1234", 5, 10**20),
        *(Timestamp(1, 5000), Timestamp(-1, 7), 1000, ["a", None], [1, 2], (1, "b"), [("x", 1)]),
    )


def row(row_format: KvFormat, number: int = 1, **changed: tuple[str, Any]) -> bytes:
    """Return a good row, with other types and values for some columns."""
    fields = dict(zip(_NAMES, zip(_TYPES.values(), values(number), strict=True), strict=True))
    fields |= {name: (parse_type(text), value) for name, (text, value) in changed.items()}
    types, content = zip(*fields.values(), strict=True)
    encoded: bytes = _CODECS[row_format].encode_row(types, content)
    return encoded


def key(number: int = 1) -> bytes:
    return compacted.encode_fields([_TYPES["id"]], [number])


def record(key_bytes: bytes, row_bytes: bytes = b"", *, key_length: int | None = None) -> bytes:
    payload = varint(len(key_bytes) if key_length is None else key_length) + key_bytes + row_bytes
    return struct.pack("<i", len(payload)) + payload


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def sealed(records: Sequence[bytes], *, record_count: int | None = None, **facts: int) -> bytes:
    """Return a batch whose checksum is right, whatever is in it."""
    body = b"".join(records)
    count = len(records) if record_count is None else record_count
    known = {"schema_id": 1, "attributes": 0, "writer": -1, "sequence": -1, "magic": 0, "length_more": 0, **facts}
    checked = struct.pack("<hbqii", *(known[name] for name in ("schema_id", "attributes", "writer", "sequence")), count)
    checked += body
    length = len(checked) + 5 + known["length_more"]
    return struct.pack("<ibI", length, known["magic"], crc32c(checked)) + checked


def good_batch(row_format: KvFormat, *numbers: int) -> bytes:
    return sealed([record(key(number), row(row_format, number)) for number in numbers])


def lies(row_format: KvFormat) -> list[Lie]:
    """Return everything that is refused whatever is in the table."""
    return [*_header_lies(row_format), *_record_lies(row_format), *_row_lies(row_format), *_large_lies(row_format)]


def _header_lies(row_format: KvFormat) -> Iterator[Lie]:
    good = [record(key(1), row(row_format, 1))]
    batch = sealed(good)
    yield Lie("nothing", b"", DAMAGED)
    yield Lie("half a header", batch[:20], DAMAGED)
    yield Lie("half a batch", batch[:-3], DAMAGED)
    yield Lie("two batches", batch + batch, DAMAGED)
    yield Lie("bytes behind the batch", batch + b"\0", DAMAGED)
    yield Lie("length that goes on", sealed(good, length_more=2**30), DAMAGED)
    yield Lie("length of nothing", sealed(good, length_more=-len(batch)), DAMAGED)
    yield Lie("negative length", sealed(good, length_more=-(2**31) + 1000), DAMAGED)
    yield Lie("unknown magic", sealed(good, magic=1), DAMAGED)
    yield Lie("wrong checksum", batch[:-1] + bytes([batch[-1] ^ 1]), DAMAGED)
    yield Lie("one record more", sealed(good, record_count=2), MISFIT)
    yield Lie("one record less", sealed(good * 2, record_count=1), MISFIT)
    yield Lie("no records, but bytes", sealed(good, record_count=0), MISFIT)
    yield Lie("negative record count", sealed(good, record_count=-1), DAMAGED)
    yield Lie("two billion records", sealed(good, record_count=2**31 - 1), TOO_LARGE)
    for schema_id in (0, -1, 2, 2**15 - 1, -(2**15)):
        yield Lie(f"schema {schema_id}", sealed(good, schema_id=schema_id), UNKNOWN_SCHEMA)


def _record_lies(row_format: KvFormat) -> Iterator[Lie]:
    good, content = record(key(1), row(row_format, 1)), row(row_format, 1)

    def told(name: str, *records: bytes) -> Lie:
        return Lie(name, sealed([good, *records]), MISFIT)

    yield told("record of nothing", struct.pack("<i", 0))
    yield told("record of one byte", struct.pack("<i", 1) + b"\x01")
    yield told("negative record length", struct.pack("<i", -1) + bytes(8))
    yield told("endless record", struct.pack("<i", 2**31 - 1) + bytes(8))
    yield told("no key", record(b"", content))
    yield told("key longer than its record", record(key(2), b"", key_length=100))
    yield told("key of two gigabytes", record(key(2), content, key_length=2**31 - 1))
    yield told("key of four gigabytes", record(key(2), content, key_length=2**32 - 1))
    yield told("key length without an end", struct.pack("<i", 12) + b"\xff" * 12)
    yield told("key of another row", record(key(2), content))
    yield told("key of more columns", record(key(1) + b"\0", content))
    yield told("key with a long way to write 1", record(b"\x81\x00", content))
    yield told("key that ends early", record(b"\xff", content))
    (other_format,) = set(KvFormat) - {row_format}
    yield told("row in the other format", record(key(1), row(other_format)))


def _row_lies(row_format: KvFormat) -> Iterator[Lie]:
    def told(lie: str, /, **changed: tuple[str, Any]) -> Lie:
        return Lie(lie, sealed([record(key(1), row(row_format, 1, **changed))]), MISFIT)

    def told_bytes(name: str, row_bytes: bytes) -> Lie:
        return Lie(name, sealed([record(key(1), row_bytes)]), MISFIT)

    content = row(row_format, 1)
    yield told_bytes("row of one byte", b"\0")
    yield told_bytes("row that ends early", content[:-1])
    yield told_bytes("row that goes on", content + b"\0")
    yield told_bytes("row of zeros", bytes(len(content)))
    yield told_bytes("row of ones", b"\xff" * len(content))
    yield told("null for a key", id=("INT", None))
    yield told("null for NOT NULL", name=("STRING", None))
    yield told("text that is not UTF-8", name=("BYTES NOT NULL", b"\xff\xfe\xc0\x80"))
    yield told("half a character", note=("BYTES", "ü".encode()[:1]))
    yield told("surrogates", note=("BYTES", b"\xed\xa0\x80\xed\xb0\x80"))
    if row_format is KvFormat.COMPACTED:
        # In the other format a length is not written where the type tells it.
        yield told("short bytes", raw=("BYTES", b"123"))
        yield told("long bytes", raw=("BYTES", b"12345"))
        yield told("no bytes", raw=("BYTES", b""))
        # Three milliseconds, and behind them a number of three bytes.
        yield told("nanoseconds of a second", at=("BYTES", varint(1_000_000)))
    else:
        yield told("nanoseconds of a second", at=("BINARY(12)", struct.pack("<qi", 3, 1_000_000)))
        yield told("negative nanoseconds", at=("BINARY(12)", struct.pack("<qi", 3, -1)))
    yield told("end of all time", at=("TIMESTAMP(6)", Timestamp(2**63 - 1, 0)))
    yield told("beginning of all time", since=("TIMESTAMP(9)", Timestamp(-(2**63), 0)))
    yield told("too many digits", price=("BIGINT", 10**10))
    yield told("far too many digits", price=("BIGINT", -(2**63)))
    yield told("wealth of no bytes", wealth=("BYTES", b""))
    yield told("wealth of too many bytes", wealth=("BYTES", b"\x7f" * 17))
    yield told("wealth of too many digits", wealth=("BYTES", b"\x7f" * 16))
    yield told("midnight at the end", clock=("INT", 86_400_000))
    yield told("time before the day", clock=("INT", -1))
    yield told("time at the end of all numbers", clock=("INT", 2**31 - 1))
    yield from (told(f"tags: {name}", tags=("BYTES", data)) for name, data in _array_lies())
    yield told("counts with a null", counts=("ARRAY<INT>", [1, None]))
    yield told("counts of noise", counts=("BYTES", bytes(range(100))))
    yield told("pair of nothing", pair=("BYTES", b""))
    yield told("pair of noise", pair=("BYTES", b"\xff" * 50))
    yield told("pair that goes on", pair=("BYTES", compacted.encode_row([], []) + bytes(30)))
    yield told("places of nothing", places=("BYTES", b""))
    yield told("places without values", places=("BYTES", struct.pack("<i", 4) + struct.pack("<i", 0) + b"\1\0\0\0"))
    yield told("places of a long key array", places=("BYTES", struct.pack("<i", 2**31 - 1) + bytes(32)))


def _array_lies() -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    yield "three bytes", b"\1\0\0"
    yield "two billion elements", struct.pack("<i", 2**31 - 1) + bytes(64)
    yield "negative count", struct.pack("<i", -1) + bytes(64)
    slots = struct.pack("<ii", 2, 0)
    # Each slot has a length and an offset.
    yield "text behind the end", slots + struct.pack("<iiii", 100, 24, 4, 24) + bytes(8)
    yield "text before the start", slots + struct.pack("<iiii", 8, 0, 4, 24) + bytes(8)
    yield "negative text", slots + struct.pack("<iiii", -4, 24, 4, 24) + bytes(8)
    yield "the same text many times", slots + struct.pack("<iiii", 8, 24, 8, 24) + bytes(8)
    yield "inline text of nine bytes", slots + b"\0" * 7 + b"\x89" + b"\0" * 7 + b"\x80"
    yield "text that is not UTF-8", slots + b"\xff" * 7 + b"\x87" + b"\0" * 7 + b"\x80"


def _large_lies(row_format: KvFormat) -> Iterator[Lie]:
    yield Lie("more records than a batch may have", sealed([record(b"\1")] * (RECORDS_MAX + 1)), TOO_LARGE)
    yield Lie("gigantic key", sealed([record(b"k" * MIB)]), TOO_LARGE)
    yield Lie("gigantic key with a row", sealed([record(b"k" * MIB, row(row_format))]), TOO_LARGE)
