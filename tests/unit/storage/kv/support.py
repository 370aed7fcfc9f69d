"""What the tests of key-value stores share: small stores, rows that tell who wrote them, and what a crash leaves."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fluss.record.mutations import FoundRows, Mutations
from fluss.record.value_batch import SCHEMA_ID_BYTES, decode_value
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys
from fluss.storage.kv.store import KvResources, KvSnapshot, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings

# As small as RocksDB lets it be: a few hundred rows fill it.
SMALL = KvStoreSettings(write_buffer_bytes=64 * 1024, block_cache_bytes=1024 * 1024)
BYTES_MAX = 1 << 30
# Of the rows that tests write when they do not care. Its two bytes differ.
SCHEMA_ID = 0x0201
Rows = dict[bytes, bytes]


@contextmanager
def open_store(directory: Path, resources: KvResources | None = None) -> Iterator[KvStore]:
    store = KvStore.open(directory, resources or KvResources(SMALL))
    try:
        yield store
    finally:
        store.close()


def keyed_rows(keys: Sequence[bytes], rows: Sequence[bytes | None], schema_id: int = SCHEMA_ID) -> Mutations:
    """Return what a store takes: None removes a key, and of equal keys the last counts."""
    last = dict(zip(keys, rows, strict=True))
    assert b"" not in last.values(), "a store has no empty rows"
    return Mutations(
        HashedKeys.from_list(list(last)), EncodedRows.from_list([row or b"" for row in last.values()]), schema_id
    )


def write(store: KvStore, keys: Sequence[bytes], rows: Sequence[bytes | None], state: KvState) -> None:
    """Put rows under their keys, all at once."""
    store.write([keyed_rows(keys, rows)], state)


def get_many(store: KvStore, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None]:
    """Return the row of each key, None where there is none."""
    return rows_or_none(store.get_many(keys, bytes_max=bytes_max))


def get_cached(store: KvStore, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None] | None:
    """Return the row of each key if memory tells; None if it does not."""
    values = store.get_cached(keys, bytes_max=bytes_max)
    return None if values is None else rows_or_none(values)


def find(store: KvStore, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None]:
    """Return the row of each key, looked up by columns."""
    return listed(store.find(HashedKeys.from_list(list(keys)), bytes_max=bytes_max), len(keys))


def find_cached(store: KvStore, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None] | None:
    """Return the row of each key, looked up by columns, if memory tells; None if it does not."""
    found = store.find_cached(HashedKeys.from_list(list(keys)), bytes_max=bytes_max)
    return None if found is None else listed(found, len(keys))


def listed(found: FoundRows, key_count: int) -> list[bytes | None]:
    """Return the row of each key that was looked for, and check what else is said about them."""
    rows: dict[int, bytes] = {}
    lengths: list[int] = []
    for numbers, stored in found.groups:
        values = stored.to_list()
        lengths += map(len, values)
        for number, row in zip(numbers.tolist(), rows_in(values), strict=True):
            assert number not in rows, "a key that was found twice"
            rows[number] = row
    assert found.numbers.tolist() == list(rows)
    assert found.value_lengths.tolist() == lengths
    return [rows.get(number) for number in range(key_count)]


def rows_of(store: KvStore) -> list[bytes]:
    """Return all rows in key order."""
    return first_rows(store, 1 << 40)


def first_rows(store: KvStore, count: int, *, bytes_max: int = BYTES_MAX) -> list[bytes]:
    return rows_in(store.first_values(count, bytes_max=bytes_max))


def prefix_rows(store: KvStore, prefix: bytes, *, bytes_max: int = BYTES_MAX) -> list[bytes]:
    return rows_in(store.prefix_values(prefix, bytes_max=bytes_max))


def read(snapshot: KvSnapshot, bytes_target: int = BYTES_MAX, rows_max: int = 1 << 40) -> list[bytes]:
    return rows_in(snapshot.read(bytes_target, rows_max))


def rows_in(values: Sequence[bytes]) -> list[bytes]:
    """Return values without their schema ids, which are all the usual one."""
    assert {decode_value(value)[0] for value in values} <= {SCHEMA_ID}
    return [value[SCHEMA_ID_BYTES:] for value in values]


def rows_or_none(values: Sequence[bytes | None]) -> list[bytes | None]:
    rows = iter(rows_in([value for value in values if value is not None]))
    return [None if value is None else next(rows) for value in values]


def sorted_values(model: Mapping[bytes, bytes]) -> list[bytes]:
    return [model[key] for key in sorted(model)]


def apply(model: Rows, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
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
    write(store, keys, values, KvState(number, len(model)))


def copy_as_after_a_crash(directory: Path, copy: Path) -> None:
    """Copy the files of open stores as they are at one moment: what was written and not flushed is not among them."""
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        # RocksDB may remove a file at any time.
        with suppress(OSError):
            before = _listing(directory)
            shutil.copytree(directory, copy)
            if before == _listing(directory):
                return


def _listing(directory: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size) for path in directory.rglob("*") if path.name != "LOG")


def run_child(program: str, *arguments: str) -> str:
    """Run a program that may set limits for its process, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
