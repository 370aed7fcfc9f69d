"""Server options: every key with its default and its meaning, and the ``ServerOptions`` that hold the values.

The class body of ``ServerOptions`` is the table of options. A value comes from the first of: an argument, the
environment (``FLUSS_`` and the key in capitals with underscores), a configuration file, the default.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar, cast, overload

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.net.tls import ClientAuth, PrincipalRule, TlsVersion
from fluss.options import (
    BOOLEAN,
    DURATION_MS,
    HIDDEN,
    INT32,
    MEMORY_BYTES,
    RATIO,
    TEXT,
    Option,
    ValueType,
    choice_of,
    format_value,
    is_secret_key,
    suggestion,
)
from fluss.protocol.sasl import Principal
from fluss.server.authorizer import parse_super_users
from fluss.server.listener_parsing import PORT_MAX, parse_endpoints, parse_jaas, parse_protocols, parse_users
from fluss.server.option_sources import Setting, is_upstream_only, read_options_file
from fluss.server.quota_options import overrides_of

T = TypeVar("T")

DEFAULT_LISTENER_NAME: Final = "FLUSS"
DEFAULT_PORT: Final = 9123
_ENVIRONMENT_PREFIX: Final = "FLUSS_"
_LISTENER_JAAS_KEY: Final = re.compile(r"security\.sasl\.listener\.name\.(?P<listener>[^.]+)\.plain\.jaas\.config")
_TLS_PREFIX: Final = "security.ssl."
_LISTENER_TLS_KEY: Final = re.compile(r"security\.ssl\.listener\.name\.(?P<listener>[^.]+)\.(?P<rest>.+)")
_LISTENER_TLS_VARIABLE: Final = re.compile(r"FLUSS_SECURITY_SSL_LISTENER_NAME_(?P<rest>\w+)")
_LISTENER_JAAS_VARIABLE: Final = re.compile(r"FLUSS_SECURITY_SASL_LISTENER_NAME_(?P<listener>\w+)_PLAIN_JAAS_CONFIG")


class Durability(StrEnum):
    """What has happened to a record when it is acknowledged to a writer that asked for all acknowledgements."""

    FSYNC = "fsync"  # It is on the disk.
    OS = "os"  # The operating system has it: it survives the end of the process, not the loss of power.


def _comma_separated(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _super_users(text: str) -> frozenset[Principal]:
    users = parse_super_users(text)
    if any("," in user.name for user in users):
        raise FlussError("users are separated by semicolons, not by commas")
    return users


def _permissions(text: str) -> int:
    if re.fullmatch("0?7[0-7]{2}", text) is None:
        raise ValueError
    return int(text, 8)


PERMISSIONS: Final = ValueType(
    "permissions in octal that begin with 7 for the owner, such as 0700 or 0750", _permissions
)
ENDPOINTS: Final = ValueType("NAME://host:port, several separated by commas", parse_endpoints)
PROTOCOLS: Final = ValueType("NAME:protocol, several separated by commas", parse_protocols)
USERS: Final = ValueType("user:password, several separated by commas", parse_users)
JAAS: Final = ValueType("a JAAS text", parse_jaas)
NAMES: Final = ValueType("names separated by commas", _comma_separated)
SUPER_USERS: Final = ValueType("type:name, several separated by semicolons, such as User:admin", _super_users)
QUOTA_BYTES: Final = overrides_of(MEMORY_BYTES)
QUOTA_COUNTS: Final = overrides_of(INT32)
DURABILITY: Final = choice_of(Durability)
CLIENT_AUTH: Final = choice_of(ClientAuth)
PRINCIPAL_RULE: Final = choice_of(PrincipalRule)
TLS_VERSION: Final = choice_of(TlsVersion)


def _variable(key: str) -> str:
    return _ENVIRONMENT_PREFIX + re.sub("[.-]", "_", key).upper()


class ServerOption(Option[T]):
    """An option of servers, whose default is a text. On ``ServerOptions`` it is the property with the value."""

    @overload
    def __get__(self, options: None, owner: type) -> ServerOption[T]: ...
    @overload
    def __get__(self, options: ServerOptions, owner: type) -> T: ...
    def __get__(self, options: ServerOptions | None, owner: type) -> ServerOption[T] | T:
        return self if options is None else cast(T, options._values[self.key])

    @property
    def environment_variable(self) -> str:
        return _variable(self.key)

    def value_of(self, setting: Setting) -> T:
        """Read the value; a text that is none is a FlussError that says where the text stands."""
        try:
            return self.read(setting.text)
        except FlussError as error:
            raise _invalid(f"'{self.key}' ({setting.origin}): {error.message}") from None
        except ValueError as error:
            shown = HIDDEN if self.secret else setting.text
            raise _invalid(f"'{self.key}' is '{shown}' ({setting.origin}): {error}") from None

    def _below_lowest(self) -> str:
        return f"expected {self.value_type.expected}, not below {self.lowest}{self.value_type.unit}"

    def _above_highest(self) -> str:
        return f"expected {self.value_type.expected}, not above {self.highest}{self.value_type.unit}"


class ServerOptions:
    """The options of a server, checked one by one and together. They do not change.

    ``ServerOptions({"data.dir": "/data"})`` takes its values from a mapping and from nowhere else; ``load`` looks into
    the environment and a file, too. Keys that only have a meaning in other servers of this protocol are listed in
    ``ignored_keys``; unknown ones are an error.
    """

    # Where the server listens, and who may come in.
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

    # Tables.
    default_bucket_count = ServerOption(
        "default.bucket.number", INT32, "1", "The buckets of a table that does not say.", lowest=1
    )
    default_replication_factor = ServerOption(
        "default.replication.factor", INT32, "1", "The replicas of a bucket. This server keeps one.", lowest=1
    )
    bucket_count_max = ServerOption(
        "max.bucket.num", INT32, "4096", "The most buckets of a table, or of each of its partitions.", lowest=1
    )
    total_bucket_count_max = ServerOption(
        "server.max-buckets",
        INT32,
        "0",
        "The most buckets of all tables and partitions together. Whatever would make more is refused; what is there "
        "already stays. 0 means one for every 16 kb of the memory of the machine or container, but at least 16384.",
        lowest=0,
    )
    partition_count_max = ServerOption("max.partition.num", INT32, "1000", "The most partitions of a table.", lowest=1)
    auto_partition_check_interval_ms = ServerOption(
        "auto-partition.check.interval",
        DURATION_MS,
        "10 min",
        "How often partitions by time are created and dropped.",
        lowest=1,
    )
    log_tables_allowed = ServerOption(
        "allow.create.log.tables", BOOLEAN, "true", "Whether tables without a primary key may be created."
    )
    kv_tables_allowed = ServerOption(
        "allow.create.kv.tables", BOOLEAN, "true", "Whether tables with a primary key may be created."
    )

    producer_offsets_ttl_ms = ServerOption(
        "coordinator.producer-offsets.ttl",
        DURATION_MS,
        "24 h",
        "How long offsets that a producer has registered are kept, unless it says otherwise.",
        lowest=1,
    )
    producer_offsets_ttl_ms_max = ServerOption(
        "coordinator.producer-offsets.max-ttl",
        DURATION_MS,
        "7 d",
        "The longest time that a producer can ask for; longer ones count as this, or as the time above if that is "
        "longer.",
        lowest=1,
    )
    producers_per_user_max = ServerOption(
        "coordinator.producer-offsets.max-per-user",
        INT32,
        "1000",
        "The most producers of one user whose offsets are kept; further ones are refused with code 63.",
        lowest=1,
    )
    producer_offsets_count_max = ServerOption(
        "coordinator.producer-offsets.max-offsets",
        INT32,
        "262144",
        "The most offsets of buckets that are kept for all producers together, where a producer counts as one more; "
        "further ones are refused with code 63.",
        lowest=1,
    )
    producer_offsets_cleanup_interval_ms = ServerOption(
        "coordinator.producer-offsets.cleanup-interval",
        DURATION_MS,
        "1 h",
        "How often outlived offsets of producers are looked for.",
        lowest=1,
    )

    # Logs.
    log_segment_bytes_max = ServerOption(
        "log.segment.file-size",
        MEMORY_BYTES,
        "1 gb",
        "The size at which a new segment file is begun. A larger batch gets a file of its own.",
        lowest=1,
        highest=INT32_MAX,
    )
    log_index_bytes_max = ServerOption(
        "log.index.file-size",
        MEMORY_BYTES,
        "10 mb",
        "The size of an index at which a new segment file is begun.",
        lowest=64,
        highest=INT32_MAX,
    )
    log_index_interval_bytes = ServerOption(
        "log.index.interval-size",
        MEMORY_BYTES,
        "4 kb",
        "How many bytes of a segment one index entry stands for.",
        lowest=0,
        highest=INT32_MAX,
    )
    open_logs_max = ServerOption(
        "server.max-open-logs",
        INT32,
        "16384",
        "The most logs that are held open, at some kilobytes of memory each. Beyond it logs that were not used for a "
        "while are closed, and opened again when they are needed.",
        lowest=0,
    )
    log_checkpoint_interval_ms = ServerOption(
        "log.flush.offset.checkpoint-interval",
        DURATION_MS,
        "1 min",
        "How often it is noted from where on logs are read again after a crash.",
        lowest=1,
    )
    log_retention_check_interval_ms = ServerOption(
        "log.retention.check-interval",
        DURATION_MS,
        "5 min",
        "How often segments are looked for that have outlived table.log.ttl.",
        lowest=1,
    )
    log_retention_rolls_active_segment = ServerOption(
        "log.retention.roll-active-segment.enabled",
        BOOLEAN,
        "false",
        "Whether a segment that is still written to can expire, too: it is closed when all of it has expired.",
    )
    writer_expiration_ms = ServerOption(
        "server.writer-id.expiration-time",
        DURATION_MS,
        "7 d",
        "How long a writer may be silent before its numbering is forgotten.",
        lowest=1,
    )
    writer_expiration_check_interval_ms = ServerOption(
        "server.writer-id.expiration-check-interval",
        DURATION_MS,
        "10 min",
        "How often silent writers are looked for.",
        lowest=1,
    )
    # Filters of fetches.
    filter_conditions_max = ServerOption(
        "log.filter.max-conditions",
        INT32,
        "2048",
        "The most conditions in the filters of one fetch: comparisons, and the ANDs and ORs that join them. A fetch "
        "with more is refused.",
        lowest=1,
    )
    filter_literals_max = ServerOption(
        "log.filter.max-literals",
        INT32,
        "16384",
        "The most values that the filters of one fetch compare columns with, those of lists included.",
        lowest=1,
    )
    filter_bytes_max = ServerOption(
        "log.filter.max-size",
        MEMORY_BYTES,
        "1 mb",
        "The largest filters of one fetch, as they are sent, all of them together.",
        lowest=64,
        highest=INT32_MAX,
    )
    filter_batches_max = ServerOption(
        "log.filter.max-batches",
        INT32,
        "16384",
        "The most batches whose statistics one fetch looks at to skip those without a wanted row; then it is answered, "
        "and the client goes on from there.",
        lowest=1,
    )
    # Rows by key.
    kv_flush_interval_ms = ServerOption(
        "kv.snapshot.interval",
        DURATION_MS,
        "10 min",
        "How often rows by key that are only in memory are written to the disk, so that a restart after a crash need "
        "not take them from the changelog; 0 s leaves it to the amount that was written, and to a stop in order.",
        lowest=0,
    )
    kv_write_memory_bytes_max = ServerOption(
        "kv.writes.memory-size",
        MEMORY_BYTES,
        "256 mb",
        "What writes to primary-key tables may hold in memory on their way; beyond it clients are told to write more "
        "slowly.",
        lowest=1024 * 1024,
    )
    kv_block_cache_bytes = ServerOption(
        "kv.rocksdb.block.cache-size",
        MEMORY_BYTES,
        "64 mb",
        "The memory for rows by key that were read from the disk, all buckets together.",
        lowest=1024 * 1024,
    )
    kv_write_buffer_bytes = ServerOption(
        "kv.rocksdb.writebuffer.size",
        MEMORY_BYTES,
        "64 mb",
        "The memory of one bucket for rows by key until they go to the disk; as much may be on its way there.",
        lowest=64 * 1024,
    )
    kv_write_buffers_bytes_max = ServerOption(
        "kv.rocksdb.writebuffer.total-size",
        MEMORY_BYTES,
        "256 mb",
        "The same for all buckets together; from three quarters of it on the fullest give memory back.",
        lowest=64 * 1024,
    )
    kv_shared_store_bytes_max = ServerOption(
        "kv.shared-store.max-size",
        MEMORY_BYTES,
        "64 mb",
        "Buckets with fewer bytes of rows by key share a few databases; one that has more gets a database of its own. "
        "0 b gives one to every bucket.",
        lowest=0,
    )
    kv_open_stores_max = ServerOption(
        "kv.open-stores.max-number",
        INT32,
        "256",
        "The most buckets with a database of their own that are open at the same time; the ones that were used least "
        "recently are closed. Each takes half a megabyte and about 16 file descriptors: where descriptors are few, so "
        "are open buckets.",
        lowest=1,
    )
    kv_recovery_bytes = ServerOption(
        "kv.recover.log-record-batch.max-size",
        MEMORY_BYTES,
        "16 mb",
        "What is read of a changelog at a time when rows by key are brought up to date.",
        lowest=1,
        highest=INT32_MAX,
    )
    kv_scanner_ttl_ms = ServerOption(
        "kv.scanner.ttl",
        DURATION_MS,
        "10 min",
        "How long a scan of rows by key may pause before it is ended.",
        lowest=1,
    )
    kv_scanner_expiration_interval_ms = ServerOption(
        "kv.scanner.expiration-interval", DURATION_MS, "30 s", "How often such scans are looked for.", lowest=1
    )
    kv_scanners_per_bucket_max = ServerOption(
        "kv.scanner.max-per-bucket", INT32, "8", "The most scans of rows by key of one bucket.", lowest=1
    )
    kv_scanners_max = ServerOption(
        "kv.scanner.max-per-server", INT32, "200", "The most scans of rows by key of the whole server.", lowest=1
    )
    kv_scanner_batch_bytes_max = ServerOption(
        "kv.scanner.max-batch-size",
        MEMORY_BYTES,
        "10 mb",
        "The most that one answer to a scan of rows by key holds. A single larger row is returned all the same.",
        lowest=1,
        highest=INT32_MAX,
    )

    # The disk.
    disk_write_limit_ratio = ServerOption(
        "server.data-disk.write-limit-ratio",
        RATIO,
        "0.85",
        "Writes are refused while the disk is fuller than this; 1.0 never refuses.",
    )
    disk_write_recover_ratio = ServerOption(
        "server.data-disk.write-recover-ratio", RATIO, "0.80", "Writes go on when the disk is emptier than this."
    )
    disk_check_interval_ms = ServerOption(
        "server.data-disk.check-interval", DURATION_MS, "30 s", "How often the disk is looked at.", lowest=1
    )
    scrub_interval_ms = ServerOption(
        "server.scrub.interval",
        DURATION_MS,
        "7 d",
        "How often all sealed segments and SST files are read again to find damage; 0 s never does.",
        lowest=0,
    )
    scrub_bytes_per_second = ServerOption(
        "server.scrub.max-bytes-per-second",
        MEMORY_BYTES,
        "8 mb",
        "How fast they are read; 0 b turns scrubbing off.",
        lowest=0,
    )

    __slots__ = ("_ignored", "_listener_tls", "_listener_users", "_settings", "_values")

    def __init__(self, properties: Mapping[str, str | int | float | bool] | None = None) -> None:
        self._set([argument_settings(properties or {})])

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Setting],
        *,
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> ServerOptions:
        """Take values from arguments, then from the environment (the process's own unless given), then from a file."""
        from_environment = _environment_settings(os.environ if environment is None else environment)
        options = cls.__new__(cls)
        options._set([arguments, from_environment, {} if file is None else read_options_file(file)])
        return options

    @staticmethod
    def options() -> tuple[ServerOption[Any], ...]:
        """Return all options, in the order in which they are documented."""
        return tuple(option for option in vars(ServerOptions).values() if isinstance(option, ServerOption))

    @property
    def listener_users(self) -> Mapping[str, Mapping[str, str]]:
        """The users of listeners that have their own, by the name of the listener in lower case."""
        return self._listener_users

    @property
    def listeners_with_tls_options(self) -> Collection[str]:
        """The listeners that have options of TLS of their own, in lower case."""
        return self._listener_tls.keys()

    def tls_value(self, option: ServerOption[T], listener_name: str) -> T:
        """Return the value of an option of TLS for a listener: its own, or that of all."""
        own = self._listener_tls.get(listener_name.lower(), {})
        return cast(T, own.get(option.key, self._values[option.key]))

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """The keys that were given but have no effect in this server."""
        return tuple(self._ignored)

    def setting(self, option: ServerOption[Any]) -> Setting:
        """Return the text of an option and where it comes from."""
        return self._settings.get(option.key) or Setting(option.default_text, "default", is_default=True)

    def as_written(self) -> dict[str, str]:
        """Return every key that has a value, given or default, with the value's text. Some of them may be passwords."""
        written = {option.key: self.setting(option).text for option in ServerOptions.options()}
        written.update((key, setting.text) for key, setting in (self._settings | self._ignored).items())
        return {key: text for key, text in written.items() if text}

    def shown(self) -> list[tuple[str, str, str]]:
        """Return key, text and origin of every option and of all other keys that were given; secrets are hidden."""
        rows = [(option.key, self.setting(option), option.secret) for option in ServerOptions.options()]
        # Any key of a lake may be a secret.
        rows += [(key, self._settings[key], True) for key in sorted(self._settings.keys() - _OPTION_BY_KEY.keys())]
        return [
            (key, HIDDEN if is_secret and setting.text else setting.text, setting.origin)
            for key, setting, is_secret in rows
        ]

    def has_secrets_of(self, origin: str) -> bool:
        """Whether something that must not be shown was given at a place, such as a file."""
        given = {**self._settings, **self._ignored}
        return any(
            is_secret_option(key)
            for key, setting in given.items()
            if setting.text and setting.origin.startswith(origin)
        )

    def explained(self) -> str:
        """Write all options as a configuration file, with the origin of each value beside it."""
        lines = [(f"{key}: {_yaml_scalar(text)}", origin) for key, text, origin in self.shown()]
        width = min(max(len(line) for line, _ in lines), _EXPLAINED_WIDTH_MAX)
        text = "".join(f"{line:<{width}}  # {origin}\n" for line, origin in lines)
        return text + "".join(f"# {key} has no effect in this server\n" for key in self._ignored)

    def _set(self, layers: list[Mapping[str, Setting]]) -> None:
        self._settings: dict[str, Setting] = {}
        self._listener_users: dict[str, Mapping[str, str]] = {}
        self._listener_tls: dict[str, dict[str, Any]] = {}
        self._ignored: dict[str, Setting] = {}
        for layer in reversed(layers):
            for key, setting in layer.items():
                # Some of our own keys begin like those of upstream servers.
                if key not in _OPTION_BY_KEY and is_upstream_only(key):
                    self._ignored[key] = setting
                else:
                    self._take(key, setting)
        self._values: dict[str, Any] = {
            option.key: option.value_of(self.setting(option)) for option in ServerOptions.options()
        }
        self._validate()

    def _take(self, key: str, setting: Setting) -> None:
        own_users = _LISTENER_JAAS_KEY.fullmatch(key)
        if own_users is not None:
            self._listener_users[own_users["listener"].lower()] = ServerOption(key, JAAS, "", "", secret=True).value_of(
                setting
            )
        elif (own_tls := _LISTENER_TLS_KEY.fullmatch(key)) is not None:
            self._take_own_tls(own_tls["listener"].lower(), own_tls["rest"], key, setting)
        elif key not in _OPTION_BY_KEY and not key.startswith(_LAKE_PREFIX):
            raise _invalid(f"unknown option '{key}' ({setting.origin}){suggestion(key, _OPTION_BY_KEY)}")
        self._settings[key] = setting

    def _take_own_tls(self, listener: str, rest: str, key: str, setting: Setting) -> None:
        option = _OPTION_BY_KEY.get(_TLS_PREFIX + rest)
        if option is None:
            known = [key.removeprefix(_TLS_PREFIX) for key in _OPTION_BY_KEY if key.startswith(_TLS_PREFIX)]
            raise _invalid(f"unknown option '{key}' ({setting.origin}){suggestion(rest, known)}")
        own = ServerOption(key, option.value_type, "", "", lowest=option.lowest, secret=option.secret)
        self._listener_tls.setdefault(listener, {})[option.key] = own.value_of(setting)

    def _validate(self) -> None:
        """Check what values mean together."""
        if self.default_replication_factor != 1:
            raise self._contradiction(
                ServerOptions.default_replication_factor,
                "this server keeps one replica of each bucket; set it to 1, or use a cluster for more",
            )
        if self.authorizer_type != "default":
            raise self._contradiction(ServerOptions.authorizer_type, "there is no other authorizer than 'default'")
        if self.disk_write_recover_ratio >= self.disk_write_limit_ratio:
            limit = ServerOptions.disk_write_limit_ratio.key
            raise self._contradiction(ServerOptions.disk_write_recover_ratio, f"it must be below '{limit}'")

    def _contradiction(self, option: ServerOption[Any], reason: str) -> FlussError:
        setting = self.setting(option)
        return _invalid(f"'{option.key}' is '{setting.text}' ({setting.origin}): {reason}")

    def __repr__(self) -> str:
        given = {key: text for key, text, _ in self.shown() if key in self._settings}
        return f"ServerOptions({given!r})"


_EXPLAINED_WIDTH_MAX: Final = 70
# A family of keys with meanings of its own: what new tables are told about the lake.
_LAKE_PREFIX: Final = "datalake."
_OPTION_BY_KEY: Final = {option.key: option for option in ServerOptions.options()}


def is_secret_option(key: str) -> bool:
    """Whether the value of a key must not be shown; also of keys that only upstream servers know."""
    own_tls = _LISTENER_TLS_KEY.fullmatch(key)
    option = _OPTION_BY_KEY.get(key if own_tls is None else _TLS_PREFIX + own_tls["rest"])
    return is_secret_key(key) if option is None else option.secret


def variable_of(key: str) -> str | None:
    """Return the environment variable that sets an option; None if there is none."""
    is_own = _LISTENER_JAAS_KEY.fullmatch(key) or _LISTENER_TLS_KEY.fullmatch(key)
    return _variable(key) if key in _OPTION_BY_KEY or is_own else None


def argument_settings(properties: Mapping[str, str | int | float | bool]) -> dict[str, Setting]:
    """Turn values that a caller gives into settings."""
    settings: dict[str, Setting] = {}
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise TypeError(f"options are a mapping of texts to texts, numbers or switches, got {key!r}: {type(value)}")
        settings[key] = Setting(format_value(value), "argument")
    return settings


def _environment_settings(environment: Mapping[str, str]) -> dict[str, Setting]:
    """Find options among the variables. Others with the same prefix belong to other programs."""
    settings: dict[str, Setting] = {}
    for option in ServerOptions.options():
        text = environment.get(option.environment_variable)
        if text is not None:
            settings[option.key] = Setting(text, f"environment {option.environment_variable}")
    for variable, text in environment.items():
        own_users = _LISTENER_JAAS_VARIABLE.fullmatch(variable)
        if own_users is not None:
            listener = own_users["listener"].lower()
            key = f"security.sasl.listener.name.{listener}.plain.jaas.config"
            settings[key] = Setting(text, f"environment {variable}")
        own_tls = _LISTENER_TLS_VARIABLE.fullmatch(variable)
        if own_tls is not None:
            settings |= _own_tls_settings(own_tls["rest"], Setting(text, f"environment {variable}"))
    return settings


def _own_tls_settings(rest: str, setting: Setting) -> dict[str, Setting]:
    """Return the option that ``<LISTENER>_<OPTION>`` at the end of a variable stands for."""
    for option in sorted(ServerOptions.options(), key=lambda option: -len(option.key)):
        ending = "_" + re.sub("[.-]", "_", option.key.removeprefix(_TLS_PREFIX)).upper()
        if option.key.startswith(_TLS_PREFIX) and rest.endswith(ending):
            listener = rest.removesuffix(ending).lower()
            return {f"{_TLS_PREFIX}listener.name.{listener}.{option.key.removeprefix(_TLS_PREFIX)}": setting}
    return {}


def _yaml_scalar(text: str) -> str:
    """Quote a text that YAML would not read as it stands."""
    return text if re.fullmatch(r"[A-Za-z0-9/.][A-Za-z0-9/._ -]*", text) else json.dumps(text)


def _invalid(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
