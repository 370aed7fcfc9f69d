"""A backup in remote storage: what its objects are called, and what they say.

Below ``backup`` in the first directory of remote storage:

| object                                  | content                                                                 |
|-----------------------------------------|-------------------------------------------------------------------------|
| ``points/{epoch}-{number}.json``          | a backup point: which of the others belong together                     |
| ``metadata/{uuid}.sqlite``                | a copy of the metadata                                                  |
| ``index/{uuid}.json``                     | where the tails of some buckets are                                     |
| ``tails/{uuid}.tail``                     | tails of logs: stored batches, as they are in segments, back to back    |
| ``owners/{epoch}-{uuid}.json``            | which servers have shipped to this place: see ``ownership``             |

A point is the last thing that is written, and names only what is whole. The newest one has the highest epoch, then the
highest number; numbers are 20 decimal digits. Objects are written once, under names that were never used.

The tail of a log is what is not in a closed segment that was copied. It is a chain of pieces, each of them a range of
an object: a round ships what is new, and the pieces of many buckets share an object. A piece that is as small as what
follows it is shipped again with it, so that chains stay short. Pieces that are in remote segments leave the chain.

A point: ``{"version":1,"epoch":3,"number":17,"time_ms":...,"location":"s3://...","release":"1.2","metadata":object,
"indexes":{"5":object}}`` with objects ``{"path":...,"size":...,"crc":...}``, CRC32C. An index:
``{"version":1,"objects":[path,...],"buckets":[[table, partition or -1, bucket, [piece,...], writers or null],...]}``,
pieces are ``[index of object, position, size, crc, start offset, end offset]``; writers are a writer snapshot as such a
piece, whose offsets are both that of the snapshot.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fluss.buffers import BytesLike
from fluss.errors import FlussError
from fluss.json_object import JsonObject, write_json
from fluss.record.framing import crc32c
from fluss.schema.table import TableBucket
from fluss.storage.log.file_names import damaged, json_file
from fluss.storage.remote.store import RemoteStore

ROOT: Final = "backup"
POINTS: Final = f"{ROOT}/points"
METADATA: Final = f"{ROOT}/metadata"
INDEXES: Final = f"{ROOT}/index"
TAILS: Final = f"{ROOT}/tails"
# A round writes anew the indexes of those tables and partitions that have changed; these are put into so many objects.
INDEX_COUNT: Final = 64
_VERSION: Final = 1
_DIGITS: Final = 20
_POINT_NAME: Final = re.compile(rf"([0-9]{{{_DIGITS}}})-([0-9]{{{_DIGITS}}})\.json")
_INDEX: Final = "index of a backup"
_POINT: Final = "backup point"


class StoredObject(NamedTuple):
    """An object that a point names, below the directory of remote storage."""

    path: str
    size_bytes: int
    crc: int


class TailPiece(NamedTuple):
    """A range of an object with the batches between two offsets."""

    path: str
    position: int
    size_bytes: int
    crc: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TailChain:
    """The tail of a log: pieces without a gap, at least one."""

    pieces: tuple[TailPiece, ...]
    # What writers had sent before some offset of the chain, where no remote segment tells that.
    writers: TailPiece | None = None

    @property
    def start_offset(self) -> int:
        return self.pieces[0].start_offset

    @property
    def end_offset(self) -> int:
        return self.pieces[-1].end_offset

    def since(self, offset: int) -> TailChain | None:
        """Return the chain without the pieces that end at or before an offset; None if nothing is left."""
        pieces = tuple(piece for piece in self.pieces if piece.end_offset > offset)
        if len(pieces) == len(self.pieces):
            return self
        return TailChain(pieces, self.writers) if pieces else None

    def all_pieces(self) -> Iterable[TailPiece]:
        return self.pieces if self.writers is None else (*self.pieces, self.writers)


Chains = Mapping[TableBucket, TailChain]


@dataclass(frozen=True, slots=True)
class BackupPoint:
    """What belongs together."""

    epoch: int
    number: int
    time_ms: int
    # The directory of remote storage, as the server knew it that wrote the point.
    location: str
    release: str
    metadata: StoredObject
    indexes: Mapping[int, StoredObject] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"{POINTS}/{self.epoch:0{_DIGITS}d}-{self.number:0{_DIGITS}d}.json"


def new_path(directory: str, suffix: str) -> str:
    """Return a path that was never used."""
    return f"{directory}/{uuid.uuid4()}{suffix}"


def index_of(bucket: TableBucket) -> int:
    """Return in which index a bucket is."""
    return (bucket.table_id if bucket.partition_id is None else bucket.partition_id) % INDEX_COUNT


# Points


def put_object(store: RemoteStore, path: str, data: bytes) -> StoredObject:
    """Write an object and return what a point says of it."""
    store.put(path, data)
    return StoredObject(path, len(data), crc32c(data))


def put_point(store: RemoteStore, point: BackupPoint) -> None:
    store.put(point.path, encode_point(point))


def encode_point(point: BackupPoint) -> bytes:
    return write_json(
        {
            "version": _VERSION,
            "epoch": point.epoch,
            "number": point.number,
            "time_ms": point.time_ms,
            "location": point.location,
            "release": point.release,
            "metadata": _object_fields(point.metadata),
            "indexes": {str(index): _object_fields(stored) for index, stored in sorted(point.indexes.items())},
        }
    )


def decode_point(data: BytesLike, name: str | None = None) -> BackupPoint:
    """Read a point. Damage raises a FlussError with the log storage code."""
    with json_file(data, _POINT, name, version=_VERSION) as fields:
        indexes = fields.object("indexes")
        return BackupPoint(
            fields.integer("epoch", lowest=0),
            fields.integer("number", lowest=0),
            fields.integer("time_ms", lowest=0),
            fields.string("location"),
            fields.string("release"),
            _read_object(fields.object("metadata")),
            {
                index: _read_object(indexes.object(str(index)))
                for index in range(INDEX_COUNT)
                if indexes.has(str(index))
            },
        )


def point_paths(store: RemoteStore) -> list[str]:
    """Return the paths of all points, oldest first."""
    return [f"{POINTS}/{name}" for name in sorted(filter(_POINT_NAME.fullmatch, store.names(POINTS)))]


def get_point(store: RemoteStore, path: str) -> BackupPoint:
    return decode_point(store.get(path), f"{store.location}/{path}")


def newest_point(store: RemoteStore) -> BackupPoint | None:
    """Return the newest point; None if there is none. Damage is a FlussError."""
    while paths := point_paths(store):
        # A server that runs may have made several since, and removed this one.
        with suppress(FileNotFoundError):
            try:
                return get_point(store, paths[-1])
            except FlussError as error:
                if len(paths) == 1:
                    raise
                raise FlussError(
                    f"{error.message}; to use the backup before it, {paths[-2]}, move this object away",
                    error.error_code,
                ) from error
    return None


def _object_fields(stored: StoredObject) -> dict[str, Any]:
    return {"path": stored.path, "size": stored.size_bytes, "crc": stored.crc}


def _read_object(fields: JsonObject) -> StoredObject:
    return StoredObject(
        fields.string("path"), fields.integer("size", lowest=0), fields.integer("crc", lowest=0, highest=2**32 - 1)
    )


# Indexes


def encode_index(chains: Chains) -> bytes:
    """Write where the tails of buckets are."""
    numbers: dict[str, int] = {}

    def fields(piece: TailPiece) -> list[int]:
        return [numbers.setdefault(piece.path, len(numbers)), *piece[1:]]

    buckets = [
        [
            bucket.table_id,
            -1 if bucket.partition_id is None else bucket.partition_id,
            bucket.bucket_id,
            [fields(piece) for piece in chain.pieces],
            None if chain.writers is None else fields(chain.writers),
        ]
        for bucket, chain in chains.items()
    ]
    return write_json({"version": _VERSION, "objects": list(numbers), "buckets": buckets})


def decode_index(data: BytesLike, name: str | None = None) -> dict[TableBucket, TailChain]:
    """Read where the tails of buckets are. Damage raises a FlussError with the log storage code."""
    try:
        values = json.loads(bytes(data))
        if values["version"] != _VERSION:
            raise ValueError(f"its version is {values['version']}, this version reads only {_VERSION}")
        objects = [str(path) for path in values["objects"]]
        chains = {}
        for table_id, partition_id, bucket_id, pieces, writers in values["buckets"]:
            bucket = TableBucket.new_with_partition(table_id, None if partition_id < 0 else partition_id, bucket_id)
            chains[bucket] = TailChain(
                tuple(_read_piece(piece, objects) for piece in pieces),
                None if writers is None else _read_piece(writers, objects),
            )
            _check_chain(chains[bucket])
        return chains
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise damaged(_INDEX, str(error), name) from error


def _read_piece(fields: Sequence[int], objects: Sequence[str]) -> TailPiece:
    number, *rest = map(int, fields)
    if min(number, *rest) < 0:
        raise ValueError("a number is negative")
    return TailPiece(objects[number], *rest)


def _check_chain(chain: TailChain) -> None:
    offset = chain.pieces[0].start_offset
    for piece in chain.pieces:
        if piece.start_offset != offset or piece.end_offset <= offset:
            raise ValueError(
                f"a piece has the offsets {piece.start_offset} to {piece.end_offset}, {offset} was expected"
            )
        offset = piece.end_offset


def get_checked(store: RemoteStore, stored: StoredObject) -> bytes:
    """Read an object that fits into memory. One that is missing or differs from what a point says is a FlussError."""
    name = f"{store.location}/{stored.path}"
    try:
        data = bytes(store.get(stored.path))
    except FileNotFoundError:
        raise damaged("backup", "an object that it names is missing", name) from None
    check_bytes(data, stored.size_bytes, stored.crc, name)
    return data


def check_bytes(data: BytesLike, size_bytes: int, crc: int, name: str) -> None:
    """Raise if bytes are not those that were shipped."""
    if len(data) != size_bytes:
        raise damaged("backup", f"{len(data)} bytes are there, {size_bytes} were shipped", name)
    if crc32c(data) != crc:
        raise damaged("backup", "its checksum is wrong", name)


def get_chains(store: RemoteStore, point: BackupPoint) -> dict[TableBucket, TailChain]:
    """Read where all tails of a point are."""
    chains: dict[TableBucket, TailChain] = {}
    for stored in point.indexes.values():
        chains.update(decode_index(get_checked(store, stored), f"{store.location}/{stored.path}"))
    return chains


def no_backup(location: str) -> FlussError:
    return FlussError(
        f"there is no backup in {location}: no point below {POINTS}; give the directory that was remote.data.dir of "
        "the server, whose backup.interval was not 0"
    )
