"""Consumers go on where the last one of their name has stopped, share buckets, and are told when they have lost them.
Shown with the real server: each test has a table of positions of its own, so that it may be dropped."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded
from fluss.client.consume.group import BucketKey
from fluss.client.kernel.runtime import run_blocking, wait_for
from fluss.client.lookup.keys_and_rows import LookupKeys
from fluss.errors import ConsumerFencedError, ErrorCode, FlussError
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually
from tests.integration.keyed_tables import Tables

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
POLL_MS = 300
# Short enough to wait for, and long enough for a busy machine.
LEASE_MS = 1000


class Desk:
    """A connection with a table of positions of its own, and one log table."""

    def __init__(self, connection: blocking.FlussConnection, table: blocking.FlussTable, config: fluss.Config) -> None:
        self.connection = connection
        self.table = table
        self.config = config
        self.count = 0

    def append(self, count: int, day: str = "mon") -> None:
        with self.table.new_append().create_writer() as writer:
            for number in range(self.count, self.count + count):
                # In a batch of its own each, so that they are in all buckets.
                writer.append([number, day])
                if count < 100:
                    writer.flush()
        self.count += count

    @property
    def rows_path(self) -> fluss.TablePath:
        return fluss.TablePath(*self.config.consumer_table.split("."))


@contextmanager
def desk_of(bootstrap_servers: str, *, partitioned: bool = False, **options: Any) -> Iterator[Desk]:
    name = f"consumed_{time.monotonic_ns()}"
    config = fluss.Config({"bootstrap.servers": bootstrap_servers})
    config.consumer_table = f"fluss.of_{name}"
    config.consumer_lease_ms = LEASE_MS
    config.writer_bucket_no_key_assigner = "round_robin"
    for key, value in options.items():
        setattr(config, key, value)
    path = fluss.TablePath("fluss", name)
    with blocking.FlussConnection.create(config) as connection:
        descriptor = fluss.TableDescriptor(
            fluss.Schema(SCHEMA), bucket_count=2, partition_keys=["day"] if partitioned else None
        )
        connection.get_admin().create_table(path, descriptor)
        if partitioned:
            connection.get_admin().create_partition(path, {"day": "mon"})
        yield Desk(connection, connection.get_table(path), config)


@pytest.fixture
def desk(server: embedded.EmbeddedServer) -> Iterator[Desk]:
    with desk_of(server.bootstrap_servers) as made:
        yield made


def read(consumer: fluss.Consumer, count: int) -> list[int]:
    """Poll until there are so many records, and return their ids in order."""
    ids: list[int] = []

    def polled() -> bool:
        ids.extend(record.row["id"] for record in consumer.poll(POLL_MS))
        return len(ids) >= count

    eventually(polled, f"reading {count} records")
    return sorted(ids)


def nothing_left(consumer: fluss.Consumer) -> bool:
    return consumer.poll(POLL_MS).is_empty() and not any(consumer.lag().values())


# Positions


def test_a_consumer_goes_on_where_the_last_one_of_its_name_has_stopped(desk: Desk) -> None:
    desk.append(10)
    with desk.table.consumer("billing") as consumer:
        assert read(consumer, 10) == list(range(10))
    desk.append(5)
    with blocking.FlussConnection.create(desk.config) as other:
        table = other.get_table(desk.table.table_path)
        with table.consumer("billing") as consumer:
            assert read(consumer, 5) == list(range(10, 15))
            assert nothing_left(consumer)
        with table.consumer("another") as consumer:
            assert read(consumer, 15) == list(range(15))


async def test_the_same_with_coroutines(desk: Desk) -> None:
    desk.append(10)
    async with await aio.FlussConnection.create(desk.config) as connection:
        table = await connection.get_table(desk.table.table_path)
        ids: list[int] = []
        async with table.consumer("billing") as consumer:
            assert consumer.name == "billing"
            async for record in consumer:
                ids.append(record.row["id"])
                if len(ids) == 6:
                    break
        # The loop was left while it was at the sixth record.
        async with table.consumer("billing") as consumer:
            while len(ids) < 11:
                ids += [record.row["id"] for record in await consumer.poll(POLL_MS)]
            assert sum((await consumer.lag()).values()) == 0
            await consumer.commit()
        assert Counter(ids) == Counter([*range(10), ids[5]])
        (info,) = await table.consumers()
        assert (info.name, info.members, info.lag) == ("billing", (), 0)


async def test_the_plain_module_awaits_and_blocks(desk: Desk) -> None:
    desk.append(4)
    async with await fluss.FlussConnection.create(desk.config) as connection:
        table = await connection.get_table(desk.table.table_path)
        async with table.consumer("billing", columns=["id"], filter="id >= 2") as consumer:
            polled = [record.row for record in await consumer.poll_async(POLL_MS)]
            while len(polled) < 2:
                polled += [record.row for record in consumer.poll(POLL_MS)]
            assert sorted(row["id"] for row in polled) == [2, 3]
            # What the filter has left out is behind the consumer, too.
            while any((await consumer.lag_async()).values()):
                await consumer.poll_async(POLL_MS)
        assert [info.lag for info in await table.consumers()] == [0]
        await table.drop_consumer("billing")
        assert await table.consumers() == []


def test_without_auto_commit_only_commits_move_the_position(desk: Desk) -> None:
    desk.append(6)
    with desk.table.consumer("billing", auto_commit=False) as consumer:
        read(consumer, 6)
    with desk.table.consumer("billing", auto_commit=False) as consumer:
        assert read(consumer, 6) == list(range(6))
        assert consumer.committed() == {}
        consumer.commit()
        assert consumer.committed() == consumer.positions()
        assert sum(consumer.committed().values()) == 6
    with desk.table.consumer("billing", auto_commit=False) as consumer:
        assert consumer.poll(POLL_MS).is_empty()
        (bucket, position) = next(iter(consumer.positions().items()))
        consumer.commit({bucket: position - 1})
    with desk.table.consumer("billing") as consumer:
        assert len(read(consumer, 1)) == 1


def test_what_was_being_processed_when_an_error_came_is_not_committed(desk: Desk) -> None:
    desk.append(4)

    def process() -> None:
        with desk.table.consumer("billing") as consumer:
            read(consumer, 4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        process()
    with desk.table.consumer("billing") as consumer:
        assert read(consumer, 4) == list(range(4))


def test_polls_commit_at_intervals(server: embedded.EmbeddedServer) -> None:
    # consumer.commit-interval-ms
    for interval_ms, is_committed in ((0, True), (3_600_000, False)):
        with desk_of(server.bootstrap_servers, consumer_commit_interval_ms=interval_ms) as desk:
            desk.append(4)
            consumer = desk.table.consumer("billing")
            read(consumer, 4)

            def committed(consumer: fluss.Consumer = consumer) -> int:
                consumer.poll(0)
                return sum(consumer.committed().values())

            if is_committed:
                eventually(lambda: committed() == 4)
            else:
                assert committed() == 0
            consumer.close()


def test_a_commit_of_the_program_replaces_one_that_is_under_way(server: embedded.EmbeddedServer) -> None:
    with desk_of(server.bootstrap_servers, consumer_commit_interval_ms=0) as desk:
        desk.append(6)
        with desk.table.consumer("billing") as consumer:
            read(consumer, 6)

            def is_committed() -> bool:
                consumer.poll(0)
                return consumer.committed() == consumer.positions()

            def stored() -> dict[fluss.TableBucket, int | None]:
                (info,) = desk.table.consumers()
                return {each.bucket: each.position for each in info.buckets}

            eventually(is_committed)
            before = consumer.committed()
            desk.append(1)
            read(consumer, 1)
            # This poll begins to commit the seventh record. The program is not done with it.
            consumer.poll(0)
            assert consumer._stored._commit is not None
            consumer.commit(before)
            assert consumer.committed() == stored() == before
            # What is committed by the next polls is stored.
            eventually(is_committed)
            assert stored() == consumer.positions() != before


def test_seeking_moves_the_next_poll(desk: Desk) -> None:
    desk.append(6)
    with desk.table.consumer("billing") as consumer:
        read(consumer, 6)
        for bucket in consumer.positions():
            consumer.seek(bucket, fluss.EARLIEST_OFFSET)
        assert read(consumer, 6) == list(range(6))
        with pytest.raises(FlussError, match="not read by this member"):
            consumer.seek(fluss.TableBucket(desk.table.get_table_info().table_id, 9), 0)
        with pytest.raises(FlussError, match="EARLIEST_OFFSET or not negative"):
            consumer.seek(bucket, -7)


def test_a_name_that_is_new_begins_where_it_is_told(desk: Desk) -> None:
    desk.append(4)
    with desk.table.consumer("latest", start="latest") as consumer:
        assert consumer.poll(POLL_MS).is_empty()
    # The first position is kept although nothing was read.
    desk.append(2)
    with desk.table.consumer("latest", start="earliest") as consumer:
        assert read(consumer, 2) == [4, 5]
    with desk.table.consumer("since", start=fluss.OffsetSpec.timestamp(0)) as consumer:
        assert read(consumer, 6) == list(range(6))


def test_arrow_data_and_changelogs(desk: Desk, tables: Tables) -> None:
    desk.append(4)
    with desk.table.consumer("arrow") as consumer:
        polled = consumer.poll_arrow(POLL_MS)
        while polled.num_rows < 4:
            polled = pa.concat_tables([polled, consumer.poll_arrow(POLL_MS)])
        assert sorted(polled["id"].to_pylist()) == [0, 1, 2, 3]
        assert consumer.poll_arrow(0).schema == polled.schema
        assert consumer.poll_record_batch(0) == []
        with pytest.raises(FlussError, match="record-based"):
            consumer.poll(0)
    keyed = tables.create(bucket_count=1)
    writer = keyed.new_upsert().create_writer()
    writer.upsert([1, "a"])
    writer.upsert([1, "b"])
    wait_for(writer.flush())
    with keyed.consumer("changes") as consumer:
        changes = consumer.poll_arrow(POLL_MS)
        while changes.num_rows < 3:
            changes = pa.concat_tables([changes, consumer.poll_arrow(POLL_MS)])
        assert changes["_change_type"].to_pylist() == ["insert", "update_before", "update_after"]


def test_positions_whose_records_are_gone(desk: Desk) -> None:
    desk.append(4)
    with desk.table.consumer("billing", auto_commit=False) as consumer:
        read(consumer, 4)
        consumer.commit(dict.fromkeys(consumer.positions(), 1000))
    with desk.table.consumer("billing", auto_commit=False) as consumer:
        with pytest.raises(FlussError, match=r"seek\(\), or always with if_lost") as raised:
            eventually(lambda: len(consumer.poll(POLL_MS)))
        assert raised.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    with desk.table.consumer("billing", if_lost="earliest") as consumer:
        assert read(consumer, 4) == list(range(4))


def test_what_makes_no_sense_is_refused(desk: Desk) -> None:
    with pytest.raises(FlussError, match="needs a name"):
        desk.table.consumer("")
    with pytest.raises(TypeError, match="must be str"):
        desk.table.consumer(3)
    with pytest.raises(FlussError, match="if_lost must be"):
        desk.table.consumer("a", if_lost="ignore")
    consumer = desk.table.consumer("a")
    consumer.commit()
    with pytest.raises(FlussError, match="non-negative"):
        consumer.poll(-1)
    started = threading.Event()
    polling = threading.Thread(target=lambda: (started.set(), consumer.poll(500)))
    polling.start()
    started.wait()
    eventually(lambda: consumer._turn.locked())
    with pytest.raises(FlussError, match="one consumer for each"):
        consumer.poll(0)
    polling.join()
    consumer.close()
    consumer.close()
    with pytest.raises(FlussError, match="closed"):
        consumer.poll(0)


def test_a_table_for_positions_that_is_another_one_is_refused(server: embedded.EmbeddedServer) -> None:
    # consumer.table
    with desk_of(server.bootstrap_servers) as desk:
        for name, message in (("nowhere", "database.table"), (str(desk.table.table_path), "another name")):
            config = desk.config.copy()
            config.consumer_table = name
            with (
                blocking.FlussConnection.create(config) as connection,
                pytest.raises(FlussError, match=message),
            ):
                connection.get_table(desk.table.table_path).consumer("a").poll(0)


# Groups


@pytest.mark.parametrize("detail", ["no JSON", "[" * 10_000, "{}", "[]", None])
def test_rows_that_no_consumer_has_written_are_named(desk: Desk, detail: str | None) -> None:
    desk.append(2)
    with desk.table.consumer("billing") as consumer, desk.table.consumer("other"):
        assert read(consumer, 2) == [0, 1]
    key = {"table_name": str(desk.table.table_path), "consumer": "billing", "entry": "group"}
    with desk.connection.get_table(desk.rows_path).new_upsert().create_writer() as writer:
        writer.upsert({**key, "detail": detail})
    for use in (desk.table.consumers, lambda: desk.table.consumer("billing").poll(POLL_MS)):
        with pytest.raises(FlussError, match=r"row 'group' of consumer 'billing' .* not written by a consumer"):
            use()
    with desk.table.consumer("other") as other:
        assert read(other, 2) == [0, 1]
    desk.table.drop_consumer("billing", force=True)
    with desk.table.consumer("billing") as consumer:
        assert read(consumer, 2) == [0, 1]


def test_members_share_buckets_and_orderly_changes_repeat_nothing(desk: Desk) -> None:
    desk.append(20)
    seen: list[int] = []
    first, second = desk.table.consumer("billing"), desk.table.consumer("billing")

    def poll_both(until: Callable[[], bool]) -> None:
        def step() -> bool:
            for consumer in (first, second):
                seen.extend(record.row["id"] for record in consumer.poll(20))
            return until()

        eventually(step)

    seen += read(first, 20)
    assert len(first.epochs()) == 2
    poll_both(lambda: len(first.epochs()) == len(second.epochs()) == 1)
    assert not first.epochs().keys() & second.epochs().keys()
    (info,) = desk.table.consumers()
    assert len(info.members) == 2
    assert {each.member for each in info.buckets} == set(info.members)
    desk.append(10)
    poll_both(lambda: len(seen) >= 30)
    with pytest.raises(FlussError, match="has members"):
        desk.table.drop_consumer("billing")
    old_epochs = {**first.epochs(), **second.epochs()}
    first.close()
    desk.append(10)
    seen += read(second, 10)
    assert len(second.epochs()) == 2
    assert all(epoch >= old_epochs[bucket] for bucket, epoch in second.epochs().items())
    second.close()
    assert sorted(seen) == list(range(40)), "everything came once"


def test_callbacks_are_told_of_buckets_that_come_and_go(desk: Desk) -> None:
    desk.append(6)
    given: list[tuple[fluss.TableBucket, int]] = []
    taken: list[fluss.TableBucket] = []
    first = desk.table.consumer(
        "billing",
        auto_commit=False,
        on_assign=lambda bucket, epoch: given.append((bucket, epoch)),
        on_revoke=lambda buckets: (taken.extend(buckets), first.commit())[0],
    )
    read(first, 6)
    assert dict(given) == first.epochs()
    second = desk.table.consumer("billing", on_assign=lambda bucket, epoch: 1)
    seen: list[int] = []

    def moved() -> int:
        first.poll(20)
        seen.extend(record.offset for record in second.poll(20))
        return len(seen)

    eventually(moved)
    assert len(taken) == 1
    assert list(second.epochs()) == taken
    # Its callback begins at the second record, whatever was committed.
    assert min(seen) == 1
    first.close()
    second.close()


def test_a_consumer_that_is_not_polled_loses_its_buckets_and_is_told(server: embedded.EmbeddedServer) -> None:
    # consumer.max-poll-interval-ms
    with desk_of(server.bootstrap_servers) as desk:
        desk.append(4)
        config = desk.config.copy()
        config.consumer_max_poll_interval_ms = 500
        with (
            blocking.FlussConnection.create(config) as hurried,
            hurried.get_table(desk.table.table_path).consumer("billing", auto_commit=False) as idle,
            desk.table.consumer("billing") as busy,
        ):

            def lose() -> None:
                read(idle, 4)
                assert read(busy, 4) == list(range(4))
                idle.commit()

            # On a busy machine it may be told by its second poll already.
            with pytest.raises(ConsumerFencedError, match=r"not polled for 0\.5 s"):
                lose()
            eventually(lambda: (busy.poll(20), len(busy.epochs()) == 2 and nothing_left(busy))[1])
        assert [info.lag for info in desk.table.consumers()] == [0]


def test_a_consumer_that_was_dropped_without_closing_leaves_its_group(desk: Desk) -> None:
    desk.append(4)
    consumer = desk.table.consumer("billing")
    read(consumer, 4)
    del consumer
    eventually(lambda: desk.table.consumers()[0].members == ())


# What may happen to tables and servers


def test_a_table_that_was_created_again_is_read_from_its_beginning(server: embedded.EmbeddedServer) -> None:
    with desk_of(server.bootstrap_servers, scanner_partition_discovery_interval_ms=50) as desk:
        desk.append(10)
        old = desk.table.consumer("billing")
        read(old, 10)
        admin, path, info = desk.connection.get_admin(), desk.table.table_path, desk.table.get_table_info()
        admin.drop_table(path)
        admin.create_table(path, fluss.TableDescriptor(info.schema, bucket_count=2))
        with pytest.raises(FlussError, match=r"dropped and created again|was dropped"):
            eventually(lambda: not old.poll(20).is_empty())
        with pytest.raises(FlussError, match="dropped and created again"):
            old.poll(20)
        old.close()
        desk.table, desk.count = desk.connection.get_table(path), 0
        desk.append(3)
        assert [(each.name, each.lag, each.members) for each in desk.table.consumers()] == [("billing", 3, ())]
        with desk.table.consumer("billing") as consumer:
            assert read(consumer, 3) == [0, 1, 2]


def test_partitions_that_come_and_go(server: embedded.EmbeddedServer) -> None:
    with desk_of(server.bootstrap_servers, partitioned=True, scanner_partition_discovery_interval_ms=50) as desk:
        admin, path = desk.connection.get_admin(), desk.table.table_path
        desk.append(4)
        with desk.table.consumer("billing", start="latest") as consumer:
            assert consumer.poll(POLL_MS).is_empty()
            admin.create_partition(path, {"day": "tue"})
            desk.append(4, "tue")
            # Of a partition that is new everything is, although the consumer began at the end.
            assert read(consumer, 4) == list(range(4, 8))
            assert len(consumer.epochs()) == 4
            admin.drop_partition(path, {"day": "mon"})
            eventually(lambda: (consumer.poll(20), len(consumer.epochs()) == 2)[1])
            desk.append(2, "tue")
            assert read(consumer, 2) == [8, 9]
        (info,) = desk.table.consumers()
        assert (len(info.buckets), info.lag) == (2, 0)
        rows = desk.connection.get_table(desk.rows_path).to_arrow()
        assert sum(entry.startswith("position/") for entry in rows["entry"].to_pylist()) == 2


def test_a_position_that_is_stored_after_its_partition_is_gone_is_deleted(server: embedded.EmbeddedServer) -> None:
    with desk_of(server.bootstrap_servers, partitioned=True, scanner_partition_discovery_interval_ms=50) as desk:
        admin, path = desk.connection.get_admin(), desk.table.table_path
        desk.append(4)
        admin.create_partition(path, {"day": "tue"})
        with desk.table.consumer("billing", auto_commit=False) as consumer:
            assert read(consumer, 4) == list(range(4))
            owned = consumer.epochs()
            admin.drop_partition(path, {"day": "mon"})
            eventually(lambda: (consumer.poll(20), len(consumer.epochs()) == 2)[1])
            # A commit that was on its way, for both buckets that are gone.
            late = {
                BucketKey(bucket.partition_id, bucket.bucket_id): (epoch, 1)
                for bucket, epoch in owned.items()
                if bucket not in consumer.epochs()
            }
            assert len(late) == 2
            run_blocking(consumer._runtime.bridge(consumer._membership.commit(late)))
            table = desk.connection.get_table(desk.rows_path)
            eventually(lambda: not any(each.startswith("position/") for each in table.to_arrow()["entry"].to_pylist()))


def test_positions_survive_the_loss_of_their_table_while_a_member_lives(desk: Desk) -> None:
    desk.append(10)
    consumer = desk.table.consumer("billing")
    read(consumer, 10)
    consumer.commit()
    epochs = consumer.epochs()
    desk.connection.get_admin().drop_table(desk.rows_path)
    with pytest.raises(ConsumerFencedError, match="which keeps its positions"):
        eventually(lambda: not consumer.poll(20).is_empty())
    desk.append(5)
    assert read(consumer, 5) == list(range(10, 15))
    assert all(epoch > epochs[bucket] for bucket, epoch in consumer.epochs().items())
    consumer.close()
    with desk.table.consumer("billing") as again:
        assert nothing_left(again)


def test_positions_outlive_the_log_of_their_group() -> None:
    options = {"durability": "os", "log.segment.file-size": "1kb", "log.retention.check-interval": "30ms"}
    with embedded.start(options) as running, desk_of(running.bootstrap_servers) as desk:
        desk.append(10)
        with desk.table.consumer("billing") as consumer:
            read(consumer, 10)
        admin = desk.connection.get_admin()
        admin.alter_table(desk.rows_path, set_properties={"table.log.ttl": "50ms"})
        keys = LookupKeys(admin.get_table_info(desk.rows_path), ["table_name", "consumer", "entry"], "java")
        table_name = str(desk.table.table_path)
        bucket = keys.locate([table_name, "billing", "group"]).bucket_id
        (end,) = admin.list_offsets(desk.rows_path, [bucket], "latest").values()
        # Records of other consumers in the same bucket fill up segments.
        names = (f"other {number}" for number in range(100_000))
        others = (name for name in names if keys.locate([table_name, name, "group"]).bucket_id == bucket)

        def is_expired() -> bool:
            with desk.table.consumer(next(others), start="latest") as other:
                other.poll(0)
            return admin.list_offsets(desk.rows_path, [bucket], "earliest")[bucket] >= end

        eventually(is_expired)
        desk.append(5)
        with desk.table.consumer("billing") as consumer:
            assert read(consumer, 5) == list(range(10, 15))


def test_a_consumer_waits_for_a_server_that_is_away_for_longer_than_a_lease(tmp_path: Path) -> None:
    # Long enough for both to be heard of again on a busy machine, when the server is back.
    lease_ms = 5000
    with (
        ServerProcess(tmp_path / "data", "-D", "durability=os") as server,
        desk_of(server.bootstrap_servers, consumer_lease_ms=lease_ms) as desk,
    ):
        desk.append(4)
        first, second = desk.table.consumer("billing"), desk.table.consumer("billing")
        read(first, 4)
        eventually(lambda: (first.poll(20), second.poll(20), len(second.epochs()) == 1)[-1])
        epochs = {**first.epochs(), **second.epochs()}
        server.stop()
        for _ in range(3):
            assert first.poll(lease_ms // 2).is_empty()
        server.start()
        desk.append(6)
        seen: list[int] = []

        def polled() -> bool:
            for consumer in (first, second):
                seen.extend(record.row["id"] for record in consumer.poll(20))
            return len(seen) >= 6

        eventually(polled)
        assert sorted(seen) == list(range(4, 10))
        assert {**first.epochs(), **second.epochs()} == epochs, "nobody was expelled"
        first.close()
        second.close()


def test_servers_before_1_0_do(tables_without_scans: Tables) -> None:
    table = tables_without_scans.create_log(bucket_count=1)
    writer = table.new_append().create_writer()
    writer.append([1, "a"]).result()
    with table.consumer("old") as consumer:
        eventually(lambda: consumer.poll(POLL_MS))
        eventually(lambda: not any(consumer.lag().values()))
    with table.consumer("old") as consumer:
        assert not consumer.poll(POLL_MS), "it goes on behind what was read"
    assert [info.lag for info in wait_for(table.consumers())] == [0]
