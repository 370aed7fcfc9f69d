"""The programs of the guide, of the README and in examples/ do on a cluster of Apache Fluss what they say they do.

What is different there, and why, is said here and on the page "Clusters".
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.java.cluster import JavaCluster
from tests.pages import ROOT, needs_spark, program_of, promised_lines
from tests.test_docs import GUIDES
from tests.test_examples import EXAMPLES, README_PROGRAMS

# Programs that are about a server of this project, or need what Apache Fluss 0.9 does not have.
NOT_THERE: dict[str, str] = {
    "embedding": "is about servers inside a program",
    "lake": "is about Iceberg tables, for which Apache Fluss takes plugins beside its jar",
    "limits": "is about limits of our server",
    "backup.py": "is about backups of our server",
    "consumers.py": "starts processes of its own file",
    "lake.py": "is about Iceberg tables, for which Apache Fluss takes plugins beside its jar",
    "remote_storage.py": "looks at the disk of our server",
    "security.py": "starts a server with users of its own",
    "tls.py": "Apache Fluss has no TLS",
}


def marked(name: str, *values: object) -> object:
    marks = pytest.mark.skip(reason=f"{name} {NOT_THERE[name]}") if name in NOT_THERE else ()
    return pytest.param(*values, id=name, marks=marks)


PROGRAMS = [
    *(marked(page.stem, program_of(page), promised_lines(program_of(page))) for page in GUIDES),
    *(marked(f"README-{n}", program, promised_lines(program)) for n, program in enumerate(README_PROGRAMS)),
    # They check what they have done, and end with an error otherwise.
    *(marked(path.name, path.read_text(encoding="utf-8"), None) for path in EXAMPLES),
]


def run(program: str, cluster: JavaCluster) -> str:
    command = [sys.executable, "-W", "error", "-m", "tests.java.elsewhere", cluster.bootstrap_servers, "program.py"]
    with cluster.noticing_tables_of_others():
        done = subprocess.run(
            command, input=program, capture_output=True, text=True, timeout=400, cwd=ROOT, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("program", "promised"), PROGRAMS)
def test_a_program_prints_what_it_promises(program: str, promised: list[str] | None, cluster: JavaCluster) -> None:
    printed = run(program, cluster)
    if promised is None:
        assert printed.strip()
    else:
        assert printed.splitlines() == promised


def test_only_programs_that_there_are_can_be_left_out() -> None:
    names = {page.stem for page in GUIDES} | {path.name for path in EXAMPLES if isinstance(path, Path)}
    assert set(NOT_THERE) <= names
    assert not any(needs_spark(program) for program in README_PROGRAMS)
