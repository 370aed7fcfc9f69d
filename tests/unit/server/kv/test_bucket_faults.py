"""A disk that fails costs no acknowledged row, and leaves no row of a batch that was refused.
The log is on a disk in memory that fails when it is told to; the store is real, and is damaged on the real disk."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.server.kv import joint_work
from fluss.server.kv.kv_runtime import KvSettings
from fluss.storage.kv.store_writes import StoreWrite, write_to_stores
from fluss.testing.faultfs import FaultFiles
from fluss.testing.waiting import eventually_async
from tests.unit.server.kv.bucket_support import KV_DIRECTORY, Bucket, HeldDisk, crashed, hosting
from tests.unit.server.merge.merging import Delete

# A request that asks again is not kept waiting in these tests.
EAGER = KvSettings(open_retry_ms=0)


def new_disk(data_dir: Path) -> FaultFiles:
    disk = FaultFiles()
    disk.make_directory(data_dir)
    return disk


async def outcome_codes(*answers: asyncio.Future) -> list[int]:
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    return [outcome.error_code if isinstance(outcome, FlussError) else 0 for outcome in outcomes]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_changelog_that_cannot_be_written_takes_its_values_back(tmp_path, number):
    disk = new_disk(tmp_path)
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"), (2, "a"), writer=1, sequence=0)
        disk.fail_next("write", "log-0", number=number)
        lost = bucket.begin((1, "lost"), Delete((2, None)), (3, "lost"), writer=1, sequence=1)
        assert await outcome_codes(lost) == [ErrorCode.LOG_STORAGE_EXCEPTION]
        assert await bucket.rows() == [(1, "a"), (2, "a")]
        assert await bucket.put((1, "b"), (3, "b"), writer=1, sequence=1) == 5
        assert bucket.changelog()[2:] == [("-U", (1, "a")), ("+U", (1, "b")), ("+I", (3, "b"))]
        assert await bucket.kv.row_count() == 3
        assert bucket.manager.kv_runtime.memory.held_bytes == 0


async def test_what_was_built_on_a_lost_batch_is_not_written_either(tmp_path):
    disk = new_disk(tmp_path)
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"), writer=1, sequence=0)
        for first in range(1, 40, 5):
            disk.fail_next("write", "log-0", number=errno.ENOSPC)
            answers = [
                bucket.begin((1, f"v{sequence}"), writer=1, sequence=sequence) for sequence in range(first, first + 5)
            ]
            codes = await outcome_codes(*answers)
            kept = codes.index(ErrorCode.LOG_STORAGE_EXCEPTION) if any(codes) else 5
            assert kept < 5
            # Once one is lost, so are those behind it: their writer sends them again in order.
            assert set(codes[kept:]) == {ErrorCode.LOG_STORAGE_EXCEPTION}
            for sequence in range(first + kept, first + 5):
                await bucket.put((1, f"v{sequence}"), writer=1, sequence=sequence)
            assert await bucket.rows() == [(1, f"v{first + 4}")]
        assert [row[1] for kind, row in bucket.changelog() if kind == "+U"] == [f"v{n}" for n in range(1, 41)]


async def test_a_lost_batch_that_others_are_waiting_on_fails_them_all(tmp_path):
    disk = new_disk(tmp_path)
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"), writer=1, sequence=0)
        disk.fail_next("write", "log-0", number=errno.ENOSPC)
        first = bucket.begin((1, "b"), writer=1, sequence=1)
        again = bucket.begin((1, "b"), writer=1, sequence=1)
        written = bucket.begin((5, "c"), acks=1)
        assert await outcome_codes(first, again, written) == [ErrorCode.LOG_STORAGE_EXCEPTION] * 3
        assert await bucket.rows() == [(1, "a")]


async def test_after_a_failed_sync_nothing_is_written_and_everything_can_be_read(tmp_path):
    disk = new_disk(tmp_path)
    async with hosting(tmp_path, files=disk) as bucket:
        await bucket.put((1, "a"))
        disk.fail_next("sync", "log-0")
        answers = [bucket.begin((number, "b")) for number in (2, 3, 4)]
        assert await outcome_codes(*answers) == [ErrorCode.STORAGE_EXCEPTION] * 3
        with pytest.raises(FlussError, match="read-only"):
            bucket.begin((2, "c"))
        assert await bucket.rows() == [(1, "a")]
    disk.crash(is_power_lost=False)
    async with hosting(tmp_path, files=disk) as bucket:
        # What was refused may have come to the disk all the same.
        assert [(1, "a"), (2, "b"), (3, "b"), (4, "b")][: bucket.log.offset_next] == await bucket.rows()
        await bucket.put((1, "c"))


def damage_tables(data_dir: Path) -> None:
    """Change bytes in the middle of every table of the store."""
    tables = list((data_dir / KV_DIRECTORY).glob("*.sst"))
    assert tables
    for table in tables:
        data = bytearray(table.read_bytes())
        # Behind the first block, which has the state, and before those that describe the table.
        middle = slice(len(data) // 4, len(data) // 2)
        data[middle] = bytes(byte ^ 0xFF for byte in data[middle])
        table.write_bytes(data)


async def put_many(bucket: Bucket) -> None:
    rng = random.Random(7)
    await bucket.put(*((number, rng.randbytes(100).hex()) for number in range(300)))


@pytest.mark.parametrize("harm", ["missing", "tables", "manifest", "current", "state"])
async def test_a_store_that_was_lost_or_damaged_is_built_again(tmp_path, harm):
    async with hosting(tmp_path) as bucket:
        await put_many(bucket)
        await bucket.put(Delete((5, None)), (200, "b"))
        rows = sorted(await bucket.rows())
    store = tmp_path / KV_DIRECTORY
    if harm == "missing":
        shutil.rmtree(store)
    elif harm == "tables":
        damage_tables(tmp_path)
    elif harm == "manifest":
        next(iter(store.glob("MANIFEST*"))).write_bytes(b"nonsense")
    elif harm == "current":
        (store / "CURRENT").unlink()
    else:
        for table in store.glob("*.sst"):
            table.unlink()
    async with hosting(tmp_path, kv=EAGER) as bucket:
        try:
            await bucket.kv.read(bucket.manager.readers, lambda store: store.first_values(300, bytes_max=10**6))
        except KvDamagedError:
            assert harm == "tables", "all other damage is found when the store is opened"
        else:
            assert harm != "tables", "damage that is read is found"
        assert sorted(await bucket.rows()) == rows
        assert await bucket.kv.row_count() == 299
        await bucket.put((200, "c"))
        assert bucket.changelog()[-2:] == [("-U", (200, "b")), ("+U", (200, "c"))]


async def test_damage_that_a_write_runs_into_is_repaired_and_the_batch_can_be_sent_again(tmp_path, caplog):
    async with hosting(tmp_path) as bucket:
        await put_many(bucket)
    damage_tables(tmp_path)
    async with hosting(tmp_path, kv=EAGER) as bucket:
        rows = [(number, "b") for number in range(100, 200)]
        assert await outcome_codes(bucket.begin(*rows, writer=1, sequence=0)) == [ErrorCode.KV_STORAGE_EXCEPTION]
        assert await bucket.put(*rows, writer=1, sequence=0) == 500
        assert sorted(await bucket.rows())[100:200] == rows
    assert "brought up to date from its changelog" in caplog.text


async def test_a_store_that_fails_while_batches_are_on_their_way_into_it_gets_them_from_the_changelog(tmp_path):
    disk = HeldDisk()
    async with hosting(tmp_path, files=disk, kv=EAGER) as bucket:
        await bucket.put((1, "a"))
        disk.hold()
        answers = [bucket.begin((number, "b")) for number in range(1, 4)]
        await eventually_async(lambda: bucket.log.offset_next == 5)
        store = await bucket.kv.store()
        bucket.kv.store_failed(store, KvDamagedError("the test says so"))
        bucket.kv.store_failed(store, KvDamagedError("and so do others"))
        disk.release()
        assert await outcome_codes(*answers) == [0, 0, 0]
        assert await bucket.rows() == [(1, "b"), (2, "b"), (3, "b")]
        assert await bucket.kv.row_count() == 3
        assert await bucket.kv.store() is not store
        await bucket.put((1, "c"))
        assert bucket.changelog()[-2:] == [("-U", (1, "b")), ("+U", (1, "c"))]


@pytest.mark.parametrize(
    "failure", [KvDamagedError("damage"), FlussError("a failure", ErrorCode.KV_STORAGE_EXCEPTION)], ids=str
)
async def test_a_store_that_is_opened_again_while_others_are_written_gets_what_only_the_old_one_was_known_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: FlussError
) -> None:
    is_written, are_others_written = threading.Event(), threading.Event()

    def with_others(writes: Sequence[StoreWrite]) -> list[FlussError | None]:
        outcomes = write_to_stores(writes)
        is_written.set()
        assert are_others_written.wait(120), "the test forgot to go on"
        return outcomes

    async with hosting(tmp_path, kv=EAGER, shares=True) as bucket:
        await bucket.put((1, "a"))
        monkeypatch.setattr(joint_work, "write_to_stores", with_others)
        rows = [(number, "b") for number in range(1000)]
        answer = bucket.begin(*rows)
        assert await asyncio.to_thread(is_written.wait, 120)
        store = await bucket.kv.store()
        bucket.kv.store_failed(store, failure)
        assert await bucket.kv.store() is not store
        are_others_written.set()
        await answer
        assert sorted(await bucket.rows()) == rows
        await bucket.put((1000, "c"))
        assert sorted(await bucket.rows()) == [*rows, (1000, "c")]
        assert await bucket.kv.row_count() == 1001
    assert "it is built again" not in caplog.text, "a store that has more than readers see is as good as any other"


async def is_open(bucket) -> bool:
    """Whether the store of a bucket can be had now."""
    try:
        await bucket.kv.store()
    except FlussError:
        return False
    return True


async def test_a_store_that_cannot_be_opened_is_tried_again_after_a_while(tmp_path):
    async with hosting(tmp_path) as bucket:
        await bucket.put((1, "a"))
    store = tmp_path / KV_DIRECTORY
    shutil.rmtree(store)
    store.write_bytes(b"a file where the directory should be")
    async with hosting(tmp_path, kv=KvSettings(open_retry_ms=2000)) as bucket:
        answers = [bucket.begin((number, "b")) for number in range(3)]
        codes = await outcome_codes(*answers)
        assert set(codes) == {ErrorCode.KV_STORAGE_EXCEPTION}
        store.unlink()
        with pytest.raises(FlussError):
            await bucket.kv.store()
        await eventually_async(lambda: is_open(bucket))
        assert await bucket.rows() == [(1, "a")]
        await bucket.put((2, "b"))
        assert bucket.manager.kv_runtime.memory.held_bytes == 0


async def test_a_crash_loses_nothing_that_was_acknowledged(tmp_path):
    data_dir = tmp_path / "0"
    expected: dict[int, str] = {}
    for run_number in range(4):
        async with hosting(data_dir) as bucket:
            assert dict(await bucket.rows()) == expected
            for number in range(run_number, 20, 3):
                expected[number] = f"run {run_number}"
                await bucket.put((number, expected[number]))
                if number == 9:
                    await bucket.kv.flush()
            expected.pop(3, None)
            await bucket.put(Delete((3, None)))
            # Not acknowledged, so it may be there or not.
            bucket.begin((3, "never"), acks=1)
            data_dir = crashed(data_dir, tmp_path / f"{run_number + 1}")
            async with hosting(data_dir) as after:
                found = dict(await after.rows())
                found.pop(3, None)
                assert found == expected
                await after.put(Delete((3, None)))
        assert bucket.log.offset_next > 0


async def test_a_store_that_fails_again_and_again_is_left_alone_for_a_while(tmp_path, caplog):
    async with hosting(tmp_path, kv=KvSettings(open_retry_ms=2000)) as bucket:
        await bucket.put((1, "a"))
        assert bucket.manager.health().active_count == 1
        for _ in range(2):
            store = await bucket.kv.store()
            bucket.kv.store_failed(store, FlussError("the disk is full", ErrorCode.KV_STORAGE_EXCEPTION))
        with pytest.raises(FlussError, match="the disk is full"):
            await bucket.kv.store()
        assert bucket.manager.health().active_count == 0
        assert await outcome_codes(bucket.begin((2, "b"))) == [ErrorCode.KV_STORAGE_EXCEPTION]
        await eventually_async(lambda: is_open(bucket))
        await bucket.put((2, "b"))
        assert await bucket.rows() == [(1, "a"), (2, "b")]
        assert bucket.manager.health().active_count == 1
