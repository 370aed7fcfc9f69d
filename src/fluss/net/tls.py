"""TLS with the standard library: what each side needs for it, whom a certificate names, and what went wrong.

Certificates and keys are PEM. A client's may be given as a text instead of a file, so that they can travel with its
options to machines that do not have the file. At least TLS 1.2 is spoken; the ciphers are those of the library.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from fluss.errors import AuthenticationError, FlussError, NetworkError
from fluss.protocol.sasl import ANONYMOUS, Principal

_PEM_BEGIN: Final = "-----BEGIN"
_NO_PASSWORD: Final = ""


class ClientAuth(StrEnum):
    """Whether a listener asks its clients for a certificate."""

    NONE = "none"
    REQUESTED = "requested"  # One that is shown is checked; a client without one is anonymous.
    REQUIRED = "required"


class PrincipalRule(StrEnum):
    """Which part of a client's certificate is its user name."""

    CN = "cn"  # The common name of the subject.
    DN = "dn"  # The whole subject, such as CN=alice,OU=billing,O=Example.
    SAN = "san"  # The one subject alternative name.


class TlsVersion(StrEnum):
    """The oldest version of TLS that is spoken."""

    V1_2 = "TLSv1.2"
    V1_3 = "TLSv1.3"


_LIBRARY_VERSIONS: Final = {TlsVersion.V1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.V1_3: ssl.TLSVersion.TLSv1_3}


# The server's end


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a listener needs for TLS. The certificate's file may hold the key, and the certificates above it, too."""

    certificate_file: Path
    key_file: Path | None = None
    key_password: str = field(default=_NO_PASSWORD, repr=False)
    key_password_file: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    client_ca_file: Path | None = None
    principal_rule: PrincipalRule = PrincipalRule.CN
    min_version: TlsVersion = TlsVersion.V1_2
    handshake_timeout_s: float = 10.0

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is made of."""
        files = (self.certificate_file, self.key_file, self.key_password_file, self.client_ca_file)
        return tuple(file for file in files if file is not None)

    def load(self) -> ssl.SSLContext:
        """Read the files. Raises FlussError that says which of them is wrong, and what to do. Blocking."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _LIBRARY_VERSIONS[self.min_version]
        # A client could have the server compute without end, and no client of this protocol resumes a session.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0
        for file in self.files:
            _check_readable(file)
        password = self.key_password
        if self.key_password_file is not None:
            password = self.key_password_file.read_text().rstrip("\r\n")
        _load_certificate(context, self.certificate_file, self.key_file, password)
        if self.client_auth is not ClientAuth.NONE:
            assert self.client_ca_file is not None, "the options have been checked"
            _load_authorities(context, self.client_ca_file)
            # Also where one is required: a client without is told so afterwards, in words. Here it would be cut off.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


class ServerCertificate:
    """The certificate of a listener as it is now. It can be renewed while the server runs.

    New connections get the new one, others keep what they have. Files that cannot be used change nothing.
    """

    def __init__(self, tls: ServerTls) -> None:
        self.tls = tls
        self._stamps = self._current_stamps()
        self._context = tls.load()

    @property
    def context(self) -> ssl.SSLContext:
        return self._context

    def renew(self) -> bool:
        """Load the files again if they have changed since they were last read; return whether they were. Blocking.

        Raises FlussError if they cannot be used: then the certificate is the one it was.
        """
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self._context = self.tls.load()
        except UnreadableFileError:
            self._stamps = []
            raise
        return True

    def _current_stamps(self) -> list[tuple[int, ...] | None]:
        return [file_stamp(file) for file in self.tls.files]


def file_stamp(file: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is written or replaced, or gets other rights; None if there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


class UnreadableFileError(FlussError):
    """A file could not be read for reasons that are not in it, and that may pass, such as too many open files."""


_DN_NAMES: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
}
# What ACLs could mistake for something else.
_RESERVED_NAMES: Final = frozenset({"", "*", ANONYMOUS.name})


def certificate_principal(certificate: dict[str, Any] | None, rule: PrincipalRule) -> Principal:
    """Return whom a client's certificate names; a client without one is anonymous.

    ``certificate`` is what the library makes of one that it has checked. Raises AuthenticationError if it names nobody,
    or more than one.
    """
    if not certificate:
        return ANONYMOUS
    subject = [(key, value) for part in certificate.get("subject", ()) for key, value in part]
    if rule is PrincipalRule.DN:
        # Most specific first, as it is usually written.
        names = [",".join(f"{_DN_NAMES.get(key, key)}={_escaped(value)}" for key, value in reversed(subject))]
    elif rule is PrincipalRule.CN:
        names = [value for key, value in subject if key == "commonName"]
    else:
        names = [value for _, value in certificate.get("subjectAltName", ())]
    if len(names) != 1:
        what = "common name" if rule is PrincipalRule.CN else "subject alternative name"
        raise AuthenticationError(f"the client's certificate has {len(names)} entries for its {what}; it needs one")
    name = names[0]
    if name.upper() in _RESERVED_NAMES or not name.isprintable():
        raise AuthenticationError("the client's certificate has a name that no user can have")
    return Principal("User", name)


def _escaped(value: str) -> str:
    return "".join(f"\\{char}" if char in ',+"\\<>;=' else char for char in value)


def peer_principal(transport: asyncio.BaseTransport, tls: ServerTls) -> Principal:
    """Return whom the certificate of a client names. Raises AuthenticationError if it has to show one, and has not."""
    ssl_object = transport.get_extra_info("ssl_object")
    certificate = None if ssl_object is None else ssl_object.getpeercert()
    if not certificate and tls.client_auth is ClientAuth.REQUIRED:
        raise AuthenticationError(
            "this listener asks for a client's certificate; set 'security.ssl.certificate' and 'security.ssl.key' to "
            "one that its CA has signed"
        )
    return certificate_principal(certificate, tls.principal_rule)


# The client's end


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client needs for TLS. Each of ``ca``, ``certificate`` and ``key`` is a file, or PEM as a text."""

    ca: str = ""  # Those that the system trusts, unless given.
    certificate: str = ""
    key: str = field(default="", repr=False)
    key_password: str = field(default=_NO_PASSWORD, repr=False)
    verify_hostname: bool = True
    # The name that the server's certificate must have, instead of that of its address.
    server_name: str = ""

    def load(self) -> ClientContext:
        """Read the files. Raises FlussError that says which of them is wrong, and what to do. Blocking."""
        return ClientContext(self._context(), self.server_name)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify_hostname
        if self.ca:
            with _as_file(self.ca, "security.ssl.ca") as file:
                _load_authorities(context, file)
        else:
            context.load_default_certs()
        if self.certificate:
            with _as_file(self.certificate, "security.ssl.certificate") as certificate:
                if not self.key:
                    _load_certificate(context, certificate, None, self.key_password)
                    return context
                with _as_file(self.key, "security.ssl.key") as key:
                    _load_certificate(context, certificate, key, self.key_password)
        return context


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What connections of a client are made with. ``server_name`` is empty if it is that of the address."""

    context: ssl.SSLContext
    server_name: str = ""


def is_pem(text: str) -> bool:
    """Whether an option holds certificates or a key itself, not the name of a file."""
    return _PEM_BEGIN in text


@contextmanager
def _as_file(text: str, key: str) -> Iterator[Path]:
    """Give a file, or a text as a file: the library takes a client's certificate from nothing else."""
    if not is_pem(text):
        file = Path(text).expanduser()
        _check_readable(file, f"'{key}': ")
        yield file
        return
    # Options that pass through properties and command lines may have their line ends escaped.
    content = text.replace("\\n", "\n").encode()
    if hasattr(os, "memfd_create"):
        descriptor, name = os.memfd_create("fluss-tls"), ""
        file = Path(f"/proc/self/fd/{descriptor}")
    else:
        # Only this user may read it, and it is gone in a moment.
        descriptor, name = tempfile.mkstemp(prefix="fluss-tls-")
        file = Path(name)
    try:
        os.write(descriptor, content)
        yield file
    finally:
        os.close(descriptor)
        if name:
            os.unlink(name)


def connect_failure(server: str, error: Exception) -> FlussError:
    """Return what a failed TLS connection means, with what to do about it. Only what may pass is a NetworkError."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return FlussError(f"the certificate of {server} {_verification_problem(error)}")
    reason = (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
    if reason in _NOT_TLS_REASONS:
        return FlussError(
            f"{server} does not speak TLS; use the address of its TLS listener, or the 'security.protocol' PLAINTEXT "
            "or sasl if it has none"
        )
    if reason in _REFUSED_CERTIFICATE_REASONS:
        return FlussError(
            f"{server} refused the certificate of this client ({_words(reason)}); set 'security.ssl.certificate' and "
            "'security.ssl.key' to one that its CA has signed"
        )
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError | EOFError):
        return NetworkError(
            f"{server} closed the connection during the TLS handshake; it may be a plaintext listener, or have no "
            "place for more clients"
        )
    return NetworkError(f"no TLS connection to {server}: {_words(reason) or error or type(error).__name__}")


# What a peer that is not one of TLS looks like to the library.
_NOT_TLS_REASONS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)
_REFUSED_CERTIFICATE_REASONS: Final = frozenset(
    {
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
    }
)
# Numbers of the library's errors about certificates.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 27})
_OTHER_NAME: Final = frozenset({62, 64})


def _verification_problem(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "has expired; renew it on the server"
    if code == _NOT_YET_VALID:
        return "is not valid yet; compare the clocks of both machines"
    if code in _UNTRUSTED:
        return (
            "is not signed by a CA that this client trusts; set 'security.ssl.ca' to the certificate of the CA that "
            "signed it"
        )
    if code in _OTHER_NAME:
        return (
            "is for another name; connect by a name that it has, or set 'security.ssl.server-name' to one "
            f"({error.verify_message})"
        )
    return f"was refused: {error.verify_message}"


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


# Files


def _check_readable(file: Path, prefix: str = "") -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise UnreadableFileError(f"{prefix}{file} cannot be read: {error.strerror}") from None


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None, password: str) -> None:
    try:
        # Always with a password: without one the library would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise FlussError(_certificate_problem(certificate, key, error)) from None


def _certificate_problem(certificate: Path, key: Path | None, error: Exception) -> str:
    reason = getattr(error, "reason", None) or ""
    where = f"the certificate {certificate}" if key is None else f"the certificate {certificate} with the key {key}"
    if reason == "KEY_VALUES_MISMATCH":
        return f"{where}: they do not belong together; give the key that the certificate was made for"
    # With a wrong password the library may find anything wrong with what it has decrypted.
    if b"ENCRYPTED" in (key or certificate).read_bytes():
        return f"{where}: the key is encrypted, and its password is missing or wrong"
    if reason == "EE_KEY_TOO_SMALL":
        return f"{where}: the key is too short to be safe; make one of 2048 bits or more, or an elliptic one"
    if "PEM" in str(error) or reason in ("NO_START_LINE", "BAD_BASE64_DECODE"):
        return f"{where}: a certificate and a private key are needed, each between BEGIN and END lines (PEM)"
    return f"{where} cannot be used: {_words(reason) or error}"


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(cafile=str(file))
    except (ssl.SSLError, OSError) as error:
        raise FlussError(
            f"{file} holds no certificate of a CA between BEGIN and END lines (PEM): "
            f"{_words(getattr(error, 'reason', None) or '') or error}"
        ) from None
