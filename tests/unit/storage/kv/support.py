"""What the tests of key-value stores share: small stores, rows that tell who wrote them, and what a crash leaves."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from fluss.storage.kv.settings import KvStoreSettings
from fluss.storage.kv.store import KvResources, KvState, KvStore

# As small as RocksDB lets it be: a few hundred rows fill it.
SMALL = KvStoreSettings(write_buffer_bytes=64 * 1024, block_cache_bytes=1024 * 1024)
BYTES_MAX = 1 << 30
Rows = dict[bytes, bytes]


@contextmanager
def open_store(directory: Path, resources: KvResources | None = None) -> Iterator[KvStore]:
    store = KvStore.open(directory, resources or KvResources(SMALL))
    try:
        yield store
    finally:
        store.close()


def rows_of(store: KvStore) -> list[bytes]:
    """Return all values in key order."""
    return store.first_values(1 << 40, bytes_max=BYTES_MAX)


def sorted_values(model: Mapping[bytes, bytes]) -> list[bytes]:
    return [model[key] for key in sorted(model)]


def apply(model: Rows, keys: list[bytes], values: list[bytes | None]) -> None:
    """Do to a dict what ``write`` does to a store."""
    for key, value in zip(keys, values, strict=True):
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


def random_batch(number: int, row_count: int, key_count: int) -> tuple[list[bytes], list[bytes | None]]:
    """Return the same rows for the same number, with keys that batches have in common; a fifth are removals."""
    rng = random.Random(number)
    keys = [b"key-%06d" % rng.randrange(key_count) for _ in range(row_count)]
    return keys, [None if rng.random() < 0.2 else b"%d %s" % (number, rng.randbytes(60)) for _ in keys]


def write_batch(store: KvStore, model: Rows, number: int, *, row_count: int = 200, key_count: int = 300) -> None:
    """Write batch number N and let the applied offset be N."""
    keys, values = random_batch(number, row_count, key_count)
    apply(model, keys, values)
    store.write(keys, values, KvState(number, len(model)))


def copy_as_after_a_crash(directory: Path, copy: Path) -> None:
    """Copy the files of an open store as they are at one moment: what was written and not flushed is not among them."""
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        # RocksDB may remove a file at any time.
        with suppress(OSError):
            before = _listing(directory)
            shutil.copytree(directory, copy)
            if before == _listing(directory):
                return


def _listing(directory: Path) -> list[tuple[str, int]]:
    return sorted((path.name, path.stat().st_size) for path in directory.iterdir() if path.name != "LOG")


def run_child(program: str, *arguments: str) -> str:
    """Run a program that may set limits for its process, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
