"""``fluss spark``: the jobs of Spark from the command line, in the session of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fluss.cli.app import main
from fluss.cli.cluster.spark_commands import tier_arguments
from fluss.cli.kernel.session import Session
from fluss.embedded import EmbeddedServer
from fluss.spark.tier import _parser, _settings


def test_jobs_run_in_the_session_that_is_there(
    spark: Any,
    fluss_server: EmbeddedServer,
    fluss_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", fluss_server.bootstrap_servers)

    def fluss(*words: str) -> list[dict[str, Any]]:
        code = main([*words, "--format", "json"])
        told = capsys.readouterr()
        assert code == 0, told.err
        return [json.loads(line) for line in told.out.splitlines()]

    table = f"{fluss_database}.t"
    fluss("spark", "sql", f"CREATE TABLE fluss.{table} (id INT, text STRING, PRIMARY KEY (id))")
    fluss("spark", "sql", f"INSERT INTO fluss.{table} VALUES (1, 'a'), (2, 'b')")
    assert fluss("spark", "sql", f"SELECT count(*) AS n FROM fluss.{table}") == [{"n": 2}]
    assert fluss("spark", "export", table, str(tmp_path / "out"))[0]["rows"] == 2
    copied = fluss("spark", "copy", table, f"{table}_copy")
    assert [row["rows"] for row in copied] == [2]
    fluss("table", "create", f"{table}_loaded", "-c", "id INT", "-c", "text STRING")
    assert fluss("spark", "load", str(tmp_path / "out"), f"{table}_loaded")[0]["rows"] == 2
    assert main(["spark", "load", str(tmp_path / "none"), table]) == 1
    assert "There is no file" in capsys.readouterr().err
    assert main(["spark", "sql", "SELECT * FROM nowhere.at_all"]) == 3
    # Spark may have logged it before.
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("Error: [TABLE_OR_VIEW_NOT_FOUND]"), told
    assert "fluss.DATABASE.TABLE" in told


def test_tiering_logs_in_as_the_command_does() -> None:
    session = Session(server="a:1", user="ada", output_format="json", options={"request-timeout": "5000"})
    options, lake = _settings(_parser().parse_args(tier_arguments(session)))
    assert lake == {}
    assert options["bootstrap.servers"] == "a:1"
    assert options["security.sasl.username"] == "ada"
    assert options["security.protocol"] == "sasl"
    assert options["request-timeout"] == "5000"
    assert "--json" in tier_arguments(session)
