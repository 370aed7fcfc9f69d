"""SCRAM-SHA-256 (RFC 5802 and 7677): both sides prove that they know a password, and neither sends it.

    client                                          server
    n,,n=<user>,r=<nonce>                    -->                                          first
                                             <--    r=<nonce and more>,s=<salt>,i=<iterations>
    c=biws,r=<nonce and more>,p=<proof>      -->                                          final
                                             <--    v=<signature>

The proof can be checked with a stored password, and only by one who knows the password can it be made; it is worth
nothing in any other exchange. Channel binding is not offered. Nothing here waits or takes long, except a client's
``salted_password``, which it asks for when it has the salt.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final

from fluss.errors import AuthenticationError, FlussError
from fluss.protocol.stored_password import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    KEY_BYTES,
    StoredPassword,
    client_key_of,
    decoded_base64,
    prepared,
    server_key_of,
    stored_key_of,
)

MECHANISM: Final = "SCRAM-SHA-256"
_NONCE_BYTES: Final = 18
# Printable ASCII except the comma, as the RFC has it.
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_NAME: Final = r"(?:[^,=\0]|=2C|=3D)+"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>(?P<binding>n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authorization_id>{_NAME}))?,)"
    rf"(?P<bare>(?P<mandatory>m=[^,]*,)?n=(?P<username>{_NAME}),r=(?P<nonce>{_PRINTABLE})(?:,[A-Za-z]=[^,\0]+)*)"
)
_SERVER_FIRST: Final = re.compile(
    rf"(?P<mandatory>m=[^,]*,)?r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{{0,9}})"
    r"(?:,[A-Za-z]=[^,\0]+)*"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<header>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE})(?:,[A-Za-z]=[^,\0]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_SERVER_FINAL: Final = re.compile(r"v=(?P<signature>[A-Za-z0-9+/=]+)(?:,[A-Za-z]=[^,\0]+)*")
_NO_BINDING: Final = "n,,"
# Preparing a user name looks at every character of it several times, and anybody can send one.
_TOKEN_BYTES_MAX: Final = 1024


class ScramClient:
    """The client's side of one exchange."""

    def __init__(self, username: str, *, nonce: str | None = None) -> None:
        self._nonce = nonce or _new_nonce()
        name = prepared(username, "user name").replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        self._auth_message = ""
        self._server_key = b""
        self._final_nonce = ""
        self._first_from_server = ""

    def first(self) -> bytes:
        """Return the first token."""
        return (_NO_BINDING + self._first_bare).encode()

    def salt(self, challenge: bytes) -> tuple[bytes, int]:
        """Read the first challenge: the salt and the iterations that the password is to be salted with."""
        text = _text(challenge, "the server's challenge")
        match = _SERVER_FIRST.fullmatch(text)
        salt = None if match is None else decoded_base64(match["salt"])
        if match is None or salt is None:
            raise AuthenticationError(f"the server's challenge is not one of {MECHANISM}")
        if match["mandatory"] is not None:
            raise AuthenticationError(f"the server wants an extension of {MECHANISM} that this client does not have")
        if not match["nonce"].startswith(self._nonce) or len(match["nonce"]) == len(self._nonce):
            raise AuthenticationError("the server's challenge belongs to another login")
        iterations = int(match["iterations"])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationError(
                f"the server wants {iterations} iterations of the password's hash; this client makes between "
                f"{ITERATIONS_MIN} and {ITERATIONS_MAX}"
            )
        self._first_from_server, self._final_nonce = text, match["nonce"]
        return salt, iterations

    def final(self, salted: bytes) -> bytes:
        """Return the second token, which proves the password."""
        without_proof = f"c={base64.b64encode(_NO_BINDING.encode()).decode()},r={self._final_nonce}"
        self._auth_message = f"{self._first_bare},{self._first_from_server},{without_proof}"
        client_key = client_key_of(salted)
        self._server_key = server_key_of(salted)
        signature = hmac.digest(stored_key_of(client_key), self._auth_message.encode(), "sha256")
        proof = base64.b64encode(_xor(client_key, signature)).decode()
        return f"{without_proof},p={proof}".encode()

    def check(self, challenge: bytes) -> None:
        """Refuse a server whose last word does not prove that it knows the password, too."""
        match = _SERVER_FINAL.fullmatch(_text(challenge, "the server's last word"))
        signature = None if match is None else decoded_base64(match["signature"])
        expected = hmac.digest(self._server_key, self._auth_message.encode(), "sha256")
        if signature is None or not hmac.compare_digest(signature, expected):
            raise AuthenticationError(
                "the server did not prove that it knows the password; it is not the one that this user belongs to"
            )


class ScramServer:
    """The server's side of one exchange.

    ``salt_of`` returns salt and iterations for a user name, also for one that does not exist: an attacker must not
    learn which names do.
    """

    def __init__(self, salt_of: Callable[[str], tuple[bytes, int]], *, nonce: str | None = None) -> None:
        self._salt_of = salt_of
        self._nonce = nonce or _new_nonce()
        self._header = ""
        self._messages = ""
        self.username = ""
        self._auth_message = b""
        self._proof = b""

    def first(self, token: bytes) -> bytes:
        """Read the client's first token; return the challenge."""
        match = _CLIENT_FIRST.fullmatch(_text(token, "the first token"))
        if match is None:
            raise AuthenticationError(f"the first token is not one of {MECHANISM}")
        if match["binding"].startswith("p"):
            raise AuthenticationError("channel binding is not offered; log in without it")
        if match["mandatory"] is not None:
            raise AuthenticationError(f"the client wants an extension of {MECHANISM} that this server does not have")
        self.username = _prepared_name(match["username"])
        if match["authorization_id"] is not None and _prepared_name(match["authorization_id"]) != self.username:
            raise AuthenticationError("acting as another user is not supported; leave the authorization id empty")
        salt, iterations = self._salt_of(self.username)
        self._header, self._nonce = match["header"], match["nonce"] + self._nonce
        challenge = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        self._messages = f"{match['bare']},{challenge},"
        return challenge.encode()

    def final(self, token: bytes) -> None:
        """Read the client's second token, whose proof is to be checked next."""
        match = _CLIENT_FINAL.fullmatch(_text(token, "the second token"))
        proof = None if match is None else decoded_base64(match["proof"])
        if match is None or proof is None or len(proof) != KEY_BYTES:
            raise AuthenticationError(f"the second token is not one of {MECHANISM}")
        if decoded_base64(match["header"]) != self._header.encode() or match["nonce"] != self._nonce:
            raise AuthenticationError("the second token belongs to another login")
        self._auth_message = (self._messages + match["without_proof"]).encode()
        self._proof = proof

    def signature(self, stored: StoredPassword) -> bytes | None:
        """Check the proof; return the last word to the client if it is right."""
        client_signature = hmac.digest(stored.stored_key, self._auth_message, "sha256")
        client_key = _xor(self._proof, client_signature)
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), stored.stored_key):
            return None
        signature = hmac.digest(stored.server_key, self._auth_message, "sha256")
        return b"v=" + base64.b64encode(signature)


def _new_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()


def _text(token: bytes, what: str) -> str:
    if len(token) > _TOKEN_BYTES_MAX:
        raise AuthenticationError(f"{what} has {len(token)} bytes, more than {_TOKEN_BYTES_MAX}")
    try:
        return token.decode()
    except UnicodeDecodeError:
        pass
    # Not the context of another error: that would carry the token.
    raise AuthenticationError(f"{what} is not valid UTF-8")


def _prepared_name(escaped: str) -> str:
    try:
        return prepared(escaped.replace("=2C", ",").replace("=3D", "="), "user name")
    except FlussError as error:
        raise AuthenticationError(error.message) from None


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
