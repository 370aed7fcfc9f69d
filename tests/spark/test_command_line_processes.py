"""``fluss spark`` as users start it: processes of their own, at a terminal and through pipes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss import blocking
from fluss.testing.cluster import ServerProcess

ROOT = Path(__file__).parents[2]
ROWS = 1000


class Program:
    """Runs ``python -m fluss`` to its end."""

    def __init__(self, servers: str, directory: Path, *, is_terminal: bool) -> None:
        self._directory = directory
        self._is_terminal = is_terminal
        source = str(ROOT / "src")
        self._environment = {
            **{name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ},
            "HOME": str(directory),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "PYTHONPATH": source,
            "FLUSS_BOOTSTRAP_SERVERS": servers,
        }

    def __call__(self, *words: str) -> str:
        """Return what it prints; at a terminal with what goes to standard error."""
        command = [sys.executable, "-m", "fluss", *words]
        if not self._is_terminal:
            done = subprocess.run(command, env=self._environment, cwd=self._directory, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
            return done.stdout
        main, side = pty.openpty()
        try:
            with subprocess.Popen(
                command,
                env=self._environment,
                cwd=self._directory,
                stdin=side,
                stdout=side,
                stderr=side,
                start_new_session=True,
            ) as running:
                os.close(side)
                parts = []
                # A terminal whose other side is closed is an error, not an end.
                with suppress(OSError):
                    while part := os.read(main, 65536):
                        parts.append(part)
            shown = b"".join(parts).decode(errors="replace").replace("\r\n", "\n")
            assert running.returncode == 0, shown
            return shown
        finally:
            os.close(main)


@pytest.mark.slow
@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
def test_every_job_ends_with_its_rows(lake_server: ServerProcess, tmp_path: Path, is_terminal: bool) -> None:
    servers = f"127.0.0.1:{lake_server.port}"
    fluss = Program(servers, tmp_path, is_terminal=is_terminal)
    pq.write_table(pa.table({"id": pa.array(range(ROWS), pa.int64()), "name": ["é"] * ROWS}), tmp_path / "in.parquet")
    database = "at_terminal" if is_terminal else "through_pipes"
    table = f"{database}.orders"
    fluss("db", "create", database)
    fluss("table", "create", table, "--from", "in.parquet", "--property", "table.datalake.enabled=true")

    loaded = fluss("spark", "load", "in.parquet", table)
    assert f"Loaded 1,000 rows of 1 file into {table} in " in loaded
    exported = fluss("spark", "export", table, "out", "--filter", "id < 10")
    assert f"Wrote 10 rows of {table} to out in " in exported
    assert sorted(pq.read_table(tmp_path / "out")["id"].to_pylist()) == list(range(10))
    copied = fluss("spark", "copy", table, f"{table}_2", "--format", "json")
    facts = json.loads(copied.splitlines()[-1].rpartition("\r")[2])
    assert (facts["target"], facts["rows"]) == (f"{table}_2", ROWS)
    counted = fluss("spark", "sql", f"SELECT count(*) AS n, min(name) AS name FROM fluss.{table}_2", "--format", "csv")
    assert counted.splitlines()[-1].endswith("1000,é")
    tiered = fluss("spark", "tier", "--once", "--table", table)
    assert "tiered 1,000 rows of 1 table" in tiered
    with blocking.connect(servers) as connection:
        assert connection.get_table(table).to_arrow().num_rows == ROWS
        assert connection.get_admin().get_latest_lake_snapshot(table).snapshot_id > 0
    is_seen = "Starting Spark" in loaded + exported + copied + tiered
    assert is_seen is is_terminal
