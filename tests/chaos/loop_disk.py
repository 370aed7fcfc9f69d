"""A small file system of its own, on a loop device, that can lose its power and run full. It needs root.

Power is lost as the kernel offers it for tests: the file system is shut down without its journal being written, and
what was not synced is gone when it is mounted again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

SIZE_BYTES: Final = 256 * 1024 * 1024
# EXT4_IOC_SHUTDOWN, and its way of going down without the journal.
_SHUTDOWN: Final = 0x8004587D
_WITHOUT_JOURNAL: Final = struct.pack("I", 2)
_BALLAST: Final = "ballast"


class LoopDiskUnavailableError(Exception):
    """This machine has no loop devices for us; the sentence says what is missing."""


class LoopDisk:
    """An ext4 file system in a file. A context manager; ``path`` is where it is mounted."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "mounted"
        self._image = directory / "disk.img"
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> LoopDisk:
        if os.geteuid() != 0:
            raise LoopDiskUnavailableError("only root can mount a file system")
        for program in ("mkfs.ext4", "mount", "umount"):
            if shutil.which(program) is None:
                raise LoopDiskUnavailableError(f"there is no {program}")
        with self._image.open("wb") as image:
            image.truncate(SIZE_BYTES)
        self.path.mkdir()
        _run("mkfs.ext4", "-q", "-F", "-b", "4096", self._image)
        self._mount()
        return self

    def __exit__(self, *exception: object) -> None:
        self._unmount()
        self._image.unlink()

    def lose_power(self) -> None:
        """Stop the file system where it is. What uses it gets errors, and must be ended before ``recover``."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, _SHUTDOWN, _WITHOUT_JOURNAL)
        finally:
            os.close(directory)

    def recover(self) -> None:
        """Mount it again, as the next start of the machine does."""
        self._unmount()
        self._mount()

    def fill(self) -> None:
        """Take all the space that is left."""
        with (self.path / _BALLAST).open("ab") as ballast, suppress(OSError):
            statistics = os.statvfs(self.path)
            os.posix_fallocate(ballast.fileno(), 0, statistics.f_bavail * statistics.f_frsize)
        with (self.path / _BALLAST).open("ab", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def empty(self) -> None:
        """Give the space back, also if power is lost next: nobody would do it again."""
        (self.path / _BALLAST).unlink(missing_ok=True)
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _mount(self) -> None:
        _run("mount", "-o", "loop,noatime", self._image, self.path)

    def _unmount(self) -> None:
        _run("umount", self.path)


def _run(program: str, *arguments: str | Path) -> None:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise LoopDiskUnavailableError(f"{program} says: {done.stderr.strip() or done.returncode}")
