"""Writer snapshots: what a log knows about its idempotent writers, so that a restart need not read it all again.

A JSON object, UTF-8, no white space:

| field               | meaning                                                       |
|---------------------|---------------------------------------------------------------|
| version             | 1                                                             |
| writer_id_entries   | list, one entry per writer:                                   |
| · writer_id                | int64                                                  |
| · last_batch_sequence      | int32                                                  |
| · last_batch_base_offset   | int64, the **last** offset of the last batch: see below |
| · offset_delta             | int32, last offset of that batch minus its first       |
| · last_batch_timestamp     | int64, commit time of that batch in milliseconds       |

The field ``last_batch_base_offset`` does not hold what its name says. It is written with the last offset, and readers
get the base by subtracting ``offset_delta``. The name is part of the format; in ``WriterEntry`` the value has the
right one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fluss.buffers import BytesLike
from fluss.integers import INT32_MAX
from fluss.storage.log.json_file import JsonObject, write_json

VERSION = 1
_WHAT = "writer snapshot"


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """The last batch of one writer."""

    writer_id: int
    batch_sequence: int
    offset_last: int
    offset_delta: int
    commit_time_ms: int

    @property
    def offset_base(self) -> int:
        return self.offset_last - self.offset_delta


def encode_writer_snapshot(entries: Iterable[WriterEntry]) -> bytes:
    """Write the entries in the given order."""
    fields = [
        {
            "writer_id": entry.writer_id,
            "last_batch_sequence": entry.batch_sequence,
            "last_batch_base_offset": entry.offset_last,
            "offset_delta": entry.offset_delta,
            "last_batch_timestamp": entry.commit_time_ms,
        }
        for entry in entries
    ]
    return write_json({"version": VERSION, "writer_id_entries": fields})


def decode_writer_snapshot(data: BytesLike, file_name: str | None = None) -> list[WriterEntry]:
    """Read the entries in file order; of two entries of one writer the later counts.

    Damage raises a FlussError with the log storage code. The snapshot is a cache: the log itself has it all.
    """
    snapshot = JsonObject.parse(data, _WHAT, file_name, version=VERSION)
    return [_entry(fields) for fields in snapshot.objects("writer_id_entries")]


def _entry(fields: JsonObject) -> WriterEntry:
    return WriterEntry(
        writer_id=fields.integer("writer_id", lowest=0),
        batch_sequence=fields.integer("last_batch_sequence", lowest=-1, highest=INT32_MAX),
        offset_last=fields.integer("last_batch_base_offset", lowest=-1),
        offset_delta=fields.integer("offset_delta", lowest=0, highest=INT32_MAX),
        commit_time_ms=fields.integer("last_batch_timestamp", lowest=-1),
    )
