"""What the tests of reads by key share: a tablet server on a real socket, asked as clients ask it.

Rows are tuples of internal values and ``Delete(row)``, as in ``merging``; a key is given by a row that has it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol.api import VersionRange
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.value_batch import decode_value_batch
from fluss.schema.schema import Schema
from fluss.server.model import Table
from fluss.server.tablet.manager import TabletSettings
from tests.unit.server.kv.bucket_support import kv_batch
from tests.unit.server.merge.merging import Delete, Row, decode_value, key_of
from tests.unit.server.tablet.support import TIMEOUT_S, Server, make_table, serving

SCHEMA = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])


def kv_table(schema: Schema = SCHEMA, **options: Any) -> Table:
    """Return a primary-key table, by default of ids and names."""
    return make_table(schema=schema, **options)


def quick(**settings: Any) -> TabletSettings:
    """Return settings under which a client that may try again is not kept waiting."""
    return TabletSettings(retry_answer_delay_ms=1, **settings)


class KvServer:
    """A server with a primary-key table, and a client of it."""

    def __init__(self, server: Server, table: Table) -> None:
        self.server = server
        self.table = table

    @property
    def channel(self) -> Channel:
        return self.server.channel

    @property
    def used_bytes(self) -> int:
        """What answers hold in memory."""
        return self.server.service.fetch_memory.used_bytes

    async def request(self, api: Any, message: Any, *, version: int | None = None) -> Any:
        """Send a request in the newest version, or in an older one."""
        if version is not None:
            api = replace(api, versions=VersionRange(version, version))
        return await self.channel.request(api, message, timeout_s=TIMEOUT_S)

    async def begin_put(
        self,
        *rows: Row | Delete,
        bucket: int = 0,
        partition_id: int | None = None,
        targets: Sequence[int] = (),
        **options: Any,
    ) -> Any:
        """Write rows to one bucket and return its answer."""
        entry = bulk_messages.BucketRecords(bucket, kv_batch(self.table, *rows, **options), partition_id)
        request = bulk_messages.PutKvRequest(-1, self.table.table_id, 30_000, list(targets), [entry])
        (answer,) = (await self.request(apis.PUT_KV, request)).buckets_resp
        return answer

    async def put(self, *rows: Row | Delete, **options: Any) -> int:
        """Write rows that must be accepted; return where they end in the changelog."""
        answer = await self.begin_put(*rows, **options)
        assert not answer.HasField("error_code"), answer
        end: int = answer.log_end_offset
        return end

    def key(self, row: Row) -> bytes:
        return key_of(self.table, row)

    def row(self, value: bytes) -> Row:
        return decode_value(self.table, value)

    async def lookup_answers(
        self,
        keys: Mapping[int, Sequence[bytes]],
        *,
        partition_id: int | None = None,
        table_id: int | None = None,
        version: int | None = None,
        **options: Any,
    ) -> list[Any]:
        """Look keys of buckets up; return the answers of the buckets."""
        table_id = self.table.table_id if table_id is None else table_id
        request = pb.LookupRequest(table_id=table_id, **options)
        for bucket_id, wanted in keys.items():
            request.buckets_req.add(bucket_id=bucket_id, partition_id=partition_id, keys=wanted)
        return list((await self.request(apis.LOOKUP, request, version=version)).buckets_resp)

    async def lookup(self, *rows: Row, bucket: int = 0, **options: Any) -> list[Row | None]:
        """Look up the keys of some rows; return what is there, None for nothing."""
        (answer,) = await self.lookup_answers({bucket: [self.key(row) for row in rows]}, **options)
        assert not answer.HasField("error_code"), answer
        return [self.row(value.values) if value.HasField("values") else None for value in answer.values]

    async def lookup_or_insert(self, *rows: Row, **options: Any) -> list[Row | None]:
        return await self.lookup(*rows, insert_if_not_exists=True, acks=-1, timeout_ms=10_000, **options)

    async def offset_end(self, bucket: int = 0, *, partition_id: int | None = None) -> int:
        """Return where the changelog ends."""
        (answer,) = await self.server.offsets(bucket, type=1, table_id=self.table.table_id, partition_id=partition_id)
        end: int = answer.offset
        return end

    def values_of(self, payload: Any) -> list[Row]:
        """Return the rows of a value batch."""
        return [self.row(value) for value in decode_value_batch(payload).to_list()]


@asynccontextmanager
async def serving_kv(
    data_dir: Path, table: Table | None = None, *more: Table, **options: Any
) -> AsyncIterator[KvServer]:
    """Start a server with a primary-key table, and perhaps others; stop it in order at the end."""
    table = table or kv_table()
    options.setdefault("settings", quick())
    async with serving(data_dir, table, *more, **options) as server:
        yield KvServer(server, table)


@contextmanager
def busy_readers(server: KvServer) -> Iterator[None]:
    """Keep every reader thread busy: what needs one has to wait."""
    gate = threading.Event()
    readers = server.server.manager.readers
    jobs = [readers.submit(gate.wait, 10) for _ in range(server.server.manager.settings.reader_threads)]
    try:
        yield
    finally:
        gate.set()
        for job in jobs:
            job.result()
