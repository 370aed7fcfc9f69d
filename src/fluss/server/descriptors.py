"""How the descriptors of the process are shared out: to logs, to RocksDB, to connections.

Logs have a quarter of all, RocksDB another one, and connections what is left.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import Final

from fluss.storage.kv.shared_database import DATABASES_COUNT
from fluss.storage.vfs import DESCRIPTORS_MAX

# What a process that is nothing but a server asks for.
_WANTED: Final = 65_536
# Of all descriptors, those of RocksDB.
_ROCKSDB_SHARE: Final = 1 / 4
# Those of logs, and as many as are worth it: opening a file that is written to again costs about as much as the write.
_LOGS_SHARE: Final = 1 / 4
_LOG_FILES_MAX: Final = 8192
# The metadata, the event loop, the log, sockets that listen, libraries.
_OTHERS: Final = 32
# Connections that have been accepted and are about to be refused.
_ARRIVALS: Final = 64
# The connections of HTTP: what each takes with the pair of sockets by which it may read tables, how many there are at
# most, and their part of all connections where descriptors are few.
_HTTP_DESCRIPTORS: Final = 3
_HTTP_CONNECTIONS_MAX: Final = 256
_HTTP_CONNECTIONS_MIN: Final = 8
_HTTP_SHARE: Final = 1 / 16
# With fewer a server is of no use, whatever the limit.
_CONNECTIONS_MIN: Final = 32
_STORES_MIN: Final = 4
# The files of one database, with ten for what is not an SST file. RocksDB takes no smaller number than this.
_FILES_MIN: Final = 20
_FILES_MAX: Final = 64
# A shared database has the rows of thousands of stores.
_SHARED_FILES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class RocksDbFiles:
    """What RocksDB may have open: stores with a database of their own, and the files of one database of each kind."""

    stores_max: int
    files_per_store: int
    files_per_shared_database: int

    @property
    def total(self) -> int:
        """The most files that all databases together have open."""
        return self.stores_max * self.files_per_store + DATABASES_COUNT * self.files_per_shared_database


def rocksdb_files(stores_wanted: int, limit: int | None = None) -> RocksDbFiles:
    """Return what fits into RocksDB's share; so many stores as are wanted if possible, even with fewer files each."""
    limit = _limit() if limit is None else limit
    if limit == resource.RLIM_INFINITY:
        return RocksDbFiles(stores_wanted, _FILES_MAX, _SHARED_FILES_MAX)
    left = int(limit * _ROCKSDB_SHARE)
    per_shared_database = min(max(_FILES_MIN, left // 2 // DATABASES_COUNT), _SHARED_FILES_MAX)
    left -= per_shared_database * DATABASES_COUNT
    stores_max = min(stores_wanted, max(_STORES_MIN, left // _FILES_MIN))
    per_store = min(max(_FILES_MIN, left // stores_max), _FILES_MAX)
    return RocksDbFiles(stores_max, per_store, per_shared_database)


def log_files(limit: int | None = None) -> int:
    """Return how many files of logs are kept open; never fewer than a few hundred, which are given up when needed."""
    limit = _limit() if limit is None else limit
    if limit == resource.RLIM_INFINITY:
        return _LOG_FILES_MAX
    return max(DESCRIPTORS_MAX, min(int(limit * _LOGS_SHARE), _LOG_FILES_MAX))


def connections_possible(limit: int | None = None, *, has_http: bool = False) -> int:
    """Return how many connections of clients there are descriptors for beside files, and beside HTTP if it is on."""
    limit = _limit() if limit is None else limit
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    left = limit - log_files(limit) - int(limit * _ROCKSDB_SHARE) - _OTHERS - _ARRIVALS
    if has_http:
        left -= http_connections_possible(limit) * _HTTP_DESCRIPTORS
    return max(_CONNECTIONS_MIN, left)


def http_connections_possible(limit: int | None = None) -> int:
    """Return how many connections HTTP may have, of those that are possible."""
    return max(_HTTP_CONNECTIONS_MIN, min(_HTTP_CONNECTIONS_MAX, int(connections_possible(limit) * _HTTP_SHARE)))


def raise_limit() -> None:
    """Allow this process as many descriptors as a server wants, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
