"""A partitioned table that was dropped, and another one that has its name: whoever holds the old one is told at once.

Partitions are asked for by the name of their table, so the answers are those of the new table, which may lack the
partition or have none at all. Shown with each way to use a table, and timeouts that are longer than a test may take.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.client import bulk
from fluss.errors import ErrorCode, FlussError

AN_HOUR_MS = 3_600_000
# How often scanners look for partitions; mostly what they read tells them earlier.
OFTEN = {"client.scanner.partition.discovery.interval": 10}
COLUMNS = pa.schema([("id", pa.int32()), ("region", pa.string()), ("name", pa.string())])
ROW = {"id": 1, "region": "eu", "name": "a"}
KEYS = ["region", "id"]
REPLACEMENTS = {
    "without partitions": fluss.TableDescriptor(fluss.Schema(COLUMNS), bucket_count=1),
    "without any partition yet": fluss.TableDescriptor(fluss.Schema(COLUMNS), partition_keys=["region"]),
    "by another column": fluss.TableDescriptor(fluss.Schema(COLUMNS), partition_keys=["name"], bucket_count=1),
}

REPLACED = "was dropped and created again"
# What looks at the table by itself, all the time, may have looked between the drop and the creation.
GONE_OR_REPLACED = rf"{REPLACED}|does not exist"

Call = Callable[[], object]


_numbers = itertools.count()


@pytest.fixture(params=REPLACEMENTS)
def replacement(request: pytest.FixtureRequest) -> fluss.TableDescriptor:
    return REPLACEMENTS[request.param]


@pytest.fixture
def path() -> fluss.TablePath:
    return fluss.TablePath("fluss", f"replaced_{next(_numbers)}")


@contextmanager
def opened(server: embedded.EmbeddedServer, **options: str | int) -> Iterator[blocking.FlussConnection]:
    given = {"bootstrap.servers": server.bootstrap_servers, "request-timeout": AN_HOUR_MS, **options}
    with blocking.FlussConnection.create(fluss.Config(given)) as connection:
        yield connection


def replace(server: embedded.EmbeddedServer, path: fluss.TablePath, replacement: fluss.TableDescriptor) -> None:
    """Drop a table, and create another one by its name, as another client would."""
    with opened(server) as other:
        other.get_admin().drop_table(path)
        other.get_admin().create_table(path, replacement)


def create(connection: blocking.FlussConnection, path: fluss.TablePath, *keys: str) -> blocking.FlussTable:
    """Create a table with one partition and a row in it."""
    schema = fluss.Schema(COLUMNS, primary_keys=list(keys))
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, partition_keys=["region"], bucket_count=1))
    connection.get_admin().create_partition(path, {"region": "eu"})
    table = connection.get_table(path)
    if keys:
        table.new_upsert().create_writer().upsert(ROW).wait()
    else:
        table.new_append().create_writer().append(ROW).wait()
    return table


def check_told(*calls: Call, words: str = REPLACED) -> None:
    for call in calls:
        with pytest.raises(FlussError, match=words) as refused:
            call()
        assert refused.value.error_code == ErrorCode.TABLE_NOT_EXIST


def test_writers_are_told(
    server: embedded.EmbeddedServer, path: fluss.TablePath, replacement: fluss.TableDescriptor
) -> None:
    with opened(server) as connection:
        table = create(connection, path)
        writer = table.new_append().create_writer()
        writer.append(ROW).wait()
        replace(server, path, replacement)
        check_told(
            lambda: writer.append(ROW).wait(),
            lambda: table.new_append().create_writer().append(ROW).wait(),
            lambda: table.new_append().create_writer().append({**ROW, "region": "us"}).wait(),
        )


def test_lookups_are_told_and_find_no_nothing(
    server: embedded.EmbeddedServer, path: fluss.TablePath, replacement: fluss.TableDescriptor
) -> None:
    key = {"region": "eu", "id": 1}
    with opened(server) as connection, opened(server) as fresh:
        table = create(connection, path, *KEYS)
        lookuper = table.new_lookup().create_lookuper()
        assert lookuper.lookup(key) == ROW
        unused = fresh.get_table(path).new_lookup().create_lookuper()
        replace(server, path, replacement)
        check_told(lambda: lookuper.lookup(key), lambda: lookuper.lookup_many([key]), lambda: unused.lookup(key))


@pytest.mark.parametrize("keys", [[], KEYS], ids=["log", "keys"])
def test_readers_are_told(
    server: embedded.EmbeddedServer, path: fluss.TablePath, replacement: fluss.TableDescriptor, keys: list[str]
) -> None:
    with opened(server) as connection:
        table = create(connection, path, *keys)
        begun, snapshot = (table.new_scan().create_log_scanner() for _ in range(2))
        begun.subscribe_all()
        assert len(begun.poll(AN_HOUR_MS)) == 1
        snapshot.subscribe_from_snapshot()
        consumer = table.consumer("reader")
        assert len(consumer.poll(AN_HOUR_MS)) == 1
        replace(server, path, replacement)
        check_told(
            lambda: begun.poll(AN_HOUR_MS),
            lambda: snapshot.poll(AN_HOUR_MS),
            lambda: consumer.poll(AN_HOUR_MS),
            words=GONE_OR_REPLACED,
        )
        check_told(
            table.to_arrow,
            lambda: table.new_scan().limit(1).to_arrow(),
            lambda: table.new_scan().create_log_scanner().subscribe_all(),
        )
        consumer.close()


async def test_plans_are_told(
    server: embedded.EmbeddedServer, path: fluss.TablePath, replacement: fluss.TableDescriptor
) -> None:
    # With the partitions of the new table, or none, a job would copy nothing and say that it is done.
    with opened(server) as connection:
        create(connection, path)
        async with await fluss.FlussConnection.create(server.config()) as plain:
            table = await plain.get_table(path)
            assert [each.partition_name for each in bulk.partitions_of(table)] == ["eu"]
            replace(server, path, replacement)
            check_told(lambda: bulk.partitions_of(table), lambda: bulk.named_buckets_of(table))


def test_a_scanner_that_has_no_partition_to_notice_it_by_is_told_too(
    server: embedded.EmbeddedServer, path: fluss.TablePath, replacement: fluss.TableDescriptor
) -> None:
    with opened(server, **OFTEN) as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(COLUMNS), partition_keys=["region"])
        connection.get_admin().create_table(path, descriptor)
        scanner = connection.get_table(path).new_scan().create_log_scanner()
        scanner.subscribe_all()
        assert len(scanner.poll(0)) == 0
        replace(server, path, replacement)
        for _ in range(2):
            check_told(lambda: scanner.poll(AN_HOUR_MS), words=GONE_OR_REPLACED)


def test_a_scanner_without_partitions_is_told_that_its_table_is_gone(server: embedded.EmbeddedServer) -> None:
    path = fluss.TablePath("fluss", "gone_without_partitions")
    with opened(server, **OFTEN) as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(COLUMNS), partition_keys=["region"])
        connection.get_admin().create_table(path, descriptor)
        scanner = connection.get_table(path).new_scan().create_log_scanner()
        scanner.subscribe_all()
        connection.get_admin().drop_table(path)
        check_told(lambda: scanner.poll(AN_HOUR_MS), words="does not exist")
