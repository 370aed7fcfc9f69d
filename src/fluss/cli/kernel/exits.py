"""Exit codes, and how a failure is told: one sentence on standard error that says what to do next."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import click

from fluss.errors import ErrorCode, FlussError


class Exit(IntEnum):
    """What the exit code of the command means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    REFUSED = 5
    DATA = 6
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXIT_MEANINGS: Final = {
    Exit.OK: "done",
    Exit.FAILED: "it could not be done; the sentence on standard error says why",
    Exit.USAGE: "wrong usage: an unknown command or option, or a value that cannot be",
    Exit.NOT_FOUND: "a database, table, partition, row, profile or file is not there",
    Exit.UNREACHABLE: "no server answers, or not in time",
    Exit.REFUSED: "wrong user or password, or no right to do this",
    Exit.DATA: "data is damaged, or some rows did not fit, or two sides differ",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
    Exit.BROKEN_PIPE: "the program that reads the output has ended",
}

_CODES: Final = {
    ErrorCode.NETWORK_EXCEPTION: Exit.UNREACHABLE,
    ErrorCode.REQUEST_TIME_OUT: Exit.UNREACHABLE,
    ErrorCode.DATABASE_NOT_EXIST: Exit.NOT_FOUND,
    ErrorCode.TABLE_NOT_EXIST: Exit.NOT_FOUND,
    ErrorCode.PARTITION_NOT_EXISTS: Exit.NOT_FOUND,
    ErrorCode.SCHEMA_NOT_EXIST: Exit.NOT_FOUND,
    ErrorCode.AUTHENTICATE_EXCEPTION: Exit.REFUSED,
    ErrorCode.AUTHORIZATION_EXCEPTION: Exit.REFUSED,
    ErrorCode.SECURITY_DISABLED_EXCEPTION: Exit.REFUSED,
    ErrorCode.CORRUPT_RECORD_EXCEPTION: Exit.DATA,
}
# What to do next, where the message of the library cannot know that there is a command.
_NEXT_STEPS: Final = {
    ErrorCode.NETWORK_EXCEPTION: "`fluss serve` starts a server here, --server or a profile names another one",
    ErrorCode.REQUEST_TIME_OUT: "look at `fluss health`, or wait longer with -o request-timeout=60000",
    ErrorCode.DATABASE_NOT_EXIST: "`fluss db ls` shows those that there are",
    ErrorCode.TABLE_NOT_EXIST: "`fluss table ls` shows those that there are",
    ErrorCode.PARTITION_NOT_EXISTS: "`fluss partition ls TABLE` shows those that there are",
    ErrorCode.AUTHENTICATE_EXCEPTION: "give --user and --password-file, or a profile that has them",
    ErrorCode.AUTHORIZATION_EXCEPTION: "somebody who may has to allow it, with `fluss acl grant`",
    ErrorCode.DATABASE_ALREADY_EXIST: "--if-not-exists takes one that is there",
    ErrorCode.TABLE_ALREADY_EXIST: "--if-not-exists takes one that is there, `fluss table drop` drops it",
    ErrorCode.DATABASE_NOT_EMPTY: "--cascade drops its tables, too",
    ErrorCode.PARTITION_ALREADY_EXISTS: "--if-not-exists takes one that is there",
    ErrorCode.UNSUPPORTED_VERSION: "this server cannot do it, a newer one may",
    ErrorCode.SECURITY_DISABLED_EXCEPTION: "the servers have to be started with 'authorizer.enabled: true'",
}


class CommandError(click.ClickException):
    """A failure that the command itself has found: a sentence with the next step, and its exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


class ReaderGoneError(Exception):
    """The program that reads the output has ended, as `head` does when it has seen enough."""


def exit_code_of(error: FlussError) -> Exit:
    """Return the exit code for an error of the library."""
    return _CODES.get(ErrorCode(error.error_code), Exit.FAILED) if _is_known(error.error_code) else Exit.FAILED


def sentence_of(error: FlussError) -> str:
    """Return what an error says, with the next step if there is a command for it."""
    # The library names the program of the server; here there is a command.
    message = error.message.partition(" This starts one: ")[0].strip()
    step = _NEXT_STEPS.get(ErrorCode(error.error_code)) if _is_known(error.error_code) else None
    if step is None or "fluss" in message.rpartition("`")[0]:
        return message
    return f"{message} {step[0].upper()}{step[1:]}" if message.endswith("?") else f"{message.rstrip('.')}; {step}"


def _is_known(code: int) -> bool:
    return code in ErrorCode._value2member_map_
