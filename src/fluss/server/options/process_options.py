"""Options about the process: its directory, its connections and their limits, metrics and quotas."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from fluss.integers import INT32_MAX
from fluss.options import DURATION_MS, INT32, MEMORY_BYTES, TEXT, ValueType, choice_of, quotas_of
from fluss.server.listener_parsing import PORT_MAX
from fluss.server.options.server_option import OptionFamily, ServerOption


class Durability(StrEnum):
    """What has happened to a record when it is acknowledged to a writer that asked for all acknowledgements."""

    FSYNC = "fsync"  # It is on the disk.
    OS = "os"  # The operating system has it: it survives the end of the process, not the loss of power.


def _permissions(text: str) -> int:
    if re.fullmatch("0?7[0-7]{2}", text) is None:
        raise ValueError
    return int(text, 8)


PERMISSIONS: Final = ValueType(
    "permissions in octal that begin with 7 for the owner, such as 0700 or 0750", _permissions
)
QUOTA_BYTES: Final = quotas_of(MEMORY_BYTES)
QUOTA_COUNTS: Final = quotas_of(INT32)
DURABILITY: Final = choice_of(Durability)


class ProcessOptions(OptionFamily):
    """What the process keeps, takes and tells."""

    __slots__ = ()

    # The process.
    data_dir = ServerOption("data.dir", TEXT, "", "The directory for everything that is kept. It has to be given.")
    data_dir_mode = ServerOption(
        "data.dir.mode",
        PERMISSIONS,
        "0700",
        "Who may use the data directory, as an octal number: 0700 is the user that the server runs as, 0750 its group, "
        "too. Files get the same without the right to execute. An existing directory that allows more is closed.",
    )
    durability = ServerOption(
        "durability",
        DURABILITY,
        Durability.FSYNC,
        "fsync: an acknowledged record is on the disk. os: the operating system has it; faster, but a loss of power "
        "can lose the last moments.",
    )
    server_id = ServerOption("tablet-server.id", INT32, "0", "The number of this server.", lowest=0)
    rack = ServerOption("tablet-server.rack", TEXT, "", "The rack of this server, as clients are told.")
    request_bytes_max = ServerOption(
        "netty.server.max-request-size",
        MEMORY_BYTES,
        "100 mb",
        "The largest request; a client that sends a larger one is disconnected.",
        lowest=64 * 1024,
        highest=INT32_MAX,
    )
    queued_requests_max = ServerOption(
        "netty.server.max-queued-requests",
        INT32,
        "500",
        "The most requests of one connection that are carried out at once; then nothing more is read from it.",
        lowest=1,
    )
    idle_time_ms_max = ServerOption(
        "netty.connection.max-idle-time",
        DURATION_MS,
        "10 min",
        "A connection without traffic for so long is closed.",
        lowest=1000,
    )

    connection_count_max = ServerOption(
        "server.max-connections",
        INT32,
        "1000",
        "The most connections of one listener; further clients are told to try later. All listeners together have no "
        "more than the process has descriptors left beside its files.",
        lowest=1,
    )
    connection_count_per_address_max = ServerOption(
        "server.max-connections-per-address",
        INT32,
        "0",
        "The most connections of one address to one listener; of IPv6, of one network (/64). 0 is half of "
        "server.max-connections, and nine tenths of it for clients on the machine itself.",
        lowest=0,
    )
    arrival_timeout_ms = ServerOption(
        "server.request-arrival-timeout",
        DURATION_MS,
        "30 s",
        "How long a request may take to arrive, besides one second for each 64 kb of it; a client that takes longer is "
        "disconnected.",
        lowest=1000,
    )
    login_timeout_ms = ServerOption(
        "server.login-timeout",
        DURATION_MS,
        "30 s",
        "A client of a SASL listener that has not logged in by then is disconnected.",
        lowest=1000,
    )
    request_memory_bytes_max = ServerOption(
        "server.buffer.memory-size",
        MEMORY_BYTES,
        "256 mb",
        "What requests that are arriving or being carried out may hold in memory; then nothing more is read from "
        "connections that hold some of it.",
        lowest=1024 * 1024,
    )

    metrics_port = ServerOption(
        "metrics.reporter.prometheus.port",
        INT32,
        "0",
        "Where metrics can be read over HTTP, as http://host:port/metrics in the Prometheus text format; 0 is nowhere.",
        lowest=0,
        highest=PORT_MAX,
    )
    metrics_host = ServerOption(
        "metrics.reporter.prometheus.host",
        TEXT,
        "127.0.0.1",
        "The address for it. Whoever can reach it can read them, names of users and addresses of clients among them.",
    )

    # Quotas. They can be changed while the server runs.
    produce_quota = ServerOption(
        "quota.produce.bytes-per-second",
        MEMORY_BYTES,
        "0 b",
        "What each user, and each address of anonymous clients, may write per second; whoever writes more is answered "
        "later. 0 is no limit.",
        lowest=0,
    )
    produce_quota_overrides = ServerOption(
        "quota.produce.bytes-per-second.overrides",
        QUOTA_BYTES,
        "",
        "The same for some of them: name=bytes, several separated by commas. A name is that of a user or an address; "
        "ANONYMOUS is every other address of anonymous clients.",
    )
    fetch_quota = ServerOption(
        "quota.fetch.bytes-per-second",
        MEMORY_BYTES,
        "0 b",
        "What each user, and each address of anonymous clients, may fetch, look up and scan per second. 0 is no limit.",
        lowest=0,
    )
    fetch_quota_overrides = ServerOption(
        "quota.fetch.bytes-per-second.overrides", QUOTA_BYTES, "", "The same for some of them: name=bytes."
    )
    request_quota = ServerOption(
        "quota.requests-per-second",
        INT32,
        "0",
        "How many requests each user, and each address of anonymous clients, may send per second. 0 is no limit.",
        lowest=0,
    )
    request_quota_overrides = ServerOption(
        "quota.requests-per-second.overrides", QUOTA_COUNTS, "", "The same for some of them: name=requests."
    )
