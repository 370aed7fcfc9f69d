"""Keys of data files of lakes that this process has read: which rows of a file have changed is found without reading.

A data file never changes, so that its keys are read once and are good for every later read, whatever has changed by
then. They are kept from the second read of a file on: a program that reads a table once does not pay for them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from fluss.buffers import Int64Array
from fluss.client.scan.changed_rows import is_ascending, key_numbers

if TYPE_CHECKING:
    from fluss.lake.fluss_rows import LakeRows
    from fluss.lake.scans import LakeFile

# Eight bytes for each row: the keys of 16 million rows.
_BYTES_MAX: Final = 128 << 20
_KEY_BYTES: Final = 8
# Files of which it is remembered that they were read.
_FILES_MAX: Final = 4096


@dataclass(frozen=True)
class FileKeys:
    """The numbers of a key column, in the order of the rows of a file, with those that are deleted."""

    numbers: Int64Array
    # Whether each number is larger than the one before, so that one can be found without looking at all.
    is_ascending: bool

    @classmethod
    def of(cls, parts: Sequence[Int64Array]) -> FileKeys:
        """Join what has been read of a file."""
        numbers = np.concatenate([np.zeros(0, np.int64), *parts])
        return cls(numbers, is_ascending(numbers))


class KnownKeys:
    """The keys of the files that were used last, by file and column. Used by many threads."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._keys: OrderedDict[tuple[str, str], FileKeys] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()
        # What is kept at the moment.
        self.byte_count = 0

    def known(self, lake: LakeRows, files: Sequence[LakeFile], key_name: str) -> dict[str, FileKeys]:
        """Return the keys of files by their paths, of those that are known.

        Not of a file without positions, which it may have had before: deletes by key come to a file later.
        """
        with self._lock:
            places = ((file.data.file_path, key_name) for file in files if lake.has_positions(file))
            return {place[0]: self._keys[place] for place in places if place in self._keys}

    def of(self, lake: LakeRows, files: Sequence[LakeFile], key_name: str) -> dict[str, FileKeys]:
        """Return the keys of files by their paths, of those that are known or read for the second time.

        None if they are too many to be kept together: each read would drop what the next one needs first. And none of
        files without positions.
        """
        files = [file for file in files if lake.has_positions(file)]
        if sum(file.data.record_count for file in files) * _KEY_BYTES > self._bytes_max:
            return {}
        found: dict[str, FileKeys] = {}
        unknown: list[LakeFile] = []
        with self._lock:
            for file in files:
                place = file.data.file_path, key_name
                keys = self._keys.get(place)
                if keys is not None:
                    self._keys.move_to_end(place)
                    found[file.data.file_path] = keys
                elif place in self._seen:
                    unknown.append(file)
                self._seen[place] = None
                self._seen.move_to_end(place)
            while len(self._seen) > _FILES_MAX:
                self._seen.popitem(last=False)
        read = _read_keys(lake, unknown, key_name)
        self._add(read, key_name)
        return found | read

    def _add(self, read: dict[str, FileKeys], key_name: str) -> None:
        with self._lock:
            for path, keys in read.items():
                if (path, key_name) not in self._keys:
                    self._keys[path, key_name] = keys
                    self.byte_count += keys.numbers.nbytes
            while self.byte_count > self._bytes_max:
                self.byte_count -= self._keys.popitem(last=False)[1].numbers.nbytes


def _read_keys(lake: LakeRows, files: Iterable[LakeFile], key_name: str) -> dict[str, FileKeys]:
    # Positions count all rows of a file, so that none may be left out.
    whole = [replace(file, position_deletes=()) for file in files]
    batches = lake.select([key_name]).file_batches(whole)
    return {
        path: FileKeys.of([key_numbers(batch.column(0)) for _, batch in batches_of_file])
        for path, batches_of_file in groupby(batches, lambda pair: pair[0].data.file_path)
    }


# Of all tables that are read.
KNOWN_KEYS: Final = KnownKeys()
