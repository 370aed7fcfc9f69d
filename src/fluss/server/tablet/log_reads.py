"""Reading buckets for a fetch: as the bytes are stored, or only some columns of some batches.

Everything here may run in any thread: on the event loop when the bytes were written moments ago, in a reader thread
otherwise.

What is sent is always V0, which every client can read. Batches with statistics are stored as V1, since the server
uses their statistics to skip batches; no client needs them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fluss.buffers import BytesLike
from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import ColumnProjection, project_batch
from fluss.record.log_batch import (
    HEADER_BYTES_MIN,
    LENGTH_END,
    MAGIC_V0,
    LogBatch,
    downgrade_to_v0,
    iter_batches,
    read_batch,
)
from fluss.record.statistics import decode_statistics, may_match
from fluss.schema.predicate import BoundPredicate
from fluss.schema.schema import Schema
from fluss.schema.table_options import LogFormat
from fluss.server.tablet.buckets import HostedTable
from fluss.storage.log.tablet import LogTablet

# Stored bytes that are looked at in one read when columns are cut out or batches skipped.
_SCAN_READ_BYTES = 4 * 1024 * 1024
# Reads per bucket and fetch, each of one segment at most. Where all is skipped, the client asks again from there on.
_SCAN_READS_MAX = 16

# The limits of a fetch may cut off its last batch, which clients throw away. Larger pieces than this are not sent.
_CUT_BYTES_MAX = 16 * 1024

_LENGTH_AND_MAGIC = struct.Struct("<8xib")


@dataclass(frozen=True, slots=True)
class BucketData:
    """What was read from one bucket."""

    records: Sequence[BytesLike] = ()
    byte_count: int = 0
    # Set if the last batches that were looked at were skipped: the client goes on from here.
    filtered_end_offset: int | None = None
    # Whether a later read could find more without waiting for new records.
    has_more: bool = False


NOTHING = BucketData()


class WholeBatches(NamedTuple):
    """The batches at the start of some bytes that are whole."""

    byte_count: int
    magic_highest: int
    # Where the last of them starts.
    last_position: int

    def offset_next(self, view: memoryview) -> int:
        """Return the offset after the last batch; there must be one."""
        assert self.byte_count > 0, "no batch is whole"
        return read_batch(view, self.last_position).header.offset_next


def find_whole_batches(view: memoryview) -> WholeBatches:
    """Walk over batches by their lengths. The last one may be cut off."""
    read_length_and_magic = _LENGTH_AND_MAGIC.unpack_from
    byte_count = len(view)
    position = last_position = magic_highest = 0
    while position + HEADER_BYTES_MIN <= byte_count:
        length, magic = read_length_and_magic(view, position)
        end = position + LENGTH_END + length
        if length < HEADER_BYTES_MIN - LENGTH_END:
            raise CorruptRecordError(f"A stored batch has the length {length}; its segment is damaged")
        if end > byte_count:
            break
        if magic > magic_highest:
            magic_highest = magic
        last_position, position = position, end
    return WholeBatches(position, magic_highest, last_position)


class Selection:
    """Which columns of which batches a fetch wants from one table."""

    def __init__(self, table: HostedTable, columns: Sequence[int] | None, predicate: BoundPredicate | None) -> None:
        # Not its schemas: a fetch that waits may come to see batches of a newer one.
        self._table = table
        self._columns = columns
        self._predicate = predicate
        # By schema id: positions count in the schema of each batch.
        self._projections: dict[int, ColumnProjection] = {}

    @classmethod
    def of(
        cls, table: HostedTable, columns: Sequence[int] | None, predicate: BoundPredicate | None
    ) -> Selection | None:
        """Return a selection, None if everything is wanted. Columns that cannot be selected raise code 34."""
        is_arrow = table.log_format is LogFormat.ARROW
        if columns is None and (predicate is None or not is_arrow):
            return None
        if not is_arrow:
            raise FlussError(
                f"Columns of table {table.table.path} cannot be selected: its log format is {table.log_format}, "
                f"only {LogFormat.ARROW} can be projected; read all columns",
                ErrorCode.INVALID_COLUMN_PROJECTION,
            )
        selection = cls(table, columns, predicate)
        if columns is not None:
            # The newest schema has the most columns: what does not fit it fits no batch.
            selection._projection(table.table.schema_id)
        return selection

    def skips(self, batch: LogBatch) -> bool:
        """Whether no row of a batch can be wanted. A batch about which too little is known is not skipped."""
        if self._predicate is None:
            return False
        if not batch.header.record_count:
            # It has no rows, and the offset it takes is told to the client in another way.
            return self._columns is not None
        try:
            statistics = decode_statistics(batch.statistics, self._schema(batch.header.schema_id).data_types)
        except CorruptRecordError:
            return False
        return not may_match(self._predicate, statistics, batch.header.record_count)

    def cut(self, batch: LogBatch) -> Sequence[BytesLike]:
        """Return the wanted columns of a batch in parts."""
        if self._columns is None:
            return (downgrade_to_v0(batch),)
        return project_batch(batch, self._projection(batch.header.schema_id), recompute_crc=False, as_v0=True)

    def _projection(self, schema_id: int) -> ColumnProjection:
        projection = self._projections.get(schema_id)
        if projection is None:
            assert self._columns is not None
            projection = ColumnProjection.of(self._schema(schema_id).to_arrow(), self._columns)
            self._projections[schema_id] = projection
        return projection

    def _schema(self, schema_id: int) -> Schema:
        schema = self._table.table.schemas.get(schema_id)
        if schema is None:
            raise CorruptRecordError(f"A stored batch has the schema id {schema_id}, which its table does not know")
        return schema


@dataclass(slots=True)
class FetchLimits:
    """What a whole fetch may still return, and look at. Shared by the buckets of the fetch, which use it up in turn."""

    bytes_left: int
    # Only counts where columns are cut out or batches skipped, since then more is looked at than returned.
    scan_bytes_left: int
    # The first bucket that has something returns at least one batch, of whatever size.
    has_data: bool = False

    @property
    def is_used_up(self) -> bool:
        return self.has_data and self.bytes_left < HEADER_BYTES_MIN


def read_bucket(
    log: LogTablet, offset: int, bytes_max: int, selection: Selection | None, limits: FetchLimits
) -> BucketData:
    """Read a bucket from the batch on that holds ``offset``; at most ``bytes_max`` and what the fetch has left.

    Raises what ``LogTablet.read`` raises, code 34 for columns that a batch does not have, and code 14 for a stored
    batch that columns cannot be cut out of.
    """
    bytes_max = max(0, min(bytes_max, limits.bytes_left))
    if selection is None:
        data = _read_stored(log, offset, bytes_max, at_least_one_batch=not limits.has_data)
    else:
        data = _read_selected(log, offset, bytes_max, selection, limits)
    if data.byte_count:
        limits.has_data = True
        limits.bytes_left -= data.byte_count
    return data


def _read_stored(log: LogTablet, offset: int, bytes_max: int, *, at_least_one_batch: bool) -> BucketData:
    view = log.read(offset, bytes_max, at_least_one_batch=at_least_one_batch)
    whole = find_whole_batches(view)
    if not whole.byte_count:
        # A piece of a batch would be thrown away by the client.
        return BucketData(has_more=len(view) > 0)
    if len(view) - whole.byte_count > _CUT_BYTES_MAX:
        view = view[: whole.byte_count]
    if whole.magic_highest == MAGIC_V0:
        return BucketData((view,), len(view))
    batches = [downgrade_to_v0(batch) for batch in iter_batches(view)]
    return BucketData(batches, sum(map(len, batches)))


def _read_selected(
    log: LogTablet, offset: int, bytes_max: int, selection: Selection, limits: FetchLimits
) -> BucketData:
    """Look at batches until there are ``bytes_max`` bytes of what is wanted, or until enough was looked at."""
    chunks: list[bytes] = []
    byte_count = 0
    filtered_end_offset: int | None = None
    for _ in range(_SCAN_READS_MAX):
        if limits.scan_bytes_left <= 0:
            return BucketData(chunks, byte_count, filtered_end_offset, has_more=True)
        view = log.read(offset, _SCAN_READ_BYTES, at_least_one_batch=True)
        if not view:
            return BucketData(chunks, byte_count, filtered_end_offset)
        limits.scan_bytes_left -= len(view)
        parts: list[BytesLike] = []
        is_full = False
        for batch in iter_batches(view):
            if selection.skips(batch):
                filtered_end_offset = offset = batch.header.offset_next
                continue
            cut = selection.cut(batch)
            cut_bytes = sum(map(len, cut))
            # The first batch of a fetch is returned even if it is larger than all limits.
            is_first = not byte_count and not limits.has_data
            is_full = byte_count + cut_bytes > bytes_max and not is_first
            if is_full:
                break
            parts += cut
            byte_count += cut_bytes
            filtered_end_offset, offset = None, batch.header.offset_next
        # Copied, since a part keeps all that was read in memory, and little of it is wanted.
        chunks.append(b"".join(parts))
        if is_full or byte_count >= bytes_max:
            break
    return BucketData(chunks, byte_count, filtered_end_offset, has_more=True)


# Limit scans


def newest_batches(log: LogTablet, row_count: int, bytes_max: int) -> list[BytesLike]:
    """Return the batches that hold the newest ``row_count`` visible rows. Runs in any thread.

    One read returns bytes of one segment, so there are as many reads as it takes. More than ``bytes_max`` bytes are
    refused: a scan that silently returned fewer rows than there are would be wrong.
    """
    offset_end = log.offset_high_watermark
    offset = max(log.offset_start, offset_end - row_count)
    batches: list[BytesLike] = []
    byte_count = 0
    while offset < offset_end:
        view = log.read(offset, _SCAN_READ_BYTES, at_least_one_batch=True)
        whole = find_whole_batches(view)
        if not whole.byte_count:
            break
        view = view[: whole.byte_count]
        offset = whole.offset_next(view)
        byte_count += len(view)
        if byte_count > bytes_max:
            raise FlussError(
                f"The newest {row_count} rows have more than {bytes_max} bytes: scan with a lower limit, or read the "
                "log from an offset on",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        if whole.magic_highest == MAGIC_V0:
            batches.append(view)
        else:
            batches += [downgrade_to_v0(batch) for batch in iter_batches(view)]
    return batches
