"""Every read, in whatever way and however busy a store is, sees what was written before it began, or something newer.
Threads that read in all ways beside one that writes and one that flushes; what they may see is known of each round."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from fluss.storage.kv.store import KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import (
    SMALL,
    Rows,
    apply,
    copy_as_after_a_crash,
    find,
    find_cached,
    first_rows,
    get_cached,
    get_many,
    open_store,
    prefix_rows,
    read,
    rows_of,
    sorted_values,
    write,
)

KEYS = [b"%03d" % number for number in range(500)]
PREFIX = b"1"
FIRST_COUNT = 100
ROUND_COUNT = 60
Seen = dict[bytes, bytes | None]


class Rounds:
    """What is written round by round, and what there is after each of them. Rows tell their key."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.changes: list[Seen] = [{}]
        self.rows_at: list[Rows] = [{}]
        for number in range(1, ROUND_COUNT + 1):
            # A few rows, more, and so many that the memtable is full.
            row_count, repeats = rng.choice(((1, 1), (20, 1), (200, 1), (400, 20)))
            changes: Seen = {
                key: None if rng.random() < 0.2 else b"%s %d " % (key, number) * repeats
                for key in rng.sample(KEYS, row_count)
            }
            self.changes.append(changes)
            self.rows_at.append(dict(self.rows_at[-1]))
            apply(self.rows_at[-1], list(changes), list(changes.values()))

    def assert_seen(self, seen: Seen, begun: int, end: int) -> None:
        """Each key has what it had when the read began, or what one of the rounds since then gave it."""
        for key, row in seen.items():
            allowed = {self.rows_at[begun].get(key)}
            allowed.update(changes[key] for changes in self.changes[begun + 1 : end + 1] if key in changes)
            assert row in allowed, (key, row, begun, end)


def with_keys(rows: Iterable[bytes], keys: Iterable[bytes]) -> Seen:
    """Return the rows of a scan by key, and None for the keys that it did not find."""
    rows_in_order = list(rows)
    found: Seen = {row.split(b" ", 1)[0]: row for row in rows_in_order}
    assert list(found) == sorted(found)
    assert len(found) == len(rows_in_order)
    return dict.fromkeys(keys) | found


def first_of(store: KvStore) -> Seen:
    """A key that was not found is none of the first, or it was not there."""
    rows = first_rows(store, FIRST_COUNT)
    assert len(rows) <= FIRST_COUNT
    last = rows[-1].split(b" ", 1)[0] if len(rows) == FIRST_COUNT else KEYS[-1]
    return with_keys(rows, [key for key in KEYS if key <= last])


def some_keys(rng: random.Random) -> list[bytes]:
    return rng.sample(KEYS, rng.choice((1, 20, 200)))


def in_pairs(keys: list[bytes], rows: list[bytes | None] | None) -> Seen:
    return {} if rows is None else dict(zip(keys, rows, strict=True))


WAYS: dict[str, Callable[[KvStore, list[bytes]], Seen]] = {
    "get_many": lambda store, keys: in_pairs(keys, get_many(store, keys)),
    "find": lambda store, keys: in_pairs(keys, find(store, keys)),
    "get_cached": lambda store, keys: in_pairs(keys, get_cached(store, keys)),
    "find_cached": lambda store, keys: in_pairs(keys, find_cached(store, keys)),
    "prefix": lambda store, _: with_keys(prefix_rows(store, PREFIX), [key for key in KEYS if key.startswith(PREFIX)]),
    "first": lambda store, _: first_of(store),
}


@pytest.mark.parametrize("sst_rows_min", [50, 10**9], ids=["as tables", "through the write buffer"])
def test_readers_see_what_was_written_before_they_began_or_something_newer(tmp_path: Path, sst_rows_min: int) -> None:
    # A flush goes on for several writes.
    settings = replace(
        SMALL, sst_rows_min=sst_rows_min, filter_keys_min=sst_rows_min, flush_rows_min=30, flush_rows_per_row=1
    )
    rounds = Rounds(sst_rows_min % 7)
    done = 0
    errors: list[BaseException] = []
    reads = dict.fromkeys([*WAYS, "snapshot", "flush"], 0)

    def until_the_end(name: str, use: Callable[[int], None]) -> None:
        """Use the store while it is written to, and once more afterwards."""
        try:
            while not errors:
                begun = done
                use(begun)
                reads[name] += 1
                if begun == ROUND_COUNT:
                    return
        except BaseException as error:
            errors.append(error)

    with open_store(tmp_path / "store", KvResources(settings)) as store:

        def look(name: str) -> None:
            rng = random.Random(name)

            def use(begun: int) -> None:
                seen = WAYS[name](store, some_keys(rng))
                # A write that is under way may be seen as well.
                rounds.assert_seen(seen, begun, min(done + 1, ROUND_COUNT))

            until_the_end(name, use)

        def pin(begun: int) -> None:
            snapshot = store.snapshot()
            offset = snapshot.state.applied_offset
            assert begun <= offset <= done + 1
            assert read(snapshot) == sorted_values(rounds.rows_at[offset])
            snapshot.close()

        def flush_or_copy(begun: int) -> None:
            if reads["flush"] % 3:
                store.flush()
            else:
                store.release()
            flushed_offset = store.flushed_offset
            assert begun <= flushed_offset <= done + 1
            if reads["flush"] % 10 == 0:
                copy = tmp_path / f"copy-{reads['flush']}"
                copy_as_after_a_crash(tmp_path / "store", copy)
                with open_store(copy) as left:
                    assert flushed_offset <= left.state.applied_offset <= done + 1
                    assert rows_of(left) == sorted_values(rounds.rows_at[left.state.applied_offset])

        threads = [threading.Thread(target=look, args=(name,)) for name in WAYS]
        others = (("snapshot", pin), ("flush", flush_or_copy))
        threads += [threading.Thread(target=until_the_end, args=args) for args in others]
        for thread in threads:
            thread.start()
        for number in range(1, ROUND_COUNT + 1):
            changes = rounds.changes[number]
            write(store, list(changes), list(changes.values()), KvState(number, len(rounds.rows_at[number])))
            done = number
        for thread in threads:
            thread.join()
        assert errors == []
        assert min(reads.values()) > 0
        assert sum(reads.values()) > 100
        assert rows_of(store) == sorted_values(rounds.rows_at[-1])
    with open_store(tmp_path / "store") as store:
        assert store.state == KvState(ROUND_COUNT, len(rounds.rows_at[-1]))
        assert rows_of(store) == sorted_values(rounds.rows_at[-1])


def test_several_writers_and_scans_lose_nothing(tmp_path: Path) -> None:
    """Each writer has keys of its own, and finds its last rows after each of its writes."""
    resources = KvResources(KvStoreSettings(write_buffer_bytes=64 * 1024))
    errors: list[BaseException] = []
    with open_store(tmp_path, resources) as store:
        offsets = iter(range(1, 10**6))

        def write_on(writer: int) -> None:
            rng = random.Random(writer)
            try:
                for number in range(30):
                    keys = [b"%d %04d" % (writer, rng.randrange(2000)) for _ in range(rng.choice((1, 50, 500)))]
                    write(store, keys, [b"%s %d" % (key, number) for key in keys], KvState(next(offsets), None))
                    expected: list[bytes | None] = [b"%s %d" % (key, number) for key in keys]
                    look_up = rng.choice((get_many, find))
                    assert look_up(store, keys) == expected
                    if number % 5 == 0:
                        assert set(expected) <= set(prefix_rows(store, b"%d" % writer))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write_on, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
