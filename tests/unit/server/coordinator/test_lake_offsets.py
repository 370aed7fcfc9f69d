"""Offsets files of lakes: what is written is read, and anything else is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss import TableBucket, TablePath
from fluss.errors import ErrorCode, FlussError
from fluss.server.coordinator.lake_snapshots import LakeOffsetsFiles
from fluss.storage.remote.file_systems import FileSystemOptions

PATH = TablePath("sales", "orders")


@pytest.fixture
def files(tmp_path: Path) -> LakeOffsetsFiles:
    return LakeOffsetsFiles.open([str(tmp_path / "remote")], FileSystemOptions({}), tmp_path)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        (
            {TableBucket(7, 0): 120, TableBucket(7, 2): 98},
            '{"version":1,"table_id":7,"bucket_offsets":[120,-1,98]}',
        ),
        (
            {TableBucket.new_with_partition(7, 3, 0): 5},
            '{"version":1,"table_id":7,"partition_offsets":[{"partition_id":3,"bucket_offsets":[5]}]}',
        ),
        ({}, '{"version":1,"table_id":7}'),
    ],
)
def test_what_is_written_is_read(files: LakeOffsetsFiles, offsets: dict[TableBucket, int], text: str) -> None:
    where = files.write(PATH, 7, offsets)
    assert Path(where).read_text(encoding="utf-8") == text
    assert files.read(PATH, 7, where) == offsets


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is not valid JSON"),
        ("[" * 100_000, "the JSON is nested too deeply"),
        ("[1]", "the JSON must be an object"),
        ('{"version":2}', "it has version 2"),
        ('{"version":1,"table_id":8}', "it is of the table of id 8"),
        ('{"version":1,"table_id":7,"bucket_offsets":[1.5]}', "bucket_offsets must be a list of integers"),
        ('{"version":1,"table_id":7,"partition_offsets":[{}]}', r"partition_offsets\[0\].partition_id is missing"),
    ],
)
def test_another_file_is_refused(files: LakeOffsetsFiles, text: str, problem: str) -> None:
    where = files.write(PATH, 7, {})
    Path(where).write_text(text, encoding="utf-8")
    with pytest.raises(FlussError, match=f"The offsets file .* cannot be read: {problem}") as refusal:
        files.read(PATH, 7, where)
    assert refusal.value.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
