"""What is in the way of the package is named at once: an older Python, pyfluss in its place, variables that are none.
Shown in processes of their own, with what a user would have there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fluss
from fluss.server.options.server_option import variable_name
from fluss.server.options.server_options import meaningless_variables
from fluss.spark.session.workers import prefer_this_python

ROOT = Path(__file__).parents[2]
CURE = "keep one of them: pip uninstall pyfluss, then pip install --force-reinstall --no-deps flussbett"


def python(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLUSS_")}
    return subprocess.run(
        [sys.executable, *arguments, "-c", program],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )


# Python


def test_an_older_python_is_told_what_is_needed() -> None:
    answer = python("import sys; sys.version_info = (3, 10, 13, 'final', 0); import fluss")
    assert answer.stderr.splitlines()[-1] == (
        f"ImportError: Flussbett needs Python 3.11 or newer, and this is 3.10.13 ({sys.executable})"
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_says_so_before_it_installs_anything(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    # Not as a part of the make that may run these tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "story", f"PYTHON={old}"]
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert answer.returncode != 0
    assert answer.stdout.splitlines() == [
        "Flussbett needs Python 3.11 or newer; say which one to use: make story PYTHON=python3.11"
    ]
    assert not (tmp_path / ".venv").exists()


# pyfluss


def test_pyfluss_beside_the_package_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "fluss").mkdir()
    (tmp_path / "fluss" / "_fluss.abi3.so").touch()
    answer = python("import fluss; print(fluss.Config())", PYTHONPATH=str(tmp_path))
    assert answer.returncode == 0
    (warning,) = [line for line in answer.stderr.splitlines() if "RuntimeWarning" in line]
    assert (
        f"pyfluss is installed beside flussbett, in {tmp_path / 'fluss'}, and both are the package 'fluss'" in warning
    )
    assert warning.endswith(CURE)


@pytest.mark.parametrize("module", ["aio", "blocking", "embedded", "spark"])
def test_where_pyfluss_has_replaced_the_package_nothing_half_works(tmp_path: Path, module: str) -> None:
    package = tmp_path / "fluss"
    package.symlink_to(ROOT / "src" / "fluss")
    # What an installation of pyfluss leaves behind: its own beginning of the package.
    program = (
        "import sys, types; package = types.ModuleType('fluss'); package._fluss = object(); "
        f"package.__path__ = [{str(package)!r}]; sys.modules['fluss'] = package; import fluss.{module}"
    )
    answer = python(program)
    assert answer.returncode != 0
    said = answer.stderr.splitlines()[-1]
    assert said.startswith("ImportError: pyfluss has replaced a part of flussbett in ")
    assert said.endswith(CURE)


# Environment variables


def test_variables_that_mean_nothing_to_a_server_are_told(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "fluss.server", "--print-config"],
        env={**os.environ, "FLUSS_DATADIR": str(tmp_path), "FLUSS_DURABILITY": "os", "FLUSS_XYZZY": "blue"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert answer.returncode == 0
    told = [line.partition("the environment")[2] for line in answer.stderr.splitlines()]
    assert told == [
        " variable FLUSS_DATADIR is no option of the server; did you mean 'FLUSS_DATA_DIR'?",
        " variable FLUSS_XYZZY is no option of the server",
    ]


def test_variables_of_others_are_left_alone() -> None:
    own_variable = variable_name("security.ssl.listener.name.client.certificate.file")
    others = {
        "FLUSS_BOOTSTRAP_SERVERS": "localhost:9123",
        "FLUSS_HOME": "/opt/fluss",
        "FLUSS_DATA_DIR": "/data",
        own_variable: "one of a listener alone",
        "FLUSS_SERVICE_HOST": "10.0.0.1",
        "FLUSS_SERVICE_PORT_FLUSS": "9123",
        "FLUSS_PORT": "tcp://10.0.0.1:9123",
        "FLUSS_PORT_9123_TCP_ADDR": "10.0.0.1",
        "PATH": "/bin",
    }
    assert meaningless_variables(others) == {}
    assert meaningless_variables({"FLUSS_PORT": "9200"}) == {"FLUSS_PORT": "; did you mean 'FLUSS_BIND_LISTENERS'?"}


def test_a_variable_that_was_meant_for_clients_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVER", "example.org:9123")
    with pytest.warns(UserWarning, match="FLUSS_BOOTSTRAP_SERVER means nothing to clients; did you mean '.*_SERVERS'"):
        assert fluss.Config.of().bootstrap_servers == "127.0.0.1:9123"
    # Whoever says where to connect needs no variable.
    assert fluss.Config.of("localhost:1").bootstrap_servers == "localhost:1"


# Workers of Spark


def test_workers_of_spark_run_with_the_python_of_an_environment_that_is_not_activated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    prefer_this_python()
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    prefer_this_python()
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.delenv("SPARK_REMOTE")
    prefer_this_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.delenv("PYSPARK_PYTHON")
