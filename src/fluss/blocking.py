"""The client for programs without an event loop: the names of ``fluss``, and nothing to await.

    from fluss import blocking

    with blocking.connect("localhost:9123") as connection:
        print(connection.get_admin().list_databases())

Whatever is awaited in ``fluss`` blocks the calling thread here until it is done, while other threads go on; Ctrl-C
ends the wait. Everything else is the same.
"""

# ruff: noqa: F403 - the plain values are the same everywhere

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fluss
import fluss.neighbours  # It looks for what would be in the way.
from fluss import Config as Config
from fluss import Consumer as Consumer
from fluss import LogScanner as LogScanner
from fluss import TableBucket as TableBucket
from fluss import TablePath as TablePath
from fluss.client.kernel.runtime import wait_for
from fluss.client.wrappers import (
    ContextWrapper,
    ScanWrapper,
    TableWrapper,
    Wrapper,
    blocking,
    chained,
    same,
    wrapping,
)
from fluss.public_names import *

# The name of the same thing in another language.
RecordBatchLogScanner = LogScanner


class WriteResultHandle(Wrapper[fluss.WriteResultHandle]):
    """As ``fluss.WriteResultHandle``; ``wait`` blocks."""

    wait = blocking(fluss.WriteResultHandle.wait)
    result = same(fluss.WriteResultHandle.result)
    done = same(fluss.WriteResultHandle.done)


class AppendWriter(ContextWrapper[fluss.AppendWriter]):
    """As ``fluss.AppendWriter``; ``flush`` blocks. Leaving a ``with`` block flushes."""

    append_many = wrapping(fluss.AppendWriter.append_many, WriteResultHandle._of)
    write_arrow_batch = wrapping(fluss.AppendWriter.write_arrow_batch, WriteResultHandle._of)
    append_arrow_batch = wrapping(fluss.AppendWriter.append_arrow_batch, WriteResultHandle._of)
    write_arrow = same(fluss.AppendWriter.write_arrow)
    write_pandas = same(fluss.AppendWriter.write_pandas)
    flush = blocking(fluss.AppendWriter.flush)
    __exit__ = blocking(fluss.AppendWriter.__aexit__)

    def append(self, row: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.append(row))


class TableAppend(Wrapper[fluss.TableAppend]):
    """As ``fluss.TableAppend``; its writers block."""

    create_writer = wrapping(fluss.TableAppend.create_writer, AppendWriter._of)


class UpsertWriter(ContextWrapper[fluss.UpsertWriter]):
    """As ``fluss.UpsertWriter``; ``flush`` blocks. Leaving a ``with`` block flushes."""

    upsert_many = wrapping(fluss.UpsertWriter.upsert_many, WriteResultHandle._of)
    delete_many = wrapping(fluss.UpsertWriter.delete_many, WriteResultHandle._of)
    upsert_arrow_batch = wrapping(fluss.UpsertWriter.upsert_arrow_batch, WriteResultHandle._of)
    delete_arrow_batch = wrapping(fluss.UpsertWriter.delete_arrow_batch, WriteResultHandle._of)
    upsert_arrow = same(fluss.UpsertWriter.upsert_arrow)
    delete_arrow = same(fluss.UpsertWriter.delete_arrow)
    write_pandas = same(fluss.UpsertWriter.write_pandas)
    flush = blocking(fluss.UpsertWriter.flush)
    __exit__ = blocking(fluss.UpsertWriter.__aexit__)

    def upsert(self, row: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.upsert(row))

    def delete(self, pk: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.delete(pk))


class TableUpsert(ContextWrapper[fluss.TableUpsert]):
    """As ``fluss.TableUpsert``; its writers block, and so does ``flush``. Leaving a ``with`` block flushes."""

    partial_update_by_name = chained(fluss.TableUpsert.partial_update_by_name)
    partial_update_by_index = chained(fluss.TableUpsert.partial_update_by_index)
    partial_update = chained(fluss.TableUpsert.partial_update)
    partial_update_with_column_names = chained(fluss.TableUpsert.partial_update_with_column_names)
    create_writer = wrapping(fluss.TableUpsert.create_writer, UpsertWriter._of)
    upsert_many = wrapping(fluss.TableUpsert.upsert_many, WriteResultHandle._of)
    delete_many = wrapping(fluss.TableUpsert.delete_many, WriteResultHandle._of)
    upsert_arrow_batch = wrapping(fluss.TableUpsert.upsert_arrow_batch, WriteResultHandle._of)
    delete_arrow_batch = wrapping(fluss.TableUpsert.delete_arrow_batch, WriteResultHandle._of)
    upsert_arrow = same(fluss.TableUpsert.upsert_arrow)
    delete_arrow = same(fluss.TableUpsert.delete_arrow)
    write_pandas = same(fluss.TableUpsert.write_pandas)
    flush = blocking(fluss.TableUpsert.flush)
    __exit__ = blocking(fluss.TableUpsert.__aexit__)

    def upsert(self, row: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.upsert(row))

    def delete(self, pk: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.delete(pk))


class Lookuper(Wrapper[fluss.Lookuper]):
    """As ``fluss.Lookuper``, blocking. Lookups of several threads share requests."""

    lookup = blocking(fluss.Lookuper.lookup)
    lookup_many = blocking(fluss.Lookuper.lookup_many)


class PrefixLookuper(Wrapper[fluss.PrefixLookuper]):
    """As ``fluss.PrefixLookuper``, blocking."""

    lookup = blocking(fluss.PrefixLookuper.lookup)
    lookup_arrow = blocking(fluss.PrefixLookuper.lookup_arrow)


class TablePrefixLookup(Wrapper[fluss.TablePrefixLookup]):
    """As ``fluss.TablePrefixLookup``; its lookupers block."""

    create_lookuper = wrapping(fluss.TablePrefixLookup.create_lookuper, PrefixLookuper._of)


class TableLookup(Wrapper[fluss.TableLookup]):
    """As ``fluss.TableLookup``, blocking, and so are its lookupers."""

    lookup = blocking(fluss.TableLookup.lookup)
    lookup_many = blocking(fluss.TableLookup.lookup_many)
    create_lookuper = wrapping(fluss.TableLookup.create_lookuper, Lookuper._of)
    lookup_by = wrapping(fluss.TableLookup.lookup_by, TablePrefixLookup._of)


class BatchScanner(Wrapper[fluss.BatchScanner]):
    """As ``fluss.BatchScanner``, blocking."""

    next_batch = blocking(fluss.BatchScanner.next_batch)
    collect_all_batches = blocking(fluss.BatchScanner.collect_all_batches)
    to_arrow = blocking(fluss.BatchScanner.to_arrow)
    to_pandas = blocking(fluss.BatchScanner.to_pandas)

    @property
    def bucket(self) -> TableBucket:
        return self._inner.bucket


class TableScan(ScanWrapper):
    """As ``fluss.TableScan``; creating scanners blocks. The methods of ``LogScanner`` block in any case."""

    create_log_scanner = blocking(fluss.TableScan.create_log_scanner)
    create_record_batch_log_scanner = blocking(fluss.TableScan.create_record_batch_log_scanner)
    create_batch_scanner = blocking(fluss.TableScan.create_batch_scanner)
    create_changelog_scanner = blocking(fluss.TableScan.create_changelog_scanner)
    to_arrow = same(fluss.TableScan.to_arrow)
    to_pandas = same(fluss.TableScan.to_pandas)
    to_polars = same(fluss.TableScan.to_polars)
    create_bucket_batch_scanner = wrapping(fluss.TableScan.create_bucket_batch_scanner, BatchScanner._of)


class FlussTable(TableWrapper):
    """As ``fluss.FlussTable``; what it makes blocks."""

    new_scan = wrapping(fluss.FlussTable.new_scan, TableScan._of)
    new_append = wrapping(fluss.FlussTable.new_append, TableAppend._of)
    new_append_writer = wrapping(fluss.FlussTable.new_append_writer, AppendWriter._of)
    new_upsert = wrapping(fluss.FlussTable.new_upsert, TableUpsert._of)
    new_lookup = wrapping(fluss.FlussTable.new_lookup, TableLookup._of)
    consumer = same(fluss.FlussTable.consumer)
    consumers = blocking(fluss.FlussTable.consumers)
    drop_consumer = blocking(fluss.FlussTable.drop_consumer)
    to_arrow = same(fluss.FlussTable.to_arrow)
    to_pandas = same(fluss.FlussTable.to_pandas)
    to_polars = same(fluss.FlussTable.to_polars)


class FlussAdmin(Wrapper[fluss.FlussAdmin]):
    """As ``fluss.FlussAdmin``; every method blocks until it is done."""

    create_database = blocking(fluss.FlussAdmin.create_database)
    drop_database = blocking(fluss.FlussAdmin.drop_database)
    alter_database = blocking(fluss.FlussAdmin.alter_database)
    list_databases = blocking(fluss.FlussAdmin.list_databases)
    list_database_summaries = blocking(fluss.FlussAdmin.list_database_summaries)
    database_exists = blocking(fluss.FlussAdmin.database_exists)
    get_database_info = blocking(fluss.FlussAdmin.get_database_info)
    create_table = blocking(fluss.FlussAdmin.create_table)
    drop_table = blocking(fluss.FlussAdmin.drop_table)
    alter_table = blocking(fluss.FlussAdmin.alter_table)
    list_tables = blocking(fluss.FlussAdmin.list_tables)
    table_exists = blocking(fluss.FlussAdmin.table_exists)
    get_table_info = blocking(fluss.FlussAdmin.get_table_info)
    get_table = blocking(fluss.FlussAdmin.get_table)
    get_table_schema = blocking(fluss.FlussAdmin.get_table_schema)
    get_table_stats = blocking(fluss.FlussAdmin.get_table_stats)
    create_partition = blocking(fluss.FlussAdmin.create_partition)
    drop_partition = blocking(fluss.FlussAdmin.drop_partition)
    list_partition_infos = blocking(fluss.FlussAdmin.list_partition_infos)
    list_partition_infos_with_spec = blocking(fluss.FlussAdmin.list_partition_infos_with_spec)
    list_offsets = blocking(fluss.FlussAdmin.list_offsets)
    list_partition_offsets = blocking(fluss.FlussAdmin.list_partition_offsets)
    get_latest_lake_snapshot = blocking(fluss.FlussAdmin.get_latest_lake_snapshot)
    register_producer_offsets = blocking(fluss.FlussAdmin.register_producer_offsets)
    get_producer_offsets = blocking(fluss.FlussAdmin.get_producer_offsets)
    delete_producer_offsets = blocking(fluss.FlussAdmin.delete_producer_offsets)
    create_acls = blocking(fluss.FlussAdmin.create_acls)
    list_acls = blocking(fluss.FlussAdmin.list_acls)
    drop_acls = blocking(fluss.FlussAdmin.drop_acls)
    get_server_nodes = blocking(fluss.FlussAdmin.get_server_nodes)
    get_cluster_health = blocking(fluss.FlussAdmin.get_cluster_health)
    describe_cluster_configs = blocking(fluss.FlussAdmin.describe_cluster_configs)
    alter_cluster_configs = blocking(fluss.FlussAdmin.alter_cluster_configs)
    add_server_tag = blocking(fluss.FlussAdmin.add_server_tag)
    remove_server_tag = blocking(fluss.FlussAdmin.remove_server_tag)


class FlussConnection(ContextWrapper[fluss.FlussConnection]):
    """As ``fluss.FlussConnection``; every method blocks until it is done."""

    config = same(fluss.FlussConnection.config)
    metrics = same(fluss.FlussConnection.metrics)
    get_admin = wrapping(fluss.FlussConnection.get_admin, FlussAdmin._of)
    __exit__ = same(fluss.FlussConnection.__exit__)

    @staticmethod
    def create(config: Config | str | Mapping[str, str | int | bool] | None = None) -> FlussConnection:
        return FlussConnection._of(wait_for(fluss.FlussConnection.create(config)))

    connect = new = create

    def get_table(self, table_path: TablePath | str) -> FlussTable:
        return FlussTable._of(wait_for(self._inner.get_table(table_path)))

    def close(self, timeout_ms: int | None = None, *, timeout: float | None = None) -> None:
        self._inner.close(timeout_ms, timeout=timeout).wait()


def connect(
    servers: str | Mapping[str, str | int | bool] | Config | None = None, /, **options: str | int | bool
) -> FlussConnection:
    """As ``fluss.connect``, blocking: it returns the open connection, for ``with`` or for ``close``."""
    return FlussConnection.create(Config.of(servers, **options))
