"""File and directory names are exact, read back to what they were made of, and nothing else is taken for one.
Random names and locations in both directions, and names that only look right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.storage.log.file_names import OFFSET_MAX, LogFileKind, LogFileName, TabletKind, TabletLocation, log_file_name
from fluss.storage.log.remote_manifest import is_uuid, manifest_path, remote_file_path

SEGMENT_ID = "a4421366-4a1d-4c3b-a0f8-0be2e77b1368"
names = st.text("abzAZ09_-", min_size=1, max_size=12)
ids = st.integers(0, 2**63 - 1)


@given(st.integers(0, OFFSET_MAX), st.sampled_from(LogFileKind), st.booleans())
def test_every_log_file_name_reads_back(offset: int, kind: LogFileKind, is_deleted: bool) -> None:
    name = LogFileName(offset, kind, is_deleted)
    assert LogFileName.parse(str(name)) == name
    assert str(name).endswith(".deleted") == is_deleted


def test_names_sort_like_their_offsets() -> None:
    offsets = [0, 9, 10, 99, 123_456, 2**31, OFFSET_MAX]
    file_names = [log_file_name(offset, LogFileKind.SEGMENT) for offset in offsets]
    assert sorted(file_names) == file_names


@pytest.mark.parametrize(
    "name",
    [
        "",
        "123.log",
        "00000000000000000123",
        "00000000000000000123.logs",
        "00000000000000000123.LOG",
        "00000000000000000123.log.deleted.deleted",
        "00000000000000000123.log\n",
        "-0000000000000000123.log",
        "0000000000000000012a.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠١٢٣.log",  # digits, but not ASCII ones
        "99999999999999999999.log",  # 20 digits, but beyond 64 bits
        "../00000000000000000123.log",
    ],
)
def test_other_names_are_not_taken_for_log_files(name: str) -> None:
    assert LogFileName.parse(name) is None


@given(names, names, ids, ids, st.none() | st.tuples(names, ids), st.sampled_from(TabletKind))
def test_every_tablet_directory_reads_back(
    database: str, table: str, table_id: int, bucket_id: int, partition: tuple[str, int] | None, kind: TabletKind
) -> None:
    location = TabletLocation(database, table, table_id, bucket_id, *(partition or ()))
    assert TabletLocation.parse(location.path(kind)) == (location, kind)


@pytest.mark.parametrize(
    ("location", "kind", "path"),
    [
        (TabletLocation("db", "t", 7, 3), TabletKind.LOG, "db/t-7/log-3"),
        (TabletLocation("db", "t", 7, 3), TabletKind.KV, "db/t-7/kv-3"),
        (TabletLocation("db", "t", 7, 3), TabletKind.REMOTE_LOG, "db/t-7/3"),
        (TabletLocation("db", "t-1", 7, 0, "2024$EU", 9), TabletKind.LOG, "db/t-1-7/2024$EU-p9/log-0"),
        (TabletLocation("db", "t-1", 7, 0, "a-p1", 9), TabletKind.KV, "db/t-1-7/a-p1-p9/kv-0"),
    ],
)
def test_tablet_directories_are_laid_out_as_agreed(location: TabletLocation, kind: TabletKind, path: str) -> None:
    assert location.path(kind) == path
    assert TabletLocation.parse(path) == (location, kind)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "db",
        "db/t-7",
        "db/t/log-0",
        "db/t-/log-0",
        "db/t-07/log-0",
        "db/t-7/log-",
        "db/t-7/log-0/",
        "db/t-7/wal-0",
        "db/t-7/p9/log-0",
        "db/t-7/2024-p9/x/log-0",
        "../t-7/log-0",
        "db/..-7/log-0",
        "/db/t-7/log-0",
    ],
)
def test_other_directories_are_not_taken_for_tablets(path: str) -> None:
    assert TabletLocation.parse(path) is None


def test_remote_files_are_named_as_agreed() -> None:
    assert remote_file_path(SEGMENT_ID, 20, LogFileKind.SEGMENT) == f"{SEGMENT_ID}/00000000000000000020.log"
    assert manifest_path(SEGMENT_ID) == f"metadata/{SEGMENT_ID}.manifest"


@pytest.mark.parametrize("text", ["", "..", SEGMENT_ID.upper(), SEGMENT_ID[:-1], SEGMENT_ID + "\n", f"x/{SEGMENT_ID}"])
def test_only_lower_case_uuids_become_part_of_a_path(text: str) -> None:
    assert is_uuid(SEGMENT_ID)
    assert not is_uuid(text)
