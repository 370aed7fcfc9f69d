"""The manifest of a remote log: which segments exist, and which offsets they hold.

A JSON object, UTF-8, no white space, its fields in this order:

| field                     | type   | meaning                                                            |
|---------------------------|--------|--------------------------------------------------------------------|
| version                   | int    | 1                                                                  |
| database, table           | text   |                                                                    |
| partition_name            | text   | only of a partition                                                |
| table_id                  | int64  |                                                                    |
| partition_id              | int64  | only of a partition                                                |
| bucket_id                 | int32  |                                                                    |
| highest_copied_end_offset | int64  | only if it is not the end of the last segment                      |
| remote_log_segments       | list   | ascending:                                                         |
| · segment_id              | text   | lower-case UUID, the directory of the segment's files              |
| · start_offset, end_offset | int64 | what the files hold; the end is exclusive                          |
| · logical_start_offset, logical_end_offset | int64 | what of it counts, each only if it differs         |
| · max_timestamp           | int64  | largest commit time in milliseconds                                |
| · size_in_bytes           | int32  | of the segment file                                                |

The "only if" offsets are known to the newer of two generations of servers; a manifest without them reads the same
in both. A commit writes a new manifest, and then the metadata of the cluster name it.

Files below the directory of the remote log, ``N`` being an offset as 20 decimal digits:

| path                                              | content                                          |
|---------------------------------------------------|--------------------------------------------------|
| ``{segment_id}/N.log``, ``.index``, ``.timeindex``      | copies of the segment's files; N is its start     |
| ``{segment_id}/N.writer_snapshot``                  | state of the writers; N is the segment's end      |
| ``metadata/{manifest_id}.manifest``                 | a manifest; every commit writes a new one        |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fluss.buffers import BytesLike
from fluss.errors import FlussError
from fluss.integers import INT32_MAX
from fluss.json_object import JsonObject, write_json
from fluss.storage.log.file_names import LogFileKind, TabletKind, TabletLocation, json_file, log_file_name

VERSION = 1
MANIFEST_SUFFIX = ".manifest"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """One uploaded segment. The clipped offsets are None where the whole segment counts."""

    segment_id: str
    start_offset: int
    end_offset: int
    timestamp_ms_max: int
    size_bytes: int
    clipped_start_offset: int | None = None
    clipped_end_offset: int | None = None

    @property
    def logical_start_offset(self) -> int:
        return self.start_offset if self.clipped_start_offset is None else self.clipped_start_offset

    @property
    def logical_end_offset(self) -> int:
        return self.end_offset if self.clipped_end_offset is None else self.clipped_end_offset


@dataclass(frozen=True, slots=True)
class RemoteManifest:
    """All segments of one remote log. ``copied_end_offset`` is None where the last segment's end says it."""

    location: TabletLocation
    segments: tuple[RemoteSegment, ...]
    copied_end_offset: int | None = None

    @property
    def start_offset(self) -> int | None:
        """First offset that can be read from the remote log; None if it is empty."""
        return self.segments[0].logical_start_offset if self.segments else None

    @property
    def end_offset(self) -> int | None:
        """First offset behind the remote log; None if nothing was ever copied."""
        if self.copied_end_offset is not None:
            return self.copied_end_offset
        return self.segments[-1].end_offset if self.segments else None


def encode_manifest(manifest: RemoteManifest) -> bytes:
    """Write a manifest. Fields that say nothing new are left out."""
    location = manifest.location
    fields: dict[str, Any] = {"version": VERSION, "database": location.database, "table": location.table}
    if location.partition_name is not None:
        fields["partition_name"] = location.partition_name
    fields["table_id"] = location.table_id
    if location.partition_id is not None:
        fields["partition_id"] = location.partition_id
    fields["bucket_id"] = location.bucket_id
    copied = manifest.copied_end_offset
    if copied is not None and not (manifest.segments and manifest.segments[-1].end_offset == copied):
        fields["highest_copied_end_offset"] = copied
    fields["remote_log_segments"] = [_segment_fields(segment) for segment in manifest.segments]
    return write_json(fields)


def decode_manifest(data: BytesLike, file_name: str | None = None) -> RemoteManifest:
    """Read a manifest of either generation. Damage raises a FlussError with the log storage code."""
    with json_file(data, "remote log manifest", file_name, version=VERSION) as fields:
        return _read_manifest(fields)


def is_uuid(text: str) -> bool:
    """Tell whether a text has the form of a segment or manifest id. Nothing else may become part of a path."""
    return _UUID.fullmatch(text) is not None


def remote_file_path(segment_id: str, offset: int, kind: LogFileKind) -> str:
    """Return where a remote log keeps a file of a segment, relative to the tablet.

    ``offset`` is the segment's start for the log and its indexes, and its end for the writer snapshot.
    """
    assert is_uuid(segment_id), f"{segment_id!r} is not a segment id"
    return f"{segment_id}/{log_file_name(offset, kind)}"


def manifest_path(manifest_id: str) -> str:
    """Return where a remote log keeps a manifest, relative to the tablet. Every commit writes a new one."""
    assert is_uuid(manifest_id), f"{manifest_id!r} is not a manifest id"
    return f"metadata/{manifest_id}{MANIFEST_SUFFIX}"


def _read_manifest(fields: JsonObject) -> RemoteManifest:
    partition_name = fields.optional_string("partition_name")
    partition_id = fields.optional_integer("partition_id", lowest=0)
    if (partition_name is None) != (partition_id is None):
        raise FlussError("a partition needs a name and an id, only one of them is there")
    location = TabletLocation(
        fields.string("database"),
        fields.string("table"),
        fields.integer("table_id", lowest=0),
        fields.integer("bucket_id", lowest=0, highest=INT32_MAX),
        partition_name,
        partition_id,
    )
    # Names become part of paths, so they must not be able to lead anywhere else.
    if TabletLocation.parse(location.path(TabletKind.REMOTE_LOG)) != (location, TabletKind.REMOTE_LOG):
        raise FlussError(f"its names cannot be those of a table: {location.path(TabletKind.REMOTE_LOG)[:200]!r}")
    copied_end_offset = fields.optional_integer("highest_copied_end_offset", lowest=0)
    segments = tuple(_read_segment(entry) for entry in fields.objects("remote_log_segments"))
    _check_ascending(segments)
    return RemoteManifest(location, segments, copied_end_offset)


def _segment_fields(segment: RemoteSegment) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "segment_id": segment.segment_id,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
    }
    if segment.logical_start_offset != segment.start_offset:
        fields["logical_start_offset"] = segment.logical_start_offset
    if segment.logical_end_offset != segment.end_offset:
        fields["logical_end_offset"] = segment.logical_end_offset
    fields["max_timestamp"] = segment.timestamp_ms_max
    fields["size_in_bytes"] = segment.size_bytes
    return fields


def _read_segment(fields: JsonObject) -> RemoteSegment:
    segment = RemoteSegment(
        segment_id=fields.string("segment_id"),
        start_offset=fields.integer("start_offset", lowest=0),
        end_offset=fields.integer("end_offset", lowest=0),
        timestamp_ms_max=fields.integer("max_timestamp", lowest=-1),
        size_bytes=fields.integer("size_in_bytes", lowest=0, highest=INT32_MAX),
        clipped_start_offset=fields.optional_integer("logical_start_offset", lowest=0),
        clipped_end_offset=fields.optional_integer("logical_end_offset", lowest=0),
    )
    # It becomes part of a path, too.
    if not is_uuid(segment.segment_id):
        raise FlussError(f"the segment id {segment.segment_id[:60]!r} is not a lower-case UUID")
    start, end = segment.logical_start_offset, segment.logical_end_offset
    if not segment.start_offset <= start <= end <= segment.end_offset:
        raise FlussError(
            f"the segment {segment.segment_id} holds the offsets {segment.start_offset} to {segment.end_offset}, of "
            f"which {start} to {end} are said to count"
        )
    return segment


def _check_ascending(segments: Sequence[RemoteSegment]) -> None:
    for before, after in pairwise(segments):
        if after.logical_start_offset < before.logical_end_offset:
            raise FlussError(
                f"the segment {after.segment_id} starts at offset {after.logical_start_offset}, the one before it "
                f"ends at {before.logical_end_offset}"
            )
