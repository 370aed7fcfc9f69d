"""Config takes options by key and by property, refuses what it does not understand, and checks them together.
Shown with the full table of defaults, and tables of refused values and of contradictions."""

import copy
import pickle

import pytest

from fluss import Config, FlussError
from fluss.config_option import ConfigOption

# Property, key, default.
OPTIONS = [
    ("bootstrap_servers", "bootstrap.servers", "127.0.0.1:9123"),
    ("writer_request_max_size", "writer.request-max-size", 10485760),
    ("writer_acks", "writer.acks", "all"),
    ("writer_retries", "writer.retries", 2147483647),
    ("writer_batch_size", "writer.batch-size", 2097152),
    ("writer_batch_timeout_ms", "writer.batch-timeout-ms", 100),
    ("writer_bucket_no_key_assigner", "writer.bucket.no-key-assigner", "sticky"),
    ("scanner_remote_log_prefetch_num", "scanner.remote-log.prefetch-num", 4),
    ("remote_file_download_thread_num", "remote-file.download-thread-num", 3),
    ("scanner_remote_log_read_concurrency", "scanner.remote-log.read-concurrency", 4),
    ("scanner_log_max_poll_records", "scanner.log.max-poll-records", 500),
    ("scanner_log_fetch_max_bytes", "scanner.log.fetch.max-bytes", 16777216),
    ("scanner_log_fetch_min_bytes", "scanner.log.fetch.min-bytes", 1),
    ("scanner_log_fetch_wait_max_time_ms", "scanner.log.fetch.wait-max-time-ms", 500),
    ("scanner_log_fetch_max_bytes_for_bucket", "scanner.log.fetch.max-bytes-for-bucket", 1048576),
    ("connect_timeout_ms", "connect-timeout", 120000),
    ("request_timeout_ms", "request-timeout", 30000),
    ("job_wait_timeout_ms", "job.wait-timeout", 600000),
    ("security_protocol", "security.protocol", "PLAINTEXT"),
    ("security_sasl_mechanism", "security.sasl.mechanism", "PLAIN"),
    ("security_sasl_username", "security.sasl.username", ""),
    ("security_sasl_password", "security.sasl.password", ""),
    ("security_ssl_ca", "security.ssl.ca", ""),
    ("security_ssl_certificate", "security.ssl.certificate", ""),
    ("security_ssl_key", "security.ssl.key", ""),
    ("security_ssl_key_password", "security.ssl.key.password", ""),
    ("security_ssl_server_name", "security.ssl.server-name", ""),
    ("security_ssl_verify_hostname", "security.ssl.verify-hostname", True),
    ("writer_enable_idempotence", "writer.enable-idempotence", True),
    ("writer_max_inflight_requests_per_bucket", "writer.max-inflight-requests-per-bucket", 5),
    ("writer_buffer_memory_size", "writer.buffer.memory-size", 67108864),
    ("writer_buffer_wait_timeout_ms", "writer.buffer.wait-timeout-ms", 18446744073709551615),
    ("writer_dynamic_batch_size_enabled", "writer.dynamic-batch-size.enabled", True),
    ("writer_dynamic_batch_size_min", "writer.dynamic-batch-size-min", 262144),
    ("writer_kv_backpressure_max_throttle_ms", "writer.kv-backpressure.max-throttle-ms", 3000),
    ("lookup_queue_size", "lookup.queue-size", 25600),
    ("lookup_max_batch_size", "lookup.max-batch-size", 128),
    ("lookup_batch_timeout_ms", "lookup.batch-timeout-ms", 100),
    ("lookup_max_inflight_requests", "lookup.max-inflight-requests", 128),
    ("lookup_max_retries", "lookup.max-retries", 2147483647),
    ("writer_create_missing_partitions", "client.writer.create-missing-partitions", False),
    ("scanner_partition_discovery_interval_ms", "client.scanner.partition.discovery.interval", 10000),
    ("scanner_log_read_preference", "client.scanner.log.read-preference", "local_first"),
    ("scanner_kv_read_preference", "scanner.kv.read-preference", "server_first"),
    ("lake_read", "client.lake.read", "union"),
    ("lake_properties", "client.lake.properties", ""),
    ("consumer_table", "consumer.table", "fluss.consumers"),
    ("consumer_lease_ms", "consumer.lease-ms", 15000),
    ("consumer_commit_interval_ms", "consumer.commit-interval-ms", 1000),
    ("consumer_max_poll_interval_ms", "consumer.max-poll-interval-ms", 300000),
    ("client_bucket_hash", "client.bucket-hash", "java"),
]
UNSIGNED = "scanner.log.max-poll-records"


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("name", "key", "default"), OPTIONS)
def test_every_option_has_a_key_a_property_and_a_default(name: str, key: str, default: object) -> None:
    config = Config()
    assert getattr(config, name) == default
    assert type(getattr(config, name)) is type(default)
    setattr(config, name, default)
    assert getattr(Config({key: text_of(default)}), name) == default
    option = getattr(Config, name)
    assert isinstance(option, ConfigOption)
    assert (option.key, option.property_name, option.default) == (key, name, default)
    assert len(option.doc) > 20


def test_no_option_is_missing_from_the_table() -> None:
    assert sorted((o.property_name, o.key) for o in Config.options()) == sorted((n, k) for n, k, _ in OPTIONS)


def test_secrets_are_never_shown() -> None:
    config = Config({"security.sasl.password": "geheim", "security.sasl.username": "admin"})
    assert repr(config) == "Config({'security.sasl.password': '***', 'security.sasl.username': 'admin'})"
    assert "geheim" not in f"{config}{config!r}"
    assert config.security_sasl_password == "geheim"
    assert [option.key for option in Config.options() if option.secret] == [
        "security.sasl.password",
        "security.ssl.key",
        "security.ssl.key.password",
        "client.lake.properties",
    ]


def test_older_names_mean_the_same() -> None:
    login = {"protocol": "sasl", "sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "secret"}
    older = Config({f"client.security.{key}": value for key, value in login.items()} | {"client.connect-timeout": 7})
    assert (older.security_protocol, older.security_sasl_mechanism, older.connect_timeout_ms) == ("sasl", "PLAIN", 7)
    assert (older.security_sasl_username, older.security_sasl_password) == ("ada", "secret")
    assert "secret" not in repr(older)
    config = Config({"request.max.size": "5000000", "writer.batch.size": "4000"})
    assert (config.writer_request_max_size, config.request_max_size, config.writer_batch_size) == (
        5000000,
        5000000,
        4000,
    )
    config.bootstrap_server = "h:1"
    assert config.bootstrap_servers == config.bootstrap_server == "h:1"
    config.request_max_size = 7
    assert config.writer_request_max_size == 7
    with pytest.raises(FlussError, match="another spelling of it are both given"):
        Config({"writer.batch.size": "1", "writer.batch-size": "1"})


def test_numbers_and_booleans_may_be_given_as_such() -> None:
    config = Config({"writer.retries": 3, "writer.acks": 1, "writer.enable-idempotence": False})
    assert (config.writer_retries, config.writer_acks, config.writer_enable_idempotence) == (3, "1", False)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("writer.retries", "+5", 5),
        ("writer.retries", "-5", -5),
        ("writer.retries", "0005", 5),
        ("writer.retries", "-00", 0),
        ("writer.retries", "-2147483648", -2147483648),
        ("writer.batch-timeout-ms", "9223372036854775807", 9223372036854775807),
        (UNSIGNED, "18446744073709551615", 18446744073709551615),
        (UNSIGNED, "0" * 5000 + "7", 7),
        ("writer.bucket.no-key-assigner", "ROUND_Robin", "round_robin"),
        ("client.bucket-hash", "Rust", "rust"),
    ],
)
def test_values_are_read_from_text(key: str, value: str, expected: object) -> None:
    (option,) = (option for option in Config.options() if option.key == key)
    assert getattr(Config({key: value}), option.property_name) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("writer.retries", "many"),
        ("writer.retries", ""),
        ("writer.retries", " 5"),
        ("writer.retries", "5 "),
        ("writer.retries", "5.0"),
        ("writer.retries", "1_000"),
        ("writer.retries", "٣"),
        ("writer.retries", "2147483648"),
        ("writer.retries", "-2147483649"),
        ("writer.retries", "++1"),
        ("writer.retries", "+"),
        ("writer.retries", "0" * 100_000 + "x"),
        ("writer.retries", "9" * 5000),
        ("writer.batch-timeout-ms", "9223372036854775808"),
        (UNSIGNED, "-1"),
        (UNSIGNED, "-0"),
        (UNSIGNED, "18446744073709551616"),
        ("writer.enable-idempotence", "True"),
        ("writer.enable-idempotence", "1"),
        ("writer.enable-idempotence", ""),
        ("writer.bucket.no-key-assigner", "random"),
        ("client.bucket-hash", "python"),
    ],
)
def test_unclean_values_are_refused(key: str, value: str) -> None:
    with pytest.raises(FlussError) as caught:
        Config({key: value})
    assert f"Invalid value '{value}' for '{key}': expected " in caught.value.message
    assert caught.value.error_code == -2


def test_unknown_keys_are_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(FlussError, match=r"Unknown property: writer\.batchsize; did you mean 'writer\.batch-size'\?"):
        Config({"writer.batchsize": "1"})
    with pytest.raises(FlussError, match=r"Unknown property: zzz$"):
        Config({"zzz": "1"})
    with pytest.raises(FlussError, match="Unknown property: x"):
        Config({"x" * 100_000: "1"})


@pytest.mark.parametrize("properties", ["a=b", [("a", "b")], 5, {5: "a"}, {"writer.acks": 1.5}, {"writer.acks": None}])
def test_other_classes_are_type_errors(properties: object) -> None:
    with pytest.raises(TypeError):
        Config(properties)  # type: ignore[arg-type]


def test_unknown_arguments_and_attributes_are_refused() -> None:
    with pytest.raises(TypeError):
        Config(props={})  # type: ignore[call-arg]
    assert Config(properties=None).writer_acks == Config(properties={}).writer_acks
    with pytest.raises(AttributeError):
        Config().writer_ack = "1"  # type: ignore[attr-defined]


def test_properties_check_the_class_and_range_of_values() -> None:
    config = Config()
    for name, value, error in [
        ("writer_retries", "5", TypeError),
        ("writer_retries", 1.0, TypeError),
        ("writer_retries", 2**31, OverflowError),
        ("scanner_log_max_poll_records", -1, OverflowError),
        ("connect_timeout_ms", 2**64, OverflowError),
        ("writer_enable_idempotence", 1, TypeError),
        ("writer_acks", 1, TypeError),
        ("writer_bucket_no_key_assigner", "random", FlussError),
    ]:
        with pytest.raises(error):
            setattr(config, name, value)
    config.writer_retries = True
    assert config.writer_retries == 1
    config.writer_bucket_no_key_assigner = "STICKY"
    assert config.writer_bucket_no_key_assigner == "sticky"


def test_copies_are_independent() -> None:
    config = Config({"writer.retries": "3", "security.sasl.password": "geheim"})
    for twin in (config.copy(), copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        twin.writer_retries = 9
        assert config.writer_retries == 3
        assert twin.security_sasl_password == "geheim"


def test_the_defaults_are_valid() -> None:
    Config().validate()
    assert Config().required_acks == -1


CONTRADICTIONS = [
    ({"security.protocol": "tls"}, "'security.protocol' must be PLAINTEXT, sasl, ssl or sasl_ssl, got 'tls'"),
    (
        {"security.protocol": "SASL", "security.sasl.mechanism": "SCRAM"},
        "'security.sasl.mechanism' must be PLAIN or SCRAM-SHA-256, got 'SCRAM'",
    ),
    ({"security.protocol": "sasl_ssl"}, "'security.sasl.username' must be set when 'security.protocol' is sasl_ssl"),
    ({"security.ssl.ca": "ca.pem"}, "'security.ssl.ca' has no effect when 'security.protocol' is PLAINTEXT"),
    (
        {"security.protocol": "ssl", "security.ssl.key": "key.pem"},
        "'security.ssl.key' needs 'security.ssl.certificate'",
    ),
    ({"security.protocol": "sasl"}, "'security.sasl.username' must be set"),
    ({"security.protocol": "sasl", "security.sasl.username": "u"}, "'security.sasl.password' must be set"),
    ({"scanner.log.fetch.min-bytes": "0"}, "'scanner.log.fetch.min-bytes' must be greater than 0, got 0"),
    ({"scanner.log.fetch.max-bytes": "-1"}, "'scanner.log.fetch.max-bytes' must be greater than 0"),
    ({"scanner.log.fetch.min-bytes": "20000000"}, "must not be above 'scanner.log.fetch.max-bytes', which is 16777216"),
    ({"scanner.log.fetch.wait-max-time-ms": "-1"}, "'scanner.log.fetch.wait-max-time-ms' must not be negative"),
    (
        {"scanner.log.fetch.max-bytes-for-bucket": "0"},
        "'scanner.log.fetch.max-bytes-for-bucket' must be greater than 0",
    ),
    ({"scanner.log.fetch.max-bytes": "1000"}, "'scanner.log.fetch.max-bytes-for-bucket' is 1048576, but must not be"),
    ({"scanner.remote-log.prefetch-num": "0"}, "'scanner.remote-log.prefetch-num' must be greater than 0"),
    ({"scanner.remote-log.read-concurrency": "0"}, "'scanner.remote-log.read-concurrency' must be greater than 0"),
    ({"remote-file.download-thread-num": "0"}, "'remote-file.download-thread-num' must be greater than 0"),
    ({"scanner.log.max-poll-records": "0"}, "'scanner.log.max-poll-records' must be greater than 0"),
    ({"writer.request-max-size": "0"}, "'writer.request-max-size' must be greater than 0"),
    ({"writer.batch-size": "0"}, "'writer.batch-size' must be greater than 0"),
    ({"writer.batch-timeout-ms": "-1"}, "'writer.batch-timeout-ms' must not be negative"),
    ({"connect-timeout": "0"}, "'connect-timeout' must be greater than 0"),
    ({"request-timeout": "0"}, "'request-timeout' must be greater than 0"),
    ({"writer.max-inflight-requests-per-bucket": "0"}, "must be greater than 0"),
    ({"writer.buffer.memory-size": "0"}, "'writer.buffer.memory-size' must be greater than 0"),
    (
        {"writer.batch-size": "20000000"},
        "'writer.batch-size' is 20000000, but must not be above 'writer.request-max-size'",
    ),
    ({"writer.buffer.memory-size": "1000000"}, "must not be above 'writer.buffer.memory-size', which is 1000000"),
    ({"writer.dynamic-batch-size-min": "0"}, "'writer.dynamic-batch-size-min' must be greater than 0"),
    ({"writer.batch-size": "1000", "writer.dynamic-batch-size-min": "1001"}, "'writer.dynamic-batch-size-min' is 1001"),
    ({"writer.acks": "1"}, "'writer.acks' is '1', but idempotence needs all"),
    ({"writer.acks": "some"}, "invalid writer ack 'some'"),
    ({"writer.acks": "2", "writer.enable-idempotence": "false"}, "invalid writer ack '2'"),
    ({"writer.retries": "0"}, "'writer.retries' is 0, but idempotence needs retries"),
    ({"writer.max-inflight-requests-per-bucket": "6"}, "is 6, but idempotence allows at most 5"),
    ({"lookup.queue-size": "0"}, "'lookup.queue-size' must be greater than 0"),
    ({"lookup.max-batch-size": "0"}, "'lookup.max-batch-size' must be greater than 0"),
    ({"lookup.max-inflight-requests": "0"}, "'lookup.max-inflight-requests' must be greater than 0"),
    ({"lookup.max-retries": "-1"}, "'lookup.max-retries' must not be negative"),
]


@pytest.mark.parametrize(("properties", "message"), CONTRADICTIONS)
def test_contradictions_are_found_by_validate_only(properties: dict[str, str | int | bool], message: str) -> None:
    config = Config(properties)
    with pytest.raises(FlussError) as caught:
        config.validate()
    assert message in caught.value.message
    assert caught.value.error_code == -2


@pytest.mark.parametrize(
    "properties",
    [
        {"security.protocol": "plaintext"},
        {"security.protocol": "SSL", "security.ssl.ca": "ca.pem", "security.ssl.verify-hostname": "false"},
        {"security.protocol": "Sasl_Ssl", "security.sasl.mechanism": "scram-sha-256"}
        | {"security.sasl.username": "u", "security.sasl.password": "p"},
        {"security.protocol": "SASL", "security.sasl.mechanism": "plain"}
        | {"security.sasl.username": "u", "security.sasl.password": "p"},
        {"writer.acks": "ALL"},
        {"writer.acks": "-1"},
        {"writer.enable-idempotence": "false", "writer.acks": "0", "writer.retries": "0"},
        {"writer.enable-idempotence": "false", "writer.max-inflight-requests-per-bucket": "50"},
        {"writer.batch-size": "1000"},
        {"scanner.log.fetch.wait-max-time-ms": "0", "writer.batch-timeout-ms": "0", "lookup.max-retries": "0"},
    ],
)
def test_unusual_but_sound_configurations_are_valid(properties: dict[str, str | int | bool]) -> None:
    Config(properties).validate()


def test_the_smallest_dynamic_batch_follows_the_batch_size_unless_set() -> None:
    assert Config().effective_dynamic_batch_size_min == 262144
    assert Config({"writer.batch-size": "1000"}).effective_dynamic_batch_size_min == 1000
    assert Config({"writer.dynamic-batch-size-min": "5000"}).effective_dynamic_batch_size_min == 5000


@pytest.mark.parametrize(("acks", "number"), [("all", -1), ("-1", -1), ("All", -1), ("0", 0), ("1", 1)])
def test_acks_have_a_number(acks: str, number: int) -> None:
    assert Config({"writer.acks": acks}).required_acks == number
