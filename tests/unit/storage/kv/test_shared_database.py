"""A shared database does not keep files of stores that were removed, nor bring back their rows after a crash.
Shown with hundreds of ranges that are written, removed and reclaimed, and with copies of a directory in use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fluss.storage.kv import rocks
from fluss.storage.kv.bucket_prefix import bucket_prefix, prefix_range, table_range
from fluss.storage.kv.rocks import KvResources
from fluss.storage.kv.shared_database import SharedDatabase


def sst_files(directory: Path) -> int:
    return len(list(directory.glob("*.sst")))


def test_tables_that_come_and_go_leave_no_files_behind(tmp_path: Path) -> None:
    shared = SharedDatabase(0, tmp_path / "0", KvResources())
    with shared as database:
        database[bucket_prefix(1, None, 0) + b"stays"] = b"value"
    shared.flush()
    for table_id in range(2, 50):
        with shared as database:
            for number in range(10):
                database[bucket_prefix(table_id, None, 0) + b"%d" % number] = b"value"
        assert shared.remove(table_range(table_id))
        shared.reclaim(table_range(table_id))
    assert sst_files(tmp_path / "0") <= 2
    with shared as database:
        assert database[bucket_prefix(1, None, 0) + b"stays"] == b"value"
    shared.give_up()
    shared.close()


@pytest.mark.parametrize("is_removed_before", [False, True])
def test_rows_that_were_removed_durably_do_not_come_back_after_a_crash(tmp_path: Path, is_removed_before: bool) -> None:
    resources = KvResources()
    shared = SharedDatabase(0, tmp_path / "0", resources)
    removed, kept = bucket_prefix(1, None, 0), bucket_prefix(1, None, 1)
    with shared as database:
        database[removed + b"key"] = database[kept + b"key"] = b"value"
    shared.flush()
    if is_removed_before:
        # Not yet on the disk.
        assert shared.remove(prefix_range(removed))
    assert shared.remove(prefix_range(removed), durably=True) is not is_removed_before
    shutil.copytree(tmp_path / "0", tmp_path / "crash")
    with SharedDatabase(0, tmp_path / "crash", resources) as database:
        assert rocks.next_keys(database, b"", 10) == [kept + b"key"]
