"""The client for programs that never block their event loop: the names of ``fluss``, and every wait is an await.

    from fluss import aio

    async with await aio.FlussConnection.create(aio.Config({"bootstrap.servers": "localhost:9123"})) as connection:
        table = await connection.get_table(aio.TablePath("fluss", "events"))
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=aio.EARLIEST_OFFSET)
        records = await scanner.poll(1000)

What differs is reading: ``poll``, ``poll_arrow``, ``poll_record_batch``, ``to_arrow`` and ``to_pandas`` are coroutines
here, and block in ``fluss``. Subscribing is a plain call in both; it may ask the server once.
"""

# ruff: noqa: F403 - the plain values are the same everywhere

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fluss.client import connection, table
from fluss.client.admin.admin import FlussAdmin as FlussAdmin
from fluss.client.faces import Face, ScanFace, TableFace, same
from fluss.client.lookup.lookupers import Lookuper as Lookuper
from fluss.client.lookup.lookupers import PrefixLookuper as PrefixLookuper
from fluss.client.lookup.lookupers import TableLookup as TableLookup
from fluss.client.lookup.lookupers import TablePrefixLookup as TablePrefixLookup
from fluss.client.scan import log_scanner, table_scan
from fluss.client.scan.batch_scanner import BatchScanner as BatchScanner
from fluss.client.write.result import WriteResultHandle as WriteResultHandle
from fluss.client.write.writers import AppendWriter as AppendWriter
from fluss.client.write.writers import TableAppend as TableAppend
from fluss.client.write.writers import TableUpsert as TableUpsert
from fluss.client.write.writers import UpsertWriter as UpsertWriter
from fluss.config import Config as Config
from fluss.public_names import *
from fluss.schema.table import TablePath as TablePath


class LogScanner(Face[log_scanner.LogScanner]):
    """As ``fluss.LogScanner``, with coroutines for everything that waits for records."""

    subscribe = same(log_scanner.LogScanner.subscribe)
    subscribe_buckets = same(log_scanner.LogScanner.subscribe_buckets)
    subscribe_partition = same(log_scanner.LogScanner.subscribe_partition)
    subscribe_partition_buckets = same(log_scanner.LogScanner.subscribe_partition_buckets)
    subscribe_from_snapshot = same(log_scanner.LogScanner.subscribe_from_snapshot)
    unsubscribe = same(log_scanner.LogScanner.unsubscribe)
    unsubscribe_partition = same(log_scanner.LogScanner.unsubscribe_partition)
    get_subscribed_buckets = same(log_scanner.LogScanner.get_subscribed_buckets)
    is_partitioned = same(log_scanner.LogScanner.is_partitioned)
    poll = poll_async = same(log_scanner.LogScanner.poll_async)
    poll_record_batch = poll_record_batch_async = same(log_scanner.LogScanner.poll_record_batch_async)
    poll_batches = poll_batches_async = same(log_scanner.LogScanner.poll_batches_async)
    poll_arrow = poll_arrow_async = same(log_scanner.LogScanner.poll_arrow_async)
    to_arrow = to_arrow_async = same(log_scanner.LogScanner.to_arrow_async)
    to_pandas = to_pandas_async = same(log_scanner.LogScanner.to_pandas_async)
    to_arrow_batch_reader = same(log_scanner.LogScanner.to_arrow_batch_reader)
    close = same(log_scanner.LogScanner.close)
    __exit__ = same(log_scanner.LogScanner.__exit__)
    __aexit__ = same(log_scanner.LogScanner.__aexit__)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._inner.__aiter__()

    def __enter__(self) -> LogScanner:
        return self

    async def __aenter__(self) -> LogScanner:
        return self


# The name of the same thing in another language.
RecordBatchLogScanner = LogScanner


class TableScan(ScanFace):
    """As ``fluss.TableScan``; the scanners it creates wait with coroutines."""

    create_bucket_batch_scanner = same(table_scan.TableScan.create_bucket_batch_scanner)
    to_arrow = same(table_scan.TableScan.to_arrow_async)
    to_pandas = same(table_scan.TableScan.to_pandas_async)

    async def create_log_scanner(self) -> LogScanner:
        return LogScanner._of(await self._inner.create_log_scanner())

    async def create_record_batch_log_scanner(self) -> LogScanner:
        return LogScanner._of(await self._inner.create_record_batch_log_scanner())

    async def create_batch_scanner(self) -> LogScanner:
        return LogScanner._of(await self._inner.create_batch_scanner())

    async def create_changelog_scanner(self) -> LogScanner:
        return LogScanner._of(await self._inner.create_changelog_scanner())


class FlussTable(TableFace):
    """As ``fluss.FlussTable``; its scans wait with coroutines."""

    new_append = same(table.FlussTable.new_append)
    new_append_writer = same(table.FlussTable.new_append_writer)
    new_upsert = same(table.FlussTable.new_upsert)
    new_lookup = same(table.FlussTable.new_lookup)
    to_arrow = same(table.FlussTable.to_arrow_async)
    to_pandas = same(table.FlussTable.to_pandas_async)

    def new_scan(self) -> TableScan:
        return TableScan._of(self._inner.new_scan())


class FlussConnection(Face[connection.FlussConnection]):
    """As ``fluss.FlussConnection``; its tables are scanned with coroutines."""

    config = same(connection.FlussConnection.config)
    get_admin = same(connection.FlussConnection.get_admin)
    close = same(connection.FlussConnection.close)
    __exit__ = same(connection.FlussConnection.__exit__)
    __aexit__ = same(connection.FlussConnection.__aexit__)

    @staticmethod
    async def create(config: Config) -> FlussConnection:
        return FlussConnection._of(await connection.FlussConnection.create(config))

    @staticmethod
    async def connect(config: Config) -> FlussConnection:
        return await FlussConnection.create(config)

    @staticmethod
    async def new(config: Config) -> FlussConnection:
        return await FlussConnection.create(config)

    async def get_table(self, table_path: TablePath) -> FlussTable:
        return FlussTable._of(await self._inner.get_table(table_path))

    def __enter__(self) -> FlussConnection:
        return self

    async def __aenter__(self) -> FlussConnection:
        return self
