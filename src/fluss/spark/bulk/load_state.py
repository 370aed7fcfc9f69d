"""What an unfinished load must know to go on: kept in a directory that the caller chooses.

The plan is written before the first row: which pieces of which files each task loads, and under which writer id. A
second run takes the plan instead of making one. Tasks that are known to have ended are left out; of the others it is
found out what they have written, as for any task that is tried again.

    plan.json       the table, the files, the tasks
    done-<n>.json   the results of tasks that have ended
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyarrow.fs import FileSelector, FileSystem

from fluss.errors import FlussError
from fluss.schema.table import TableInfo
from fluss.spark.bulk.files import DataFile, file_system
from fluss.spark.bulk.pieces import FilePiece

_VERSION: Final = 1
_PLAN_NAME: Final = "plan.json"
_DONE_PREFIX: Final = "done-"


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
class LoadResult:
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
            if fields["version"] != _VERSION:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise self._unusable("is damaged, or of a version that is not known") from None
        if fields["table_id"] != info.table_id or fields["table"] != str(info.table_path):
            raise self._unusable(f"is about {fields['table']} with the table id {fields['table_id']}")
        if fields["settings"] != json.loads(json.dumps(settings)):
            raise self._unusable("was made with other columns or other settings of the format")
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
            "version": _VERSION,
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

    def results(self) -> dict[int, LoadResult]:
        """Return the results of the tasks that have ended in earlier runs, by their numbers."""
        found = {}
        for info in self._filesystem.get_file_info(FileSelector(self._base)):
            name = info.base_name
            if name.startswith(_DONE_PREFIX) and name.endswith(".json"):
                number = int(name[len(_DONE_PREFIX) : -len(".json")])
                found[number] = LoadResult(**json.loads(self._read(name) or "{}"))
        return found

    def task_ended(self, number: int, result: LoadResult) -> None:
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
