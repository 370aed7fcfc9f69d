"""What a listener is told: its address, who may come in, and the limits of its connections."""

from __future__ import annotations

from dataclasses import dataclass, field

from fluss.net.login import UserSource
from fluss.net.tls import ServerCertificate
from fluss.protocol.api import ServerRole
from fluss.protocol.frame import REQUEST_FRAME_BYTES_MAX
from fluss.protocol.sasl import PLAIN


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """One address to listen on, who may come in, and the limits for each connection.

    limit                     what happens when it is reached
    frame_bytes_max           the client gets a server failure, and the connection is closed
    connections_max           a further client gets a server failure, and its connection is closed
    connections_per_address_max   the same for those of one address; None: half of them all, nine of ten for loopback
    in_flight_requests_max    no further request of the connection is started, then none is read
    in_flight_bytes_max       of all connections: those that have sent some of it are not read; half of it is for
                              requests that are being carried out, half for large ones that are arriving
    unsent_bytes_max          no further request of the connection is started or read
    unsent_bytes_total_max    of all connections: those that leave some of it untaken are treated in the same way
    stalled_timeout_s         a client that takes none of its waiting answers for so long is disconnected
    arrival_timeout_s         a client that takes longer to send a request, besides a second for each 64 KiB of it, is
                              disconnected
    login_timeout_s           a client that has to log in and has not done so by then is disconnected
    idle_timeout_s            a connection without traffic for so long is closed
    """

    name: str = "FLUSS"
    host: str = "127.0.0.1"
    port: int = 0
    server_type: ServerRole | None = None
    # Its users, or a function that knows their passwords; without either, all clients are anonymous.
    check_credentials: UserSource | None = field(default=None, repr=False)
    mechanisms: tuple[str, ...] = (PLAIN,)
    # With it the listener speaks TLS and nothing else. Without users, a client is whom its certificate names.
    certificate: ServerCertificate | None = field(default=None, repr=False)
    # What is there over HTTP, in a sentence for browsers that try this port.
    http_page: str = ""
    frame_bytes_max: int = REQUEST_FRAME_BYTES_MAX
    connections_max: int = 1000
    connections_per_address_max: int | None = None
    in_flight_requests_max: int = 500
    in_flight_bytes_max: int = 512 * 1024 * 1024
    unsent_bytes_max: int = 64 * 1024 * 1024
    unsent_bytes_total_max: int = 512 * 1024 * 1024
    stalled_timeout_s: float = 60.0
    arrival_timeout_s: float = 30.0
    login_timeout_s: float = 30.0
    idle_timeout_s: float = 600.0
