"""What a load must know to go on: how far it is, and under which writer id its last part is written.

It is one file of JSON, replaced as a whole. Its parts are in the order of the files. A part that has begun is looked
for in the log when the load goes on, so that no row is written twice (``exact_writing``).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fluss.cli.kernel.exits import CommandError, Exit
from fluss.schema.table import TableInfo

_VERSION: Final = 1


@dataclass
class LoadPosition:
    """How far a load is."""

    path: str
    table: str
    table_id: int
    files: list[list[Any]]
    settings: dict[str, Any]
    file: int = 0
    position: int = 0
    rows: int = 0
    rejected: int = 0
    rejects_size: int = 0
    is_done: bool = False
    # The record of the part that has begun, as a text; None if none has.
    record: str | None = None
    version: int = field(default=_VERSION)

    @classmethod
    def open(cls, path: str, info: TableInfo, files: Sequence[str], settings: dict[str, Any]) -> LoadPosition:
        """Take up the load in a file, or begin one; that of another table or of other files is refused."""
        facts = [[os.path.abspath(file), os.path.getsize(file), os.stat(file).st_mtime_ns] for file in files]
        fresh = cls(path, str(info.table_path), info.table_id, facts, json.loads(json.dumps(settings)))
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            fresh.save()
            return fresh
        except ValueError:
            raise _unusable(path, "is damaged, or no account of a load") from None
        if not isinstance(found, dict) or found.get("version") != _VERSION:
            raise _unusable(path, "is of a version that is not known")
        if (found["table"], found["table_id"]) != (fresh.table, fresh.table_id):
            raise _unusable(path, f"is about {found['table']} with the id {found['table_id']}")
        if found["files"] != fresh.files:
            raise _unusable(path, "is about other files, or they have changed")
        if found["settings"] != fresh.settings:
            raise _unusable(path, "was begun with other options")
        return cls(**{**found, "path": path})

    def save(self) -> None:
        """Write it down, whole or not at all."""
        unfinished = f"{self.path}.new"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self.path)

    def part_ended(
        self, rows: int, rejected: int, rejects_size: int, *, file: int, position: int, file_count: int
    ) -> None:
        """Note that a part is stored, how much was rejected up to its end, and where the next one begins."""
        self.rows += rows
        self.rejected = rejected
        self.rejects_size = rejects_size
        self.file, self.position, self.record = file, position, None
        self.is_done = file >= file_count
        self.save()


@contextmanager
def account_lock(path: str) -> Iterator[None]:
    """Keep an account to this load: two that go on from the same position would both write the rows behind it.

    The lock is one of the operating system, which gives it back however a process ends; the file beside the account is
    only what is locked.
    """
    lock_path = f"{path}.lock"
    while True:
        with open(lock_path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(
                    f"another load goes on with the account in {path}; wait for its end, or stop it"
                ) from None
            if not _is_at(lock_path, file.fileno()):
                # A load that has just ended has removed it, and the next one may have made another.
                continue
            try:
                yield
            finally:
                with suppress(OSError):
                    os.unlink(lock_path)
            return


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _unusable(path: str, problem: str) -> CommandError:
    return CommandError(f"the account in {path} {problem}; give another file for another load, or delete it", Exit.DATA)
