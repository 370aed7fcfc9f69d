"""Logging in on one connection: a token waits for its turn, is checked, and the session is told who it is."""

from __future__ import annotations

import asyncio
from typing import Final

from fluss.errors import AuthenticationError, FlussError
from fluss.net.login import Guess, Login, PasswordHashing, Success, Users, UserSource
from fluss.net.login_throttle import LoginThrottle
from fluss.protocol.sasl import Principal
from fluss.protocol.session import ServerEvent, ServerSession, TokenReceived

# After so many wrong passwords a client has to connect again. Otherwise one packet could carry hundreds of guesses.
_FAILED_LOGINS_MAX: Final = 5
# How often it is looked whether it is a guess's turn.
_LOGIN_CHECK_S: Final = 0.25
# When a client is told to try again, because its guess would have to wait for too long.
_TRY_AGAIN_S: Final = 1.0


async def check_in_turn(throttle: LoginThrottle, address: str, guess: Guess) -> Success:
    """Check a guess when it is its turn. Raises AuthenticationError, or code 51 if the client is to try again."""
    try:
        attempt = throttle.begin(address, guess.username)
    except FlussError:
        # At once, it would be an invitation to ask at once again.
        await asyncio.sleep(_TRY_AGAIN_S)
        raise
    try:
        while (wait_s := attempt.wait_s) > 0:
            await asyncio.sleep(min(wait_s, _LOGIN_CHECK_S))
        success = await guess.check()
    except AuthenticationError:
        raise
    except BaseException:
        attempt.withdraw()
        raise
    attempt.succeeded()
    return success


class ConnectionLogin:
    """The logins of one client, which may log in again as long as it is the same user."""

    def __init__(
        self, users: UserSource, mechanisms: tuple[str, ...], hashing: PasswordHashing, throttle: LoginThrottle
    ) -> None:
        self._users = users
        self._login = Login(users, mechanisms, hashing)
        self._throttle = throttle
        self._failed_count = 0
        # Who has logged in last, and the version of the password.
        self._success: Success | None = None

    async def outcome(self, session: ServerSession, address: str, event: TokenReceived) -> list[ServerEvent]:
        """Return what follows from a token. Raises AuthenticationError, or code 51 if the client is to try again."""
        taken = self._login.take(event.mechanism, event.token)
        if not isinstance(taken, Guess):
            return session.challenge(event.request_id, taken)
        success = await self._checked(address, taken)
        if session.principal not in (None, success.principal):
            raise AuthenticationError("a connection has one user; log in as another one on a new connection")
        self._success = success
        return session.authenticated(event.request_id, success.principal, success.challenge)

    async def _checked(self, address: str, guess: Guess) -> Success:
        if self._failed_count >= _FAILED_LOGINS_MAX:
            raise AuthenticationError("too many failed logins; connect again")
        try:
            return await check_in_turn(self._throttle, address, guess)
        except AuthenticationError:
            self._failed_count += 1
            raise

    def take_outdated(self) -> Principal | None:
        """Return the user if it has another password by now than the one it has logged in with. Tells it once."""
        success = self._success
        if success is None or success.version is None or not isinstance(self._users, Users):
            return None
        if self._users.table.version_of(success.principal.name) == success.version:
            return None
        self._success = None
        return success.principal
