"""Authentication: SASL with the mechanism PLAIN, as pure functions and small values.

A PLAIN token is ``authorization id NUL user NUL password`` in UTF-8; the authorization id is empty or equals the user.
Secrets never appear in a repr, a log line or an error text.
"""

from __future__ import annotations

import hmac
import random
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fluss.errors import AuthenticationError, FlussError
from fluss.protocol.messages import fluss_pb2 as pb

MECHANISM = "PLAIN"
PLAINTEXT_PROTOCOL = "PLAINTEXT"

# Far above any sensible user name and password.
_TOKEN_BYTES_MAX = 64 * 1024

RETRY_DELAY_S_MIN = 0.1
RETRY_DELAY_S_MAX = 5.0
_RETRY_JITTER = 0.2

# Says whether a user may enter with a password. It is called on the event loop and has to be quick. It may raise a
# FlussError, for instance with code 51 when the answer is not known right now.
CredentialsChecker: TypeAlias = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is at the other end of a connection."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client proves its identity with."""

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        for name, text in (("user name", self.username), ("password", self.password)):
            if not text:
                raise FlussError(f"the {name} is empty; SASL needs a user name and a password")
            if "\0" in text:
                raise FlussError(f"the {name} contains a NUL character, which the mechanism {MECHANISM} cannot carry")
            if not _is_encodable(text):
                raise FlussError(f"the {name} contains a character that UTF-8 cannot encode")


# The two errors that are swallowed here carry the whole text; not even the context of another error may show it.


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decoded(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def plain_token(credentials: Credentials) -> bytes:
    """Encode the first and, with PLAIN, only token of a client."""
    return f"\0{credentials.username}\0{credentials.password}".encode()


def client_exchange(credentials: Credentials) -> Generator[pb.AuthenticateRequest, pb.AuthenticateResponse, None]:
    """Yield the requests of one attempt to authenticate; send each answer in. The end of the generator is success."""
    answer = yield pb.AuthenticateRequest(protocol=MECHANISM, token=plain_token(credentials))
    # An absent or empty challenge means that the server is content. PLAIN has nothing to say to any other, so it is
    # returned as it came, once.
    if answer.challenge:
        yield pb.AuthenticateRequest(protocol=MECHANISM, token=answer.challenge)


def retry_delays_s(rng: random.Random) -> Iterator[float]:
    """Yield the pauses before repeating a temporarily failed attempt: doubling, with jitter, without end."""
    delay_s = RETRY_DELAY_S_MIN
    while True:
        yield delay_s * rng.uniform(1 - _RETRY_JITTER, 1 + _RETRY_JITTER)
        delay_s = min(delay_s * 2, RETRY_DELAY_S_MAX)


def check_plain_token(token: bytes, check_credentials: CredentialsChecker) -> Principal:
    """Return who a token proves its sender to be, or raise AuthenticationError."""
    if len(token) > _TOKEN_BYTES_MAX:
        raise AuthenticationError(f"the token has {len(token)} bytes, more than {_TOKEN_BYTES_MAX}")
    text = _decoded(token)
    if text is None:
        raise AuthenticationError("the token is not valid UTF-8")
    parts = text.split("\0")
    if len(parts) != 3:
        raise AuthenticationError(f"the token has {len(parts)} parts separated by NUL, {MECHANISM} needs 3")
    authorization_id, username, password = parts
    if not username or not password:
        raise AuthenticationError("the user name and the password must not be empty")
    if authorization_id not in ("", username):
        raise AuthenticationError("acting as another user is not supported; leave the authorization id empty")
    if not check_credentials(username, password):
        raise AuthenticationError("wrong user name or password")
    return Principal("User", username)


class UserTable:
    """A fixed set of users and passwords, to be used as a CredentialsChecker.

    It keeps keyed digests instead of passwords. How long a check takes tells neither whether the user exists nor how
    much of the password was right.
    """

    __slots__ = ("_digests", "_key", "_no_digest")

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(32)
        self._no_digest = secrets.token_bytes(32)
        self._digests = {user: self._digest(password) for user, password in passwords.items()}

    def __call__(self, username: str, password: str) -> bool:
        expected = self._digests.get(username, self._no_digest)
        return hmac.compare_digest(self._digest(password), expected)

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")

    def __repr__(self) -> str:
        return f"UserTable({len(self._digests)} users)"
