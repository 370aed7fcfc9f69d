"""Server options come from arguments, environment, file and defaults, in this order, and wrong ones are refused.
Shown with real files and dictionaries as environment; passwords are looked for in everything that is printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fluss.errors import FlussError
from fluss.protocol.sasl import Principal
from fluss.server.listener_parsing import Endpoint, SecurityProtocol
from fluss.server.options.process_options import Durability
from fluss.server.options.server_option import Setting, read_options_file
from fluss.server.options.server_options import ServerOptions

MINUTE_MS = 60_000


def config_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return path


def load(tmp_path: Path, text: str) -> ServerOptions:
    return ServerOptions.load({}, environment={}, file=config_file(tmp_path, text))


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(FlussError) as caught:
        load(tmp_path, text)
    return caught.value.message


def test_defaults_are_the_documented_ones() -> None:
    options = ServerOptions()
    assert options.bind_listeners == (Endpoint("FLUSS", "127.0.0.1", 9123),)
    assert options.durability is Durability.FSYNC
    assert options.log_segment_bytes_max == 2**30
    assert options.auto_partition_check_interval_ms == 10 * MINUTE_MS
    assert options.disk_write_limit_ratio == 0.85
    assert options.request_bytes_max == 100 * 2**20
    assert options.server_id == 0
    assert not options.authorizer_enabled


def test_a_flat_file_with_dotted_keys_is_read(tmp_path: Path) -> None:
    options = load(
        tmp_path,
        """
bind.listeners: PLAIN_CLIENT://127.0.0.1:9223, CLIENT://127.0.0.1:9123
security.protocol.map: CLIENT:sasl
security.sasl.enabled.mechanisms: plain
security.sasl.plain.credentials: admin:secret,alice:secret2
super.users: User:admin;User:alice
default.bucket.number: 3
authorizer.enabled: true
server.data-disk.write-limit-ratio: 0.9
log.retention.check-interval: 30s
""",
    )
    assert [endpoint.name for endpoint in options.bind_listeners] == ["PLAIN_CLIENT", "CLIENT"]
    assert options.security_protocols == {"CLIENT": SecurityProtocol.SASL}
    assert options.sasl_users == {"admin": "secret", "alice": "secret2"}
    assert options.super_users == {Principal("User", "admin"), Principal("User", "alice")}
    assert options.default_bucket_count == 3
    assert options.authorizer_enabled
    assert options.disk_write_limit_ratio == 0.9
    assert options.log_retention_check_interval_ms == 30_000


def test_nested_mappings_and_lists_mean_the_same_as_flat_keys(tmp_path: Path) -> None:
    options = load(
        tmp_path,
        """
log:
  segment.file-size: 64mb
  index:
    interval-size: 8 kb
bind.listeners: ["A://localhost:1", "B://localhost:2"]
""",
    )
    assert options.log_segment_bytes_max == 64 * 2**20
    assert options.log_index_interval_bytes == 8192
    assert [endpoint.name for endpoint in options.bind_listeners] == ["A", "B"]


def test_texts_are_taken_as_they_are_written(tmp_path: Path) -> None:
    # YAML would make 10, a number of seconds and a truth value of these.
    options = load(
        tmp_path, "tablet-server.rack: 012\nsecurity.sasl.plain.credentials: 1:20\ninternal.listener.name: on"
    )
    assert options.rack == "012"
    assert options.sasl_users == {"1": "20"}
    assert options.internal_listener_name == "on"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "# nothing yet\n").log_segment_bytes_max == 2**30


def test_arguments_go_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = config_file(
        tmp_path, "default.bucket.number: 2\nmax.partition.num: 2\nmax.bucket.num: 2\nlog.index.interval-size: 2kb"
    )
    environment = {"FLUSS_DEFAULT_BUCKET_NUMBER": "3", "FLUSS_MAX_PARTITION_NUM": "3"}
    arguments = {"default.bucket.number": Setting("4", "command line")}
    options = ServerOptions.load(arguments, environment=environment, file=file)
    counts = (options.default_bucket_count, options.partition_count_max, options.bucket_count_max)
    assert counts == (4, 3, 2)
    origins = {key: origin for key, _, origin in options.shown()}
    assert origins["default.bucket.number"] == "command line"
    assert origins["max.partition.num"] == "environment FLUSS_MAX_PARTITION_NUM"
    assert origins["max.bucket.num"] == f"{file} line 3"
    assert origins["log.segment.file-size"] == "default"


def test_the_environment_may_hold_variables_of_other_programs() -> None:
    environment = {"FLUSS_BOOTSTRAP_SERVERS": "x", "FLUSS_HOME": "/opt"}
    assert ServerOptions.load({}, environment=environment).default_bucket_count == 1


def test_every_option_has_a_variable_of_its_own() -> None:
    variables = [option.environment_variable for option in ServerOptions.options()]
    assert len(set(variables)) == len(variables)
    assert "FLUSS_SERVER_DATA_DISK_WRITE_LIMIT_RATIO" in variables


def test_users_of_one_listener_come_from_file_and_environment(tmp_path: Path) -> None:
    file = config_file(
        tmp_path, """security.sasl.listener.name.client.plain.jaas.config: 'Module required user_a="1";'"""
    )
    environment = {"FLUSS_SECURITY_SASL_LISTENER_NAME_OTHER_ONE_PLAIN_JAAS_CONFIG": 'Module required user_b="2";'}
    options = ServerOptions.load({}, environment=environment, file=file)
    assert options.listener_users == {"client": {"a": "1"}, "other_one": {"b": "2"}}


def test_an_unknown_key_is_refused_with_place_and_nearest_match(tmp_path: Path) -> None:
    message = refusal(tmp_path, "\n\nlog.segmnt.file-size: 1gb")
    assert "'log.segmnt.file-size'" in message
    assert "server.yaml line 3" in message
    assert "did you mean 'log.segment.file-size'?" in message


def test_several_data_directories_are_not_taken_for_one(tmp_path: Path) -> None:
    assert "did you mean 'data.dir'?" in refusal(tmp_path, "data.dirs: /a,/b")


def test_keys_of_other_servers_are_accepted_and_named(tmp_path: Path) -> None:
    options = load(
        tmp_path,
        "zookeeper.address: localhost:2181\nremote.fs.write-buffer-size: 4kb\nkv.snapshot.scheduler-thread-num: 2\n"
        "log.replica.max-lag-time: 1s\nserver.io-pool.size: 3\nmax.bucket.num: 7",
    )
    assert options.bucket_count_max == 7
    assert set(options.ignored_keys) == {
        "zookeeper.address",
        "remote.fs.write-buffer-size",
        "kv.snapshot.scheduler-thread-num",
        "log.replica.max-lag-time",
        "server.io-pool.size",
    }
    assert "zookeeper.address has no effect" in options.explained()


def test_no_option_of_ours_is_taken_for_one_of_others() -> None:
    given = {option.key: ServerOptions().setting(option).text for option in ServerOptions.options()}
    options = ServerOptions({key: text for key, text in given.items() if text})
    assert options.ignored_keys == ()
    changed = ServerOptions({"coordinator.producer-offsets.ttl": "3 h", "coordinator.io-pool.size": "10"})
    assert changed.producer_offsets_ttl_ms == 3 * 3_600_000
    assert changed.ignored_keys == ("coordinator.io-pool.size",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log.segment.file-size: 1", "expected a memory size with a unit"),
        ("log.segment.file-size: 4gb", "not above 2147483647 bytes"),
        ("log.retention.check-interval: 0 s", "not below 1 ms"),
        ("default.bucket.number: 0", "not below 1"),
        ("default.bucket.number: many", "'many'"),
        ("authorizer.enabled: maybe", "true or false"),
        ("durability: never", "one of fsync, os"),
        ("server.data-disk.write-limit-ratio: 1.5", "between 0 and 1"),
        ("server.data-disk.write-limit-ratio: nan", "between 0 and 1"),
        ("server.data-disk.write-recover-ratio: 0.9", "it must be below 'server.data-disk.write-limit-ratio'"),
        ("default.replication.factor: 3", "one replica"),
        ("authorizer.type: ranger", "no other authorizer"),
        ("super.users: admin", "User:admin"),
        ("super.users: User:a,User:b", "semicolons"),
        ("max.bucket.num: 5\nmax.bucket.num: 6", "line 2: 'max.bucket.num' is set a second time"),
        ("max.bucket.num: 5\nmax: {bucket: {num: 6}}", "a second time"),
        ("max.bucket.num:", "has no value"),
        ("max.bucket.num: [[1]]", "a text or a list of texts"),
        ("- a\n- b", "'key: value' lines"),
        ("? [a]\n: b", "expected a dotted key"),
        ("a: &a\n  b: *a", "expected a dotted key"),
        ("a: 'b", "not valid YAML: line"),
    ],
)
def test_wrong_files_are_refused_with_the_reason(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlussError, match="No such file"):
        read_options_file(tmp_path / "missing.yaml")


def test_without_pyyaml_a_file_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(FlussError, match=r'pip install "flussbett\[server\]"'):
        read_options_file(config_file(tmp_path, "a: b"))


def test_values_of_wrong_classes_are_programming_errors() -> None:
    with pytest.raises(TypeError, match="options are a mapping"):
        ServerOptions({"data.dir": Path("/x")})  # type: ignore[dict-item]  # that it is wrong is the point


def test_booleans_and_numbers_may_be_given_as_such() -> None:
    options = ServerOptions(
        {"authorizer.enabled": True, "max.bucket.num": 9, "server.data-disk.write-limit-ratio": 1.0}
    )
    assert (options.authorizer_enabled, options.bucket_count_max, options.disk_write_limit_ratio) == (True, 9, 1.0)


def test_passwords_are_never_shown(tmp_path: Path) -> None:
    properties = {
        "security.sasl.plain.credentials": "alice:hush-1",
        "security.sasl.plain.jaas.config": 'Module required user_bob="hush-2";',
        "security.sasl.listener.name.client.plain.jaas.config": 'Module required user_eve="hush-3";',
    }
    options = ServerOptions(properties)
    shown = [repr(options), options.explained(), repr(options.setting(ServerOptions.sasl_users)), str(options.shown())]
    assert not any("hush" in text for text in shown)
    assert options.explained().count('"***"') == 3
    for key, text in [
        ("security.sasl.plain.credentials", "hush-1"),
        ("security.sasl.plain.credentials", "alice:hush,hush"),
        ("security.sasl.plain.jaas.config", 'Module required user_bob="hush'),
        ("security.sasl.plain.jaas.config", 'Module required user_bob "hush";'),
        ("security.sasl.listener.name.a.plain.jaas.config", "Module hush;"),
        ("security.sasl.unknown", "hush"),
    ]:
        with pytest.raises(FlussError) as caught:
            ServerOptions({key: text})
        assert "hush" not in str(caught.value)
        assert key in str(caught.value)


def test_what_is_printed_can_be_used_as_a_file(tmp_path: Path) -> None:
    options = ServerOptions(
        {
            "bind.listeners": "A://[::1]:0",
            "super.users": "User:a;User:b",
            "tablet-server.rack": 'r"1"',
            "data.dir": "/a b",
        }
    )
    again = load(tmp_path, options.explained())
    assert [(key, text) for key, text, _ in again.shown()] == [(key, text) for key, text, _ in options.shown()]


# Remote storage


def test_places_of_remote_storage_are_checked_and_spread_as_they_are_weighted() -> None:
    assert ServerOptions().remote_locations == ()
    assert ServerOptions({"remote.data.dir": "/a"}).remote_locations == ("/a",)
    both = {"remote.data.dir": "/a", "remote.data.dirs": "/b, s3://bucket/c"}
    assert ServerOptions(both).remote_locations == ("/b", "s3://bucket/c")
    weighted = both | {"remote.data.dirs.strategy": "weighted_round_robin", "remote.data.dirs.weights": "2,1"}
    assert ServerOptions(weighted).remote_locations == ("/b", "/b", "s3://bucket/c")
    for wrong, part in (
        ({"remote.data.dir": "relative"}, "give an absolute path"),
        ({"remote.data.dirs": "/a,ftp://b"}, "remote storage cannot be at 'ftp://b'"),
        (weighted | {"remote.data.dirs.weights": "1"}, "one weight for each of the 2 locations"),
        (weighted | {"remote.data.dirs.weights": "0,0"}, "not all 0"),
    ):
        with pytest.raises(FlussError, match=part):
            ServerOptions(wrong)


def test_keys_of_remote_storage_are_not_shown() -> None:
    secrets = {
        "s3.access-key": "hush-1",
        "s3.secret-key": "hush-2",
        "fs.azure.account.key": "hush-3",
        "fs.azure.account.oauth2.client.secret": "hush-4",
        "fs.oss.accessKeyId": "hush-5",
        "fs.oss.accessKeySecret": "hush-6",
    }
    options = ServerOptions(secrets)
    assert "hush" not in options.explained() + repr(options)
    assert secrets.items() <= options.file_system_properties.items()
