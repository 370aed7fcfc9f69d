"""Scrubbing walks everything once per pass, goes on after a stop where it was, and counts what it does.
Shown with real files in directories that are named as a server names them, and a host that knows all buckets."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from fluss.errors import KvDamagedError
from fluss.metrics import Metrics
from fluss.record.log_batch import build_batch
from fluss.schema.table import TableBucket
from fluss.server.tablet.scrubber import Scrubber, ScrubSettings, _tablets
from fluss.storage.background_reads import BackgroundReads
from fluss.storage.vfs import OsFiles
from fluss.testing.waiting import eventually_async

DAMAGED = TableBucket(7, 0)


class Host:
    """Knows the buckets of tables below 9, and notes what it is told."""

    def __init__(self) -> None:
        self.stores: list[Path] = []

    def settled_offset(self, bucket: TableBucket) -> int | None:
        return 1000 if bucket.table_id < 9 else None

    async def store_damaged(self, bucket: TableBucket | None, paths: Sequence[Path], error: KvDamagedError) -> bool:
        self.stores += paths
        return True

    async def copy_damaged(self, bucket: TableBucket, paths: Sequence[Path]) -> bool:
        return False


def put(path: Path, content: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def put_log(directory: Path, *offsets: int) -> None:
    for offset in offsets:
        put(directory / f"{offset:020d}.log")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Logs, stores, copies and a shared database, and what is none of them."""
    put_log(tmp_path / "db/t-1/log-0", 0, 10)
    put_log(tmp_path / "db/t-1/log-1", 0)
    put(tmp_path / "db/t-1/kv-0/000001.sst")
    put(tmp_path / "db/t-1/kv-snapshots-0/00000000000000000010/000001.sst")
    put_log(tmp_path / "db/u-2/a-p5/log-0", 0, 10)
    put_log(tmp_path / "db/v-3.deleted/log-0", 0, 10)
    put(tmp_path / "kv.shared/3/000007.sst")
    put(tmp_path / "other/notes/log/0.log")
    return tmp_path


def names(data_dir: Path, read_until: str = "") -> list[str]:
    reads = BackgroundReads(1 << 40)
    return [tablet.directory.relative_to(data_dir).as_posix() for tablet in _tablets(data_dir, read_until, reads)]


ALL = [
    "db/t-1/kv-0",
    "db/t-1/kv-snapshots-0/00000000000000000010",
    "db/t-1/log-0",
    "db/u-2/a-p5/log-0",
    "kv.shared/3",
]


def test_everything_with_something_to_read_is_found_in_order(data_dir: Path) -> None:
    assert names(data_dir) == ALL


@pytest.mark.parametrize("position", range(len(ALL)))
def test_a_pass_goes_on_behind_any_of_them(data_dir: Path, position: int) -> None:
    assert names(data_dir, ALL[position]) == ALL[position + 1 :]


def test_a_pass_goes_on_although_the_last_one_is_gone(data_dir: Path) -> None:
    assert names(data_dir, "db/t-1/log-00") == ALL[3:]
    assert names(data_dir, "aa/t-1/log-0") == ALL
    assert names(data_dir, "db/t-11/log-0") == ALL[3:]


async def test_damage_is_counted_noted_and_forgotten_with_its_table(tmp_path: Path) -> None:
    for table_id in (7, 9):
        put(tmp_path / f"db/t-{table_id}/log-0/{0:020d}.log", b"no batch")
        put_log(tmp_path / f"db/t-{table_id}/log-0", 10)
    host, metrics = Host(), Metrics()
    scrubber = Scrubber(
        tmp_path, ScrubSettings(bytes_per_second=1 << 40, interval_ms=1), host, OsFiles(), clock=lambda: 1
    )
    scrubber.show(metrics)
    scrubber.start()
    await eventually_async(lambda: scrubber.counts.passes >= 2)
    await scrubber.stop()
    assert scrubber.damaged_buckets == {DAMAGED}
    values = metrics.values()
    assert values["fluss_scrub_damaged_total", (("kind", "segment"),)] == 1
    assert values["fluss_scrub_damaged_buckets", ()] == 1
    assert values["fluss_scrub_damaged_files", ()] == 1
    assert list(json.loads((tmp_path / "scrub.json").read_bytes())["damaged"]) == [f"db/t-7/log-0/{0:020d}.log"]


async def test_a_damaged_progress_file_begins_anew(tmp_path: Path) -> None:
    put(tmp_path / "scrub.json", b"{")
    scrubber = Scrubber(
        tmp_path, ScrubSettings(bytes_per_second=1 << 40, interval_ms=1), Host(), OsFiles(), clock=lambda: 10**12
    )
    scrubber.start()
    await eventually_async(lambda: scrubber.counts.passes)
    await scrubber.stop()
    assert json.loads((tmp_path / "scrub.json").read_bytes())["read_until"] == ""


async def test_a_file_that_cannot_be_opened_for_a_while_is_not_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = f"db/t-7/log-0/{0:020d}.log", f"db/t-8/log-0/{0:020d}.log"
    put(tmp_path / bad, b"no batch")
    put_log(tmp_path / "db/t-7/log-0", 10)
    # The file is in order by now.
    batch = build_batch([b"row"], schema_id=1, record_count=10, append_only=True)
    put(tmp_path / good, bytes(batch))
    put_log(tmp_path / "db/t-8/log-0", 10)
    put(
        tmp_path / "scrub.json",
        json.dumps({"pass_began_ms": 0, "read_until": "", "damaged": {good: "was damaged"}}).encode(),
    )
    settings = ScrubSettings(bytes_per_second=1 << 40, interval_ms=1)
    scrubber = Scrubber(tmp_path, settings, Host(), OsFiles(), clock=lambda: 1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    for turn in range(2):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            if turn == 0:
                scrubber.start()
            waits, passes = caplog.text.count("scrubbing waits"), scrubber.counts.passes
            await eventually_async(lambda: caplog.text.count("scrubbing waits") >= waits + 2)  # noqa: B023
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await eventually_async(lambda: scrubber.counts.passes > passes + 1)  # noqa: B023
    await scrubber.stop()
    assert list(scrubber.damaged_files) == [bad]
    assert "open files" not in scrubber.damaged_files[bad]
    assert f"{good} is good again" in caplog.text, "what was known before was not forgotten"
