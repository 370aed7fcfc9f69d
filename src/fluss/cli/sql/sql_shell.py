r"""The shell of ``fluss sql``: statements over several lines, commands that begin with ``\``, history, completion."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from fluss.amounts import format_count
from fluss.cli.kernel.exits import CommandError, sentence_of
from fluss.cli.kernel.output import FORMATS, Output
from fluss.cli.kernel.session import Session, full_name
from fluss.cli.sql.show_statements import table_names
from fluss.cli.sql.sql_answers import show
from fluss.cli.sql.sql_engine import SqlEngine
from fluss.errors import FlussError

_PROMPT: Final = "fluss> "
_CONTINUED: Final = "   ... "
_HISTORY_LINES: Final = 10_000
_KEYWORDS: Final = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "HAVING", "WITH", "AS", "AND", "OR"),
    *(
        "NOT",
        "IN",
        "LIKE",
        "BETWEEN",
        "IS NULL",
        "COUNT(*)",
        "SUM(",
        "AVG(",
        "MIN(",
        "MAX(",
        "DISTINCT",
        "CREATE TABLE",
    ),
)
_HELP: Final = r"""\d            list the tables
\d TABLE      show the columns of a table
\l            list the databases
\f FORMAT     print as table, json or csv
\o FILE       write the next answers to a Parquet, CSV, JSON or Arrow file; \o alone prints again
\t            show or hide how long each statement took
\? \q         this list; leave (or Ctrl-D)
A statement ends with a semicolon. Ctrl-C gives up what is typed or running."""


def history_path() -> Path:
    """Return where the lines of earlier shells are."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fluss" / "sql_history"


class SqlShell:
    """Reads lines until Ctrl-D."""

    def __init__(self, session: Session, engine: SqlEngine) -> None:
        self._session = session
        self._engine = engine
        self._is_timed = True
        self._output: str | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "d": self._describe,
            "l": self._databases,
            "f": self._format,
            "o": self._redirect,
            "t": self._timing,
            "?": lambda _: self._session.out.say(_HELP),
        }

    def run(self) -> None:
        """Run statements and commands."""
        # The first question to the cluster: what is wrong with it is told before a prompt.
        count = len(self._tables())
        with _LineEditing(self._words):
            self._session.out.say(f"{format_count(count, 'table')}; \\d lists them, \\? shows all commands.")
            pending = ""
            while True:
                try:
                    line = input(_CONTINUED if pending else _PROMPT)
                    if not pending and line.strip() in ("\\q", "exit", "quit"):
                        return
                    pending = self._take(pending, line)
                except EOFError:
                    self._session.out.say("")
                    return
                except KeyboardInterrupt:
                    pending = ""
                    self._session.out.say("^C")

    def _take(self, pending: str, line: str) -> str:
        """Run what is complete with a line, and return what is not."""
        if not pending and line.lstrip().startswith("\\"):
            self._guarded(lambda: self._command(line.strip()[1:]))
            return ""
        text = f"{pending}{line}\n"
        if not text.strip():
            return ""
        if not text.rstrip().endswith(";"):
            return text
        self._guarded(lambda: self._statements(text))
        return ""

    def _guarded(self, work: Callable[[], None]) -> None:
        """Tell what goes wrong, and go on."""
        try:
            work()
        except FlussError as error:
            click.echo(f"Error: {sentence_of(error)}", err=True)
        except click.ClickException as error:
            click.echo(f"Error: {error.format_message()}", err=True)
        except Exception as error:
            # One statement is no reason to lose all that was typed.
            click.echo(f"Error: something unforeseen happened ({type(error).__name__}: {error})", err=True)

    def _statements(self, text: str) -> None:
        for statement in self._engine.statements(text):
            begun_s = time.monotonic()
            answer = self._engine.run(statement)
            count = show(self._session, answer, self._output)
            if self._is_timed and count is not None and self._output is None:
                way = f", {answer.way}" if answer.way else ""
                took_s = time.monotonic() - begun_s
                self._session.out.note(f"{count:,} row{'' if count == 1 else 's'}{way} ({took_s:.3f} s)")

    # Commands

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise CommandError(f"there is no \\{name}; \\? shows all commands")
        command(argument.strip().rstrip(";"))

    def _describe(self, table: str) -> None:
        if not table:
            self._session.out.rows(("table",), [(name,) for name in self._tables()], empty="no tables yet")
            return
        info = self._session.admin.get_table_info(full_name(table))
        rows = [
            (column.name, str(column.data_type), "primary" if column.name in info.primary_keys else "", column.comment)
            for column in info.schema.columns
        ]
        self._session.out.rows(("column", "type", "key", "comment"), rows)

    def _tables(self) -> list[str]:
        return table_names(self._session.admin)

    def _databases(self, _: str) -> None:
        self._session.out.rows(("database",), [(name,) for name in sorted(self._session.admin.list_databases())])

    def _format(self, name: str) -> None:
        if name not in FORMATS:
            raise CommandError(f"a format is {', '.join(FORMATS)}")
        self._session.output_format = name
        self._session.__dict__["out"] = Output(name)

    def _redirect(self, path: str) -> None:
        self._output = path or None

    def _timing(self, _: str) -> None:
        self._is_timed = not self._is_timed

    # Completion

    def _words(self) -> list[str]:
        words = [*_KEYWORDS, *(f"\\{name}" for name in self._commands)]
        with suppress(FlussError):
            names = self._tables()
            words += names
            for name in names[:20]:
                words += self._session.admin.get_table_info(full_name(name)).schema.column_names
        return list(dict.fromkeys(words))


class _LineEditing:
    """Editing with a history and completion, if Python has readline. A context manager that keeps the history."""

    def __init__(self, words: Callable[[], list[str]]) -> None:
        self._words = words
        self._known: list[str] | None = None
        self._path = history_path()

    def __enter__(self) -> None:
        try:
            import readline
        except ImportError:
            return
        with suppress(OSError):
            readline.read_history_file(self._path)
        readline.set_history_length(_HISTORY_LINES)
        readline.set_completer(self._complete)
        readline.set_completer_delims(" \t\n,()=<>;")
        readline.parse_and_bind("tab: complete")

    def __exit__(self, *exception: object) -> None:
        readline = sys.modules.get("readline")
        if readline is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(self._path)
            # There may be values in it that other users must not see.
            self._path.chmod(0o600)

    def _complete(self, text: str, number: int) -> str | None:
        if self._known is None:
            # Asked for once, when the first word is to be completed.
            self._known = self._words()
        matching = [word for word in self._known if word.lower().startswith(text.lower())]
        return matching[number] if number < len(matching) else None
