"""Reading buckets for a fetch: as the bytes are stored, or only some columns of some batches.

Everything here may run in any thread: on the event loop when the bytes were written moments ago, in a reader thread
otherwise.

What is sent is always V0, which every client can read. Batches with statistics are stored as V1, since the server
uses their statistics to skip batches; no client needs them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fluss.buffers import BytesLike, Int64Array
from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import ColumnProjection, project_batch
from fluss.record.batch_heads import BatchHeads
from fluss.record.log_batch import (
    HEADER_BYTES_MIN,
    LENGTH_END,
    MAGIC_V0,
    LogBatch,
    downgrade_to_v0,
    iter_batches,
    parts_of_v0,
    read_batch,
)
from fluss.record.pruning import BatchFilter
from fluss.record.statistics import BoolArray
from fluss.schema.schema import Schema
from fluss.schema.table_options import LogFormat
from fluss.schema.types import DataType
from fluss.server.model import LogArchive
from fluss.server.tablet.buckets import HostedTable
from fluss.storage.log.segment import HeadLimits, StoredHeads
from fluss.storage.log.tablet import LogTablet

# Stored bytes that are looked at in one read when columns are cut out or batches skipped.
_SCAN_READ_BYTES = 4 * 1024 * 1024
# Reads per bucket and fetch, each of one segment at most. Where all is skipped, the client asks again from there on.
_SCAN_READS_MAX = 16
# Batches that a filter is asked about at once: few at first, since the first ones may be all there is room for, then
# twice as many each time, as long as that takes no more than a part of the time that the fetch has. Of large batches,
# those are enough at first that would fill the room: looking at one means a read of its own.
_HEADS_AT_FIRST = 256
_HEADS_SPAN_GROWTH = 4
_HEADS_MAX = 4096
_HEADS_SECONDS_SHARE = 0.25
# A filter that has skipped none of so many batches in a row is asked in one of so many fetches, until it skips one.
_FRUITLESS_BATCHES = 64
_FRUITLESS_TURNS = 8
# Batches that are skipped between two wanted ones are read with them if they are not larger than this together.
_GAP_BYTES_MAX = 64 * 1024

# Batches from this size on are sent in parts, without a copy of their records.
_PART_BYTES_MIN = 64 * 1024

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


class FilterYield:
    """What a filter has brought in earlier fetches: asking one that skips nothing only costs time.

    Shared by the fetches with the same filter. Any thread may use it: a count that gets lost does no harm.
    """

    __slots__ = ("_turn", "_unskipped_batches")

    def __init__(self) -> None:
        self._unskipped_batches = 0
        self._turn = 0

    def is_worth_asking(self) -> bool:
        """Whether the filter is to be asked in the next fetch; else all batches are wanted."""
        if self._unskipped_batches < _FRUITLESS_BATCHES:
            return True
        self._turn += 1
        return self._turn % _FRUITLESS_TURNS == 0

    def note(self, batch_count: int, skipped_count: int) -> None:
        """The filter was asked about batches, and has skipped some of them."""
        self._unskipped_batches = 0 if skipped_count else self._unskipped_batches + batch_count


class Selection:
    """Which columns of which batches a fetch wants from one table."""

    def __init__(
        self,
        table: HostedTable,
        columns: Sequence[int] | None,
        batch_filter: BatchFilter | None,
        filter_yield: FilterYield | None = None,
    ) -> None:
        # Not its schemas: a fetch that waits may come to see batches of a newer one.
        self._table = table
        self._columns = columns
        self._filter = batch_filter
        self._yield = filter_yield
        # By schema id: positions count in the schema of each batch.
        self._projections: dict[int, ColumnProjection] = {}

    @classmethod
    def of(
        cls,
        table: HostedTable,
        columns: Sequence[int] | None,
        batch_filter: BatchFilter | None,
        filter_yield: FilterYield | None = None,
    ) -> Selection | None:
        """Return a selection, None if everything is wanted. Columns that cannot be selected raise code 34."""
        is_arrow = table.log_format is LogFormat.ARROW
        if columns is None and (batch_filter is None or not is_arrow):
            return None
        if not is_arrow:
            raise FlussError(
                f"Columns of table {table.table.path} cannot be selected: its log format is {table.log_format}, "
                f"only {LogFormat.ARROW} can be projected; read all columns",
                ErrorCode.INVALID_COLUMN_PROJECTION,
            )
        selection = cls(table, columns, batch_filter, filter_yield)
        if columns is not None:
            # The newest schema has the most columns: what does not fit it fits no batch.
            selection._projection(table.table.schema_id)
        return selection

    @property
    def is_filtered(self) -> bool:
        """Whether batches may be skipped."""
        return self._filter is not None

    @property
    def is_projected(self) -> bool:
        """Whether columns are cut out."""
        return self._columns is not None

    def is_wanted(self, heads: BatchHeads) -> BoolArray:
        """Tell for each batch whether it can have a wanted row. One about which too little is known may have."""
        assert self._filter is not None, "without a filter every batch is wanted"
        answer = self._filter.may_match(heads, self._types)
        # A batch without rows takes an offset, of which the client is told in another way where columns are cut out.
        answer[heads.record_counts == 0] = self._columns is None
        if self._yield is not None:
            self._yield.note(len(answer), len(answer) - int(np.count_nonzero(answer)))
        return answer

    def cut(self, batch: LogBatch) -> Sequence[BytesLike]:
        """Return the wanted columns of a batch in parts."""
        if self._columns is None:
            return parts_of_v0(batch)
        return project_batch(batch, self._projection(batch.header.schema_id), recompute_crc=False, as_v0=True)

    def _projection(self, schema_id: int) -> ColumnProjection:
        projection = self._projections.get(schema_id)
        if projection is None:
            assert self._columns is not None
            projection = ColumnProjection.of(self._schema(schema_id).to_arrow(), self._columns)
            self._projections[schema_id] = projection
        return projection

    def _types(self, schema_id: int) -> Sequence[DataType] | None:
        schema = self._table.table.schemas.get(schema_id)
        return None if schema is None else schema.data_types

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
    # Of filters: batches they are asked about, and the processor time that this takes.
    scan_batches_left: int = _HEADS_MAX
    scan_seconds_left: float = 1.0
    # The first bucket that has something returns at least one batch, of whatever size.
    has_data: bool = False
    # Set by the event loop when the client is gone; the thread that reads stops at the next step.
    is_abandoned: bool = False
    # What filters were asked about so far, what they have skipped, and the processor time for that.
    filtered_batches: int = 0
    skipped_batches: int = 0
    filter_seconds: float = 0.0

    @property
    def is_used_up(self) -> bool:
        return self.is_abandoned or (self.has_data and self.bytes_left < HEADER_BYTES_MIN)

    @property
    def is_scan_used_up(self) -> bool:
        return (
            self.is_abandoned or self.scan_bytes_left <= 0 or self.scan_batches_left <= 0 or self.scan_seconds_left <= 0
        )


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
    parts = [part for batch in iter_batches(view) for part in _sent(parts_of_v0(batch))]
    return BucketData(parts, sum(map(len, parts)))


def _sent(parts: Sequence[BytesLike]) -> Sequence[BytesLike]:
    """Return the parts of a batch as they are sent: small ones are joined, which is less work than sending each."""
    is_joined = len(parts) > 1 and sum(map(len, parts)) < _PART_BYTES_MIN
    return (b"".join(parts),) if is_joined else parts


def _read_selected(
    log: LogTablet, offset: int, bytes_max: int, selection: Selection, limits: FetchLimits
) -> BucketData:
    """Look at batches until there are ``bytes_max`` bytes of what is wanted, or until enough was looked at."""
    found = _Found(selection, bytes_max, limits)
    heads_max, span_bytes = _HEADS_AT_FIRST, max(bytes_max, 1)
    for _ in range(_SCAN_READS_MAX):
        if limits.is_scan_used_up:
            break
        if not selection.is_filtered:
            view = log.read(offset, _SCAN_READ_BYTES, at_least_one_batch=True)
            if not view:
                return found.data(has_more=False)
            limits.scan_bytes_left -= len(view)
            offset = found.add(iter_batches(view), offset, len(view))
        else:
            started_s = time.thread_time()
            stored = log.read_heads(
                offset, HeadLimits(min(heads_max, limits.scan_batches_left), _SCAN_READ_BYTES, span_bytes)
            )
            span_bytes *= _HEADS_SPAN_GROWTH
            if stored is None:
                return found.data(has_more=False)
            limits.scan_batches_left -= len(stored.heads)
            limits.filtered_batches += len(stored.heads)
            limits.scan_bytes_left -= stored.read_bytes
            is_wanted = selection.is_wanted(stored.heads)
            seconds = time.thread_time() - started_s
            if seconds < limits.scan_seconds_left * _HEADS_SECONDS_SHARE:
                heads_max = min(heads_max * 2, _HEADS_MAX)
            limits.scan_seconds_left -= seconds
            limits.filter_seconds += seconds
            limits.skipped_batches += len(is_wanted) - int(np.count_nonzero(is_wanted))
            offset = found.add_wanted(log, stored, is_wanted)
        if found.is_full:
            break
    return found.data(has_more=True)


class _Found:
    """What one bucket has of what a fetch wants."""

    def __init__(self, selection: Selection, bytes_max: int, limits: FetchLimits) -> None:
        self._selection = selection
        self._bytes_max = bytes_max
        self._limits = limits
        self._chunks: list[BytesLike] = []
        self._byte_count = 0
        self._filtered_end_offset: int | None = None
        self.is_full = False

    def data(self, *, has_more: bool) -> BucketData:
        return BucketData(self._chunks, self._byte_count, self._filtered_end_offset, has_more)

    def add(self, batches: Iterable[LogBatch], offset: int, viewed_bytes: int) -> int:
        """Add batches until it is full; return the offset to go on from. They are views of ``viewed_bytes`` bytes."""
        parts: list[BytesLike] = []
        before = self._byte_count
        for batch in batches:
            cut = self._selection.cut(batch)
            cut_bytes = sum(map(len, cut))
            # The first batch of a fetch is returned even if it is larger than all limits.
            is_first = not self._byte_count and not self._limits.has_data
            if self._byte_count + cut_bytes > self._bytes_max and not is_first:
                self.is_full = True
                break
            parts += cut if self._selection.is_projected else _sent(cut)
            self._byte_count += cut_bytes
            self._filtered_end_offset, offset = None, batch.header.offset_next
        if self._selection.is_projected or self._byte_count - before < viewed_bytes // 2:
            # Copied, since a part keeps all that was read in memory, and little of it is wanted.
            self._chunks.append(b"".join(parts))
        else:
            self._chunks += parts
        self.is_full |= self._byte_count >= self._bytes_max
        return offset

    def add_wanted(self, log: LogTablet, stored: StoredHeads, is_wanted: BoolArray) -> int:
        """Read and add the wanted ones of consecutive batches, pass over the others; return the offset to go on from.

        Wanted batches that are near each other are read together with what lies between them.
        """
        heads = stored.heads
        wanted = np.flatnonzero(is_wanted)
        ends = np.cumsum(heads.sizes)
        starts = ends - heads.sizes
        offset_ends = heads.offset_ends
        offset = int(heads.base_offsets[0])
        done = 0
        while done < len(wanted) and not self.is_full:
            first = int(wanted[done])
            if first:
                self._skip_to(int(offset_ends[first - 1]))
            if self._byte_count and heads.sizes[first] > self._read_bytes_max():
                # It would be read in vain.
                self.is_full = True
                break
            if stored.data is not None:
                span = len(wanted) - done
                view = stored.data[int(starts[first]) :]
            else:
                span = _span(starts[wanted[done:]], ends[wanted[done:]], self._read_bytes_max())
                byte_count = int(ends[wanted[done + span - 1]] - starts[first])
                view = log.read(int(heads.base_offsets[first]), byte_count, at_least_one_batch=True)
                self._limits.scan_bytes_left -= len(view)
            positions = (starts[wanted[done : done + span]] - starts[first]).tolist()
            offset = self.add((read_batch(view, position) for position in positions), offset, len(view))
            done += span
        if self.is_full:
            return offset
        last = len(heads) - 1
        if not is_wanted[last]:
            self._skip_to(int(offset_ends[last]))
        return int(offset_ends[last])

    def _skip_to(self, offset: int) -> None:
        self._filtered_end_offset = offset

    def _read_bytes_max(self) -> int:
        """Return how much is worth reading at once. Of what is returned as it is, no more than there is room for."""
        if self._selection.is_projected:
            return _SCAN_READ_BYTES
        return min(_SCAN_READ_BYTES, self._bytes_max - self._byte_count)


def _span(starts: Int64Array, ends: Int64Array, bytes_max: int) -> int:
    """Return how many batches to read together with the first one, itself included."""
    is_end = (starts[1:] - ends[:-1] > _GAP_BYTES_MAX) | (ends[1:] - starts[0] > bytes_max)
    return int(np.argmax(is_end)) + 1 if is_end.any() else len(starts)


# Limit scans


def newest_batches(
    log: LogTablet, row_count: int, bytes_max: int, archive: LogArchive | None = None
) -> list[BytesLike]:
    """Return the batches that hold the newest ``row_count`` visible rows. Runs in any thread.

    Those that the log has no longer are read from the archive, if there is one. One read returns bytes of one segment,
    so there are as many reads as it takes. More than ``bytes_max`` bytes are refused: a scan that silently returned
    fewer rows than there are would be wrong.
    """
    offset_end = log.offset_high_watermark
    offset = max(0, offset_end - row_count)
    if offset < log.offset_start:
        offset = max(offset, log.offset_start if archive is None else archive.offset_start())
    batches: list[BytesLike] = []
    byte_count = 0
    while offset < offset_end:
        if archive is not None and offset < log.offset_start:
            view = archive.read(offset, _SCAN_READ_BYTES)
        else:
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
