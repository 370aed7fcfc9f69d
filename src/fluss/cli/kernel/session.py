"""What all commands of one call share: the options of all commands, the connection, the output."""

from __future__ import annotations

import math
import os
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fluss.cli.kernel.exits import CommandError, Exit

if TYPE_CHECKING:
    from fluss import FlussTable, blocking
    from fluss.cli.kernel.output import Output
    from fluss.config import Config

T = TypeVar("T")

SERVERS_KEY: Final = "bootstrap.servers"
PASSWORD_KEY: Final = "security.sasl.password"
SERVERS_VARIABLE: Final = "FLUSS_BOOTSTRAP_SERVERS"
PASSWORD_VARIABLE: Final = "FLUSS_PASSWORD"
DEFAULT_SERVER: Final = "localhost:9123"
DEFAULT_DATABASE: Final = "fluss"
# People do not wait two minutes for a machine that is not there. Programs have `-o connect-timeout=...`.
_CONNECT_TIMEOUT_MS: Final = "15000"
_PASSWORD_CHARS_MAX: Final = 64 * 1024
# A server that takes longer than this for a single batch is taken for one that has stopped.
_STORED_S: Final = 10.0
# Rows that were typed before Ctrl-C are stored in this time by a server that works.
_ABANDONED_S: Final = 2.0


@dataclass
class Session:
    """One call of the command. Options come from wherever they were given; the connection is made when it is needed."""

    server: str | None = None
    profile: str | None = None
    user: str | None = None
    password_file: str | None = None
    ca: str | None = None
    tls: bool = False
    options: dict[str, str] = field(default_factory=dict)
    output_format: str = "table"
    debug: bool = False
    _open: ExitStack = field(default_factory=ExitStack, repr=False)

    @cached_property
    def out(self) -> Output:
        """Where results go."""
        from fluss.cli.kernel.output import Output

        return Output(self.output_format)

    def client_options(self) -> dict[str, str]:
        """Put the profile, the environment and the command line together, the later ones first in rank."""
        from fluss.cli.kernel.profiles import PROFILE_VARIABLE, Profiles

        options = {"connect-timeout": _CONNECT_TIMEOUT_MS, SERVERS_KEY: DEFAULT_SERVER}
        name = self.profile or os.environ.get(PROFILE_VARIABLE)
        if name is None and self.server is None and not os.environ.get(SERVERS_VARIABLE):
            # One that was chosen once and for all, unless a server is named.
            name = Profiles.load().current
        if os.environ.get(SERVERS_VARIABLE):
            options[SERVERS_KEY] = os.environ[SERVERS_VARIABLE]
        if name is not None:
            options |= Profiles.load().options(name)
        if self.server is not None:
            options[SERVERS_KEY] = self.server
        options |= self.login_options(options)
        return options | self.options

    def login_options(self, before: dict[str, str]) -> dict[str, str]:
        """Return the options that --user, --password-file, --tls and --ca stand for."""
        options: dict[str, str] = {}
        if self.user is not None:
            options["security.sasl.username"] = self.user
        password = self._password
        if password is not None:
            options[PASSWORD_KEY] = password
        if self.ca is not None:
            options["security.ssl.ca"] = self.ca
        protocol = before.get("security.protocol", "PLAINTEXT").lower()
        has_sasl = self.user is not None or "sasl" in protocol
        has_tls = self.tls or self.ca is not None or "ssl" in protocol
        if self.user is not None or self.tls or self.ca is not None:
            options["security.protocol"] = ("sasl_ssl" if has_tls else "sasl") if has_sasl else "ssl"
        return options

    @cached_property
    def _password(self) -> str | None:
        """The password, which standard input has once."""
        if self.password_file is None:
            found = os.environ.get(PASSWORD_VARIABLE)
            return found if found and self.user is not None else None
        if self.password_file == "-":
            return _line_of_standard_input().rstrip("\r\n")
        try:
            return Path(self.password_file).read_text(encoding="utf-8")[:_PASSWORD_CHARS_MAX].rstrip("\r\n")
        except UnicodeDecodeError:
            raise CommandError(
                f"the password cannot be read from {self.password_file}: it is no text in UTF-8", Exit.DATA
            ) from None
        except OSError as error:
            raise CommandError(
                f"the password cannot be read from {self.password_file}: {error.strerror}", Exit.NOT_FOUND
            ) from None

    def config(self) -> Config:
        """Return the options as the client takes them."""
        from fluss.config import Config

        return Config(dict(self.client_options()))

    def creates_partitions(self) -> None:
        """Have writers create partitions that rows belong to; to be said before anything is connected."""
        assert "connection" not in self.__dict__, "options are those of the connection"
        self.options.setdefault("client.writer.create-missing-partitions", "true")

    @cached_property
    def connection(self) -> blocking.FlussConnection:
        """The connection of this call. It is closed at its end."""
        from fluss import blocking
        from fluss.cli.kernel.log_lines import shown_log_lines

        self._open.enter_context(shown_log_lines(is_debug=self.debug))
        return self._open.enter_context(blocking.connect(self.config()))

    @property
    def admin(self) -> blocking.FlussAdmin:
        """The admin of the cluster."""
        return self.connection.get_admin()

    def table(self, path: str) -> blocking.FlussTable:
        """Return a table as it is now."""
        return self.connection.get_table(path)

    def plain_table(self, path: str) -> FlussTable:
        """Return a table for exact reads and writes, which go by its plain form."""
        from fluss import FlussConnection
        from fluss.client.bulk import wait_for

        connection = self._open.enter_context(wait_for(FlussConnection.create(self.config())))
        return wait_for(connection.get_table(path))

    def finish(self, writer: blocking.AppendWriter | blocking.UpsertWriter) -> None:
        """Wait until everything that was written is stored, and close; or raise what could not be stored, and why.

        Closing gives what is left a limit, ``request-timeout``. That is for a server that has stopped to store: the
        rest of a large file may take longer, and waits as long as some of it is stored every now and then.
        """
        from fluss.errors import RequestTimeoutError

        before, left = math.inf, self._unsent_bytes()
        while 0 < left < before:
            with suppress(RequestTimeoutError):
                writer.flush(timeout=_STORED_S)
            before, left = left, self._unsent_bytes()
        self.close()

    def _unsent_bytes(self) -> float:
        return self.connection.metrics().values()["fluss_client_unsent_bytes", ()]

    def keep(self, context: Any) -> Any:
        """Enter a context that is left at the end of the call."""
        return self._open.enter_context(context)

    def abandon(self) -> None:
        """Close at once, for a user who has pressed Ctrl-C: what is not stored by then may be stored or not."""
        from fluss.errors import FlussError

        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            with suppress(FlussError):
                connection.close(timeout=_ABANDONED_S)
        with suppress(FlussError):
            self._open.close()

    def close(self) -> None:
        """Close what was opened; what was written is stored then, or the reason is raised."""
        self.__dict__.pop("connection", None)
        self._open.close()


def _line_of_standard_input() -> str:
    """Read a line and nothing behind it: the rest is for who reads the rows."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < _PASSWORD_CHARS_MAX:
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode(errors="replace")


pass_session = click.make_pass_decorator(Session, ensure=True)


def require_server() -> None:
    """Say what is missing where a client alone is installed."""
    if find_spec("rocksdict") is None:
        raise CommandError("a server needs more libraries than a client has: pip install 'flussbett[server]'")


def full_name(table: str) -> str:
    """Return ``database.table``; a table without a database is one of the database ``fluss``."""
    return table if "." in table else f"{DEFAULT_DATABASE}.{table}"
