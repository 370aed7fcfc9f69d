"""Partitions by the clock: which ones a table has at which time, how they expire, and what users may add by hand.

The rule is a function of the time; the rest is a coordinator whose clock the test moves.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.cluster_info import HealthStatus
from fluss.schema.serde import table_from_json
from fluss.server.coordinator.auto_partitioner import AutoPartitionRule
from fluss.testing.waiting import eventually_async
from tests.unit.server.coordinator.support import create_request, descriptor, path, spec

DAY_MS = 86_400_000
COLUMNS = {"id": "INTEGER", "time": "STRING", "region": "STRING"}


def _ms(*date: int, zone=UTC) -> int:
    return int(datetime(*date, tzinfo=zone).timestamp() * 1000)


def _properties(unit: str, **more) -> dict[str, str]:
    return {
        "table.auto-partition.enabled": "true",
        "table.auto-partition.time-unit": unit,
        **{f"table.auto-partition.{key.replace('_', '-')}": str(value) for key, value in more.items()},
    }


def _table(unit: str, *, keys=("time",), **more) -> bytes:
    return descriptor(COLUMNS, partition_key=list(keys), properties=_properties(unit, **more))


def _rule(unit: str, *, zone=UTC, **more) -> AutoPartitionRule:
    return AutoPartitionRule.of(table_from_json(_table(unit, **more)), zone)


def _create(table: str, **values: str) -> pb.CreatePartitionRequest:
    return pb.CreatePartitionRequest(table_path=path(table), partition_spec=spec(**values), ignore_if_not_exists=False)


# The rule


@pytest.mark.parametrize(
    ("unit", "names"),
    [
        ("HOUR", ["2024091023", "2024091100", "2024091101", "2024091102"]),
        ("DAY", ["20240910", "20240911", "20240912", "20240913"]),
        ("MONTH", ["202409", "202410", "202411", "202412"]),
        ("QUARTER", ["20243", "20244", "20251", "20252"]),
        ("YEAR", ["2024", "2025", "2026", "2027"]),
    ],
)
def test_the_current_partition_and_the_next_ones_are_wanted(unit, names):
    rule = _rule(unit, num_precreate=4)
    assert rule.names_to_have(_ms(2024, 9, 10, 23, 30), count_max=1000) == names


def test_months_are_kept_and_made_as_time_passes():
    rule = _rule("MONTH", num_precreate=4, num_retention=2)
    before = rule.names_to_have(_ms(2024, 9, 10), count_max=1000)
    assert before == ["202409", "202410", "202411", "202412"]
    later_ms = _ms(2024, 12, 10)
    assert rule.expired_names(before, later_ms) == ["202409"]
    assert rule.names_to_have(later_ms, count_max=1000) == ["202412", "202501", "202502", "202503"]


def test_a_table_lives_by_its_own_zone():
    now_ms = _ms(2024, 9, 10, 23, 30)
    assert _rule("DAY", num_precreate=1).names_to_have(now_ms, count_max=9) == ["20240910"]
    assert _rule("DAY", num_precreate=1, zone=ZoneInfo("Asia/Shanghai")).names_to_have(now_ms, count_max=9) == [
        "20240911"
    ]
    named = {"num_precreate": 1, "time_zone": "Asia/Shanghai"}
    assert _rule("DAY", **named).names_to_have(now_ms, count_max=9) == ["20240911"]
    assert _rule("HOUR", num_precreate=1, time_zone="+02:00").names_to_have(now_ms, count_max=9) == ["2024091101"]


def test_the_end_of_the_month_does_not_skip_a_month():
    assert _rule("MONTH", num_precreate=3).names_to_have(_ms(2024, 1, 31), count_max=9) == [
        "202401",
        "202402",
        "202403",
    ]


def test_a_format_of_its_own_is_used():
    rule = _rule("DAY", num_precreate=2, time_format="yyyy-MM-dd")
    assert rule.names_to_have(_ms(2024, 12, 31), count_max=9) == ["2024-12-31", "2025-01-01"]


def test_more_partitions_than_allowed_are_not_even_counted():
    rule = _rule("HOUR", num_precreate=2**31 - 1)
    assert len(rule.names_to_have(_ms(2024, 1, 1), count_max=5)) == 5
    assert len(_rule("YEAR", num_precreate=2**31 - 1).names_to_have(_ms(9998, 1, 1), count_max=5)) == 2


@pytest.mark.parametrize(
    ("retention", "expired"), [(0, ["20240908", "20240909"]), (1, ["20240908"]), (2, []), (-1, [])]
)
def test_retention_keeps_the_current_unit_and_so_many_before(retention, expired):
    rule = _rule("DAY", num_retention=retention)
    names = ["20240908", "20240909", "20240910", "20240911", "20991231"]
    assert rule.expired_names(names, _ms(2024, 9, 10, 12)) == expired


def test_retention_longer_than_the_calendar_keeps_everything():
    assert _rule("YEAR", num_retention=2**31 - 1).expired_names(["0001"], _ms(2024, 1, 1)) == []


def test_with_several_keys_only_the_time_in_the_name_counts():
    rule = _rule("DAY", keys=("region", "time"), key="time", num_retention=1, num_precreate=0)
    assert rule.names_to_have(_ms(2024, 9, 10), count_max=9) == []
    names = ["1$20240901", "1$20240910", "99999999$20240901"]
    assert rule.expired_names(names, _ms(2024, 9, 10)) == ["1$20240901", "99999999$20240901"]


def test_values_by_hand_must_be_times_that_are_kept():
    rule = _rule("DAY", num_retention=2)
    now_ms = _ms(2024, 9, 10)
    rule.check_new_values(["20240908"], now_ms)
    rule.check_new_values(["20990101"], now_ms)
    for value in ("20240907", "2024-09-10", "today", "20240931"):
        with pytest.raises(FlussError) as failure:
            rule.check_new_values([value], now_ms)
        assert failure.value.error_code == 43


def test_without_auto_partition_only_a_format_of_its_own_is_checked():
    table_json = _table("DAY", time_format="yyyy-MM-dd", enabled="false")
    rule = AutoPartitionRule.of(table_from_json(table_json), UTC)
    rule.check_new_values(["1999-01-01"], _ms(2024, 9, 10))
    with pytest.raises(FlussError):
        rule.check_new_values(["19990101"], _ms(2024, 9, 10))
    plain = AutoPartitionRule.of(table_from_json(_table("DAY", enabled="false")), UTC)
    plain.check_new_values(["anything"], _ms(2024, 9, 10))


# The coordinator


async def test_a_new_table_has_its_partitions_at_once_and_neighbours_can_be_added(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", _table("YEAR"))
        assert set(await cluster.partitions("fluss.t")) == {"2024", "2025"}
        for year in ("2023", "2022"):
            await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", time=year))
        assert await cluster.code(apis.CREATE_PARTITION, _create("fluss.t", time="2016")) == 43
        assert len(await cluster.partitions("fluss.t")) == 4
        assert len(cluster.host.open) == 4


async def test_a_dropped_partition_comes_back_at_the_next_look_only(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", _table("YEAR"))
        drop = pb.DropPartitionRequest(
            table_path=path("fluss.t"), partition_spec=spec(time="2025"), ignore_if_not_exists=False
        )
        await cluster.ask(apis.DROP_PARTITION, drop)
        await cluster.alter("fluss.t", values={"table.log.ttl": "1 d"})
        assert set(await cluster.partitions("fluss.t")) == {"2024"}
        await cluster.service._auto_partitioner.look()
        assert set(await cluster.partitions("fluss.t")) == {"2024", "2025"}


async def test_time_makes_and_drops_partitions(make_cluster, clock):
    async with make_cluster() as cluster:
        clock.now_ms = _ms(2024, 9, 10)
        await cluster.create("fluss.t", _table("MONTH", num_precreate=4, num_retention=2))
        clock.now_ms = _ms(2024, 12, 10)
        await cluster.service._auto_partitioner.look()
        assert sorted(await cluster.partitions("fluss.t")) == [
            "202410",
            "202411",
            "202412",
            "202501",
            "202502",
            "202503",
        ]
        assert ("drop", "fluss.t", "202409") in cluster.host.events


@pytest.mark.parametrize(
    "change", [{"table.auto-partition.num-retention": "9"}, {"table.auto-partition.enabled": "false"}], ids=str
)
async def test_a_table_that_is_altered_to_keep_its_partitions_keeps_them_whatever_is_under_way(
    make_cluster, clock, change
):
    async with make_cluster() as cluster:
        clock.now_ms = _ms(2024, 9, 10)
        for name in ("fluss.a", "fluss.b"):
            await cluster.create(name, _table("YEAR", num_retention=1, num_precreate=1))
        clock.now_ms = _ms(2026, 1, 1)
        # The look is at the first table when the second one is altered, and dropping takes its time.
        may_go_on, is_dropping = asyncio.Event(), asyncio.Event()

        async def know_log_ends(table, partition):
            is_dropping.set()
            await may_go_on.wait()

        cluster.host.know_log_ends = know_log_ends
        look = asyncio.create_task(cluster.service._auto_partitioner.look())
        await is_dropping.wait()
        alteration = asyncio.create_task(cluster.alter("fluss.b", values=change))
        await eventually_async(lambda: cluster.service._running_changes._tasks)
        may_go_on.set()
        await alteration
        await look
        assert "2024" not in await cluster.partitions("fluss.a")
        assert "2024" in await cluster.partitions("fluss.b")


async def test_partitions_by_hand_expire_like_all_others(make_cluster, clock):
    async with make_cluster() as cluster:
        clock.now_ms = _ms(2024, 9, 10)
        await cluster.create("fluss.t", _table("YEAR", num_retention=2, num_precreate=1))
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", time="2022"))
        await cluster.ask(apis.CREATE_PARTITION, _create("fluss.t", time="2099"))
        clock.now_ms = _ms(2025, 1, 1)
        await cluster.service._auto_partitioner.look()
        assert sorted(await cluster.partitions("fluss.t")) == ["2024", "2025", "2099"]


async def test_a_start_catches_up(make_cluster, clock):
    async with make_cluster() as cluster:
        clock.now_ms = _ms(2024, 9, 10)
        await cluster.create("fluss.t", _table("DAY", num_retention=1))
        assert sorted(await cluster.partitions("fluss.t")) == ["20240910", "20240911"]
        clock.now_ms = _ms(2024, 9, 20)
    async with make_cluster() as cluster:
        assert sorted(await cluster.partitions("fluss.t")) == ["20240920", "20240921"]


async def test_looks_are_repeated_at_an_interval(make_cluster, clock):
    async with make_cluster(settings={"auto_partition_check_interval_ms": 1}) as cluster:
        await cluster.create("fluss.t", _table("YEAR", num_precreate=1))
        clock.now_ms = _ms(2025, 1, 1)
        while "2025" not in await cluster.partitions("fluss.t"):
            pass


async def test_tables_by_day_are_extended_with_a_delay_of_their_own_but_shrink_on_time(make_cluster, clock):
    class LatestDelay(random.Random):
        def randrange(self, stop):
            return stop - 1

    async with make_cluster(rng=LatestDelay()) as cluster:
        clock.now_ms = _ms(2024, 9, 10, 0, 0)
        await cluster.create("fluss.t", _table("DAY", num_precreate=2, num_retention=0))
        assert sorted(await cluster.partitions("fluss.t")) == ["20240910", "20240911"]
        clock.now_ms = _ms(2024, 9, 11, 22, 58)
        await cluster.service._auto_partitioner.look()
        assert sorted(await cluster.partitions("fluss.t")) == ["20240911"]
        # 1379 minutes after midnight.
        clock.now_ms = _ms(2024, 9, 11, 22, 59)
        await cluster.service._auto_partitioner.look()
        assert sorted(await cluster.partitions("fluss.t")) == ["20240911", "20240912"]


async def test_limits_are_logged_and_fill_what_room_there_is(make_cluster, caplog):
    async with make_cluster(settings={"partition_count_max": 3}) as cluster:
        with caplog.at_level(logging.WARNING):
            await cluster.create("fluss.t", _table("YEAR", num_precreate=5))
        assert sorted(await cluster.partitions("fluss.t")) == ["2024", "2025", "2026"]


async def test_a_server_full_of_buckets_is_logged_once_and_partitions_follow_when_there_is_room(
    make_cluster, clock, caplog
):
    async with make_cluster(settings={"total_bucket_count_max": 3}) as cluster:
        clock.now_ms = _ms(2024, 9, 10)
        await cluster.create("fluss.t", _table("YEAR", num_precreate=2))
        await cluster.create("fluss.other", descriptor(COLUMNS))
        assert cluster.catalog.bucket_count == 3
        clock.now_ms = _ms(2025, 9, 10)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await cluster.service._auto_partitioner.look()
        warnings = [record.getMessage() for record in caplog.records if "no room" in record.getMessage()]
        assert len(warnings) == 1
        assert "fluss.t has 2 partitions of 1 buckets" in warnings[0]
        assert "'server.max-buckets'" in warnings[0]
        assert sorted(await cluster.partitions("fluss.t")) == ["2024", "2025"]
        health = await cluster.ask(apis.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest())
        assert health.status == HealthStatus.YELLOW
        await cluster.ask(
            apis.DROP_TABLE, pb.DropTableRequest(table_path=path("fluss.other"), ignore_if_not_exists=False)
        )
        await cluster.service._auto_partitioner.look()
        assert sorted(await cluster.partitions("fluss.t")) == ["2024", "2025", "2026"]
        health = await cluster.ask(apis.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest())
        assert health.status == HealthStatus.GREEN


async def test_a_new_table_whose_first_partitions_have_no_room_is_refused_as_a_whole(make_cluster):
    async with make_cluster(settings={"total_bucket_count_max": 3}) as cluster:
        error = await cluster.refused(apis.CREATE_TABLE, create_request("fluss.t", _table("YEAR", num_precreate=4)))
        assert error.error_code == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        assert cluster.catalog.tables() == ()
        assert not cluster.host.events
        assert cluster.catalog.bucket_count == 0


async def test_a_table_that_cannot_be_extended_does_not_hold_up_others(make_cluster, caplog):
    async with make_cluster() as cluster:
        await cluster.create("fluss.a", _table("YEAR", num_precreate=1))
        await cluster.create("fluss.b", _table("YEAR", num_precreate=1))
        drop = [
            pb.DropPartitionRequest(table_path=path(t), partition_spec=spec(time="2024"), ignore_if_not_exists=False)
            for t in ("fluss.a", "fluss.b")
        ]
        for request in drop:
            await cluster.ask(apis.DROP_PARTITION, request)
        open_buckets = cluster.host.open_buckets

        async def failing(table, partition):
            if table.path.table_name == "a":
                raise RuntimeError("a bug")
            await open_buckets(table, partition)

        cluster.host.open_buckets = failing
        await cluster.service._auto_partitioner.look()
        assert await cluster.partitions("fluss.a") == {}
        assert set(await cluster.partitions("fluss.b")) == {"2024"}
    assert "fluss.a could not be brought up to date" in caplog.text
