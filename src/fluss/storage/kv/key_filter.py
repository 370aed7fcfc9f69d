"""Which keys the database of a store certainly does not have: most keys of a load are new.

A Bloom filter whose bits for one key lie in one word of 64 bits. RocksDB has filters, too, one per SST file and per
piece of it; asking all of them takes many times as long as asking this one. It is made of segments: one that is full is
left as it is, and the next one is several times as large.

A filter is of use only if it has every key of the database:

    empty database     it has every key from the first one on
    clean close        it is saved beside the database, and loaded and removed when that is opened again
    anything else      when a load begins it is built beside the writes, by going through the keys (``DatabaseFilter``)

The file ``keys.filter``, little endian:

| field          | bytes | meaning                                                     |
|----------------|-------|-------------------------------------------------------------|
| magic          | 4     | ``FKVK``                                                    |
| version        | 1     | 1                                                           |
| seeds          | 24    | of the hashes of its keys, three numbers                    |
| room           | 8     | keys that fit into the last segment                         |
| state length   | 4     | bytes of the state                                          |
| segment count  | 4     | segments                                                    |
| word counts    | 8 per segment | words of each segment                               |
| state          |       | the state of the store whose keys these are                 |
| segments       |       | words of 64 bits                                            |
| crc32c         | 4     | over everything before it                                   |

A file that is damaged, or belongs to another state, is not used; nothing but time is lost.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from fluss.record.framing import crc32c
from fluss.row.arrow_arrays import BoolArray
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashSeeds, key_hashes
from fluss.row.varint import UInt64Array
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.vfs import Files

FILE_NAME: Final = "keys.filter"
_VERSION: Final = 1
_MAGIC: Final = b"FKVK"
_HEADER: Final = struct.Struct("<4sBQQQqII")
_CRC: Final = struct.Struct("<I")
_WORD_BYTES: Final = 8

# The first key that a row can have: the state of a store lies under the empty one.
KEY_FIRST: Final = b"\x00"
# Keys that one write adds to a filter that is being built: more would take longer than some ten milliseconds.
_BUILT_KEYS_MAX: Final = 100_000
# After a step, so that a thread that waits for the GIL gets it.
_STEP_PAUSE_S: Final = 1e-6

_BITS_PER_KEY: Final = 12
_WORD_BITS: Final = 64
_KEYS_MIN: Final = 2**17
_GROWTH: Final = 4
# Three bits of a word, by pieces of the hash that do not choose the word.
_BIT_SHIFTS: Final = (np.uint64(0), np.uint64(6), np.uint64(12))
_BIT_MASK: Final = np.uint64(_WORD_BITS - 1)
_ONE: Final = np.uint64(1)


class FilterMemory:
    """What the filters of all stores together may take. May be used from any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self._lock = threading.Lock()

    def take(self, byte_count: int) -> bool:
        """Take memory if there is some."""
        with self._lock:
            if byte_count > self._bytes_left:
                return False
            self._bytes_left -= byte_count
            return True

    def give_back(self, byte_count: int) -> None:
        with self._lock:
            self._bytes_left += byte_count


class KeyFilter:
    """The keys of a store by their hashes. One thread adds at a time; any number may ask meanwhile."""

    def __init__(self, memory: FilterMemory) -> None:
        self._memory = memory
        # Of its own, because those of ``HashedKeys`` die with the process.
        self._seeds = HashSeeds.random()
        self._segments: tuple[UInt64Array, ...] = ()
        # Keys that fit into the newest segment.
        self._room = 0

    @property
    def byte_count(self) -> int:
        return sum(words.nbytes for words in self._segments)

    def add(self, keys: EncodedRows) -> bool:
        """Add keys; return False if there is no memory, and from then on the filter is of no use."""
        hashes = key_hashes(keys, self._seeds)
        # Keys that are written again and again take no room.
        return self._add(hashes[~self._may_have(hashes)])

    def may_have(self, keys: EncodedRows) -> BoolArray:
        """Return which keys may have been added. All others were not."""
        return self._may_have(key_hashes(keys, self._seeds))

    def _add(self, hashes: UInt64Array) -> bool:
        if len(hashes) > self._room and not self._grow(len(hashes)):
            return False
        if not len(hashes):
            return True
        self._room -= len(hashes)
        words = self._segments[-1]
        positions, bits = _positions_and_bits(words, hashes)
        while len(positions):
            # Of several keys with the same word one is added; the others look again.
            words[positions] |= bits
            is_missing = words[positions] & bits != bits
            positions, bits = positions[is_missing], bits[is_missing]
        return True

    def _may_have(self, hashes: UInt64Array) -> BoolArray:
        result = np.zeros(len(hashes), np.bool_)
        for words in self._segments:
            positions, bits = _positions_and_bits(words, hashes)
            result |= words[positions] & bits == bits
        return result

    def close(self) -> None:
        """Give the memory back, once. A thread that is still asking is told the truth: nothing is taken out."""
        self._memory.give_back(self.byte_count)

    def _grow(self, key_count: int) -> bool:
        keys_before = sum(map(len, self._segments)) * _WORD_BITS // _BITS_PER_KEY
        keys_max = max(_KEYS_MIN, 2 * key_count, (_GROWTH - 1) * keys_before)
        word_count = 1 << (keys_max * _BITS_PER_KEY // _WORD_BITS).bit_length()
        words = np.zeros(word_count, np.uint64)
        if not self._memory.take(words.nbytes):
            return False
        self._segments = *self._segments, words
        self._room = word_count * _WORD_BITS // _BITS_PER_KEY
        return True

    # On the disk

    def save(self, files: Files, directory: Path, state: bytes) -> None:
        """Write the filter beside a database that has exactly its keys, and this state."""
        counts = struct.pack(f"<{len(self._segments)}Q", *map(len, self._segments))
        header = _HEADER.pack(_MAGIC, _VERSION, *self._seeds, self._room, len(state), len(self._segments))
        data = b"".join(
            (header, counts, state, *(words.astype("<u8", copy=False).tobytes() for words in self._segments))
        )
        # What a crash leaves of it does not match its checksum.
        files.replace(directory / FILE_NAME, data + _CRC.pack(crc32c(data)), durably=False)

    @classmethod
    def load(cls, files: Files, directory: Path, state: bytes, memory: FilterMemory) -> KeyFilter | None:
        """Take the filter that was saved beside a database with this state, if there is one.

        The file is gone for good when this returns: what is written to the database from now on is not in it.
        """
        path = directory / FILE_NAME
        if not files.exists(path):
            return None
        data = bytes(files.read(path, 0, files.size(path)))
        files.remove(path)
        files.sync_directory(directory)
        return cls._decode(data, state, memory)

    @classmethod
    def _decode(cls, data: bytes, state: bytes, memory: FilterMemory) -> KeyFilter | None:
        if len(data) < _HEADER.size + _CRC.size or data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC)] != _VERSION:
            return None
        content = memoryview(data)[: -_CRC.size]
        if _CRC.unpack_from(data, len(content))[0] != crc32c(content):
            return None
        _, _, *seeds, room, state_bytes, segment_count = _HEADER.unpack_from(data)
        counts = struct.unpack_from(f"<{segment_count}Q", data, _HEADER.size)
        position = _HEADER.size + len(counts) * _WORD_BYTES
        if data[position : position + state_bytes] != state or not memory.take(sum(counts) * _WORD_BYTES):
            return None
        loaded = cls(memory)
        position += state_bytes
        segments = []
        for count in counts:
            segments.append(np.frombuffer(data, "<u8", count, position).astype(np.uint64))
            position += count * _WORD_BYTES
        loaded._seeds, loaded._room, loaded._segments = HashSeeds(*seeds), room, tuple(segments)
        return loaded


class DatabaseFilter:
    """The filter of one database: complete, being built, or none.

    ``may_have`` and ``note_missed`` may be called from any thread, everything else from one thread at a time.

    A build goes through the database in the order of the keys. Keys that the database gets meanwhile are added by the
    writers, so it does not matter whether the build passes them as well.
    """

    def __init__(
        self,
        settings: KvStoreSettings,
        memory: FilterMemory,
        sleep: Callable[[float], None],
        saved: KeyFilter | None = None,
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._sleep = sleep
        # At most one of them: the first has every key of the database, the second those before the next key.
        self._complete = saved
        self._building: KeyFilter | None = None
        self._key_next = KEY_FIRST
        # How many keys the database was asked for in vain, and whether there was no memory for a filter.
        self._missed_count = 0
        self._is_refused = False

    def may_have(self, keys: EncodedRows) -> BoolArray | None:
        """Return which keys the database may have; None if there is no filter that knows."""
        complete = self._complete
        return None if complete is None else complete.may_have(keys)

    @property
    def is_complete(self) -> bool:
        """Whether there is a filter that knows."""
        return self._complete is not None

    def note_missed(self, count: int) -> None:
        """Note that the database was asked for so many keys that it does not have."""
        self._missed_count += count

    def add(self, keys: EncodedRows) -> None:
        """Note keys before the database gets them."""
        key_filter = self._complete if self._building is None else self._building
        if key_filter is not None and not key_filter.add(keys):
            self.close()

    def begin_empty(self) -> None:
        """Begin with a filter that is complete, because the database has no keys yet."""
        self._complete = KeyFilter(self._memory)

    @property
    def is_build_due(self) -> bool:
        is_wanted = self._missed_count >= self._settings.filter_keys_min and self._complete is None
        return self._building is not None or (is_wanted and not self._is_refused)

    def build(self, next_keys: Callable[[bytes, int], list[bytes]], row_count: int, *, may_begin: bool) -> None:
        """Go on with a build that is due, as far as goes with a write of so many rows.

        ``next_keys`` returns up to so many keys of the database as it is now, from one on.
        """
        if self._building is None:
            if not (may_begin and self.is_build_due):
                return
            self._building = KeyFilter(self._memory)
        step_keys = self._settings.filter_step_keys
        for _ in range(0, min(self._settings.filter_keys_per_row * row_count, _BUILT_KEYS_MAX), step_keys):
            keys = next_keys(self._key_next, step_keys)
            if keys and not self._building.add(EncodedRows.from_list(keys)):
                self.close()
                return
            if len(keys) < step_keys:
                self._complete, self._building = self._building, None
                return
            self._key_next = keys[-1] + b"\0"
            self._sleep(_STEP_PAUSE_S)

    def save(self, files: Files, directory: Path, state: bytes) -> None:
        """Save the filter if it is complete. Without the file it is built again when it is needed."""
        if self._complete is not None:
            with suppress(OSError):
                self._complete.save(files, directory, state)

    def close(self) -> None:
        """Do without a filter from now on, because there is no memory for it or because the store is closed."""
        key_filter = self._complete if self._building is None else self._building
        self._complete = self._building = None
        self._is_refused = True
        if key_filter is not None:
            key_filter.close()


def _positions_and_bits(words: UInt64Array, hashes: UInt64Array) -> tuple[np.ndarray, UInt64Array]:
    """Return the word of each key, by the upper bits of its hash, and its bits in there, by lower ones."""
    positions = (hashes >> np.uint64(_WORD_BITS + 1 - len(words).bit_length())).astype(np.int64)
    bits = np.zeros(len(hashes), np.uint64)
    for shift in _BIT_SHIFTS:
        bits |= _ONE << (hashes >> shift & _BIT_MASK)
    return positions, bits
