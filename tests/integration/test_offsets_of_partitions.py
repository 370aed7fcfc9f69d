"""Where the logs of many partitions begin and end is asked with few requests, also of servers that know no such
question. Shown with a server whose requests are counted, and with one that skips what Apache Fluss would skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import embedded
from fluss.client.bulk import offsets_of, partitions_of
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode, FlussError
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket
from fluss.server.rpc.tablet_service import TabletService
from tests.integration.keyed_tables import Tables, tables_of

PARTITIONS = 40
BUCKETS = 2
SCHEMA = pa.schema([("id", pa.int32()), ("day", pa.string())])


class CountedTables:
    """Tables of a server that notes about how many partitions it is asked at a time.

    A ``plain`` one knows only what the protocol of Apache Fluss has.
    """

    def __init__(self, *, is_plain: bool) -> None:
        self.is_plain = is_plain
        self.asked: list[int] = []
        self.tables: Tables

    def handler(self, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def handle(context: Any, request: pb.ListOffsetsRequest) -> Any:
            self.asked.append(1 + len(request.more_partitions))
            if self.is_plain:
                request.ClearField("more_partitions")
            return answer(context, request)

        return handle

    def create(self) -> fluss.FlussTable:
        """Make a table whose partition number n has n rows."""
        table = self.tables.create_log(SCHEMA, partition_keys=["day"], bucket_count=BUCKETS)
        days = [f"d{number:02d}" for number in range(PARTITIONS)]
        for day in days:
            wait_for(self.tables.admin.create_partition(table.table_path, {"day": day}))
        writer = table.new_append().create_writer()
        for number, day in enumerate(days):
            writer.write_arrow(pa.table({"id": range(number), "day": [day] * number}, schema=SCHEMA))
        wait_for(writer.flush())
        self.asked.clear()
        return table


@pytest.fixture(scope="module", params=["ours", "plain"])
def counted(request: pytest.FixtureRequest) -> Iterator[CountedTables]:
    made = CountedTables(is_plain=request.param == "plain")
    handlers = TabletService.handlers

    def counting(service: TabletService) -> Any:
        found = handlers(service)
        return {**found, ApiKey.LIST_OFFSETS: made.handler(found[ApiKey.LIST_OFFSETS])}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TabletService, "handlers", counting)
        running = embedded.start({"durability": "os"})
    with running, tables_of(running) as made.tables:
        yield made


def buckets_of(table: fluss.FlussTable) -> list[TableBucket]:
    table_id = table.get_table_info().table_id
    return [
        TableBucket.with_partition(table_id, partition.partition_id, bucket_id)
        for partition in partitions_of(table)
        for bucket_id in range(BUCKETS)
    ]


def test_the_ends_of_all_partitions_are_right_and_take_one_request(counted: CountedTables) -> None:
    table = counted.create()
    buckets = buckets_of(table)
    latest = offsets_of(table, buckets, OffsetSpec.latest())
    # A server that does not know the question is asked about the first partition with it, then about each other one.
    assert counted.asked == ([PARTITIONS] + [1] * (PARTITIONS - 1) if counted.is_plain else [PARTITIONS])
    assert list(latest) == buckets
    assert set(offsets_of(table, buckets, OffsetSpec.earliest()).values()) == {0}
    by_partition = {bucket.partition_id: 0 for bucket in buckets}
    for bucket, end in latest.items():
        by_partition[bucket.partition_id] += end
    rows = {partition.partition_id: int(partition.partition_name[1:]) for partition in partitions_of(table)}
    assert by_partition == rows


def test_a_partition_that_was_dropped_is_named_among_all(counted: CountedTables) -> None:
    table = counted.create()
    buckets = buckets_of(table)
    offsets_of(table, buckets, OffsetSpec.latest())
    gone = counted.tables.partition_ids(table)["d07"]
    wait_for(counted.tables.admin.drop_partition(table.table_path, {"day": "d07"}))
    with pytest.raises(FlussError, match=f"Unknown partition_id {gone} of {table.table_path}") as error:
        offsets_of(table, buckets, OffsetSpec.latest())
    assert error.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
    left = [bucket for bucket in buckets if bucket.partition_id != gone]
    assert list(offsets_of(table, left, OffsetSpec.latest())) == left


def test_a_time_is_looked_up_in_all_partitions(counted: CountedTables) -> None:
    table = counted.create()
    buckets = buckets_of(table)
    assert set(offsets_of(table, buckets, OffsetSpec.timestamp(1)).values()) == {0}
    with pytest.raises(FlussError) as error:
        offsets_of(table, buckets, OffsetSpec.timestamp(2**60))
    assert error.value.error_code == ErrorCode.INVALID_TIMESTAMP_EXCEPTION
