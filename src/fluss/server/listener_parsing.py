"""Parses what a configuration says about listeners and their users.

text                      example
endpoints                 ``CLIENT://127.0.0.1:9123, INTERNAL://[::1]:0``
protocols by listener     ``CLIENT:sasl, INTERNAL:plaintext``
users                     ``alice:secret, bob:secret2``
users, as JAAS            ``PlainLoginModule required user_alice="secret" user_bob="secret2";``

Every function raises a FlussError that says what is wrong, without repeating a text that may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fluss.errors import FlussError
from fluss.protocol.sasl import ANONYMOUS
from fluss.protocol.stored_password import StoredPassword, is_stored_form
from fluss.schema.acl import WILDCARD

PORT_MAX: Final = 65535
_LISTENER_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ENDPOINT = re.compile(
    r"(?P<name>[^:/\s]+)://(?:\[(?P<ipv6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^:/\s\[\]]*)):(?P<port>[0-9]{1,5})"
)
_JAAS_TOKEN = re.compile(
    r"\s*(?:"
    r'"(?P<double>(?:[^"\\]|\\.)*)"'
    r"|'(?P<single>(?:[^'\\]|\\.)*)'"
    r"""|(?P<word>[^\s="';]+)"""
    r"|(?P<mark>[=;])"
    r")",
    re.DOTALL,
)
_JAAS_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_JAAS_USER_PREFIX: Final = "user_"


class SecurityProtocol(Enum):
    """How a listener knows who its clients are, and whether others can listen in."""

    PLAINTEXT = "PLAINTEXT"  # It does not: every client is anonymous.
    SASL = "SASL"  # By user name and password.
    SSL = "SSL"  # By the client's certificate, if it has to show one. TLS is spoken.
    SASL_SSL = "SASL_SSL"  # By user name and password. TLS is spoken.

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL, SecurityProtocol.SASL_SSL)

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A named address. Port 0 asks the system for a free one."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return address_text(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def address_text(host: str, port: int) -> str:
    """Write ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Read ``NAME://host:port`` parts separated by commas. An empty host means all addresses of the machine."""
    endpoints = tuple(_endpoint(part) for part in _parts(text))
    if repeated := _first_repeated([endpoint.name for endpoint in endpoints]):
        raise FlussError(f"the listener {repeated} occurs twice; give each listener a name of its own")
    return endpoints


def _endpoint(text: str) -> Endpoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None or _LISTENER_NAME.fullmatch(match["name"]) is None:
        raise FlussError(f"'{text}' is not of the form NAME://host:port, for example CLIENT://127.0.0.1:9123")
    port = int(match["port"])
    if port > PORT_MAX:
        raise FlussError(f"'{text}' has a port above {PORT_MAX}")
    host = match["ipv6"] or match["host"] or "0.0.0.0"
    return Endpoint(match["name"], host, port)


def parse_protocols(text: str) -> dict[str, SecurityProtocol]:
    """Read ``NAME:protocol`` parts separated by commas; the protocol is one of ``SecurityProtocol`` in any case."""
    protocols: dict[str, SecurityProtocol] = {}
    protocols_text = ", ".join(SecurityProtocol.__members__)
    for part in _parts(text):
        name, colon, protocol = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and protocol):
            raise FlussError(f"'{part}' is not of the form NAME:protocol, for example CLIENT:SASL")
        if name in protocols:
            raise FlussError(f"the listener {name} occurs twice")
        if protocol.upper() not in SecurityProtocol.__members__:
            raise FlussError(f"'{protocol}' is not a security protocol; use {protocols_text}")
        protocols[name] = SecurityProtocol[protocol.upper()]
    return protocols


def parse_users(text: str) -> dict[str, str]:
    """Read ``user:password`` parts separated by commas. A password may hold anything but a comma."""
    users: dict[str, str] = {}
    for number, part in enumerate(_parts(text), start=1):
        name, colon, password = (piece.strip() for piece in part.partition(":"))
        if not colon:
            raise FlussError(f"entry {number} is not of the form user:password; a password cannot hold a comma")
        add_user(users, name, password)
    return users


def parse_jaas(text: str) -> dict[str, str]:
    """Read the users of a JAAS text: one login module, its flag, ``user_<name>="<password>"`` options, a semicolon.

    Quotes may be single or double; inside, a backslash takes the next character as it is. Options with other names
    concern clients and are skipped.
    """
    if not text.strip():
        return {}
    tokens = _JaasTokens(text)
    tokens.word("the name of a login module")
    if tokens.word("a flag").lower() not in _JAAS_FLAGS:
        raise FlussError("the login module must be followed by the word required")
    users: dict[str, str] = {}
    while not tokens.accept(";"):
        name = tokens.word('an option such as user_<name>="<password>", or a semicolon at the end')
        if not tokens.accept("="):
            raise FlussError(f"option {tokens.count} has no '=' after its name")
        value = tokens.value()
        if name.startswith(_JAAS_USER_PREFIX):
            add_user(users, name.removeprefix(_JAAS_USER_PREFIX), value)
    if not tokens.at_end():
        raise FlussError("there is more text after the semicolon; one login module is enough for all users")
    return users


class _JaasTokens:
    """Takes a JAAS text apart. No message repeats what was read, because it may be a password."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._position = 0
        self.count = 0  # Options begun so far.

    def at_end(self) -> bool:
        return self._position == len(self._text)

    def word(self, expected: str) -> str:
        match = self._match(expected)
        if match["word"] is None:
            raise FlussError(f"at character {self._position + 1}: expected {expected}")
        self._position = match.end()
        return match["word"]

    def value(self) -> str:
        self.count += 1
        match = self._match("a value")
        self._position = match.end()
        if match["word"] is not None:
            return match["word"]
        quoted = match["double"] if match["double"] is not None else match["single"]
        if quoted is None:
            raise FlussError(f"option {self.count} has no value; write it in quotes")
        return re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)

    def accept(self, mark: str) -> bool:
        match = _JAAS_TOKEN.match(self._text, self._position)
        if match is None or match["mark"] != mark:
            return False
        self._position = match.end()
        return True

    def _match(self, expected: str) -> re.Match[str]:
        match = _JAAS_TOKEN.match(self._text, self._position)
        if match is None:
            raise FlussError(
                f"at character {self._position + 1}: expected {expected}; "
                "the text ends with a semicolon, and every quote is closed"
            )
        return match


def add_user(users: dict[str, str], name: str, password: str) -> None:
    """Add a user, or raise FlussError that does not repeat the password."""
    if not name:
        raise FlussError("a user has no name")
    if not password:
        raise FlussError(f"the password of the user {name} is empty")
    if "\0" in name or "\0" in password:
        raise FlussError(f"the name or the password of the user {name!r} holds a NUL character")
    if name == WILDCARD or name.upper() == ANONYMOUS.name:
        # Rights that are meant for clients without a name must not be those of a user, nor the other way round.
        raise FlussError(f"the name {name} stands for other users; choose another one")
    if name in users:
        raise FlussError(f"the user {name} occurs twice")
    if is_stored_form(password):
        check_hash(name, password)
    users[name] = password


def check_hash(name: str, text: str) -> None:
    """Refuse a hash of a password that cannot be one, with the name of its user."""
    try:
        StoredPassword.parse(text)
    except FlussError as error:
        raise FlussError(f"the password of the user {name}: {error.message}") from None


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _first_repeated(names: list[str]) -> str | None:
    """Return the first name that an earlier one equals but for its case: options of single listeners have no case."""
    folded = [name.lower() for name in names]
    return next((name for index, name in enumerate(names) if name.lower() in folded[:index]), None)
