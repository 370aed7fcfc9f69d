"""Offsets of a stream as the JSON objects that Spark keeps in its checkpoint, and shows in its progress.

    {"v": 2, "table_id": 7, "phase": "snapshot",
     "b": {"2026-01-02:0": 100},        the next offset in the log of a bucket: "<partition or nothing>:<bucket>"
     "rows": ["2026-01-02:1"],          buckets whose rows, as they were at that offset, come before the changes
     "more": "eNpj...",                 both of all other buckets, packed
     "begun": {"b": {...}, ...},        where the batch that ends here began, in buckets where its start is not to be
                                        asked: new ones, those that lost records, and in the first batch all of them
     "ends": {"b": {...}, ...},         where the logs ended that were not read to their ends
     "partitions": {"2026-01-02": 12},  the ids of the partitions that are named here
     "more_partitions": "eNqL...",      the names of all others, packed
     "tasks": 4,                        among how many tasks the batch that ends here is divided
     "initial": true,                   nothing has been read yet
     "table": "sales.orders",           for messages, as are the names of partitions
     "seen": 14,                        the newest partition there was, whether it is read or not
     "lake": [8291823, 10, 20, 70]}     the batch that ends here has read the files 10 to 19 of 70 of this snapshot

The phase is "lake" as long as files of a lake are read, which come first, and then "snapshot" as long as there are rows
to come. An offset in the lake has version 3, because earlier releases would go on without the lake. Empty members are
left out, and may be missing in the checkpoints of earlier releases.

Spark gives a source nothing back but one such object, whichever it continues from. So each of them has to say where the
query stands in all buckets, also in the many that never change again. Of a table with many buckets only those stand in
plain sight that the batch has read, which is what a person looks for. All others take a few bytes each, or less: they
are columns of sorted numbers, compressed.

Spark keeps where batches end, and not where the first one began: a query that dies in its first batch asks for the
initial offset again, and gets another one. What "begun" says wins over that, so that a batch is the same rows
whenever it is read. Nor may a batch that is read again be divided otherwise: each task of a sink knows what it has
written, and not what the others have.

Version 1 had every bucket in plain sight, partitions by their ids: {"b": {"12:0": 100}, "ends": {"12:0": 140},
"names": {"12": "2026-01-02"}}. It is read wherever it is found, and not written any more.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.errors import FlussError
from fluss.schema.table import TableBucket
from fluss.spark.naming import format_bucket, parse_table_bucket
from fluss.spark.read.stream_offsets import BucketPosition, LakeFiles, StreamOffset, by_age

Json: TypeAlias = dict[str, Any]

_VERSION: Final = 2
_VERSION_OF_IDS: Final = 1
_VERSION_OF_LAKES: Final = 3
# With no more buckets than this, all of them stand in plain sight; of more, no more than this.
_SHOWN_MAX: Final = 64
_COUNT: Final = struct.Struct("<I")
_NO_PARTITION: Final = -1
# How many buckets ago the partition, which bucket of it, the offset, whether its rows come first.
_COLUMNS: Final[tuple[np.dtype[Any], ...]] = (np.dtype("<i8"), np.dtype("<i4"), np.dtype("<i8"), np.dtype("u1"))
_BUCKET_BYTES: Final = sum(dtype.itemsize for dtype in _COLUMNS)
# What a damaged checkpoint can take of memory: that of more buckets, and of more names, than a cluster has.
_PACKED_BYTES_MAX: Final = 256 * 1024 * 1024


def format_offset(offset: StreamOffset) -> Json:
    """Return the form that Spark keeps; equal offsets that show the same buckets have equal texts."""
    forms = _Forms(offset)
    found: Json = {
        "v": _VERSION if offset.lake is None else _VERSION_OF_LAKES,
        "table_id": offset.table_id,
        "phase": _phase(offset),
        **forms.format(offset.positions),
    }
    if offset.begun:
        found["begun"] = forms.format(offset.begun)
    if offset.ends:
        found["ends"] = forms.format({bucket: BucketPosition(end) for bucket, end in offset.ends.items()})
    found |= forms.partitions()
    if offset.task_count is not None:
        found["tasks"] = offset.task_count
    if offset.is_initial:
        found["initial"] = True
    if offset.table is not None:
        found["table"] = offset.table
    if offset.newest_partition_id is not None:
        found["seen"] = offset.newest_partition_id
    if offset.lake is not None:
        found["lake"] = list(offset.lake)
    return found


def _phase(offset: StreamOffset) -> str:
    if offset.lake is not None and not offset.lake.is_done:
        return "lake"
    return "snapshot" if any(position.has_rows for position in offset.positions.values()) else "log"


def parse_offset(found: Mapping[str, Any]) -> StreamOffset:
    """Read what a checkpoint holds. Raises FlussError if this version cannot."""
    version = found.get("v")
    if version not in (_VERSION, _VERSION_OF_IDS, _VERSION_OF_LAKES):
        raise FlussError(
            f"The checkpoint holds offsets of version {version}, and this release reads version {_VERSION_OF_LAKES} "
            "and before; continue with the release that wrote it, or begin with a new checkpoint"
        )
    try:
        return _parsed(found, is_by_id=version == _VERSION_OF_IDS)
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, binascii.Error, struct.error) as error:
        raise FlussError(
            f"The checkpoint does not hold offsets of a table ({error!r}); begin with a new checkpoint"
        ) from error


def _parsed(found: Mapping[str, Any], *, is_by_id: bool) -> StreamOffset:
    table_id = int(found["table_id"])
    if is_by_id:
        names = {int(id_): str(name) for id_, name in found.get("names", {}).items()}
        parse, ends = partial(_positions_by_id, table_id), {"b": found.get("ends", {})}
    else:
        shown_ids = {str(name): int(id_) for name, id_ in found.get("partitions", {}).items()}
        names = {id_: name for name, id_ in shown_ids.items()} | _unpacked_names(found.get("more_partitions"))
        parse, ends = partial(_positions_by_name, table_id, shown_ids), found.get("ends", {})
    return StreamOffset(
        table_id,
        parse(found),
        begun=parse(found["begun"]) if "begun" in found else {},
        ends={bucket: position.offset for bucket, position in parse(ends).items()},
        task_count=int(found["tasks"]) if "tasks" in found else None,
        is_initial=bool(found.get("initial", False)),
        table=str(found["table"]) if "table" in found else None,
        names=names,
        newest_partition_id=int(found["seen"]) if "seen" in found else None,
        lake=LakeFiles(*map(int, found["lake"])) if "lake" in found else None,
    )


class _Forms:
    """Formats the positions of an offset, and notes which partitions it has named."""

    def __init__(self, offset: StreamOffset) -> None:
        self._names = offset.names
        self._shown = offset.shown
        self._ids: dict[str, int] = {}

    def format(self, positions: Mapping[TableBucket, BucketPosition]) -> Json:
        ordered = by_age(positions)
        shown = ordered if len(ordered) <= _SHOWN_MAX else [bucket for bucket in ordered if bucket in self._shown]
        plain = {bucket: self._key(bucket) for bucket in shown[:_SHOWN_MAX] if self._can_be_named(bucket)}
        found: Json = {}
        if plain:
            found["b"] = {key: positions[bucket].offset for bucket, key in plain.items()}
        rows = [key for bucket, key in plain.items() if positions[bucket].has_rows]
        if rows:
            found["rows"] = rows
        if len(plain) < len(ordered):
            others = [bucket for bucket in ordered if bucket not in plain]
            found["more"] = _packed_positions(others, [positions[bucket] for bucket in others])
        return found

    def partitions(self) -> Json:
        """Return the names of partitions, after all positions were formatted."""
        found: Json = {}
        if self._ids:
            found["partitions"] = dict(sorted(self._ids.items(), key=lambda item: item[1]))
        shown = set(self._ids.values())
        others = {id_: self._names[id_] for id_ in sorted(self._names) if id_ not in shown}
        if others:
            found["more_partitions"] = _packed(json.dumps(others).encode())
        return found

    def _can_be_named(self, bucket: TableBucket) -> bool:
        """Whether the name of its partition tells a bucket from all others; note the name if so."""
        if bucket.partition_id is None:
            return True
        name = self._names.get(bucket.partition_id)
        # One that was dropped and created again has the name of the one before.
        return bool(name) and self._ids.setdefault(str(name), bucket.partition_id) == bucket.partition_id

    def _key(self, bucket: TableBucket) -> str:
        name = None if bucket.partition_id is None else self._names.get(bucket.partition_id)
        return format_bucket(name, bucket.bucket_id)


def _positions_by_id(table_id: int, found: Mapping[str, Any]) -> dict[TableBucket, BucketPosition]:
    rows = frozenset(found.get("rows", ()))
    return {
        parse_table_bucket(table_id, key): BucketPosition(int(offset), key in rows)
        for key, offset in found["b"].items()
    }


def _positions_by_name(
    table_id: int, ids: Mapping[str, int], found: Mapping[str, Any]
) -> dict[TableBucket, BucketPosition]:
    rows = frozenset(found.get("rows", ()))
    positions: dict[TableBucket, BucketPosition] = {}
    for key, offset in found.get("b", {}).items():
        name, _, bucket_id = key.rpartition(":")
        bucket = TableBucket.new_with_partition(table_id, ids[name] if name else None, int(bucket_id))
        positions[bucket] = BucketPosition(int(offset), key in rows)
    if "more" in found:
        positions.update(_unpacked_positions(table_id, found["more"]))
    return positions


# Many buckets in few bytes: how many, then columns of numbers, of which bytes of the same weight stand together


def _packed_positions(buckets: Sequence[TableBucket], positions: Sequence[BucketPosition]) -> str:
    count = len(buckets)
    ids = [_NO_PARTITION if bucket.partition_id is None else bucket.partition_id for bucket in buckets]
    columns: tuple[npt.NDArray[Any], ...] = (
        np.diff(np.array(ids, np.int64), prepend=0),
        np.array([bucket.bucket_id for bucket in buckets], np.int32),
        np.array([position.offset for position in positions], np.int64),
        np.array([position.has_rows for position in positions], np.uint8),
    )
    planes = [
        column.astype(dtype).view(np.uint8).reshape(count, dtype.itemsize).T.tobytes()
        for column, dtype in zip(columns, _COLUMNS, strict=True)
    ]
    return _packed(b"".join([_COUNT.pack(count), *planes]))


def _unpacked_positions(table_id: int, text: str) -> Iterator[tuple[TableBucket, BucketPosition]]:
    data = _unpacked(text)
    (count,) = _COUNT.unpack_from(data)
    if len(data) != _COUNT.size + count * _BUCKET_BYTES:
        raise ValueError(f"{count} buckets do not take {len(data)} bytes")
    columns: list[list[int]] = []
    begin = _COUNT.size
    for dtype in _COLUMNS:
        planes = np.frombuffer(data, np.uint8, count * dtype.itemsize, begin).reshape(dtype.itemsize, count)
        numbers = np.ascontiguousarray(planes.T).view(dtype).ravel()
        columns.append((numbers if columns else np.cumsum(numbers)).tolist())
        begin += count * dtype.itemsize
    for id_, bucket_id, offset, has_rows in zip(*columns, strict=True):
        bucket = TableBucket.new_with_partition(table_id, None if id_ == _NO_PARTITION else id_, bucket_id)
        yield bucket, BucketPosition(offset, bool(has_rows))


def _unpacked_names(text: str | None) -> dict[int, str]:
    return {} if text is None else {int(id_): str(name) for id_, name in json.loads(_unpacked(text)).items()}


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode("ascii")


def _unpacked(text: str) -> bytes:
    decompressor = zlib.decompressobj()
    data = decompressor.decompress(base64.b64decode(text, validate=True), _PACKED_BYTES_MAX)
    if not decompressor.eof:
        raise ValueError("packed numbers without an end")
    return data
