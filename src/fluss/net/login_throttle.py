"""Guessing passwords is slow: a guess is checked when its address and its user have a token left.

A right password costs nothing: its tokens are given back. A wrong one costs a token of the address and one of the user,
so that neither many users from one address nor one user from many addresses can be tried quickly. So that guessing a
user's password does not lock out that user, an address from which the user has come in before has tokens of its own for
it, and needs none of those that strangers use up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.token_bucket import RecentlyUsed, TokenBucket

# Mistakes at once, and then one every two seconds: of one address, and of a user at an address that it has come from.
_ADDRESS_GUESSES: Final = 5
_ADDRESS_GUESSES_PER_S: Final = 0.5
# Of one user, from all addresses that it has never come from.
_USER_GUESSES: Final = 10
_USER_GUESSES_PER_S: Final = 2.0
# Who would have to wait longer is told to try again: a client waits for an answer only so long.
_WAIT_S_MAX: Final = 10.0
# What is remembered of each kind; of more, what was used longest ago is forgotten. A name is remembered by its hash, so
# that long names take no more memory than short ones.
_REMEMBERED_MAX: Final = 10_000


class LoginAttempt:
    """A guess that waits for its turn. It ends with ``succeeded`` or ``withdraw``; otherwise it has cost its tokens."""

    def __init__(self, throttle: LoginThrottle, key: tuple[str, int], buckets: tuple[TokenBucket, ...]) -> None:
        self._throttle = throttle
        self._key = key
        self._buckets = buckets
        now_s = throttle.clock()
        self._ready_at_s = now_s + max(bucket.take(1, now_s) for bucket in buckets)

    @property
    def wait_s(self) -> float:
        """How long the guess has to wait from now on before it is checked."""
        return max(0.0, self._ready_at_s - self._throttle.clock())

    def withdraw(self) -> None:
        """The guess was not checked."""
        for bucket in self._buckets:
            bucket.give_back(1, self._throttle.clock())

    def succeeded(self) -> None:
        """The password was right: it was no guess, and its address is one that the user comes from."""
        self.withdraw()
        self._throttle.remember(self._key)


class LoginThrottle:
    """Says when a guess may be checked. One for all listeners of a server; belongs to its event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._addresses = RecentlyUsed[str](_ADDRESS_GUESSES_PER_S, _ADDRESS_GUESSES, count_max=_REMEMBERED_MAX)
        self._users = RecentlyUsed[int](_USER_GUESSES_PER_S, _USER_GUESSES, count_max=_REMEMBERED_MAX)
        # Where users have come from, with the tokens that they have there.
        self._known: OrderedDict[tuple[str, int], TokenBucket] = OrderedDict()

    def begin(self, address: str, username: str) -> LoginAttempt:
        """Let a guess wait for its turn. Raises code 51, which clients repeat, if that would take too long."""
        key = (address, hash(username))
        now_s = self.clock()
        known = self._known.get(key)
        if known is not None:
            buckets: tuple[TokenBucket, ...] = (known,)
        else:
            buckets = (self._addresses.get(address, now_s), self._users.get(key[1], now_s))
        attempt = LoginAttempt(self, key, buckets)
        if attempt.wait_s > _WAIT_S_MAX:
            attempt.withdraw()
            raise FlussError(
                "there were too many wrong passwords from your address or for this user; try again in a few seconds",
                ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION,
            )
        return attempt

    def remember(self, key: tuple[str, int]) -> None:
        """Give a user tokens of its own at an address from now on."""
        if key not in self._known:
            self._known[key] = TokenBucket(_ADDRESS_GUESSES_PER_S, _ADDRESS_GUESSES, self.clock())
            if len(self._known) > _REMEMBERED_MAX:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
