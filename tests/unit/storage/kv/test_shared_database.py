"""A shared database does not keep files of stores that were removed.
Shown with hundreds of ranges that are written, removed and reclaimed."""

from __future__ import annotations

from pathlib import Path

from fluss.storage.kv.bucket_prefix import bucket_prefix, table_range
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
