"""The client for programs without an event loop: the names of ``fluss``, and nothing to await.

    from fluss import blocking

    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": "localhost:9123"})) as connection:
        print(connection.get_admin().list_databases())

Whatever is awaited in ``fluss`` blocks the calling thread here until it is done, while other threads go on; Ctrl-C
ends the wait. Everything else is the same.
"""

# ruff: noqa: F403 - the plain values are the same everywhere

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fluss.client import connection, table
from fluss.client.admin import admin
from fluss.client.faces import Face, ScanFace, TableFace, blocking, same, wait_for
from fluss.client.lookup import lookupers
from fluss.client.scan import batch_scanner, table_scan
from fluss.client.scan.log_scanner import LogScanner as LogScanner
from fluss.client.write import result as write_result
from fluss.client.write import writers
from fluss.config import Config as Config
from fluss.public_names import *
from fluss.schema.table import TableBucket as TableBucket
from fluss.schema.table import TablePath as TablePath

# The name of the same thing in another language.
RecordBatchLogScanner = LogScanner


class WriteResultHandle(Face[write_result.WriteResultHandle]):
    """As ``fluss.WriteResultHandle``; ``wait`` blocks."""

    wait = blocking(write_result.WriteResultHandle.wait)
    result = same(write_result.WriteResultHandle.result)
    done = same(write_result.WriteResultHandle.done)


class AppendWriter(Face[writers.AppendWriter]):
    """As ``fluss.AppendWriter``; ``flush`` blocks. Leaving a ``with`` block flushes."""

    write_arrow = same(writers.AppendWriter.write_arrow)
    write_pandas = same(writers.AppendWriter.write_pandas)
    flush = blocking(writers.AppendWriter.flush)
    __exit__ = blocking(writers.AppendWriter.__aexit__)

    def append(self, row: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.append(row))

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.write_arrow_batch(batch))

    def append_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        return self.write_arrow_batch(batch)

    def __enter__(self) -> AppendWriter:
        return self


class TableAppend(Face[writers.TableAppend]):
    """As ``fluss.TableAppend``; its writers block."""

    def create_writer(self) -> AppendWriter:
        return AppendWriter._of(self._inner.create_writer())


class UpsertWriter(Face[writers.UpsertWriter]):
    """As ``fluss.UpsertWriter``; ``flush`` blocks. Leaving a ``with`` block flushes."""

    upsert_arrow = same(writers.UpsertWriter.upsert_arrow)
    delete_arrow = same(writers.UpsertWriter.delete_arrow)
    write_pandas = same(writers.UpsertWriter.write_pandas)
    flush = blocking(writers.UpsertWriter.flush)
    __exit__ = blocking(writers.UpsertWriter.__aexit__)

    def upsert(self, row: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.upsert(row))

    def delete(self, pk: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.delete(pk))

    def upsert_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.upsert_arrow_batch(batch))

    def delete_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.delete_arrow_batch(batch))

    def __enter__(self) -> UpsertWriter:
        return self


class TableUpsert(Face[writers.TableUpsert]):
    """As ``fluss.TableUpsert``; its writers block, and so does ``flush``. Leaving a ``with`` block flushes."""

    upsert_arrow = same(writers.TableUpsert.upsert_arrow)
    delete_arrow = same(writers.TableUpsert.delete_arrow)
    write_pandas = same(writers.TableUpsert.write_pandas)
    flush = blocking(writers.TableUpsert.flush)
    __exit__ = blocking(writers.TableUpsert.__aexit__)

    def partial_update_by_name(self, columns: Sequence[str]) -> TableUpsert:
        return TableUpsert._of(self._inner.partial_update_by_name(columns))

    def partial_update_by_index(
        self, column_indices: Sequence[int] | None = None, *, indices: Sequence[int] | None = None
    ) -> TableUpsert:
        return TableUpsert._of(self._inner.partial_update_by_index(column_indices, indices=indices))

    def partial_update(self, column_indices: Sequence[int] | None = None) -> TableUpsert:
        return TableUpsert._of(self._inner.partial_update(column_indices))

    def partial_update_with_column_names(self, columns: Sequence[str]) -> TableUpsert:
        return self.partial_update_by_name(columns)

    def create_writer(self) -> UpsertWriter:
        return UpsertWriter._of(self._inner.create_writer())

    def upsert(self, row: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.upsert(row))

    def delete(self, pk: Any) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.delete(pk))

    def upsert_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.upsert_arrow_batch(batch))

    def delete_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        return WriteResultHandle._of(self._inner.delete_arrow_batch(batch))

    def __enter__(self) -> TableUpsert:
        return self


class Lookuper(Face[lookupers.Lookuper]):
    """As ``fluss.Lookuper``, blocking. Lookups of several threads share requests."""

    lookup = blocking(lookupers.Lookuper.lookup)
    lookup_many = blocking(lookupers.Lookuper.lookup_many)


class PrefixLookuper(Face[lookupers.PrefixLookuper]):
    """As ``fluss.PrefixLookuper``, blocking."""

    lookup = blocking(lookupers.PrefixLookuper.lookup)
    lookup_arrow = blocking(lookupers.PrefixLookuper.lookup_arrow)


class TablePrefixLookup(Face[lookupers.TablePrefixLookup]):
    """As ``fluss.TablePrefixLookup``; its lookupers block."""

    def create_lookuper(self) -> PrefixLookuper:
        return PrefixLookuper._of(self._inner.create_lookuper())


class TableLookup(Face[lookupers.TableLookup]):
    """As ``fluss.TableLookup``, blocking, and so are its lookupers."""

    lookup = blocking(lookupers.TableLookup.lookup)
    lookup_many = blocking(lookupers.TableLookup.lookup_many)

    def create_lookuper(self) -> Lookuper:
        return Lookuper._of(self._inner.create_lookuper())

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        return TablePrefixLookup._of(self._inner.lookup_by(column_names))


class BatchScanner(Face[batch_scanner.BatchScanner]):
    """As ``fluss.BatchScanner``, blocking."""

    next_batch = blocking(batch_scanner.BatchScanner.next_batch)
    collect_all_batches = blocking(batch_scanner.BatchScanner.collect_all_batches)
    to_arrow = blocking(batch_scanner.BatchScanner.to_arrow)
    to_pandas = blocking(batch_scanner.BatchScanner.to_pandas)

    @property
    def bucket(self) -> TableBucket:
        return self._inner.bucket


class TableScan(ScanFace):
    """As ``fluss.TableScan``; creating scanners blocks. The methods of ``LogScanner`` block in any case."""

    create_log_scanner = blocking(table_scan.TableScan.create_log_scanner)
    create_record_batch_log_scanner = blocking(table_scan.TableScan.create_record_batch_log_scanner)
    create_batch_scanner = blocking(table_scan.TableScan.create_batch_scanner)
    create_changelog_scanner = blocking(table_scan.TableScan.create_changelog_scanner)
    to_arrow = same(table_scan.TableScan.to_arrow)
    to_pandas = same(table_scan.TableScan.to_pandas)

    def create_bucket_batch_scanner(self, bucket: TableBucket) -> BatchScanner:
        return BatchScanner._of(self._inner.create_bucket_batch_scanner(bucket))


class FlussTable(TableFace):
    """As ``fluss.FlussTable``; what it makes blocks."""

    to_arrow = same(table.FlussTable.to_arrow)
    to_pandas = same(table.FlussTable.to_pandas)

    def new_scan(self) -> TableScan:
        return TableScan._of(self._inner.new_scan())

    def new_append(self) -> TableAppend:
        return TableAppend._of(self._inner.new_append())

    def new_append_writer(self) -> AppendWriter:
        return self.new_append().create_writer()

    def new_upsert(
        self, columns: Sequence[str] | None = None, column_indices: Sequence[int] | None = None
    ) -> TableUpsert:
        return TableUpsert._of(self._inner.new_upsert(columns, column_indices))

    def new_lookup(self) -> TableLookup:
        return TableLookup._of(self._inner.new_lookup())


class FlussAdmin(Face[admin.FlussAdmin]):
    """As ``fluss.FlussAdmin``; every method blocks until it is done."""

    create_database = blocking(admin.FlussAdmin.create_database)
    drop_database = blocking(admin.FlussAdmin.drop_database)
    alter_database = blocking(admin.FlussAdmin.alter_database)
    list_databases = blocking(admin.FlussAdmin.list_databases)
    list_database_summaries = blocking(admin.FlussAdmin.list_database_summaries)
    database_exists = blocking(admin.FlussAdmin.database_exists)
    get_database_info = blocking(admin.FlussAdmin.get_database_info)
    create_table = blocking(admin.FlussAdmin.create_table)
    drop_table = blocking(admin.FlussAdmin.drop_table)
    alter_table = blocking(admin.FlussAdmin.alter_table)
    list_tables = blocking(admin.FlussAdmin.list_tables)
    table_exists = blocking(admin.FlussAdmin.table_exists)
    get_table_info = blocking(admin.FlussAdmin.get_table_info)
    get_table = blocking(admin.FlussAdmin.get_table)
    get_table_schema = blocking(admin.FlussAdmin.get_table_schema)
    get_table_stats = blocking(admin.FlussAdmin.get_table_stats)
    create_partition = blocking(admin.FlussAdmin.create_partition)
    drop_partition = blocking(admin.FlussAdmin.drop_partition)
    list_partition_infos = blocking(admin.FlussAdmin.list_partition_infos)
    list_partition_infos_with_spec = blocking(admin.FlussAdmin.list_partition_infos_with_spec)
    list_offsets = blocking(admin.FlussAdmin.list_offsets)
    list_partition_offsets = blocking(admin.FlussAdmin.list_partition_offsets)
    get_latest_lake_snapshot = blocking(admin.FlussAdmin.get_latest_lake_snapshot)
    register_producer_offsets = blocking(admin.FlussAdmin.register_producer_offsets)
    get_producer_offsets = blocking(admin.FlussAdmin.get_producer_offsets)
    delete_producer_offsets = blocking(admin.FlussAdmin.delete_producer_offsets)
    create_acls = blocking(admin.FlussAdmin.create_acls)
    list_acls = blocking(admin.FlussAdmin.list_acls)
    drop_acls = blocking(admin.FlussAdmin.drop_acls)
    get_server_nodes = blocking(admin.FlussAdmin.get_server_nodes)
    get_cluster_health = blocking(admin.FlussAdmin.get_cluster_health)
    describe_cluster_configs = blocking(admin.FlussAdmin.describe_cluster_configs)
    alter_cluster_configs = blocking(admin.FlussAdmin.alter_cluster_configs)
    add_server_tag = blocking(admin.FlussAdmin.add_server_tag)
    remove_server_tag = blocking(admin.FlussAdmin.remove_server_tag)


class FlussConnection(Face[connection.FlussConnection]):
    """As ``fluss.FlussConnection``; every method blocks until it is done."""

    config = same(connection.FlussConnection.config)
    __exit__ = same(connection.FlussConnection.__exit__)

    @staticmethod
    def create(config: Config) -> FlussConnection:
        return FlussConnection._of(wait_for(connection.FlussConnection.create(config)))

    @staticmethod
    def connect(config: Config) -> FlussConnection:
        return FlussConnection.create(config)

    @staticmethod
    def new(config: Config) -> FlussConnection:
        return FlussConnection.create(config)

    def get_admin(self) -> FlussAdmin:
        return FlussAdmin._of(self._inner.get_admin())

    def get_table(self, table_path: TablePath) -> FlussTable:
        return FlussTable._of(wait_for(self._inner.get_table(table_path)))

    def close(self, timeout_ms: int | None = None) -> None:
        self._inner.close(timeout_ms).wait()

    def __enter__(self) -> FlussConnection:
        return self
