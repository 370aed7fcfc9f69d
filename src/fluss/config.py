"""Client options: every key with its default and its meaning, and the ``Config`` that holds the values.

The class body of ``Config`` is the table of options. Each option is a typed property of the config
(``config.writer_batch_size``), and has a key for dictionaries (``writer.batch-size``).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Final

from fluss.config_option import BOOLEAN, INT32, INT64, PROPERTIES, UNSIGNED, ConfigOption, OlderName
from fluss.errors import FlussError
from fluss.integers import INT32_MAX, UINT64_MAX
from fluss.options import HIDDEN, TEXT, format_value, integer_between, suggestion, word_of

# Where clients connect to that are not told.
BOOTSTRAP_SERVERS_VARIABLE: Final = "FLUSS_BOOTSTRAP_SERVERS"


class Config:
    """Options of a client, by key or as keywords: ``Config({"request-timeout": 5000}, writer_retries=3)``.

    A property can also be set later. Values are checked one by one when they are set, and together by ``validate``,
    which connecting does. A connection keeps a copy: later changes do not reach it.
    """

    __slots__ = ("_values",)

    bootstrap_servers = ConfigOption(
        "bootstrap.servers",
        TEXT,
        "127.0.0.1:9123",
        "Where to find the cluster: host:port of any server, or several separated by commas, tried in order.",
    )
    connect_timeout_ms = ConfigOption(
        "connect-timeout",
        UNSIGNED,
        120_000,
        "How long opening a TCP connection may take, in ms. Two minutes ride out a machine that is starting; 15000 is "
        "a good value where failing fast matters more. A port where no server listens refuses at once.",
        aliases=("client.connect-timeout",),
    )
    request_timeout_ms = ConfigOption(
        "request-timeout",
        UNSIGNED,
        30_000,
        "How long to wait for the answer to a request once it is sent, in ms.",
    )
    job_wait_timeout_ms = ConfigOption(
        "job.wait-timeout",
        UNSIGNED,
        600_000,
        "How long queries of Spark, loads, exports and copies wait for servers that are away, in ms, with a line in "
        "the log every ten seconds: a large server needs minutes to start after a crash. If it is not given and "
        "`request-timeout` is, that is the limit.",
    )
    security_protocol = ConfigOption(
        "security.protocol",
        TEXT,
        "PLAINTEXT",
        "PLAINTEXT, sasl to log in with name and password, ssl to speak TLS, or sasl_ssl for both.",
        aliases=("client.security.protocol",),
    )
    security_sasl_mechanism = ConfigOption(
        "security.sasl.mechanism",
        TEXT,
        "PLAIN",
        "How to log in: PLAIN sends the password, SCRAM-SHA-256 proves to know it without sending it.",
        aliases=("client.security.sasl.mechanism",),
    )
    security_sasl_username = ConfigOption(
        "security.sasl.username",
        TEXT,
        "",
        "The name to log in with when security.protocol is sasl or sasl_ssl.",
        aliases=("client.security.sasl.username",),
    )
    security_sasl_password = ConfigOption(
        "security.sasl.password",
        TEXT,
        "",
        "The password to log in with when security.protocol is sasl or sasl_ssl. It is never shown.",
        aliases=("client.security.sasl.password",),
        secret=True,
    )
    security_ssl_ca = ConfigOption(
        "security.ssl.ca",
        TEXT,
        "",
        "Which CAs may have signed the certificate of a server: a file with their certificates, or the certificates "
        "themselves (PEM). Unless given, those that the system trusts.",
    )
    security_ssl_certificate = ConfigOption(
        "security.ssl.certificate",
        TEXT,
        "",
        "The certificate of this client, for servers that ask for one: a file, or the certificate itself (PEM). It may "
        "hold the key, and the certificates between it and the CA, too.",
    )
    security_ssl_key = ConfigOption(
        "security.ssl.key",
        TEXT,
        "",
        "The private key of the certificate: a file, or the key itself (PEM). It is never shown.",
        secret=True,
    )
    security_ssl_key_password = ConfigOption(
        "security.ssl.key.password",
        TEXT,
        "",
        "The password of an encrypted private key. It is never shown.",
        secret=True,
    )
    security_ssl_server_name = ConfigOption(
        "security.ssl.server-name",
        TEXT,
        "",
        "The name that the certificates of servers must have, if it is not that of their address: behind a tunnel, for "
        "instance.",
    )
    security_ssl_verify_hostname = ConfigOption(
        "security.ssl.verify-hostname",
        BOOLEAN,
        True,
        "Whether the certificate of a server must be for the name that it is connected to by. Without it, whoever has "
        "any certificate of the CA can pose as the server.",
    )

    writer_acks = ConfigOption(
        "writer.acks",
        TEXT,
        "all",
        "When a write counts as done: all (or -1) when every in-sync replica has it, 1 when the leader has it, "
        "0 at once.",
    )
    writer_enable_idempotence = ConfigOption(
        "writer.enable-idempotence",
        BOOLEAN,
        True,
        "Number the batches of a writer, so that a retry is never stored twice and order is kept.",
    )
    writer_retries = ConfigOption(
        "writer.retries",
        INT32,
        INT32_MAX,
        "How often a batch is sent again before it fails; asking for a writer id, which the first one needs, counts.",
    )
    writer_max_inflight_requests_per_bucket = ConfigOption(
        "writer.max-inflight-requests-per-bucket",
        UNSIGNED,
        5,
        "How many batches of one bucket may be on the way at once; at most 5 with idempotence.",
    )
    writer_request_max_size = ConfigOption(
        "writer.request-max-size",
        INT32,
        10 * 1024 * 1024,
        "The largest write request in bytes.",
        aliases=("request.max.size",),
    )
    writer_batch_size = ConfigOption(
        "writer.batch-size",
        INT32,
        2 * 1024 * 1024,
        "The size in bytes at which a batch is full and is sent.",
        aliases=("writer.batch.size",),
    )
    writer_batch_timeout_ms = ConfigOption(
        "writer.batch-timeout-ms", INT64, 100, "How long a batch may wait to fill up before it is sent."
    )
    writer_dynamic_batch_size_enabled = ConfigOption(
        "writer.dynamic-batch-size.enabled",
        BOOLEAN,
        True,
        "Shrink the batch size of tables whose batches are sent half empty, and grow it back.",
    )
    writer_dynamic_batch_size_min = ConfigOption(
        "writer.dynamic-batch-size-min",
        INT32,
        256 * 1024,
        "The smallest batch size that shrinking leads to. Unless set, it is never above writer.batch-size.",
    )
    writer_buffer_memory_size = ConfigOption(
        "writer.buffer.memory-size",
        UNSIGNED,
        64 * 1024 * 1024,
        "How many bytes of unsent batches a connection holds; then writers wait.",
    )
    writer_buffer_wait_timeout_ms = ConfigOption(
        "writer.buffer.wait-timeout-ms",
        UNSIGNED,
        UINT64_MAX,
        "How long a writer waits for buffer memory before the write fails. The default is no limit.",
    )
    writer_bucket_no_key_assigner = ConfigOption(
        "writer.bucket.no-key-assigner",
        word_of("sticky", "round_robin"),
        "sticky",
        "How rows without a bucket key are spread: sticky fills a batch before it changes the bucket, round_robin "
        "changes with every row.",
    )
    writer_kv_backpressure_max_throttle_ms = ConfigOption(
        "writer.kv-backpressure.max-throttle-ms",
        UNSIGNED,
        3000,
        "The longest pause before the next write to a bucket whose server says that it is overloaded.",
    )
    writer_create_missing_partitions = ConfigOption(
        "client.writer.create-missing-partitions",
        BOOLEAN,
        False,
        "Create the partitions that rows belong to and that do not exist. Otherwise writing such rows fails at once "
        "with code 36.",
        aliases=("writer.create-missing-partitions",),
    )
    client_bucket_hash = ConfigOption(
        "client.bucket-hash",
        word_of("java", "rust"),
        "java",
        "Which hash puts rows with a key into buckets. java is what the Java clients and the servers use. rust is "
        "what the pyfluss wheels use: they hash the last one to three bytes of a key differently, when such a byte "
        "is above 0x7f. Rows must be looked up with the hash they were written with, so choose rust only for tables "
        "that pyfluss writes.",
    )

    scanner_log_max_poll_records = ConfigOption(
        "scanner.log.max-poll-records", UNSIGNED, 500, "The most records that one poll returns."
    )
    scanner_partition_discovery_interval_ms = ConfigOption(
        "client.scanner.partition.discovery.interval",
        UNSIGNED,
        10_000,
        "How often a scanner that reads a whole table, or a consumer, looks for partitions that are new, or gone, in "
        "ms. 0 turns it off. New partitions are read from their beginning.",
    )
    scanner_log_fetch_max_bytes = ConfigOption(
        "scanner.log.fetch.max-bytes", INT32, 16 * 1024 * 1024, "The most bytes in one fetch response."
    )
    scanner_log_fetch_max_bytes_for_bucket = ConfigOption(
        "scanner.log.fetch.max-bytes-for-bucket",
        INT32,
        1024 * 1024,
        "The most bytes of one bucket in a fetch response.",
    )
    scanner_log_fetch_min_bytes = ConfigOption(
        "scanner.log.fetch.min-bytes",
        INT32,
        1,
        "How many bytes a server collects before it answers a fetch, unless the wait time is over.",
    )
    scanner_log_fetch_wait_max_time_ms = ConfigOption(
        "scanner.log.fetch.wait-max-time-ms",
        INT32,
        500,
        "How long a server may wait until it has the minimum number of bytes.",
    )
    scanner_log_read_preference = ConfigOption(
        "client.scanner.log.read-preference",
        word_of("local_first", "remote_first"),
        "local_first",
        "Where records are read that the server and remote storage both have: from the server (local_first), or from "
        "remote storage, which leaves the server to others (remote_first).",
    )
    scanner_remote_log_prefetch_num = ConfigOption(
        "scanner.remote-log.prefetch-num",
        UNSIGNED,
        4,
        "How many tiered log segments are downloaded at the same time, ahead of reading.",
    )
    scanner_remote_log_read_concurrency = ConfigOption(
        "scanner.remote-log.read-concurrency",
        UNSIGNED,
        4,
        "How many parts of one tiered log segment are read at once.",
    )
    scanner_kv_read_preference = ConfigOption(
        "scanner.kv.read-preference",
        word_of("server_first", "remote_first"),
        "server_first",
        "Where tasks of Spark, and other reads of rows at an offset, get the rows of a primary-key table: from the "
        "server, or from their last snapshot in remote storage and the changes since. The latter spares the server, "
        'which counts where many tasks read at once. It needs RocksDB (`pip install "flussbett[server]"`) and a way to '
        "remote storage; where there is no snapshot the server is asked.",
    )
    remote_file_download_thread_num = ConfigOption(
        "remote-file.download-thread-num", UNSIGNED, 3, "How many threads download tiered log segments."
    )

    lake_read = ConfigOption(
        "client.lake.read",
        word_of("union", "off"),
        "union",
        "Whether reads of a whole table that has a lake see what the lake has as well: union reads the lake, and from "
        'Fluss what is newer; off reads what Fluss has. The lake needs `pip install "flussbett[lake]"`; without it, '
        "tables of which Fluss has everything are read from Fluss, and others are refused.",
    )
    lake_properties = ConfigOption(
        "client.lake.properties",
        PROPERTIES,
        "",
        "What the catalog of the lake and its file system are opened with, besides what servers tell, which is no "
        "secret: key=value, several separated by commas, such as s3.access-key-id=...,s3.secret-access-key=... It is "
        "never shown.",
        secret=True,
    )

    consumer_table = ConfigOption(
        "consumer.table",
        TEXT,
        "fluss.consumers",
        "The table in which consumers keep their positions, as database.table. It is created when it is first needed.",
    )
    consumer_lease_ms = ConfigOption(
        "consumer.lease-ms",
        integer_between(100, INT32_MAX),
        15_000,
        "How long a member of a consumer may show no sign of life, in ms, before others read its buckets. It shows "
        "five of them in that time, whatever the program does.",
    )
    consumer_commit_interval_ms = ConfigOption(
        "consumer.commit-interval-ms",
        integer_between(0, INT32_MAX),
        1000,
        "How often polls of a consumer commit what earlier ones returned, in ms; 0 for each poll.",
    )
    consumer_max_poll_interval_ms = ConfigOption(
        "consumer.max-poll-interval-ms",
        integer_between(100, INT32_MAX),
        300_000,
        "How long a program may take between two polls of a consumer, in ms, before others read its buckets.",
    )

    lookup_queue_size = ConfigOption(
        "lookup.queue-size",
        UNSIGNED,
        25_600,
        "How many lookups may wait to be sent; beyond it, those who want to look something up wait before.",
    )
    lookup_max_batch_size = ConfigOption(
        "lookup.max-batch-size",
        UNSIGNED,
        128,
        "The most lookups in one request; a request with so many is sent at once. `lookup_many` makes larger ones.",
    )
    lookup_batch_timeout_ms = ConfigOption(
        "lookup.batch-timeout-ms",
        UNSIGNED,
        100,
        "How long a lookup may wait for others to join its request while an answer is due from the same server. "
        "Otherwise it is sent at once.",
    )
    lookup_max_inflight_requests = ConfigOption(
        "lookup.max-inflight-requests",
        UNSIGNED,
        128,
        "How many lookup requests of a connection may be on the way at once; further lookups wait to be sent.",
    )
    lookup_max_retries = ConfigOption(
        "lookup.max-retries",
        INT32,
        INT32_MAX,
        "How often a lookup that failed for a passing reason is sent again; no longer than `request-timeout`.",
    )

    bootstrap_server = OlderName(bootstrap_servers)
    request_max_size = OlderName(writer_request_max_size)

    def __init__(self, properties: Mapping[str, str | int | bool] | None = None, **options: str | int | bool) -> None:
        """``properties`` are options by their keys, ``options`` by the names of properties; none is in both."""
        self._values: dict[str, str | int | bool] = {}
        if properties is not None and not isinstance(properties, dict):
            raise TypeError(f"properties must be a dict, got {type(properties).__name__}")
        for key, value in (properties or {}).items():
            self._set(key, value)
        for name, value in options.items():
            self._set_property(name, value)

    @classmethod
    def of(
        cls, servers: Config | str | Mapping[str, str | int | bool] | None = None, **options: str | int | bool
    ) -> Config:
        """Return a config for ``connect``: of addresses, of options by their keys, or of another config, and of more.

        Unless an address is given in one of these ways, it is that of the environment variable
        ``FLUSS_BOOTSTRAP_SERVERS``, and without it 127.0.0.1:9123. A config that exists already says everything
        itself.
        """
        if isinstance(servers, Config):
            config = servers.copy()
            for name, value in options.items():
                setattr(config, _checked_name(name).property_name, value)
            return config
        if servers is not None and not isinstance(servers, str | dict):
            raise TypeError(
                "connect to an address such as 'localhost:9123', or give a dict of options, or a fluss.Config, got "
                f"{type(servers).__name__}"
            )
        address = {Config.bootstrap_servers.key: servers} if isinstance(servers, str) else servers
        config = cls(address, **options)
        found = os.environ.get(BOOTSTRAP_SERVERS_VARIABLE)
        if Config.bootstrap_servers.key not in config._values:
            if found:
                config.bootstrap_servers = found
            else:
                _warn_of_similar_variables()
        return config

    def _set_property(self, name: str, value: Any) -> None:
        option = _checked_name(name)
        if option.key in self._values:
            raise FlussError(f"'{option.key}' is given twice, also as {name}; keep one")
        option.__set__(self, value)

    def _set(self, key: str, value: object) -> None:
        if not isinstance(key, str):
            raise TypeError(f"property keys must be str, got {type(key).__name__}")
        option = _OPTION_BY_KEY.get(key)
        if option is None:
            raise FlussError(f"Unknown property: {key}{suggestion(key, (option.key for option in Config.options()))}")
        if option.key in self._values:
            raise FlussError(f"'{key}' and another spelling of it are both given; keep one")
        self._values[option.key] = option.parse(_property_text(key, value))

    @staticmethod
    def options() -> tuple[ConfigOption[Any], ...]:
        """Return all options, in the order in which they are documented."""
        return tuple(option for option in vars(Config).values() if isinstance(option, ConfigOption))

    def copy(self) -> Config:
        """Return a config with the same values, independent of this one."""
        return Config._restored(self._values)

    @property
    def required_acks(self) -> int:
        """``writer.acks`` as the number in write requests."""
        acks = self.writer_acks.strip().lower()
        if acks not in _ACKS:
            raise FlussError(f"'writer.acks': invalid writer ack '{self.writer_acks}'; use all, -1, 0 or 1")
        return _ACKS[acks]

    @property
    def effective_dynamic_batch_size_min(self) -> int:
        """``writer.dynamic-batch-size-min`` if it was set, else its default but never above the batch size."""
        if Config.writer_dynamic_batch_size_min.key in self._values:
            return self.writer_dynamic_batch_size_min
        return min(self.writer_dynamic_batch_size_min, self.writer_batch_size)

    def validate(self) -> None:
        """Check what values mean together; the first contradiction is a ``FlussError``."""
        self._validate_security()
        self._validate_timeouts()
        self._validate_scanner()
        self._validate_writer()
        self._validate_idempotence()
        self._validate_lookup()

    @property
    def uses_sasl(self) -> bool:
        """Whether connections log in with name and password."""
        return self.security_protocol.lower() in ("sasl", "sasl_ssl")

    @property
    def uses_tls(self) -> bool:
        """Whether connections speak TLS."""
        return self.security_protocol.lower() in ("ssl", "sasl_ssl")

    def _validate_security(self) -> None:
        protocol = self.security_protocol.lower()
        if protocol not in ("plaintext", "sasl", "ssl", "sasl_ssl"):
            raise FlussError(
                f"'security.protocol' must be PLAINTEXT, sasl, ssl or sasl_ssl, got '{self.security_protocol}'"
            )
        if not self.uses_tls:
            self._refuse_without_tls()
        if self.security_ssl_key and not self.security_ssl_certificate:
            raise FlussError("'security.ssl.key' needs 'security.ssl.certificate', the certificate that it belongs to")
        if not self.uses_sasl:
            return
        if self.security_sasl_mechanism.upper() not in _MECHANISMS:
            raise FlussError(
                f"'security.sasl.mechanism' must be {' or '.join(_MECHANISMS)}, got '{self.security_sasl_mechanism}'"
            )
        if not self.security_sasl_username:
            raise FlussError(f"'security.sasl.username' must be set when 'security.protocol' is {protocol}")
        if not self.security_sasl_password:
            raise FlussError(f"'security.sasl.password' must be set when 'security.protocol' is {protocol}")

    def _refuse_without_tls(self) -> None:
        """Refuse options of TLS where it is not spoken: a user who sets them believes that it is."""
        for option in _TLS_OPTIONS:
            if option.key in self._values:
                raise FlussError(
                    f"'{option.key}' has no effect when 'security.protocol' is {self.security_protocol}; set that to "
                    "ssl or sasl_ssl"
                )

    def _validate_timeouts(self) -> None:
        self._require_positive(Config.connect_timeout_ms)
        self._require_positive(Config.request_timeout_ms)
        self._require_positive(Config.job_wait_timeout_ms)

    def _validate_scanner(self) -> None:
        self._require_positive(Config.scanner_log_fetch_min_bytes)
        self._require_positive(Config.scanner_log_fetch_max_bytes)
        self._require_at_most(Config.scanner_log_fetch_min_bytes, Config.scanner_log_fetch_max_bytes)
        self._require_not_negative(Config.scanner_log_fetch_wait_max_time_ms)
        self._require_positive(Config.scanner_log_fetch_max_bytes_for_bucket)
        self._require_at_most(Config.scanner_log_fetch_max_bytes_for_bucket, Config.scanner_log_fetch_max_bytes)
        self._require_positive(Config.scanner_remote_log_prefetch_num)
        self._require_positive(Config.scanner_remote_log_read_concurrency)
        self._require_positive(Config.remote_file_download_thread_num)
        self._require_positive(Config.scanner_log_max_poll_records)

    def _validate_writer(self) -> None:
        self._require_positive(Config.writer_request_max_size)
        self._require_positive(Config.writer_batch_size)
        self._require_not_negative(Config.writer_batch_timeout_ms)
        self._require_positive(Config.writer_max_inflight_requests_per_bucket)
        self._require_positive(Config.writer_buffer_memory_size)
        self._require_at_most(Config.writer_batch_size, Config.writer_request_max_size)
        self._require_at_most(Config.writer_batch_size, Config.writer_buffer_memory_size)
        self._require_positive(Config.writer_dynamic_batch_size_min)
        if self.effective_dynamic_batch_size_min > self.writer_batch_size:
            self._require_at_most(Config.writer_dynamic_batch_size_min, Config.writer_batch_size)

    def _validate_idempotence(self) -> None:
        acks = self.required_acks
        if not self.writer_enable_idempotence:
            return
        switch = "or turn 'writer.enable-idempotence' off"
        if acks != _ACKS["all"]:
            raise FlussError(f"'writer.acks' is '{self.writer_acks}', but idempotence needs all; change it {switch}")
        if self.writer_retries <= 0:
            raise FlussError(f"'writer.retries' is {self.writer_retries}, but idempotence needs retries; {switch}")
        inflight = self.writer_max_inflight_requests_per_bucket
        if inflight > IDEMPOTENT_INFLIGHT_MAX:
            raise FlussError(
                f"'{Config.writer_max_inflight_requests_per_bucket.key}' is {inflight}, but idempotence allows at most "
                f"{IDEMPOTENT_INFLIGHT_MAX}; lower it {switch}"
            )

    def _validate_lookup(self) -> None:
        self._require_positive(Config.lookup_queue_size)
        self._require_positive(Config.lookup_max_batch_size)
        self._require_positive(Config.lookup_max_inflight_requests)
        self._require_not_negative(Config.lookup_max_retries)

    def _require_positive(self, option: ConfigOption[int]) -> None:
        value = option.__get__(self, Config)
        if value <= 0:
            raise FlussError(f"'{option.key}' must be greater than 0, got {value}")

    def _require_not_negative(self, option: ConfigOption[int]) -> None:
        value = option.__get__(self, Config)
        if value < 0:
            raise FlussError(f"'{option.key}' must not be negative, got {value}")

    def _require_at_most(self, option: ConfigOption[int], limit: ConfigOption[int]) -> None:
        value, highest = option.__get__(self, Config), limit.__get__(self, Config)
        if value > highest:
            raise FlussError(f"'{option.key}' is {value}, but must not be above '{limit.key}', which is {highest}")

    @classmethod
    def _restored(cls, values: Mapping[str, str | int | bool]) -> Config:
        config = cls()
        config._values.update(values)
        return config

    def __reduce__(self) -> tuple[Any, ...]:
        return Config._restored, (dict(self._values),)

    def __repr__(self) -> str:
        shown = {key: HIDDEN if _OPTION_BY_KEY[key].secret else value for key, value in self._values.items()}
        return f"Config({shown!r})"


IDEMPOTENT_INFLIGHT_MAX: Final = 5
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256")
_TLS_OPTIONS: Final[tuple[ConfigOption[Any], ...]] = (
    Config.security_ssl_ca,
    Config.security_ssl_certificate,
    Config.security_ssl_key,
    Config.security_ssl_key_password,
    Config.security_ssl_server_name,
    Config.security_ssl_verify_hostname,
)
_ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}
_OPTION_BY_KEY: Final[dict[str, ConfigOption[Any]]] = {
    key: option for option in Config.options() for key in (option.key, *option.aliases)
}


_OPTION_BY_NAME: Final[dict[str, ConfigOption[Any]]] = {
    **{option.property_name: option for option in Config.options()},
    "bootstrap_server": Config.bootstrap_server,
    "request_max_size": Config.request_max_size,
}


def _warn_of_similar_variables() -> None:
    """Warn of variables that may have been meant to say where the cluster is, and do not."""
    prefix, _, _ = BOOTSTRAP_SERVERS_VARIABLE.partition("_")
    for name in sorted(os.environ):
        hint = suggestion(name, [BOOTSTRAP_SERVERS_VARIABLE]) if name.startswith(f"{prefix}_") else ""
        if hint:
            warnings.warn(f"The environment variable {name} means nothing to clients{hint}", stacklevel=4)


def _checked_name(name: str) -> ConfigOption[Any]:
    """Return the option of a property; another keyword is a TypeError, as Python has it."""
    option = _OPTION_BY_NAME.get(name)
    if option is None:
        raise TypeError(f"Config has no option {name!r}{suggestion(name, _OPTION_BY_NAME)}")
    return option


def _property_text(key: str, value: object) -> str:
    if not isinstance(value, str | int):
        raise TypeError(f"the value of '{key}' must be str, int or bool, got {type(value).__name__}")
    return format_value(value)
