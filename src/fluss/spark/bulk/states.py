"""What unfinished bulk jobs must know to go on.

A load keeps it in a directory that the caller chooses. The plan is written before the first row: which pieces of which
files each task loads, and under which writer id. A second run takes the plan instead of making one. Tasks that are
known to have ended are left out; of the others it is found out what they have written, as for any task that is tried
again.

    plan.json       the table, the files, the tasks
    done-<n>.json   the results of tasks that have ended

A copy keeps it with the target, as one of its custom properties. The target is created with it, so there is never a
half-copied table that does not say so. It fixes what is copied (the offsets at which each bucket of the source begins
and ends) and under which writer id, by which a second run finds what the first has written. When everything is there
and was compared, a note that it is finished takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pyarrow.fs import FileSelector, FileSystem

from fluss.errors import FlussError
from fluss.schema.table import TableInfo
from fluss.spark.bulk.files import DataFile, FilePiece, file_system

_LOAD_VERSION: Final = 1
# The setting that says how large batches of rows with keys are: what was written is found again by the numbers of
# batches, so they must have the same rows.
BATCH_BYTES: Final = "batch_bytes"
_PLAN_NAME: Final = "plan.json"
_DONE_PREFIX: Final = "done-"
STATE_PROPERTY: Final = "bulk.copy.state"
_COPY_VERSION: Final = 1
# A property is part of everything that clients are told about a table.
_TEXT_CHARS_MAX: Final = 500_000


# Loads


@dataclass(frozen=True)
class LoadTask:
    """The pieces of files that one task loads, and the writer id under which all its attempts write."""

    pieces: tuple[FilePiece, ...]
    writer_id: int

    @property
    def size_bytes(self) -> int:
        """The bytes of all pieces."""
        return sum(piece.size_bytes for piece in self.pieces)


@dataclass(frozen=True)
class LoadPlan:
    """All tasks of a load, and where the logs of the table ended before it: its rows are from there on."""

    table_id: int
    starts: Mapping[str, int]
    tasks: tuple[LoadTask, ...]

    @property
    def rows_known(self) -> int | None:
        """All rows, if all pieces know theirs."""
        counts = [piece.rows for task in self.tasks for piece in task.pieces]
        return None if None in counts else sum(rows for rows in counts if rows is not None)


@dataclass(frozen=True, slots=True)
class LoadTaskResult:
    """What a task has loaded; ``rows_found`` were there already."""

    rows: int
    rows_found: int


class LoadState:
    """The directory of one load. Only the driver uses it."""

    def __init__(self, directory: str) -> None:
        self._shown = directory
        self._filesystem: FileSystem
        self._filesystem, self._base = file_system(directory)
        self._filesystem.create_dir(self._base, recursive=True)

    def plan(self, info: TableInfo, files: Sequence[DataFile], settings: Mapping[str, Any]) -> LoadPlan | None:
        """Return the plan of an earlier run, None if there was none.

        A plan for another table, for other files or with other ``settings`` is refused.
        """
        text = self._read(_PLAN_NAME)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            if fields["version"] != _LOAD_VERSION:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise self._unusable("is damaged, or of a version that is not known") from None
        if fields["table_id"] != info.table_id or fields["table"] != str(info.table_path):
            raise self._unusable(f"is about {fields['table']} with the table id {fields['table_id']}")
        chosen = json.loads(json.dumps(settings))
        if BATCH_BYTES in chosen:
            # Loads of earlier releases do not say it.
            fields["settings"].setdefault(BATCH_BYTES, chosen[BATCH_BYTES])
        if fields["settings"] != chosen:
            raise self._unusable(
                "was made with other columns, other settings of the format, or another 'writer.batch-size'"
            )
        by_path = {file.path: file for file in files}
        if dict(fields["files"]) != _sizes(files):
            raise self._unusable("is about other files, or they have changed")
        tasks = tuple(
            LoadTask(tuple(_piece(by_path[piece.pop("path")], piece) for piece in task["pieces"]), task["writer_id"])
            for task in fields["tasks"]
        )
        return LoadPlan(fields["table_id"], fields["starts"], tasks)

    def _unusable(self, problem: str) -> FlussError:
        return FlussError(f"The load in '{self._shown}' {problem}; give another resume_dir for another load")

    def save(self, plan: LoadPlan, info: TableInfo, files: Sequence[DataFile], settings: Mapping[str, Any]) -> None:
        """Keep a plan, before anything of it is done."""
        fields = {
            "version": _LOAD_VERSION,
            "table": str(info.table_path),
            "table_id": plan.table_id,
            "settings": settings,
            "files": list(_sizes(files).items()),
            "starts": plan.starts,
            "tasks": [
                {"writer_id": task.writer_id, "pieces": [_piece_fields(piece) for piece in task.pieces]}
                for task in plan.tasks
            ],
        }
        self._write(_PLAN_NAME, json.dumps(fields, separators=(",", ":")))

    def results(self) -> dict[int, LoadTaskResult]:
        """Return the results of the tasks that have ended in earlier runs, by their numbers."""
        found = {}
        for info in self._filesystem.get_file_info(FileSelector(self._base)):
            name = info.base_name
            if name.startswith(_DONE_PREFIX) and name.endswith(".json"):
                number = int(name[len(_DONE_PREFIX) : -len(".json")])
                found[number] = LoadTaskResult(**json.loads(self._read(name) or "{}"))
        return found

    def task_ended(self, number: int, result: LoadTaskResult) -> None:
        """Keep the result of a task."""
        self._write(f"{_DONE_PREFIX}{number}.json", json.dumps(asdict(result)))

    def _read(self, name: str) -> str | None:
        path = f"{self._base}/{name}"
        if not self._filesystem.get_file_info(path).is_file:
            return None
        with self._filesystem.open_input_stream(path) as stream:
            text: str = stream.read().decode()
        return text

    def _write(self, name: str, text: str) -> None:
        """Write a file that is either complete or not there."""
        unfinished = f"{self._base}/_{name}"
        with self._filesystem.open_output_stream(unfinished) as stream:
            stream.write(text.encode())
        self._filesystem.move(unfinished, f"{self._base}/{name}")


def _sizes(files: Sequence[DataFile]) -> dict[str, int]:
    return {file.path: file.size_bytes for file in files}


def _piece_fields(piece: FilePiece) -> dict[str, Any]:
    fields = {name: value for name, value in vars(piece).items() if name != "file"}
    return {"path": piece.file.path, **fields}


def _piece(file: DataFile, fields: dict[str, Any]) -> FilePiece:
    return FilePiece(file, **{**fields, "names": tuple(fields["names"])})


# Copies


@dataclass(frozen=True)
class CopyState:
    """See above. Times are epoch milliseconds."""

    source: str
    source_table_id: int
    source_created_ms: int
    ranges: Mapping[str, tuple[tuple[int, int], ...]]
    """The first offset of each bucket and the one behind its last, by partition; a table without any has ''."""
    writer_ids: tuple[int, ...] = ()
    """The last one is used, servers have forgotten the others. Without any, nothing has been written."""
    writer_since_ms: int = 0
    rows_finished: int | None = None
    """All rows, when they are there."""

    @classmethod
    def begin(cls, info: TableInfo, ranges: Mapping[str, tuple[tuple[int, int], ...]]) -> CopyState:
        """Return the state of a copy that has not begun."""
        return cls(str(info.table_path), info.table_id, info.created_time, ranges)

    @property
    def is_finished(self) -> bool:
        """Whether all rows are in the target."""
        return self.rows_finished is not None

    def finished(self, rows: int) -> CopyState:
        """Return the note that is left when all is done."""
        return replace(self, writer_ids=(), ranges={}, rows_finished=rows)

    def with_writer(self, writer_id: int, now_ms: int) -> CopyState:
        """Go on under another writer id."""
        return replace(self, writer_ids=(*self.writer_ids, writer_id), writer_since_ms=now_ms)

    def check_source(self, info: TableInfo, target: str) -> None:
        """Refuse to go on with another source than the copy began with."""
        if (self.source_table_id, self.source_created_ms) != (info.table_id, info.created_time):
            raise FlussError(
                f"{target} has an unfinished copy of {self.source} (table id {self.source_table_id}), which is not the "
                f"table {info.table_path} (table id {info.table_id}) of now; drop {target} to copy anew"
            )

    def to_text(self) -> str:
        """Return the text of the property."""
        text = json.dumps({"version": _COPY_VERSION, **asdict(self)}, separators=(",", ":"))
        if len(text) > _TEXT_CHARS_MAX:
            raise FlussError(
                f"{self.source} has {len(self.ranges)} partitions, which are too many for one copy; export it, and "
                "load what was exported"
            )
        return text

    @classmethod
    def from_text(cls, text: str, target: str) -> CopyState:
        """Read the text of the property."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("version") != _COPY_VERSION:
                raise ValueError
            fields["writer_ids"] = tuple(fields["writer_ids"])
            fields["ranges"] = {
                partition: tuple((int(start), int(stop)) for start, stop in buckets)
                for partition, buckets in fields["ranges"].items()
            }
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise FlussError(
                f"The property '{STATE_PROPERTY}' of {target} is damaged, or of a version that is not known; drop "
                f"{target} to copy anew"
            ) from None
