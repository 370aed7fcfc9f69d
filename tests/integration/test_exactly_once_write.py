"""However often a task is tried, and wherever it fails, every row of it is written once.
Shown against a server process, with attempts that die at random, come back with their rows in another order, and write
when they should be dead; the table is compared with the rows."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fluss
from fluss import DataTypes
from fluss.client.bulk.sequenced_writer import SequencedWriter
from fluss.client.bulk.writer_batches import writer_batches
from fluss.client.fluss_table import FlussTable
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.spark.write.exactly_once import ExactlyOnceWrite, SinkState, TaskRecords
from fluss.spark.write.keyed_write import KeyedWrite
from fluss.spark.write.sink_rows import SinkRows
from fluss.spark.write.writer_record import WriterRecord
from fluss.testing.faultnet import Faults
from fluss.testing.waiting import eventually
from tests.integration.servers import Network, network_of

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("name", pa.string())])
SUMMED = pa.schema([("id", pa.int64()), ("day", pa.string()), ("total", pa.int64())])
DAYS = ("mon", "tue", "wed")


class DeadError(Exception):
    """An attempt ends here."""


# Many batches of few rows, so that attempts die between them.
CLIENT = {"writer.batch-size": "80"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network_of(tmp_path_factory.mktemp("once"), ROWS, seed=8, client=CLIENT) as network:
        network.partitions = [{"day": day} for day in DAYS]
        yield network


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A server that soon forgets writers that are silent."""
    options = ("server.writer-id.expiration-time=5s", "server.writer-id.expiration-check-interval=100ms")
    with network_of(tmp_path_factory.mktemp("forgetful"), ROWS, *options, seed=8, client=CLIENT) as network:
        yield network


@pytest.fixture
def network(running: Network) -> Iterator[Network]:
    running.proxy.faults = Faults()
    yield running
    running.proxy.faults = Faults()


def rows_of(numbers: list[int], copies: int = 1) -> list[dict[str, Any]]:
    """Rows of which every one occurs so many times."""
    return [{"id": n, "day": DAYS[n % 3], "name": f"row {n}"} for n in numbers for _ in range(copies)]


def batches_of(rows: list[dict[str, Any]], size: int, schema: pa.Schema = ROWS) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[start : start + size], schema=schema)


def dying(batches: Iterator[pa.RecordBatch], after: int) -> Iterator[pa.RecordBatch]:
    """The rows of an attempt that fails when it has seen so many batches."""
    for number, batch in enumerate(batches):
        if number == after:
            raise DeadError
        yield batch


@contextmanager
def dying_writer(after: int, *, flushes: bool = True, counts_all: bool = False) -> Iterator[None]:
    """Let attempts die when they have sent so many batches, which are stored by then, or still on their way.

    Batches without rows count if ``counts_all`` says so.
    """
    original, calls = SequencedWriter._send, count()

    def send(writer: SequencedWriter, bucket: TableBucket, records: Any) -> None:
        if (counts_all or records.record_count) and next(calls) == after:
            if flushes:
                writer.flush()
            raise DeadError
        original(writer, bucket, records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SequencedWriter, "_send", send)
        yield


def record_store(directory: Path, task: int = 0) -> TaskRecords:
    return SinkState.open(str(directory)).task("query", 3, task)


def found(table: FlussTable) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_arrow().to_pylist())


def expected(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows)


# Log tables


@pytest.mark.parametrize(
    "descriptor",
    [
        {"bucket_count": 1},
        {"bucket_count": 3},
        {"bucket_count": 3, "bucket_keys": ["id"]},
        {"bucket_count": 2, "partition_keys": ["day"]},
        {"bucket_count": 2, "properties": {"table.log.format": "INDEXED"}},
    ],
)
def test_rows_of_a_log_are_there_once_although_attempts_die_and_the_order_changes(
    network: Network, tmp_path: Path, descriptor: dict[str, Any]
) -> None:
    rng = random.Random(str(descriptor))
    table = network.create(**descriptor)
    others = rows_of(list(range(1000, 1040)))
    rows = rows_of(list(range(150)), copies=2)
    for attempt in range(6):
        # Another writer writes, too.
        writer = table.new_append().create_writer()
        for batch in batches_of(others[attempt::6], 50):
            writer.write_arrow_batch(batch)
        wait_for(writer.flush())
        rng.shuffle(rows)
        size = rng.choice([5, 20, 60])
        write = ExactlyOnceWrite(table, record_store(tmp_path))
        if attempt in (0, 2):
            with pytest.raises(DeadError):
                write.write(dying(batches_of(rows, size), rng.randrange(len(rows) // size)))
        elif attempt < 5:
            with dying_writer(3, flushes=attempt == 3), pytest.raises(DeadError):
                write.write(batches_of(rows, size))
    summary = write.write(batches_of(rows, size))
    assert found(table) == expected(rows + others)
    assert summary.rows == sum(summary.rows_by_bucket.values()) == len(rows)
    assert 0 < summary.rows_found < len(rows)
    # Once more, when everything is there.
    again = ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 50))
    assert again.rows_found == again.rows == len(rows)
    assert found(table) == expected(rows + others)


@pytest.mark.parametrize("keys", [(), ("id", "day")])
def test_cut_connections_kill_attempts_and_nothing_is_lost_or_doubled(
    network: Network, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    table = network.create(keys=keys, bucket_count=2)
    rows = rows_of(list(range(200)), copies=1 if keys else 2)
    rng = random.Random(4)
    for _ in range(4):
        network.proxy.faults = Faults(cut_after_bytes=(1, 20_000), delay_s=(0.0, 0.002))
        network.proxy.cut_all()
        rng.shuffle(rows)
        with pytest.raises(DeadError):
            ExactlyOnceWrite(table, record_store(tmp_path)).write(dying(batches_of(rows, 20), rng.randrange(3, 9)))
        network.proxy.faults = Faults()
    ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 20))
    assert found(table) == expected(rows)


def test_an_attempt_that_was_believed_dead_cannot_write_behind_the_next_one(network: Network, tmp_path: Path) -> None:
    table = network.create(bucket_count=1)
    rows = rows_of(list(range(60)))
    alive = ExactlyOnceWrite(table, record_store(tmp_path))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches_of(rows[:30], 10)
        # The next attempt begins, and ends, while this one waits for more rows.
        assert ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows[::-1], 7)).rows == 60
        yield from batches_of(rows[30:], 10)

    with pytest.raises(FlussError) as late:
        alive.write(slow())
    assert late.value.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
    assert found(table) == expected(rows)


def test_requests_that_are_still_on_their_way_do_not_come_behind_the_next_attempt(
    network: Network, tmp_path: Path
) -> None:
    table = network.create(bucket_count=1)
    rows = rows_of(list(range(40)))
    records = record_store(tmp_path)
    record = WriterRecord.begin(table)
    assert records.put(record)
    bucket = TableBucket(record.table_id, 0)
    with SequencedWriter(table, record.writer_id) as dead:
        for batch in batches_of(rows[:8], 2):
            dead.append(bucket, batch)
        dead.flush()
    ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows[::-1], 11))
    # What the dead attempt had sent arrives now: a number that is used, and one that would have been the next.
    for late in (4, 5, 8):
        with SequencedWriter(table, record.writer_id, next_sequences={bucket: late}) as dead:
            dead.append(bucket, pa.RecordBatch.from_pylist(rows[8:10], schema=ROWS))
            with pytest.raises(FlussError):
                dead.flush()
    assert found(table) == expected(rows)


@pytest.mark.parametrize("keys", [(), ("id", "day")])
def test_an_input_that_is_not_the_same_again_is_refused_and_nothing_is_written(
    network: Network, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    table = network.create(keys=keys, bucket_count=1)
    rows = rows_of(list(range(50)))
    with dying_writer(3), pytest.raises(DeadError):
        ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 10))
    before = found(table)
    assert 0 < sum(before.values()) < 50
    for others in (rows_of(list(range(100, 150))), rows[:3], []):
        with pytest.raises(FlussError, match="does not give the same rows when it is repeated"):
            ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(others, 10))
    assert found(table) == before


def test_nothing_is_kept_for_a_task_without_rows(network: Network, tmp_path: Path) -> None:
    for table in (network.create(), network.create(keys=("id",))):
        assert ExactlyOnceWrite(table, record_store(tmp_path)).write([]).rows == 0
        empty = pa.RecordBatch.from_pylist([], schema=ROWS)
        if not table.has_primary_key():
            assert ExactlyOnceWrite(table, record_store(tmp_path)).write([empty]).rows == 0
    assert list(tmp_path.rglob("*.json")) == []


def test_rows_that_belong_to_no_partition_are_refused(network: Network, tmp_path: Path) -> None:
    table = network.create(bucket_count=1, partition_keys=["day"])
    with pytest.raises(FlussError, match="Partition value shouldn't be null"):
        ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of([{"id": 1, "day": None, "name": "x"}], 1))


def test_a_table_that_was_created_again_is_refused(network: Network, tmp_path: Path) -> None:
    first, second = network.create(bucket_count=1), network.create(bucket_count=1)
    ExactlyOnceWrite(first, record_store(tmp_path)).write(batches_of(rows_of([1]), 1))
    with pytest.raises(FlussError, match="dropped and created again"):
        ExactlyOnceWrite(second, record_store(tmp_path)).write(batches_of(rows_of([1]), 1))


def test_partitions_that_come_late_or_vanish_are_no_trouble(network: Network, tmp_path: Path) -> None:
    table = network.create(bucket_count=1, partition_keys=["day"])
    rows = sorted(rows_of(list(range(30))), key=lambda row: row["day"])
    with pytest.raises(DeadError):
        ExactlyOnceWrite(table, record_store(tmp_path)).write(dying(batches_of(rows, 4), 6))
    assert len(list(tmp_path.rglob("*.json"))) > 1, "the record has been extended"
    summary = ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 9))
    assert summary.rows_by_bucket == {f"{day}:0": 10 for day in DAYS}
    assert found(table) == expected(rows)
    wait_for(network.connection.get_admin().drop_partition(table.table_path, {"day": "mon"}))
    rest = [row for row in rows if row["day"] != "mon"]
    assert ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rest, 9)).rows_found == 20
    with pytest.raises(FlussError, match="may have been dropped"):
        ExactlyOnceWrite(table, record_store(tmp_path, 1)).write(batches_of(rows, 9))


def test_an_attempt_gives_up_if_another_one_has_begun_a_partition_since_it_read_back_what_there_is(
    network: Network, tmp_path: Path
) -> None:
    table = network.create(bucket_count=1, partition_keys=["day"])
    monday, tuesday = ([row for row in rows_of(list(range(60))) if row["day"] == day] for day in DAYS[:2])
    rows = monday + tuesday
    ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(monday, 20))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches_of(monday, 20)
        # By now this attempt knows what was written. The next one begins Tuesday, from its end, and dies.
        with dying_writer(1), pytest.raises(DeadError):
            ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(monday + tuesday[::-1], 5))
        yield from batches_of(tuesday, 20)

    with pytest.raises(FlussError, match="at the same time"):
        ExactlyOnceWrite(table, record_store(tmp_path)).write(slow())
    ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 7))
    assert found(table) == expected(rows)


# Tables with a primary key


@pytest.mark.parametrize("partition_keys", [[], ["day"]])
def test_sums_are_exact_although_attempts_die_and_the_order_changes(
    network: Network, tmp_path: Path, partition_keys: list[str]
) -> None:
    rng = random.Random(3)
    builder = fluss.Schema.builder().column("id", DataTypes.bigint()).column("day", DataTypes.string())
    builder = builder.column("total", DataTypes.bigint(), aggregation="sum").primary_key(["id", "day"])
    properties = {"table.merge-engine": "aggregation"}
    descriptor: dict[str, Any] = {"partition_keys": partition_keys} if partition_keys else {}
    table = network.create(builder.build(), bucket_count=2, properties=properties, **descriptor)
    rows: list[dict[str, Any]] = [{"id": n % 37, "day": DAYS[n % 3], "total": n} for n in range(300)]
    sums: Counter[tuple[int, str]] = Counter()
    for row in rows:
        sums[row["id"], row["day"]] += row["total"]
    found_rows = []
    for attempt in range(5):
        rng.shuffle(rows)
        write = ExactlyOnceWrite(table, record_store(tmp_path))
        if attempt < 4:
            with dying_writer(2 + 2 * attempt, flushes=attempt % 2 == 0), pytest.raises(DeadError):
                write.write(batches_of(rows, 25, SUMMED))
        else:
            found_rows.append(write.write(batches_of(rows, 25, SUMMED)).rows_found)
    assert {(row["id"], row["day"]): row["total"] for row in table.to_arrow().to_pylist()} == sums
    assert 0 < found_rows[-1] < 300
    assert ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 25, SUMMED)).rows_found == 300
    assert {(row["id"], row["day"]): row["total"] for row in table.to_arrow().to_pylist()} == sums


@contextmanager
def writing_only(counts: dict[int, int]) -> Iterator[None]:
    """Let attempts die when they have written so many batches to each bucket."""
    send, flush, left = SequencedWriter._send, SequencedWriter.flush, Counter(counts)

    def send_some(writer: SequencedWriter, bucket: TableBucket, records: Any) -> None:
        left[bucket.bucket_id] -= 1
        if left[bucket.bucket_id] >= 0:
            send(writer, bucket, records)

    def flush_and_die(writer: SequencedWriter) -> None:
        flush(writer)
        raise DeadError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SequencedWriter, "_send", send_some)
        patch.setattr(SequencedWriter, "flush", flush_and_die)
        yield


def test_an_attempt_that_goes_on_in_one_bucket_is_not_taken_for_a_forgotten_writer(
    network: Network, tmp_path: Path
) -> None:
    builder = fluss.Schema.builder().column("id", DataTypes.bigint()).column("day", DataTypes.string())
    builder = builder.column("total", DataTypes.bigint(), aggregation="sum").primary_key(["id"])
    table = network.create(builder.build(), bucket_count=2, properties={"table.merge-engine": "aggregation"})
    rows = [{"id": n, "day": "mon", "total": n} for n in range(300)]

    def write() -> None:
        ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 25, SUMMED))

    with writing_only({0: 1, 1: 1}), pytest.raises(DeadError):
        write()
    check_same = KeyedWrite._check_same

    def check_slowly(self: KeyedWrite, *arguments: Any) -> None:
        patch.setattr(KeyedWrite, "_check_same", check_same)
        # This attempt has read back what there is. The one before it is not dead, but only slow in one bucket.
        with writing_only({0: 100}), pytest.raises(DeadError):
            write()
        check_same(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyedWrite, "_check_same", check_slowly)
        # The other bucket has no leader for now.
        with writing_only({0: 1000}), pytest.raises(FlussError) as late:
            write()
    assert late.value.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
    record = record_store(tmp_path).load()
    assert record is not None
    assert len(record.writer_ids) == 1
    write()
    assert {row["id"]: row["total"] for row in table.to_arrow().to_pylist()} == {n: n for n in range(300)}


@pytest.mark.parametrize("image", ["FULL", "WAL"])
def test_the_order_of_changes_of_a_key_is_kept_and_deletes_delete(network: Network, tmp_path: Path, image: str) -> None:
    table = network.create(keys=("id",), bucket_count=2, properties={"table.changelog.image": image})
    changes: list[SinkRows] = []
    last: dict[int, str | None] = {}
    rng = random.Random(1)
    for step in range(20):
        rows, deletes = [], []
        for _ in range(15):
            number, is_delete = rng.randrange(30), rng.random() < 0.3
            rows.append({"id": number, "day": "x", "name": None if is_delete else f"{step}"})
            deletes.append(is_delete)
            last[number] = None if is_delete else f"{step}"
        changes.append(SinkRows(pa.RecordBatch.from_pylist(rows, schema=ROWS), np.array(deletes)))
    with dying_writer(9), pytest.raises(DeadError):
        ExactlyOnceWrite(table, record_store(tmp_path)).write_rows(changes)
    ExactlyOnceWrite(table, record_store(tmp_path)).write_rows(changes)
    rows_now = {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}
    assert rows_now == {number: name for number, name in last.items() if name is not None}


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_a_writer_that_the_server_has_forgotten_is_replaced(
    forgetful: Network, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    table = forgetful.create(keys=keys, bucket_count=1)
    rows = rows_of(list(range(60)))
    with dying_writer(4), pytest.raises(DeadError):
        ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 5))
    wait_until_forgotten(table, record_store(tmp_path))
    summary = ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 20))
    assert 0 < summary.rows_found < 60
    assert found(table) == expected(rows)
    record = record_store(tmp_path).load()
    assert record is not None
    assert len(record.writer_ids) == 2
    # And the next attempt finds the batches of both.
    assert ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 20)).rows_found == 60
    assert found(table) == expected(rows)


def test_a_forgotten_writer_is_replaced_although_other_buckets_never_knew_it(
    forgetful: Network, tmp_path: Path
) -> None:
    table = forgetful.create(bucket_count=3)
    rows = rows_of(list(range(60)))
    with dying_writer(1), pytest.raises(DeadError):
        ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 5))
    record = record_store(tmp_path).load()
    assert record is not None
    starts = {TableBucket(record.table_id, number): 0 for number in range(3)}
    [written] = writer_batches(table, record.writer_ids, starts)
    wait_until_forgotten(table, record_store(tmp_path), written.bucket.bucket_id)
    # The two other buckets take what is sent under its id as the first batches of a new writer.
    ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 20))
    assert found(table) == expected(rows)


def wait_until_forgotten(table: FlussTable, records: TaskRecords, bucket_id: int = 0) -> None:
    """Wait until a number that was used long ago is not refused as one that is used, but as one that is unknown."""
    record = records.load()
    assert record is not None
    bucket = TableBucket(record.table_id, bucket_id)

    def is_forgotten() -> bool:
        with SequencedWriter(table, record.writer_id, next_sequences={bucket: 1000}) as writer:
            if table.has_primary_key():
                writer.upsert(bucket, pa.RecordBatch.from_pylist(rows_of([1]), schema=ROWS))
            else:
                writer.append_nothing(bucket)
            with pytest.raises(FlussError) as refused:
                writer.flush()
        return "written nothing" in refused.value.message

    eventually(is_forgotten)


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_a_column_that_was_added_meanwhile_does_not_matter(
    network: Network, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    table = network.create(keys=keys, bucket_count=1)
    rows = rows_of(list(range(60)))
    with dying_writer(3), pytest.raises(DeadError):
        ExactlyOnceWrite(table, record_store(tmp_path)).write(batches_of(rows, 5))
    new = pa.field("added", pa.int32())
    wait_for(network.connection.get_admin().alter_table(table.table_path, add_columns=[new]))
    wider = wait_for(network.connection.get_table(table.table_path))
    rows = [{**row, "added": None} for row in rows]
    summary = ExactlyOnceWrite(wider, record_store(tmp_path)).write(batches_of(rows, 20, ROWS.append(new)))
    assert 0 < summary.rows_found < 60
    assert found(wider) == expected(rows)


# Given records


def test_a_record_can_be_made_on_the_driver_and_given_to_every_attempt(network: Network) -> None:
    table = network.create(bucket_count=2)
    rows = rows_of(list(range(80)))
    record = WriterRecord.begin(table)
    assert WriterRecord.from_json(record.to_json()) == record
    with pytest.raises(DeadError):
        ExactlyOnceWrite(table, record, is_fresh=True).write(dying(batches_of(rows, 10), 5))
    ExactlyOnceWrite(table, record).write(batches_of(rows, 16))
    assert found(table) == expected(rows)


@pytest.mark.parametrize("kind", [{"bucket_count": 1}, {"bucket_count": 5}])
def test_partitions_that_were_created_since_the_record_was_made_are_read_back(
    network: Network, kind: dict[str, Any]
) -> None:
    table = network.create(partition_keys=["day"], **kind)
    rows = sorted(rows_of(list(range(90))), key=lambda row: row["day"])
    # The driver does not know of any partition yet.
    record = WriterRecord.begin(table, ())
    with dying_writer(5), pytest.raises(DeadError):
        ExactlyOnceWrite(table, record, is_fresh=True).write(batches_of(rows, 10))
    summary = ExactlyOnceWrite(table, record).write(batches_of(rows, 7))
    assert found(table) == expected(rows)
    assert summary.rows_found == 50


# Random lives


class Life:
    """One task of a random table: attempts that die, attempts within attempts, and connections that are cut."""

    def __init__(self, network: Network, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self._network = network
        self._directory = directory
        self.kind = self.rng.choice(["log", "buckets", "partitions", "sums", "sums in partitions"])
        self.table = self._create()
        self.schema = SUMMED if self.kind.startswith("sums") else ROWS
        count, copies = self.rng.randrange(1, 150), self.rng.choice([1, 1, 3])
        self.rows = rows_of(list(range(count)), copies)
        if self.schema is SUMMED:
            self.rows = [{"id": row["id"] % 40, "day": row["day"], "total": row["id"]} for row in self.rows]

    def _create(self) -> Any:
        buckets = self.rng.choice([1, 2, 4])
        partitions: dict[str, Any] = {"partition_keys": ["day"]} if "partitions" in self.kind else {}
        if self.kind.startswith("sums"):
            builder = fluss.Schema.builder().column("id", DataTypes.bigint()).column("day", DataTypes.string())
            builder = builder.column("total", DataTypes.bigint(), aggregation="sum").primary_key(["id", "day"])
            properties = {"table.merge-engine": "aggregation"}
            return self._network.create(builder.build(), bucket_count=buckets, properties=properties, **partitions)
        keys: dict[str, Any] = {"bucket_keys": ["id"]} if self.kind == "buckets" else {}
        return self._network.create(bucket_count=buckets, **keys, **partitions)

    def attempt(self, depth: int = 0) -> None:
        """Try once. Whatever goes wrong, the next attempt must cope with it."""
        rows = self.rng.sample(self.rows, len(self.rows))
        size = self.rng.randrange(1, len(rows) + 5)
        stop = self.rng.randrange(len(rows) // size + 2)
        way = self.rng.choice(["rows end", "writer dies", "writer dies", "others begin", "goes well"])
        write = ExactlyOnceWrite(self.table, record_store(self._directory))
        batches = batches_of(rows, size, self.schema)
        if way == "rows end":
            batches = dying(batches, stop)
        elif way == "others begin" and depth < 2:
            batches = self._with_others(batches, stop, depth)
        elif way == "writer dies":
            deaths = dying_writer(self.rng.randrange(12), flushes=self.rng.random() < 0.5, counts_all=depth % 2 == 0)
            with deaths, suppress(DeadError):
                write.write(batches)
            return
        if self.rng.random() < 0.2:
            self._network.proxy.cut_all()
        with suppress(DeadError, FlussError):
            write.write(batches)

    def _with_others(self, batches: Iterator[pa.RecordBatch], stop: int, depth: int) -> Iterator[pa.RecordBatch]:
        """Let other attempts run while this one is in the middle of its rows."""
        for number, batch in enumerate(batches):
            if number == stop:
                for _ in range(self.rng.randrange(1, 3)):
                    self.attempt(depth + 1)
            yield batch

    def end(self) -> None:
        """Try without anything going wrong, and look what the table has."""
        for _ in range(2):
            rows = self.rng.sample(self.rows, len(self.rows))
            summary = ExactlyOnceWrite(self.table, record_store(self._directory)).write(
                batches_of(rows, 40, self.schema)
            )
            assert summary.rows == summary.rows_by_bucket.total() == len(rows)
        assert summary.rows_found == len(rows)
        if self.schema is SUMMED:
            sums: Counter[tuple[int, str]] = Counter()
            for row in self.rows:
                sums[row["id"], row["day"]] += row["total"]
            assert {(row["id"], row["day"]): row["total"] for row in self.table.to_arrow().to_pylist()} == sums
        else:
            assert found(self.table) == expected(self.rows)


def live(network: Network, directory: Path, seed: int) -> None:
    life = Life(network, directory / str(seed), seed)
    for _ in range(life.rng.randrange(1, 7)):
        life.attempt()
    try:
        life.end()
    except BaseException:
        print(f"seed {seed}: {life.kind}")
        raise


def test_random_lives_end_with_every_row_once(network: Network, tmp_path: Path) -> None:
    for seed in range(8):
        live(network, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_lives_end_with_every_row_once(network: Network, tmp_path: Path) -> None:
    first = random.randrange(10**9)
    for seed in range(first, first + int(os.environ.get("LIVES", "300"))):
        live(network, tmp_path, seed)
