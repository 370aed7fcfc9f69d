"""Authentication: SASL with the mechanisms PLAIN and SCRAM-SHA-256, as pure functions and small values.

A PLAIN token is ``authorization id NUL user NUL password`` in UTF-8; the authorization id is empty or equals the user.
SCRAM is in ``scram``. Secrets never appear in a repr, a log line or an error text.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from fluss.errors import AuthenticationError, FlussError
from fluss.protocol import scram
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.scram import ScramClient
from fluss.protocol.stored_password import KEY_BYTES, SALT_BYTES, StoredPassword, is_stored_form, salted_password

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, scram.MECHANISM)
PLAINTEXT_PROTOCOL = "PLAINTEXT"

# Far above any sensible user name and password.
_TOKEN_BYTES_MAX = 64 * 1024

# Passwords that are configured as they are: hashing them protects only what can be overheard of a login by SCRAM.
_CLEAR_ITERATIONS: Final = 16_384
_VERSION_KEY: Final = secrets.token_bytes(32)

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
    mechanism: str = PLAIN
    # What SCRAM makes of the password takes long and is the same at every login, so it is kept: one salt, one result.
    _salted: dict[tuple[bytes, int], bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, text in (("user name", self.username), ("password", self.password)):
            if not text:
                raise FlussError(f"the {name} is empty; SASL needs a user name and a password")
            if "\0" in text:
                raise FlussError(f"the {name} contains a NUL character, which SASL cannot carry")
            if not _is_encodable(text):
                raise FlussError(f"the {name} contains a character that UTF-8 cannot encode")

    @property
    def takes_long(self) -> bool:
        """Whether answering a challenge can take long: the password is hashed."""
        return self.mechanism == scram.MECHANISM

    def salted(self, salt: bytes, iterations: int) -> bytes:
        """Return the password as SCRAM wants it."""
        found = self._salted.get((salt, iterations))
        if found is None:
            found = salted_password(self.password, salt, iterations)
            self._salted.clear()
            self._salted[salt, iterations] = found
        return found


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


# The requests of one attempt to authenticate; each answer is sent in. The end of the generator is success.
ClientExchange: TypeAlias = Generator[pb.AuthenticateRequest, pb.AuthenticateResponse, None]


def client_exchange(credentials: Credentials) -> ClientExchange:
    """Begin an attempt to authenticate."""
    if credentials.mechanism == scram.MECHANISM:
        return _scram_exchange(credentials)
    return _plain_exchange(credentials)


def next_request(exchange: ClientExchange, answer: pb.AuthenticateResponse) -> pb.AuthenticateRequest | None:
    """Return what an attempt goes on with, None at its success. May take long if the credentials say so."""
    try:
        return exchange.send(answer)
    except StopIteration:
        return None


def _plain_exchange(credentials: Credentials) -> ClientExchange:
    answer = yield pb.AuthenticateRequest(protocol=PLAIN, token=plain_token(credentials))
    # An absent or empty challenge means that the server is content. PLAIN has nothing to say to any other, so it is
    # returned as it came, once.
    if answer.challenge:
        yield pb.AuthenticateRequest(protocol=PLAIN, token=answer.challenge)


def _scram_exchange(credentials: Credentials) -> ClientExchange:
    client = ScramClient(credentials.username)
    answer = yield pb.AuthenticateRequest(protocol=scram.MECHANISM, token=client.first())
    salt, iterations = client.salt(answer.challenge)
    final = client.final(credentials.salted(salt, iterations))
    answer = yield pb.AuthenticateRequest(protocol=scram.MECHANISM, token=final)
    client.check(answer.challenge)


class PlainLogin(NamedTuple):
    """The user name and password of a PLAIN token. Not shown."""

    username: str
    password: str

    def __repr__(self) -> str:
        return "PlainLogin(...)"


def check_token_size(token: bytes) -> None:
    """Refuse a token that no sensible client sends."""
    if len(token) > _TOKEN_BYTES_MAX:
        raise AuthenticationError(f"the token has {len(token)} bytes, more than {_TOKEN_BYTES_MAX}")


def parse_plain_token(token: bytes) -> PlainLogin:
    """Take a PLAIN token apart, or raise AuthenticationError."""
    check_token_size(token)
    text = _decoded(token)
    if text is None:
        raise AuthenticationError("the token is not valid UTF-8")
    parts = text.split("\0")
    if len(parts) != 3:
        raise AuthenticationError(f"the token has {len(parts)} parts separated by NUL, {PLAIN} needs 3")
    authorization_id, username, password = parts
    if not username or not password:
        raise AuthenticationError("the user name and the password must not be empty")
    if authorization_id not in ("", username):
        raise AuthenticationError("acting as another user is not supported; leave the authorization id empty")
    return PlainLogin(username, password)


def check_plain_token(token: bytes, check_credentials: CredentialsChecker) -> Principal:
    """Return who a token proves its sender to be, or raise AuthenticationError."""
    username, password = parse_plain_token(token)
    if not check_credentials(username, password):
        raise wrong_login()
    return Principal("User", username)


def wrong_login() -> AuthenticationError:
    """Return the one refusal that there is: it does not say what was wrong."""
    return AuthenticationError("wrong user name or password")


class UserTable:
    """A fixed set of users and passwords, each configured as it is or as a hash (``StoredPassword``).

    How long a check takes tells neither whether the user exists nor how much of the password was right: a check that
    fails hashes once, for any user name, if the table has a user whose password has to be hashed for that mechanism.
    A check that succeeds is remembered as a keyed digest, so that the next one need not hash.

    What a login by SCRAM shows of a user that does not exist, its salt, is derived from ``salt_key``. It should be the
    same after a restart, as the salts of other users are.
    """

    __slots__ = ("_clear", "_decoy", "_derived", "_digests", "_key", "_no_digest", "_salt_key", "_stored")

    def __init__(self, passwords: Mapping[str, str], *, salt_key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32)
        self._no_digest = secrets.token_bytes(32)
        self._salt_key = salt_key or secrets.token_bytes(32)
        self._clear = {user: text for user, text in passwords.items() if not is_stored_form(text)}
        self._stored = {user: StoredPassword.parse(text) for user, text in passwords.items() if is_stored_form(text)}
        self._digests = {user: self._digest(password) for user, password in self._clear.items()}
        self._derived: dict[str, StoredPassword] = {}
        counts = Counter(stored.iterations for stored in self._stored.values())
        iterations = counts.most_common(1)[0][0] if counts else _CLEAR_ITERATIONS
        self._decoy = StoredPassword(
            secrets.token_bytes(SALT_BYTES), iterations, secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)
        )

    @property
    def table(self) -> UserTable:
        """The users as they are now; others than a table may have new ones later."""
        return self

    def __call__(self, username: str, password: str) -> bool:
        """Check a password. Takes long if it has to be hashed."""
        is_right = self.check_at_once(username, password)
        return self.check_by_hashing(username, password) if is_right is None else is_right

    def check_at_once(self, username: str, password: str) -> bool | None:
        """Check a password, or return None if it has to be hashed for that."""
        expected = self._digests.get(username, self._no_digest)
        if hmac.compare_digest(self._digest(password), expected):
            return True
        return None if self._stored else False

    def check_by_hashing(self, username: str, password: str) -> bool:
        """Check a password against its hash. Takes long; may be called in any thread."""
        stored = self._stored.get(username)
        is_right = (stored or self._decoy).matches(password) and stored is not None
        if is_right:
            self._digests[username] = self._digest(password)
        return is_right

    # For SCRAM

    def salt_of(self, username: str) -> tuple[bytes, int]:
        """Return salt and iterations of a user; one that does not exist looks like the others."""
        stored = self._stored.get(username)
        if stored is not None:
            return stored.salt, stored.iterations
        return hmac.digest(self._salt_key, username.encode(), "sha256")[:SALT_BYTES], self._decoy.iterations

    def keys_at_once(self, username: str) -> StoredPassword | None:
        """Return the keys of a user if they are known; None if there are none, or if they have to be hashed first."""
        return self._stored.get(username) or self._derived.get(username)

    @property
    def has_clear_passwords(self) -> bool:
        """Whether a failed check has to ask ``hashed_keys``."""
        return bool(self._clear)

    def hashed_keys(self, username: str) -> StoredPassword:
        """Return the keys of a user with a clear password, for others some that are never right. Takes long."""
        salt, iterations = self.salt_of(username)
        password = self._clear.get(username)
        try:
            if password is not None:
                self._derived[username] = StoredPassword.of(password, iterations=iterations, salt=salt)
                return self._derived[username]
        except FlussError:
            # SCRAM cannot carry every password that PLAIN can.
            pass
        return StoredPassword.of(secrets.token_hex(), iterations=iterations, salt=salt)

    def version_of(self, username: str) -> bytes | None:
        """Return a digest of what is configured for a user, None without one: sessions of an older version end."""
        text = self._clear.get(username) or str(self._stored.get(username, ""))
        return hmac.digest(_VERSION_KEY, f"{username}\0{text}".encode(), "sha256") if text else None

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")

    def __repr__(self) -> str:
        return f"UserTable({len(self._clear) + len(self._stored)} users)"
