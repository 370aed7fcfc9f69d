"""Type checkers know what the client returns: they find nothing in a program of a user that has everything.
`make check` has mypy look at the same program; here both look at it without the settings of this project.
`make test-types` installs pyright for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.pages import ROOT

PROGRAM = ROOT / "examples" / "one_line_each.py"
pytestmark = pytest.mark.slow


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program, where no settings are found."""
    return Path(shutil.copy(PROGRAM, tmp_path / "program.py"))


def test_mypy_finds_nothing_when_it_is_strict(program: Path) -> None:
    # pyarrow and pandas bring no types.
    options = ["--strict", "--disable-error-code=import-untyped", "--cache-dir", str(program.parent / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, program.name],
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(find_spec("pyright") is None, reason="make test-types installs it")
def test_pyright_finds_nothing(program: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, program.name],
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
