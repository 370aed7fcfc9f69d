"""What a log knows about its idempotent writers: which of their batches it has, and which must come next.

A writer numbers the batches it sends to a bucket 0, 1, 2, ..., and may have five of them on the way. After a lost
answer it sends a batch again; the log recognises it by its number and answers what it answered first. Per writer the
last five batches are remembered.

Snapshots of this are files beside the log, so that a restart need not read it all again. A snapshot is a JSON object,
UTF-8, no white space:

| field               | meaning                                                       |
|---------------------|---------------------------------------------------------------|
| version             | 1                                                             |
| writer_id_entries   | list, one entry per remembered batch:                         |
| · writer_id                | int64                                                  |
| · last_batch_sequence      | int32                                                  |
| · last_batch_base_offset   | int64, the **last** offset of the batch: see below     |
| · offset_delta             | int32, last offset of the batch minus its first        |
| · last_batch_timestamp     | int64, commit time of the batch in milliseconds        |

The field ``last_batch_base_offset`` does not hold what its name says. It is written with the last offset, and readers
get the base by subtracting ``offset_delta``. The name is part of the format; in ``WriterEntry`` the value has the
right one. A reader that knows one batch per writer takes the last entry, which is its newest batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.json_object import JsonObject, write_json
from fluss.record.log_batch import NO_WRITER_ID, LogBatchHeader
from fluss.storage.log.file_names import OFFSET_MAX, json_file

BATCHES_REMEMBERED: Final = 5
SNAPSHOT_VERSION: Final = 1


@dataclass(slots=True)
class WriterEntry:
    """One batch of a writer."""

    writer_id: int
    batch_sequence: int
    offset_last: int
    offset_delta: int
    commit_time_ms: int

    @property
    def offset_base(self) -> int:
        return self.offset_last - self.offset_delta


class WriterState:
    """The latest batches per writer id; writers that are not idempotent (id -1) leave none. Belongs to one thread."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: dict[int, list[WriterEntry]] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def find_duplicate(self, headers: Sequence[LogBatchHeader]) -> WriterEntry | None:
        """Return the remembered batch that one of these repeats, or None if all of them are next in their order.

        Raises code 31 for a batch that is neither. Changes nothing.
        """
        sequence_latest: dict[int, int] = {}
        for header in headers:
            writer_id, sequence = header.writer_id, header.batch_sequence
            if (duplicate := self.find(writer_id, sequence, sequence_latest.get(writer_id))) is not None:
                return duplicate
            sequence_latest[writer_id] = sequence
        return None

    def find(self, writer_id: int, sequence: int, latest: int | None = None) -> WriterEntry | None:
        """Return the remembered batch with a sequence, or None if this is the one that comes next.

        ``latest`` is what the writer wrote last, if that is not what is remembered. Raises code 31 for a batch that is
        neither.
        """
        if writer_id == NO_WRITER_ID:
            return None
        known = self._batches.get(writer_id)
        if known is not None:
            # What is remembered is consecutive, so the next one, as nearly all are, is none of it.
            if latest is None and sequence == _next_sequence(known[-1].batch_sequence):
                return None
            if (duplicate := _with_sequence(known, sequence)) is not None:
                return duplicate
            latest = known[-1].batch_sequence if latest is None else latest
        _check_next(writer_id, sequence, latest)
        return None

    def add(self, entry: WriterEntry, *, offset_durable: int = OFFSET_MAX) -> None:
        """Remember a batch that is in the log now, whatever its sequence: the log is right.

        Batches at or after ``offset_durable`` may be undone. However many they are, the five before them stay known.
        """
        known = self._batches.setdefault(entry.writer_id, [])
        if known and entry.batch_sequence != _next_sequence(known[-1].batch_sequence):
            # The writer was forgotten and began anew: equal sequences from before are other batches.
            known.clear()
        known.append(entry)
        while len(known) > BATCHES_REMEMBERED and known[BATCHES_REMEMBERED].offset_last < offset_durable:
            del known[0]

    def undo_from(self, offset: int) -> None:
        """Forget the batches at or after an offset: they did not reach the log."""
        for writer_id, known in list(self._batches.items()):
            while known and known[-1].offset_last >= offset:
                known.pop()
            if not known:
                del self._batches[writer_id]

    def expire(self, expired_before_ms: int) -> int:
        """Forget the writers whose last batch is older; return how many they were."""
        expired = [
            writer_id for writer_id, known in self._batches.items() if known[-1].commit_time_ms < expired_before_ms
        ]
        for writer_id in expired:
            del self._batches[writer_id]
        return len(expired)

    def entries(self) -> list[WriterEntry]:
        """Return what a snapshot holds: the remembered batches of every writer, oldest first."""
        return [entry for known in self._batches.values() for entry in _recent(known)]


def _with_sequence(known: list[WriterEntry], sequence: int) -> WriterEntry | None:
    return next((entry for entry in _recent(known) if entry.batch_sequence == sequence), None)


def _recent(known: list[WriterEntry]) -> list[WriterEntry]:
    return known[-BATCHES_REMEMBERED:]


def _next_sequence(latest: int) -> int:
    return 0 if latest == INT32_MAX else latest + 1


def _check_next(writer_id: int, sequence: int, latest: int | None) -> None:
    expected = 0 if latest is None else _next_sequence(latest)
    if sequence != expected:
        known = "has written nothing here yet" if latest is None else f"wrote {latest} last"
        raise FlussError(
            f"Out of order batch sequence {sequence} of writer {writer_id}, which {known}; {expected} is expected",
            ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
        )


# Snapshots


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
    return write_json({"version": SNAPSHOT_VERSION, "writer_id_entries": fields})


def decode_writer_snapshot(data: BytesLike, file_name: str | None = None) -> list[WriterEntry]:
    """Read the entries in file order; of two entries of one writer the later counts.

    Damage raises a FlussError with the log storage code. The snapshot is a cache: the log itself has it all.
    """
    with json_file(data, "writer snapshot", file_name, version=SNAPSHOT_VERSION) as snapshot:
        return [_read_entry(fields) for fields in snapshot.objects("writer_id_entries")]


def _read_entry(fields: JsonObject) -> WriterEntry:
    return WriterEntry(
        writer_id=fields.integer("writer_id", lowest=0),
        batch_sequence=fields.integer("last_batch_sequence", lowest=-1, highest=INT32_MAX),
        offset_last=fields.integer("last_batch_base_offset", lowest=-1),
        offset_delta=fields.integer("offset_delta", lowest=0, highest=INT32_MAX),
        commit_time_ms=fields.integer("last_batch_timestamp", lowest=-1),
    )
