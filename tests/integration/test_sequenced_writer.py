"""Batches with a given writer id and given numbers are stored once and in order, and can be found again and continued.
Shown with a server process behind a proxy that cuts, and crashes of the server and of the writer between batches."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

import fluss
from fluss import DataTypes
from fluss.client.bulk.counted_writer import CountedWriter
from fluss.client.bulk.sequenced_writer import SequencedWriter, new_writer_id
from fluss.client.bulk.table_splitter import TableSplitter
from fluss.client.bulk.writer_batches import WrittenBatch, writer_batches
from fluss.client.fluss_table import FlussTable
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode, FlussError, RequestTimeoutError
from fluss.schema.offsets import ChangeType
from fluss.schema.table import TableBucket
from fluss.testing.faultnet import Faults
from fluss.testing.waiting import eventually
from tests.integration.servers import Network, network_of

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])
NAMES = count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network_of(tmp_path_factory.mktemp("sequenced"), ROWS, seed=5) as network:
        yield network


@pytest.fixture
def network(running: Network) -> Iterator[Network]:
    running.proxy.faults = Faults()
    yield running
    running.proxy.faults = Faults()


def rows(*ids: int, name: str = "x") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": [name] * len(ids)}, schema=ROWS)


def noise(count: int, length: int) -> pa.Array:
    """Texts that hardly become shorter when they are compressed."""
    rng = random.Random(count)
    return pa.array(["".join(map(chr, rng.choices(range(33, 127), k=length))) for _ in range(count)])


def bucket_of(table: FlussTable, number: int = 0) -> TableBucket:
    return TableBucket(table.get_table_info().table_id, number)


def starts(table: FlussTable) -> dict[TableBucket, int]:
    return {bucket_of(table, number): 0 for number in range(table.get_table_info().num_buckets)}


def found(table: FlussTable, writer_id: int, columns: tuple[str, ...] = ()) -> list[WrittenBatch]:
    return list(writer_batches(table, [writer_id], starts(table), columns=columns))


def numbers(batches: list[WrittenBatch]) -> list[int]:
    return [batch.header.batch_sequence for batch in batches]


def ids_in_log(table: FlussTable) -> list[int]:
    ids: list[int] = table.to_arrow(columns=["id"])["id"].to_pylist()
    return ids


# Log tables


def test_every_call_is_one_batch_with_the_next_number_of_its_bucket(network: Network) -> None:
    table = network.create(bucket_count=2)
    writer_id = new_writer_id(table)
    with SequencedWriter(table, writer_id) as writer:
        for number in range(20):
            writer.append(bucket_of(table, number % 2), rows(number, number + 100))
        writer.flush()
    for bucket in (0, 1):
        batches = [b for b in found(table, writer_id, ("id",)) if b.bucket.bucket_id == bucket]
        assert numbers(batches) == list(range(10))
        assert [b.header.record_count for b in batches] == [2] * 10
        assert [b.header.base_offset for b in batches] == list(range(0, 20, 2))
        assert [b.rows.column("id").to_pylist() for b in batches if b.rows] == [
            [n, n + 100] for n in range(bucket, 20, 2)
        ]


def test_only_batches_of_the_writer_are_found_and_only_from_the_offset_on(network: Network) -> None:
    table = network.create(bucket_count=1)
    mine, other = new_writer_id(table), new_writer_id(table)
    assert mine != other
    with SequencedWriter(table, mine) as first, SequencedWriter(table, other) as second:
        for number in range(3):
            first.append(bucket_of(table), rows(number))
            first.flush()
            second.append(bucket_of(table), rows(10 + number))
            second.flush()
    table_writer = table.new_append().create_writer()
    table_writer.append({"id": 99, "name": "normal"})
    wait_for(table_writer.flush())
    assert [(b.header.base_offset, b.header.batch_sequence) for b in found(table, mine)] == [(0, 0), (2, 1), (4, 2)]
    late = writer_batches(table, [mine, other], {bucket_of(table): 3})
    assert [(b.header.writer_id, b.header.base_offset) for b in late] == [(other, 3), (mine, 4), (other, 5)]
    with pytest.raises(FlussError, match="out of range"):
        list(writer_batches(table, [mine], {bucket_of(table): 100}))


def test_a_writer_that_died_is_continued_by_another_one_with_the_same_id(network: Network) -> None:
    table = network.create(bucket_count=2)
    writer_id = new_writer_id(table)
    batches = [(bucket_of(table, number % 2), rows(number)) for number in range(40)]
    with SequencedWriter(table, writer_id) as writer:
        for bucket, batch in batches[:15]:
            writer.append(bucket, batch)
        writer.flush()
    done: dict[TableBucket, int] = {}
    for batch in found(table, writer_id):
        done[batch.bucket] = batch.header.batch_sequence + 1
    assert sorted(done.values()) == [7, 8]
    with SequencedWriter(table, writer_id, next_sequences=done) as writer:
        for number, (bucket, batch) in enumerate(batches):
            if number // 2 >= done[bucket]:
                writer.append(bucket, batch)
        writer.flush()
    assert sorted(ids_in_log(table)) == list(range(40))


def test_numbers_that_the_log_has_are_not_stored_again(network: Network) -> None:
    table = network.create(bucket_count=1)
    writer_id = new_writer_id(table)
    with SequencedWriter(table, writer_id) as writer:
        for number in range(5):
            writer.append(bucket_of(table), rows(number))
        writer.flush()
    with SequencedWriter(table, writer_id) as writer:
        for number in range(8):
            writer.append(bucket_of(table), rows(number))
        writer.flush()
    assert ids_in_log(table) == list(range(8))


def test_a_gap_in_the_numbers_is_an_error_and_nothing_behind_it_is_stored(network: Network) -> None:
    table = network.create(bucket_count=1)
    writer_id = new_writer_id(table)
    with SequencedWriter(table, writer_id, next_sequences={bucket_of(table): 3}) as writer:
        # Both are taken before the first is refused: a later call would only tell of the refusal.
        network.proxy.faults = Faults(stalls=True)
        writer.append(bucket_of(table), rows(1))
        writer.append(bucket_of(table), rows(2))
        network.proxy.faults = Faults()
        with pytest.raises(FlussError) as refused:
            writer.flush()
        assert refused.value.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        with pytest.raises(FlussError):
            writer.append(bucket_of(table), rows(3))
    assert ids_in_log(table) == []


def test_a_batch_without_rows_takes_a_number_and_no_reader_sees_it(network: Network) -> None:
    table = network.create(bucket_count=1)
    writer_id = new_writer_id(table)
    with SequencedWriter(table, writer_id) as writer:
        writer.append(bucket_of(table), rows(1))
        for _ in range(10):
            writer.append_nothing(bucket_of(table))
        writer.append(bucket_of(table), rows(2))
        writer.flush()
        # A number long before the last five is neither a duplicate nor the next.
        with SequencedWriter(table, writer_id, next_sequences={bucket_of(table): 1}) as late:
            late.append(bucket_of(table), rows(3))
            with pytest.raises(FlussError):
                late.flush()
    assert ids_in_log(table) == [1, 2]
    assert numbers(found(table, writer_id)) == list(range(12))


def test_lost_answers_and_cut_connections_change_nothing(network: Network) -> None:
    table = network.create(bucket_count=3)
    writer_id = new_writer_id(table)
    rng = random.Random(1)
    cuts_before = network.proxy.cut_count
    network.proxy.faults = Faults(cut_after_bytes=(1, 30_000), delay_s=(0.0, 0.002))
    network.proxy.cut_all()
    with SequencedWriter(table, writer_id) as writer:
        for number in range(300):
            writer.append(bucket_of(table, number % 3), rows(number, name=rng.randbytes(500).hex()))
        writer.flush()
    network.proxy.faults = Faults()
    assert network.proxy.cut_count - cuts_before >= 3
    for bucket in range(3):
        batches = [b for b in found(table, writer_id, ("id",)) if b.bucket.bucket_id == bucket]
        assert numbers(batches) == list(range(100))
        assert [b.rows.column("id")[0].as_py() for b in batches if b.rows] == list(range(bucket, 300, 3))


def test_a_server_that_was_killed_still_knows_the_writer_from_its_log(network: Network) -> None:
    table = network.create(bucket_count=1)
    writer_id = new_writer_id(table)
    with SequencedWriter(table, writer_id) as writer:
        for number in range(7):
            writer.append(bucket_of(table), rows(number))
        writer.flush()
        network.server.kill()
        network.server.start()
        network.proxy.upstream_port = network.server.port
        # The same writer goes on, and another one sends again what it cannot know about.
        writer.append(bucket_of(table), rows(7))
        writer.flush()
    with SequencedWriter(table, writer_id, next_sequences={bucket_of(table): 4}) as writer:
        for number in range(4, 10):
            writer.append(bucket_of(table), rows(number))
        writer.flush()
    assert ids_in_log(table) == list(range(10))
    assert numbers(found(table, writer_id)) == list(range(10))


def test_a_writer_waits_for_memory_instead_of_holding_everything(network: Network) -> None:
    bytes_max = 256 * 1024
    with network.connect(**{"writer.buffer.memory-size": str(bytes_max), "writer.batch-size": "65536"}) as connection:
        path = network.create(bucket_count=1).table_path
        table = wait_for(connection.get_table(path))
        batch = rows(*range(100), name="").set_column(1, "name", noise(100, 300))
        with SequencedWriter(table, new_writer_id(table)) as writer:
            writer.append(bucket_of(table), batch)
            writer.flush()
            network.proxy.faults = Faults(stalls=True)
            progress: list[int] = []

            def write() -> None:
                for number in range(40):
                    writer.append(bucket_of(table), batch)
                    progress.append(number)

            thread = threading.Thread(target=write)
            thread.start()
            eventually(lambda: progress)
            time.sleep(0.5)
            assert thread.is_alive(), "it waits"
            assert 0 < len(progress) < 20
            network.proxy.faults = Faults()
            thread.join(120)
            assert not thread.is_alive()
            writer.flush()
            with pytest.raises(FlussError, match="exceeds total buffer memory"):
                writer.append(bucket_of(table), rows(1).set_column(1, "name", noise(1, 2 * bytes_max)))
        assert table.to_arrow(columns=["id"]).num_rows == 41 * 100


def test_a_flush_ends_when_nothing_is_stored_for_too_long(network: Network) -> None:
    table = network.create(bucket_count=1)
    with SequencedWriter(table, new_writer_id(table), idle_timeout_s=0.3) as writer:
        network.proxy.faults = Faults(stalls=True)
        writer.append(bucket_of(table), rows(1))
        with pytest.raises(RequestTimeoutError, match=r"none was for 0\.3 s"):
            writer.flush()
        network.proxy.faults = Faults()
        # What is too long for a test is not for a server that is busy.
        writer._idle_timeout_s = 300.0
        writer.flush()
    assert ids_in_log(table) == [1]


def test_a_closed_writer_says_so(network: Network) -> None:
    table = network.create()
    writer = SequencedWriter(table, new_writer_id(table))
    writer.close()
    writer.close()
    with pytest.raises(FlussError, match="closed"):
        writer.append(bucket_of(table), rows(1))


# Splitting


def test_rows_are_split_as_other_writers_split_them(network: Network) -> None:
    table = network.create(bucket_count=4, bucket_keys=["id"])
    batch = rows(*range(200))
    writer = table.new_append().create_writer()
    writer.write_arrow_batch(batch)
    wait_for(writer.flush())
    with SequencedWriter(table, new_writer_id(table)) as sequenced:
        split = TableSplitter.of(table).split(batch)
        for bucket, part, taken in split:
            assert part.column("id").to_pylist() == taken.tolist()
            sequenced.append(bucket, part)
        sequenced.flush()
    assert len(split) == 4
    scanner = wait_for(table.new_scan().create_log_scanner())
    scanner.subscribe_buckets(dict.fromkeys(range(4), 0))
    by_bucket: dict[int, list[int]] = {}
    while sum(map(len, by_bucket.values())) < 400:
        for bucket, records in scanner.poll(120_000).items():
            by_bucket.setdefault(bucket.bucket_id, []).extend(record.row["id"] for record in records)
    for ids in by_bucket.values():
        assert ids[: len(ids) // 2] == ids[len(ids) // 2 :]


@pytest.mark.parametrize("keys", [(), ("id", "name")])
def test_partitions_have_numbers_of_their_own_and_missing_ones_are_named(
    network: Network, keys: tuple[str, ...]
) -> None:
    table = network.create(keys=keys, bucket_count=2, partition_keys=["name"])
    admin = network.connection.get_admin()
    for name in ("a", "b"):
        wait_for(admin.create_partition(table.table_path, {"name": name}))
    writer_id = new_writer_id(table)
    both = pa.Table.from_batches([rows(*range(20), name="a"), rows(*range(20, 40), name="b")]).combine_chunks()
    (batch,) = both.to_batches()
    splitter = TableSplitter.of(table)
    with SequencedWriter(table, writer_id) as writer:
        write = writer.upsert if keys else writer.append
        for _ in range(2):
            for bucket, part, _ in splitter.split(batch):
                write(bucket, part)
        writer.flush()
        buckets = [bucket for bucket, _, _ in splitter.split(batch)]
        with pytest.raises(FlussError, match=r"partition 'c' of fluss.* does not exist; create it") as missing:
            splitter.split(rows(1, name="c"))
        assert missing.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
    assert len({bucket.partition_id for bucket in buckets}) == 2
    ids = sorted(table.to_arrow(columns=["id"])["id"].to_pylist())
    assert ids == (list(range(40)) if keys else sorted([*range(40), *range(40)]))
    if keys:
        # A bucket that somebody else has named, by a writer that has not seen its rows.
        with SequencedWriter(table, writer_id, next_sequences=dict.fromkeys(buckets, 2)) as writer:
            for bucket in buckets:
                writer.upsert(bucket, rows(500, name="a"))
            writer.flush()


# Tables with a primary key


@pytest.mark.parametrize("image", ["FULL", "WAL"])
def test_upserts_leave_one_batch_each_in_the_changelog_also_those_without_effect(network: Network, image: str) -> None:
    table = network.create(keys=("id",), bucket_count=1, properties={"table.changelog.image": image})
    writer_id = new_writer_id(table)
    bucket = bucket_of(table)
    with SequencedWriter(table, writer_id) as writer:
        writer.upsert(bucket, rows(1, 2, 3, name="a"))
        writer.upsert(bucket, rows(1, 2, 3, name="a"))
        writer.upsert(bucket, rows(2, 3, name="b"), np.array([False, True]))
        writer.upsert(bucket, rows(77), np.array([True]))
        writer.flush()
    batches = found(table, writer_id, ("id",))
    assert numbers(batches) == [0, 1, 2, 3]
    inserted, _, changed, nothing = batches
    assert inserted.rows is not None
    assert inserted.rows.column("id").to_pylist() == [1, 2, 3]
    assert (nothing.header.record_count, nothing.rows) == (0, None)
    assert changed.rows is not None
    assert changed.change_types is not None
    changes = list(zip(changed.rows.column("id").to_pylist(), changed.change_types.tolist(), strict=True))
    if image == "FULL":
        assert changes == [(2, ChangeType.UpdateBefore), (2, ChangeType.UpdateAfter), (3, ChangeType.Delete)]
    else:
        assert changes == [(2, ChangeType.UpdateAfter), (3, ChangeType.Delete)]
    assert table.to_arrow().sort_by("id").to_pydict() == {"id": [1, 2], "name": ["a", "b"]}


def test_an_aggregating_table_counts_every_batch_once_however_often_it_is_sent(network: Network) -> None:
    schema = fluss.Schema.builder().column("id", DataTypes.int()).column("total", DataTypes.bigint(), aggregation="sum")
    path = fluss.TablePath("fluss", f"sequenced_{next(NAMES)}")
    descriptor = fluss.TableDescriptor(
        schema.primary_key(["id"]).build(), bucket_count=1, properties={"table.merge-engine": "aggregation"}
    )
    wait_for(network.connection.get_admin().create_table(path, descriptor))
    table = wait_for(network.connection.get_table(path))
    writer_id = new_writer_id(table)
    types = pa.schema([("id", pa.int32()), ("total", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"id": [1, 2], "total": [1, 10]}, schema=types)
    for last in (4, 9):
        first = max(last - 5, 0)
        with SequencedWriter(table, writer_id, next_sequences={bucket_of(table): first}) as writer:
            for _ in range(first, last):
                writer.upsert(bucket_of(table), batch)
            writer.flush()
    assert table.to_arrow().sort_by("id").to_pydict() == {"id": [1, 2], "total": [9, 90]}


def test_partial_updates_write_their_columns_only(network: Network) -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
    table = network.create(schema, keys=("id",), bucket_count=1)
    with SequencedWriter(table, new_writer_id(table)) as writer:
        writer.upsert(bucket_of(table), pa.RecordBatch.from_pydict({"id": [1], "a": ["x"], "b": ["y"]}, schema=schema))
        writer.flush()
    with SequencedWriter(table, new_writer_id(table), target_columns=["id", "b"]) as writer:
        part = pa.schema([("id", pa.int64()), ("b", pa.string())])
        writer.upsert(bucket_of(table), pa.RecordBatch.from_pydict({"id": [1], "b": ["z"]}, schema=part))
        writer.flush()
    assert table.to_arrow().to_pylist() == [{"id": 1, "a": "x", "b": "z"}]
    with pytest.raises(FlussError, match="must contain the primary key"):
        SequencedWriter(table, 1, target_columns=["b"])


# Writers that count


def test_rows_are_counted_where_they_are_stored(network: Network) -> None:
    table = network.create(bucket_count=2, partition_keys=["name"], bucket_keys=["id"])
    for name in ("a", "b"):
        wait_for(network.connection.get_admin().create_partition(table.table_path, {"name": name}))
    writer = CountedWriter(table)
    for name in ("a", "b", "a"):
        writer.write(rows(*range(100), name=name))
    writer.flush()
    writer.flush()
    assert sorted({name for name, _ in writer.row_counts}) == ["a", "b"]
    assert sum(count for (name, _), count in writer.row_counts.items() if name == "a") == 200
    assert writer.row_counts.total() == table.to_arrow().num_rows == 300


def test_a_counting_writer_upserts_and_deletes_in_the_order_of_rows(network: Network) -> None:
    table = network.create(keys=("id",), bucket_count=2)
    writer = CountedWriter(table)
    writer.write(rows(1, 2, 3, name="a"))
    writer.write(rows(1, 1, 2, name="b"), np.array([True, False, True]))
    writer.flush()
    assert writer.row_counts.total() == 6
    assert table.to_arrow().sort_by("id").to_pydict() == {"id": [1, 3], "name": ["b", "a"]}
    with pytest.raises(FlussError, match="columns but the table has"):
        writer.write(rows(1).select(["id"]))


def test_a_counting_writer_raises_its_own_failures_and_waits_for_no_one_else(network: Network) -> None:
    with network.connect(**{"request-timeout": "2000"}) as connection:
        path = network.create().table_path
        gone = network.create().table_path
        lost, fine = (CountedWriter(wait_for(connection.get_table(each))) for each in (gone, path))
        wait_for(network.connection.get_admin().drop_table(gone))
        lost.write(rows(1))
        fine.write(rows(2))
        fine.flush()
        with pytest.raises(FlussError):
            lost.flush()
        assert (lost.row_counts.total(), fine.row_counts.total()) == (0, 1)


def test_a_counting_writer_gives_up_when_nothing_is_stored_for_too_long(network: Network) -> None:
    table = network.create()
    writer = CountedWriter(table, idle_timeout_s=0.3)
    network.proxy.faults = Faults(stalls=True)
    writer.write(rows(1))
    with pytest.raises(RequestTimeoutError, match=r"none were for 0\.3 s"):
        writer.flush()
    # Nor does it take rows without end.
    large = rows(*range(1000), name="x" * 12_000)
    writer.write(large)
    writer.write(large)
    with pytest.raises(RequestTimeoutError, match=r"none were for 0\.3 s"):
        writer.write(large)
    network.proxy.faults = Faults()
    writer._idle_timeout_s = 300.0
    writer.flush()
    assert writer.row_counts.total() == 2001
