"""The listeners a configuration asks for: where each one binds, whom it lets in, and what address clients are told."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluss.errors import ErrorCode, FlussError
from fluss.net.admission import is_loopback
from fluss.net.tls import ClientAuth, ServerTls
from fluss.options import suggestion
from fluss.protocol.sasl import MECHANISMS, UserTable
from fluss.server.listener_parsing import Endpoint, SecurityProtocol, address_text, parse_users
from fluss.server.options.server_option import ServerOption
from fluss.server.options.server_options import ServerOptions
from fluss.server.security_files import UsersFile

# What binds to every address of the machine, but is not an address one can connect to.
_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})
_LOOPBACK_HOST = "127.0.0.1"
# The name of the HTTP listener in options that can be given to one listener alone.
HTTP_LISTENER_NAME = "http"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """One listener before it is started."""

    endpoint: Endpoint
    protocol: SecurityProtocol
    # The users of this listener alone, with their passwords; None if it has those of all listeners.
    own_users: Mapping[str, str] | None = field(repr=False)
    advertised: Endpoint | None
    tls: ServerTls | None = None

    @property
    def is_authenticated(self) -> bool:
        """Whether clients have to say who they are, and to prove it."""
        has_certificates = self.tls is not None and self.tls.client_auth is ClientAuth.REQUIRED
        return self.protocol.uses_sasl or has_certificates

    @property
    def needs_shared_users(self) -> bool:
        return self.protocol.uses_sasl and self.own_users is None

    def advertised_address(self, port: int) -> tuple[str, int]:
        """Return host and port for clients. ``port`` is the one that is listened on."""
        if self.advertised is not None:
            return self.advertised.host, self.advertised.port or port
        host = self.endpoint.host
        return (_machine_name() if host in _WILDCARD_HOSTS else host), port


@dataclass(frozen=True, slots=True)
class RunningListener:
    """One listener that takes clients in: where it listens, and the address they are told."""

    name: str
    protocol: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.name, self.host, self.port)

    def __str__(self) -> str:
        return f"{address_text(self.host, self.port)} ({self.name}, {self.protocol})"


def plan_listeners(options: ServerOptions) -> tuple[ListenerPlan, ...]:
    """Check what the options say about listeners; everything that is wrong is a FlussError with code 39."""
    endpoints = options.bind_listeners
    if not endpoints:
        raise _invalid(ServerOptions.bind_listeners, "it names no listener; give at least one NAME://host:port")
    names = [endpoint.name for endpoint in endpoints]
    # A name that is misspelt must not leave a listener without protection.
    _check_known(ServerOptions.security_protocols, options.security_protocols, names)
    advertised = {endpoint.name: endpoint for endpoint in options.advertised_listeners}
    _check_known(ServerOptions.advertised_listeners, advertised, names)
    _check_own_users(options, names)
    _check_own_tls(options, names)
    plans = []
    for endpoint in endpoints:
        protocol = options.security_protocols.get(endpoint.name, SecurityProtocol.PLAINTEXT)
        own_users = options.listener_users.get(endpoint.name.lower())
        if protocol.uses_sasl:
            _check_users(options, endpoint.name, own_users)
        tls = tls_of(options, endpoint.name) if protocol.uses_tls else None
        plans.append(ListenerPlan(endpoint, protocol, own_users, advertised.get(endpoint.name), tls))
    if options.authorizer_enabled:
        _check_internal(options.internal_listener_name, plans)
    if not options.insecure_listeners_allowed:
        _check_reach(plans)
    return tuple(plans)


def _named(name: str, plans: Iterable[ListenerPlan]) -> ListenerPlan | None:
    return next((plan for plan in plans if plan.endpoint.name == name), None)


def warn_of_listeners(options: ServerOptions, plans: Sequence[ListenerPlan]) -> None:
    """Log what is allowed and yet better known to the operator."""
    for plan in plans:
        if not plan.is_authenticated and not is_local(plan.endpoint.host):
            logger.warning("listener %s lets everybody in who reaches it", plan.endpoint)
    if not options.authorizer_enabled:
        if options.super_users:
            logger.warning(
                "'%s' has no effect: every user may do everything as long as '%s' is off",
                ServerOptions.super_users.key,
                ServerOptions.authorizer_enabled.key,
            )
        return
    name = options.internal_listener_name
    if _named(name, plans) is not None:
        logger.info("clients of listener %s need no rights", name)
        return
    if name:
        names = [plan.endpoint.name for plan in plans]
        logger.warning(
            "'%s' is '%s', and there is no such listener%s",
            *(ServerOptions.internal_listener_name.key, name, suggestion(name, names)),
        )
    if not options.super_users:
        logger.warning(
            "'%s' is on, and there is neither a super user nor an internal listener: no user can be given rights; "
            "set '%s' to User:<name>",
            ServerOptions.authorizer_enabled.key,
            ServerOptions.super_users.key,
        )


class SharedUsers:
    """The users of all SASL listeners that have none of their own.

    There are three kinds: those of the JAAS text, which stay; those of the credentials, which can be replaced while the
    server runs; those of a file. A user that is in several has the password of the last of these. Super users have the
    password of the server's configuration (``own_credentials``, the JAAS text, or the file), whatever the credentials
    are replaced by.
    """

    def __init__(
        self,
        fixed: Mapping[str, str],
        credentials: str | None = None,
        *,
        is_needed: bool = True,
        own_credentials: Mapping[str, str] | None = None,
        is_super_user: Callable[[str], bool] = lambda name: False,
        file: UsersFile | None = None,
        salt_key: bytes | None = None,
    ) -> None:
        self._fixed = fixed
        self._is_super_user = is_super_user
        own = own_credentials or {}
        self._super_users = {name: password for name, password in own.items() if is_super_user(name)}
        self._credentials = credentials
        # Whether there is a listener whose clients would be locked out without them.
        self._is_needed = is_needed
        self._file = file
        self._salt_key = salt_key
        # Called after users have changed: sessions of users with another password than they have now have to end.
        self.on_change: list[Callable[[], None]] = []
        self.refresh()

    @property
    def table(self) -> UserTable:
        """The users as they are now."""
        return self._table

    def check(self, credentials: str | None) -> None:
        """Refuse credentials that cannot be read, or that would leave no user who can log in."""
        if self._is_needed and not self._users(credentials):
            raise FlussError("nobody could log in any more")

    def replace(self, credentials: str | None) -> None:
        """Take other credentials."""
        self._credentials = credentials
        self.refresh()

    def refresh(self) -> None:
        """Take the users of the file as they are now."""
        self._table = UserTable(self._users(self._credentials), salt_key=self._salt_key)
        for tell in self.on_change:
            tell()

    def version_of(self, username: str) -> bytes | None:
        """Return what changes when a user gets another password; None for a user that does not exist."""
        return self._table.version_of(username)

    def _users(self, credentials: str | None) -> dict[str, str]:
        given = parse_users(credentials or "")
        others = {name: password for name, password in given.items() if not self._is_super_user(name)}
        from_file = {} if self._file is None else self._file.users
        return {**self._fixed, **others, **self._super_users, **from_file}


def _check_users(options: ServerOptions, listener_name: str, own_users: Mapping[str, str] | None) -> None:
    unknown = [name for name in options.sasl_mechanisms if name.upper() not in MECHANISMS]
    if unknown or not options.sasl_mechanisms:
        raise _invalid(ServerOptions.sasl_mechanisms, f"name one or both of {', '.join(MECHANISMS)}")
    has_shared = options.sasl_jaas_users or options.sasl_users or options.sasl_users_file
    if not (own_users if own_users is not None else has_shared):
        raise _invalid(
            ServerOptions.security_protocols,
            f"the listener {listener_name} asks for user name and password, but there are no users; "
            f"set '{ServerOptions.sasl_users.key}' to user:password, or '{ServerOptions.sasl_users_file.key}' to a "
            "file of them",
        )


def _check_internal(name: str, plans: Sequence[ListenerPlan]) -> None:
    """Refuse an internal listener by which clients would come in, for whom rights are meant."""
    internal = _named(name, plans)
    if internal is None:
        return
    if len(plans) == 1:
        raise _invalid(
            ServerOptions.internal_listener_name,
            f"{name} is the only listener, so '{ServerOptions.authorizer_enabled.key}' would have no effect; "
            f"leave it out, or add a listener for clients to '{ServerOptions.bind_listeners.key}'",
        )
    if not internal.is_authenticated and not is_local(internal.endpoint.host):
        raise _invalid(
            ServerOptions.internal_listener_name,
            f"clients of {internal.endpoint} need no rights, and are not asked who they are; bind it to 127.0.0.1, or "
            f"add {name}:SASL to '{ServerOptions.security_protocols.key}'",
        )


def _check_reach(plans: Iterable[ListenerPlan]) -> None:
    """Refuse listeners that other machines reach and that let clients in without a login."""
    for plan in plans:
        if not plan.is_authenticated and not is_local(plan.endpoint.host):
            raise _invalid(
                ServerOptions.bind_listeners,
                f"{plan.endpoint} would let everybody in who can reach this machine; bind it to 127.0.0.1, ask for "
                f"passwords with '{ServerOptions.security_protocols.key}' = '{plan.endpoint.name}:SASL', or say "
                f"--insecure ('{ServerOptions.insecure_listeners_allowed.key}' = 'true') if that is what you want",
            )


def is_local(host: str) -> bool:
    """Whether only this machine reaches what listens there; a name that is not known counts as reachable."""
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(map(is_loopback, addresses))


def _check_known(option: ServerOption[Any], given: Collection[str], names: Collection[str]) -> None:
    for name in given:
        if name not in names:
            raise _invalid(
                option, f"there is no listener {name} in '{ServerOptions.bind_listeners.key}'{suggestion(name, names)}"
            )


def _check_own_users(options: ServerOptions, names: Collection[str]) -> None:
    known = {name.lower() for name in names}
    for name in options.listener_users:
        if name not in known:
            raise FlussError(
                f"'security.sasl.listener.name.{name}.plain.jaas.config': there is no listener of that name"
                f"{suggestion(name, known)}",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )


def _check_own_tls(options: ServerOptions, names: Collection[str]) -> None:
    known = {HTTP_LISTENER_NAME, *(name.lower() for name in names)}
    for name in options.listeners_with_tls_options:
        if name not in known:
            raise FlussError(
                f"'security.ssl.listener.name.{name}': there is no listener of that name{suggestion(name, known)}",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )


def tls_of(options: ServerOptions, listener_name: str) -> ServerTls:
    """Return what a listener needs for TLS. The files are read when it is started."""

    def file(option: ServerOption[str]) -> Path | None:
        text = options.tls_value(option, listener_name)
        return Path(text) if text else None

    certificate_file = file(ServerOptions.tls_certificate_file)
    if certificate_file is None:
        raise _invalid(
            ServerOptions.security_protocols,
            f"the listener {listener_name} speaks TLS, but has no certificate; set "
            f"'{ServerOptions.tls_certificate_file.key}' to its file",
        )
    client_auth = options.tls_value(ServerOptions.tls_client_auth, listener_name)
    client_ca_file = file(ServerOptions.tls_client_ca_file)
    if client_auth is not ClientAuth.NONE and client_ca_file is None:
        raise _invalid(
            ServerOptions.tls_client_auth,
            f"certificates of clients are {client_auth} on the listener {listener_name}, but no CA is trusted to sign "
            f"them; set '{ServerOptions.tls_client_ca_file.key}' to its certificate",
        )
    return ServerTls(
        certificate_file,
        file(ServerOptions.tls_key_file),
        options.tls_value(ServerOptions.tls_key_password, listener_name),
        file(ServerOptions.tls_key_password_file),
        client_auth,
        client_ca_file,
        options.tls_value(ServerOptions.tls_client_principal, listener_name),
        options.tls_value(ServerOptions.tls_min_version, listener_name),
        options.tls_value(ServerOptions.tls_handshake_timeout_ms, listener_name) / 1000,
    )


def _machine_name() -> str:
    """Return a name for this machine: its host name if that leads anywhere, so that clients elsewhere can connect."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return _LOOPBACK_HOST
    return name


def _invalid(option: ServerOption[Any], reason: str) -> FlussError:
    return FlussError(f"'{option.key}': {reason}", ErrorCode.INVALID_CONFIG_EXCEPTION)
