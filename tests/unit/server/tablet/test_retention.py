"""Records leave when their table says so, writers when they have been silent, and nothing before.

A real server whose clock is moved by the test.
"""

from __future__ import annotations

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket
from fluss.server.model import Table
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.log.log_settings import LogSettings
from tests.unit.server.tablet.support import (
    SCHEMA,
    Clock,
    Server,
    arrow_batch,
    ids,
    make_table,
    rows,
    serving,
    with_properties,
)

DAY_MS = 86_400_000
SMALL_SEGMENTS = LogSettings(segment_bytes_max=300)


async def _earliest(server: Server) -> int:
    (answer,) = await server.offsets(0, type=0)
    return answer.offset


async def test_closed_segments_leave_when_they_are_older_than_the_ttl(tmp_path):
    clock = Clock()
    table = make_table(properties={"table.log.ttl": "2 d"})
    async with serving(tmp_path, table, clock=clock, settings=TabletSettings(log=SMALL_SEGMENTS)) as server:
        for day in range(5):
            await server.append(rows(3 * day, 3))
            clock.now_ms += DAY_MS
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 9
        answer = await server.fetch_one(0)
        assert answer.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
        assert ids((await server.fetch_one(-2)).records_view) == [9, 10, 11]
        clock.now_ms += 100 * DAY_MS
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 12, "the segment that is written to stays"


async def test_the_active_segment_leaves_too_where_that_is_wanted(tmp_path):
    clock = Clock()
    settings = TabletSettings(log=SMALL_SEGMENTS, retention_rolls_active_segment=True)
    async with serving(tmp_path, make_table(), clock=clock, settings=settings) as server:
        await server.append(rows(0, 3))
        await server.append(rows(3, 3))
        clock.now_ms += 8 * DAY_MS
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 6
        assert await server.append(rows(6, 1)) == 6
        assert ids((await server.fetch_one(6)).records_view) == [6]


@pytest.mark.parametrize(("ttl", "earliest"), [("0 ms", 0), ("1 d", 3)])
async def test_a_changed_ttl_holds_from_the_next_check_on(tmp_path, ttl, earliest):
    clock = Clock()
    table = make_table(properties={"table.log.ttl": "100 d"})
    async with serving(tmp_path, table, clock=clock, settings=TabletSettings(log=SMALL_SEGMENTS)) as server:
        await server.append(rows(0, 3))
        await server.append(rows(3, 3))
        clock.now_ms += 50 * DAY_MS
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 0
        server.manager.table_altered(with_properties(table, {"table.log.ttl": ttl}))
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == earliest


async def test_changelogs_are_kept_whose_rows_cannot_be_copied(tmp_path, caplog):
    clock = Clock()
    table = make_table()
    async with serving(tmp_path, table, clock=clock, settings=TabletSettings(log=SMALL_SEGMENTS)) as server:
        await server.append(rows(0, 3))
        await server.append(rows(3, 3))
        clock.now_ms += 50 * DAY_MS
        keyed = Schema(SCHEMA.to_arrow(), primary_keys=["id"])
        server.manager.table_altered(make_table(schema=keyed, properties={"table.log.ttl": "7d"}))
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 0
    assert "could not be removed" in caplog.text


async def test_silent_writers_are_forgotten(tmp_path):
    clock = Clock()
    async with serving(tmp_path, make_table(), clock=clock) as server:
        await server.produce(arrow_batch(rows(0, 1), writer_id=1, sequence=0))
        clock.now_ms += 6 * DAY_MS
        await server.produce(arrow_batch(rows(1, 1), writer_id=2, sequence=0))
        clock.now_ms += 2 * DAY_MS
        await server.manager.retention.expire_writers()
        silent = await server.produce(arrow_batch(rows(2, 1), writer_id=1, sequence=1))
        assert silent.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        heard = await server.produce(arrow_batch(rows(2, 1), writer_id=2, sequence=1))
        assert heard.base_offset == 2


async def test_checks_happen_by_themselves(tmp_path):
    clock = Clock()
    settings = TabletSettings(log=SMALL_SEGMENTS, retention_check_interval_ms=10)
    async with serving(tmp_path, make_table(), clock=clock, settings=settings) as server:
        await server.append(rows(0, 3))
        await server.append(rows(3, 3))
        clock.now_ms += 8 * DAY_MS
        while await _earliest(server) != 3:
            pass


class Lake:
    """How far a lake has a bucket, as the coordinator would say it."""

    def __init__(self) -> None:
        self.offset = 0
        self.failure: FlussError | None = None

    async def tiered_offset(self, table: Table, bucket: TableBucket) -> int:
        if self.failure is not None:
            raise self.failure
        return self.offset


async def test_records_that_are_to_go_to_the_lake_wait_until_they_are_there(tmp_path):
    clock, lake = Clock(), Lake()
    table = make_table(properties={"table.log.ttl": "2 d", "table.datalake.enabled": "true"})
    settings = TabletSettings(log=SMALL_SEGMENTS)
    async with serving(tmp_path, table, clock=clock, settings=settings, tiered=lake) as server:
        for day in range(5):
            await server.append(rows(3 * day, 3))
            clock.now_ms += DAY_MS
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 0, "the lake has nothing yet"
        lake.offset = 7
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 6, "only whole segments that the lake has"
        lake.offset, lake.failure = 15, FlussError("the offsets cannot be read")
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 6, "what the lake has is not known"
        lake.failure = None
        await server.manager.retention.expire_segments()
        assert await _earliest(server) == 9, "the rest is not old enough"
