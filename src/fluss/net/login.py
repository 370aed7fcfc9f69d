"""The server's side of logging in: tokens in; challenges, and guesses that have to be checked, out.

    login.take(mechanism, token)  ->  bytes    a challenge: answer with it, the attempt goes on with the next token
                                  ->  Guess    ``await guess.check()`` says who it is, or raises AuthenticationError

Nothing is spent on a token before its guess is checked, so the caller of ``check`` decides when, and how often. Hashing
a password happens in threads, and only so many may wait for it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from fluss.errors import AuthenticationError, ErrorCode, FlussError
from fluss.protocol import sasl, scram
from fluss.protocol.sasl import CredentialsChecker, Principal, UserTable
from fluss.protocol.scram import ScramServer

T = TypeVar("T")

# One may be busy with a guess while the other checks a friend. More would only take time from everything else.
_HASHING_THREADS: Final = 2
# At about 50 ms each, the last one waits less than a client does.
_HASHINGS_MAX: Final = 64


@runtime_checkable
class Users(Protocol):
    """The users of a listener. A table is one of them; another may have a new table after a while."""

    @property
    def table(self) -> UserTable: ...


# A function can check passwords for PLAIN, and nothing else.
UserSource: TypeAlias = Users | CredentialsChecker


class PasswordHashing:
    """Threads that hash passwords. Belongs to one event loop; they are started when first needed."""

    def __init__(self, *, waiting_max: int = _HASHINGS_MAX) -> None:
        self._waiting_max = waiting_max
        self._count = 0
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread; raise code 51, which clients repeat, if too many wait already."""
        if self._count >= self._waiting_max:
            raise FlussError("too many logins are being checked; try again", ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_HASHING_THREADS, thread_name_prefix="fluss-login")
        self._count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        finally:
            self._count -= 1

    def close(self) -> None:
        """Start no more of what waits. May be called again."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Success:
    """Who has logged in, the last word of the mechanism, and the version of the password (``UserTable.version_of``)."""

    principal: Principal
    challenge: bytes = field(default=b"", repr=False)
    version: bytes | None = field(default=None, repr=False)


class Guess(ABC):
    """A password, or the proof of one, that has arrived and was not looked at yet."""

    def __init__(self, username: str) -> None:
        self.username = username

    @abstractmethod
    async def check(self) -> Success:
        """Return who it is. Raises AuthenticationError if the guess is wrong, or code 51 to be tried again."""


class _FunctionGuess(Guess):
    def __init__(self, check: CredentialsChecker, username: str, password: str) -> None:
        super().__init__(username)
        self._check = check
        self._password = password

    async def check(self) -> Success:
        if not self._check(self.username, self._password):
            raise sasl.wrong_login()
        return Success(Principal("User", self.username))


class _TableGuess(Guess):
    """A guess that is checked with a table; it counts only if the user's password is still the same afterwards."""

    def __init__(self, users: Users, table: UserTable, hashing: PasswordHashing, username: str) -> None:
        super().__init__(username)
        self._users = users
        self._table = table
        self._hashing = hashing

    async def check(self) -> Success:
        challenge = await self._proven()
        version = self._table.version_of(self.username)
        if challenge is None or version is None or version != self._users.table.version_of(self.username):
            raise sasl.wrong_login()
        return Success(Principal("User", self.username), challenge, version)

    @abstractmethod
    async def _proven(self) -> bytes | None:
        """Return the last word of the mechanism, or None if the guess is wrong."""


class _PlainGuess(_TableGuess):
    def __init__(self, users: Users, hashing: PasswordHashing, username: str, password: str) -> None:
        super().__init__(users, users.table, hashing, username)
        self._password = password

    async def _proven(self) -> bytes | None:
        is_right = self._table.check_at_once(self.username, self._password)
        if is_right is None:
            is_right = await self._hashing.run(partial(self._table.check_by_hashing, self.username, self._password))
        return b"" if is_right else None


class _ScramGuess(_TableGuess):
    def __init__(self, users: Users, table: UserTable, hashing: PasswordHashing, exchange: ScramServer) -> None:
        super().__init__(users, table, hashing, exchange.username)
        self._exchange = exchange

    async def _proven(self) -> bytes | None:
        keys = self._table.keys_at_once(self.username)
        signature = None if keys is None else self._exchange.signature(keys)
        if signature is None and self._table.has_clear_passwords:
            keys = await self._hashing.run(partial(self._table.hashed_keys, self.username))
            signature = self._exchange.signature(keys)
        return signature


class Login:
    """The attempts of one connection to log in, one after the other."""

    def __init__(self, users: UserSource, mechanisms: tuple[str, ...], hashing: PasswordHashing) -> None:
        self._users = users
        self._mechanisms = mechanisms
        self._hashing = hashing
        # An exchange of SCRAM whose challenge was sent, with the table that it was made from.
        self._begun: tuple[ScramServer, UserTable] | None = None

    def take(self, mechanism: str, token: bytes) -> bytes | Guess:
        """Take a client's next token; see the top of this module. Raises AuthenticationError if it is none."""
        begun, self._begun = self._begun, None
        if mechanism not in self._mechanisms:
            raise AuthenticationError(
                f"the SASL mechanism of this listener is {' or '.join(self._mechanisms)}; log in with that"
            )
        sasl.check_token_size(token)
        if mechanism == scram.MECHANISM:
            return self._take_scram(begun, token)
        username, password = sasl.parse_plain_token(token)
        if isinstance(self._users, Users):
            return _PlainGuess(self._users, self._hashing, username, password)
        return _FunctionGuess(self._users, username, password)

    def _take_scram(self, begun: tuple[ScramServer, UserTable] | None, token: bytes) -> bytes | Guess:
        assert isinstance(self._users, Users), "a function of name and password cannot check a proof"
        if begun is None:
            table = self._users.table
            exchange = ScramServer(table.salt_of)
            challenge = exchange.first(token)
            self._begun = (exchange, table)
            return challenge
        exchange, table = begun
        exchange.final(token)
        return _ScramGuess(self._users, table, self._hashing, exchange)
