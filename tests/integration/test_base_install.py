"""Client and server need nothing but the four libraries of the base installation, and say what else would help.
Shown by programs that cannot import anything else, nor can their children: rows go through a server all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Runner = Callable[[str], subprocess.CompletedProcess[str]]

# Names under which the optional libraries are imported.
OPTIONAL = (
    *("yaml", "uvloop", "rocksdict", "pandas", "polars", "duckdb", "pyspark"),
    *("hypothesis", "psutil", "mypy", "grpc_tools"),
)
ROUND_TRIP = """
import pyarrow as pa
from fluss import blocking, embedded

def main():
    for process in (False, True):
        with embedded.start(process=process) as server:
            with blocking.FlussConnection.create(server.config()) as connection:
                path = blocking.TablePath("fluss", "t")
                schema = blocking.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
                connection.get_admin().create_table(path, blocking.TableDescriptor(schema))
                table = connection.get_table(path)
                with table.new_append().create_writer() as writer:
                    writer.append([1, "a"])
                    writer.write_arrow(pa.table({"id": [2], "name": ["b"]}))
                scanner = table.new_scan().create_record_batch_log_scanner()
                scanner.subscribe(0, blocking.EARLIEST_OFFSET)
                print(scanner.to_arrow().to_pydict())

main()
"""
SERVER_WITH_A_FILE = """
from fluss.server.__main__ import main
raise SystemExit(main(["--data-dir", "d", "--config", "server.yaml"]))
"""


# Python runs this at the start of every process that finds it.
HIDING = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture
def run_without_extras(tmp_path: Path) -> Runner:
    (tmp_path / "sitecustomize.py").write_text(HIDING)

    def run(program: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-c", program]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)

    hidden = run("import yaml")
    assert "No module named 'yaml'" in hidden.stderr
    return run


def test_rows_go_through_a_server_with_the_base_installation_alone(run_without_extras: Runner) -> None:
    done = run_without_extras(ROUND_TRIP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{'id': [1, 2], 'name': ['a', 'b']}"] * 2


def test_a_configuration_file_says_what_to_install(run_without_extras: Runner) -> None:
    done = run_without_extras(SERVER_WITH_A_FILE)
    assert (done.returncode, done.stdout) == (1, "")
    assert 'pip install "flussbett[server]"' in done.stderr
