"""Files at rest: ``fluss log``, ``fluss kv`` and ``fluss backup``. No server is needed, and none is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fluss.cli.kernel.commands import Command, Lazy, group
from fluss.cli.kernel.cycles import look_as_usual
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.parameters import time_text
from fluss.cli.kernel.progress import WorkProgress
from fluss.cli.kernel.session import Session, pass_session, require_server

if TYPE_CHECKING:
    from fluss.storage.log.scan import StoredBatch

_SEGMENT: Final = ".log"
_SST: Final = ".sst"

log = group(
    "Look into files of logs.",
    {
        "verify": Lazy("fluss.cli.cluster.at_rest:verify_log", "Check every byte of the logs in a directory."),
        "show": Lazy("fluss.cli.cluster.at_rest:show_log", "List the batches of a log."),
    },
    examples=("fluss log verify ~/.local/share/fluss/data", "fluss log show data/sales/orders-3/log-0"),
)
kv = group(
    "Look into files of rows by key.",
    {"verify": Lazy("fluss.cli.cluster.at_rest:verify_kv", "Check every block of the SST files in a directory.")},
    examples=("fluss kv verify ~/.local/share/fluss/data",),
)
backup = group(
    "Check a backup, and start a server from one.",
    {
        "verify": Lazy("fluss.cli.cluster.at_rest:verify_backup", "Check that a backup is complete and undamaged."),
        "restore": Lazy("fluss.cli.cluster.at_rest:restore_backup", "Start a server with the data of a backup."),
    },
    examples=("fluss backup verify /mnt/archive", "fluss backup restore /mnt/archive --data-dir ./new-data"),
)


def _files(directory: Path, suffix: str) -> list[Path]:
    if not directory.exists():
        raise CommandError(f"there is no directory {directory}", Exit.NOT_FOUND)
    if directory.is_file():
        return [directory]
    found = [Path(parent) / name for parent, _, names in os.walk(directory) for name in names if name.endswith(suffix)]
    if not found:
        raise CommandError(f"there are no {suffix} files in {directory}", Exit.NOT_FOUND)
    return sorted(found)


def _base_offset(path: Path) -> int:
    name = path.name.removesuffix(_SEGMENT)
    if not name.isdecimal():
        raise CommandError(f"{path} is no segment of a log: its name is no offset", Exit.USAGE)
    return int(name)


def _segments(directory: Path) -> Iterator[tuple[Path, int, int | None]]:
    """Return segments, their first offsets, and where the next one of the same log begins, if there is one."""
    from fluss.storage.log.file_names import OFFSET_DIGITS

    # RocksDB has files of this suffix beside its own, too, with shorter numbers.
    paths = [
        path
        for path in _files(directory, _SEGMENT)
        if path.name.removesuffix(_SEGMENT).isdecimal() and len(path.name) == OFFSET_DIGITS + len(_SEGMENT)
    ]
    if directory.is_file():
        yield directory, _base_offset(directory), None
        return
    for number, path in enumerate(paths):
        following = paths[number + 1] if number + 1 < len(paths) else None
        has_next = following is not None and following.parent == path.parent
        yield path, _base_offset(path), _base_offset(following) if following is not None and has_next else None


def _tell_checked(session: Session, what: str, checked: int, byte_count: int, damaged: list[dict[str, Any]]) -> int:
    if session.out.format == "table":
        for finding in damaged:
            session.out.say(f"damaged: {finding['problem']}")
        told = f"{len(damaged)} damaged" if damaged else "all are well"
        session.out.say(f"Checked {checked:,} {what}, {byte_count / 1e6:,.1f} MB: {told}.")
    else:
        session.out.record({"checked": checked, "bytes": byte_count, "damaged": damaged})
    return Exit.DATA if damaged else Exit.OK


@click.command(
    cls=Command, is_local=True, examples=("fluss log verify ./data", "fluss log verify ./data/sales --format json")
)
@click.argument("directory", type=click.Path(path_type=Path))
@pass_session
def verify_log(session: Session, directory: Path) -> int:
    """Check every byte of the logs in a directory.

    DIRECTORY is a data directory, or anything in it. Checksums, offsets, times, and the indexes beside. The exit code
    is 6 if something is damaged. While a server runs, the end of a log may be a write that is under way; scrubbing
    does the same then (`scrub.interval`).
    """
    from fluss.storage.log.scan import scan
    from fluss.storage.log.segment_check import check_segment
    from fluss.storage.vfs import OsFiles

    files = OsFiles()
    segments = list(_segments(directory))
    damaged: list[dict[str, Any]] = []
    done = 0
    with WorkProgress("verify", sum(path.stat().st_size for path, _, _ in segments) or None) as progress:
        for number, (path, base_offset, offset_next) in enumerate(segments, start=1):
            size = path.stat().st_size
            with _noting(damaged, path):
                if offset_next is None:
                    # The last one ends where it ends.
                    result = scan(files, path, start=0, end=size, offset_next=base_offset, visit=lambda _: None)
                    if result.problem is not None:
                        raise result.problem
                    offset_next = result.offset_next
                check_segment(files, path, base_offset=base_offset, offset_next=offset_next, size=size)
            done += size
            progress.update(number, done)
    return _tell_checked(session, "segments", len(segments), done, damaged)


@click.command(
    cls=Command,
    is_local=True,
    examples=(
        "fluss log show data/sales/orders-3/log-0",
        "fluss log show data/sales/orders-3/log-0/00000000000000000000.log -n 3 --format json",
    ),
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("-n", "count", type=click.IntRange(min=1), help="At most so many batches.")
@pass_session
def show_log(session: Session, directory: Path, count: int | None) -> int:
    """List the batches of a log.

    DIRECTORY is that of one bucket, or one segment: where each batch is, its offsets, time, writer and size.
    """
    from fluss.storage.log.scan import scan
    from fluss.storage.vfs import OsFiles

    class _EnoughError(Exception):
        pass

    files = OsFiles()
    stream = session.out.stream(("file", "position", "offset", "records", "bytes", "time", "writer", "sequence"))
    left = count
    problem = None
    for path, base_offset, _ in _segments(directory):
        waiting: list[tuple[Any, ...]] = []

        def visit(batch: StoredBatch, path: Path = path, waiting: list[tuple[Any, ...]] = waiting) -> None:
            nonlocal left
            if left is not None:
                if left == 0:
                    raise _EnoughError
                left -= 1
            writer = batch.writer_id if batch.writer_id >= 0 else None
            waiting.append(
                (
                    path.name,
                    batch.position,
                    batch.base_offset,
                    batch.offset_next - batch.base_offset,
                    batch.size,
                    time_text(batch.commit_timestamp_ms),
                    writer,
                    batch.batch_sequence if writer is not None else None,
                )
            )

        try:
            result = scan(files, path, start=0, end=path.stat().st_size, offset_next=base_offset, visit=visit)
            problem = result.problem
        except _EnoughError:
            problem = None
            left = 0
        stream.write(waiting)
        if problem is not None:
            raise CommandError(problem.message, Exit.DATA)
        if left == 0:
            break
    return Exit.OK


@click.command(cls=Command, is_local=True, examples=("fluss kv verify ./data",))
@click.argument("directory", type=click.Path(path_type=Path))
@pass_session
def verify_kv(session: Session, directory: Path) -> int:
    """Check every block of the SST files in a directory.

    DIRECTORY is a data directory, or anything in it. The exit code is 6 if something is damaged. A damaged store loses
    nothing: a server builds it again from its changelog.
    """
    from fluss.storage.kv.snapshots.sst_check import SstCheck, UnknownFormatError
    from fluss.storage.vfs import OsFiles

    files = OsFiles()
    paths = _files(directory, _SST)
    damaged: list[dict[str, Any]] = []
    done = 0
    with WorkProgress("verify", sum(path.stat().st_size for path in paths) or None) as progress:
        for number, path in enumerate(paths, start=1):
            size = path.stat().st_size

            def read(position: int, length: int, path: Path = path) -> bytes:
                return bytes(files.read(path, position, length))

            with _noting(damaged, path):
                try:
                    SstCheck(path, size, read).run()
                except UnknownFormatError as error:
                    damaged.append({"file": str(path), "problem": f"{path} cannot be checked: {error}"})
            done += size
            progress.update(number, done)
    return _tell_checked(session, "SST files", len(paths), done, damaged)


@contextmanager
def _noting(damaged: list[dict[str, Any]], path: Path) -> Iterator[None]:
    """Note what is wrong with a file, and go on."""
    from fluss.errors import FlussError

    try:
        yield
    except FlussError as error:
        damaged.append({"file": str(path), "problem": error.message})
    except OSError as error:
        damaged.append({"file": str(path), "problem": f"{path} cannot be read: {error.strerror}"})


# Backups are a matter of the server, which knows how to read them.


@click.command(
    cls=Command,
    is_local=True,
    context_settings={"ignore_unknown_options": True},
    examples=("fluss backup verify /mnt/archive", "fluss backup verify s3://bucket/fluss --config server.yaml"),
)
@click.argument("location")
@click.argument("server_options", nargs=-1, type=click.UNPROCESSED, metavar="[SERVER_OPTIONS]...")
@pass_session
def verify_backup(session: Session, location: str, server_options: tuple[str, ...]) -> int:
    """Check that a backup is complete and undamaged.

    LOCATION is the 'remote.data.dir' of the server that made it. Options of a server that say how to reach it, such as
    --config FILE or -D KEY=VALUE, are passed on.
    """
    require_server()
    from fluss.server.__main__ import run_server

    return run_server(["--verify-backup", _full_location(location), *server_options])


@click.command(
    cls=Command,
    is_local=True,
    context_settings={"ignore_unknown_options": True},
    examples=("fluss backup restore /mnt/archive --data-dir ./new-data",),
)
@click.argument("location")
@click.option("--data-dir", required=True, type=click.Path(path_type=Path), help="A new directory for the data.")
@click.argument("server_options", nargs=-1, type=click.UNPROCESSED, metavar="[SERVER_OPTIONS]...")
@pass_session
def restore_backup(session: Session, location: str, data_dir: Path, server_options: tuple[str, ...]) -> int:
    """Start a server with the data of a backup.

    It takes clients at once, and fetches what they ask for first. The server that made the backup is fenced off. More
    options of a server are passed on, as by `fluss serve`.
    """
    require_server()
    from fluss.server.__main__ import run_server

    look_as_usual()
    return run_server(["--data-dir", str(data_dir), "--restore-from", _full_location(location), *server_options])


def _full_location(location: str) -> str:
    """Return a URI as it is, and a path as servers take it."""
    return location if "://" in location else str(Path(location).absolute())
