"""``python -m fluss.server``: one server in one process, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# NumPy's algebra would start a thread per core, which a server has no use for. It asks when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import fluss.neighbours  # noqa: F401 - it looks for what would be in the way
from fluss._version import __version__
from fluss.errors import FlussError
from fluss.net.transport import run
from fluss.server.listener_parsing import PORT_MAX, address_text
from fluss.server.options.http_options import DEFAULT_HTTP_PORT
from fluss.server.options.listener_options import DEFAULT_LISTENER_NAME, DEFAULT_PORT
from fluss.server.options.process_options import Durability
from fluss.server.options.server_option import STANDARD_INPUT, Setting
from fluss.server.options.server_options import ServerOptions, is_secret_option, meaningless_variables, variable_of
from fluss.server.process import (
    LOG_FORMATS,
    LOG_LEVELS,
    FlussServer,
    log_to_stderr,
    prepare_process,
    request_stop,
    serve,
)
from fluss.server.restore import verify_backup
from fluss.server.security_files import HASH_COMMAND, hash_password
from fluss.storage.remote.file_systems import FileSystemOptions

_PROGRAM: Final = "python -m fluss.server"
_DEFAULT_HOST: Final = "127.0.0.1"
_DESCRIPTION: Final = """\
Start a Flussbett server: streaming tables on this machine, for every client that speaks the Apache Fluss protocol.
It says one line on standard output when clients can connect; everything else it has to say goes to standard error.
SIGTERM or Ctrl-C stops it in order, a second one at once. SIGHUP has it load certificates and users again.
"""
_EPILOG: Final = f"""\
examples:
  Keep data in ./data and listen on {_DEFAULT_HOST}:{DEFAULT_PORT}:
    {_PROGRAM} --data-dir ./data

  Let everybody in who reaches this machine, on another port; in a container, also tell clients a name that leads there:
    {_PROGRAM} --data-dir ./data --host 0.0.0.0 --port 9200 --insecure
    {_PROGRAM} --data-dir ./data --host 0.0.0.0 --insecure -D advertised.listeners=FLUSS://localhost:9123

  Ask users for a password (the file server.yaml):
    bind.listeners: CLIENT://0.0.0.0:9123
    security.protocol.map: CLIENT:SASL
    security.sasl.plain.credentials: alice:secret,bob:secret2
  and:
    {_PROGRAM} --data-dir ./data --config server.yaml
  Instead of a password its hash can stand there, which this command makes:
    {_PROGRAM} {HASH_COMMAND}

  Copy what is complete to remote storage, back up the rest, and replace a server that is gone:
    {_PROGRAM} --data-dir ./data -D remote.data.dir=/mnt/archive
    {_PROGRAM} --verify-backup /mnt/archive
    {_PROGRAM} --data-dir ./new-data --restore-from /mnt/archive

  Look at the server with a browser, and at its metrics:
    {_PROGRAM} --data-dir ./data --http

  Change one option, and look at what all of them are:
    {_PROGRAM} --data-dir ./data -D log.segment.file-size=256mb --print-config

An option has the value of the command line, else of the environment (data.dir is FLUSS_DATA_DIR), else of the file,
else its default.

exit codes: 0 stopped in order, or the backup is complete; 1 could not start or failed, or it is not; 2 wrong usage
"""

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server until it is stopped, or another command; tell what goes wrong, and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] == HASH_COMMAND:
        return hash_password(words[1:])
    try:
        return run_server(words)
    except (FlussError, OSError) as error:
        print(f"{_PROGRAM}: {error.message if isinstance(error, FlussError) else error}", file=sys.stderr)
        return 1


def run_server(argv: Sequence[str]) -> int:
    """Do what the arguments say, and return the exit code. What goes wrong is a FlussError or an OSError."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    log_to_stderr(arguments.log_level, arguments.log_format)
    options = _options(arguments, parser)
    for variable, hint in meaningless_variables(os.environ).items():
        logger.warning("the environment variable %s is no option of the server%s", variable, hint)
    if arguments.print_config:
        sys.stdout.write(options.explained())
        return 0
    if arguments.verify_backup is not None:
        return _verify_backup(arguments.verify_backup, options, parser)
    if arguments.config is not None:
        _warn_of_readable(arguments.config, options)
    prepare_process(options)
    run(_serve_until_signal(options))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where everything is kept; made if it is not there")
    parser.add_argument("--host", help=f"the address to listen on (default {_DEFAULT_HOST}: this machine only)")
    parser.add_argument(
        "--port", type=_port, help=f"the port to listen on (default {DEFAULT_PORT}; 0 takes a free one)"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="let other machines in without a password; without this word only SASL listeners take clients from there",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="options as YAML with dotted keys; - is standard input"
    )
    parser.add_argument(
        "--http",
        nargs="?",
        const=str(DEFAULT_HTTP_PORT),
        metavar="ADDRESS",
        help=f"show the server over HTTP: the page, /metrics, /health; host:port (default {_DEFAULT_HOST}:"
        f"{DEFAULT_HTTP_PORT}); the same as -D http.listener=ADDRESS",
    )
    parser.add_argument(
        "--durability",
        choices=[choice.value for choice in Durability],
        help="when a write counts: fsync when it is on the disk (default), os when the operating system has it",
    )
    parser.add_argument(
        "-D",
        dest="definitions",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set an option; may be repeated",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print every option with its value and where it comes from, and end"
    )
    parser.add_argument(
        "--restore-from",
        metavar="DIR",
        help="make the data directory, which must be new, from the backup in what was the remote.data.dir of a server",
    )
    parser.add_argument(
        "--verify-backup",
        nargs="?",
        const="",
        metavar="DIR",
        help="check that the backup in a remote directory (default: remote.data.dir) is complete, say so, and end",
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="(default info)")
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=LOG_FORMATS[0],
        help="text for people (default), or json: one object per line",
    )
    parser.add_argument("--version", action="version", version=f"Flussbett {__version__}")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port; take one from 0 to {PORT_MAX}")
    return int(text)


def _options(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> ServerOptions:
    """Put the command line, the environment and the file together."""
    given: dict[str, Setting] = {}
    for definition in arguments.definitions:
        key, equals, value = definition.partition("=")
        if not equals:
            # No more is repeated than what can be a key: the rest may be a password.
            parser.error(f"-D {re.split('[^a-zA-Z0-9._-]', key, maxsplit=1)[0]}: expected KEY=VALUE")
        key = key.strip()
        if is_secret_option(key):
            variable = variable_of(key)
            parser.error(
                f"-D {key}: every user of this machine can read the command line; write it into a file and give that "
                f"with --config, or - for standard input{f', or set the variable {variable}' if variable else ''}"
            )
        given[key] = Setting(value.strip(), "command line")
    if arguments.data_dir is not None:
        given[ServerOptions.data_dir.key] = Setting(arguments.data_dir, "--data-dir")
    if arguments.durability is not None:
        given[ServerOptions.durability.key] = Setting(arguments.durability, "--durability")
    if arguments.restore_from is not None:
        given[ServerOptions.backup_restore_from.key] = Setting(arguments.restore_from, "--restore-from")
    if arguments.http is not None:
        given[ServerOptions.http_address.key] = Setting(arguments.http, "--http")
    if arguments.insecure:
        given[ServerOptions.insecure_listeners_allowed.key] = Setting("true", "--insecure")
    options = ServerOptions.load(given, file=arguments.config)
    if arguments.host is not None or arguments.port is not None:
        listeners = options.setting(ServerOptions.bind_listeners)
        if not listeners.is_default:
            parser.error(f"--host and --port do not go with '{ServerOptions.bind_listeners.key}' ({listeners.origin})")
        host = arguments.host or _DEFAULT_HOST
        port = DEFAULT_PORT if arguments.port is None else arguments.port
        address = Setting(f"{DEFAULT_LISTENER_NAME}://{address_text(host, port)}", "--host and --port")
        options = ServerOptions.load({**given, ServerOptions.bind_listeners.key: address}, file=arguments.config)
    if not options.data_dir and not arguments.print_config and arguments.verify_backup is None:
        parser.error("say where to keep the data, for example --data-dir ./data")
    return options


def _verify_backup(location: str, options: ServerOptions, parser: argparse.ArgumentParser) -> int:
    location = location or next(iter(options.remote_locations), "")
    if not location:
        parser.error(f"say where the backup is: --verify-backup DIR, or set '{ServerOptions.remote_data_dir.key}'")
    return verify_backup(location, FileSystemOptions(options.file_system_properties), options.remote_locations)


def _warn_of_readable(path: Path, options: ServerOptions) -> None:
    """Log that others can read a file with passwords."""
    if path != STANDARD_INPUT and path.stat().st_mode & 0o077 and options.has_secrets_of(f"{path} line "):
        logger.warning("%s holds passwords, and other users of this machine may read it: chmod 600 %s", path, path)


async def _serve_until_signal(options: ServerOptions) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            # A second signal means not to wait for an orderly stop.
            os._exit(128 + number)
        request_stop(stop)

    reloads: set[asyncio.Task[None]] = set()

    def on_ready(server: FlussServer) -> None:
        def reload() -> None:
            task = loop.create_task(server.reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)
        _say_ready(server)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await serve(options, stop=stop, on_ready=on_ready)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _say_ready(server: FlussServer) -> None:
    where = ", ".join(str(listener) for listener in server.listeners)
    options = server.options
    print(
        f"Flussbett {__version__} ready on {where}, data in {server.data_dir}, durability {options.durability}"
        + (f", page at {server.http_url}" if server.http_url else ""),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
