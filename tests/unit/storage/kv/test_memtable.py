"""A memtable has what a dict has to which the same was done, also for threads that read while another one adds.
Random adds against a dict, hashes that were forged, several memtables, and threads that read all the time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.buffers import Int64Array
from fluss.record.mutations import Mutations
from fluss.record.value_batch import encode_value
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys
from fluss.storage.kv.memtable import NO_ENTRY, Memtable, find_in_memtables
from tests.unit.storage.kv.support import SCHEMA_ID, keyed_rows

# None is a key that was removed.
Model = dict[bytes, bytes | None]
KEYS = st.text("\x00\x01a\xff", min_size=1, max_size=3).map(lambda text: text.encode("latin-1")) | st.binary(
    min_size=1, max_size=40
)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(min_size=1, max_size=60), max_size=40)


def add(memtable: Memtable, changes: Model, schema_id: int = SCHEMA_ID) -> None:
    memtable.add(keyed_rows(list(changes), list(changes.values()), schema_id))


def value_of(row: bytes | None, schema_id: int = SCHEMA_ID) -> bytes:
    return encode_value(schema_id, row) if row else b""


def found_rows(memtable: Memtable, keys: Sequence[bytes]) -> Model:
    """Look keys up by columns; those that nothing is known of are not in the result."""
    known, stored = memtable.find(HashedKeys.from_list(list(keys)))
    rows = stored.rows.to_list()
    return {keys[number]: row or None for number, row in zip(known.tolist(), rows, strict=True)}


def assert_has(memtable: Memtable, model: Model, others: Sequence[bytes] = ()) -> None:
    keys = [*model, *others]
    assert found_rows(memtable, keys) == model
    assert [memtable.get(key) for key in model] == [value_of(row) for row in model.values()]
    assert [memtable.get(key) for key in others] == [None] * len(others)
    newest = memtable.newest_entries()
    rows = memtable.values(newest)
    pairs = zip(memtable.keys(newest).to_list(), rows.rows.to_list(), strict=True)
    assert {key: row or None for key, row in pairs} == model
    assert len(newest) == len(model)
    assert rows.to_list() == [value_of(model[key]) for key in memtable.keys(newest).to_list()]


def with_hashes(keys: list[bytes], hashes: Sequence[int], rows: list[bytes | None]) -> Mutations:
    """Return rows whose keys have hashes that are not theirs."""
    forged = HashedKeys(EncodedRows.from_list(keys), np.array(hashes, np.uint64))
    return Mutations(forged, EncodedRows.from_list([row or b"" for row in rows]), SCHEMA_ID)


@given(st.lists(CHANGES, max_size=8), st.lists(KEYS, max_size=20))
def test_it_has_what_a_dict_has(adds: list[Model], others: list[bytes]) -> None:
    memtable, model = Memtable(), Model()
    entry_count = 0
    for changes in adds:
        add(memtable, changes)
        model |= changes
        entry_count += len(changes)
        assert_has(memtable, model, [key for key in others if key not in model])
        assert len(memtable) == entry_count


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 257, 512, 513])
def test_few_and_many_are_found_alike(count: int) -> None:
    """Whatever is done one by one for a few keys, or without a table, is done for many at once with the same result."""
    keys = [b"%d" % number * (1 + number % 5) for number in range(count)]
    others = [b"other %d" % number for number in range(40)]
    model: Model = {key: None if number % 7 == 3 else b"row of %s" % key for number, key in enumerate(keys)}
    made = Memtable.over(keyed_rows(keys, list(model.values())))
    added = Memtable()
    for start in range(0, count, 20):
        add(added, {key: model[key] for key in keys[start : start + 20]})
    for memtable in (made, added):
        for size in (1, 16, 17, 40, count):
            for start in range(0, count, size):
                some = keys[start : start + size]
                assert found_rows(memtable, some) == {key: model[key] for key in some}
                assert found_rows(memtable, some + others[:size]) == {key: model[key] for key in some}
        assert found_rows(memtable, others) == {}
    add(added, dict.fromkeys(keys[::2], b"again"))
    assert_has(added, model | dict.fromkeys(keys[::2], b"again"), others)


def test_entries_and_bytes_grow_without_end() -> None:
    rng = random.Random(1)
    memtable, model = Memtable(), Model()
    byte_counts = [memtable.byte_count]
    for number in range(60):
        changes: Model = {
            rng.randbytes(rng.choice((1, 2, 3, 8, 30))): None
            if rng.random() < 0.1
            else b"%d " % number + rng.randbytes(rng.choice((0, 10, 1000 if number % 10 == 0 else 100)))
            for _ in range(rng.choice((1, 10, 1000)))
        }
        # Some of the keys that are there.
        changes |= dict.fromkeys(rng.sample(list(model), min(50, len(model))), b"again %d" % number)
        before = {key: memtable.get(key) for key in rng.sample(list(model), min(20, len(model)))}
        entries_before = memtable.newest_entries()
        rows_before = memtable.values(entries_before).to_list()
        add(memtable, changes)
        model |= changes
        byte_counts.append(memtable.byte_count)
        # Entries never change: a reader that has found one still has its row.
        assert memtable.values(entries_before).to_list() == rows_before
        assert all(memtable.get(key) == value for key, value in before.items() if key not in changes)
    assert_has(memtable, model, [rng.randbytes(7) for _ in range(1000)])
    assert byte_counts[0] == 0
    assert byte_counts == sorted(byte_counts)
    assert len(model) > 10_000


def test_each_row_has_the_schema_it_was_added_with() -> None:
    memtable = Memtable()
    add(memtable, {b"a": b"1", b"b": b"1", b"c": b"1"}, 1)
    add(memtable, {b"b": b"2", b"c": None}, 2)
    add(memtable, {b"c": b"3"}, 32767)
    assert [memtable.get(key) for key in (b"a", b"b", b"c", b"d")] == [
        value_of(b"1", 1),
        value_of(b"2", 2),
        value_of(b"3", 32767),
        None,
    ]
    _, stored = memtable.find(HashedKeys.from_list([b"c", b"a", b"b"]))
    assert stored.schema_ids.tolist() == [32767, 1, 2]
    assert stored.to_list() == [value_of(b"3", 32767), value_of(b"1", 1), value_of(b"2", 2)]


@pytest.mark.parametrize("together", [1, 16, 17, 1000])
def test_keys_with_equal_hashes_are_told_apart(together: int) -> None:
    """Also keys that only begin at the same slot; however many of them are added and looked up together."""
    keys = [b"%03d" % number for number in range(200)]
    for hashes in ([7 << 60] * 200, [(7 << 60) + number % 3 for number in range(200)]):
        memtable = Memtable()
        rows: dict[bytes, bytes] = {}
        for first, end, word in ((0, 150, b"old "), (100, 200, b"new "), (0, 50, b"")):
            for start in range(first, end, together):
                part = range(start, min(start + together, end))
                changes = {keys[number]: word and word + keys[number] for number in part}
                memtable.add(with_hashes(list(changes), [hashes[number] for number in part], list(changes.values())))
                rows |= changes
        asked, asked_hashes = [*keys, b"foreign", b"00"], [*hashes, 7 << 60, 7 << 60]
        for start in range(0, len(asked), together):
            some = asked[start : start + together]
            some_hashes = np.array(asked_hashes[start : start + together], np.uint64)
            found, stored = memtable.find(HashedKeys(EncodedRows.from_list(some), some_hashes))
            assert found.tolist() == [number for number, key in enumerate(some) if key in rows]
            assert stored.rows.to_list() == [rows[key] for key in some if key in rows]
        assert len(memtable.newest_entries()) == 200


def test_a_few_made_of_changes_with_equal_hashes_are_told_apart() -> None:
    keys = [b"%02d" % number for number in range(30)]
    made = Memtable.over(with_hashes(keys, [number % 2 for number in range(30)], [key * 2 for key in keys]))
    asked = HashedKeys(EncodedRows.from_list([*keys, b"x"]), np.array([number % 2 for number in range(31)], np.uint64))
    found, stored = made.find(asked)
    assert found.tolist() == list(range(30))
    assert stored.rows.to_list() == [key * 2 for key in keys]


def test_keys_that_begin_at_the_last_slot_go_on_at_the_first() -> None:
    keys = [b"%03d" % number for number in range(40)]
    # The last slots, the very first ones, and both of them in each other's way.
    hashes = [2**64 - 1 - number % 4 for number in range(20)] + [number % 3 for number in range(20)]
    for order in (range(40), reversed(range(40))):
        memtable = Memtable()
        numbers = list(order)
        for start in range(0, 40, 20):
            some = numbers[start : start + 20]
            memtable.add(with_hashes([keys[n] for n in some], [hashes[n] for n in some], [keys[n] * 2 for n in some]))
        asked = HashedKeys(EncodedRows.from_list(keys), np.array(hashes, np.uint64))
        assert memtable.find(asked)[1].rows.to_list() == [key * 2 for key in keys]
        unknown = HashedKeys(EncodedRows.from_list([b"x", b"y"]), np.array([2**64 - 1, 0], np.uint64))
        assert memtable.find(unknown)[0].tolist() == []
        made = Memtable.over(with_hashes(keys, hashes, [key * 2 for key in keys]))
        assert made.find(asked)[1].rows.to_list() == [key * 2 for key in keys]


def test_nothing_is_found_where_nothing_was_added() -> None:
    many = [b"%d" % number for number in range(100)]
    for memtable in (Memtable(), Memtable.over(keyed_rows([], []))):
        assert len(memtable) == 0
        assert memtable.byte_count == 0
        assert memtable.find(HashedKeys.from_list([b"a", b""]))[0].tolist() == []
        assert memtable.find(HashedKeys.from_list(many))[0].tolist() == []
        assert memtable.find(HashedKeys.from_list([]))[0].tolist() == []
        assert memtable.newest_entries().tolist() == []
    memtable = Memtable()
    assert memtable.get(b"a") is None
    memtable.add(keyed_rows([], []))
    assert len(memtable) == 0
    add(memtable, {b"a": b"1"})
    assert_has(memtable, {b"a": b"1"}, [b"b"])


# Made of something


@given(CHANGES, st.lists(KEYS, max_size=20))
def test_what_is_made_of_changes_has_them(changes: Model, others: list[bytes]) -> None:
    memtable = Memtable.over(keyed_rows(list(changes), list(changes.values())))
    assert found_rows(memtable, [*changes, *(key for key in others if key not in changes)]) == changes
    assert len(memtable) == len(changes)


@pytest.mark.parametrize("count", [0, 1, 32, 33])
def test_what_is_made_of_changes_answers_in_every_way(count: int) -> None:
    changes: Model = {b"%d" % number: b"row %d" % number if number % 3 else None for number in range(count)}
    assert_has(Memtable.over(keyed_rows(list(changes), list(changes.values()))), changes, [b"a", b"b"])


@pytest.mark.parametrize("count", [32, 33, 512, 513])
def test_what_is_made_of_changes_takes_the_same_memory_before_and_after_a_search(count: int) -> None:
    memtable = Memtable.over(keyed_rows([b"%d" % number for number in range(count)], [b"row"] * count))
    byte_count = memtable.byte_count
    assert memtable.get(b"7") is not None
    assert memtable.byte_count == byte_count
    assert len(memtable.newest_entries()) == count


def test_what_is_made_of_changes_shares_their_memory_and_takes_nothing_more() -> None:
    changes = keyed_rows([b"a", b"b"], [b"1" * 1000, None])
    memtable = Memtable.over(changes)
    assert memtable.mutations is changes
    _, stored = memtable.find(changes.keys)
    assert np.shares_memory(stored.rows.data, changes.rows.data)
    assert np.shares_memory(memtable.keys(memtable.newest_entries()).data, changes.keys.keys.data)
    assert memtable.byte_count >= changes.byte_count
    with pytest.raises(AssertionError):
        memtable.add(changes)
    with pytest.raises(AssertionError):
        Memtable().mutations  # noqa: B018


# Whose memory it is


def spread(pieces: list[bytes], gap: int) -> tuple[bytes, Int64Array]:
    """Put other bytes between pieces; return all of it, and where the pieces begin."""
    data, starts = bytearray(), []
    for piece in pieces:
        data += b"x" * gap
        starts.append(len(data))
        data += piece
    return bytes(data), np.array(starts, np.int64)


@pytest.mark.parametrize("lie_together", [True, False])
@pytest.mark.parametrize("gap", [0, 3, 5000])
def test_what_belongs_to_others_is_not_copied(lie_together: bool, gap: int) -> None:
    keys = [b"key-%04d" % number for number in range(100)]
    rows = [b"row %d" % number * 3 for number in range(99)] + [b""]
    if lie_together:
        data, starts = spread([piece for pair in zip(keys, rows, strict=True) for piece in pair], gap)
        key_data = row_data = np.frombuffer(data, np.uint8)
        key_starts, row_starts = starts[::2], starts[1::2]
    else:
        (key_bytes, key_starts), (row_bytes, row_starts) = spread(keys, gap), spread(rows, gap)
        key_data, row_data = np.frombuffer(key_bytes, np.uint8), np.frombuffer(row_bytes, np.uint8)
    changes = Mutations(
        HashedKeys.of(EncodedRows(key_data, key_starts, key_starts + np.array([len(key) for key in keys]))),
        EncodedRows(row_data, row_starts, row_starts + np.array([len(row) for row in rows])),
        SCHEMA_ID,
    )
    memtable = Memtable()
    memtable.add(changes)
    memtable.add(changes)
    model: Model = {key: row or None for key, row in zip(keys, rows, strict=True)}
    assert_has(memtable, model)
    own = 2 * changes.byte_count
    # Besides the bytes: entries, and slots.
    assert own < memtable.byte_count < 2 * own + 200 * 100
    assert memtable.byte_count < 100 * 5000


def test_removals_that_point_anywhere_copy_nothing() -> None:
    """The empty rows of removed keys may lie at both ends of a large piece of memory."""
    data = np.zeros(1 << 20, np.uint8)
    keys = [b"a", b"b", b"c"]
    ends = np.array([0, 1 << 20, 1 << 19], np.int64)
    memtable = Memtable()
    memtable.add(Mutations(HashedKeys.from_list(keys), EncodedRows(data, ends, ends), SCHEMA_ID))
    assert_has(memtable, dict.fromkeys(keys))
    assert memtable.byte_count < 10_000


def test_memory_counts_what_was_added() -> None:
    memtable = Memtable()
    for number in range(10):
        keys = [b"%d-%03d" % (number, index) for index in range(500)]
        before = memtable.byte_count
        memtable.add(keyed_rows(keys, [bytes(1000)] * 500))
        assert 500_000 < memtable.byte_count - before < 700_000


# Several memtables


def looked_up(memtables: Sequence[Memtable], keys: list[bytes]) -> tuple[Model, list[bytes]]:
    """Return the rows that memtables have, and the keys that none of them has."""
    parts, left = find_in_memtables(memtables, HashedKeys.from_list(keys))
    rows: Model = {}
    for numbers, stored in parts:
        assert len(numbers)
        for number, row in zip(numbers.tolist(), stored.rows.to_list(), strict=True):
            assert row
            assert keys[number] not in rows
            rows[keys[number]] = row
    return rows, [keys[number] for number in left.tolist()]


def test_a_newer_memtable_hides_an_older_one() -> None:
    newest, middle, oldest, empty = (Memtable() for _ in range(4))
    add(oldest, {b"a": b"old", b"b": b"old", b"c": b"old", b"d": None, b"e": None})
    add(middle, {b"b": b"middle", b"c": None, b"d": b"middle"})
    add(newest, {b"c": b"new", b"d": None})
    memtables = (empty, newest, middle, oldest)
    keys = [b"%c" % letter for letter in b"fedcba"]
    assert looked_up(memtables, keys) == ({b"a": b"old", b"b": b"middle", b"c": b"new"}, [b"f"])
    assert looked_up(memtables[2:], keys) == ({b"a": b"old", b"b": b"middle", b"d": b"middle"}, [b"f"])
    assert looked_up((), keys) == ({}, keys)
    assert looked_up((empty,), keys) == ({}, keys)
    assert looked_up(memtables, []) == ({}, [])


@given(st.lists(CHANGES, max_size=4), st.lists(KEYS, unique=True, max_size=30))
def test_memtables_are_like_dicts_over_each_other(changes: list[Model], others: list[bytes]) -> None:
    memtables: list[Memtable] = []
    model: Model = {}
    for number, part in enumerate(changes):
        # Either kind.
        one = Memtable.over(keyed_rows(list(part), list(part.values()))) if number % 2 else Memtable()
        if number % 2 == 0:
            add(one, part)
        memtables.insert(0, one)
        model |= part
    keys = list({*model, *others})
    rows, left = looked_up(memtables, keys)
    assert rows == {key: row for key, row in model.items() if row is not None}
    assert left == [key for key in keys if key not in model]


# Threads


@pytest.mark.parametrize(("added_rows", "row_bytes"), [(30, 5000), (5000, 1), (70, 1)], ids=["bytes", "all", "entries"])
def test_arrays_that_were_replaced_stay_as_they_were(added_rows: int, row_bytes: int) -> None:
    """A reader that took them before finds what it would have found then, and nothing that was added since."""
    memtable = Memtable()
    old = keyed_rows([b"old %d" % number for number in range(20)], [b"row %d" % number for number in range(20)])
    memtable.add(old)
    arrays = memtable._arrays
    entries = arrays.entries_of(old.keys)
    rows = arrays.rows(entries).to_list()
    new = keyed_rows([b"new %d" % number for number in range(added_rows)], [bytes(row_bytes)] * added_rows)
    memtable.add(new)
    memtable.add(keyed_rows([b"old 3"], [b"newer"]))
    assert memtable._arrays is not arrays
    assert arrays.entries_of(old.keys).tolist() == entries.tolist()
    assert arrays.rows(entries).to_list() == rows
    assert (arrays.entries_of(new.keys) == NO_ENTRY).all()
    assert memtable.get(b"old 3") == value_of(b"newer")


class _MeetsAdds(Memtable):
    """Right after a reader has taken the arrays another thread adds some rows."""

    __slots__ = ("adds",)

    def __init__(self, *adds: Model) -> None:
        super().__init__()
        self.adds = adds

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "_arrays" and self.adds:
            adds, self.adds = self.adds, ()
            for changes in adds:
                add(self, changes)
        return value


@pytest.mark.parametrize("how", [Memtable.get, lambda memtable, key: memtable.find(HashedKeys.from_list([key]))])
def test_a_reader_that_meets_the_first_rows_changes_nothing(how: Callable[[Memtable, bytes], object]) -> None:
    old, new = (Model({b"%d" % number: row for number in range(40)}) for row in (b"old", b"new"))
    memtable = _MeetsAdds(old, new)
    how(memtable, b"7")
    assert not memtable.adds
    assert_has(memtable, new)


def read_by_columns(memtable: Memtable, keys: list[bytes]) -> list[bytes]:
    found, stored = memtable.find(HashedKeys.from_list(keys))
    assert len(found) == len(keys)
    return stored.rows.to_list()


def read_one_by_one(memtable: Memtable, keys: list[bytes]) -> list[bytes]:
    values = [memtable.get(key) for key in keys]
    assert None not in values
    return [value[2:] for value in values if value is not None]


def read_newest(memtable: Memtable, keys: list[bytes]) -> list[bytes]:
    entries = memtable.newest_entries()
    found = dict(zip(memtable.keys(entries).to_list(), memtable.values(entries).rows.to_list(), strict=True))
    return [found[key] for key in keys]


def test_readers_find_what_was_added_before_they_began_or_something_newer() -> None:
    """One thread adds new keys, with growth, and the old ones again; readers have no lock. All of it several times."""
    stop_at = 40
    lookups = [0]
    for seed in range(2):
        memtable = Memtable()
        rng = random.Random(seed)
        rounds = [{b"%d" % rng.randrange(10**6): b"0" for _ in range(rng.choice((5, 300)))} for _ in range(stop_at)]
        # Every key of the rounds so far, and the round that wrote it last.
        added_at: list[dict[bytes, int]] = [{}]
        for number, changes in enumerate(rounds, 1):
            again = rng.sample(sorted(added_at[-1]), min(100, len(added_at[-1])))
            changes |= dict.fromkeys(again, b"0")
            added_at.append(added_at[-1] | dict.fromkeys(changes, number))
        # How many rounds are over.
        done = [0]
        errors: list[BaseException] = []

        def read(
            how: Callable[[Memtable, list[bytes]], list[bytes]],
            rng: random.Random,
            memtable: Memtable = memtable,
            added_at: list[dict[bytes, int]] = added_at,
            errors: list[BaseException] = errors,
            done: list[int] = done,
        ) -> None:
            try:
                while True:
                    begun = done[0]
                    known = added_at[begun]
                    keys = rng.sample(list(known), min(200, len(known)))
                    rows = how(memtable, keys)
                    lookups[0] += len(keys)
                    for key, row in zip(keys, rows, strict=True):
                        number, _, name = row.partition(b" ")
                        assert name == key
                        # Its own row, or one that was added since, as far as the writer has come.
                        assert known[key] <= int(number) <= done[0] + 1
                    if begun == stop_at:
                        return
            except BaseException as error:
                errors.append(error)

        ways = (read_by_columns, read_one_by_one, read_newest)
        threads = [threading.Thread(target=read, args=(way, random.Random(n))) for n, way in enumerate(ways)]
        for thread in threads:
            thread.start()
        for number, changes in enumerate(rounds, 1):
            add(memtable, {key: b"%d %s" % (number, key) for key in changes})
            done[0] = number
        for thread in threads:
            thread.join()
        assert errors == []
    assert lookups[0] > 5000
