"""Descriptors are shared out so that nothing takes those of another: logs, RocksDB, connections."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from fluss.server.descriptors import connections_possible, http_connections_possible, log_files, rocksdb_files
from fluss.storage.kv import rocks
from fluss.storage.kv.rocks import KvResources
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.vfs import DESCRIPTORS_MAX
from tests.open_files import open_below


def test_connections_are_fewer_than_descriptors_beside_files():
    assert 100 < connections_possible(1024) < 1024 - DESCRIPTORS_MAX
    assert connections_possible(65_536) > 10_000
    assert connections_possible(100) == 32


def test_logs_keep_more_files_open_where_descriptors_are_many():
    assert [log_files(limit) for limit in (1024, 4096, 20_000, 65_536)] == [512, 1024, 5000, 8192]
    assert log_files(2**20) == log_files(resource.RLIM_INFINITY) == 8192


@pytest.mark.parametrize(("limit", "count"), [(100, 8), (1024, 10), (8192, 250), (65_536, 256)])
def test_connections_of_http_have_descriptors_of_their_own(limit, count):
    assert http_connections_possible(limit) == count
    # Each may have a pair of sockets to read tables by.
    left = max(32, connections_possible(limit) - 3 * count)
    assert connections_possible(limit, has_http=True) == left


@pytest.mark.parametrize("limit", [1024, 4096, 20_000, 65_536, 1_048_576])
@pytest.mark.parametrize("stores_wanted", [1, 30, 256, 100_000])
def test_the_files_of_rocksdb_are_a_quarter_of_the_descriptors_at_most(limit, stores_wanted):
    files = rocksdb_files(stores_wanted, limit)
    assert files.total <= limit / 4
    assert files.total + log_files(limit) + connections_possible(limit) < limit
    assert min(stores_wanted, 4) <= files.stores_max <= stores_wanted
    assert files.files_per_store >= 20, "RocksDB would take more"
    assert files.files_per_shared_database >= 20


def test_with_descriptors_enough_as_many_stores_are_open_as_the_option_says():
    assert rocksdb_files(256, 65_536).stores_max == 256
    assert rocksdb_files(256, resource.RLIM_INFINITY).stores_max == 256


def test_a_database_with_many_files_has_no_more_of_them_open_than_it_may(tmp_path: Path) -> None:
    files = rocksdb_files(4, 1024)
    resources = KvResources(KvStoreSettings(open_files_max=files.files_per_store))
    directory = tmp_path / "store"
    database = rocks.open_database(directory, resources, resources.options)
    for number in range(60):
        path = tmp_path / "ingested.sst"
        writer = rocks.sst_writer(resources, path)
        writer[b"%03d" % number] = b"value"
        writer.finish()
        rocks.ingest(database, path)
    assert [database[b"%03d" % number] for number in range(60)] == [b"value"] * 60
    assert len(list(directory.glob("*.sst"))) == 60
    assert len(open_below(directory)) <= files.files_per_store
    database.close()
