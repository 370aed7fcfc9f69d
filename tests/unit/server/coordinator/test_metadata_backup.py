"""What is wrong with the metadata of a backup is found before anything is made of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.server.coordinator.metadata.metadata_backup import check_metadata
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME, MetadataStore


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
