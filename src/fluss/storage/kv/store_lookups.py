"""Looking keys up: in the memtables of a store, in the filter of its keys, and in the database.

Stores that share a database are asked at once, see ``find_in_stores`` and ``get_in_stores``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from fluss.buffers import Int64Array
from fluss.errors import CorruptRecordError, FlussError, KvDamagedError
from fluss.record.mutations import FoundGroup, FoundRows, StoredValues
from fluss.row.hashed_keys import HashedKeys
from fluss.storage.kv.key_filter import DatabaseFilter
from fluss.storage.kv.memtable import Memtable, find_in_memtables
from fluss.storage.kv.place import STATE_KEY, Lending, Place
from fluss.storage.kv.point_reads import (
    ORDERED_KEYS_MIN,
    checked_bytes,
    get_from_database,
    get_newest,
    get_one,
    in_key_order,
)

_CACHED_VALUE_BYTES_MAX: Final = 1024 * 1024


class StoreLookups:
    """The lookups of a ``KvStore``. They take no lock: they read the memtables first, and then the place.

    What has left the memtables by then is in the place that they find.
    """

    __slots__ = ("_database", "_filter", "_is_database_empty", "_memtables", "_value_bytes_max", "directory")

    directory: Path
    _database: Lending
    _memtables: tuple[Memtable, ...]
    _filter: DatabaseFilter
    # Whether the database has no rows at all, and how many bytes a value has at most.
    _is_database_empty: bool
    _value_bytes_max: int

    @property
    def has_memtable_rows(self) -> bool:
        """Whether there are rows that have not been flushed: only then ``find`` is the faster way for many keys."""
        return any(map(len, self._memtables))

    def find(self, keys: HashedKeys, *, pending: Sequence[Memtable] = (), bytes_max: int = sys.maxsize) -> FoundRows:
        """Return the newest rows of keys, as many as there are. More than ``bytes_max`` is a FlussError (13).

        ``pending`` has writes that are not in the store yet, newest first, as they were before this call.
        """
        return find_in_stores([(self, pending)], keys, [len(keys)], bytes_max)

    def find_cached(
        self, keys: HashedKeys, *, pending: Sequence[Memtable] = (), bytes_max: int = sys.maxsize
    ) -> FoundRows | None:
        """Return what ``find`` would if that can be told from memory, in microseconds; None if it cannot.

        It cannot if the values have more than ``bytes_max``, or if one of them might be really large.
        """
        groups, left = find_in_memtables(pending, keys)
        if groups:
            bytes_max -= sum(stored.byte_count for _, stored in groups)
        if bytes_max < 0:
            return None
        if len(left):
            values = self.get_cached(keys.keys.some(left).to_list(), bytes_max=bytes_max)
            if values is None:
                return None
            groups += self._group_of(left, values)
        return FoundRows(groups)

    def get_many(self, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None]:
        """Return the value of each key, None where there is none. More than ``bytes_max`` is a FlussError (13)."""
        keys = list(keys)
        with self._database:
            memtables = self._memtables
            values = get_newest(
                memtables, self._database.place, keys, bytes_max=bytes_max, value_bytes_max=self._value_bytes_max
            )
        if STATE_KEY in keys:
            values = [value if key else None for key, value in zip(keys, values, strict=True)]
        return values

    def get_cached(self, keys: Sequence[bytes], *, bytes_max: int = sys.maxsize) -> list[bytes | None] | None:
        """Return what ``get_many`` would if that can be told from memory, in microseconds; None if it cannot.

        It cannot if the values have more than ``bytes_max``, or if one of them might be really large: copying it would
        take too long.
        """
        if STATE_KEY in keys or self._value_bytes_max > _CACHED_VALUE_BYTES_MAX:
            return None
        values: list[bytes | None] = []
        bytes_left = bytes_max
        with self._database:
            memtables = [memtable for memtable in self._memtables if len(memtable)]
            place = self._database.place
            database, prefix = place.database, place.prefix
            for key in keys:
                value = get_one(memtables, key)
                if value is None and not self._is_database_empty:
                    # With ``fetch`` it returns a pair, unlike what its stub says.
                    may_exist, value = database.key_may_exist(prefix + key, fetch=True)  # type: ignore[misc]
                    # Where a piece of an index is not in the cache the value comes out empty, as if it had been found.
                    if may_exist and not value:
                        return None
                bytes_left -= len(value or b"")
                if bytes_left < 0:
                    return None
                values.append(value or None)
        return values

    def _only_database_knows(self, pending: Sequence[Memtable]) -> bool:
        """Whether neither a memtable nor a filter can tell anything about a key."""
        return not any(map(len, pending)) and not any(map(len, self._memtables)) and not self._filter.is_complete

    def _without_new_keys(self, keys: HashedKeys, numbers: Int64Array) -> Int64Array:
        """Leave out the keys that the database cannot have."""
        if self._is_database_empty:
            return numbers[:0]
        numbers = numbers[keys.keys.lengths[numbers] > 0]
        may_have = self._filter.may_have(keys.keys.some(numbers)) if len(numbers) else None
        return numbers if may_have is None else numbers[may_have]

    def _group_of(self, numbers: Int64Array, values: list[bytes | None]) -> list[FoundGroup]:
        """Return the values of those keys that have one; an empty list if none has."""
        found = [value for value in values if value is not None]
        if not found:
            return []
        if len(found) < len(values):
            numbers = numbers[np.fromiter((value is not None for value in values), np.bool_, len(values))]
        try:
            stored = StoredValues.from_list(found)
        except CorruptRecordError as error:
            raise KvDamagedError(f"The key-value store {self.directory} is damaged: {error.message}") from error
        return [(numbers, stored)]


def find_in_stores(
    stores: Sequence[tuple[StoreLookups, Sequence[Memtable]]], keys: HashedKeys, key_ends: Sequence[int], bytes_max: int
) -> FoundRows:
    """Return the newest rows of keys in several stores, each with its pending writes, as ``find`` does for one.

    The keys of the first store come first, and end where the first number says.
    """
    groups: list[FoundGroup] = []
    reads: dict[int, _DatabaseRead] = {}
    lent: list[StoreLookups] = []
    # Of all stores, copied out when the first of them needs its own. An empty key is that of no row.
    key_list: list[bytes] | None = None
    may_be_few = bool(keys.keys.lengths.all())
    try:
        for (store, pending), first, end in zip(stores, (0, *key_ends), key_ends, strict=False):
            if first == end:
                continue
            if may_be_few and end - first < ORDERED_KEYS_MIN and store._only_database_knows(pending):
                # As arrays, a few keys take longer than the database does. The place is found after the memtables.
                store._database.__enter__()
                lent.append(store)
                if not store._is_database_empty:
                    key_list = keys.keys.to_list() if key_list is None else key_list
                    place = store._database.place
                    _read_of(reads, place).add(store, place, key_list[first:end], np.arange(first, end))
                continue
            own = keys if len(stores) == 1 else keys.some(slice(first, end))
            found, left = find_in_memtables(pending, own)
            if len(left):
                store._database.__enter__()
                lent.append(store)
                # In this order: what has left the memtables by now is in the place that is found.
                in_store, left = find_in_memtables(store._memtables, own, left)
                found += in_store
                place = store._database.place
                left = store._without_new_keys(own, left)
                if len(left):
                    left = in_key_order(own, left)
                    wanted = own.keys.some(left).to_list()
                    _read_of(reads, place).add(store, place, wanted, left + first if first else left)
            groups += [(numbers + first, stored) for numbers, stored in found] if first else found
        bytes_left = bytes_max - checked_bytes(groups, len(keys), bytes_max)
        for read in reads.values():
            found_there = read.found(bytes_left)
            groups += found_there
            bytes_left -= sum(stored.byte_count for _, stored in found_there)
    finally:
        for store in lent:
            store._database.__exit__(None, None, None)
    return FoundRows(groups)


def get_in_stores(
    stores: Sequence[tuple[StoreLookups, Sequence[bytes]]], *, bytes_max: int
) -> list[list[bytes | None] | None]:
    """Return the values of keys in several stores, each as ``get_many`` would; None for those that are to be asked.

    Those are stores that share no database, and stores with trouble: each of them then says by itself what is wrong.
    All others together have ``bytes_max`` bytes at most. In memtables keys are looked for one by one, which is good
    for a few.
    """
    found: list[list[bytes | None] | None] = [None] * len(stores)
    reads: dict[int, _SharedRead] = {}
    lent: list[StoreLookups] = []
    bytes_left = bytes_max
    try:
        for number, (store, keys) in enumerate(stores):
            # What goes wrong here goes wrong again when the store is asked.
            with suppress(FlussError):
                store._database.__enter__()
                lent.append(store)
                # In this order: what has left the memtables by now is in the place that is found.
                memtables = [memtable for memtable in store._memtables if len(memtable)]
                place = store._database.place
                if place.shared is None or STATE_KEY in keys:
                    continue
                newest: list[bytes | None] | None = None
                if memtables:
                    newest = [get_one(memtables, key) for key in keys]
                    bytes_left -= sum(map(len, filter(None, newest)))
                read = reads.get(id(place.database))
                if read is None:
                    read = reads[id(place.database)] = _SharedRead(place)
                read.add(number, place.prefix, keys, newest, store._value_bytes_max)
        for read in reads.values():
            with suppress(Exception):
                bytes_left -= read.get(found, bytes_left)
    finally:
        for store in lent:
            store._database.__exit__(None, None, None)
    return found


class _SharedRead:
    """Keys of several stores that share a database, as far as they were not found in memtables."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # The number of each store, how many keys it is asked for, and what its memtables say.
        self._members: list[tuple[int, int, list[bytes | None] | None]] = []
        self._keys: list[bytes] = []
        self._value_bytes_max = 0

    def add(
        self,
        number: int,
        prefix: bytes,
        keys: Sequence[bytes],
        newest: list[bytes | None] | None,
        value_bytes_max: int,
    ) -> None:
        """Take the keys of a store, and what its memtables say: nothing, a value, or no bytes for a removed key.

        None if they have nothing at all.
        """
        self._members.append((number, len(keys), newest))
        if newest is None:
            self._keys += [prefix + key for key in keys]
        else:
            self._keys += [prefix + key for key, value in zip(keys, newest, strict=True) if value is None]
        if value_bytes_max > self._value_bytes_max:
            self._value_bytes_max = value_bytes_max

    def get(self, found: list[list[bytes | None] | None], bytes_max: int) -> int:
        """Put the values of each store where its number says; return the bytes of those of the database."""
        if bytes_max < 0:
            return 0
        database = self._place.database
        values = get_from_database(database, self._keys, bytes_max=bytes_max, value_bytes_max=self._value_bytes_max)
        stored = iter(values)
        for number, key_count, newest in self._members:
            if newest is None:
                found[number] = [value or None for value in islice(stored, key_count)]
            else:
                found[number] = [(next(stored) if value is None else value) or None for value in newest]
        return sum(map(len, filter(None, values)))


class _DatabaseRead:
    """The keys of several stores that are read from the database they share, at once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._stores: list[tuple[StoreLookups, int]] = []
        self._numbers: list[Int64Array] = []
        self._keys: list[bytes] = []
        self._value_bytes_max = 0

    def add(self, store: StoreLookups, place: Place, keys: list[bytes], numbers: Int64Array) -> None:
        """Take the keys of a store that are left to be found, and their numbers."""
        self._stores.append((store, len(keys)))
        self._numbers.append(numbers)
        self._keys += place.keys(keys)
        self._value_bytes_max = max(self._value_bytes_max, store._value_bytes_max)

    def found(self, bytes_max: int) -> list[FoundGroup]:
        first_store = self._stores[0][0]
        try:
            values = get_from_database(
                self._place.database, self._keys, bytes_max=bytes_max, value_bytes_max=self._value_bytes_max
            )
        except FlussError:
            raise
        except Exception as error:
            raise self._place.explain(error, first_store.directory) from error
        first = 0
        for store, key_count in self._stores:
            store._filter.note_missed(values[first : first + key_count].count(None))
            first += key_count
        numbers = self._numbers[0] if len(self._numbers) == 1 else np.concatenate(self._numbers)
        return first_store._group_of(numbers, values)


def _read_of(reads: dict[int, _DatabaseRead], place: Place) -> _DatabaseRead:
    """Return what is read from the database of a place, by which it is known."""
    read = reads.get(id(place.database))
    if read is None:
        read = reads[id(place.database)] = _DatabaseRead(place)
    return read
