"""``python -m fluss.server hash-password``: turns a password into what can stand in a configuration instead of it."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Sequence
from typing import Final

from fluss.errors import FlussError
from fluss.protocol.stored_password import ITERATIONS_DEFAULT, ITERATIONS_MAX, ITERATIONS_MIN, StoredPassword
from fluss.server.listener_parsing import add_user

COMMAND: Final = "hash-password"
_PROGRAM: Final = f"python -m fluss.server {COMMAND}"
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


def main(arguments: Sequence[str]) -> int:
    """Read a password and print its hash; return the exit code."""
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
