"""The directory of an export: empty, or to be replaced; and finished only when ``_SUCCESS`` is in it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final

from pyarrow.fs import FileInfo, FileSelector, FileSystem

from fluss.errors import FlussError
from fluss.spark.bulk.files import file_system
from fluss.spark.bulk.parquet_output import WrittenFile

MANIFEST_NAME: Final = "_SUCCESS"
TEMPORARY_PREFIX: Final = "_temporary-"


class ExportTarget:
    """The directory that files are written to. A context manager, which leaves nothing unfinished behind."""

    def __init__(self, filesystem: FileSystem, base: str, found: list[FileInfo]) -> None:
        self.filesystem = filesystem
        self.base = base
        self.temporary = f"{base}/{TEMPORARY_PREFIX}{secrets.token_hex(6)}"
        self._found = found

    @classmethod
    def at(cls, path: str, *, overwrite: bool) -> ExportTarget:
        filesystem, base = file_system(path)
        base = base.rstrip("/")
        info = filesystem.get_file_info(base)
        if info.is_file:
            raise FlussError(f"'{path}' is a file; give a directory to export to")
        found = filesystem.get_file_info(FileSelector(base, allow_not_found=True))
        for each in found:
            if not _is_of_an_export(each):
                raise FlussError(
                    f"There is '{each.base_name}' in '{path}', which is of no export; choose another place"
                )
        if found and not overwrite:
            is_unfinished = any(each.base_name.startswith(TEMPORARY_PREFIX) for each in found)
            what = "an export that was not finished" if is_unfinished else "an export"
            raise FlussError(f"There is {what} in '{path}'; give an empty directory, or overwrite=True to replace it")
        return cls(filesystem, base, found)

    def __enter__(self) -> None:
        self.filesystem.create_dir(self.temporary, recursive=True)

    def __exit__(self, *exception: object) -> None:
        self.filesystem.delete_dir(self.temporary)

    def complete(self, files: Sequence[WrittenFile], manifest: dict[str, Any]) -> None:
        """Put files in their places, remove what was there before, and then say that all is there."""
        for info in self._found:
            if info.base_name == MANIFEST_NAME:
                self._delete(info)
        made: set[str] = set()
        for file in files:
            place = f"{self.base}/{file.place}"
            directory = place.rpartition("/")[0]
            if directory not in made:
                self.filesystem.create_dir(directory, recursive=True)
                made.add(directory)
            self.filesystem.move(file.path, place)
        self._delete_old({f"{self.base}/{file.place}" for file in files})
        unfinished = f"{self.temporary}/{MANIFEST_NAME}"
        with self.filesystem.open_output_stream(unfinished) as stream:
            stream.write(json.dumps(manifest, indent=1).encode())
        self.filesystem.move(unfinished, f"{self.base}/{MANIFEST_NAME}")

    def _delete_old(self, new: set[str]) -> None:
        """Remove what was there before the export; directories may have new files among the old ones."""
        for info in self._found:
            if info.base_name == MANIFEST_NAME:
                continue
            if not any(path.startswith(f"{info.path}/") for path in new):
                self._delete(info)
                continue
            for inner in self.filesystem.get_file_info(FileSelector(info.path, recursive=True)):
                if inner.is_file and inner.path not in new:
                    self._delete(inner)

    def _delete(self, info: FileInfo) -> None:
        if info.is_file:
            self.filesystem.delete_file(info.path)
        else:
            self.filesystem.delete_dir(info.path)


def _is_of_an_export(info: FileInfo) -> bool:
    """Whether something looks as if an export, or another writer of Parquet files, has made it."""
    name = info.base_name
    return name.startswith(("_", ".")) or (name.endswith(".parquet") if info.is_file else "=" in name)
