"""Writes stop when the disk is too full and go on when there is room again, not before.

The ratio is the test's own; the real one is compared with what the operating system says.
"""

from __future__ import annotations

import asyncio
import shutil

import pytest

from fluss.errors import FlussError
from fluss.net.transport import run
from fluss.server.tablet.disk_guard import DiskGuard, disk_usage_ratio


class _Disk:
    """A disk of any fullness."""

    def __init__(self, tmp_path, ratio: float = 0.5, **ratios: float) -> None:
        self.ratio = ratio
        self.error: OSError | None = None
        ratios = {"limit_ratio": 0.85, "recover_ratio": 0.8, **ratios}
        self.guard = DiskGuard(tmp_path, usage_ratio=self._look, **ratios)

    def _look(self, path) -> float:
        if self.error is not None:
            raise self.error
        return self.ratio

    def is_locked_at(self, ratio: float) -> bool:
        self.ratio = ratio
        run(self.guard.check())
        return self.guard.is_locked


def test_writes_stop_above_the_limit_and_go_on_at_the_lower_one(tmp_path):
    disk = _Disk(tmp_path)
    ratios = [0.5, 0.85, 0.86, 0.85, 0.81, 0.8, 0.84, 0.99]
    assert [disk.is_locked_at(ratio) for ratio in ratios] == [False, False, True, True, True, False, False, True]
    with pytest.raises(FlussError, match=r"99% full; above 85% writes are refused until it is down to 80%") as refusal:
        disk.guard.check_write()
    assert refusal.value.error_code == 70


def test_a_limit_of_one_never_refuses_by_itself(tmp_path):
    disk = _Disk(tmp_path, limit_ratio=1.0, recover_ratio=1.0)
    assert not disk.is_locked_at(1.0)
    disk.guard.check_write()


def test_a_write_without_room_locks_at_once_until_a_look_finds_some(tmp_path):
    disk = _Disk(tmp_path, limit_ratio=1.0, recover_ratio=0.9)
    disk.guard.out_of_space()
    with pytest.raises(FlussError, match="no room left"):
        disk.guard.check_write()
    assert disk.is_locked_at(1.0)
    assert not disk.is_locked_at(0.95)


async def test_a_write_that_fails_during_the_look_counts_more_than_the_look(tmp_path):
    disk = _Disk(tmp_path)
    check = asyncio.create_task(disk.guard.check())
    await asyncio.sleep(0)
    disk.guard.out_of_space()
    await check
    assert disk.guard.is_locked
    await disk.guard.check()
    assert not disk.guard.is_locked


def test_a_disk_that_cannot_be_looked_at_changes_nothing(tmp_path):
    disk = _Disk(tmp_path)
    assert disk.is_locked_at(0.9)
    disk.error = OSError("gone")
    assert disk.is_locked_at(0.1)


def test_new_limits_hold_from_the_next_look_on(tmp_path):
    disk = _Disk(tmp_path)
    assert not disk.is_locked_at(0.7)
    disk.guard.set_ratios(limit_ratio=0.6, recover_ratio=0.5)
    assert not disk.guard.is_locked
    assert disk.is_locked_at(0.7)


def test_the_real_ratio_is_that_of_the_operating_system(tmp_path):
    usage = shutil.disk_usage(tmp_path)
    assert disk_usage_ratio(tmp_path) == pytest.approx(1 - usage.free / usage.total, abs=0.05)
