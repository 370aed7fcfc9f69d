"""Messages with bulk content, encoded and decoded without the protobuf runtime.

Record batches are megabytes in messages whose other fields are a few bytes. Encoding the five messages that carry them
returns parts in which every payload is the caller's own memory; decoding returns views of the received frame. Each is
described by its fields; the lists named ``buckets`` and ``tables`` are the fields ``buckets_req``, ``buckets_resp``
and ``tables_resp``.

All layouts say the same as fluss.proto, and tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from fluss.buffers import BytesLike, byte_view
from fluss.errors import CorruptMessageError
from fluss.protocol import protowire
from fluss.protocol.codec import MESSAGE_BYTES_MAX, MessageCodec, Parts
from fluss.protocol.messages import fluss_pb2 as pb

T = TypeVar("T")

# The batches of one bucket: one piece, or several that follow each other. Decoders always give one memoryview.
Payload: TypeAlias = BytesLike | Sequence[BytesLike]

# Fields in one message, those of its list entries included. A field can be as small as two bytes but costs Python
# time and often an object; a request for 65,536 buckets stays within the limit.
FIELDS_MAX = 262_144


class _WithRecords:
    """A message with a ``records`` field, which is left out of its repr."""

    __slots__ = ()
    records: Payload | None

    @property
    def records_view(self) -> memoryview:
        """All records as one view: free for a decoded message, a copy for one built from several pieces."""
        pieces = _pieces(self.records)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


@dataclass(slots=True)
class BucketRecords(_WithRecords):
    """Batches to be written to one bucket."""

    bucket_id: int
    records: Payload = field(repr=False)
    partition_id: int | None = None


@dataclass(slots=True)
class ProduceLogRequest:
    acks: int
    table_id: int
    timeout_ms: int
    buckets: Sequence[BucketRecords] = field(default_factory=list)


@dataclass(slots=True)
class PutKvRequest:
    acks: int
    table_id: int
    timeout_ms: int
    target_columns: Sequence[int] = field(default_factory=list)
    buckets: Sequence[BucketRecords] = field(default_factory=list)
    agg_mode: int | None = None


@dataclass(slots=True)
class FetchedBucket(_WithRecords):
    """What was read from one bucket, or why nothing was. On success ``records`` is set, if only to nothing."""

    bucket_id: int
    partition_id: int | None = None
    error_code: int | None = None
    error_message: str | None = None
    high_watermark: int | None = None
    log_start_offset: int | None = None
    remote_log_fetch_info: pb.PbRemoteLogFetchInfo | None = None
    records: Payload | None = field(default=None, repr=False)
    filtered_end_offset: int | None = None


@dataclass(slots=True)
class FetchedTable:
    table_id: int
    buckets: Sequence[FetchedBucket] = field(default_factory=list)
    # Further buckets, each as ``encode_fetched_bucket`` returned it. Decoders put all buckets into ``buckets``.
    encoded_buckets: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class FetchLogResponse:
    tables: Sequence[FetchedTable] = field(default_factory=list)


@dataclass(slots=True)
class LimitScanResponse(_WithRecords):
    error_code: int | None = None
    error_message: str | None = None
    is_log_table: bool | None = None
    records: Payload | None = field(default=None, repr=False)


@dataclass(slots=True)
class ScanKvResponse(_WithRecords):
    error_code: int | None = None
    error_message: str | None = None
    scanner_id: bytes | None = None
    has_more_results: bool | None = None
    records: Payload | None = field(default=None, repr=False)
    log_offset: int | None = None


class _Kind(Enum):
    """What a field holds, and the wire types it may arrive in."""

    INT32 = ("int32", (protowire.VARINT,))
    INT64 = ("int64", (protowire.VARINT,))
    BOOL = ("bool", (protowire.VARINT,))
    STRING = ("string", (protowire.BYTES,))
    BYTES = ("bytes", (protowire.BYTES,))
    PACKED_INT32 = ("repeated int32", (protowire.BYTES, protowire.VARINT))  # Also legal unpacked, even mixed.
    RECORDS = ("spliced bytes", (protowire.BYTES,))
    ENTRIES = ("repeated message with a layout of its own", (protowire.BYTES,))
    MESSAGE = ("message that goes through the runtime", (protowire.BYTES,))

    def __init__(self, content: str, wire_types: tuple[int, ...]) -> None:
        self.content = content
        self.wire_types = wire_types


_INT64_SIGN = 1 << 63
# By these names, because each look at a member of an enum costs as much as an integer.
_INT32, _INT64, _BOOL = _Kind.INT32, _Kind.INT64, _Kind.BOOL
_RECORDS, _ENTRIES, _PACKED_INT32 = _Kind.RECORDS, _Kind.ENTRIES, _Kind.PACKED_INT32


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    name: str
    kind: _Kind
    required: bool = False
    entries: _Layout | None = None
    # The attribute with further entries that are encoded already.
    encoded_entries: str | None = None
    message: MessageCodec[Any] | None = None
    # What the kind says, and the tag with which the field is written.
    wire_types: tuple[int, ...] = field(init=False)
    tag: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wire_types", self.kind.wire_types)
        object.__setattr__(self, "tag", protowire.tag(self.number, self.wire_types[0]))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The fields of one message type, in the order in which they are written."""

    message_name: str
    build: Callable[..., Any]
    fields: tuple[_Field, ...]
    by_number: dict[int, _Field] = field(init=False)
    # Those of which something is left to do when all have been decoded.
    checked: tuple[_Field, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_number", {item.number: item for item in self.fields})
        checked = tuple(item for item in self.fields if item.required or item.message is not None)
        object.__setattr__(self, "checked", checked)


def _bucket_request(message_name: str) -> _Layout:
    return _Layout(
        message_name,
        BucketRecords,
        (
            _Field(1, "partition_id", _Kind.INT64),
            _Field(2, "bucket_id", _Kind.INT32, required=True),
            _Field(3, "records", _Kind.RECORDS, required=True),
        ),
    )


_PRODUCE_LOG = _Layout(
    "ProduceLogRequest",
    ProduceLogRequest,
    (
        _Field(1, "acks", _Kind.INT32, required=True),
        _Field(2, "table_id", _Kind.INT64, required=True),
        _Field(3, "timeout_ms", _Kind.INT32, required=True),
        _Field(4, "buckets", _Kind.ENTRIES, entries=_bucket_request("PbProduceLogReqForBucket")),
    ),
)

_PUT_KV = _Layout(
    "PutKvRequest",
    PutKvRequest,
    (
        _Field(1, "acks", _Kind.INT32, required=True),
        _Field(2, "table_id", _Kind.INT64, required=True),
        _Field(3, "timeout_ms", _Kind.INT32, required=True),
        _Field(4, "target_columns", _Kind.PACKED_INT32),
        _Field(5, "buckets", _Kind.ENTRIES, entries=_bucket_request("PbPutKvReqForBucket")),
        _Field(6, "agg_mode", _Kind.INT32),
    ),
)

_FETCHED_BUCKET = _Layout(
    "PbFetchLogRespForBucket",
    FetchedBucket,
    (
        _Field(1, "partition_id", _Kind.INT64),
        _Field(2, "bucket_id", _Kind.INT32, required=True),
        _Field(3, "error_code", _Kind.INT32),
        _Field(4, "error_message", _Kind.STRING),
        _Field(5, "high_watermark", _Kind.INT64),
        _Field(6, "log_start_offset", _Kind.INT64),
        _Field(
            7,
            "remote_log_fetch_info",
            _Kind.MESSAGE,
            message=MessageCodec(pb.PbRemoteLogFetchInfo, bytes_max=MESSAGE_BYTES_MAX),
        ),
        _Field(8, "records", _Kind.RECORDS),
        _Field(9, "filtered_end_offset", _Kind.INT64),
    ),
)

_FETCHED_TABLE = _Layout(
    "PbFetchLogRespForTable",
    FetchedTable,
    (
        _Field(1, "table_id", _Kind.INT64, required=True),
        _Field(2, "buckets", _Kind.ENTRIES, entries=_FETCHED_BUCKET, encoded_entries="encoded_buckets"),
    ),
)

_FETCH_LOG = _Layout(
    "FetchLogResponse",
    FetchLogResponse,
    (_Field(1, "tables", _Kind.ENTRIES, entries=_FETCHED_TABLE),),
)

_LIMIT_SCAN = _Layout(
    "LimitScanResponse",
    LimitScanResponse,
    (
        _Field(1, "error_code", _Kind.INT32),
        _Field(2, "error_message", _Kind.STRING),
        _Field(3, "is_log_table", _Kind.BOOL),
        _Field(4, "records", _Kind.RECORDS),
    ),
)

_SCAN_KV = _Layout(
    "ScanKvResponse",
    ScanKvResponse,
    (
        _Field(1, "error_code", _Kind.INT32),
        _Field(2, "error_message", _Kind.STRING),
        _Field(3, "scanner_id", _Kind.BYTES),
        _Field(4, "has_more_results", _Kind.BOOL),
        _Field(5, "records", _Kind.RECORDS),
        _Field(6, "log_offset", _Kind.INT64),
    ),
)


class RecordsCodec(Generic[T]):
    """The codec of one of the messages above."""

    __slots__ = ("_fields_max", "_layout")

    def __init__(self, layout: _Layout, *, fields_max: int = FIELDS_MAX) -> None:
        self._layout = layout
        self._fields_max = fields_max

    @property
    def message_name(self) -> str:
        return self._layout.message_name

    @property
    def message_type(self) -> Callable[..., T]:
        return self._layout.build

    @property
    def keeps_body(self) -> bool:
        return True

    def encode(self, message: T) -> Parts:
        """Return the message in parts. The payloads among them are the caller's memory: leave it alone until sent."""
        if type(message) is not self._layout.build:
            raise TypeError(f"expected a {self.message_name} with records, got {type(message).__name__}")
        parts, _ = _encode(self._layout, message)
        return parts

    def decode(self, body: BytesLike) -> T:
        """Return the message; its records are views of ``body``, which therefore stays in memory as long as they do."""
        decoded: T = _Decoder(self._fields_max).decode(self._layout, byte_view(body))
        return decoded


PRODUCE_LOG_REQUEST: RecordsCodec[ProduceLogRequest] = RecordsCodec(_PRODUCE_LOG)
PUT_KV_REQUEST: RecordsCodec[PutKvRequest] = RecordsCodec(_PUT_KV)
FETCH_LOG_RESPONSE: RecordsCodec[FetchLogResponse] = RecordsCodec(_FETCH_LOG)
LIMIT_SCAN_RESPONSE: RecordsCodec[LimitScanResponse] = RecordsCodec(_LIMIT_SCAN)
SCAN_KV_RESPONSE: RecordsCodec[ScanKvResponse] = RecordsCodec(_SCAN_KV)
# One entry of a fetch response, for readers that look at few of many; see ``fetched_entries``.
FETCHED_BUCKET: RecordsCodec[FetchedBucket] = RecordsCodec(_FETCHED_BUCKET)


def fetched_entries(body: BytesLike) -> Iterator[memoryview]:
    """Yield the encoded entries of all buckets of all tables of a FetchLogResponse, as views of ``body``.

    In a response about thousands of buckets nearly all entries say that there is nothing new, in the same bytes as
    the last time. A reader that remembers those bytes need not decode them.
    """
    (tables,), (_, buckets) = _FETCH_LOG.fields, _FETCHED_TABLE.fields
    for number, wire_type, table in protowire.walk(byte_view(body)):
        if number != tables.number or wire_type not in tables.kind.wire_types or isinstance(table, int):
            continue
        for entry_number, entry_wire_type, entry in protowire.walk(table):
            if entry_number == buckets.number and entry_wire_type in buckets.kind.wire_types:
                assert isinstance(entry, memoryview)
                yield entry


def encode_fetched_bucket(bucket: FetchedBucket) -> bytes:
    """Return a bucket as a piece of ``FetchedTable.encoded_buckets``.

    An idle bucket has the same answer every time: thousands of them cost next to nothing when it is encoded once.
    """
    (item,) = (item for item in _FETCHED_TABLE.fields if item.encoded_entries is not None)
    return b"".join(_encode_field(item, [bucket]))


def _pieces(payload: Payload | None) -> list[memoryview]:
    if payload is None:
        return []
    if isinstance(payload, bytes | bytearray | memoryview):
        return [byte_view(payload)]
    return [byte_view(piece) for piece in payload]


def _encode(layout: _Layout, message: Any) -> tuple[Parts, int]:
    """Return the parts of a message and their total size, which the enclosing message has to write first."""
    parts: Parts = []
    byte_count = 0
    for item in layout.fields:
        value = getattr(message, item.name)
        if value is None:
            assert not item.required, f"{layout.message_name}.{item.name} is required"
            continue
        field_parts = _encode_field(item, value)
        if item.encoded_entries is not None:
            field_parts.append(getattr(message, item.encoded_entries))
        for part in field_parts:
            parts.append(part)
            byte_count += len(part)
    return parts, byte_count


def _encode_field(item: _Field, value: Any) -> Parts:
    kind = item.kind
    if kind is _INT32 or kind is _INT64 or kind is _BOOL:
        assert kind is not _INT32 or -(1 << 31) <= value < (1 << 31), f"{item.name} must fit 32 bits"
        return [item.tag + protowire.varint(value)]
    if kind is _RECORDS:
        pieces = _pieces(value)
        return [item.tag + protowire.length(sum(map(len, pieces))), *pieces]
    if kind is _ENTRIES:
        assert item.entries is not None
        parts: Parts = []
        for entry in value:
            entry_parts, byte_count = _encode(item.entries, entry)
            parts.append(item.tag + protowire.length(byte_count))
            parts.extend(entry_parts)
        return parts
    if kind is _PACKED_INT32:
        if not value:
            return []
        content = b"".join(map(protowire.varint, value))
    elif kind is _Kind.STRING:
        content = value.encode()
    elif kind is _Kind.MESSAGE:
        content = value.SerializeToString()
    else:
        content = value
    return [item.tag + protowire.length(len(content)) + content]


class _Decoder:
    """Decodes one message; counts the fields on all its levels."""

    def __init__(self, fields_max: int) -> None:
        self._fields_max = fields_max
        self._fields_left = fields_max

    def decode(self, layout: _Layout, body: memoryview) -> Any:
        values: dict[str, Any] = {}
        by_number = layout.by_number
        for number, wire_type, raw in protowire.walk(body):
            self._fields_left -= 1
            if self._fields_left < 0:
                self._refuse(layout)
            item = by_number.get(number)
            # A known number with another wire type is as unknown as an unknown number.
            if item is None or wire_type not in item.wire_types:
                continue
            kind = item.kind
            if isinstance(raw, int):
                if kind is _INT64:
                    values[item.name] = raw if raw < _INT64_SIGN else raw - (1 << 64)
                elif kind is _BOOL:
                    values[item.name] = raw != 0
                elif kind is _INT32:
                    values[item.name] = protowire.signed_32(raw)
                else:
                    values.setdefault(item.name, []).append(protowire.signed_32(raw))
            elif kind is _RECORDS:
                values[item.name] = raw
            else:
                self._add_content(values, layout, item, raw)
        return self._build(layout, values)

    def _add_content(self, values: dict[str, Any], layout: _Layout, item: _Field, raw: memoryview) -> None:
        kind = item.kind
        if kind is _ENTRIES:
            assert item.entries is not None
            values.setdefault(item.name, []).append(self.decode(item.entries, raw))
        elif kind is _PACKED_INT32:
            integers = values.setdefault(item.name, [])
            position = 0
            while position < len(raw):
                self._fields_left -= 1
                if self._fields_left < 0:
                    self._refuse(layout)
                value, position = protowire.read_varint(raw, position)
                integers.append(protowire.signed_32(value))
        elif kind is _Kind.STRING:
            try:
                values[item.name] = str(raw, "utf-8")
            except UnicodeDecodeError as error:
                raise CorruptMessageError(f"{layout.message_name}.{item.name} is not valid UTF-8") from error
        elif kind is _Kind.BYTES:
            values[item.name] = bytes(raw)
        else:
            values.setdefault(item.name, []).append(raw)

    def _build(self, layout: _Layout, values: dict[str, Any]) -> Any:
        for item in layout.checked:
            if item.required and item.name not in values:
                raise CorruptMessageError(f"a {layout.message_name} lacks the required field {item.name}")
            if item.message is not None and item.name in values:
                # A single message that occurs again continues the earlier one: the same as joining their bytes.
                values[item.name] = item.message.decode(b"".join(values[item.name]))
        return layout.build(**values)

    def _refuse(self, layout: _Layout) -> NoReturn:
        raise CorruptMessageError(
            f"a {layout.message_name} takes the message above {self._fields_max} fields; send it in several pieces"
        )
