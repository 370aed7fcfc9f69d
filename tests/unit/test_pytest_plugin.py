"""The fixtures that the package brings to pytest: a server for the test run, connections and databases per test.
Shown by running pytest on a small test file, and by looking at what loading the plugin imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import asyncio
from fluss.net.transport import run

names = []

def test_connection_and_database(fluss_server, fluss_connection, fluss_database):
    names.append(fluss_database)
    assert run(fluss_connection.get_admin().list_databases()) == ["fluss", fluss_database]
    assert fluss_connection.config().bootstrap_servers == fluss_server.bootstrap_servers

def test_the_database_of_another_test_is_gone(fluss_connection, fluss_database):
    assert fluss_database != names[0]
    assert run(fluss_connection.get_admin().list_databases()) == ["fluss", fluss_database]

def test_nothing_has_to_be_awaited(fluss_blocking_connection, fluss_database):
    assert fluss_blocking_connection.get_admin().list_databases() == ["fluss", fluss_database]

def test_the_connection_works_on_any_loop(fluss_connection):
    assert asyncio.run(fluss_connection.get_admin().database_exists("fluss"))
"""


def test_a_test_file_uses_server_connection_and_database(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "test_program.py"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert "4 passed" in answer.stdout, answer.stdout + answer.stderr


def test_loading_the_plugin_does_not_load_the_package() -> None:
    program = (
        "import sys, flussbett_pytest; print([name for name in sys.modules if name in ('fluss', 'pyarrow', 'numpy')])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
