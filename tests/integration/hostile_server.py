"""A hostile server: it answers requests with anything, right in form or not, as its seed says.

Some answers are honest, so that a client gets far enough to ask for more.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, TypeAlias

import pyarrow as pa

from fluss.protocol.api import APIS, ApiKey
from fluss.protocol.frame import FRAME_BYTES_MAX, REQUEST_FIELDS_BYTES, FrameReader, ResponseType, parse_request
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.value_batch import encode_value_batch
from fluss.row import compacted
from fluss.row.encoded import EncodedRows
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import schema_to_json, table_to_json
from tests.integration.hostile import LOCALHOST, TEXTS, MessageMaker, damaged_bytes
from tests.integration.lying_batches import SCHEMA, good_batch

BUCKETS = 2
TABLE_ID = 7
_DESCRIPTOR = TableDescriptor(Schema(SCHEMA), bucket_count=BUCKETS)
# The table with this name has a primary key, and all others do not.
KEYS_NAME = "k"
KEYS_ID = 8
KEYS_SCHEMA = pa.schema([("id", pa.int32()), ("part", pa.int32()), ("name", pa.string())])
_KEYS_DESCRIPTOR = TableDescriptor(
    Schema(KEYS_SCHEMA, primary_keys=["id", "part"]), bucket_count=BUCKETS, bucket_keys=["id"]
)
_CODES = (0, -1, -2, 1, 3, 7, 12, 14, 21, 25, 31, 44, 46, 48, 65, 999, -500)


# Makes the answer to a request of its body.
Answer: TypeAlias = Callable[[bytes], Any]


def value(id: int, part: int = 0, name: str | None = "a", *, schema_id: int = 1) -> bytes:
    """Return a row of the table with a primary key as it is stored."""
    types = _KEYS_DESCRIPTOR.schema.data_types
    return schema_id.to_bytes(2, "little", signed=True) + compacted.encode_row(types, (id, part, name))


def value_batch(*values: bytes) -> bytes:
    return bytes(encode_value_batch(EncodedRows.from_list(values)))


class HostileServer:
    """Listens on a free port until it is stopped. A context manager.

    ``honesty`` is how often what a client needs first is answered as it should be: versions, metadata, a writer id.
    ``answers`` are for tests that know which lie they want, by API.
    """

    def __init__(self, seed: int, honesty: float, answers: Mapping[int, Answer] | None = None) -> None:
        self._seed = seed
        self._honesty = honesty
        self._socket = socket.create_server((LOCALHOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._honest: dict[int, Answer] = {
            ApiKey.API_VERSIONS: self._versions,
            ApiKey.GET_METADATA: self._metadata,
            ApiKey.GET_TABLE_INFO: self._table_info,
            ApiKey.INIT_WRITER: lambda body: pb.InitWriterResponse(writer_id=5),
        }
        self._answers: Mapping[int, Answer] = answers or {}

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exception: object) -> None:
        for one in (self._socket, *self._clients):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for one in (self._socket, *self._clients):
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self._clients.append(client)
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        # Each connection has its own numbers, whatever happens on others meanwhile.
        rng = random.Random(f"{self._seed}/{len(self._clients)}")
        maker = MessageMaker(rng, self._known_values())
        reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, fields_bytes_min=REQUEST_FIELDS_BYTES)
        with suppress(OSError):
            while data := client.recv(65536):
                for frame in reader.feed(data):
                    request = parse_request(frame)
                    answer = self._answers.get(request.api_key)
                    if answer is None and rng.random() < self._honesty:
                        answer = self._honest.get(request.api_key)
                    if answer is not None:
                        message = answer(bytes(request.body)).SerializeToString()
                        client.sendall(_frame(ResponseType.SUCCESS, request.request_id, message))
                    else:
                        client.sendall(self._lie(client, rng, maker, request.api_key, request.request_id))

    def _lie(
        self, client: socket.socket, rng: random.Random, maker: MessageMaker, api_key: int, request_id: int
    ) -> bytes:
        match rng.randrange(30):
            case 0:
                client.shutdown(socket.SHUT_RDWR)
                return b""
            case 1:
                return rng.randbytes(rng.randrange(1, 200))
            case 2:
                return b""
            case 3:
                return _frame(ResponseType.SUCCESS, request_id + 5, b"")
            case 4 | 5:
                error = pb.ErrorResponse(error_code=rng.choice(_CODES), error_message=rng.choice(TEXTS))
                return _frame(ResponseType.ERROR, request_id, error.SerializeToString())
            case 6:
                return struct.pack(">ib", 10, ResponseType.SERVER_FAILURE) + bytes(9)
        message = maker.make(getattr(pb, APIS[api_key].response.message_name)).SerializePartialToString()
        return _frame(ResponseType.SUCCESS, request_id, damaged_bytes(rng, message) if rng.random() < 0.2 else message)

    def _known_values(self) -> dict[str, list[Any]]:
        return {
            "host": [LOCALHOST],
            "port": [self.port],
            "node_id": [0],
            "leader_id": [0],
            "table_id": [TABLE_ID, KEYS_ID],
            "database_name": ["fluss"],
            "table_name": ["t", KEYS_NAME],
            "schema_id": [1],
            "table_json": [table_to_json(_DESCRIPTOR)],
            "schema_json": [schema_to_json(_DESCRIPTOR.schema)],
            "bucket_id": [0, 1],
            "error_code": list(_CODES),
            "base_offset": [0, 4],
            "offset": [0, 4, 100],
            "high_watermark": [0, 4, 8, 2**40],
            "records": [
                *(good_batch(), good_batch() * 2, good_batch()[:-5], b"xx"),
                *(value_batch(value(1), value(2)), value_batch(), value_batch(value(1))[:-1]),
            ],
            "values": [value(1), value(2, 1, None), value(1, schema_id=2), value(1)[:-1], b"", b"\1"],
            "scanner_id": [b"1", b"2"],
            "has_more_results": [False, True],
            "log_offset": [0, 4],
            "log_end_offset": [0, 4],
            "api_key": [int(key) for key in APIS],
            "min_version": [0],
            "max_version": [0, 1],
            "server_type": [1, 2, 3],
        }

    def _versions(self, body: bytes) -> pb.ApiVersionsResponse:
        response = pb.ApiVersionsResponse()
        for key, api in APIS.items():
            response.api_versions.add(api_key=key, min_version=0, max_version=api.versions.highest)
        return response

    def _metadata(self, body: bytes) -> pb.MetadataResponse:
        response = pb.MetadataResponse()
        response.coordinator_server.MergeFrom(pb.PbServerNode(node_id=0, host=LOCALHOST, port=self.port))
        response.tablet_servers.add(node_id=0, host=LOCALHOST, port=self.port)
        for path in pb.MetadataRequest.FromString(body).table_path:
            table = response.table_metadata.add(table_path=path, schema_id=1, created_time=1, modified_time=1)
            table.table_id, table.table_json = _table(path.table_name)
            for bucket_id in range(BUCKETS):
                table.bucket_metadata.add(bucket_id=bucket_id, leader_id=0, replica_id=[0], leader_epoch=0)
        return response

    def _table_info(self, body: bytes) -> pb.GetTableInfoResponse:
        table_id, table_json = _table(pb.GetTableInfoRequest.FromString(body).table_path.table_name)
        return pb.GetTableInfoResponse(
            table_id=table_id, schema_id=1, table_json=table_json, created_time=1, modified_time=1
        )


def _table(name: str) -> tuple[int, bytes]:
    return (KEYS_ID, table_to_json(_KEYS_DESCRIPTOR)) if name == KEYS_NAME else (TABLE_ID, table_to_json(_DESCRIPTOR))


def _frame(response_type: ResponseType, request_id: int, body: bytes) -> bytes:
    return struct.pack(">ibi", 5 + len(body), response_type, request_id) + body
