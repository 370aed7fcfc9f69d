"""A disk that takes nothing more is an error that says so; what was read before can still be read, and reopening helps.
Children that limit the size of their files or their descriptors, and a directory that disappears."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.errors import ErrorCode
from fluss.storage.kv.store import KvDamagedError, KvResources, KvState, KvStore
from tests.unit.storage.kv.support import SMALL, open_store, rows_of, run_child

PRELUDE = """
import os, resource, sys
from pathlib import Path
from fluss.errors import FlussError
from fluss.storage.kv.store import KvDamagedError, KvResources, KvState, KvStore
from fluss.storage.kv.settings import KvStoreSettings
directory = Path(sys.argv[1])
resources = KvResources(KvStoreSettings(write_buffer_bytes=1 << 20))
keys = [b"%05d" % number for number in range(3000)]
def report(what, use):
    try: use(); print(what, "worked")
    except FlussError as error: print(what, type(error).__name__, error.error_code, error.message)
store = KvStore.open(directory, resources)
"""


def test_after_a_full_disk_reads_go_on_and_reopening_helps(tmp_path: Path) -> None:
    printed = run_child(
        PRELUDE
        + """
store.write(keys, keys, KvState(1, 3000))
store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
new = [os.urandom(50) for _ in keys]
store.write(keys, new, KvState(2, 3000))
report("flush", store.flush)
print("failed", store.has_failed, store.state.applied_offset, store.flushed_offset)
report("write", lambda: store.write(keys, keys, KvState(3, 3000)))
print("state", store.state.applied_offset, store.get_many(keys) == new)
report("checkpoint", lambda: store.checkpoint(directory / "copy"))
report("close", store.close)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store = KvStore.open(directory, resources)
print("again", store.has_failed, store.state.applied_offset, store.get_many(keys) == keys)
report("write again", lambda: store.write(keys, new, KvState(2, 3000)))
store.close()
""",
        str(tmp_path),
    )
    lines = printed.splitlines()
    assert [line for line in lines if "File too large" not in line] == [
        "failed True 2 1",
        "state 2 True",
        "again False 1 True",
        "write again worked",
    ]
    refused = [line.split(" ", 3)[:3] for line in lines if "File too large" in line]
    assert refused == [[what, "FlussError", "11"] for what in ("flush", "write", "checkpoint", "close")]


def test_too_few_descriptors_are_not_damage(tmp_path: Path) -> None:
    printed = run_child(
        PRELUDE
        + """
store.write(keys, keys, KvState(1, 3000))
store.close()
used = len(os.listdir("/proc/self/fd"))
for more in range(3, 40):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, 4096))
    try: KvStore.open(directory, resources).close()
    except FlussError as error: print(type(error).__name__, error.message)
    else: break
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
store = KvStore.open(directory, resources)
print("then", store.get_many(keys) == keys)
store.close()
""",
        str(tmp_path),
    )
    *refusals, last = printed.splitlines()
    assert refusals
    assert all(line.startswith("FlussError") and "Too many open files" in line for line in refusals)
    assert last == "then True"


def test_a_store_whose_directory_disappears_is_damaged(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    store = KvStore.open(directory, KvResources(SMALL))
    store.write([b"a"], [b"1"], KvState(1, 1))
    directory.rename(tmp_path / "elsewhere")
    with pytest.raises(KvDamagedError, match="No such file or directory") as caught:
        store.flush()
    assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
    assert store.has_failed
    assert store.get_many([b"a"]) == [b"1"]
    with pytest.raises(KvDamagedError):
        store.close()
    with open_store(directory) as store:
        assert store.state == KvState()
        assert rows_of(store) == []
