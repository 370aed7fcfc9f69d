"""At a terminal: commands that other tests call through a pipe; and the other way round for a few."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fluss.embedded import EmbeddedServer
from tests.cli.runner import FlussCommand, Result

CTRL_D = "\x04"


@pytest.fixture
def typed(fluss: FlussCommand):
    """Return a function that runs a command at a terminal, types a text, and returns how it ended."""

    def run(*words: str, text: str | None = None) -> Result:
        running = fluss.start(*words, terminal=True)
        if text is not None:
            running.send(text)
        return running.wait().ok()

    return run


def test_tables_and_rows_at_a_terminal(fluss: FlussCommand, fluss_database: str, typed) -> None:
    database, table, log = f"{fluss_database}_more", f"{fluss_database}.users", f"{fluss_database}.events"
    assert database in typed("db", "create", database, "--comment", "what it is for").out
    assert "what it is for" in typed("db", "show", database).out
    assert "Drop the database" in typed("db", "drop", database, text="y\n").out
    assert table in typed("table", "create", table, "-c", "id INT", "-c", "name STRING", "--primary-key", "id").out
    assert "1 row" in typed("put", table, "id=1", "name=Ada").out
    assert "2 rows" in typed("put", table, text='{"id": 2, "name": "Bob"}\n{"id": 3, "name": "Eve"}\n' + CTRL_D).out
    assert "1 key" in typed("delete", table, "2").out
    assert "1 key" in typed("delete", table, text=f"3\n{CTRL_D}").out
    assert [row["id"] for row in fluss("head", table, "-f", "json").rows] == [1]
    typed("table", "create", log, "-c", "id INT", "-c", "day STRING", "--partition-by", "day")
    assert "day=2026-01-31" in typed("partition", "add", log, "day=2026-01-31").out
    assert "1 row" in typed("append", log, text=f'{{"id": 1, "day": "2026-01-31"}}\n{CTRL_D}').out
    assert "Drop the partition" in typed("partition", "drop", log, "day=2026-01-31", text="y\n").out
    assert fluss("partition", "ls", log, "-f", "json").rows == []
    assert table in fluss("table", "drop", table, "--yes").out


def test_profiles_users_and_completion_at_a_terminal(fluss: FlussCommand, typed) -> None:
    fluss("profile", "add", "here", "--server", "localhost:1")
    fluss("profile", "add", "there", "--server", "localhost:2")
    assert "there" in typed("profile", "use", "there").out
    assert "here" in typed("profile", "rm", "here").out
    assert [row["profile"] for row in fluss("profile", "ls", "-f", "json").rows] == ["there"]
    assert "_FLUSS_COMPLETE=bash_complete" in typed("completion", "bash").out
    fluss("user", "add", "ada", "--file", "users", text="a long password\n")
    assert "ada" in typed("user", "ls", "--file", "users").out
    assert "ada" in fluss("user", "rm", "ada", "--file", "users").out
    hashed = fluss.start("user", "hash", terminal=True)
    hashed.type_hidden("Password", "a long password\n")
    hashed.type_hidden("epeat", "a long password\n")
    shown = hashed.wait().ok().out
    assert "$" in shown.splitlines()[-1], shown
    assert "a long password" not in shown


def test_a_terminal_is_not_moved_by_what_is_in_files_and_rows(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.t"
    hostile = "\x1b[31mred\x07\x9b5m\u202eabc"
    fluss("table", "create", table, "-c", "id INT", "-c", "text STRING", "--comment", hostile)
    (fluss.home / "rows.csv").write_text(f"id,text\n1,{hostile}\n", encoding="utf-8")
    (fluss.home / "bad.csv").write_text(f"id,text\n{hostile},x\n", encoding="utf-8")
    fluss("load", "rows.csv", table)
    refused = fluss.run("load", "bad.csv", table, terminal=True, environment={"NO_COLOR": "1"})
    assert (refused.code, "bad.csv, line 2" in refused.out) == (6, True), refused.out
    shown = [refused.out] + [
        fluss(*words, terminal=True, environment={"NO_COLOR": "1"}).out
        for words in (("head", table), ("tail", table), ("table", "show", table))
    ]
    for text in shown:
        assert "abc" in text
        # Progress bars move the cursor; colours, sounds and directions are the file's.
        assert [sign for sign in ("\x1b[31m", "\x07", "\x9b", "\u202e") if sign in text] == []


def test_the_program_ends_with_all_that_it_has_to_say() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "fluss", *words], capture_output=True, text=True, check=False)

    helped, refused = run("load", "--help"), run("table", "lss")
    assert (helped.returncode, helped.stdout.endswith("--file-format csv\n"), helped.stderr) == (0, True, "")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.endswith("did you mean `fluss table ls`?\n")


def test_a_command_runs_without_standard_streams(fluss_server: EmbeddedServer) -> None:
    """A socket that got the place of one of them would be written to, or closed by the library of the event loop."""
    command = [sys.executable, "-m", "fluss", "db", "ls", "-s", fluss_server.bootstrap_servers]
    ended = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=False, timeout=60)
    assert ended.returncode == 0
