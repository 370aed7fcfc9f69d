"""The description of a key-value snapshot in remote storage: which files it consists of, and what they hold.

A JSON object, UTF-8, no white space, its fields in this order; it is the file ``_METADATA`` of the snapshot:

| field                        | type  | meaning                                                              |
|------------------------------|-------|----------------------------------------------------------------------|
| version                      | int   | 1                                                                    |
| table_id                     | int64 |                                                                      |
| partition_id                 | int64 | only of a partition                                                  |
| bucket_id                    | int32 |                                                                      |
| snapshot_id                  | int64 | counts up for each bucket, from 0                                    |
| snapshot_location            | text  | the directory of the snapshot                                        |
| kv_snapshot_handle           |       |                                                                      |
| · shared_file_handles        | list  | SST files, which other snapshots of the bucket may have, too         |
| · private_file_handles       | list  | the other files of the database                                      |
| · · kv_file_handle           |       | ``path`` and ``size`` in remote storage                                  |
| · · local_path               | text  | the name that RocksDB gave the file                                  |
| · snapshot_incremental_size  | int64 | bytes that were uploaded for it                                      |
| log_offset                   | int64 | the changes before it are in the rows, and none from it on           |
| row_count                    | int64 | only if rows are counted                                             |
| auto_inc_id_range            | list  | only with an auto-increment column: ``column_id``, and which ids are   |
|                              |       | reserved and not used yet, ``start`` to ``end``                          |

Files below the directory of the bucket:

| path                       | content                                                            |
|----------------------------|--------------------------------------------------------------------|
| ``snap-{id}/_METADATA``      | this description; written last                                     |
| ``snap-{id}/{uuid}``         | a private file                                                     |
| ``shared/{uuid}``            | a shared file                                                      |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.json_object import JsonObject, parse_object, write_json
from fluss.schema.table import TableBucket
from fluss.storage.kv.state import IdBlock, KvState

VERSION: Final = 1
METADATA_NAME: Final = "_METADATA"
SHARED_DIRECTORY: Final = "shared"
_SNAPSHOT_PREFIX: Final = "snap-"


class SnapshotFile(NamedTuple):
    """One file of a snapshot."""

    # Where it is in remote storage: absolute, or a URI.
    path: str
    size_bytes: int
    # What RocksDB called it.
    local_name: str

    @property
    def name(self) -> str:
        """Its name in remote storage."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class CompletedSnapshot:
    """A snapshot of which everything is in remote storage."""

    bucket: TableBucket
    snapshot_id: int
    # The directory of the snapshot: absolute, or a URI.
    location: str
    shared: tuple[SnapshotFile, ...]
    private: tuple[SnapshotFile, ...]
    # What was uploaded for it.
    uploaded_bytes: int
    log_offset: int
    row_count: int | None = None
    ids: IdBlock | None = None

    @property
    def files(self) -> tuple[SnapshotFile, ...]:
        """All files that make the database."""
        return self.shared + self.private

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def paths(self, directory: str) -> Iterator[tuple[str, SnapshotFile]]:
        """Yield the files with their paths below the store of a bucket's directory, wherever that is mounted now."""
        for file in self.shared:
            yield f"{directory}/{SHARED_DIRECTORY}/{file.name}", file
        for file in self.private:
            yield f"{directory}/{snapshot_name(self.snapshot_id)}/{file.name}", file


def snapshot_name(snapshot_id: int) -> str:
    """Return the name of a snapshot's directory."""
    return f"{_SNAPSHOT_PREFIX}{snapshot_id}"


def snapshot_id_of(name: str) -> int | None:
    """Return the id of a snapshot by the name of its directory; None for any other name."""
    digits = name.removeprefix(_SNAPSHOT_PREFIX)
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None


def encode_snapshot(snapshot: CompletedSnapshot) -> bytes:
    bucket = snapshot.bucket
    values: dict[str, Any] = {"version": VERSION, "table_id": bucket.table_id}
    if bucket.partition_id is not None:
        values["partition_id"] = bucket.partition_id
    values |= {
        "bucket_id": bucket.bucket_id,
        "snapshot_id": snapshot.snapshot_id,
        "snapshot_location": snapshot.location,
        "kv_snapshot_handle": {
            "shared_file_handles": _handles(snapshot.shared),
            "private_file_handles": _handles(snapshot.private),
            "snapshot_incremental_size": snapshot.uploaded_bytes,
        },
        "log_offset": snapshot.log_offset,
    }
    if snapshot.row_count is not None:
        values["row_count"] = snapshot.row_count
    if snapshot.ids is not None:
        ids = snapshot.ids
        # The last id is part of the range.
        values["auto_inc_id_range"] = [{"column_id": ids.column_id, "start": ids.id_next, "end": ids.id_end - 1}]
    return write_json(values)


def decode_snapshot(data: BytesLike, name: str) -> CompletedSnapshot:
    """Read a description; ``name`` is for the error about one that is damaged."""
    try:
        values = parse_object(data)
        version = values.integer("version", lowest=0, highest=INT32_MAX)
        if version != VERSION:
            raise FlussError(f"its version is {version}, this version reads only {VERSION}")
        handle = values.object("kv_snapshot_handle")
        bucket = TableBucket.new_with_partition(
            values.integer("table_id", lowest=0),
            values.optional_integer("partition_id", lowest=0),
            values.integer("bucket_id", lowest=0, highest=INT32_MAX),
        )
        return CompletedSnapshot(
            bucket,
            values.integer("snapshot_id", lowest=0),
            values.string("snapshot_location"),
            _files(handle, "shared_file_handles"),
            _files(handle, "private_file_handles"),
            handle.integer("snapshot_incremental_size", lowest=0),
            values.integer("log_offset", lowest=0),
            values.optional_integer("row_count", lowest=0),
            _ids(values),
        )
    except FlussError as error:
        raise FlussError(
            f"the description {name} of a key-value snapshot is damaged: {error.message}",
            ErrorCode.KV_STORAGE_EXCEPTION,
        ) from error


def state_of(snapshot: CompletedSnapshot, value_bytes_max: int) -> KvState:
    """Return the state of a store that begins with a snapshot."""
    return KvState(snapshot.log_offset, snapshot.row_count, snapshot.ids, value_bytes_max)


def _handles(files: Sequence[SnapshotFile]) -> list[dict[str, Any]]:
    return [
        {"kv_file_handle": {"path": file.path, "size": file.size_bytes}, "local_path": file.local_name}
        for file in files
    ]


def _files(handle: JsonObject, key: str) -> tuple[SnapshotFile, ...]:
    files = []
    for item in handle.objects(key):
        file = item.object("kv_file_handle")
        local_name = item.string("local_path")
        if not local_name or PurePosixPath(local_name).name != local_name:
            raise item.error("local_path", "must be the name of a file")
        files.append(SnapshotFile(file.string("path"), file.integer("size", lowest=0), local_name))
    return tuple(files)


def _ids(values: JsonObject) -> IdBlock | None:
    if not values.has("auto_inc_id_range"):
        return None
    for item in values.objects("auto_inc_id_range"):
        start = item.integer("start", lowest=0)
        end = item.integer("end", lowest=start - 1)
        return IdBlock(item.integer("column_id", lowest=0, highest=INT32_MAX), start, end + 1)
    return None
