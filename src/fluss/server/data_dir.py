"""The directory that holds everything a server keeps: made on first use, and used by one process at a time.

file                  content
``.lock``               holds the number of the server's process, and is locked as long as it runs
``flussbett-format``    the version of the layout of everything else, as a decimal number

What else is in there belongs to the roles of the server.

What keeps a second server out is a lock on the directory itself: nothing in it can be deleted to undo that. The file is
locked besides, for servers of earlier releases, which look at nothing else.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from fluss.errors import FlussError, hide_directory, unhide_directory
from fluss.storage.log.file_names import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from fluss.storage.vfs import OsFiles, is_out_of_descriptors, is_out_of_space

FORMAT_VERSION: Final = 1
FORMAT_FILE: Final = "flussbett-format"
LOCK_FILE: Final = ".lock"
# The permissions of a data directory: for the user that the server runs as only.
PRIVATE: Final = 0o700
# A mount point has one of its own, and a directory that was only locked so far is as good as empty.
# Files beside the directories of databases. A database of such a name would have no directory, or take theirs.
FILE_NAMES: Final = frozenset({FORMAT_FILE, RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT})
_OVERLOOKED: Final = frozenset({LOCK_FILE, f"{FORMAT_FILE}.tmp", "lost+found"})
# Longer than any process number or version; a longer one was not written by this program.
_NUMBER_BYTES_MAX: Final = 20

logger = logging.getLogger(__name__)


class DataDirectory:
    """A data directory that this process holds. Made by ``acquire``; ``release`` lets the next one in."""

    def __init__(self, path: Path, lock_fds: Sequence[int]) -> None:
        self.path = path
        # Of the directory and of the file.
        self._lock_fds = lock_fds

    @classmethod
    def acquire(cls, path: Path, *, mode: int = PRIVATE) -> DataDirectory:
        """Make the directory if need be, lock it, and check that its content is ours and of a known version.

        Only those of ``mode`` may use it: an existing one that lets others in is closed to them. What is made in
        it later is for the same people. From now on messages to clients do not name it.

        Raises FlussError if another server holds it, if it holds something else, or if it cannot be used at all.
        """
        path = path.absolute()
        try:
            OsFiles().make_directory(path.parent)
            with suppress(FileExistsError):
                path.mkdir(mode)
                OsFiles().sync_directory(path.parent)
            _refuse_foreign(path)
            lock_fds = _lock(path)
            _close_to_others(path, mode)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            _check_format(path)
        except BaseException:
            _unlock(lock_fds)
            raise
        hide_directory(path)
        return cls(path, lock_fds)

    def release(self) -> None:
        """Let another process use the directory. May be called again."""
        if self._lock_fds:
            unhide_directory(self.path)
        _unlock(self._lock_fds)
        self._lock_fds = ()

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _unusable(path: Path, error: OSError) -> FlussError:
    if is_out_of_space(error):
        reason = "its disk has no room left; free some space and start the server again"
    elif is_out_of_descriptors(error):
        reason = f"{error.strerror}; let the server have more of them (ulimit -n) and start it again"
    else:
        reason = f"{error.strerror}; choose another one or correct its rights"
    return FlussError(f"the data directory {path} cannot be used: {reason}")


def _refuse_foreign(path: Path) -> None:
    """Raise if there is something else in the directory; not even a lock is left there."""
    if (path / FORMAT_FILE).exists():
        return
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in _OVERLOOKED)
    if foreign:
        raise FlussError(
            f"{path} holds something else ({', '.join(foreign[:3])}), no data of this server; "
            "choose an empty or a new directory"
        )


def _close_to_others(path: Path, mode: int) -> None:
    """Take rights to the directory away from users who should not have them. What cannot be done is logged."""
    status = path.stat()
    if status.st_uid != os.geteuid():
        logger.warning("the data directory %s belongs to another user of this machine (id %d)", path, status.st_uid)
    found = stat.S_IMODE(status.st_mode)
    excess = found & 0o777 & ~mode
    if not excess:
        return
    try:
        path.chmod(found & ~excess)
    except OSError as error:
        logger.warning(
            "other users of this machine may use the data directory %s (mode %04o), and that cannot be changed: %s",
            *(path, found, error.strerror),
        )
    else:
        logger.warning(
            "the data directory %s had mode %04o and has %04o now, so that no other user of this machine can read it; "
            "'data.dir.mode' allows more",
            *(path, found, found & ~excess),
        )


def _lock(path: Path) -> Sequence[int]:
    """Lock the directory, then the file in it, and return the descriptors that hold the locks."""
    directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return directory_fd, _lock_file(path)
    except BaseException as error:
        os.close(directory_fd)
        if isinstance(error, BlockingIOError):
            raise FlussError(_held_by(path)) from None
        raise


def _lock_file(path: Path) -> int:
    fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        # The lock is what counts, and on a full disk it is held all the same.
        if not is_out_of_space(error):
            os.close(fd)
            raise
    except BaseException:
        os.close(fd)
        raise
    return fd


def process_of(path: Path) -> int | None:
    """Return the number of the process that holds a data directory; None if none does, or it cannot be said."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Shared with others who only look.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(path)
        return int(holder) if holder.isdecimal() else None
    finally:
        os.close(fd)
    return None


def _holder(path: Path) -> str:
    try:
        return (path / LOCK_FILE).read_bytes()[:_NUMBER_BYTES_MAX].decode("ascii", "replace").strip()
    except OSError:
        return ""


def _held_by(path: Path) -> str:
    holder = _holder(path)
    if not holder.isdecimal():
        return f"the data directory {path} is in use by another process; stop that one or choose another directory"
    if int(holder) == os.getpid():
        return f"the data directory {path} is in use by a server in this process; stop that one first"
    return (
        f"the data directory {path} is in use by process {holder}; stop it (kill {holder}) and try again, "
        "or choose another directory"
    )


def _unlock(fds: Iterable[int]) -> None:
    for fd in fds:
        # The lock is given back by name and not only by closing: a forked process may still have the file open.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _check_format(path: Path) -> None:
    try:
        found = (path / FORMAT_FILE).read_bytes()[: _NUMBER_BYTES_MAX + 1].decode("ascii", "replace").strip()
    except FileNotFoundError:
        _claim(path)
        return
    except OSError as error:
        raise FlussError(f"{path / FORMAT_FILE} cannot be read: {error.strerror}") from error
    if not found.isdecimal() or len(found) > _NUMBER_BYTES_MAX:
        raise FlussError(
            f"{path / FORMAT_FILE} is damaged: it should hold the version of the layout ({FORMAT_VERSION}); "
            "restore the directory from a copy"
        )
    if int(found) != FORMAT_VERSION:
        raise FlussError(
            f"the data directory {path} has layout version {found}, and this server knows version {FORMAT_VERSION}; "
            "start it with the release that wrote it"
        )


def _claim(path: Path) -> None:
    """Write the version into an empty directory."""
    try:
        _refuse_foreign(path)
        OsFiles().replace(path / FORMAT_FILE, f"{FORMAT_VERSION}\n".encode())
    except OSError as error:
        raise _unusable(path, error) from error
