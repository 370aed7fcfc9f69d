"""A server on this machine: in this terminal or in the background, until it is stopped."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from fluss.amounts import format_count
from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.cycles import look_as_usual
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.parameters import time_text
from fluss.cli.kernel.session import Session, pass_session, require_server

_ADDRESS: Final = re.compile(r"(\[[^\]]+\]|[^\s,:]+):([0-9]+) \(")
_PAGE: Final = re.compile(r"page at (\S+)")
_STOP_TIMEOUT_S: Final = 60.0
_LOG_LINES_SHOWN: Final = 5


def default_data_dir() -> Path:
    """Return where a server keeps its data unless the user says where."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "fluss" / "data"


def _state_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fluss"


_data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Where everything is kept.  [default: ~/.local/share/fluss/data]",
)


@click.command(
    cls=Command,
    is_local=True,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    examples=(
        "fluss serve",
        "fluss serve --http                                          # with a page at http://127.0.0.1:9180",
        "fluss serve --data-dir ./data --port 9200 --detach",
        "fluss serve --config server.yaml -D log.segment.file-size=256mb",
    ),
)
@_data_dir_option
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port to listen on; 0 takes a free one.  [default: 9123]"
)
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1, for this machine only]")
@click.option(
    "--http",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Show the server over HTTP: a page, /metrics, /health.  [default address: 127.0.0.1:9180]",
)
@click.option("--detach", is_flag=True, help="Go on in the background; `fluss stop` ends it.")
@click.argument("server_options", nargs=-1, type=click.UNPROCESSED, metavar="[SERVER_OPTIONS]...")
@pass_session
def serve(
    session: Session,
    data_dir: Path | None,
    port: int | None,
    host: str | None,
    http: str | None,
    detach: bool,
    server_options: tuple[str, ...],
) -> int:
    """Start a server, here or in the background.

    Every option of `python -m fluss.server` is taken as well: --config FILE, -D KEY=VALUE, --durability, --insecure,
    --log-level, --log-format, --print-config. Without --detach it runs until Ctrl-C.
    """
    require_server()
    directory = (data_dir or default_data_dir()).absolute()
    arguments = ["--data-dir", str(directory)]
    if port is not None:
        arguments += ["--port", str(port)]
    if host is not None:
        arguments += ["--host", host]
    if http is not None:
        arguments += ["--http", *([http] if http else [])]
    arguments += server_options
    if not detach or "--print-config" in server_options:
        from fluss.server.__main__ import run_server

        look_as_usual()
        return run_server(arguments)
    _start_in_background(session, directory, arguments)
    return Exit.OK


def _start_in_background(session: Session, directory: Path, arguments: Sequence[str]) -> None:
    from fluss.server.data_dir import process_of

    running = process_of(directory)
    if running is not None:
        raise CommandError(
            f"a server runs already with {directory}, as process {running}; `{_stop_line(directory)}` ends it"
        )
    _state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    record_path = _record_path(directory)
    log_path = record_path.with_suffix(".log")
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "fluss.server", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            start_new_session=True,
            text=True,
        )
    finally:
        os.close(log_fd)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
    except KeyboardInterrupt:
        # The interruption is this terminal's, which the server is no part of.
        process.terminate()
        process.wait()
        raise
    finally:
        process.stdout.close()
    address = _ADDRESS.search(line)
    if address is None:
        code = process.wait()
        reason = _reason(log_path)
        raise CommandError(f"the server did not start (exit code {code}): {reason}; all it said is in {log_path}")
    record = {
        "process": process.pid,
        "address": f"{address[1]}:{address[2]}",
        "data_dir": str(directory),
        "log": str(log_path),
        "started": time_text(int(time.time() * 1000)),
    }
    page = _PAGE.search(line)
    if page is not None:
        record["page"] = page[1]
    record_path.write_text(json.dumps(record), encoding="utf-8")
    # It goes on without this process, which therefore does not wait for it.
    process.returncode = 0
    session.out.done(
        f"A server runs on {record['address']}, as process {process.pid}, data in {directory}. "
        + (f"Its page is at {page[1]}. " if page is not None else "")
        + f"`{_stop_line(directory)}` ends it.",
        **record,
    )


def _stop_line(directory: Path) -> str:
    """Return the command that ends the server of a directory."""
    if directory == default_data_dir().absolute():
        return "fluss stop"
    return f"fluss stop --data-dir {shlex.quote(str(directory))}"


def _reason(log_path: Path) -> str:
    lines = [line for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("python -m fluss.server: ") if lines else "it said nothing"


def _record_path(directory: Path) -> Path:
    return _state_dir() / f"server-{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}.json"


def _record(directory: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(_record_path(directory).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


@click.command(cls=Command, is_local=True, examples=("fluss stop", "fluss stop --data-dir ./data"))
@_data_dir_option
@click.option("--timeout", type=float, default=_STOP_TIMEOUT_S, show_default=True, help="How many seconds to wait.")
@pass_session
def stop(session: Session, data_dir: Path | None, timeout: float) -> None:
    """Stop a server that runs on this machine.

    It finishes its requests and closes its files. Which one is meant is said by its data directory.
    """
    from fluss.server.data_dir import process_of

    directory = (data_dir or default_data_dir()).absolute()
    number = process_of(directory)
    if number is None:
        raise CommandError(
            f"no server runs with the data in {directory}; --data-dir says which one to stop", Exit.NOT_FOUND
        )
    try:
        os.kill(number, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise CommandError(
            f"process {number} belongs to another user of this machine, who has to stop it", Exit.REFUSED
        ) from None
    if not _wait_for_end(number, timeout):
        raise CommandError(
            f"process {number} has not ended after {timeout:g} s; wait longer with --timeout, or `kill -9 {number}`, "
            "which loses nothing that was acknowledged"
        )
    _record_path(directory).unlink(missing_ok=True)
    session.out.done(f"Stopped the server in {directory} (process {number}).", stopped=number, data_dir=str(directory))


def _wait_for_end(number: int, timeout_s: float) -> bool:
    """Wait for the end of a process that is no child of this one; return whether it has ended."""
    try:
        descriptor = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        return _look_for_end(number, timeout_s)
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def _look_for_end(number: int, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            os.kill(number, 0)
        except OSError:
            return True
        time.sleep(0.05)
    return False


@click.command(cls=Command, is_local=True, examples=("fluss status", "fluss status --data-dir ./data --format json"))
@_data_dir_option
@pass_session
def status(session: Session, data_dir: Path | None) -> int:
    """Show whether a server runs here, and what answers.

    The exit code is 0 if one runs, and 3 if none does.
    """
    from fluss.server.data_dir import process_of

    directory = (data_dir or default_data_dir()).absolute()
    number = process_of(directory)
    record = _record(directory)
    facts: dict[str, Any] = {
        "state": "stopped" if number is None else "running",
        "process": number,
        "data_dir": str(directory),
    }
    if number is not None and record.get("process") == number:
        facts |= {key: record[key] for key in ("address", "page", "started", "log") if key in record}
        facts["answers"] = _answer(session, record["address"])
    session.out.record(facts)
    return Exit.OK if number is not None else Exit.NOT_FOUND


def _answer(session: Session, address: str) -> str:
    """Say whether clients come in."""
    from fluss.errors import FlussError

    session.server = address
    session.options = {"connect-timeout": "3000", "request-timeout": "3000", **session.options}
    try:
        return f"yes, with {format_count(len(session.admin.list_databases()), 'database')}"
    except FlussError as error:
        return f"no: {error.message}"
