"""A server that is not told otherwise lets nobody in whom it should not: from other machines, or past the authorizer.
Shown with ``python -m fluss.server`` and embedded servers, over real sockets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fluss import embedded
from fluss.errors import ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.testing.cluster import ServerProcess

TIMEOUT_S = 120
USERS = "security.sasl.plain.credentials: admin:secret,alice:secret2\n"
AUTHORIZER = "authorizer.enabled: true\nsuper.users: User:admin\n"
INSECURE = {"security.insecure-listeners.allowed": "true"}
CREATE = pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=False)


async def _ask(port: int, api: apis.Api, message, credentials: Credentials | None):
    async with await Channel.connect("127.0.0.1", port, credentials=credentials) as channel:
        return await channel.request(api, message, timeout_s=TIMEOUT_S)


def code_of_create(port: int, user: str | None = None, password: str = "") -> int:
    """Create a database; return the code of the answer."""
    try:
        run(_ask(port, apis.CREATE_DATABASE, CREATE, None if user is None else Credentials(user, password)))
    except FlussError as error:
        return error.error_code
    return 0


def refusal(tmp_path: Path, *arguments: str, config: str = "") -> str:
    """Start a server that must not start; return the one line that it says."""
    (tmp_path / "server.yaml").write_text(config)
    (tmp_path / "server.yaml").chmod(0o600)
    command = [sys.executable, "-m", "fluss.server", "--data-dir", str(tmp_path / "data")]
    command += ["--config", str(tmp_path / "server.yaml"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert not (tmp_path / "data").exists(), "nothing is touched before that"
    return line


# The authorizer


def test_a_user_without_rights_may_do_nothing_on_the_listener_of_the_default_name(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("bind.listeners: FLUSS://127.0.0.1:0\nsecurity.protocol.map: FLUSS:SASL\n" + USERS + AUTHORIZER)
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server:
        assert code_of_create(server.port, "alice", "secret2") == ErrorCode.AUTHORIZATION_EXCEPTION
        assert code_of_create(server.port, "admin", "secret") == 0


def test_a_plain_listener_of_the_default_name_is_no_way_around_the_authorizer(tmp_path: Path) -> None:
    listeners = "bind.listeners: FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0\nsecurity.protocol.map: CLIENT:SASL\n"
    config = tmp_path / "server.yaml"
    config.write_text(listeners + USERS + AUTHORIZER)
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server:
        assert code_of_create(server.ports["FLUSS"]) == ErrorCode.AUTHORIZATION_EXCEPTION
    exposed = listeners.replace("FLUSS://127.0.0.1", "FLUSS://0.0.0.0")
    (tmp_path / "other").mkdir()
    assert "--insecure" in refusal(tmp_path / "other", config=exposed + USERS + AUTHORIZER)
    # Not even the word helps an internal listener.
    internal = exposed + USERS + AUTHORIZER + "internal.listener.name: FLUSS\n"
    assert "need no rights" in refusal(tmp_path / "other", "--insecure", config=internal)


def test_an_internal_listener_cannot_be_the_only_one(tmp_path: Path) -> None:
    config = "bind.listeners: FLUSS://127.0.0.1:0\nsecurity.protocol.map: FLUSS:SASL\ninternal.listener.name: FLUSS\n"
    assert "is the only listener" in refusal(tmp_path, config=config + USERS + AUTHORIZER)


# Other machines


@pytest.mark.parametrize(
    "arguments", [("--host", "0.0.0.0"), ("-D", "bind.listeners=A://0.0.0.0:0")], ids=["host", "D"]
)
def test_other_machines_are_let_in_without_a_password_only_if_the_word_is_said(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    line = refusal(tmp_path, *arguments)
    assert "would let everybody in who can reach this machine" in line
    assert "--insecure" in line
    with ServerProcess(tmp_path / "data", *arguments, "--insecure") as server:
        assert code_of_create(server.port) == 0
        assert "lets everybody in who reaches it" in server.log_text


def test_the_word_may_stand_in_the_file_or_the_environment(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("bind.listeners: FLUSS://0.0.0.0:0\nsecurity.insecure-listeners.allowed: true\n")
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server:
        assert code_of_create(server.port) == 0
    variable = {"FLUSS_SECURITY_INSECURE_LISTENERS_ALLOWED": "true"}
    with ServerProcess(tmp_path / "data", "--host", "0.0.0.0", environment=variable) as server:
        assert code_of_create(server.port) == ErrorCode.DATABASE_ALREADY_EXIST


def test_with_passwords_other_machines_may_come_in_without_a_further_word(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("bind.listeners: CLIENT://0.0.0.0:0\nsecurity.protocol.map: CLIENT:SASL\n" + USERS)
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server:
        assert code_of_create(server.port, "admin", "secret") == 0
        assert code_of_create(server.port) == ErrorCode.AUTHENTICATE_EXCEPTION


@pytest.mark.parametrize("process", [False, True], ids=["thread", "child"])
def test_an_embedded_server_needs_the_word_too(tmp_path: Path, process: bool) -> None:
    with pytest.raises(FlussError, match="would let everybody in"):
        embedded.start(host="0.0.0.0", data_dir=tmp_path, process=process)
    with embedded.start(INSECURE, host="0.0.0.0", data_dir=tmp_path, process=process) as server:
        assert code_of_create(server.port) == 0
