"""Every line for the shell that the documents have is run, in the order of its page, by bash.

Servers run until they are ready, and are ended; `tail -f` until it has shown something. Lines that another test runs,
or that no test can run, are named below with the reason; the session of the guide is in ``test_command_pages``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss.embedded import EmbeddedServer
from fluss.testing.certificates import ThrowawayCa
from tests.pages import PAGES, ROOT
from tests.ports import free_port

ELSEWHERE = {
    "pip install": "`make dist` installs the package",
    "make ": "targets are checked in test_command_lines, and are what runs this",
    "sudo ": "needs root and systemd",
    "journalctl ": "needs systemd",
    "docker ": "`make dist` builds the image where docker is",
    "openssl ": "tests/integration/test_tls.py makes certificates with these lines",
    'echo "subjectAltName': "tests/integration/test_tls.py",
    "chmod 600 ca.key": "tests/integration/test_tls.py",
    "# ": "a comment",
    "package=$(": "tests/spark/test_submit.py",
    '(cd "$package"': "tests/spark/test_submit.py",
    "spark-submit ": "tests/spark/test_submit.py",
    "python -m venv environment": "packs an environment for a cluster",
    "environment/bin/venv-pack": "packs an environment for a cluster",
    "export PYSPARK_PYTHON": "packs an environment for a cluster",
    "python -m fluss.server --data-dir ./data --config server.yaml": "needs an object store: test_backup_stores",
    "python -m fluss.server --data-dir ./new-data --config server.yaml": "needs an object store: test_backup_stores",
    "python -m fluss.server --data-dir /data --host 0.0.0.0": "would listen to other machines; test_command_lines",
    "python -m fluss.server hash-password\n": "asks at a terminal: tests/integration/test_hashed_passwords.py",
}
SERVERS = ("python -m fluss.server --data-dir", "fluss serve")
PASSWORD = "alice-secret"
TRIPS = {"id": [1, 2, 3, 4], "city": ["Bonn", "Kiel", "Jena", "Kiel"], "km": [3.5, 12.0, 1.5, 8.0]}


def shell_lines(page: Path) -> list[str]:
    """Return the lines of the blocks for the shell, without those of sessions, which show their answers."""
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line and not any(f"{line}\n".startswith(start) for start in ELSEWHERE)]


DOCUMENTS = [page for page in (*PAGES, ROOT / "README.md") if page.name != "CONTRIBUTING.md" and shell_lines(page)]


class Shell:
    """A directory in which lines are run, with the programs of this environment."""

    def __init__(self, directory: Path, server: str) -> None:
        self.directory = directory
        port = free_port()
        programs = directory / "bin"
        programs.mkdir()
        for name, start in (("fluss", "-m fluss "), ("python", "")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {start}"$@"\n')
            (programs / name).chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "FLUSS_BOOTSTRAP_SERVERS": server,
            "FLUSS_PASSWORD": PASSWORD,
        }
        # Another port than that of the documents, and nothing that has to survive the test.
        self.listener = {
            "FLUSS_BIND_LISTENERS": f"FLUSS://127.0.0.1:{port}",
            "FLUSS_DURABILITY": "os",
        }

    def run(self, line: str) -> None:
        is_server = line.startswith(SERVERS)
        environment = self.environment | (self.listener if is_server else {})
        command = ["bash", "-ec", f"exec {line}" if is_server or " -f " in line else line]
        shell = subprocess.Popen(
            command, cwd=self.directory, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with shell:
            assert shell.stdout is not None
            if is_server:
                while " ready on " not in (said := shell.stdout.readline()):
                    assert said, f"{line}\n{shell.communicate()[1]}"
                shell.send_signal(signal.SIGTERM)
            elif " -f " in line:
                assert shell.stdout.readline(), line
                assert shell.stdout.readline(), line
                shell.send_signal(signal.SIGINT)
            _, error = shell.communicate()
        assert shell.returncode == (130 if " -f " in line else 0), f"{line}\n{error}"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell beside a server that has the database `sales`, and one with TLS and a user alice."""
    ca = ThrowawayCa(tmp_path)
    guarded = {
        "security.protocol.map": "FLUSS:SASL_SSL",
        "security.sasl.enabled.mechanisms": "PLAIN",
        "security.sasl.plain.credentials": f"alice:{PASSWORD}",
        "durability": "os",
        **ca.issue("server", names=["localhost", "127.0.0.1"]).server_options,
    }
    pq.write_table(pa.table(TRIPS), tmp_path / "trips.parquet")
    (tmp_path / "2026").mkdir()
    for month in (1, 2):
        pq.write_table(pa.table({"id": [month]}), tmp_path / "2026" / f"{month}.parquet")
    (tmp_path / ".config" / "fish" / "completions").mkdir(parents=True)
    with EmbeddedServer({"durability": "os"}) as server, EmbeddedServer(guarded) as prod:
        made = Shell(tmp_path, server.bootstrap_servers)
        made.run("fluss db create sales")
        made.run("fluss table create sales.orders -c 'id BIGINT'")
        made.environment["PROD"] = prod.bootstrap_servers
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_lines_of_a_page_do_what_they_say(page: Path, shell: Shell) -> None:
    for line in shell_lines(page):
        line_here = line
        for documented, here in (
            ("/mnt/usb/fluss", str(shell.directory / "usb")),
            ("streams.example.org:9123", shell.environment["PROD"]),
            # There may be no such shell here, and the port may be in use.
            ('eval "$(fluss completion zsh)"', "fluss completion zsh"),
            ("--http", "--http 0"),
        ):
            line_here = line_here.replace(documented, here)
        shell.run(line_here)
