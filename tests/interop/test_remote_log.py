"""Tables whose data is mostly in remote storage are read by the official clients, and by ours, like any others.

A real server copies its segments to a directory, from which the clients read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss import embedded
from fluss.testing.waiting import eventually
from tests.interop.client import Client
from tests.interop.conftest import Libraries
from tests.interop.samples import EVENTS, event_batch, events

# With 120 bytes every batch has a segment of its own.
SIZES = {"120b": "tiny", "16kb": "large", "64mb": "huge"}


@pytest.fixture(scope="module", params=("120b", "16kb"))
def tiered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server with segments of a size, and its data directory."""
    data_dir = tmp_path_factory.mktemp(f"tiered-{SIZES[request.param]}")
    options = {
        "log.segment.file-size": request.param,
        "remote.data.dir": str(data_dir / "remote"),
        "remote.log.task-interval-duration": "20 ms",
        "durability": "os",
    }
    with embedded.start(options, data_dir=data_dir / "data", process=True) as running:
        yield running.bootstrap_servers, data_dir / "data"


@pytest.fixture
def connect(libraries: Libraries, tiered: tuple[str, Path]) -> Callable[[str], Client]:
    return lambda name: Client(libraries[name], tiered[0])


def wait_until_remote(data_dir: Path, table: str, buckets: int = 1) -> None:
    """Wait until every log has no more than its two newest segments on the disk, and not its first one."""

    def is_remote() -> bool:
        logs = [sorted(log.glob("*.log")) for log in data_dir.glob(f"fluss/{table}-*/**/log-*")]
        return len(logs) == buckets and all(0 < len(log) <= 2 and int(log[0].stem) > 0 for log in logs)

    eventually(is_remote)


def test_a_scan_goes_through_remote_storage_to_the_disk(
    connect: Callable[[str], Client], any_name: str, table: str, tiered: tuple[str, Path]
) -> None:
    client = connect(any_name)
    client.create_table(table, EVENTS)
    count = 0
    for first in range(0, 20_000, 2_000):
        client.write_batches(table, event_batch(first, first + 1_999))
        count += 2_000
    wait_until_remote(tiered[1], table)
    client.append_rows(table, events(count, count + 9))
    found = client.read_table(table)
    assert found.to_pylist() == events(0, count + 9)
    assert client.read_table(table, columns=["name", "id"]).to_pylist() == [
        {"name": row["name"], "id": row["id"]} for row in events(0, count + 9)
    ]
    last = client.read_rows(table, 7_345, start=count + 10 - 7_345)
    assert last == events(count + 10 - 7_345, count + 9)
    spec = client.fluss.OffsetSpec
    assert client.admin.list_offsets(client.path(table), [0], spec.earliest()) == {0: 0}


@pytest.mark.parametrize("tiered", ["120b"], indirect=True)
def test_partitions_are_read_from_remote_storage(
    connect: Callable[[str], Client], any_name: str, table: str, tiered: tuple[str, Path]
) -> None:
    client = connect(any_name)
    schema = pa.schema([pa.field("id", pa.int32()), pa.field("day", pa.string()), pa.field("text", pa.string())])
    client.create_table(table, schema, partition_keys=["day"], bucket_count=1)
    days = ("mon", "tue")
    for day in days:
        client.admin.create_partition(client.path(table), {"day": day})
    rows: list[dict[str, Any]] = [
        {"id": number, "day": days[number % 2], "text": f"{number:08d}" * 8} for number in range(40)
    ]
    for row in rows:
        client.append_rows(table, [row])
    wait_until_remote(tiered[1], table, buckets=2)
    found = client.read_table(table).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == rows


@pytest.mark.slow
@pytest.mark.parametrize("tiered", ["64mb"], indirect=True)
def test_large_segments_are_read_from_remote_storage(
    connect: Callable[[str], Client], any_name: str, table: str, tiered: tuple[str, Path]
) -> None:
    client = connect(any_name)
    schema = pa.schema([pa.field("id", pa.int32()), pa.field("text", pa.string())])
    client.create_table(table, schema, properties={"table.log.arrow.compression.type": "NONE"})
    rows = 1_000
    for first in range(0, 110 * rows, rows):
        ids = pa.array(range(first, first + rows), pa.int32())
        text = pa.array([f"{number:02d}" * 1_000 for number in range(rows)])
        client.write_batches(table, pa.record_batch([ids, text], schema=schema))
    wait_until_remote(tiered[1], table)
    found = client.read_table(table, columns=["id"])
    assert found.column("id").to_pylist() == list(range(110 * rows))
