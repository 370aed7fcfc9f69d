"""Profiles lead to clusters, and keep their secrets to themselves."""

from __future__ import annotations

import stat
import tomllib

from tests.cli.runner import FlussCommand

PASSWORD = "sesame-7"


def test_a_profile_leads_to_a_cluster(fluss: FlussCommand, fluss_database: str) -> None:
    server = fluss.environment.pop("FLUSS_BOOTSTRAP_SERVERS")
    # The default is localhost:9123, where there may be a server, and one that wants a login.
    assert fluss.run("db", "ls", "-o", "connect-timeout=300").code in (0, 4, 5)
    assert fluss("profile", "add", "here", "--server", server).out.endswith("it is the current one.\n")
    fluss("profile", "add", "there", "--server", "localhost:1", terminal=True)
    assert fluss_database in fluss("db", "ls").out
    assert fluss.run("db", "ls", "--profile", "there").code == 4
    assert fluss.run("db", "ls", environment={"FLUSS_PROFILE": "there"}).code == 4
    assert fluss.run("db", "ls", "--server", "localhost:1").code == 4, "what is named goes first"
    fluss("profile", "use", "there")
    assert fluss.run("db", "ls").code == 4
    assert fluss_database in fluss("db", "ls", environment={"FLUSS_BOOTSTRAP_SERVERS": server}).out
    assert [(row["profile"], row["current"]) for row in fluss("profile", "ls", "-f", "json").rows] == [
        ("here", ""),
        ("there", "yes"),
    ]
    assert "there" in fluss("profile", "ls", terminal=True).out
    fluss("profile", "rm", "there")
    assert fluss.run("profile", "use", "there").code == 3


def test_a_password_is_kept_for_its_owner_and_never_shown(fluss: FlussCommand) -> None:
    (fluss.home / "secret").write_text(f"{PASSWORD}\n")
    login = ("--server", "localhost:1", "--user", "alice")
    told = fluss("profile", "add", "a", *login, "--password-file", "secret").out
    asked = fluss.start("profile", "add", "b", *login, terminal=True)
    asked.type_hidden("Password", f"{PASSWORD}\n")
    told += asked.wait().ok().out
    told += fluss("profile", "add", "c", *login, environment={"FLUSS_PASSWORD": PASSWORD}).out
    for output_format in ("table", "json", "csv"):
        told += fluss("profile", "ls", "-f", output_format).out
    failed = fluss.run("db", "ls", "--profile", "a", "--debug")
    assert failed.code == 4
    assert PASSWORD not in told + failed.out + failed.err
    path = fluss.home / "config" / "fluss" / "profiles.toml"
    assert path.read_text().count(PASSWORD) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(f'{path.read_text()}\n"security.sasl.password" = "{PASSWORD}\n')
    broken = fluss.run("profile", "ls")
    assert (broken.code, PASSWORD in broken.err) == (1, False)


def test_passwords_on_the_command_line_are_refused(fluss: FlussCommand) -> None:
    for key in ("security.sasl.password", "client.security.sasl.password"):
        refused = fluss.run("db", "ls", "-o", f"{key}={PASSWORD}")
        assert (refused.code, PASSWORD in refused.err) == (2, False)
        assert "--password-file" in refused.err
    (fluss.home / "secret").write_bytes(b"\xff\xfe")
    unreadable = fluss.run("db", "ls", "--user", "a", "--password-file", "secret")
    assert (unreadable.code, "no text in UTF-8" in unreadable.err) == (6, True)


def test_a_profile_finds_its_files_from_any_directory(fluss: FlussCommand) -> None:
    fluss("profile", "add", "a", "--server", "localhost:1", "--ca", "ca.pem")
    found = tomllib.loads((fluss.home / "config" / "fluss" / "profiles.toml").read_text())
    assert found["profile"]["a"]["security.ssl.ca"] == str(fluss.home / "ca.pem")
