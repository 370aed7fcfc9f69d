"""Options about HTTP: the page, the metrics and the health of the server, on a port of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fluss.options import DURATION_MS, ValueType, choice_of
from fluss.server.listener_parsing import PORT_MAX, address_text
from fluss.server.options.server_option import OptionFamily, ServerOption

DEFAULT_HTTP_PORT: Final = 9180
_OFF: Final = "off"
_LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(
    r"(?:(?P<scheme>https?)://)?(?:(?:\[(?P<ipv6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^:/\s\[\]]+))?:)?(?P<port>[0-9]{1,5})/?"
)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where HTTP is spoken, and whether over TLS. Port 0 asks the system for a free one."""

    host: str
    port: int
    is_tls: bool

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{address_text(self.host, self.port)}"


class MonitoringAccess(StrEnum):
    """Who may read metrics and health where users log in."""

    LOCAL = "local"  # Everybody on this machine; others with the name and password of a user.
    OPEN = "open"  # Everybody who reaches the port.
    USERS = "users"  # Users with a right to describe the cluster.


def _address(text: str) -> HttpAddress | None:
    if not text or text.lower() == _OFF:
        return None
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > PORT_MAX:
        raise ValueError
    return HttpAddress(match["ipv6"] or match["host"] or _LOOPBACK, int(match["port"]), match["scheme"] == "https")


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in text.split(",") if name.strip())


HTTP_ADDRESS: Final = ValueType(
    f"a port, host:port, http://host:port, https://host:port, or {_OFF}, such as {_LOOPBACK}:{DEFAULT_HTTP_PORT}",
    _address,
)
HOST_NAMES: Final = ValueType("names of hosts separated by commas", _names)
MONITORING_ACCESS: Final = choice_of(MonitoringAccess)


class HttpOptions(OptionFamily):
    """The page, metrics and health over HTTP."""

    __slots__ = ()

    http_address = ServerOption(
        "http.listener",
        HTTP_ADDRESS,
        _OFF,
        "Where the server can be looked at over HTTP: the page at /, /metrics for Prometheus, /health, and /api as "
        f"JSON. host:port; a port alone is on {_LOOPBACK}. --http is {_LOOPBACK}:{DEFAULT_HTTP_PORT}. With "
        "https://host:port it speaks TLS with the certificate of security.ssl.*, or with one of its own "
        "(security.ssl.listener.name.http.certificate.file). Where clients log in, so do the readers of the page, "
        "with the same names, passwords and rights. off is nowhere.",
    )
    http_hosts = ServerOption(
        "http.hosts",
        HOST_NAMES,
        "",
        "Further names by which browsers reach the page if nobody has to log in, such as that of a proxy. Addresses, "
        "localhost and the name of this machine always work; others are refused, because a foreign page could use "
        "them to read from this one.",
    )
    http_monitoring_access = ServerOption(
        "http.monitoring.access",
        MONITORING_ACCESS,
        MonitoringAccess.LOCAL,
        "Who may read /metrics, and the reasons of /health, where users log in: local, every program on this machine "
        "and users from elsewhere or through a proxy; open, everybody; users, only users, who need the right to "
        "describe the cluster. Whether the server is ready is told to everybody.",
    )
    http_session_ms = ServerOption(
        "http.session-timeout",
        DURATION_MS,
        "12 h",
        "How long a user of the page stays logged in.",
        lowest=60_000,
    )
