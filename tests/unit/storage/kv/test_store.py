"""What is written under a key is read under it, and the state travels with the rows without ever being one of them.
Real stores in a temporary directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.value_batch import encode_value
from fluss.row.hashed_keys import HashedKeys
from fluss.storage.kv.place import UNFINISHED_NAME
from fluss.storage.kv.store import IdBlock, KvDamagedError, KvResources, KvState, KvStore, remove_store
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.testing.waiting import eventually
from tests.unit.storage.kv.support import (
    SMALL,
    find,
    find_cached,
    first_rows,
    get_cached,
    get_many,
    keyed_rows,
    open_store,
    prefix_rows,
    read,
    rows_of,
    run_child,
    write,
)


def test_values_are_found_under_their_keys(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        write(store, [b"a", b"c"], [b"1", b"3"], KvState(2, 2))
        for look_up in (get_many, find):
            assert look_up(store, [b"c", b"b", b"a", b"c"]) == [b"3", None, b"1", b"3"]
            assert look_up(store, []) == []
            assert look_up(store, (b"a",)) == [b"1"]
        more = [b"more %03d" % number for number in range(200)]
        write(store, more, more, KvState(202, 202))
        for look_up in (get_many, find):
            assert look_up(store, [b"c", *more, b"b", b"a", b"c"]) == [b"3", *more, None, b"1", b"3"]


def test_none_removes_a_key_and_the_last_of_equal_keys_counts(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        write(store, [b"a", b"b", b"c"], [b"1", b"2", b"3"], KvState(3, 3))
        write(store, [b"a", b"b", b"b", b"c", b"c"], [None, None, b"new", b"x", None], KvState(8, 1))
        assert get_many(store, [b"a", b"b", b"c"]) == [None, b"new", None]


@pytest.mark.parametrize("row_count", [2, 500])
def test_of_several_parts_of_one_write_the_last_counts_and_each_has_its_schema(tmp_path: Path, row_count: int) -> None:
    keys = [b"%04d" % number for number in range(row_count)]
    with open_store(tmp_path / "store") as store:
        parts = [
            keyed_rows([*keys, b"a", b"b", b"c"], [b"1"] * row_count + [b"1", b"1", b"1"], 1),
            keyed_rows([b"a", b"b"], [b"2", None], 2),
            keyed_rows([], [], 4),
            keyed_rows([b"b"], [b"3"], 3),
        ]
        store.write(parts, KvState(1, row_count + 3))
        asked = [b"a", b"b", b"c", b"d"]
        expected = [encode_value(2, b"2"), encode_value(3, b"3"), encode_value(1, b"1"), None]
        assert store.get_many(asked) == store.get_cached(asked) == expected
        found = store.find(HashedKeys.from_list(asked))
        assert {
            number: (schema_id, row)
            for numbers, stored in found.groups
            for number, schema_id, row in zip(
                numbers.tolist(), stored.schema_ids.tolist(), stored.rows.to_list(), strict=True
            )
        } == {0: (2, b"2"), 1: (3, b"3"), 2: (1, b"1")}
        assert store.prefix_values(b"a", bytes_max=100) == [encode_value(2, b"2")]
        store.flush()
        assert store.get_many(asked) == expected


def test_a_row_is_replaced_and_removed_wherever_it_is(tmp_path: Path) -> None:
    """Keys in the write buffer, in tables, in rows that are flushed and in the memtable, each over each other."""
    groups = {
        "table": [b"t%04d" % number for number in range(150)],
        "buffer": [b"b%04d" % number for number in range(150)],
        "memtable": [b"r%04d" % number for number in range(150)],
    }
    with open_store(tmp_path / "store", KvResources(KvStoreSettings())) as store:
        everything = [key for keys in groups.values() for key in keys]
        write(store, everything, [b"old"] * 450, KvState(1, 450))
        store.flush()
        write(store, [*groups["buffer"], *groups["memtable"]], [b"newer"] * 300, KvState(2, 450))
        rows_of(store)
        write(store, groups["memtable"], [b"newest"] * 150, KvState(3, 450))
        expected = {"table": b"old", "buffer": b"newer", "memtable": b"newest"}
        for name, keys in groups.items():
            assert get_many(store, keys) == find(store, keys) == [expected[name]] * 150
        removed = [key for keys in groups.values() for key in keys[:100]]
        write(store, removed, [None] * 300, KvState(4, 150))
        for _ in range(2):
            for name, keys in groups.items():
                assert get_many(store, keys) == find(store, keys) == [None] * 100 + [expected[name]] * 50
            assert rows_of(store) == [b"newer"] * 50 + [b"newest"] * 50 + [b"old"] * 50
            store.flush()


def test_a_new_store_is_empty_and_starts_at_the_beginning(tmp_path: Path) -> None:
    with open_store(tmp_path / "parent" / "store") as store:
        assert store.state == KvState()
        assert store.flushed_offset == 0
        assert rows_of(store) == []
        assert not store.has_failed


def test_rows_and_state_survive_closing(tmp_path: Path) -> None:
    state = KvState(17, None, IdBlock(3, 20, 30))
    with open_store(tmp_path) as store:
        write(store, [b"a"], [b"1"], KvState(16, 1))
        write(store, [], [], state)
        assert store.state == state
    with open_store(tmp_path) as store:
        assert store.state == state
        assert store.flushed_offset == 17
        assert rows_of(store) == [b"1"]
        # Now with rows in the memtable, and a state without any rows.
        keys = [b"%04d" % number for number in range(500)]
        write(store, keys, keys, KvState(517, 501))
        store.write([], KvState(520, 501))
        assert store.state == KvState(520, 501)
    with open_store(tmp_path) as store:
        assert store.state == KvState(520, 501)
        assert rows_of(store) == [*keys, b"1"]


def test_many_rows_are_brought_into_the_database_in_parts_with_pauses(tmp_path: Path) -> None:
    pauses: list[float] = []
    with open_store(tmp_path, KvResources(KvStoreSettings(), sleep=pauses.append)) as store:
        keys = [b"%05d" % number for number in range(3500)]
        write(store, keys, keys, KvState(3500, 3500))
        assert pauses == [], "it is in memory"
        assert get_many(store, keys) == keys
        store.flush()
        assert len(pauses) in (3, 4), "after every part, or between them"
        assert get_many(store, keys) == keys
        assert rows_of(store) == keys
        pauses.clear()
        # Large rows: parts are limited by bytes, too.
        write(store, keys[:10], [bytes(200_000)] * 10, KvState(3510, 3500))
        store.flush()
        assert len(pauses) in (4, 5)
        pauses.clear()
        write(store, keys[:1], [bytes(2_000_000)], KvState(3511, 3500))
        store.flush()
        assert len(pauses) in (0, 1)
        pauses.clear()
        # So many that they become a table.
        many = [b"%06d" % number for number in range(20_000)]
        write(store, many, many, KvState(23_511, 23_500))
        store.flush()
        assert len(pauses) in (19, 20)
        assert get_many(store, many) == many


def test_a_long_flush_goes_with_the_writes_that_follow(tmp_path: Path) -> None:
    """A full memtable reaches the disk a piece with each write; no write waits for all of it; all rows are found."""
    pauses: list[float] = []
    settings = KvStoreSettings(write_buffer_bytes=1024 * 1024)
    with open_store(tmp_path, KvResources(settings, sleep=pauses.append)) as store:
        keys = [b"%06d" % number for number in range(20_000)]
        write(store, keys, keys, KvState(1, 20_000))
        assert pauses == []
        parts = []
        offset = 1
        while store.flushed_offset == 0:
            offset += 1
            assert offset < 30
            write(store, keys[:10], [b"%d" % offset] * 10, KvState(offset, 20_000))
            parts.append(len(pauses))
            pauses.clear()
            assert get_many(store, keys) == find(store, keys) == [b"%d" % offset] * 10 + keys[10:]
        # Each write takes its share, and the first is not the last.
        assert len(parts) > 10
        assert max(parts) <= 2
        assert store.flushed_offset == 1
        assert not (tmp_path / UNFINISHED_NAME).exists()


def test_the_state_is_not_a_row(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write(store, [b"\x00"], [b"first"], KvState(1, 1))
        assert get_many(store, [b"", b"\x00"]) == [None, b"first"]
        assert rows_of(store) == [b"first"]
        assert prefix_rows(store, b"") == [b"first"]
        assert read(store.snapshot()) == [b"first"]


@pytest.mark.parametrize("row_count", [1, 500])
def test_the_state_is_not_found_as_a_row(tmp_path: Path, row_count: int) -> None:
    """By columns either, whether the memtable has rows or not."""
    keys = [b"\x00%d" % number for number in range(row_count)]
    with open_store(tmp_path) as store:
        for _ in range(2):
            write(store, keys, keys, KvState(1, row_count))
            assert get_many(store, [b"", keys[0]]) == [None, keys[0]]
            assert find(store, [b"", keys[0]]) == [None, keys[0]]
            assert find_cached(store, [b"", keys[0]]) in (None, [None, keys[0]])
            store.flush()


def test_a_row_without_a_key_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        with pytest.raises(CorruptRecordError):
            write(store, [b"a", b""], [b"1", b"2"], KvState(2, 2))
        with pytest.raises(CorruptRecordError):
            write(store, [*(b"%d" % number for number in range(200)), b""], [b"1"] * 201, KvState(201, 201))
        assert store.state == KvState()
        assert rows_of(store) == []


def test_prefixes_select_by_bytes(tmp_path: Path) -> None:
    keys = [b"\x00", b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xff\x01"]
    with open_store(tmp_path) as store:
        write(store, keys, keys, KvState(9, 9))
        for prefix in [b"", b"\x00", b"a", b"a\xff", b"a\xff\xff", b"b", b"c", b"\xff", b"\xff\xff", b"\xfe"]:
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert prefix_rows(store, prefix) == expected, prefix


def test_the_first_values_are_those_of_the_smallest_keys(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write(store, [b"b", b"a", b"c"], [b"2", b"1", b"3"], KvState(3, 3))
        assert [first_rows(store, count, bytes_max=9) for count in range(5)] == [
            [],
            [b"1"],
            [b"1", b"2"],
            [b"1", b"2", b"3"],
            [b"1", b"2", b"3"],
        ]


def test_an_answer_that_would_be_too_large_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        # Values of 40, 60 and 3 bytes.
        write(store, [b"ab", b"ac", b"b"], [bytes(38), bytes(58), bytes(1)], KvState(3, 3))
        assert len(store.prefix_values(b"a", bytes_max=100)) == 2
        assert len(store.first_values(2, bytes_max=100)) == 2
        for ask in (
            lambda: store.prefix_values(b"a", bytes_max=99),
            lambda: store.first_values(2, bytes_max=99),
            lambda: store.first_values(3, bytes_max=100),
        ):
            with pytest.raises(FlussError, match="ask for fewer rows") as caught:
                ask()
            assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


def test_sizes_follow_what_is_stored(tmp_path: Path) -> None:
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        assert store.size_bytes() < 1_000_000
        keys = [b"%06d" % number for number in range(20_000)]
        write(store, keys, [bytes(100)] * len(keys), KvState(20_000, 20_000))
        assert store.size_bytes() > 2_000_000
        assert store.memory_bytes() > 2_000_000
        store.flush()
        # Rows may stay in memory as well, and count once.
        assert 20_000 < store.size_bytes() < 2_000_000
        store.release()
        assert 20_000 < store.size_bytes() < 2_000_000
        assert store.memory_bytes() < 2_000_000


def test_rows_stay_in_memory_until_it_is_needed(tmp_path: Path) -> None:
    """Those that are on the disk as well; what is written over them counts, and giving them up loses nothing."""
    keys = [b"%05d" % number for number in range(10_000)]
    resources = KvResources(KvStoreSettings(block_cache_bytes=0))
    with open_store(tmp_path, resources) as store:
        write(store, keys, keys, KvState(1, 10_000))
        store.flush()
        assert get_cached(store, keys) == find_cached(store, keys) == keys
        for number in (2, 3):
            # A few rows, and some more, over rows that stayed.
            write(store, keys[:50], [b"few %d" % number] * 50, KvState(10 * number, 10_000))
            write(store, keys[50:300], [None] * 250, KvState(10 * number + 1, 9750))
            expected = [b"few %d" % number] * 50 + [None] * 250 + keys[300:]
            assert get_many(store, keys) == find(store, keys) == expected
            assert rows_of(store) == [row for row in expected if row is not None]
            assert get_many(store, keys) == find(store, keys) == expected
            used = resources.buffered_bytes
            store.release()
            # RocksDB lets go of the memory behind the back of whoever waited for the flush.
            eventually(lambda: resources.buffered_bytes < used)  # noqa: B023
            assert store.flushed_offset == 10 * number + 1
            assert get_cached(store, keys[300:310]) is None, "it is on the disk only"
            assert get_many(store, keys) == find(store, keys) == expected
            write(store, keys[:1], [b"direct"], KvState(10 * number + 2, 9750))
            assert get_many(store, keys[:2]) == find(store, keys[:2]) == [b"direct", b"few %d" % number]
    with open_store(tmp_path) as store:
        assert store.state == KvState(32, 9750)
        assert rows_of(store) == [b"direct"] + [b"few 3"] * 49 + keys[300:]


def test_a_reopened_store_uses_what_it_is_given_and_not_what_it_was_made_with(tmp_path: Path) -> None:
    keys = [b"%06d" % number for number in range(20_000)]
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        write(store, keys, [b"%d" % number * 20 for number in range(len(keys))], KvState(1, len(keys)))
    resources = KvResources(KvStoreSettings(block_cache_bytes=200_000))
    with open_store(tmp_path, resources) as store:
        store.get_many(keys)
        assert 100_000 < resources.cached_bytes < 300_000
        before = resources.buffered_bytes
        write(store, keys, keys, KvState(2, len(keys)))
        assert resources.buffered_bytes > before + 500_000
        store.release()
        # Not so many that they are a table: they stay in the write buffer.
        before = resources.buffered_bytes
        write(store, keys[:5000], [bytes(200)] * 5000, KvState(3, len(keys)))
        assert len(first_rows(store, 10)) == 10
        assert store.flushed_offset == 2
        assert resources.buffered_bytes > before + 500_000


def test_a_store_is_open_only_once(tmp_path: Path) -> None:
    with open_store(tmp_path):
        with pytest.raises(FlussError, match="LOCK") as caught:
            KvStore.open(tmp_path, KvResources(SMALL))
        assert not isinstance(caught.value, KvDamagedError)
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION


def test_a_failure_to_open_a_store_that_is_open_does_not_disturb_it(tmp_path: Path) -> None:
    keys = [b"%05d" % number for number in range(10_000)]
    with open_store(tmp_path, KvResources(KvStoreSettings(write_buffer_bytes=256 * 1024))) as store:
        write(store, keys, keys, KvState(1, 10_000))
        write(store, keys[:200], keys[:200], KvState(2, 10_000))
        assert (tmp_path / UNFINISHED_NAME).exists(), "it is being flushed"
        with pytest.raises(FlussError, match="LOCK"):
            KvStore.open(tmp_path, KvResources(SMALL))
        store.flush()
        assert store.flushed_offset == 2
        assert rows_of(store) == keys


def test_a_path_that_is_a_file_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"not a directory")
    with pytest.raises(FlussError) as caught:
        KvStore.open(path, KvResources(SMALL))
    assert not isinstance(caught.value, KvDamagedError)
    assert path.read_bytes() == b"not a directory"


def test_a_removed_store_is_gone_and_removing_it_twice_is_no_error(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        write(store, [b"a"], [b"1"], KvState(1, 1))
    remove_store(tmp_path / "store")
    remove_store(tmp_path / "store")
    remove_store(tmp_path / "nowhere" / "store")
    assert list(tmp_path.iterdir()) == []
    with open_store(tmp_path / "store") as store:
        assert store.state == KvState()


def test_writers_in_several_threads_take_turns(tmp_path: Path) -> None:
    keys = [b"%05d" % number for number in range(2500)]
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:

        def write_on(writer: int) -> None:
            for number in range(4):
                write(store, keys, [b"%d-%d" % (writer, number)] * len(keys), KvState(10 * writer + number, 2500))

        threads = [threading.Thread(target=write_on, args=(writer,)) for writer in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        last = divmod(store.state.applied_offset, 10)
        assert set(rows_of(store)) == {b"%d-%d" % last}


def test_without_rocksdict_the_modules_import_and_name_what_to_install() -> None:
    printed = run_child(
        "import sys; sys.modules['rocksdict'] = None\n"
        "from fluss.errors import FlussError\n"
        "from fluss.storage.kv.store import KvResources\n"
        "try: KvResources()\n"
        "except FlussError as error: print(error.error_code, error.message)\n"
    )
    assert printed.startswith("11 ")
    assert 'pip install "flussbett[server]"' in printed
