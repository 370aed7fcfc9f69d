"""After kill -9 a store is at its state or a little ahead, and applying the rest again brings it to the last write.
A child process writes numbered batches, with and without flushes and tables of its own, until it is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.storage.kv.support import Rows, apply, get_many, open_store, random_batch, rows_of, sorted_values, write

ROW_COUNT = 1500
KEY_COUNT = 2500
CHILD = f"""
import sys
from pathlib import Path
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import random_batch, write

is_flushing = sys.argv[2] == "flushes"
sst_rows_min = 500 if sys.argv[2] == "makes SST files" else 8192
settings = KvStoreSettings(write_buffer_bytes=128 * 1024, sst_rows_min=sst_rows_min)
store = KvStore.open(Path(sys.argv[1]), KvResources(settings))
number = store.state.applied_offset
while True:
    number += 1
    write(store, *random_batch(number, {ROW_COUNT}, {KEY_COUNT}), KvState(number, None))
    if is_flushing and number % 3 == 0:
        store.flush()
    print(number, store.flushed_offset, flush=True)
"""


@pytest.mark.parametrize("mode", ["flushes", "never flushes", "makes SST files"])
def test_a_killed_writer_loses_nothing_that_its_state_claims(tmp_path: Path, mode: str) -> None:
    rng = random.Random(7)
    for _ in range(2):
        written, flushed_offset = run_and_kill(tmp_path, mode, batch_count=rng.randrange(5, 25))
        assert flushed_offset or mode == "never flushes"
        with open_store(tmp_path) as store:
            applied_offset = store.state.applied_offset
            # The last batch may be complete in the store before the child could say so.
            assert flushed_offset <= applied_offset <= written + 1
            assert_store_is_at(applied_offset, written + 1, get_many(store, KEYS))
            for number in range(applied_offset + 1, written + 1):
                write(store, *random_batch(number, ROW_COUNT, KEY_COUNT), store.state)
            assert rows_of(store) == sorted_values(model_after(max(written, applied_offset)))


KEYS = [b"key-%06d" % number for number in range(KEY_COUNT)]


def run_and_kill(directory: Path, mode: str, batch_count: int) -> tuple[int, int]:
    """Return the last batch that the child has reported, and its flushed offset then."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), mode],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    ) as child:
        assert child.stdout is not None
        line = ""
        for _ in range(batch_count):
            line = child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        line = (child.stdout.read().splitlines() or [line])[-1]
    number, flushed_offset = line.split()
    return int(number), int(flushed_offset)


def model_after(batch_count: int) -> Rows:
    model: Rows = {}
    for number in range(1, batch_count + 1):
        apply(model, *random_batch(number, ROW_COUNT, KEY_COUNT))
    return model


def assert_store_is_at(applied_offset: int, begun: int, found: list[bytes | None]) -> None:
    """Each key has what it had at the applied offset, or what one of the batches begun since then gave it."""
    model = model_after(applied_offset)
    allowed = {key: {model.get(key)} for key in KEYS}
    for number in range(applied_offset + 1, begun + 1):
        for key, value in zip(*random_batch(number, ROW_COUNT, KEY_COUNT), strict=True):
            allowed[key].add(value)
    assert [key for key, value in zip(KEYS, found, strict=True) if value not in allowed[key]] == []
