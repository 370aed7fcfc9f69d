"""What a data directory knows of the backup that it was made from: ``restore.json``.

It is there from the moment on at which a restore was begun, and says whether all logs were fetched since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from fluss.json_object import write_json
from fluss.storage.log.file_names import json_file
from fluss.storage.vfs import Files

FILE_NAME: Final = "restore.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RestoreNote:
    """Where the backup is, which point of it, of when, and whether everything is on this disk by now."""

    location: str
    point_path: str
    epoch: int
    time_ms: int
    is_complete: bool = False

    @classmethod
    def load(cls, files: Files, data_dir: Path) -> Self | None:
        """Return the note of a data directory; None if it was not restored. Blocking."""
        path = data_dir / FILE_NAME
        if not files.exists(path):
            return None
        with json_file(
            files.read(path, 0, files.size(path)), "note of a restore", str(path), version=_VERSION
        ) as fields:
            return cls(
                fields.string("location"),
                fields.string("point"),
                fields.integer("epoch", lowest=0),
                fields.integer("time_ms", lowest=0),
                fields.boolean("is_complete", False),
            )

    def save(self, files: Files, data_dir: Path) -> None:
        """Write it down. Blocking."""
        fields = {
            "version": _VERSION,
            "location": self.location,
            "point": self.point_path,
            "epoch": self.epoch,
            "time_ms": self.time_ms,
            "is_complete": self.is_complete,
        }
        files.replace(data_dir / FILE_NAME, write_json(fields))

    def completed(self) -> RestoreNote:
        return replace(self, is_complete=True)
