"""Options about listeners: where the server listens, and who may come in.

Some options can be given to one listener alone, with its name in lower case in the key:

    security.ssl.certificate.file                              all listeners that speak TLS
    security.ssl.listener.name.client.certificate.file         the listener CLIENT
    security.sasl.listener.name.client.plain.jaas.config       its users
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar, cast

from fluss.errors import FlussError
from fluss.net.tls import ClientAuth, PrincipalRule, TlsVersion
from fluss.options import BOOLEAN, DURATION_MS, TEXT, ValueType, choice_of, suggestion
from fluss.protocol.sasl import Principal
from fluss.server.authorizer import parse_super_users
from fluss.server.listener_parsing import parse_endpoints, parse_jaas, parse_protocols, parse_users
from fluss.server.options.server_option import OptionFamily, ServerOption, Setting, invalid_config, variable_name

T = TypeVar("T")

DEFAULT_LISTENER_NAME: Final = "FLUSS"
DEFAULT_PORT: Final = 9123
_TLS_PREFIX: Final = "security.ssl."
_OWN_KEY: Final = re.compile(r"security\.(?P<kind>ssl|sasl)\.listener\.name\.(?P<listener>[^.]+)\.(?P<rest>.+)")


def _comma_separated(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _super_users(text: str) -> frozenset[Principal]:
    users = parse_super_users(text)
    if any("," in user.name for user in users):
        raise FlussError("users are separated by semicolons, not by commas")
    return users


ENDPOINTS: Final = ValueType("NAME://host:port, several separated by commas", parse_endpoints)
PROTOCOLS: Final = ValueType("NAME:protocol, several separated by commas", parse_protocols)
USERS: Final = ValueType("user:password, several separated by commas", parse_users)
JAAS: Final = ValueType("a JAAS text", parse_jaas)
NAMES: Final = ValueType("names separated by commas", _comma_separated)
SUPER_USERS: Final = ValueType("type:name, several separated by semicolons, such as User:admin", _super_users)
CLIENT_AUTH: Final = choice_of(ClientAuth)
PRINCIPAL_RULE: Final = choice_of(PrincipalRule)
TLS_VERSION: Final = choice_of(TlsVersion)


class ListenerOptions(OptionFamily):
    """Where the server listens, and who may come in."""

    __slots__ = ()

    bind_listeners = ServerOption(
        "bind.listeners",
        ENDPOINTS,
        f"{DEFAULT_LISTENER_NAME}://127.0.0.1:{DEFAULT_PORT}",
        "The addresses to listen on: NAME://host:port, several separated by commas. Port 0 is a free port; the host "
        "0.0.0.0 is every address of the machine.",
    )
    advertised_listeners = ServerOption(
        "advertised.listeners",
        ENDPOINTS,
        "",
        "The addresses clients are told to connect to, by listener name. Unless given, the ones that are listened on; "
        "instead of 0.0.0.0 the name of the machine.",
    )
    internal_listener_name = ServerOption(
        "internal.listener.name",
        TEXT,
        "",
        "The listener for servers and operators: whoever comes in by it needs no rights. Unless it is named, there is "
        "none. It cannot be the only one, and without authentication it has to be on a loopback address.",
    )
    security_protocols = ServerOption(
        "security.protocol.map",
        PROTOCOLS,
        "",
        "PLAINTEXT, SASL (users log in), SSL (TLS) or SASL_SSL (both) by listener name, such as CLIENT:SASL_SSL. A "
        "listener that is not named is a plaintext one.",
    )
    tls_certificate_file = ServerOption(
        "security.ssl.certificate.file",
        TEXT,
        "",
        "The certificate of listeners that speak TLS, as PEM; the file may hold the certificates between it and the "
        "CA, too. With security.ssl.listener.name.<listener in lower case>.certificate.file a listener has one of its "
        "own, and so on for the other options of TLS. Files that change are loaded again.",
    )
    tls_key_file = ServerOption(
        "security.ssl.key.file",
        TEXT,
        "",
        "The private key of the certificate, as PEM. Unless given, it is in the file of the certificate.",
    )
    tls_key_password = ServerOption(
        "security.ssl.key.password", TEXT, "", "The password of an encrypted private key.", secret=True
    )
    tls_key_password_file = ServerOption(
        "security.ssl.key.password.file", TEXT, "", "A file that holds the password of an encrypted private key."
    )
    tls_client_auth = ServerOption(
        "security.ssl.client.auth",
        CLIENT_AUTH,
        ClientAuth.NONE,
        "Whether clients have to show a certificate: none, requested (one that is shown is checked), or required. On "
        "an SSL listener it says who the client is; on a SASL_SSL one the login does.",
    )
    tls_client_ca_file = ServerOption(
        "security.ssl.client.ca.file", TEXT, "", "The CAs that sign certificates of clients, as PEM."
    )
    tls_client_principal = ServerOption(
        "security.ssl.client.principal",
        PRINCIPAL_RULE,
        PrincipalRule.CN,
        "Which part of a client's certificate is the user's name: cn, the common name; dn, the whole subject; san, the "
        "one subject alternative name.",
    )
    tls_min_version = ServerOption(
        "security.ssl.min-version", TLS_VERSION, TlsVersion.V1_2, "The oldest version of TLS: TLSv1.2 or TLSv1.3."
    )
    tls_handshake_timeout_ms = ServerOption(
        "security.ssl.handshake-timeout",
        DURATION_MS,
        "10 s",
        "How long a client may take from connecting to the end of its TLS handshake.",
        lowest=1,
    )
    security_reload_interval_ms = ServerOption(
        "security.reload-interval",
        DURATION_MS,
        "10 s",
        "How often the files of certificates and users are looked at; those that have changed are loaded again. SIGHUP "
        "has it done at once. 0 s leaves it to that.",
        lowest=0,
    )
    insecure_listeners_allowed = ServerOption(
        "security.insecure-listeners.allowed",
        BOOLEAN,
        "false",
        "Whether listeners that ask nobody who they are may be reached from other machines; --insecure says the same. "
        "Otherwise they have to be on a loopback address, such as 127.0.0.1.",
    )
    sasl_mechanisms = ServerOption(
        "security.sasl.enabled.mechanisms",
        NAMES,
        "PLAIN",
        "How users may log in: PLAIN, by sending the password; SCRAM-SHA-256, by proving to know it; or both, "
        "separated by commas.",
    )
    sasl_users = ServerOption(
        "security.sasl.plain.credentials",
        USERS,
        "",
        "The users of SASL listeners: user:password, several separated by commas. Instead of a password, its hash can "
        "stand here and in the other options for users; python -m fluss.server hash-password makes it.",
        secret=True,
    )
    sasl_users_file = ServerOption(
        "security.sasl.users.file",
        TEXT,
        "",
        "More users of SASL listeners: a file with a line user:hash for each, which only its owner may read. When it "
        "changes, it is loaded again. It counts more than the other options for users.",
    )
    sasl_jaas_users = ServerOption(
        "security.sasl.plain.jaas.config",
        JAAS,
        "",
        'More users of SASL listeners, as a JAAS text: <login module> required user_<name>="<password>";. With '
        "security.sasl.listener.name.<listener in lower case>.plain.jaas.config a listener has users of its own.",
        secret=True,
    )
    authorizer_enabled = ServerOption(
        "authorizer.enabled", BOOLEAN, "false", "Whether users need rights (ACLs) for what they do."
    )
    authorizer_type = ServerOption("authorizer.type", TEXT, "default", "Who decides; default is the one there is.")
    super_users = ServerOption(
        "super.users",
        SUPER_USERS,
        "",
        "Users who may do everything, such as User:admin; several separated by semicolons.",
    )
    principal_ignore_case = ServerOption(
        "security.acl.principal.ignore-case", BOOLEAN, "false", "Whether user names in rights match in any case."
    )


# The options that a listener can have for itself, by the key for all listeners.
_OWN_OPTIONS: Final[Mapping[str, ServerOption[Any]]] = {
    option.key: option
    for option in ListenerOptions.members()
    if option.key.startswith(_TLS_PREFIX) or option is ListenerOptions.sasl_jaas_users
}


class OwnOptions:
    """What single listeners have for themselves, by the name of the listener in lower case."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, Any]] = {}

    @property
    def users(self) -> Mapping[str, Mapping[str, str]]:
        """The users of listeners that have their own."""
        jaas_key = ListenerOptions.sasl_jaas_users.key
        return {listener: values[jaas_key] for listener, values in self._values.items() if jaas_key in values}

    @property
    def listeners_with_tls_options(self) -> Collection[str]:
        return [
            listener for listener, values in self._values.items() if any(key.startswith(_TLS_PREFIX) for key in values)
        ]

    def value(self, option: ServerOption[T], listener: str, of_all: T) -> T:
        """Return the value of an option for a listener: its own, or that of all."""
        return cast(T, self._values.get(listener.lower(), {}).get(option.key, of_all))

    def take(self, key: str, setting: Setting) -> bool:
        """Take a value if the key is one of a listener alone; return whether it is."""
        match = _OWN_KEY.fullmatch(key)
        if match is None:
            return False
        option = own_option(key)
        if option is None:
            prefix = f"security.{match['kind']}."
            known = [key.removeprefix(prefix) for key in _OWN_OPTIONS if key.startswith(prefix)]
            raise invalid_config(f"unknown option '{key}' ({setting.origin}){suggestion(match['rest'], known)}")
        own = ServerOption(key, option.value_type, "", "", lowest=option.lowest, secret=option.secret)
        self._values.setdefault(match["listener"].lower(), {})[option.key] = own.value_of(setting)
        return True


def own_option(key: str) -> ServerOption[Any] | None:
    """Return the option of all listeners that a key gives to one of them; None if it does not."""
    match = _OWN_KEY.fullmatch(key)
    return None if match is None else _OWN_OPTIONS.get(f"security.{match['kind']}.{match['rest']}")


def own_settings(environment: Mapping[str, str]) -> dict[str, Setting]:
    """Find the options of single listeners among the variables; return their texts by key."""
    settings: dict[str, Setting] = {}
    for variable, text in environment.items():
        for own_key, pattern in _OWN_VARIABLES:
            match = pattern.fullmatch(variable)
            if match is not None:
                settings[own_key.replace("*", match[1].lower())] = Setting(text, f"environment {variable}")
                break
    return settings


def _own_key(key: str) -> str:
    """Return the key of one listener alone for that of all, with a star instead of the listener."""
    security, kind, rest = key.split(".", 2)
    return f"{security}.{kind}.listener.name.*.{rest}"


# The longest first: the end of a variable may be that of several options.
_OWN_VARIABLES: Final = [
    (own_key, re.compile(variable_name(own_key).replace("*", r"(\w+)")))
    for own_key in sorted(map(_own_key, _OWN_OPTIONS), key=len, reverse=True)
]
