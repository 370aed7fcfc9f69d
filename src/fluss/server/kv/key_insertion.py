"""Rows for keys that a lookup did not find: partial updates of nothing but the primary key.

Whoever else inserts the same key at the same time does not matter: a partial update that names only the primary key
changes nothing where there is a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import TypeAlias

from fluss.errors import ErrorCode, FlussError
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import TableBucket
from fluss.server.kv.batches import KvPut, KvPutResult
from fluss.server.kv.bucket_reads import BucketRead
from fluss.server.merge.engines import check_targets
from fluss.server.merge.key_only_rows import KeyOnlyRows
from fluss.server.model import CatalogView, Partition, Table
from fluss.server.tablet.buckets import unknown_bucket
from fluss.server.tablet.disk_guard import DiskGuard
from fluss.server.tablet.writes import check_acks

# The keys that were not found, each once.
Missing: TypeAlias = dict[BucketRead, list[bytes]]


def check_insertion(request: pb.LookupRequest) -> None:
    """Refuse a request that does not say what an insertion needs."""
    if not (request.HasField("acks") and request.HasField("timeout_ms")):
        raise FlussError("A lookup that inserts missing keys needs acks and timeout_ms", ErrorCode.UNKNOWN_SERVER_ERROR)
    check_acks(request.acks)


class KeyInsertion:
    """Inserts rows. Belongs to the event loop; rows are made by ``readers``."""

    def __init__(self, catalog: CatalogView, disk_guard: DiskGuard, readers: Executor) -> None:
        self._catalog = catalog
        self._disk_guard = disk_guard
        self._readers = readers

    async def insert(self, missing: Mapping[BucketRead, list[bytes]], timeout_ms: int) -> None:
        """Insert a row for every key, and wait until all can be found. What goes wrong is noted in the reads.

        Whatever acks a client wants: rows can be read when they are on the disk.
        """
        puts: dict[asyncio.Future[KvPutResult], BucketRead] = {}
        for read, keys in missing.items():
            try:
                self._disk_guard.check_write()
                puts[await self._put(read, keys)] = read
            except FlussError as error:
                read.failure = error
        if not puts:
            return
        done, late = await asyncio.wait(puts, timeout=max(timeout_ms, 0) / 1000)
        for put in done:
            try:
                put.result()
            except FlussError as error:
                puts[put].failure = error
        for put in late:
            puts[put].failure = FlussError(
                f"The rows were not on disk within {timeout_ms} ms; they may still be written",
                ErrorCode.REQUEST_TIME_OUT,
            )

    async def _put(self, read: BucketRead, keys: list[bytes]) -> asyncio.Future[KvPutResult]:
        table, kv = read.table, read.kv
        assert table is not None, "it has failed otherwise"
        assert kv is not None, "it has failed otherwise"
        rows = KeyOnlyRows(table, self._partition(table, read))
        check_targets(table, rows.targets)
        batch = await asyncio.get_running_loop().run_in_executor(self._readers, rows.batch, keys)
        return kv.put(KvPut(table, memoryview(batch), rows.targets))

    def _partition(self, table: Table, read: BucketRead) -> Partition | None:
        if read.partition_id is None:
            return None
        partition = self._catalog.partition_by_id(read.partition_id)
        if partition is None:
            raise unknown_bucket(TableBucket.new_with_partition(table.table_id, read.partition_id, read.bucket_id))
        return partition
