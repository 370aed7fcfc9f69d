"""Passwords stay where they belong: no log line, representation, error, option listing or process list shows one.
Shown with a server that logs everything, clients with right and wrong passwords, and users that change meanwhile."""

from __future__ import annotations

import json
import logging
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import embedded
from fluss.client.kernel.runtime import wait_for
from fluss.errors import AuthenticationError
from fluss.options import HIDDEN
from fluss.server.__main__ import main
from fluss.server.options.server_options import ServerOptions
from fluss.testing.cluster import ServerProcess

FIRST, SECOND, WRONG = "Zq9-first-Xy", "Wv7-second-Ab", "Kp3-wrong-Cd"
SECRETS = (FIRST, SECOND, WRONG)
CREDENTIALS = "security.sasl.plain.credentials"
JAAS = "security.sasl.plain.jaas.config"
LAKE_TABLE = {"table.datalake.enabled": "true"}
LISTENER = "bind.listeners: CLIENT://127.0.0.1:0\nsecurity.protocol.map: CLIENT:sasl\n"


def assert_no_secret(where: str, *texts: object) -> None:
    for text in texts:
        for secret in SECRETS:
            assert secret not in str(text), f"{where} shows a password"


@pytest.fixture
def client_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Everything that this process logs, which is looked through at the end."""
    with caplog.at_level(logging.DEBUG):
        yield caplog
    assert_no_secret("the client's log", caplog.text)


def config_for(server_address: str, password: str, user: str = "admin") -> fluss.Config:
    return fluss.Config(
        {
            "bootstrap.servers": server_address,
            "security.protocol": "sasl",
            "security.sasl.mechanism": "PLAIN",
            "security.sasl.username": user,
            "security.sasl.password": password,
        }
    )


def connect(server_address: str, password: str, user: str = "admin") -> fluss.FlussConnection:
    return wait_for(fluss.FlussConnection.create(config_for(server_address, password, user)))


def assert_refused_silently(server_address: str, password: str, user: str = "admin") -> None:
    with pytest.raises(AuthenticationError) as caught:
        connect(server_address, password, user)
    error = caught.value
    shown = (str(error), repr(error), error.args, error.__cause__, error.__context__)
    assert_no_secret("an error", *shown, "".join(traceback.format_exception(error)))


def test_passwords_of_a_running_server_are_shown_nowhere(tmp_path: Path, client_log: pytest.LogCaptureFixture) -> None:
    (tmp_path / "server.yaml").write_text(f"{LISTENER}{CREDENTIALS}: admin:{FIRST}\n")
    arguments = ("--config", str(tmp_path / "server.yaml"), "--log-level", "debug")
    with ServerProcess(tmp_path / "data", *arguments) as server:
        address = server.bootstrap_servers
        with connect(address, FIRST) as connection:
            assert_no_secret("a connection", repr(connection))
            admin = connection.get_admin()
            # A second user, who changes the first one's password.
            wait_for(admin.alter_cluster_configs(append_configs={CREDENTIALS: f"bob:{SECOND}"}))
            assert_refused_silently(address, WRONG)
            assert_refused_silently(address, WRONG, "bob")
            entries = wait_for(admin.describe_cluster_configs())
            assert_no_secret("the description of the cluster", *entries)
            (entry,) = (entry for entry in entries if entry.key == CREDENTIALS)
            assert entry.value == f"admin:{HIDDEN},bob:{HIDDEN}"
            with pytest.raises(fluss.FlussError) as refused:
                wait_for(admin.alter_cluster_configs(set_configs={CREDENTIALS: FIRST}))
            assert_no_secret("a refused change", refused.value)
        with connect(address, SECOND, "bob") as connection:
            changed = {CREDENTIALS: f"admin:{SECOND},bob:{SECOND}"}
            wait_for(connection.get_admin().alter_cluster_configs(set_configs=changed))
        assert_refused_silently(address, FIRST)
        connect(address, SECOND).close()
        assert server.stop() == 0
        assert_no_secret("the server", server.log_text, server.ready_line)
        assert "wrong user name or password" in server.log_text, "the log does say that somebody tried"
        metadata = tmp_path / "data" / "metadata.sqlite"
        assert stat.S_IMODE(metadata.stat().st_mode) == 0o600, "only its owner may read what holds passwords"


@pytest.mark.parametrize("process", [False, True], ids=["thread", "child"])
def test_an_embedded_server_hands_its_passwords_on_unseen(
    process: bool, client_log: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {
        "bind.listeners": "CLIENT://127.0.0.1:0",
        "security.protocol.map": "CLIENT:sasl",
        CREDENTIALS: f"admin:{FIRST}",
    }
    with embedded.start(options, process=process) as server:
        assert_no_secret("the server", repr(server), server)
        process_directory = Path(f"/proc/{server.process_id}")
        for name in ("cmdline", "environ"):
            assert_no_secret(name, (process_directory / name).read_bytes().decode(errors="replace"))
        connect(server.address(), FIRST).close()
        assert_refused_silently(server.address(), WRONG)
    assert_no_secret("the output", *capfd.readouterr())


def run_server(tmp_path: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "server.yaml").write_text(text)
    command = [sys.executable, "-m", "fluss.server", "--data-dir", str(tmp_path / "data"), "--log-level", "debug"]
    command += ["--config", str(tmp_path / "server.yaml"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_the_list_of_options_masks_passwords(tmp_path: Path) -> None:
    text = f"{LISTENER}{CREDENTIALS}: admin:{FIRST},bob:{SECOND}\n"
    text += f'security.sasl.listener.name.client.plain.jaas.config: Module required user_a="{FIRST}";\n'
    answer = run_server(tmp_path, text, "--print-config")
    assert answer.returncode == 0
    assert CREDENTIALS in answer.stdout
    assert_no_secret("--print-config", answer.stdout, answer.stderr)


WRONG_OPTIONS = {
    "no user": f"{CREDENTIALS}: {FIRST}",
    "an empty user": f"{CREDENTIALS}: :{FIRST}",
    "a user twice": f"{CREDENTIALS}: a:{FIRST},a:{SECOND}",
    "two colons": f"{CREDENTIALS}: admin:{FIRST}: x: y",
    "an open quote": f'{CREDENTIALS}: "admin:{FIRST}',
    "an open bracket": f"{CREDENTIALS}: {{admin: {FIRST}",
    "a map": f"{CREDENTIALS}: {{admin: {FIRST}}}",
    "the key twice": f"{CREDENTIALS}: a:{FIRST}\n{CREDENTIALS}: a:{SECOND}",
    "a misspelt key": f"{CREDENTIALS}z: a:{FIRST}",
    "an open quote in JAAS": f'{JAAS}: Module required user_admin={FIRST}"',
    "a word missing in JAAS": f'{JAAS}: Module user_admin="{FIRST}"',
}


@pytest.mark.parametrize("line", WRONG_OPTIONS.values(), ids=WRONG_OPTIONS.keys())
def test_a_mistake_next_to_a_password_is_explained_without_it(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.yaml").write_text(f"{LISTENER}{line}\n")
    assert main(["--data-dir", str(tmp_path / "data"), "--config", str(tmp_path / "server.yaml")]) == 1
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1
    assert_no_secret("the message", said.err, said.out)


def test_a_mistake_on_the_command_line_is_explained_without_the_password(tmp_path: Path) -> None:
    answer = run_server(tmp_path, LISTENER, "-D", f"{CREDENTIALS}:{FIRST}")
    assert answer.returncode == 2
    assert f"-D {CREDENTIALS}: expected KEY=VALUE" in answer.stderr
    assert_no_secret("the usage", answer.stderr)


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        (CREDENTIALS, "FLUSS_SECURITY_SASL_PLAIN_CREDENTIALS"),
        (JAAS, "FLUSS_SECURITY_SASL_PLAIN_JAAS_CONFIG"),
        ("security.sasl.listener.name.client.plain.jaas.config", "FLUSS_SECURITY_SASL_LISTENER_NAME_CLIENT_PLAIN_JAAS"),
        ("datalake.iceberg.s3.secret-access-key", None),
        ("s3.access-key", None),
        ("fs.azure.account.key.example", None),
    ],
)
def test_a_password_on_the_command_line_is_refused_with_better_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, variable: str | None
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--data-dir", str(tmp_path / "data"), "-D", f"{key}=admin:{FIRST}"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"-D {key}: every user of this machine can read the command line" in said
    assert "--config" in said
    assert variable is None or variable in said
    assert_no_secret("the refusal", said)
    assert not (tmp_path / "data").exists()


def test_options_may_come_in_by_standard_input(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fluss.server",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        "1",
        "--config",
        "-",
    ]
    done = subprocess.run(
        [*command, "--print-config"],
        input=f"{CREDENTIALS}: admin:{FIRST}\n",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0
    assert f'{CREDENTIALS}: "***"' in done.stdout
    assert "# standard input line 1" in done.stdout
    assert_no_secret("--print-config", done.stdout, done.stderr)


# Every option whose value is a secret, and some whose value holds one, in a form that the server starts with.
SECRET_OPTIONS = {
    CREDENTIALS: f"admin:{FIRST},bob:{SECOND}",
    JAAS: f'Module required user_carol="{WRONG}";',
    "security.sasl.listener.name.other.plain.jaas.config": f'Module required user_dave="{SECOND}";',
    "security.ssl.key.password": SECOND,
    "datalake.format": "iceberg",
    "datalake.iceberg.token": FIRST,
    "datalake.iceberg.credential": f"id:{SECOND}",
    "datalake.iceberg.s3.access-key-id": WRONG,
    "datalake.iceberg.uri": f"https://catalog:{FIRST}@lake.example.org/api",
    "s3.access-key": FIRST,
    "s3.secret-key": SECOND,
    "fs.azure.account.key": WRONG,
    "fs.azure.account.key.example": WRONG,
    "fs.azure.account.oauth2.client.secret": SECOND,
    "fs.oss.accessKeyId": FIRST,
    "fs.oss.accessKeySecret": SECOND,
}


def reachable_lake(directory: Path) -> dict[str, str]:
    return {"datalake.iceberg.type": "hadoop", "datalake.iceberg.warehouse": str(directory / "warehouse")}


def test_every_secret_option_is_in_the_table_above() -> None:
    secret = {option.key for option in ServerOptions.options() if option.secret}
    assert secret <= SECRET_OPTIONS.keys()


@pytest.mark.parametrize("location", [f"ftp://user:{SECOND}@files.example.org/x", f"s3://user:{SECOND}@bucket/x"])
def test_an_address_that_is_refused_is_shown_without_its_password(location: str) -> None:
    with pytest.raises(fluss.FlussError, match=r"remote\.data\.dir") as refused:
        ServerOptions.load({}, environment={"FLUSS_REMOTE_DATA_DIR": location})
    assert_no_secret("the refusal", refused.value)


def test_no_secret_of_any_option_is_shown_by_a_running_server(
    tmp_path: Path, client_log: pytest.LogCaptureFixture
) -> None:
    listeners = "bind.listeners: CLIENT://127.0.0.1:0, OTHER://127.0.0.1:0\n"
    listeners += "security.protocol.map: CLIENT:sasl, OTHER:sasl\n"
    config = tmp_path / "server.yaml"
    config.write_text(listeners + "".join(f"{key}: {json.dumps(text)}\n" for key, text in SECRET_OPTIONS.items()))
    config.chmod(0o644)
    arguments = ("--config", str(config), "--log-level", "debug")
    with ServerProcess(tmp_path / "data", *arguments) as server:
        process_directory = Path(f"/proc/{server.process_id}")
        assert_no_secret("the process list", (process_directory / "cmdline").read_text())
        address = f"127.0.0.1:{server.ports['CLIENT']}"
        with connect(address, FIRST) as connection:
            admin = connection.get_admin()
            entries = wait_for(admin.describe_cluster_configs())
            assert {entry.key for entry in entries} >= SECRET_OPTIONS.keys()
            assert_no_secret("the description of the cluster", *entries, *(entry.value for entry in entries))
            # A lake that is there, for the table; the address above stays among the options.
            wait_for(admin.alter_cluster_configs(set_configs=reachable_lake(tmp_path)))
            path = fluss.TablePath("fluss", "lake")
            schema = fluss.Schema(pa.schema([("id", pa.int32())]))
            wait_for(admin.create_table(path, fluss.TableDescriptor(schema, properties=LAKE_TABLE)))
            info = wait_for(admin.get_table_info(path))
            assert_no_secret("a table", info, info.properties, info.custom_properties)
            with pytest.raises(fluss.FlussError) as refused:
                wait_for(admin.alter_cluster_configs(set_configs={"datalake.format": FIRST, CREDENTIALS: SECOND}))
            assert SECOND not in str(refused.value)
        assert_refused_silently(address, WRONG)
        assert server.stop() == 0
        assert_no_secret("the log", server.log_text, server.ready_line)
        assert f"chmod 600 {config}" in server.log_text, "others can read the file"
    options = ServerOptions.load({}, environment={}, file=config)
    assert_no_secret("options", repr(options), str(options), options.explained(), options.shown())


def test_client_options_never_show_the_password() -> None:
    config = config_for("127.0.0.1:1", FIRST)
    values: list[Any] = [repr(config), str(config), repr(getattr(config, "__dict__", ""))]
    with pytest.raises(fluss.FlussError, match="did you mean") as misspelt:
        fluss.Config({"security.sasl.passwort": FIRST})
    with pytest.raises(fluss.FlussError, match="NUL") as impossible:
        connect("127.0.0.1:1", f"{FIRST}\0")
    for error in (misspelt.value, impossible.value):
        values += [str(error), repr(error), error.__cause__, error.__context__]
    assert_no_secret("the options", *values)
