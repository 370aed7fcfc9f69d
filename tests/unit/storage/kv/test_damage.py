"""A damaged store is called damaged or gives the right rows for its state: never others, never another error.
Every file of a small store is removed, cut, overwritten and hit bit by bit."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from fluss.storage.kv.rocks import open_database
from fluss.storage.kv.store import KvDamagedError, KvResources, KvState, KvStore
from fluss.storage.kv.store_settings import KvStoreSettings
from tests.unit.storage.kv.support import (
    Rows,
    find,
    find_cached,
    get_cached,
    get_many,
    open_store,
    prefix_rows,
    read,
    rows_of,
    sorted_values,
    write,
    write_batch,
)

KEYS = [b"key-%06d" % number for number in range(300)]
# Nothing may be found in a cache that another copy of the same files has filled.
SETTINGS = KvStoreSettings(block_cache_bytes=0)
RESOURCES = KvResources(SETTINGS)
# What RocksDB can do without.
UNIMPORTANT = ("IDENTITY", "LOCK", "LOG", "OPTIONS", "rocksdict-config.json")
# Damage to the list of tables may look like a crash while it was written: then the store is as it was before.
MAY_GO_BACK = ("MANIFEST",)


class Sound:
    """A store of three flushed batches, and the rows after each of them."""

    def __init__(self, directory: Path, sst_rows_min: int) -> None:
        self.directory = directory
        self.models: list[Rows] = [{}]
        model: Rows = {}
        with open_store(directory, KvResources(replace(SETTINGS, sst_rows_min=sst_rows_min))) as store:
            for number in (1, 2, 3):
                write_batch(store, model, number)
                store.flush()
                self.models.append(dict(model))

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture(scope="module", params=["from the write buffer", "ingested"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """Return a store with tables of one of the two ways there are."""
    return Sound(tmp_path_factory.mktemp("sound") / "store", 1 if request.param == "ingested" else 10**9)


def outcome_of(sound: Sound, copy: Path, name: str, damage: Callable[[Path], object]) -> str:
    """Damage one file of a copy, use the copy, and check that each answer is right or damage is reported."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sound.directory, copy, copy_function=os.link)
    data = (copy / name).read_bytes()
    (copy / name).unlink()
    (copy / name).write_bytes(data)
    damage(copy / name)
    try:
        store = KvStore.open(copy, RESOURCES)
    except KvDamagedError:
        return "does not open"
    try:
        applied_offset = store.state.applied_offset
        assert applied_offset == 3 or name.startswith(MAY_GO_BACK)
        model = sound.models[applied_offset]
        assert store.state == KvState(applied_offset, len(model))
        assert all(get_cached(store, [key]) in (None, [model.get(key)]) for key in KEYS)
        assert all(find_cached(store, [key]) in (None, [model.get(key)]) for key in KEYS[::10])
        outcomes = {
            answer_of(lambda: get_many(store, KEYS), [model.get(key) for key in KEYS]),
            answer_of(lambda: find(store, KEYS), [model.get(key) for key in KEYS]),
            answer_of(lambda: rows_of(store), sorted_values(model)),
            answer_of(lambda: prefix_rows(store, b"key"), sorted_values(model)),
            answer_of(lambda: read(store.snapshot()), sorted_values(model)),
        }
        return "cannot be read" if "damaged" in outcomes else "is right"
    finally:
        store.close()


def answer_of(read: Callable[[], object], expected: object) -> str:
    try:
        assert read() == expected
        return "right"
    except KvDamagedError:
        return "damaged"


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(random.Random(1).randbytes(2000)),
    "garbage of the same length": lambda path: path.write_bytes(random.Random(2).randbytes(path.stat().st_size)),
    "zeros of the same length": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut in the middle": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "cut at the end": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + random.Random(3).randbytes(30)),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_noticed_or_does_not_matter(sound: Sound, tmp_path: Path, kind: str) -> None:
    for name in sound.names:
        if kind == "a directory" and name.startswith(UNIMPORTANT):
            continue
        outcome = outcome_of(sound, tmp_path / "copy", name, DAMAGES[kind])
        if name.startswith(UNIMPORTANT):
            assert outcome == "is right", name
        elif name.endswith(".sst") and kind != "longer":
            assert outcome != "is right", name
        elif name == "CURRENT":
            assert outcome == "does not open"


@pytest.mark.hypothesis
@pytest.mark.parametrize("part", range(2))
def test_no_flipped_bit_gives_wrong_rows(sound: Sound, tmp_path: Path, part: int) -> None:
    rng = random.Random(part)
    for name in sound.names:
        size = (sound.directory / name).stat().st_size
        if not size or name.startswith(UNIMPORTANT):
            continue
        # As many as examples of a property: `make model` says how many.
        for _ in range(settings.default.max_examples):
            outcome_of(sound, tmp_path / "copy", name, flip(rng.randrange(size), rng.randrange(8)))


def test_every_bit_of_the_list_of_tables_is_guarded(sound: Sound, tmp_path: Path) -> None:
    (name,) = [name for name in sound.names if name.startswith("MANIFEST")]
    size = (sound.directory / name).stat().st_size
    # The type of a record, among them, which would let RocksDB spin for ever.
    for position in range(size - 20, size):
        for bit in (0, 2, 7):
            outcome_of(sound, tmp_path / "copy", name, flip(position, bit))


def test_a_list_of_tables_of_several_blocks_is_read(tmp_path: Path) -> None:
    with open_store(tmp_path, RESOURCES) as store:
        number = 0
        while list_size(tmp_path) < 70_000:
            number += 1
            # Long keys make long records: the list holds the first and the last key of each table.
            write(store, [b"%d" % (number % 7) + bytes(4000), b"9" + bytes(4000)], [b"1", b"2"], KvState(number, 8))
            store.flush()
        store.close()
        with open_store(tmp_path, RESOURCES) as store:
            assert store.state.applied_offset == number


def list_size(directory: Path) -> int:
    """Return the size of the list of tables; RocksDB may replace it at any time."""
    while True:
        with suppress(OSError):
            return max(path.stat().st_size for path in directory.glob("MANIFEST-*"))


def test_a_read_that_meets_damage_spoils_no_other(sound: Sound, tmp_path: Path) -> None:
    table = next(name for name in sound.names if name.endswith(".sst"))
    copy = tmp_path / "copy"
    shutil.copytree(sound.directory, copy)
    flip(200, 1)(copy / table)
    with open_store(copy, RESOURCES) as store:
        with pytest.raises(KvDamagedError, match=f"{copy} is damaged: Corruption"):
            store.get_many(KEYS)
        answers = [answer_of(lambda key=key: get_many(store, [key]), [sound.models[3].get(key)]) for key in KEYS]
        assert set(answers) == {"right", "damaged"}


def test_a_state_of_another_release_is_not_used(tmp_path: Path) -> None:
    database = open_database(tmp_path, RESOURCES)
    database[b""] = b"FKVS\x07 of the future"
    database.close()
    with pytest.raises(KvDamagedError, match=f"{tmp_path} is damaged: its version is 7"):
        KvStore.open(tmp_path, RESOURCES)
    # It can be tried again, and by others: the directory is not locked.
    with pytest.raises(KvDamagedError):
        KvStore.open(tmp_path, KvResources())


def flip(position: int, bit: int) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[position] ^= 1 << bit
        path.write_bytes(data)

    return damage
