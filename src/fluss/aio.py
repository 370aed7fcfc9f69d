"""The client for programs that never block their event loop: the names of ``fluss``, and every wait is an await.

    from fluss import aio

    async with aio.connect("localhost:9123") as connection:
        table = await connection.get_table("fluss.events")
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=aio.EARLIEST_OFFSET)
        records = await scanner.poll(1000)

What differs is reading: ``poll``, ``poll_arrow``, ``poll_record_batch``, ``to_arrow`` and ``to_pandas`` are coroutines
here; in ``fluss`` they block, except where the call itself is awaited. Subscribing is a plain call in both; it may ask
the server once.
"""

# ruff: noqa: F403 - the plain values are the same everywhere

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Generic, Self

import fluss
import fluss.neighbours  # It looks for what would be in the way.
from fluss import AppendWriter as AppendWriter
from fluss import BatchScanner as BatchScanner
from fluss import Config as Config
from fluss import FlussAdmin as FlussAdmin
from fluss import Lookuper as Lookuper
from fluss import PrefixLookuper as PrefixLookuper
from fluss import RecordBatch as RecordBatch
from fluss import ScanRecord as ScanRecord
from fluss import TableAppend as TableAppend
from fluss import TableLookup as TableLookup
from fluss import TablePath as TablePath
from fluss import TablePrefixLookup as TablePrefixLookup
from fluss import TableUpsert as TableUpsert
from fluss import UpsertWriter as UpsertWriter
from fluss import WriteResultHandle as WriteResultHandle
from fluss.client.connecting import Connecting
from fluss.client.scan.log_scanner import ItemT
from fluss.client.wrappers import ContextWrapper, ScanWrapper, TableWrapper, same, wrapping, wrapping_async
from fluss.public_names import *


class LogScanner(ContextWrapper[fluss.LogScanner[ItemT]], Generic[ItemT]):
    """As ``fluss.LogScanner``, with coroutines for everything that waits for records."""

    subscribe = same(fluss.LogScanner.subscribe)
    subscribe_buckets = same(fluss.LogScanner.subscribe_buckets)
    subscribe_partition = same(fluss.LogScanner.subscribe_partition)
    subscribe_partition_buckets = same(fluss.LogScanner.subscribe_partition_buckets)
    subscribe_all = same(fluss.LogScanner.subscribe_all)
    subscribe_from_snapshot = same(fluss.LogScanner.subscribe_from_snapshot)
    unsubscribe = same(fluss.LogScanner.unsubscribe)
    unsubscribe_partition = same(fluss.LogScanner.unsubscribe_partition)
    position = same(fluss.LogScanner.position)
    get_subscribed_buckets = same(fluss.LogScanner.get_subscribed_buckets)
    is_partitioned = same(fluss.LogScanner.is_partitioned)
    poll = poll_async = same(fluss.LogScanner.poll_async)
    poll_record_batch = poll_record_batch_async = same(fluss.LogScanner.poll_record_batch_async)
    poll_batches = poll_batches_async = same(fluss.LogScanner.poll_batches_async)
    poll_arrow = poll_arrow_async = same(fluss.LogScanner.poll_arrow_async)
    to_arrow = to_arrow_async = same(fluss.LogScanner.to_arrow_async)
    to_pandas = to_pandas_async = same(fluss.LogScanner.to_pandas_async)
    to_arrow_batch_reader = same(fluss.LogScanner.to_arrow_batch_reader)
    close = same(fluss.LogScanner.close)
    __exit__ = same(fluss.LogScanner.__exit__)
    __aexit__ = same(fluss.LogScanner.__aexit__)

    def __aiter__(self) -> AsyncIterator[ItemT]:
        return self._inner.__aiter__()

    async def __aenter__(self) -> Self:
        return self


# The name of the same thing in another language.
RecordBatchLogScanner = LogScanner


class Consumer(ContextWrapper[fluss.Consumer]):
    """As ``fluss.Consumer``, with coroutines for everything that waits."""

    poll = poll_async = same(fluss.Consumer.poll_async)
    poll_record_batch = poll_record_batch_async = same(fluss.Consumer.poll_record_batch_async)
    poll_arrow = poll_arrow_async = same(fluss.Consumer.poll_arrow_async)
    commit = commit_async = same(fluss.Consumer.commit_async)
    lag = lag_async = same(fluss.Consumer.lag_async)
    close = close_async = same(fluss.Consumer.close_async)
    positions = same(fluss.Consumer.positions)
    epochs = same(fluss.Consumer.epochs)
    committed = same(fluss.Consumer.committed)
    seek = same(fluss.Consumer.seek)
    __exit__ = same(fluss.Consumer.__exit__)
    __aexit__ = same(fluss.Consumer.__aexit__)

    @property
    def name(self) -> str:
        return self._inner.name

    def __aiter__(self) -> AsyncIterator[ScanRecord]:
        return self._inner.__aiter__()

    async def __aenter__(self) -> Consumer:
        return self


class TableScan(ScanWrapper):
    """As ``fluss.TableScan``; the scanners it creates wait with coroutines."""

    create_bucket_batch_scanner = same(fluss.TableScan.create_bucket_batch_scanner)
    to_arrow = same(fluss.TableScan.to_arrow_async)
    to_pandas = same(fluss.TableScan.to_pandas_async)
    to_polars = same(fluss.TableScan.to_polars_async)
    create_log_scanner = wrapping_async(fluss.TableScan.create_log_scanner, LogScanner[ScanRecord]._of)
    create_record_batch_log_scanner = wrapping_async(
        fluss.TableScan.create_record_batch_log_scanner, LogScanner[RecordBatch]._of
    )
    create_batch_scanner = wrapping_async(fluss.TableScan.create_batch_scanner, LogScanner[RecordBatch]._of)
    create_changelog_scanner = wrapping_async(fluss.TableScan.create_changelog_scanner, LogScanner[RecordBatch]._of)


class FlussTable(TableWrapper):
    """As ``fluss.FlussTable``; its scans wait with coroutines."""

    new_scan = wrapping(fluss.FlussTable.new_scan, TableScan._of)
    new_append = same(fluss.FlussTable.new_append)
    new_append_writer = same(fluss.FlussTable.new_append_writer)
    new_upsert = same(fluss.FlussTable.new_upsert)
    new_lookup = same(fluss.FlussTable.new_lookup)
    consumer = wrapping(fluss.FlussTable.consumer, Consumer._of)
    consumers = same(fluss.FlussTable.consumers)
    drop_consumer = same(fluss.FlussTable.drop_consumer)
    to_arrow = same(fluss.FlussTable.to_arrow_async)
    to_pandas = same(fluss.FlussTable.to_pandas_async)
    to_polars = same(fluss.FlussTable.to_polars_async)


class FlussConnection(ContextWrapper[fluss.FlussConnection]):
    """As ``fluss.FlussConnection``; its tables are scanned with coroutines."""

    config = same(fluss.FlussConnection.config)
    metrics = same(fluss.FlussConnection.metrics)
    get_admin = same(fluss.FlussConnection.get_admin)
    get_table = wrapping_async(fluss.FlussConnection.get_table, FlussTable._of)
    close = same(fluss.FlussConnection.close)
    __exit__ = same(fluss.FlussConnection.__exit__)
    __aexit__ = same(fluss.FlussConnection.__aexit__)

    @staticmethod
    async def create(config: Config | str | Mapping[str, str | int | bool] | None = None) -> FlussConnection:
        return FlussConnection._of(await fluss.FlussConnection.create(config))

    connect = new = create

    async def __aenter__(self) -> FlussConnection:
        return self


def connect(
    servers: str | Mapping[str, str | int | bool] | Config | None = None, /, **options: str | int | bool
) -> Connecting[FlussConnection]:
    """As ``fluss.connect``; the connection is one of this module."""
    return Connecting(Config.of(servers, **options), FlussConnection.create)
