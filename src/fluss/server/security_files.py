"""Files that say who may come in: users with hashed passwords, certificates. They are loaded again when they change.

The command that hashes a password for such a file is here, too.

A file of users has a line for each, ``user:hash``; the hashes are made by ``python -m fluss.server hash-password``.
Empty lines and those that begin with ``#`` do not count. Only its owner may read or write it.

A file that cannot be used any more changes nothing: what was loaded last stays, and the log says what is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import logging
import os
import secrets
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fluss.errors import FlussError
from fluss.net.tls import ServerCertificate, UnreadableFileError, file_stamp
from fluss.protocol.stored_password import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    StoredPassword,
    is_stored_form,
)
from fluss.server.listener_parsing import add_user

_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_SALT_KEY_FILE: Final = "scram-salt.key"
_SALT_KEY_BYTES: Final = 32

logger = logging.getLogger(__name__)


class UsersFile:
    """A file of users, as it was when it could last be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = file_stamp(path)
        self.users: Mapping[str, str] = read_users(path)

    def renew(self) -> bool:
        """Read the file again if it has changed since it was last read; return whether it had. Blocking.

        Raises FlussError if it cannot be used: then the users are those that they were.
        """
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.users = read_users(self._path)
        except UnreadableFileError:
            self._stamp = ()
            raise
        return True


def read_users(path: Path) -> dict[str, str]:
    """Return the users of a file with their hashed passwords. Raises FlussError with what is wrong. Blocking."""
    try:
        with open(path, encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise FlussError(f"{path} can be read or written by others than its owner; run: chmod 600 {path}")
            if status.st_size > _FILE_BYTES_MAX:
                raise FlussError(f"{path} has more than {_FILE_BYTES_MAX} bytes; is it the right file?")
            lines = file.read().splitlines()
    except OSError as error:
        raise UnreadableFileError(f"the file of users {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FlussError(f"{path} is not a text in UTF-8") from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = (part.strip() for part in line.partition(":"))
        if not colon or not is_stored_form(password):
            raise FlussError(
                f"{path} line {number} is not of the form user:hash; make the hash with "
                "'python -m fluss.server hash-password'"
            )
        try:
            add_user(users, name, password)
        except FlussError as error:
            raise FlussError(f"{path} line {number}: {error.message}") from None
    if not users:
        raise FlussError(f"{path} has no users; add a line user:hash")
    return users


def load_salt_key(data_dir: Path) -> bytes:
    """Return the key for the salts of users that do not exist, made at the first time. Blocking.

    It is kept so that such a salt is the same after a restart, as those of other users are.
    """
    path = data_dir / _SALT_KEY_FILE
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) == _SALT_KEY_BYTES:
        return key
    key = secrets.token_bytes(_SALT_KEY_BYTES)
    unfinished = path.with_suffix(".tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(key)
    os.replace(unfinished, path)
    return key


class SecurityFiles:
    """All such files of a server, looked at together."""

    def __init__(self) -> None:
        self._renewals: list[tuple[str, Callable[[], bool], Callable[[], None]]] = []
        # Why they could not be read: it is tried again each time, and said once.
        self._unreadable: dict[str, str] = {}
        self._lock = asyncio.Lock()

    def add_certificate(self, listener_name: str, certificate: ServerCertificate) -> None:
        """Renew the certificate of a listener when its files change."""
        self._renewals.append((f"the certificate of listener {listener_name}", certificate.renew, lambda: None))

    def add_users(self, file: UsersFile, on_change: Callable[[], None]) -> None:
        """Read users again when their file changes; ``on_change`` is called on the event loop."""
        self._renewals.append(("the file of users", file.renew, on_change))

    @property
    def is_empty(self) -> bool:
        return not self._renewals

    async def renew(self) -> None:
        """Load again what has changed."""
        async with self._lock:
            for what, renew, on_change in self._renewals:
                try:
                    if await asyncio.to_thread(renew):
                        on_change()
                        logger.info("%s was loaded again", what)
                    self._unreadable.pop(what, None)
                except FlussError as error:
                    is_said = self._unreadable.pop(what, None) == error.message
                    if isinstance(error, UnreadableFileError):
                        self._unreadable[what] = error.message
                    if not is_said:
                        logger.error("%s stays as it was: %s", what, error.message)


HASH_COMMAND: Final = "hash-password"
_PROGRAM: Final = f"python -m fluss.server {HASH_COMMAND}"
_DESCRIPTION: Final = """\
Hash a password for a server's configuration. The password is read from the terminal, or from standard input if that is
not one; it is never an argument, where every user of the machine could read it. The hash can stand wherever a server's
options have a password. It lets users log in by PLAIN and by SCRAM-SHA-256.
"""
_EPILOG: Final = f"""\
examples:
  A line for the file that 'security.sasl.users.file' names:
    {_PROGRAM} --user alice >> users; chmod 600 users

  From a program that keeps passwords:
    pass show fluss/alice | {_PROGRAM}
"""


def hash_password(arguments: Sequence[str]) -> int:
    """Read a password and print its hash, for ``python -m fluss.server hash-password``; return the exit code."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--user", help="print user:hash, a line for a file of users")
    parser.add_argument(
        "--iterations",
        type=_iterations,
        default=ITERATIONS_DEFAULT,
        help=f"how much work each guess is, for an attacker and for logging in (default {ITERATIONS_DEFAULT}). Give "
        "all users the same number",
    )
    parsed = parser.parse_args(arguments)
    try:
        stored = str(StoredPassword.of(_read_password(), iterations=parsed.iterations))
        if parsed.user is not None:
            add_user({}, parsed.user, stored)
            if any(character in parsed.user for character in ":,#\n") or parsed.user != parsed.user.strip():
                raise FlussError("a user name in a file has no colon, comma or #, and no blanks around it")
            stored = f"{parsed.user}:{stored}"
    except FlussError as error:
        print(f"{_PROGRAM}: {error.message}", file=sys.stderr)
        return 1
    print(stored)
    return 0


def _read_password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise FlussError("the two are not the same; try again")
    return password


def _iterations(text: str) -> int:
    if not text.isdecimal() or not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return int(text)
