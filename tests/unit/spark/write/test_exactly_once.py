"""Records of tasks below a checkpoint: one attempt makes them, all find them, and only those that may be needed stay.
Shown with local directories, URIs, and the file systems of pyarrow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow.fs as pafs
import pytest

from fluss.errors import FlussError
from fluss.spark.write import exactly_once
from fluss.spark.write.exactly_once import ArrowFiles, LocalFiles, SinkState, StateFiles, TaskRecords, state_files
from fluss.spark.write.writer_record import DriverRecord, WriterRecord

RECORD = WriterRecord(table_id=5, writer_id=17, starts={":0": 3, "12:1": 4})


@pytest.fixture(params=["local", "pyarrow"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> StateFiles:
    return LocalFiles(tmp_path) if request.param == "local" else ArrowFiles(pafs.LocalFileSystem(), str(tmp_path))


def test_a_file_is_created_once_and_is_never_seen_half(files: StateFiles) -> None:
    assert files.read("a/b/c.json") is None
    assert files.create("a/b/c.json", b"first")
    assert not files.create("a/b/c.json", b"second")
    assert files.read("a/b/c.json") == b"first"
    assert files.directories("a") == ["b"]
    assert files.directories("nowhere") == []
    files.delete("a/b")
    files.delete("a/b")
    assert files.directories("a") == []


class _Dying:
    """A file system whose files get as far as their first byte."""

    def __init__(self, files: pafs.FileSystem) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_output_stream(self, path: str) -> Any:
        with self._files.open_output_stream(path) as stream:
            stream.write(b"{")
        raise OSError("the disk is gone")


def test_a_writer_that_dies_leaves_no_half_file(tmp_path: Path) -> None:
    store = pafs.LocalFileSystem()
    with pytest.raises(OSError, match="the disk is gone"):
        TaskRecords(ArrowFiles(cast(Any, _Dying(store)), str(tmp_path)), "q/1/0").put(RECORD)
    next_one = TaskRecords(ArrowFiles(store, str(tmp_path)), "q/1/0")
    assert next_one.load() is None
    assert next_one.put(RECORD)
    assert next_one.load() == RECORD


def test_of_many_attempts_at_once_one_makes_the_record(tmp_path: Path) -> None:
    state = SinkState.open(str(tmp_path))
    keepers = [state.task("query", 1, 0) for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda pair: pair[1].put(replace(RECORD, writer_id=pair[0])), enumerate(keepers)))
    assert made.count(True) == 1
    assert all(keeper.load() == replace(RECORD, writer_id=made.index(True)) for keeper in keepers)
    assert [path.name for path in (tmp_path / "fluss-sink/query/1").iterdir()] == ["0.json"]


def test_a_record_is_replaced_by_a_new_one_that_only_who_knows_the_old_one_can_make(tmp_path: Path) -> None:
    state = SinkState.open(str(tmp_path))
    mine, other = state.task("query", 1, 0), state.task("query", 1, 0)
    assert mine.load() is None
    assert mine.put(RECORD)
    assert not other.put(RECORD)
    assert other.load() == RECORD
    longer = replace(RECORD, starts={**RECORD.starts, "13:0": 9}, earlier_writer_ids=(3, 4))
    assert other.put(longer)
    assert not mine.put(RECORD)
    assert mine.load() == other.load() == state.task("query", 1, 0).load() == longer
    assert state.task("query", 1, 1).load() is None
    assert state.task("query", 2, 0).load() is None


def test_records_of_earlier_micro_batches_are_deleted_and_no_others(tmp_path: Path) -> None:
    state = SinkState.open(str(tmp_path))
    for query in ("one", "two"):
        for batch in (8, 9, 10):
            assert state.task(query, batch, 0).put(RECORD)
    state.forget_before("one", 10)
    state.forget_before("unknown", 10)
    assert {path.name for path in (tmp_path / "fluss-sink/one").iterdir()} == {"10"}
    assert {path.name for path in (tmp_path / "fluss-sink/two").iterdir()} == {"8", "9", "10"}
    state.forget("two")
    assert not (tmp_path / "fluss-sink/two").exists()


def test_damaged_and_unknown_records_are_refused(tmp_path: Path) -> None:
    assert WriterRecord.from_json(RECORD.to_json()) == RECORD
    newer = RECORD.to_json().replace('"version":1', '"version":2')
    for text in ("", "{", "[]", '{"version":1}', newer):
        (tmp_path / "0.json").write_text(text)
        with pytest.raises(FlussError, match="damaged, or of a version that is not known"):
            TaskRecords(LocalFiles(tmp_path), "0").load()


def test_locations_are_paths_and_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_space = tmp_path / "with space"
    for location in (str(with_space), f"file:{with_space}", f"file://{with_space}", f"file:///{with_space}"):
        state_files(location.replace(" ", "%20") if location.startswith("file") else location).create("x", b"y")
        assert (with_space / "x").read_bytes() == b"y"
        (with_space / "x").unlink()
    monkeypatch.chdir(tmp_path)
    state = SinkState.open("here")
    monkeypatch.chdir("/")
    # Tasks have other working directories than the driver.
    assert state.task("query", 0, 0).put(RECORD)
    assert (tmp_path / "here/fluss-sink/query/0/0.json").exists()


def test_a_directory_that_executors_do_not_share_is_noticed(tmp_path: Path) -> None:
    state = SinkState.open(str(tmp_path / "driver"))
    assert SinkState.open(str(tmp_path / "driver")) == state
    (tmp_path / "driver/fluss-sink/directory").write_text("another machine")
    with pytest.raises(FlussError, match="is not the same directory here as on the driver"):
        state.task("query", 0, 0)


def test_locations_that_cannot_be_used_are_refused_without_their_secrets() -> None:
    with pytest.raises(FlussError, match="checkpointLocation"):
        SinkState.open(None)
    with pytest.raises(FlussError) as refused:
        SinkState.open("gopher://key:secret@host/path?token=secret")
    assert "gopher://host/path" in refused.value.message
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(SinkState("s3://key:secret@host/path", "mark"))
    assert exactly_once.shown_location("/a@b") == "/a@b"


def test_a_given_record_learns_of_new_partitions_but_not_of_new_writers() -> None:
    keeper = DriverRecord(RECORD)
    assert keeper.load() == RECORD
    # Where the log of a new partition ended then is not known to the next attempt: it reads it from the beginning.
    assert keeper.put(replace(RECORD, starts={**RECORD.starts, "13:0": 77}))
    assert keeper.record.starts == {":0": 3, "12:1": 4, "13:0": 0}
    with pytest.raises(FlussError, match="has forgotten the writer id 17"):
        keeper.put(replace(RECORD, writer_id=18))
