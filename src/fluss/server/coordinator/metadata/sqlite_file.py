"""One SQLite file, used by one thread of its own: transactions that are on disk when they are done.

The file is in WAL mode with ``synchronous=FULL``, so a commit has reached the disk when it returns. After a failed
write the disk and SQLite may disagree about what was committed. The file then takes no more changes: what it holds is
found out by opening it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from fluss.errors import ErrorCode, FlussError

T = TypeVar("T")

_APPLICATION_ID: Final = 0x666C7362
_BUSY_TIMEOUT_S: Final = 5.0
# The disk did not do what it was told, or does not hold what it was given: what was committed is in doubt. After any
# other error (a full disk, a lock) the transaction was undone, and a later one may succeed.
_DOUBTFUL_ERRORS: Final = ("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB")
_DISK_FULL: Final = "SQLITE_FULL"
_DAMAGE_ERRORS: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
# What SQLite needs for the files beside the one with the content.
_ROOM_BYTES_MIN: Final = 256 * 1024

logger = logging.getLogger(__name__)


class SqliteFile:
    """Runs functions over the connection on the file's thread, one after the other, in the order of the calls.

    A caller that is cancelled while it waits does not know whether its change was made: a caller that keeps a copy of
    the content in memory lets changes run to their end.
    """

    def __init__(self, path: Path, migrations: Sequence[Sequence[str]]) -> None:
        self._path = path
        self._migrations = migrations
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fluss-metadata")
        self._connection: sqlite3.Connection | None = None
        self._failure: str | None = None

    @classmethod
    async def open(cls, path: Path, migrations: Sequence[Sequence[str]]) -> SqliteFile:
        """Open or create the file and bring it up to date; the n-th migration leads to version n.

        A damaged file, one of a newer version and one that is no such file at all are refused with a FlussError.
        """
        file = cls(path, migrations)
        try:
            await file._run(file._open)
        except BaseException:
            await file.close()
            raise
        return file

    @property
    def path(self) -> Path:
        return self._path

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function that changes nothing."""
        return await self._run(lambda: self._guarded(query))

    async def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function in a transaction. Either all it did is on disk when this returns, or nothing of it."""
        return await self._run(lambda: self._guarded(lambda connection: _in_transaction(connection, change)))

    async def change_count(self) -> int:
        """Return a number that is another one when something was changed since the file was opened."""
        return await self._run(lambda: self._guarded(lambda connection: connection.total_changes))

    def copy_to(self, target: Path) -> None:
        """Copy the content of one moment to a file of its own. Blocking; any thread may call, changes go on meanwhile.

        Raises FlussError.
        """
        try:
            with (
                closing(sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S)) as source,
                closing(sqlite3.connect(target, timeout=_BUSY_TIMEOUT_S)) as copy,
            ):
                source.backup(copy)
                # A single file, without a log beside it.
                copy.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.Error as error:
            raise FlussError(
                f"the metadata in {self._path} could not be copied: {error}", ErrorCode.STORAGE_EXCEPTION
            ) from error

    async def close(self) -> None:
        """Finish what was started and close. May be called again."""
        if self._connection is not None:
            await self._run(self._close)
        self._executor.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # On the file's thread

    def _open(self) -> None:
        with self._refusing_damage():
            # Made for its owner only: passwords that were set by request are in there. SQLite gives the files beside
            # it the same rights.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
            self._check(self._connection)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("PRAGMA foreign_keys=ON")
            # No change opens a file: there may be no descriptor left.
            self._connection.execute("PRAGMA temp_store=MEMORY")
            self._migrate(self._connection)

    @contextmanager
    def _refusing_damage(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            is_damaged = getattr(error, "sqlite_errorname", "").startswith(_DAMAGE_ERRORS)
            raise (self._refused if is_damaged else self._not_opened)(str(error)) from error
        except OSError as error:
            raise self._not_opened(error.strerror or str(error)) from error

    def _refused(self, reason: str) -> FlussError:
        return FlussError(
            f"the metadata in {self._path} cannot be used: {reason}. Restore the file together with its -wal file from "
            "a backup, or start with another data directory",
            ErrorCode.STORAGE_EXCEPTION,
        )

    def _not_opened(self, reason: str) -> FlussError:
        """It may be in order. To restore an older one would be bad advice."""
        # What SQLite says about it differs from place to place.
        if shutil.disk_usage(self._path.parent).free < _ROOM_BYTES_MIN:
            reason = "the disk has no room left; free some space and start the server again"
        else:
            reason += "; check the disk, the rights and the limit of open files (ulimit -n), and start the server again"
        return FlussError(f"the metadata in {self._path} cannot be used: {reason}", ErrorCode.STORAGE_EXCEPTION)

    def _check(self, connection: sqlite3.Connection) -> None:
        problems = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
        if problems != ["ok"]:
            raise self._refused("; ".join(problems))
        is_new = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
        if not is_new and _pragma(connection, "application_id") != _APPLICATION_ID:
            raise self._refused("it is the database of another program")
        version = _pragma(connection, "user_version")
        if version > len(self._migrations):
            raise self._refused(f"it has version {version}, this server knows versions up to {len(self._migrations)}")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = _pragma(connection, "user_version")
        for number, statements in enumerate(self._migrations[version:], start=version + 1):
            if version:
                logger.info("bringing %s to version %d", self._path, number)
            _in_transaction(connection, partial(_migrate_to, number, statements))

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        assert self._connection is not None, "the file is open"
        if self._failure is not None:
            raise FlussError(
                f"the metadata in {self._path} takes no changes since a write failed ({self._failure}); "
                "check the disk and restart the server",
                ErrorCode.STORAGE_EXCEPTION,
            )
        try:
            return work(self._connection)
        except sqlite3.Error as error:
            error_name = getattr(error, "sqlite_errorname", "")
            if error_name.startswith(_DOUBTFUL_ERRORS):
                self._failure = str(error)
            logger.error("the metadata in %s could not be changed: %s", self._path, error)
            if error_name == _DISK_FULL:
                raise FlussError(
                    "the metadata could not be changed, and nothing was done: the disk has no room left; free some "
                    "space, reads go on meanwhile",
                    ErrorCode.DISK_WRITE_LOCKED,
                ) from error
            raise FlussError(
                f"the metadata could not be changed: {error}; nothing was done", ErrorCode.STORAGE_EXCEPTION
            ) from error

    def _close(self) -> None:
        assert self._connection is not None
        connection, self._connection = self._connection, None
        connection.close()


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _in_transaction(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = change(connection)
        connection.execute("COMMIT")
    except BaseException:
        # A failed COMMIT may have ended the transaction by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _migrate_to(number: int, statements: Sequence[str], connection: sqlite3.Connection) -> None:
    for statement in statements:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={number}")
