"""Offsets files: up to which offset a lake has the records of each bucket of a table, as JSON in remote storage.

    {location}/lake/{database}/{table}-{table id}/metadata/{uuid}.offsets
    {"version":1,"table_id":7,"bucket_offsets":[120,-1,98]}
    {"version":1,"table_id":7,"partition_offsets":[{"partition_id":3,"bucket_offsets":[5]}]}

The index is the bucket; -1 says that the lake knows nothing of it. A file is written once and never changed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.json_object import parse_object, write_json
from fluss.schema.table import TableBucket, TablePath
from fluss.storage.remote.file_systems import FileSystemOptions, check_location, open_objects
from fluss.storage.remote.store import RemoteStore, RemoteTraffic
from fluss.storage.vfs import Files, OsFiles

_UNKNOWN: Final = -1
_VERSION: Final = 1
# No name of a database: those have no dots.
_LOCAL_DIRECTORY: Final = "lake.offsets"
_FILE_NAME: Final = re.compile(r"[0-9a-f-]{1,64}\.offsets")


class LakeOffsetsFiles:
    """The offsets files of all tables. Methods block: they are for threads."""

    def __init__(self, locations: Sequence[str], open_store: Callable[[str], RemoteStore]) -> None:
        """``locations``: where files may be; new ones are written to the first."""
        self._locations = tuple(locations)
        self._open_store = open_store
        self._stores: dict[str, RemoteStore] = {}

    @classmethod
    def open(
        cls, locations: Sequence[str], options: FileSystemOptions, data_dir: Path, files: Files | None = None
    ) -> LakeOffsetsFiles:
        """Keep files at the locations of remote storage, or, if there are none, in a directory beside the data."""
        places = [check_location(location) for location in dict.fromkeys(locations)] or [
            str(data_dir / _LOCAL_DIRECTORY)
        ]
        of_machine = files or OsFiles()
        return cls(places, lambda place: RemoteStore(open_objects(place, options, of_machine), RemoteTraffic()))

    def write(self, path: TablePath, table_id: int, offsets: Mapping[TableBucket, int]) -> str:
        """Write a new file, and return where it is."""
        location = self._locations[0]
        name = f"{_directory(path, table_id)}/metadata/{uuid4()}.offsets"
        self._store(location).put(name, _to_json(table_id, offsets))
        return f"{location}/{name}"

    def read(self, path: TablePath, table_id: int, file_path: str) -> dict[TableBucket, int]:
        """Read a file of this table. Anything that is none is a FlussError, and is not looked at."""
        location, name = self._split(path, table_id, file_path)
        try:
            data = self._store(location).get(name)
        except FileNotFoundError:
            raise _invalid(f"There is no offsets file {file_path} of table {path}") from None
        try:
            return _from_json(table_id, data)
        except FlussError as error:
            raise _invalid(f"The offsets file {file_path} cannot be read: {error.message}") from None

    def remove(self, path: TablePath, table_id: int, file_path: str) -> None:
        """Remove a file; a missing one is not an error."""
        location, name = self._split(path, table_id, file_path)
        self._store(location).remove(name)

    def remove_table(self, path: TablePath, table_id: int) -> None:
        """Remove all files of a table that was dropped."""
        for location in self._locations:
            self._store(location).remove_all(_directory(path, table_id))

    def _split(self, path: TablePath, table_id: int, file_path: str) -> tuple[str, str]:
        """Return location and name of a file, which must be one that ``write`` has made for this table.

        Paths come from clients: nothing else of the storage may be read, or removed, by them.
        """
        for location in self._locations:
            prefix = f"{location}/{_directory(path, table_id)}/metadata/"
            if file_path.startswith(prefix) and _FILE_NAME.fullmatch(file_path.removeprefix(prefix)):
                return location, file_path.removeprefix(f"{location}/")
        raise _invalid(
            f"{file_path} is no offsets file of table {path}; commit the path that was returned when it was prepared"
        )

    def _store(self, location: str) -> RemoteStore:
        store = self._stores.get(location)
        if store is None:
            store = self._stores[location] = self._open_store(location)
        return store


def _directory(path: TablePath, table_id: int) -> str:
    return f"lake/{path.database_name}/{path.table_name}-{table_id}"


def _to_json(table_id: int, offsets: Mapping[TableBucket, int]) -> bytes:
    groups: defaultdict[int | None, dict[int, int]] = defaultdict(dict)
    for bucket, offset in offsets.items():
        groups[bucket.partition_id][bucket.bucket_id] = offset
    value: dict[str, Any] = {"version": _VERSION, "table_id": table_id}
    if None in groups:
        value["bucket_offsets"] = _array(groups[None])
    elif groups:
        value["partition_offsets"] = [
            {"partition_id": partition_id, "bucket_offsets": _array(by_bucket)}
            for partition_id, by_bucket in sorted(groups.items(), key=lambda item: item[0] or 0)
        ]
    return write_json(value)


def _array(by_bucket: Mapping[int, int]) -> list[int]:
    return [by_bucket.get(bucket_id, _UNKNOWN) for bucket_id in range(max(by_bucket) + 1)]


def _from_json(table_id: int, data: BytesLike) -> dict[TableBucket, int]:
    fields = parse_object(data)
    if (version := fields.integer("version")) != _VERSION:
        raise FlussError(f"it has version {version}")
    if (other_id := fields.integer("table_id")) != table_id:
        raise FlussError(f"it is of the table of id {other_id}")
    groups: list[tuple[int | None, list[int]]] = []
    if fields.has("partition_offsets"):
        partitions = fields.objects("partition_offsets")
        groups += [(each.integer("partition_id"), each.integers("bucket_offsets")) for each in partitions]
    if fields.has("bucket_offsets"):
        groups.append((None, fields.integers("bucket_offsets")))
    return {
        TableBucket.new_with_partition(table_id, partition_id, bucket_id): offset
        for partition_id, offsets in groups
        for bucket_id, offset in enumerate(offsets)
        if offset != _UNKNOWN
    }


def _invalid(text: str) -> FlussError:
    return FlussError(text, ErrorCode.LAKE_SNAPSHOT_NOT_EXIST)
