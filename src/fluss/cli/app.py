"""``fluss``: the list of all commands, and what happens when one of them fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

import click

from fluss._version import __version__
from fluss.cli.kernel.commands import Group, Lazy, shared_options
from fluss.cli.kernel.cycles import look_seldom
from fluss.cli.kernel.exits import CommandError, Exit, ReaderGoneError, exit_code_of, sentence_of
from fluss.cli.kernel.session import Session
from fluss.errors import FlussError

PROGRAM: Final = "fluss"

_HELP: Final = """\
Streaming tables from a terminal: any cluster that speaks the Apache Fluss protocol, and a server of your own.

A table is named DATABASE.TABLE; without a database it is one of the database `fluss`. The cluster is that of --server,
else of FLUSS_BOOTSTRAP_SERVERS, else of the current profile, else localhost:9123.
"""
_EXAMPLES: Final = (
    "fluss serve --detach                              # a server on this machine",
    "fluss table create trips --from trips.parquet     # a table with the columns of a file",
    "fluss load trips.parquet trips",
    "fluss tail -f trips --filter 'km > 5'",
    'fluss sql "SELECT city, sum(km) FROM trips GROUP BY city"',
)

SECTIONS: Final = {
    "A server on this machine": {
        "serve": Lazy("fluss.cli.cluster.serving:serve", "Start a server, here or in the background."),
        "stop": Lazy("fluss.cli.cluster.serving:stop", "Stop a server that runs on this machine."),
        "status": Lazy("fluss.cli.cluster.serving:status", "Show whether a server runs here, and what answers."),
    },
    "Databases and tables": {
        "db": Lazy("fluss.cli.catalog.databases:databases", "List, create, drop and show databases."),
        "table": Lazy("fluss.cli.catalog.tables:tables", "List, create, show, alter and drop tables."),
        "partition": Lazy("fluss.cli.catalog.partitions:partitions", "List, add and drop partitions of a table."),
    },
    "Rows": {
        "load": Lazy("fluss.cli.rows.loading:load", "Load files into a table: Parquet, CSV, JSON lines, Arrow."),
        "dump": Lazy(
            "fluss.cli.rows.loading:dump", "Write the rows of a table to a file: Parquet, CSV, JSON lines, Arrow."
        ),
        "append": Lazy(
            "fluss.cli.rows.row_commands:append", "Append rows to a log table: JSON lines from standard input."
        ),
        "head": Lazy("fluss.cli.rows.row_commands:head", "Show some rows of a table."),
        "tail": Lazy("fluss.cli.rows.tailing:tail", "Show the newest records of a table, and those that come."),
        "get": Lazy("fluss.cli.rows.row_commands:get", "Look rows up by their keys."),
        "put": Lazy("fluss.cli.rows.row_commands:put", "Insert or replace rows of a primary-key table."),
        "delete": Lazy("fluss.cli.rows.row_commands:delete", "Delete rows of a primary-key table by their keys."),
    },
    "Positions": {
        "offsets": Lazy(
            "fluss.cli.cluster.offset_commands:offsets", "Show where the logs of a table begin and end, by bucket."
        ),
        "consumers": Lazy(
            "fluss.cli.cluster.offset_commands:consumers",
            "List the consumers of a table: who reads it by name, and how far behind they are.",
        ),
        "lag": Lazy("fluss.cli.cluster.offset_commands:lag", "Show how far consumers are behind, by bucket."),
    },
    "SQL": {
        "sql": Lazy("fluss.cli.sql.sql_commands:sql", "Run SQL over tables, one query or in a shell."),
    },
    "The cluster": {
        "health": Lazy(
            "fluss.cli.cluster.cluster_commands:health",
            "Show how the cluster is: its servers, and whether all replicas are there.",
        ),
        "top": Lazy(
            "fluss.cli.cluster.live:top",
            "Show what a cluster is doing, live: records per table, lag, requests, bytes, memory.",
        ),
        "bench": Lazy("fluss.cli.cluster.benching:bench", "Measure a cluster for a moment: writes, reads, lookups."),
        "config": Lazy("fluss.cli.cluster.cluster_commands:config", "Look at options, change them, and explain them."),
        "acl": Lazy("fluss.cli.cluster.security_commands:acls", "List, grant and revoke rights."),
        "user": Lazy(
            "fluss.cli.cluster.security_commands:users", "Keep a file of users, and make hashes of passwords."
        ),
    },
    "Between clusters, and with Spark": {
        "copy": Lazy(
            "fluss.cli.rows.copying:copy", "Copy a database or a table to another cluster, or to another name."
        ),
        "spark": Lazy(
            "fluss.cli.cluster.spark_commands:spark", "Run jobs on Spark: SQL, loads, exports, copies, tiering."
        ),
    },
    "Files at rest": {
        "log": Lazy("fluss.cli.cluster.at_rest:log", "Look into files of logs."),
        "kv": Lazy("fluss.cli.cluster.at_rest:kv", "Look into files of rows by key."),
        "backup": Lazy("fluss.cli.cluster.at_rest:backup", "Check a backup, and start a server from one."),
    },
    "This command": {
        "profile": Lazy(
            "fluss.cli.cluster.profile_commands:profiles", "Keep addresses and logins of clusters by name."
        ),
        "completion": Lazy("fluss.cli.completion:completion", "Print the completion of a shell."),
    },
}


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"Flussbett {__version__}")
        context.exit()


root = Group(
    PROGRAM,
    help=_HELP,
    sections=SECTIONS,
    examples=_EXAMPLES,
    params=[
        *shared_options(),
        click.Option(
            ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def run() -> NoReturn:
    """Be the program ``fluss``: run the command, and end the process.

    Most commands take less time than Python's own work around them. Taking everything apart in the end is a tenth of
    it, and nothing is left to be done there: connections are closed, and what was written is acknowledged.
    """
    _open_standard_streams()
    look_seldom()
    # Of numpy's linear algebra, which nothing here uses: its threads take longer to start than the rest of numpy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = main()
    if "pyspark" in sys.modules:
        # It ends its Java at the exit of Python.
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _open_standard_streams() -> None:
    """Have every standard stream lead somewhere: one that was closed would be the next connection's descriptor."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code. Nothing that goes wrong is shown as a traceback, unless asked for."""
    session = Session()
    try:
        try:
            result = root.main(
                None if arguments is None else list(arguments), PROGRAM, standalone_mode=False, obj=session
            )
            sys.stdout.flush()
            return int(result) if isinstance(result, int) else Exit.OK
        except (click.Abort, KeyboardInterrupt):
            session.abandon()
            raise
        finally:
            session.close()
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("\n")
        return Exit.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.UsageError as error:
        _tell_usage(error)
        return Exit.USAGE
    except CommandError as error:
        _tell(error.message, session, error)
        return error.code
    except click.ClickException as error:
        _tell(error.format_message(), session, error)
        return error.exit_code
    except FlussError as error:
        _tell(sentence_of(error), session, error)
        return exit_code_of(error)
    except (BrokenPipeError, ReaderGoneError):
        # The reader of the pipe is gone. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None else ""
        _tell(f"{named}{error.strerror or error}", session, error)
        return Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.FAILED
    except Exception as error:
        _tell(
            f"something unforeseen happened ({type(error).__name__}: {error}); run it again with --debug, and report "
            "what it shows",
            session,
            error,
        )
        return Exit.FAILED


def _tell(message: str, session: Session, error: BaseException) -> None:
    if session.debug:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    _write_error(message)


def _tell_usage(error: click.UsageError) -> None:
    message = error.format_message()
    message = f"{message[:1].lower()}{message[1:].rstrip('.')}" if message[:2].istitle() else message.rstrip(".")
    if error.ctx is not None and "--help" not in message and not message.endswith("?"):
        message += f"; `{error.ctx.command_path} --help` shows what can be given"
    _write_error(message)


def _write_error(message: str) -> None:
    from fluss.cli.kernel.values import shown_lines

    head = click.style("Error", fg="red") if _has_colours() else "Error"
    click.echo(f"{head}: {shown_lines(message)}", err=True)


def _has_colours() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
