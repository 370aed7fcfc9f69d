"""A hostile client: bytes below the protocol, and requests that are right in form and wrong in everything else.

Everything random comes from the generator that is passed in, so a seed repeats an attack.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fluss.protocol.api import APIS, ApiKey
from fluss.protocol.frame import FRAME_BYTES_MAX, FrameReader, ResponseFrame, ResponseType, parse_response
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table_options import TABLE_OPTIONS

LOCALHOST = "127.0.0.1"
# What the server says when an exception reached the connection that nobody had expected.
INSIDE_THE_SERVER = "failed inside the server"

INTEGERS = (0, 1, 2, 3, 7, -1, -2, 100, 1000, 65_536, 2**31 - 1, -(2**31))
LONG_INTEGERS = (*INTEGERS, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63))
NUMBERS = (0.0, -1.0, 1e300, float("inf"), float("nan"))
TEXTS = (
    *("", " ", "a", "x" * 200, "x" * 201, "y" * 5000, "\0", "a\nb", "ü€𝄞", "\u202e", "\ufeff", "%s", "{0}"),
    *("../..", ".", "..", "/", "a.b", "a/b", "a$b", "'; DROP TABLE tables;--", "*", "null", "__internal"),
    *("true", "-1", "0", "99999999999999999999", "1e999", "nan", "7 d", "1 ms", "1 gb", "0.5", "a:b", "a:b,c:d"),
)


class RawConnection:
    """A blocking socket that sends whatever it is told and reads frames."""

    def __init__(self, port: int, *, timeout_s: float = 120.0) -> None:
        self._socket = socket.create_connection((LOCALHOST, port), timeout=timeout_s)
        self._reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, fields_bytes_min=1)
        self._frames: list[memoryview] = []

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, api_key: int, request_id: int, body: bytes, *, version: int = 0) -> None:
        self.send_bytes(request_bytes(api_key, request_id, body, version=version))

    def read(self) -> ResponseFrame | None:
        """Return the next answer, None if the server has closed the connection."""
        while not self._frames:
            try:
                data = self._socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._reader.feed(data)
        return parse_response(self._frames.pop(0))

    def ask(self, api_key: int, request_id: int, body: bytes, *, version: int = 0) -> ResponseFrame | None:
        self.send(api_key, request_id, body, version=version)
        return self.read()

    def end_sending(self) -> None:
        """Close the side that sends; answers can still be read."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def request_bytes(api_key: int, request_id: int, body: bytes, *, version: int = 0) -> bytes:
    return struct.pack(">ihhi", 8 + len(body), api_key, version, request_id) + body


def error_of(answer: ResponseFrame) -> pb.ErrorResponse | None:
    """Return the error an answer consists of, None if it is a success."""
    if answer.response_type is ResponseType.SUCCESS:
        return None
    return pb.ErrorResponse.FromString(bytes(answer.body))


def served_keys(port: int) -> list[ApiKey]:
    """Ask a server what it serves."""
    body = pb.ApiVersionsRequest(client_software_name="hostile", client_software_version="0").SerializeToString()
    with RawConnection(port) as connection:
        answer = connection.ask(ApiKey.API_VERSIONS, 0, body)
    assert answer is not None
    return [ApiKey(entry.api_key) for entry in pb.ApiVersionsResponse.FromString(bytes(answer.body)).api_versions]


def request_type(key: ApiKey) -> type[Message]:
    """Return the message of an API's requests; those that carry records have one as well."""
    message_type: type[Message] = getattr(pb, APIS[key].request.message_name)
    return message_type


class MessageMaker:
    """Makes messages from their description: edge values everywhere, mixed with what exists.

    ``known`` are values by field name that lead somewhere, such as names and ids of existing tables. Without them
    nearly every request would end at the first check.
    """

    def __init__(self, rng: random.Random, known: Mapping[str, Sequence[Any]]) -> None:
        self._rng = rng
        self._known = known
        self._payloads: Mapping[str, Callable[[], bytes]] = {
            "table_json": lambda: random_table_json(rng),
            "database_json": lambda: random_json(rng, {"version": 1, "comment": "c", "custom_properties": {"a": "b"}}),
            "data_type_json": lambda: random_json(rng, random_type(rng, 0)),
        }

    def make(self, message_type: type[Message]) -> Message:
        message = message_type()
        self._fill(message, 0)
        return message

    def _fill(self, message: Any, depth: int) -> None:
        rng = self._rng
        for field in message.DESCRIPTOR.fields:
            if field.is_repeated:
                self._fill_list(message, field, depth)
            elif rng.random() < (0.98 if field.is_required else 0.5 if depth < 6 else 0.0):
                if field.type == FieldDescriptor.TYPE_MESSAGE:
                    child = getattr(message, field.name)
                    child.SetInParent()
                    self._fill(child, depth + 1)
                else:
                    setattr(message, field.name, self._value(field))

    def _fill_list(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        entries = getattr(message, field.name)
        count = self._rng.choice((0, 0, 0, 1, 1, 2, 3)) if depth < 5 else 0
        if depth == 0 and self._rng.random() < 0.01:
            count = 2000
        for _ in range(count):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                self._fill(entries.add(), depth + 1)
            else:
                entries.append(self._value(field))

    def _value(self, field: FieldDescriptor) -> Any:
        rng = self._rng
        known = self._known.get(field.name)
        if known and rng.random() < 0.8:
            return rng.choice(known)
        match field.type:
            case FieldDescriptor.TYPE_INT32:
                return rng.choice(INTEGERS)
            case FieldDescriptor.TYPE_INT64:
                return rng.choice(LONG_INTEGERS)
            case FieldDescriptor.TYPE_BOOL:
                return rng.random() < 0.5
            case FieldDescriptor.TYPE_STRING:
                return rng.choice(TEXTS)
            case FieldDescriptor.TYPE_BYTES:
                make = self._payloads.get(field.name)
                return make() if make else rng.randbytes(rng.choice((0, 1, 4, 8, 50, 400)))
            case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
                return rng.choice(NUMBERS)
        raise AssertionError(f"no values for {field.full_name}")


_TYPE_NAMES = ("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BYTES", "DATE")
_TYPE_NAMES += ("CHAR", "BINARY", "TIME", "TIMESTAMP", "DECIMAL", "ARRAY", "MAP", "ROW", "NOTHING")
_TYPE_NAMES += ("TIME_WITHOUT_TIME_ZONE", "TIMESTAMP_WITHOUT_TIME_ZONE", "TIMESTAMP_WITH_LOCAL_TIME_ZONE")


def random_type(rng: random.Random, depth: int) -> dict[str, Any]:
    """Return a data type as the values of its JSON; most are valid."""
    name = rng.choice(_TYPE_NAMES[:15] if depth > 3 else _TYPE_NAMES)
    values: dict[str, Any] = {"type": name}
    if rng.random() < 0.3:
        values["nullable"] = rng.random() < 0.5
    numbers = (1, 3, 9, 38, 10, 0) if rng.random() < 0.9 else LONG_INTEGERS
    values |= {key: rng.choice(numbers) for key in ("length", "precision", "scale")}
    if name == "ARRAY":
        values["element_type"] = random_type(rng, depth + 1)
    elif name == "MAP":
        values |= {"key_type": random_type(rng, depth + 1), "value_type": random_type(rng, depth + 1)}
    elif name == "ROW":
        names = ("f", "g", "h", "")
        values["fields"] = [
            {"name": rng.choice(names), "field_type": random_type(rng, depth + 1)} for _ in range(rng.randrange(4))
        ]
    return values


def random_table_json(rng: random.Random) -> bytes:
    """Return a table that is nearly right."""
    column_names = ["id", "name", "p", "c", "d"][: rng.randrange(1, 6)]
    if rng.random() < 0.1:
        column_names.append(rng.choice((*TEXTS, "id")))
    columns = [
        {"name": name, "data_type": {"type": "STRING"} if name == "p" else random_type(rng, 0), "id": index}
        for index, name in enumerate(column_names)
    ]
    schema: dict[str, Any] = {"version": 1, "columns": columns, "highest_field_id": len(columns) - 1}
    if rng.random() < 0.3:
        schema["primary_key"] = rng.sample(column_names, rng.randrange(1, len(column_names) + 1))
    if rng.random() < 0.1:
        schema["auto_increment_column"] = [rng.choice(column_names)]
    table = {
        "version": 1,
        "schema": schema,
        "partition_key": ["p"] if rng.random() < 0.3 else [],
        "bucket_key": rng.sample(column_names, rng.randrange(len(column_names))),
        "bucket_count": rng.choice((1, 2, 3)) if rng.random() < 0.9 else rng.choice(INTEGERS),
        "properties": random_properties(rng),
        "custom_properties": {rng.choice(TEXTS): rng.choice(TEXTS) for _ in range(rng.randrange(3))},
    }
    return random_json(rng, table)


def random_properties(rng: random.Random) -> dict[str, str]:
    values = ("arrow", "indexed", "compacted", "none", "lz4_frame", "day", "HOUR", "yyyy", "UTC", "Mars/Base", *TEXTS)
    keys = [*TABLE_OPTIONS, *TEXTS]
    return {rng.choice(keys): rng.choice(values) for _ in range(rng.choice((0, 0, 0, 1, 2)))}


def random_json(rng: random.Random, values: dict[str, Any]) -> bytes:
    """Return JSON, often with one of its values replaced by something else."""
    while rng.random() < 0.25:
        _replace_one(rng, values)
    text = json.dumps(values).encode()
    if rng.random() < 0.05:
        return damaged_bytes(rng, text)
    return text


def _replace_one(rng: random.Random, node: Any) -> None:
    """Walk to a random place and put something unexpected there."""
    while isinstance(node, dict | list) and node:
        key: Any = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if not isinstance(node[key], dict | list) or rng.random() < 0.2:
            unexpected = (None, True, -1, 2**31, 2**63, 10**30, 1.5, "", "x" * 300, [], {}, [[]], "\ud800", [None])
            node[key] = rng.choice(unexpected)
            return
        node = node[key]


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with some changed, cut off or added."""
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        chance = rng.random()
        if damaged and chance < 0.7:
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        elif chance < 0.85:
            del damaged[rng.randrange(len(damaged) + 1) :]
        else:
            damaged += rng.randbytes(rng.randrange(1, 9))
    return bytes(damaged)
