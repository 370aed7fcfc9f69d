"""The flush of a memtable into RocksDB, step by step, in the order of the keys.

A few rows go into RocksDB's own write buffer. Many become an SST file, which RocksDB then ingests as it is: that costs
a fraction of what its write buffer does, and the rows are on the disk afterwards. Either way the state goes with the
last of the rows: after a crash it never tells of rows that are not there.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import numpy as np

from fluss.buffers import Int64Array
from fluss.errors import ErrorCode, FlussError
from fluss.record.value_batch import prefix_schema_id
from fluss.row.arrow_arrays import BoolArray
from fluss.row.encoded import EncodedRows, packed_rows
from fluss.row.hashed_keys import row_words
from fluss.row.varint import WORD_BYTES
from fluss.storage.kv import rocks
from fluss.storage.kv.memtable import Memtable
from fluss.storage.kv.place import Place
from fluss.storage.kv.state import KvState

# Rows become Python objects, and RocksDB takes them with the GIL held: a step takes less than a millisecond.
_STEP_ROWS: Final = 1000
_STEP_BYTES: Final = 512 * 1024
# After a step, so that a thread that waits for the GIL gets it. Without it it would wait five milliseconds.
_STEP_PAUSE_S: Final = 1e-6
_STALL_PAUSE_MS: Final = 5
# With so many SST files at level 0 RocksDB has to merge some before there is another one.
_LEVEL0_FILES_MAX: Final = 32
# Keys of so many words are sorted by numpy.
_SORTED_WORDS_MAX: Final = 4


class MemtableFlush:
    """Brings the rows of a memtable, to which nothing is added any more, into a database. For one thread at a time."""

    def __init__(
        self, memtable: Memtable, state: KvState, stored_state: bytes, place: Place, resources: rocks.KvResources
    ) -> None:
        """``state`` is what holds once all rows are there, ``stored_state`` what is stored of it."""
        self._memtable = memtable
        self.state = state
        self._stored_state = stored_state
        self._place = place
        self._resources = resources
        self._rows: _OrderedRows | None = None
        self._done = 0
        self._step_rows = _STEP_ROWS
        # None for a few rows, which need no file.
        self._sst: rocks.SstFileWriter | None = None

    def advance(self, row_count: int) -> bool:
        """Bring some more rows nearer to the database; return whether all of them are there.

        When it fails, everything has to be done again: by another flush of the same memtable.
        """
        rows = self._rows
        if rows is None:
            rows = self._rows = self._begin()
        if self._sst is None:
            self._write_directly(rows)
            return True
        end = min(len(rows), self._done + row_count)
        while self._done < end:
            step_end = min(end, self._done + self._step_rows)
            keys, values = rows.objects(self._done, step_end)
            add_to_sst(self._sst, self._place.keys(keys), values)
            self._done = step_end
            self._resources.sleep(_STEP_PAUSE_S)
        if self._done < len(rows):
            return False
        self._ingest(self._sst)
        return True

    def restarted(self) -> MemtableFlush:
        """Return a flush of the same memtable from the beginning, after this one has failed."""
        return MemtableFlush(self._memtable, self.state, self._stored_state, self._place, self._resources)

    @property
    def is_on_disk(self) -> bool:
        """Whether what is in the database is on the disk as well, as soon as the flush is done."""
        return self._sst is not None

    def _begin(self) -> _OrderedRows:
        rows = _OrderedRows.of(self._memtable)
        self._step_rows = max(1, min(_STEP_ROWS, _STEP_BYTES * len(rows) // max(1, rows.byte_count)))
        if len(rows) >= self._resources.settings.sst_rows_min:
            self._place.remove_unfinished()
            self._sst = rocks.sst_writer(self._resources, self._place.unfinished_path)
            # The first of all keys.
            self._sst[self._place.state_key] = self._stored_state
        return rows

    # Many rows: an SST file

    def _ingest(self, sst: rocks.SstFileWriter) -> None:
        sst.finish()
        self._wait_for_compactions()
        # Ingesting would do so as well, with the GIL held. In a shared database the rows of other stores come to the
        # disk, too, and what they write afterwards is of no concern: it lies in other ranges of keys.
        self._place.database.flush(True)
        rocks.ingest(self._place.database, self._place.unfinished_path)

    def _wait_for_compactions(self) -> None:
        stalled_ms = 0
        while rocks.number_of(self._place.database, "num-files-at-level0") >= _LEVEL0_FILES_MAX:
            stalled_ms = self._stall(stalled_ms)

    def _stall(self, stalled_ms: int) -> int:
        if stalled_ms >= self._resources.settings.stall_ms_max:
            raise FlussError(
                f"The key-value store in {self._place.directory} waited {stalled_ms} ms for the disk to catch up",
                ErrorCode.KV_STORAGE_EXCEPTION,
            )
        self._resources.sleep(_STALL_PAUSE_MS / 1000)
        return stalled_ms + _STALL_PAUSE_MS

    # A few rows: RocksDB's write buffer

    def _write_directly(self, rows: _OrderedRows) -> None:
        is_over = False
        while not is_over:
            step_end = min(len(rows), self._done + self._step_rows)
            is_over = step_end == len(rows)
            keys, values = rows.objects(self._done, step_end)
            stalled_ms = 0
            while not self._place.write(keys, values, self._stored_state if is_over else None):
                stalled_ms = self._stall(stalled_ms)
            self._done = step_end
            self._resources.sleep(_STEP_PAUSE_S)


class _OrderedRows(NamedTuple):
    """The newest rows of a memtable, copied out in the order of their keys."""

    keys: EncodedRows
    # Schema ids and rows.
    values: EncodedRows
    is_removed: BoolArray

    @classmethod
    def of(cls, memtable: Memtable) -> _OrderedRows:
        entries = memtable.newest_entries()
        entries = entries[_key_order(memtable.keys(entries))]
        stored = memtable.values(entries)
        values = prefix_schema_id(stored.rows, stored.schema_ids)
        return cls(packed_rows(memtable.keys(entries)), values, stored.rows.lengths == 0)

    def __len__(self) -> int:
        return len(self.is_removed)

    @property
    def byte_count(self) -> int:
        return len(self.keys.data) + len(self.values.data)

    def objects(self, start: int, end: int) -> tuple[list[bytes], list[bytes]]:
        """Return some keys and their values, which are empty where a key was removed."""
        step = slice(start, end)
        keys, values = self.keys.some(step).to_list(), self.values.some(step).to_list()
        for index in np.flatnonzero(self.is_removed[step]).tolist():
            values[index] = b""
        return keys, values


def add_to_sst(sst: rocks.SstFileWriter, keys: list[bytes], values: list[bytes]) -> None:
    if b"" not in values:
        deque(map(sst.__setitem__, keys, values), maxlen=0)
        return
    for key, value in zip(keys, values, strict=True):
        if value:
            sst[key] = value
        else:
            del sst[key]


def _key_order(keys: EncodedRows) -> Int64Array:
    """Return the numbers of keys, all different, in the order of their bytes."""
    lengths = keys.lengths
    word_count = -(-int(lengths.max(initial=0)) // WORD_BYTES)
    if word_count > _SORTED_WORDS_MAX:
        objects = keys.to_list()
        return np.array(sorted(range(len(objects)), key=objects.__getitem__), np.int64)
    # What a key does not have reads as zeros: of two that differ in nothing else the shorter one is the first.
    words = [row_words(keys, index).byteswap() for index in reversed(range(word_count))]
    return np.lexsort((lengths, *words))
