"""What is written under a key is read under it, and the state travels with the rows without ever being one of them.
Real stores in a temporary directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.storage.kv.settings import KvStoreSettings
from fluss.storage.kv.store import IdBlock, KvDamagedError, KvResources, KvState, KvStore, remove_store
from tests.unit.storage.kv.support import BYTES_MAX, SMALL, open_store, rows_of, run_child


def test_values_are_found_under_their_keys(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.write([b"a", b"c"], [b"1", b"3"], KvState(2, 2))
        assert store.get_many([b"c", b"b", b"a", b"c"]) == [b"3", None, b"1", b"3"]
        assert store.get_many([]) == []
        assert store.get_many((b"a",)) == [b"1"]


def test_none_removes_a_key_and_the_last_of_equal_keys_counts(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.write([b"a", b"b", b"c"], [b"1", b"2", b"3"], KvState(3, 3))
        store.write([b"a", b"b", b"b", b"c", b"c"], [None, None, b"new", b"x", None], KvState(8, 1))
        assert store.get_many([b"a", b"b", b"c"]) == [None, b"new", None]


def test_a_new_store_is_empty_and_starts_at_the_beginning(tmp_path: Path) -> None:
    with open_store(tmp_path / "parent" / "store") as store:
        assert store.state == KvState()
        assert store.flushed_offset == 0
        assert rows_of(store) == []
        assert not store.has_failed


def test_rows_and_state_survive_closing(tmp_path: Path) -> None:
    state = KvState(17, None, IdBlock(3, 20, 30))
    with open_store(tmp_path) as store:
        store.write([b"a"], [b"1"], KvState(16, 1))
        store.write([], [], state)
        assert store.state == state
    with open_store(tmp_path) as store:
        assert store.state == state
        assert store.flushed_offset == 17
        assert rows_of(store) == [b"1"]


def test_many_rows_are_written_in_parts_with_pauses(tmp_path: Path) -> None:
    pauses: list[float] = []
    with open_store(tmp_path, KvResources(KvStoreSettings(), sleep=pauses.append)) as store:
        keys = [b"%05d" % number for number in range(3500)]
        store.write(keys, keys, KvState(3500, 3500))
        assert len(pauses) == 3
        assert store.get_many(keys) == keys
        assert rows_of(store) == keys
        pauses.clear()
        # Large rows: parts are limited by bytes, too.
        store.write(keys[:10], [bytes(200_000)] * 10, KvState(3510, 3500))
        assert len(pauses) == 4
        pauses.clear()
        store.write(keys[:1], [bytes(2_000_000)], KvState(3511, 3500))
        assert pauses == []


def test_the_state_is_not_a_row(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write([b"\x00"], [b"first"], KvState(1, 1))
        assert store.get_many([b"", b"\x00"]) == [None, b"first"]
        assert rows_of(store) == [b"first"]
        assert store.prefix_values(b"", bytes_max=BYTES_MAX) == [b"first"]
        assert store.snapshot().read(BYTES_MAX, 10) == [b"first"]


def test_a_row_without_a_key_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        with pytest.raises(CorruptRecordError):
            store.write([b"a", b""], [b"1", b"2"], KvState(2, 2))
        assert store.state == KvState()
        assert rows_of(store) == []


def test_prefixes_select_by_bytes(tmp_path: Path) -> None:
    keys = [b"\x00", b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xff\x01"]
    with open_store(tmp_path) as store:
        store.write(keys, keys, KvState(9, 9))
        for prefix in [b"", b"\x00", b"a", b"a\xff", b"a\xff\xff", b"b", b"c", b"\xff", b"\xff\xff", b"\xfe"]:
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert store.prefix_values(prefix, bytes_max=BYTES_MAX) == expected, prefix


def test_the_first_values_are_those_of_the_smallest_keys(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write([b"b", b"a", b"c"], [b"2", b"1", b"3"], KvState(3, 3))
        assert [store.first_values(count, bytes_max=9) for count in range(5)] == [
            [],
            [b"1"],
            [b"1", b"2"],
            [b"1", b"2", b"3"],
            [b"1", b"2", b"3"],
        ]


def test_an_answer_that_would_be_too_large_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write([b"ab", b"ac", b"b"], [bytes(40), bytes(60), bytes(1)], KvState(3, 3))
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
        store.write(keys, [bytes(100)] * len(keys), KvState(20_000, 20_000))
        assert store.size_bytes() > 2_000_000
        assert store.memory_bytes() > 2_000_000
        store.flush()
        assert 20_000 < store.size_bytes() < 2_000_000
        assert store.memory_bytes() < 2_000_000


def test_a_reopened_store_uses_what_it_is_given_and_not_what_it_was_made_with(tmp_path: Path) -> None:
    keys = [b"%06d" % number for number in range(20_000)]
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:
        store.write(keys, [b"%d" % number * 20 for number in range(len(keys))], KvState(1, len(keys)))
    resources = KvResources(KvStoreSettings(block_cache_bytes=200_000))
    with open_store(tmp_path, resources) as store:
        store.get_many(keys)
        assert 100_000 < resources.cached_bytes < 300_000
        before = resources.buffered_bytes
        store.write(keys, keys, KvState(2, len(keys)))
        assert resources.buffered_bytes > before + 500_000


def test_a_store_is_open_only_once(tmp_path: Path) -> None:
    with open_store(tmp_path):
        with pytest.raises(FlussError, match="LOCK") as caught:
            KvStore.open(tmp_path, KvResources(SMALL))
        assert not isinstance(caught.value, KvDamagedError)
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION


def test_a_path_that_is_a_file_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"not a directory")
    with pytest.raises(FlussError) as caught:
        KvStore.open(path, KvResources(SMALL))
    assert not isinstance(caught.value, KvDamagedError)
    assert path.read_bytes() == b"not a directory"


def test_a_removed_store_is_gone_and_removing_it_twice_is_no_error(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.write([b"a"], [b"1"], KvState(1, 1))
    remove_store(tmp_path / "store")
    remove_store(tmp_path / "store")
    remove_store(tmp_path / "nowhere" / "store")
    assert list(tmp_path.iterdir()) == []
    with open_store(tmp_path / "store") as store:
        assert store.state == KvState()


def test_writers_in_several_threads_take_turns(tmp_path: Path) -> None:
    keys = [b"%05d" % number for number in range(2500)]
    with open_store(tmp_path, KvResources(KvStoreSettings())) as store:

        def write(writer: int) -> None:
            for number in range(4):
                store.write(keys, [b"%d-%d" % (writer, number)] * len(keys), KvState(10 * writer + number, 2500))

        threads = [threading.Thread(target=write, args=(writer,)) for writer in (1, 2, 3)]
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
