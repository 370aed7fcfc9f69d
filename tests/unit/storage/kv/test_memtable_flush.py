"""Recent rows reach the database in the order of its keys, and with their state only when all of them are there.
Real stores; flushes that are interrupted, that fail and are done again, and copies of the files half way."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.row.encoded import EncodedRows
from fluss.storage.kv import flush, rocks
from fluss.storage.kv.place import UNFINISHED_NAME
from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.testing.waiting import eventually
from tests.unit.storage.kv.support import (
    SMALL,
    Rows,
    apply,
    copy_as_after_a_crash,
    find,
    get_many,
    open_store,
    read,
    rows_of,
    sorted_values,
    write,
)

WAYS = {"as an SST file": 1, "through the write buffer": 10**9}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """One of the two ways that rows of a memtable take."""
    return str(request.param)


def settings_of(way: str, settings: KvStoreSettings | None = None) -> KvStoreSettings:
    """Have all rows take one of the two ways, and none go to the database directly."""
    return replace(settings or KvStoreSettings(), sst_rows_min=WAYS[way], direct_rows_max=0)


def random_keys(rng: random.Random, count: int, length_max: int) -> list[bytes]:
    """Return keys with much in common: prefixes, zeros at the end, lengths around those of words."""
    heads = [b"", b"\x00" * 8, b"prefix", b"\xff" * 7, rng.randbytes(15)]
    keys: set[bytes] = set()
    while len(keys) < count:
        key = rng.choice(heads) + rng.randbytes(rng.choice((0, 1, 2, 8, 30))) + bytes(rng.choice((0, 0, 1, 2, 9)))
        key = key[:length_max]
        keys |= {key, key[:8], key[:-1] + b"\x00", key + b"\x00", key[:-1]}
    return [key[:length_max] for key in rng.sample(sorted(keys), len(keys)) if key]


# The order of keys


@pytest.mark.parametrize("length_max", [1, 7, 8, 9, 16, 32, 33, 40])
def test_keys_are_ordered_like_bytes(length_max: int) -> None:
    rng = random.Random(length_max)
    keys = list(dict.fromkeys(random_keys(rng, 100 if length_max == 1 else 500, length_max)))
    order = flush._key_order(EncodedRows.from_list(keys))
    assert [keys[number] for number in order.tolist()] == sorted(keys)


def test_no_key_and_one_key_are_in_order() -> None:
    assert flush._key_order(EncodedRows.from_list([])).tolist() == []
    assert flush._key_order(EncodedRows.from_list([b"a"])).tolist() == [0]
    assert flush._key_order(EncodedRows.from_list([b"a" * 100])).tolist() == [0]


@pytest.mark.parametrize("length_max", [8, 32, 40])
def test_the_order_is_the_one_of_the_database(tmp_path: Path, way: str, length_max: int) -> None:
    """A table takes keys in its own order only, and a scan gives them back in it."""
    keys = list(dict.fromkeys(random_keys(random.Random(length_max), 3000, length_max)))
    with open_store(tmp_path, KvResources(settings_of(way))) as store:
        write(store, keys, keys, KvState(1, len(keys)))
        assert rows_of(store) == sorted(keys)
        assert get_many(store, keys) == find(store, keys) == keys
        assert (store.flushed_offset == 1) == (way == "as an SST file")
        with store._database as database:
            iterator = rocks.scan(database, b"")
            assert iterator.key() == b"", "the state is the first of all"
            iterator.next()
            in_database = []
            while iterator.valid():
                in_database.append(iterator.key())
                iterator.next()
            del iterator
        assert in_database == sorted(keys)
        assert all(left < right for left, right in pairwise(in_database))


def test_many_rows_become_a_table_without_being_asked_to(tmp_path: Path) -> None:
    keys = [b"%05d" % number for number in range(20_000)]
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        write(store, keys[:8000], keys[:8000], KvState(1, 8000))
        assert len(rows_of(store)) == 8000
        assert list(tmp_path.glob("*.sst")) == [], "not so many"
        write(store, keys, keys, KvState(2, 20_000))
        assert rows_of(store) == keys
        assert list(tmp_path.glob("*.sst"))
        assert store.flushed_offset == 2


# Removals


def test_removals_remove_what_lies_below(tmp_path: Path, way: str) -> None:
    rng = random.Random(1)
    keys = [b"%05d" % number for number in range(3000)]
    model: Rows = {}
    with open_store(tmp_path / "store", KvResources(settings_of(way))) as store:
        for number in range(1, 8):
            some = rng.sample(keys, 1500)
            rows = [None if rng.random() < 0.5 else b"%d %s" % (number, key) for key in some]
            apply(model, some, rows)
            write(store, some, rows, KvState(number, len(model)))
            snapshot = store.snapshot()
            assert snapshot.state == KvState(number, len(model))
            assert read(snapshot) == rows_of(store) == sorted_values(model)
            assert get_many(store, keys) == find(store, keys) == [model.get(key) for key in keys]
        write(store, keys, [None] * 3000, KvState(8, 0))
        assert rows_of(store) == []
    with open_store(tmp_path / "store") as store:
        assert store.state == KvState(8, 0)
        assert rows_of(store) == []


def test_of_rows_that_came_several_times_the_last_is_brought(tmp_path: Path, way: str) -> None:
    keys = [b"%05d" % number for number in range(500)]
    with open_store(tmp_path / "store", KvResources(settings_of(way))) as store:
        for number in range(1, 6):
            write(store, keys, [b"%d" % number] * 500, KvState(number, 500))
        write(store, keys[:100], [None] * 100, KvState(6, 400))
        write(store, keys[:50], [b"back"] * 50, KvState(7, 450))
        store.flush()
        expected = [b"back"] * 50 + [b"5"] * 400
        assert rows_of(store) == expected
        copy_as_after_a_crash(tmp_path / "store", tmp_path / "copy")
    with open_store(tmp_path / "copy") as copy:
        assert copy.state == KvState(7, 450)
        assert rows_of(copy) == expected


# Half way


def test_the_state_comes_with_the_last_of_the_rows(tmp_path: Path, way: str) -> None:
    """Whenever the machine stops while rows are flushed: the state is an old one, or all rows are there."""
    old = [b"%05d" % number for number in range(4000)]
    new = [bytes(200) + b"%05d" % number for number in range(4000)]
    copies: list[tuple[Path, list[str]]] = []

    def copy(_: float) -> None:
        if is_copying:
            path = tmp_path / f"copy-{len(copies)}"
            copy_as_after_a_crash(tmp_path / "store", path)
            copies.append((path, sorted(file.name for file in path.iterdir())))

    is_copying = False
    with open_store(tmp_path / "store", KvResources(settings_of(way, SMALL), sleep=copy)) as store:
        write(store, old, old, KvState(1, 4000))
        store.flush()
        write(store, old, new, KvState(2, 4000))
        is_copying = True
        store.flush()
        is_copying = False
        copy_as_after_a_crash(tmp_path / "store", tmp_path / "last")
    assert len(copies) >= 3
    assert any(UNFINISHED_NAME in names for _, names in copies) == (way == "as an SST file")
    for path, _ in copies:
        with open_store(path) as left:
            assert not (path / UNFINISHED_NAME).exists()
            assert left.state in (KvState(1, 4000), KvState(2, 4000))
            rows = rows_of(left)
            if left.state == KvState(2, 4000):
                assert rows == new
            elif way == "as an SST file":
                assert rows == old, "a table is there as a whole or not at all"
            else:
                assert all(row in pair for row, *pair in zip(rows, old, new, strict=True))
            # From here the changelog is applied again.
            write(left, old, new, KvState(2, 4000))
            left.flush()
            assert rows_of(left) == new
    with open_store(tmp_path / "last") as left:
        assert left.state == KvState(2, 4000)
        assert rows_of(left) == new


def test_what_an_interrupted_flush_has_left_is_removed(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write(store, [b"a"], [b"1"], KvState(1, 1))
    for data in (b"", b"half a table" * 1000):
        (tmp_path / UNFINISHED_NAME).write_bytes(data)
        with open_store(tmp_path) as store:
            assert not (tmp_path / UNFINISHED_NAME).exists()
            assert rows_of(store) == [b"1"]
    assert not (tmp_path / UNFINISHED_NAME).exists()


def test_a_checkpoint_has_nothing_unfinished(tmp_path: Path) -> None:
    keys = [b"%05d" % number for number in range(20_000)]
    with open_store(tmp_path / "store", KvResources(KvStoreSettings(write_buffer_bytes=256 * 1024))) as store:
        write(store, keys, keys, KvState(1, 20_000))
        write(store, keys[:200], keys[:200], KvState(2, 20_000))
        assert (tmp_path / "store" / UNFINISHED_NAME).exists(), "half way"
        assert store.checkpoint(tmp_path / "copy") == KvState(2, 20_000)
        assert not (tmp_path / "copy" / UNFINISHED_NAME).exists()
    with open_store(tmp_path / "copy") as copy:
        assert rows_of(copy) == keys


@pytest.mark.parametrize("finish", [KvStore.flush, rows_of, KvStore.snapshot, KvStore.close])
def test_a_call_that_needs_all_rows_finishes_a_flush_that_is_half_way(
    tmp_path: Path, finish: Callable[[KvStore], object]
) -> None:
    keys = [b"%05d" % number for number in range(20_000)]
    changed = [b"new"] * 200 + keys[200:]
    store = KvStore.open(tmp_path, KvResources(KvStoreSettings(write_buffer_bytes=256 * 1024)))
    write(store, keys, keys, KvState(1, 20_000))
    write(store, keys[:200], [b"new"] * 200, KvState(2, 20_000))
    assert (tmp_path / UNFINISHED_NAME).exists(), "half way"
    assert get_many(store, keys) == find(store, keys) == changed
    finish(store)
    assert not (tmp_path / UNFINISHED_NAME).exists()
    store.close()
    with open_store(tmp_path) as store:
        assert store.state == KvState(2, 20_000)
        assert rows_of(store) == changed


# Failures


class LibraryFault:
    """A function of the library that fails a few times, and then works again."""

    def __init__(self, function: Callable[..., object], count: int) -> None:
        self.function = function
        self.left = count

    def __call__(self, *arguments: object) -> object:
        if self.left:
            self.left -= 1
            raise Exception("IO error: No space left on device: of a test")
        return self.function(*arguments)


@pytest.mark.parametrize("name", ["ingest", "sst_writer"])
def test_a_flush_that_failed_is_done_again_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keys = [b"%05d" % number for number in range(20_000)]
    fault = LibraryFault(getattr(rocks, name), 3)
    with open_store(tmp_path / "store", KvResources(KvStoreSettings())) as store:
        write(store, keys, keys, KvState(1, 20_000))
        store.flush()
        write(store, keys, [b"new"] * 20_000, KvState(2, 20_000))
        monkeypatch.setattr(rocks, name, fault)
        for use in (store.flush, store.snapshot, lambda: rows_of(store)):
            with pytest.raises(FlussError, match="No space left on device") as caught:
                use()
            assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
            assert get_many(store, keys) == find(store, keys) == [b"new"] * 20_000
            assert store.state.applied_offset == 2
            assert store.flushed_offset == 1
            assert not store.has_failed
        # Writes go on meanwhile, as long as there is room; what is left of the failed flushes does not matter.
        write(store, keys[:300], [None] * 300, KvState(3, 19_700))
        copy_as_after_a_crash(tmp_path / "store", tmp_path / "copy")
        assert fault.left == 0
        store.flush()
        assert store.flushed_offset == 3
        assert rows_of(store) == [b"new"] * 19_700
    with open_store(tmp_path / "copy") as copy:
        assert copy.state == KvState(1, 20_000)
        assert rows_of(copy) == keys
    with open_store(tmp_path / "store") as store:
        assert store.state == KvState(3, 19_700)
        assert rows_of(store) == [b"new"] * 19_700


def test_a_write_fails_when_the_flush_before_it_does_and_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"%05d" % number for number in range(20_000)]
    resources = KvResources(KvStoreSettings(write_buffer_bytes=256 * 1024))
    with open_store(tmp_path, resources) as store:
        write(store, keys, keys, KvState(1, 20_000))
        fault = LibraryFault(rocks.sst_writer, 3)
        monkeypatch.setattr(rocks, "sst_writer", fault)
        used = resources.buffered_bytes
        while fault.left:
            with pytest.raises(FlussError, match="No space left on device"):
                write(store, keys, [b"new"] * 20_000, KvState(2, 20_000))
            assert store.state == KvState(1, 20_000)
            assert get_many(store, keys) == keys
            assert resources.buffered_bytes == used
        write(store, keys, [b"new"] * 20_000, KvState(2, 20_000))
        assert rows_of(store) == [b"new"] * 20_000


def test_closing_after_a_flush_that_failed_leaves_what_was_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"%05d" % number for number in range(20_000)]
    resources = KvResources(KvStoreSettings())
    empty = resources.buffered_bytes
    store = KvStore.open(tmp_path, resources)
    write(store, keys[:1000], keys[:1000], KvState(1, 1000))
    store.flush()
    write(store, keys, keys, KvState(2, 20_000))
    with monkeypatch.context() as patch:
        patch.setattr(rocks, "ingest", LibraryFault(rocks.ingest, 1))
        with pytest.raises(FlussError, match="No space left on device"):
            store.close()
    store.close()
    assert resources.buffered_bytes <= empty
    with open_store(tmp_path) as store:
        assert not (tmp_path / UNFINISHED_NAME).exists()
        assert store.state == KvState(1, 1000)
        assert rows_of(store) == keys[:1000]


def test_with_too_many_files_at_level_0_a_flush_waits_and_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    keys = [b"%05d" % number for number in range(20_000)]
    with open_store(tmp_path, KvResources(KvStoreSettings(stall_ms_max=20), sleep=pauses.append)) as store:
        write(store, keys, keys, KvState(1, 20_000))
        with monkeypatch.context() as patch:
            patch.setattr(flush, "_LEVEL0_FILES_MAX", 0)
            with pytest.raises(FlussError, match="waited 20 ms for the disk to catch up"):
                store.flush()
        assert sum(pause for pause in pauses if pause > 1e-3) == pytest.approx(0.02)
        assert get_many(store, keys) == keys
        assert not store.has_failed
        store.flush()
        assert store.flushed_offset == 1
        assert rows_of(store) == keys


def test_an_error_that_is_kept_does_not_spoil_the_next_file(tmp_path: Path) -> None:
    """It keeps the file of the flush that was interrupted, and what was to be written to it: when it is dropped, too
    late, the flush that is done again has come far."""
    rng = random.Random(1)
    keys = [b"%06d" % number for number in range(30_000)]
    rows: list[bytes | None] = [rng.randbytes(100) for _ in keys]
    kept: list[BaseException] = []
    pauses = 0

    def sleep(_: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 15:
            raise KeyboardInterrupt
        if pauses == 40:
            kept.clear()
            gc.collect()

    with open_store(tmp_path, KvResources(KvStoreSettings(), sleep=sleep)) as store:
        write(store, keys, rows, KvState(1, 30_000))
        try:
            store.flush()
        except KeyboardInterrupt as error:
            kept.append(error)
        assert kept
        assert get_many(store, keys) == rows
        store.flush()
        assert not kept
        assert store.flushed_offset == 1
        assert get_many(store, keys) == rows
        assert rows_of(store) == rows


# Beside reads


def test_reads_see_the_same_at_every_step_of_a_flush(tmp_path: Path, way: str) -> None:
    keys = [b"%05d" % number for number in range(5000)]
    expected: list[bytes | None] = [None if number % 3 == 0 else b"new %d" % number for number in range(5000)]
    looks = 0

    def look(_: float) -> None:
        nonlocal looks
        if is_looking:
            looks += 1
            assert get_many(store, keys) == find(store, keys) == expected
            assert all(store.get_cached([key]) in (None, store.get_many([key])) for key in keys[:: 50 + looks])

    is_looking = False
    with open_store(tmp_path, KvResources(settings_of(way), sleep=look)) as store:
        write(store, keys, [b"old"] * 5000, KvState(1, 5000))
        store.flush()
        write(store, keys, expected, KvState(2, 3333))
        is_looking = True
        store.flush()
        is_looking = False
        assert looks >= 4
        assert get_many(store, keys) == find(store, keys) == expected


def test_writes_during_a_flush_come_after_it(tmp_path: Path, way: str) -> None:
    """What is written while older rows are on their way to the database hides them, there as well."""
    keys = [b"%05d" % number for number in range(5000)]
    number = 1
    is_writing = False

    def write_some(_: float) -> None:
        nonlocal number, is_writing
        if is_writing:
            # Only from the outermost call: a write may flush, too.
            is_writing = False
            number += 1
            write(store, keys[:300], [b"%d" % number] * 300, KvState(number, 5000))
            assert get_many(store, keys[:400]) == [b"%d" % number] * 300 + [b"1"] * 100
            is_writing = True

    with open_store(tmp_path / "store", KvResources(settings_of(way), sleep=write_some)) as store:
        write(store, keys, [b"1"] * 5000, KvState(1, 5000))
        is_writing = True
        store.flush()
        is_writing = False
        assert number > 4
        eventually(lambda: store.flushed_offset >= 1)
        assert rows_of(store) == [b"%d" % number] * 300 + [b"1"] * 4700
        assert store.state == KvState(number, 5000)
    with open_store(tmp_path / "store") as store:
        assert store.state == KvState(number, 5000)
        assert rows_of(store) == [b"%d" % number] * 300 + [b"1"] * 4700
