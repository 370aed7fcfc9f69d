"""A disk that takes nothing more is an error that says so; reads go on, nothing is lost, and reopening or room helps.
Children that limit the size of their files or their descriptors, and a directory that disappears."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.errors import ErrorCode
from fluss.storage.kv.store import KvDamagedError, KvResources, KvState, KvStore
from tests.unit.storage.kv.support import SMALL, get_many, open_store, rows_of, run_child, write

PRELUDE = """
import os, resource, sys
from pathlib import Path
from fluss.errors import FlussError
from fluss.storage.kv.store import KvDamagedError, KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import find, get_cached, get_many, rows_of, write
directory = Path(sys.argv[1])
resources = KvResources(KvStoreSettings(write_buffer_bytes=1 << 20))
keys = [b"%05d" % number for number in range(3000)]
def report(what, use):
    try: use(); print(what, "worked")
    except FlussError as error: print(what, type(error).__name__, error.error_code, error.message)
def has(rows):
    return get_many(store, keys) == find(store, keys) == rows
store = KvStore.open(directory, resources)
"""


def test_after_a_full_disk_reads_go_on_and_reopening_helps(tmp_path: Path) -> None:
    printed = run_child(
        PRELUDE
        + """
write(store, keys, keys, KvState(1, 3000))
store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
new = [os.urandom(50) for _ in keys]
write(store, keys, new, KvState(2, 3000))
report("flush", store.flush)
print("failed", store.has_failed, store.state.applied_offset, store.flushed_offset, has(new))
report("checkpoint", lambda: store.checkpoint(directory / "copy"))
print("state", store.state.applied_offset, has(new))
# A few rows would go to the database, and leave nothing behind. Many go to memory, not without end.
report("few", lambda: write(store, keys[:10], keys[:10], KvState(3, 3000)))
print("still", store.state.applied_offset, has(new))
offset = 2
try:
    for offset in range(2, 100):
        write(store, keys, [b"%d" % (offset + 1)] * 3000, KvState(offset + 1, 3000))
except FlussError as error:
    print("write", type(error).__name__, error.error_code, error.message)
print("then", offset < 20, store.state.applied_offset == offset, has([b"%d" % offset] * 3000), store.flushed_offset)
report("scan", lambda: rows_of(store))
report("snapshot", store.snapshot)
report("close", store.close)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store = KvStore.open(directory, resources)
print("again", store.has_failed, store.state.applied_offset, has(keys))
report("write again", lambda: write(store, keys, new, KvState(2, 3000)))
report("flush again", store.flush)
store.close()
print("left", resources.buffered_bytes)
""",
        str(tmp_path),
    )
    lines = printed.splitlines()
    assert [line for line in lines if "File too large" not in line] == [
        "failed True 2 1 True",
        "state 2 True",
        "still 2 True",
        "then True True True 1",
        "again False 1 True",
        "write again worked",
        "flush again worked",
        "left 0",
    ]
    refused = [line.split(" ", 3)[:3] for line in lines if "File too large" in line]
    assert refused == [
        [what, "FlussError", "11"] for what in ("flush", "checkpoint", "few", "write", "scan", "snapshot", "close")
    ]


def test_a_few_rows_are_refused_when_the_database_is_broken(tmp_path: Path) -> None:
    """They would go to its write buffer. Nothing of a write that fails is there, and the state is the old one."""
    printed = run_child(
        PRELUDE
        + """
keys = [b"%05d" % number for number in range(100)]
rows = [os.urandom(500) for _ in keys]
write(store, keys, rows, KvState(1, 100))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
report("flush", store.flush)
print("failed", store.has_failed, store.flushed_offset)
report("write", lambda: write(store, keys, keys, KvState(2, 100)))
print("then", store.state.applied_offset, has(rows), get_cached(store, keys) == rows, rows_of(store) == rows)
report("close", store.close)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store = KvStore.open(directory, resources)
print("again", store.state.applied_offset, has([None] * 100))
store.close()
""",
        str(tmp_path),
    )
    lines = printed.splitlines()
    assert [line for line in lines if "File too large" not in line] == [
        "failed True 0",
        "then 1 True True True",
        "again 0 True",
    ]
    refused = [line.split(" ", 3)[:3] for line in lines if "File too large" in line]
    assert refused == [[what, "FlussError", "11"] for what in ("flush", "write", "close")]


@pytest.mark.parametrize(
    ("kind", "trouble"), [("RLIMIT_FSIZE", "File too large"), ("RLIMIT_NOFILE", "Too many open files")]
)
def test_a_flush_that_has_no_room_is_done_again_when_there_is(tmp_path: Path, kind: str, trouble: str) -> None:
    """A table that cannot be written fails the writes behind it. Later they go on, without opening the store again."""
    printed = run_child(
        PRELUDE
        + """
kind = getattr(resource, sys.argv[2])
before = resource.getrlimit(kind)
soft = 200_000 if kind == resource.RLIMIT_FSIZE else len(os.listdir("/proc/self/fd")) - 1
keys = [b"%05d" % number for number in range(20_000)]
rows = [os.urandom(50) for _ in keys]
changed = keys[:500] + rows[500:]
write(store, keys, rows, KvState(1, 20_000))
resource.setrlimit(kind, (soft, before[1]))
kept = []
offset = 1
while len(kept) < 5:
    try:
        write(store, keys[:500], keys[:500], KvState(offset + 1, 20_000))
        offset += 1
    except FlussError as error:
        # An error that is kept keeps what it has to do with, also the file.
        kept.append(error)
        print("write", type(error).__name__, error.error_code, error.message)
print("before", has(rows if offset == 1 else changed), store.state.applied_offset == offset, store.flushed_offset)
resource.setrlimit(kind, before)
for number in range(5):
    offset += 1
    write(store, keys[:500], keys[:500], KvState(offset, 20_000))
    kept.pop()
print("after", store.has_failed, store.state.applied_offset == offset, has(changed))
report("flush", store.flush)
print("flushed", store.flushed_offset == offset, rows_of(store) == changed)
store.close()
store = KvStore.open(directory, resources)
print("again", store.state.applied_offset == offset, rows_of(store) == changed)
print("left", "rows.unfinished" in os.listdir(directory))
store.close()
""",
        str(tmp_path),
        kind,
    )
    lines = printed.splitlines()
    refused = [line for line in lines if trouble in line]
    assert refused
    assert all(line.split(" ", 3)[1:3] == ["FlussError", "11"] for line in refused)
    assert [line for line in lines if trouble not in line] == [
        "before True True 0",
        "after False True True",
        "flush worked",
        "flushed True True",
        "again True True",
        "left False",
    ]


def test_too_few_descriptors_are_not_damage(tmp_path: Path) -> None:
    printed = run_child(
        PRELUDE
        + """
write(store, keys, keys, KvState(1, 3000))
store.close()
used = len(os.listdir("/proc/self/fd"))
for more in range(3, 40):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, 4096))
    try: KvStore.open(directory, resources).close()
    except FlussError as error: print(type(error).__name__, error.message)
    else: break
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
store = KvStore.open(directory, resources)
print("then", has(keys))
store.close()
""",
        str(tmp_path),
    )
    *refusals, last = printed.splitlines()
    assert refusals
    assert all(line.startswith("FlussError") and "Too many open files" in line for line in refusals)
    assert last == "then True"


@pytest.mark.parametrize("row_count", [1, 500, 10_000], ids=["a few rows", "a memtable", "rows for an SST file"])
def test_a_store_whose_directory_disappears_is_damaged(tmp_path: Path, row_count: int) -> None:
    keys = [b"%05d" % number for number in range(row_count)]
    directory = tmp_path / "store"
    store = KvStore.open(directory, KvResources(SMALL))
    write(store, keys, keys, KvState(1, row_count))
    directory.rename(tmp_path / "elsewhere")
    with pytest.raises(KvDamagedError, match="No such file or directory") as caught:
        store.flush()
    assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
    assert store.has_failed or row_count == 10_000, "a table of its own is no concern of the database"
    assert get_many(store, keys) == keys
    with pytest.raises(KvDamagedError):
        store.close()
    with open_store(directory) as store:
        assert store.state == KvState()
        assert rows_of(store) == []
