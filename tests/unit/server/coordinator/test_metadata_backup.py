"""What is wrong with the metadata of a backup is found before anything is made of them. How far lakes are is noted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fluss import TableBucket
from fluss.errors import ErrorCode, FlussError
from fluss.server.coordinator.metadata.metadata_backup import MetadataBackup, check_metadata
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME, LakeEntry, MetadataStore


@pytest.mark.parametrize("name", ["..", ".", "", "../../elsewhere", "/etc", "a/b", b"bytes"])
async def test_names_that_lead_out_of_the_data_directory_are_refused(tmp_path: Path, name: object) -> None:
    metadata = tmp_path / FILE_NAME
    await (await MetadataStore.open(metadata)).close()
    check_metadata(metadata)
    with closing(sqlite3.connect(metadata)) as connection, connection:
        connection.execute("INSERT INTO databases VALUES (?, NULL, '{}', 0, 0)", (name,))
    with pytest.raises(FlussError, match="the metadata of the backup are damaged: the name") as caught:
        check_metadata(metadata)
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION


def test_a_file_that_is_none_of_sqlite_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(FlussError, match="damaged: file is not a database"):
        check_metadata(tmp_path / FILE_NAME)


async def test_how_far_lakes_have_come_since_a_round_began(tmp_path: Path) -> None:
    """The furthest, also if a lake began anew since: the copy may have been made before that."""
    store = await MetadataStore.open(tmp_path / FILE_NAME)
    backup, first, second = MetadataBackup(store), TableBucket(7, 0), TableBucket(7, 1)

    async def register(number: int, offsets: dict[TableBucket, int]) -> None:
        await store.lake_snapshots.replace(7, [LakeEntry(number, f"{number}.offsets", None)], offsets)

    await register(1, {first: 10})
    assert not backup.lake_offsets(), "no round has begun"
    backup.begin_round()
    assert not backup.lake_offsets()
    await register(2, {first: 40, second: 5})
    await store.lake_snapshots.replace(7, ())
    await register(3, {first: 3, second: 6})
    assert backup.lake_offsets() == {first: 40, second: 6}
    backup.begin_round()
    assert not backup.lake_offsets(), "the next round ships the logs anew"
    await store.close()
