"""Every block of an SST file is checked without RocksDB: files that it wrote are good, a changed bit anywhere is found.
Shown with files as stores have them: flushed, ingested, merged, with few and with very many blocks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fluss.errors import KvDamagedError
from fluss.storage.kv import rocks
from fluss.storage.kv.snapshots.sst_check import SstCheck, UnknownFormatError
from fluss.storage.kv.store_settings import KvStoreSettings


def check(data: bytes) -> None:
    SstCheck(Path("file.sst"), len(data), lambda position, count: data[position : position + count]).run()


def value(rng: random.Random) -> bytes:
    return bytes(rng.choices(b"abcdefgh", k=rng.randrange(10, 200)))


@pytest.fixture(scope="module", params=[False, True], ids=["newest format", "portable format"])
def files(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[bytes]:
    """A small file of a flush, and a large one of a merge."""
    directory = tmp_path_factory.mktemp("sst")
    rng = random.Random(1)
    resources = rocks.KvResources(KvStoreSettings(is_portable=request.param))
    database = rocks.open_database(directory / "db", resources)
    database[b"a"] = b"1"
    database.flush(True)
    small = [path.read_bytes() for path in (directory / "db").glob("*.sst")]
    for number in range(30_000):
        database[b"%012d" % number] = value(rng)
    database.flush(True)
    writer = rocks.sst_writer(resources, directory / "new.sst")
    for number in range(20_000, 60_000):
        writer[b"%012d" % number] = value(rng)
    writer.finish()
    rocks.ingest(database, directory / "new.sst")
    database.compact_range(None, None)
    large = [path.read_bytes() for path in (directory / "db").glob("*.sst")]
    database.close()
    return [*small, *large]


def test_what_rocksdb_writes_is_good(files: list[bytes]) -> None:
    assert len(files) >= 2
    for data in files:
        check(data)
    assert max(map(len, files)) > 1_000_000


def test_a_changed_bit_is_found_wherever_it_is(files: list[bytes]) -> None:
    rng = random.Random(2)
    for data in files:
        # The end has the footer and the blocks that lead to all others.
        positions = {*range(max(len(data) - 60, 0), len(data)), *(rng.randrange(len(data)) for _ in range(60))}
        for position in positions:
            damaged = bytearray(data)
            damaged[position] ^= 1 << rng.randrange(8)
            with pytest.raises((KvDamagedError, UnknownFormatError)) as caught:
                check(bytes(damaged))
            if isinstance(caught.value, UnknownFormatError):
                # The kind of checksum, and the version: without them nothing can be said.
                assert len(data) - position in (53, *range(9, 13))


def test_a_file_that_ends_too_early_is_damaged(files: list[bytes]) -> None:
    for data in files:
        for size in (0, 10, len(data) // 2, len(data) - 1):
            with pytest.raises(KvDamagedError, match=r"file\.sst, byte [0-9]+: "):
                check(data[:size])


def test_blocks_that_have_changed_places_are_found(files: list[bytes]) -> None:
    data = max(files, key=len)
    half = len(data) // 2
    with pytest.raises(KvDamagedError):
        check(data[4096:half] + data[:4096] + data[half:])
