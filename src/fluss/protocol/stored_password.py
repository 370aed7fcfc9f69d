"""Passwords as they are kept: salted and hashed, in the form that PLAIN and SCRAM-SHA-256 can both be checked with.

    SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>        salt and keys in base64

This is the form of RFC 5803, which PostgreSQL uses, too. The keys are those of RFC 5802:

    salted password = PBKDF2-HMAC-SHA-256(password, salt, iterations)
    client key      = HMAC(salted password, "Client Key")        what a client proves to have
    stored key      = SHA-256(client key)                        enough to check that proof, and a password
    server key      = HMAC(salted password, "Server Key")        what the server proves itself with

A reader of a stored password can neither log in with it nor turn it back, except by trying passwords, each of which
costs ``iterations`` rounds. Passwords are prepared by SASLprep (RFC 4013), so that different encodings of the same
characters are one password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from fluss.errors import FlussError

STORED_PREFIX: Final = "SCRAM-SHA-256$"
KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
# RFC 7677 asks for no fewer. The default takes a processor about 50 ms, once for a client and once for a server.
ITERATIONS_MIN: Final = 4096
ITERATIONS_DEFAULT: Final = 100_000
# A few seconds of work; more would be an attack on the server that has to do it.
ITERATIONS_MAX: Final = 10_000_000
_SALT_BYTES_MAX: Final = 1024

_STORED: Final = re.compile(
    r"SCRAM-SHA-256\$(?P<iterations>[1-9][0-9]{0,9}):(?P<salt>[A-Za-z0-9+/=]+)"
    r"\$(?P<stored_key>[A-Za-z0-9+/=]+):(?P<server_key>[A-Za-z0-9+/=]+)"
)
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """What is kept of a password. The keys are not shown: the server key lets one pose as the server."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str, *, iterations: int = ITERATIONS_DEFAULT, salt: bytes | None = None) -> StoredPassword:
        """Hash a password, with a new salt unless one is given. Takes long on purpose."""
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        salted = salted_password(password, salt, iterations)
        return cls(salt, iterations, stored_key_of(client_key_of(salted)), server_key_of(salted))

    @classmethod
    def parse(cls, text: str) -> StoredPassword:
        """Read the form that is at the top of this module; no error repeats any of it."""
        match = _STORED.fullmatch(text)
        if match is None:
            raise FlussError(
                f"a password that begins with {STORED_PREFIX} is a hash, and this one is not of the form "
                f"{STORED_PREFIX}<iterations>:<salt>$<stored key>:<server key>; make it again with "
                "'python -m fluss.server hash-password'"
            )
        iterations = int(match["iterations"])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise FlussError(
                f"a hash of a password has {iterations} iterations; between {ITERATIONS_MIN} and {ITERATIONS_MAX} "
                "are allowed"
            )
        salt = decoded_base64(match["salt"])
        keys = [decoded_base64(match[name]) for name in ("stored_key", "server_key")]
        if salt is None or not 0 < len(salt) <= _SALT_BYTES_MAX or any(key is None for key in keys):
            raise FlussError("the salt or a key of a hashed password is not base64; make the hash again")
        stored_key, server_key = (key or b"" for key in keys)
        if len(stored_key) != KEY_BYTES or len(server_key) != KEY_BYTES:
            raise FlussError(f"a key of a hashed password does not have {KEY_BYTES} bytes; make the hash again")
        return cls(salt, iterations, stored_key, server_key)

    def __str__(self) -> str:
        salt, stored_key, server_key = (
            base64.b64encode(value).decode() for value in (self.salt, self.stored_key, self.server_key)
        )
        return f"{STORED_PREFIX}{self.iterations}:{salt}${stored_key}:{server_key}"

    def matches(self, password: str) -> bool:
        """Whether a password is the one that was hashed. Takes as long as hashing it."""
        try:
            salted = salted_password(password, self.salt, self.iterations)
        except FlussError:
            # It cannot have been hashed; a right one takes no other time.
            salted = _derive(b"\0", self.salt, self.iterations)
            return hmac.compare_digest(stored_key_of(client_key_of(salted)), bytes(KEY_BYTES))
        return hmac.compare_digest(stored_key_of(client_key_of(salted)), self.stored_key)


def is_stored_form(text: str) -> bool:
    """Whether a configured password is a hash, not the password itself."""
    return text.startswith(STORED_PREFIX)


def salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    """Return what all keys are derived from. Takes long on purpose; other threads run meanwhile."""
    return _derive(prepared(password, "password").encode(), salt, iterations)


def _derive(password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password, salt, iterations)


def client_key_of(salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", "sha256")


def stored_key_of(client_key: bytes) -> bytes:
    return hashlib.sha256(client_key).digest()


def server_key_of(salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", "sha256")


def decoded_base64(text: str) -> bytes | None:
    """Decode base64 exactly as it is written by others: with padding, and without anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def prepared(text: str, what: str) -> str:
    """Return a text as SASLprep wants it; ``what`` it is stands in the error, the text does not.

    Characters that Unicode 3.2 does not know are left as they are.
    """
    if text.isascii() and text.isprintable() and text:
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    # Unicode as it was then, so that no library's newer tables change the password.
    normal = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not normal:
        raise FlussError(f"the {what} is empty, or consists of characters that do not count")
    if any(is_in_table(char) for char in normal for is_in_table in _PROHIBITED):
        raise FlussError(f"the {what} contains a control character or another one that SASL does not allow")
    if any(stringprep.in_table_d1(char) for char in normal) and not _is_right_to_left(normal):
        raise FlussError(
            f"the {what} mixes scripts that are written from right to left with others, which SASL does not allow"
        )
    return normal


def _is_right_to_left(text: str) -> bool:
    """Whether a text with right-to-left characters has them at both ends, and none of the other direction."""
    has_left_to_right = any(stringprep.in_table_d2(char) for char in text)
    return not has_left_to_right and stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
