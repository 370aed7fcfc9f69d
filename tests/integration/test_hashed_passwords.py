"""Passwords that a server keeps hashed: made by its own command, taken wherever it has users, renewed in a file."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from fluss import blocking, embedded
from fluss.errors import FlussError
from fluss.protocol.stored_password import StoredPassword
from fluss.server.__main__ import main
from fluss.testing.waiting import eventually

HASHED = str(StoredPassword.of("alice-secret", iterations=4096))


def _logs_in(server: embedded.EmbeddedServer, user: str, password: str, listener: str | None = None) -> bool:
    config = server.config(
        listener, security_protocol="sasl", security_sasl_username=user, security_sasl_password=password
    )
    try:
        blocking.FlussConnection.create(config).close()
    except FlussError as error:
        if error.error_code != 46:
            raise
        return False
    return True


def _hash(*arguments: str, password: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fluss.server", "hash-password", *arguments]
    return subprocess.run(command, input=password, capture_output=True, text=True)


def _write(path: Path, *lines: str, mode: int = 0o600) -> None:
    """Replace a file of users as a careful operator does."""
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text("".join(f"{line}\n" for line in lines))
    new.chmod(mode)
    new.replace(path)


def test_the_command_makes_what_options_take():
    made = _hash("--iterations", "5000", password="pass:word, with\N{LATIN SMALL LETTER E WITH ACUTE}\n")
    assert made.returncode == 0, made.stderr
    text = made.stdout.strip()
    assert text.startswith("SCRAM-SHA-256$5000:")
    assert StoredPassword.parse(text).matches("pass:word, with\N{LATIN SMALL LETTER E WITH ACUTE}")
    line = _hash("--user", "alice", password="secret").stdout
    assert line.startswith("alice:SCRAM-SHA-256$100000:")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "password", "code", "expected"),
    [
        ((), "", 1, "the password is empty"),
        ((), "a\x07b", 1, "control character"),
        (("--user", "a:b"), "secret", 1, "no colon"),
        (("--iterations", "100"), "secret", 2, "from 4096 to"),
        (("secret",), "secret", 2, "unrecognized arguments"),
    ],
)
def test_the_command_refuses_what_cannot_work(arguments, password, code, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(password))
    try:
        ended = main(["hash-password", *arguments])
    except SystemExit as left:
        ended = left.code
    assert ended == code
    said = capsys.readouterr()
    assert expected in said.err
    assert said.out == ""


def test_a_hash_is_taken_wherever_users_are_configured(tmp_path):
    users = tmp_path / "users"
    _write(users, "# who may come in", "", f"filed:{HASHED}")
    options = {
        "bind.listeners": "INSIDE://127.0.0.1:0,A://127.0.0.1:0,B://127.0.0.1:0",
        "internal.listener.name": "INSIDE",
        "security.protocol.map": "A:SASL,B:SASL",
        "security.sasl.plain.credentials": f"listed:{HASHED},clear:clear-secret",
        "security.sasl.plain.jaas.config": f'Module required user_jaas="{HASHED}";',
        "security.sasl.listener.name.b.plain.jaas.config": f'Module required user_own="{HASHED}";',
        "security.sasl.users.file": str(users),
    }
    with embedded.start(options) as server:
        for user in ("listed", "jaas", "filed"):
            assert _logs_in(server, user, "alice-secret", "A")
            assert not _logs_in(server, user, "alice-secret", "B"), "that listener has users of its own"
        assert _logs_in(server, "clear", "clear-secret", "A")
        assert _logs_in(server, "own", "alice-secret", "B")
        for wrong in ("alice-secre", HASHED):
            assert not _logs_in(server, "listed", wrong, "A"), "whoever has the hash does not have the password"


def test_users_of_a_file_log_in_and_new_ones_do_without_a_restart(tmp_path, caplog):
    users = tmp_path / "users"
    _write(users, f"alice:{HASHED}")
    options = {
        "security.protocol.map": "FLUSS:SASL",
        "security.sasl.users.file": str(users),
        "security.sasl.plain.credentials": "alice:other",
        "security.reload-interval": "10 ms",
    }
    with caplog.at_level(logging.INFO), embedded.start(options) as server:
        assert _logs_in(server, "alice", "alice-secret")
        assert not _logs_in(server, "alice", "other"), "the file counts more"
        assert not _logs_in(server, "bob", "alice-secret")
        _write(users, f"alice:{HASHED}", f"bob:{HASHED}")
        eventually(lambda: "the file of users was loaded again" in caplog.text)
        assert _logs_in(server, "bob", "alice-secret")
        _write(users, "alice:in-clear-text")
        eventually(lambda: "the file of users stays as it was" in caplog.text)
        assert "line 1 is not of the form user:hash; make the hash with" in caplog.text
        assert "in-clear-text" not in caplog.text
        assert _logs_in(server, "bob", "alice-secret")


def test_a_file_of_users_is_loaded_when_what_the_log_says_is_done(tmp_path, caplog):
    users = tmp_path / "users"
    _write(users, f"alice:{HASHED}")
    options = {
        "security.protocol.map": "FLUSS:SASL",
        "security.sasl.users.file": str(users),
        "security.reload-interval": "10 ms",
    }
    with caplog.at_level(logging.INFO), embedded.start(options) as server:
        _write(users, f"bob:{HASHED}", mode=0o644)
        eventually(lambda: "run: chmod 600" in caplog.text)
        users.chmod(0o600)
        eventually(lambda: "the file of users was loaded again" in caplog.text)
        assert _logs_in(server, "bob", "alice-secret")
        caplog.clear()
        users.rename(tmp_path / "elsewhere")
        eventually(lambda: "cannot be read: No such file" in caplog.text)
        (tmp_path / "elsewhere").rename(users)
        eventually(lambda: "the file of users was loaded again" in caplog.text)
        assert caplog.text.count("cannot be read") == 1, "what is tried again is not said again"


@pytest.mark.parametrize(
    ("text", "mode", "expected"),
    [
        (f"alice:{HASHED}", 0o644, "run: chmod 600"),
        (f"alice:{HASHED}", 0o620, "run: chmod 600"),
        ("", 0o600, "has no users"),
        ("alice", 0o600, "line 1 is not of the form user:hash"),
        (f"\nalice:{HASHED}\nalice:{HASHED}", 0o600, "line 3: the user alice occurs twice"),
        (f"alice:{HASHED}x", 0o600, "line 1: the password of the user alice: "),
        (b"\xff", 0o600, "not a text in UTF-8"),
        (None, 0, "cannot be read: No such file"),
    ],
)
def test_a_server_does_not_start_with_a_file_of_users_that_is_not_safe(tmp_path, text, mode, expected):
    users = tmp_path / "users"
    if text is not None:
        users.write_bytes(text if isinstance(text, bytes) else text.encode())
        users.chmod(mode)
    with pytest.raises(FlussError, match=expected) as raised:
        embedded.start({"security.protocol.map": "FLUSS:SASL", "security.sasl.users.file": str(users)})
    assert HASHED[30:50] not in str(raised.value)


@pytest.mark.parametrize(
    "option", ["security.sasl.plain.credentials", "security.sasl.plain.jaas.config", "security.sasl.users.file"]
)
def test_a_hash_that_cannot_be_one_is_refused_at_the_start(tmp_path, option):
    broken = HASHED[:-4]
    if option == "security.sasl.users.file":
        (tmp_path / "users").touch(mode=0o600)
        (tmp_path / "users").write_text(f"alice:{broken}")
        value = str(tmp_path / "users")
    else:
        value = f'M required user_alice="{broken}";' if "jaas" in option else f"alice:{broken}"
    with pytest.raises(FlussError, match="the password of the user alice: ") as raised:
        embedded.start({"security.protocol.map": "FLUSS:SASL", option: value})
    assert broken[30:50] not in str(raised.value)


def test_a_user_who_is_taken_out_of_the_file_has_no_session_any_more(tmp_path):
    users = tmp_path / "users"
    _write(users, f"alice:{HASHED}", f"bob:{HASHED}")
    options = {"security.protocol.map": "FLUSS:SASL", "security.sasl.users.file": str(users)}
    with embedded.start({**options, "security.reload-interval": "10 ms"}) as server:
        alice, bob = (
            blocking.FlussConnection.create(
                server.config(
                    security_protocol="sasl", security_sasl_username=user, security_sasl_password="alice-secret"
                )
            )
            for user in ("alice", "bob")
        )
        assert alice.get_admin().database_exists("fluss")
        _write(users, f"bob:{HASHED}")

        def is_out() -> bool:
            try:
                alice.get_admin().database_exists("fluss")
            except FlussError as error:
                return error.error_code == 46
            return False

        eventually(is_out)
        assert bob.get_admin().database_exists("fluss")
        alice.close()
        bob.close()
