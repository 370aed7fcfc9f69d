"""A tablet server of three dies under load: others lead its buckets, and no row that was acknowledged is lost or moved.
Shown with kill -9 while rows are appended and upserted with acks=all, and read by keys and as a whole afterwards."""

from __future__ import annotations

import itertools
import threading

import pyarrow as pa

import fluss
from fluss import TablePath, blocking
from fluss.testing.waiting import eventually
from tests.java.cluster import JavaCluster

BUCKETS = 6


class Load:
    """Writes numbers, one batch after the other, and counts those that are acknowledged."""

    def __init__(self, table: blocking.FlussTable) -> None:
        self.acknowledged = 0
        self.error: Exception | None = None
        self._table = table
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            self.error = error

    def _write(self) -> None:
        is_keyed = self._table.has_primary_key()
        writer = (self._table.new_upsert() if is_keyed else self._table.new_append()).create_writer()
        write = writer.upsert if is_keyed else writer.append
        for start in itertools.count(step=100):
            if self._is_over.is_set():
                break
            for number in range(start, start + 100):
                write([number % BUCKETS, number] if not is_keyed else [number, number])
            writer.flush()
            self.acknowledged = start + 100


def test_a_killed_server_loses_nothing_that_was_acknowledged(
    cluster: JavaCluster, connection: blocking.FlussConnection, database: str
) -> None:
    admin = connection.get_admin()
    log_path, key_path = TablePath(database, "log"), TablePath(database, "keyed")
    schema = pa.schema([("part", pa.int64()), ("number", pa.int64())])
    # A key for the bucket, so that the order of each is known.
    by_part = fluss.TableDescriptor(fluss.Schema(schema), bucket_count=BUCKETS, bucket_keys=["part"])
    admin.create_table(log_path, by_part)
    keyed = fluss.Schema(schema, primary_keys=["part"])
    admin.create_table(key_path, fluss.TableDescriptor(keyed, bucket_count=BUCKETS))
    loads = [Load(connection.get_table(path)) for path in (log_path, key_path)]
    try:
        eventually(lambda: min(load.acknowledged for load in loads) > 0, "that rows are written")
        cluster.kill(1)
        before = [load.acknowledged for load in loads]
        # All buckets that the server led have another leader when all that was begun before is acknowledged.
        eventually(
            lambda: all(load.error or load.acknowledged > at + 300 for load, at in zip(loads, before, strict=True)),
            "that writing goes on",
            timeout_s=300,
        )
    finally:
        cluster.start_server(1)
        for load in loads:
            load.stop()
    log_load, key_load = loads

    rows = connection.get_table(log_path).new_scan().to_arrow()
    numbers: dict[int, list[int]] = {part: [] for part in range(BUCKETS)}
    for row in rows.to_pylist():
        numbers[row["part"]].append(row["number"])
    for part, found in numbers.items():
        assert found == sorted(found), "the order of a bucket has changed"
        assert found == [number for number in range(log_load.acknowledged) if number % BUCKETS == part]

    table = connection.get_table(key_path)
    assert sorted(table.new_scan().to_arrow()["part"].to_pylist()) == list(range(key_load.acknowledged))
    lookuper = table.new_lookup().create_lookuper()
    for number in range(0, key_load.acknowledged, max(key_load.acknowledged // 50, 1)):
        found_row = lookuper.lookup([number])
        assert found_row is not None
        assert found_row["number"] == number
