"""One segment of a log: a file of batches whose name says its first offset.

The last segment is live: batches are added at its end, and its index is in memory. When the next one has taken over,
its index lives on in files. A segment that was found on disk is not trusted: what is read from it is checked first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from fluss.buffers import BytesLike
from fluss.errors import CorruptRecordError, FlussError
from fluss.integers import INT32_MAX
from fluss.record.batch_heads import BatchHeads, HeadCollector, heads_of
from fluss.record.log_batch import HEADER_BYTES_MAX, measure_batches
from fluss.storage.log.file_names import LogFileKind, log_file_name
from fluss.storage.log.index import OffsetEntry, SparseIndex, StoredIndex, TimeEntry
from fluss.storage.log.scan import BatchChain, ScanResult, StoredBatch, Visit, damage_at, read_stored_batch, scan
from fluss.storage.vfs import Files

# Read at once while looking for a batch: the distance of two index entries, and a header.
_WALK_BYTES: Final = 8 * 1024
# Read at once while collecting heads: many small batches, or the head of a large one, behind which others are far away.
_HEADS_WINDOW_BYTES: Final = 256 * 1024
_HEAD_WINDOW_BYTES: Final = 4 * 1024
_LARGE_BATCH_BYTES: Final = 32 * 1024
# A batch begins with its base offset.
_OFFSET_BYTES: Final = 8
# Indexes are built again one at a time: a reader that waited for the same one finds it done.
_rebuilding: Final = threading.Lock()


class HeadLimits(NamedTuple):
    """Where reading heads ends, whichever comes first."""

    batches_max: int
    # What is read for them.
    read_bytes_max: int
    # What the batches take in their segment, read or not: heads end with the batch that reaches it.
    span_bytes_max: int


class StoredHeads(NamedTuple):
    """The heads of consecutive batches of one segment, and how many bytes were read for that."""

    heads: BatchHeads
    read_bytes: int
    # The batches themselves, from the first one on, if all of them happened to be read.
    data: memoryview | None


class Segment:
    """The file of a segment and its place in the log. Only the owner adds and cuts; any thread may read."""

    __slots__ = (
        "_files",
        "_index",
        "_interval_bytes",
        "_is_index_stored",
        "_verified_bytes",
        "base_offset",
        "offset_next",
        "path",
        "size_bytes",
        "timestamp_max_ms",
    )

    def __init__(self, files: Files, directory: Path, base_offset: int, *, interval_bytes: int) -> None:
        self._files = files
        self._interval_bytes = interval_bytes
        self.path = directory / log_file_name(base_offset, LogFileKind.SEGMENT)
        self.base_offset = base_offset
        # All three include what is on its way to the disk.
        self.offset_next = base_offset
        self.size_bytes = 0
        self.timestamp_max_ms = -1
        # None: it is in the files, or has to be made again.
        self._index: SparseIndex | None = SparseIndex(base_offset, interval_bytes)
        # Whether the index files are there and in order.
        self._is_index_stored = False
        # How far the file has been checked, from its beginning; None: this process wrote it.
        self._verified_bytes: int | None = None

    @classmethod
    def found(cls, files: Files, directory: Path, base_offset: int, *, interval_bytes: int) -> Segment:
        """Return a segment that was found on disk, of which only the size is known. The caller fills in the rest."""
        segment = cls(files, directory, base_offset, interval_bytes=interval_bytes)
        segment.size_bytes = files.size(segment.path)
        segment._index = None
        segment._verified_bytes = 0
        return segment

    @property
    def is_live(self) -> bool:
        """Whether batches may be added."""
        return self._index is not None

    # Writing

    def has_room_for(self, byte_count: int, offset_last: int, *, bytes_max: int, index_entries_max: int) -> bool:
        """Tell whether an append may go here. An empty segment takes any size."""
        return self._index is not None and (
            self.size_bytes == 0
            or (
                self.size_bytes + byte_count <= bytes_max
                and offset_last - self.base_offset <= INT32_MAX
                and len(self._index) < index_entries_max
            )
        )

    def add(self, *, offset_next: int, byte_count: int, timestamp_ms: int) -> None:
        """Take note of an append of so many bytes at the end."""
        assert self._index is not None, "a segment that is not live takes no appends"
        self._index.add(
            offset_base=self.offset_next,
            offset_last=offset_next - 1,
            position=self.size_bytes,
            byte_count=byte_count,
            timestamp_ms=timestamp_ms,
        )
        self.size_bytes += byte_count
        self.offset_next = offset_next
        self.timestamp_max_ms = timestamp_ms

    def cut(self, *, size_bytes: int, offset_next: int, timestamp_max_ms: int) -> None:
        """Forget what was added after a point."""
        if self._index is not None:
            self._index.cut(size_bytes, offset_next)
        self._is_index_stored = False
        self.size_bytes, self.offset_next, self.timestamp_max_ms = size_bytes, offset_next, timestamp_max_ms

    def store_index(self) -> None:
        """Write the index files of a live segment. They are caches: a crash may lose them."""
        if self._index is not None:
            self._write_index_files(self._index)
            self._is_index_stored = True

    def release_index(self) -> None:
        """The segment takes no more appends: from now on its index is looked up in the files, if they were written."""
        if self._is_index_stored:
            self._index = None

    def remove(self) -> None:
        """Remove the files of the segment."""
        for kind in (LogFileKind.SEGMENT, LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX):
            self._files.remove(self._beside(kind))

    # Loading

    def load(self, visit: Visit) -> ScanResult:
        """Read and check a segment that was found on disk. Appends may go on behind what is good of it."""
        index = SparseIndex(self.base_offset, self._interval_bytes)

        def visit_and_index(batch: StoredBatch) -> None:
            _add_batch(index, batch)
            visit(batch)

        result = self.scan(visit_and_index)
        self._index = index
        self._verified_bytes = None
        return result

    def scan(self, visit: Visit) -> ScanResult:
        """Check the segment from its first batch on."""
        return self._scan(visit, position=0, offset_next=self.base_offset)

    def _scan(self, visit: Visit, *, position: int, offset_next: int) -> ScanResult:
        return scan(self._files, self.path, start=position, end=self.size_bytes, offset_next=offset_next, visit=visit)

    def scan_tail(self) -> ScanResult:
        """Read no more of a segment that was found on disk than is needed to know its end."""
        try:
            entry = StoredIndex(self._files, self.path.parent, self.base_offset).last()
        except FileNotFoundError:
            entry = OffsetEntry(self.base_offset, 0)
        if 0 < entry.position <= self.size_bytes - _OFFSET_BYTES:
            is_confirmed = False

            def compare(batch: StoredBatch) -> None:
                nonlocal is_confirmed
                is_confirmed |= batch.offset_last == entry.offset

            first = int.from_bytes(self._files.read(self.path, entry.position, _OFFSET_BYTES), "little", signed=True)
            result = self._scan(compare, position=entry.position, offset_next=first)
            if is_confirmed:
                return result
        # An index that does not lead to the batch it names is worth nothing.
        return self.scan(lambda batch: None)

    def load_timestamp_max(self) -> int:
        """Return the commit time of the last batch, reading the end of a segment that was found on disk."""
        if self.timestamp_max_ms < 0 and self.size_bytes:
            result = self.scan_tail()
            if result.problem is not None:
                raise result.problem
            self.timestamp_max_ms = result.timestamp_max_ms
        return self.timestamp_max_ms

    # Reading

    def find(self, offset: int, position_end: int) -> StoredBatch:
        """Return the batch with an offset that lies before ``position_end``."""

        def has_offset(batch: StoredBatch) -> bool:
            return batch.offset_last >= offset

        return self._use_index(lambda index: self._walk(index.lookup(offset), position_end, has_offset))

    def find_time(self, timestamp_ms: int, position_end: int) -> StoredBatch:
        """Return the first batch before ``position_end`` with that commit time or a later one; there must be one."""

        def is_wanted(batch: StoredBatch) -> bool:
            return batch.commit_timestamp_ms >= timestamp_ms

        def search(index: SparseIndex | StoredIndex) -> StoredBatch:
            entry = index.lookup_time(timestamp_ms)
            if entry is None:
                return self._walk(OffsetEntry(self.base_offset, 0), position_end, is_wanted)
            batch = self._walk(
                index.lookup(entry.offset), position_end, lambda batch: batch.offset_last >= entry.offset
            )
            self._check_time(batch, entry)
            return self._walk(OffsetEntry(batch.offset_last, batch.position), position_end, is_wanted)

        return self._use_index(search)

    def position_before(self, offset: int) -> int | None:
        """Return a position at or before the batch with an offset, if it is known without reading."""
        index = self._index
        return None if index is None else index.lookup(offset).position

    def read(self, first: StoredBatch, byte_count: int) -> BytesLike:
        """Return the bytes from a batch on. Batches that are whole in them have been checked, or were written here."""
        data = self._files.read(self.path, first.position, byte_count)
        if len(data) < byte_count:
            raise damage_at(self.path, first.position + len(data), "the file ends before its last batch")
        verified_bytes = self._verified_bytes
        if verified_bytes is not None and verified_bytes < first.position + byte_count:
            self._verify(data, first, verified_bytes)
        return data

    def read_heads(self, first: StoredBatch, position_end: int, limits: HeadLimits) -> StoredHeads:
        """Return the heads of at least one batch, from a batch on, until one of the limits is reached.

        The records of large batches are not read, unless they still have to be checked: statistics that may be damaged
        must not be believed.
        """
        verified_bytes = self._verified_bytes
        if verified_bytes is None or verified_bytes >= position_end:
            return self._read_heads(first, position_end, limits)
        byte_count = min(max(limits.read_bytes_max, first.size), position_end - first.position)
        data = memoryview(self.read(first, byte_count))
        heads = heads_of(data[: measure_batches(data).byte_count], limits.batches_max)
        return StoredHeads(heads, byte_count, data)

    def _read_heads(self, first: StoredBatch, position_end: int, limits: HeadLimits) -> StoredHeads:
        collector = HeadCollector()
        position, span_end = first.position, first.position + limits.span_bytes_max
        window, window_start = memoryview(b""), position
        read_bytes, window_bytes = 0, _window_bytes(first.size)
        while position < min(position_end, span_end) and len(collector) < limits.batches_max:
            try:
                size, head_bytes = collector.take(window, position - window_start)
            except CorruptRecordError as error:
                raise damage_at(self.path, position, error.message) from error
            if size:
                position += size
                window_bytes = _window_bytes(size)
                continue
            if len(collector) and read_bytes >= limits.read_bytes_max:
                break
            window = memoryview(
                self._files.read(self.path, position, min(max(window_bytes, head_bytes), position_end - position))
            )
            window_start = position
            read_bytes += len(window)
            if len(window) < head_bytes:
                raise damage_at(self.path, position, "the batch is not whole")
        if position > position_end:
            raise damage_at(self.path, position_end, "the last batch is not whole")
        is_whole = window_start == first.position and position <= window_start + len(window)
        return StoredHeads(collector.heads(), read_bytes, window if is_whole else None)

    def _verify(self, data: BytesLike, first: StoredBatch, verified_bytes: int) -> None:
        chain = BatchChain(self.path, first.position, first.base_offset, timestamp_min_ms=0)
        for _ in chain.follow(data):
            pass
        if chain.position == self.size_bytes and chain.offset_next != self.offset_next:
            raise self._gap(chain.position, chain.offset_next)
        if first.position <= verified_bytes < chain.position:
            self._verified_bytes = chain.position

    # The index

    def _use_index(self, search: Callable[[SparseIndex | StoredIndex], StoredBatch]) -> StoredBatch:
        """Search with the index. If its files are missing or lead astray, they are made again."""
        index = self._index
        if index is not None:
            return search(index)
        stored = StoredIndex(self._files, self.path.parent, self.base_offset)
        try:
            self._check_index(stored)
            return search(stored)
        except (FlussError, FileNotFoundError):
            pass
        with _rebuilding:
            try:
                self._check_index(stored)
                return search(stored)
            except (FlussError, FileNotFoundError):
                return search(self._rebuilt_index())

    def _check_index(self, stored: StoredIndex) -> None:
        """Before the first use: entries must be in order, and none must be missing at the end.

        Without this, half an index would go unnoticed and make every read slow.
        """
        if self._is_index_stored:
            return
        entry = stored.check()
        bytes_since_entry = 0
        for batch in self._batches(entry, self.size_bytes):
            if bytes_since_entry > self._interval_bytes:
                raise damage_at(self.path, batch.position, "the index has no entry for this batch")
            bytes_since_entry += batch.size
        self._is_index_stored = True

    def _rebuilt_index(self) -> SparseIndex:
        """Read the segment from one end to the other. Raises CorruptRecordError for a bad place in it."""
        index = SparseIndex(self.base_offset, self._interval_bytes)
        result = self.scan(lambda batch: _add_batch(index, batch))
        if result.problem is not None:
            raise result.problem
        if result.offset_next != self.offset_next:
            raise self._gap(result.position_end, result.offset_next)
        self._verified_bytes = None
        try:
            self._write_index_files(index)
            self._is_index_stored = True
        except OSError:
            # A full disk; the index is kept in memory instead.
            self._index = index
        return index

    def _write_index_files(self, index: SparseIndex) -> None:
        self._files.replace(self._beside(LogFileKind.OFFSET_INDEX), index.offset_file(), durably=False)
        self._files.replace(self._beside(LogFileKind.TIME_INDEX), index.time_file(), durably=False)

    def _walk(self, entry: OffsetEntry, position_end: int, is_wanted: Callable[[StoredBatch], bool]) -> StoredBatch:
        """Return the first wanted batch from an index entry on."""
        for batch in self._batches(entry, position_end):
            if is_wanted(batch):
                return batch
        raise damage_at(self.path, position_end, "no batch follows where the index says one does")

    def _batches(self, entry: OffsetEntry, position_end: int) -> Iterator[StoredBatch]:
        """Go from header to header, from an index entry on, beginning with the batch that the entry speaks of.

        That batch must be there, and there must be no gap.
        """
        position, offset_next = entry.position, self.base_offset if entry.position == 0 else None
        is_confirmed = entry.position == 0
        window, window_start = memoryview(b""), position
        while position < position_end:
            if position + HEADER_BYTES_MAX > window_start + len(window):
                window = memoryview(self._files.read(self.path, position, _WALK_BYTES))
                window_start = position
            try:
                batch = read_stored_batch(window, position - window_start, position)
            except FlussError as error:
                raise damage_at(self.path, position, error.message) from error
            if batch is None or position + batch.size > position_end:
                raise damage_at(self.path, position, "the batch is not whole")
            if offset_next is not None and batch.base_offset != offset_next:
                raise damage_at(self.path, position, f"offset {offset_next}: found offset {batch.base_offset}")
            is_confirmed |= batch.offset_last == entry.offset
            if is_confirmed:
                yield batch
            position, offset_next = position + batch.size, batch.offset_next
        if not is_confirmed:
            raise damage_at(self.path, entry.position, "the batch is not there that the index speaks of")

    def _check_time(self, batch: StoredBatch, entry: TimeEntry) -> None:
        if batch.base_offset != entry.offset or batch.commit_timestamp_ms != entry.timestamp_ms:
            raise damage_at(self.path, batch.position, f"the index has another commit time, {entry.timestamp_ms}")

    def _gap(self, position: int, offset_next: int) -> CorruptRecordError:
        return damage_at(
            self.path,
            position,
            f"offset {offset_next}: the file ends here, but the log goes on at offset {self.offset_next}; a part of "
            "the file or a segment is missing",
        )

    def _beside(self, kind: LogFileKind) -> Path:
        return self.path.with_name(log_file_name(self.base_offset, kind))


def _add_batch(index: SparseIndex, batch: StoredBatch) -> None:
    """Add a batch that was found in a file as if it had been appended alone."""
    index.add(
        offset_base=batch.base_offset,
        offset_last=batch.offset_last,
        position=batch.position,
        byte_count=batch.size,
        timestamp_ms=batch.commit_timestamp_ms,
    )


def _window_bytes(batch_bytes: int) -> int:
    """Return how much is read to find the next heads: many small batches at once, or the head of a large one."""
    return _HEAD_WINDOW_BYTES if batch_bytes >= _LARGE_BATCH_BYTES else _HEADS_WINDOW_BYTES
