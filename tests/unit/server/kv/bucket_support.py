"""What the tests of key-value buckets share: a tablet server without a network, over a real log and real stores.

Rows are tuples of internal values and ``Delete(row)``, as in ``merging``. A crash is a copy of the data directory that
is taken while the server runs.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss.record.kv_batch import encode_kv_batch
from fluss.record.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID, iter_batches
from fluss.row.encoded import EncodedRows
from fluss.schema.offsets import ChangeType
from fluss.schema.schema import Schema
from fluss.server.kv.bucket import KvBucket, KvPut, KvPutResult
from fluss.server.kv.kv_runtime import KvSettings
from fluss.server.merge.changelog import decode_changelog
from fluss.server.model import Table
from fluss.server.tablet.buckets import HostedBucket
from fluss.server.tablet.manager import TabletManager, TabletSettings
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import OsFiles
from tests.unit.server.merge.merging import Change, Delete, Row, decode_value, encode_row, key_of, make_table, rows_of
from tests.unit.server.tablet.support import Clock, MemoryCatalog

SCHEMA = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])
TABLE = make_table(SCHEMA)
# Segments of a few batches, so that there is something to expire.
KV_DIRECTORY = "db/t-1/kv-0"
SNAPSHOTS_DIRECTORY = "db/t-1/kv-snapshots-0"


def kv_batch(
    table: Table,
    *rows: Row | Delete,
    writer: int = NO_WRITER_ID,
    sequence: int = NO_BATCH_SEQUENCE,
    schema_id: int | None = None,
) -> bytearray:
    """Return the batch that a client would send."""
    schema_id = table.schema_id if schema_id is None else schema_id
    keys = [key_of(table, row.row if isinstance(row, Delete) else row) for row in rows]
    encoded = [b"" if isinstance(row, Delete) else encode_row(table, row, schema_id) for row in rows]
    return encode_kv_batch(
        EncodedRows.from_list(keys),
        EncodedRows.from_list(encoded),
        pa.array([isinstance(row, Delete) for row in rows], pa.bool_()).to_numpy(zero_copy_only=False),
        schema_id=schema_id,
        writer_id=writer,
        batch_sequence=sequence,
    )


class Bucket:
    """Bucket 0 of the one table of a server."""

    def __init__(self, manager: TabletManager, table: Table, clock: Clock) -> None:
        self.manager = manager
        self.table = table
        self.clock = clock

    @property
    def hosted(self) -> HostedBucket:
        return self.manager.tables[self.table.table_id].group(None)[0]

    @property
    def kv(self) -> KvBucket:
        return self.hosted.key_values()

    @property
    def log(self) -> LogTablet:
        return self.hosted.log()

    def begin(
        self,
        *rows: Row | Delete,
        targets: Sequence[int] = (),
        is_overwrite: bool = False,
        acks: int = -1,
        **options: Any,
    ) -> asyncio.Future[KvPutResult]:
        """Begin to write a batch, and return what will come of it."""
        batch = memoryview(kv_batch(self.table, *rows, **options))
        return self.kv.put(KvPut(batch, tuple(targets), is_overwrite, acks))

    async def put(self, *rows: Row | Delete, **options: Any) -> int:
        """Write a batch that must succeed; return where it ends in the changelog."""
        return (await self.begin(*rows, **options)).log_end_offset

    async def rows(self) -> list[Row]:
        """Return what readers find, in key order."""
        store = await self.kv.store()
        return [decode_value(self.table, value) for value in store.first_values(10**6, bytes_max=10**9)]

    def changelog(self) -> list[Change]:
        """Return the records of the log that readers see."""
        changes: list[Change] = []
        offset, end = self.log.offset_start, self.log.offset_high_watermark
        while offset < end:
            for batch in iter_batches(self.log.read(offset, 2**20, at_least_one_batch=True)):
                offset = batch.header.offset_next
                if batch.header.record_count:
                    types, found = decode_changelog(self.table, batch)
                    rows = rows_of(found, self.table.descriptor.schema.data_types)
                    names = [ChangeType(kind).short_string() for kind in types]
                    changes += zip(names, rows, strict=True)
        return changes


@asynccontextmanager
async def hosting(
    data_dir: Path,
    table: Table = TABLE,
    *,
    kv: KvSettings | None = None,
    settings: TabletSettings | None = None,
    clock: Clock | None = None,
    shares: bool = False,
    **options: Any,
) -> AsyncIterator[Bucket]:
    """Start a server with one table; stop it in order at the end.

    Every store has a database of its own unless it ``shares`` one.
    """
    data_dir.mkdir(exist_ok=True)
    clock = clock or Clock()
    settings = settings or TabletSettings(kv=kv or KvSettings())
    if not shares:
        settings = replace(
            settings, kv=replace(settings.kv, store=replace(settings.kv.store, shared_store_bytes_max=0))
        )
    if settings.kv.open_wait_ms == KvSettings().open_wait_ms:
        # A busy disk may keep a store from being opened for longer than a request would wait for it.
        settings = replace(settings, kv=replace(settings.kv, open_wait_ms=120_000))
    manager = TabletManager(data_dir, MemoryCatalog(table), settings, clock=clock, **options)
    async with manager:
        bucket = Bucket(manager, table, clock)
        await bucket.hosted.open()
        yield bucket


def crashed(data_dir: Path, copy: Path) -> Path:
    """Return what a server would find that was killed right now."""
    while True:
        try:
            shutil.copytree(data_dir, copy)
        except shutil.Error:
            # A compaction has removed files meanwhile.
            shutil.rmtree(copy)
        else:
            return copy


class HeldDisk(OsFiles):
    """A disk whose syncs wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self._is_free = threading.Event()
        self._is_free.set()

    def hold(self) -> None:
        self._is_free.clear()

    def release(self) -> None:
        self._is_free.set()

    def sync(self, path: Path) -> None:
        assert self._is_free.wait(120), "the test forgot to release the disk"
        super().sync(path)


class MemoryIds:
    """Numbers rows as a coordinator does, and remembers how often it was asked."""

    def __init__(self) -> None:
        self.id_next = 1
        self.calls: list[int] = []

    async def reserve(self, table_id: int, column_id: int, count: int) -> int:
        self.calls.append(count)
        first, self.id_next = self.id_next, self.id_next + count
        return first
