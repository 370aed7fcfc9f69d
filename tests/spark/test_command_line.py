"""``fluss spark``: the jobs of Spark from the command line, in the session of the tests."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss.cli.app import main, root
from fluss.cli.cluster.spark_commands import tier_arguments
from fluss.cli.kernel.session import Session
from fluss.embedded import EmbeddedServer
from fluss.spark.tier import _parser, _settings
from tests.cli.help_examples import examples


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


# The examples of the help, in an order in which they find what they need, and how many rows each tells of.
EXAMPLES = {
    'fluss spark sql "INSERT INTO fluss.sales.orders VALUES (17, 9.5)"': [{"done": True}],
    'fluss spark sql "SELECT count(*) FROM fluss.sales.orders"': [{"count(1)": 1}],
    'fluss spark sql "CREATE TABLE fluss.sales.ids AS SELECT DISTINCT id FROM fluss.sales.orders"': [{"done": True}],
    "fluss spark load 'orders/*.parquet' sales.orders": [2],
    "fluss spark load 'orders/*.parquet' sales.orders --resume-dir ./load-1": [2],
    "fluss spark export sales.orders ./exported --columns id,price": [3],
    "fluss spark copy sales sales_copy": [1, 3],
    "fluss spark copy sales sales --to prod:9123": [1, 3],
}


def test_the_examples_of_the_help_do_what_they_say(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "price": [0.5, 1.5]}), tmp_path / "orders" / "1.parquet")
    # Those of tiering are run by tests/spark/test_command_line_processes.py.
    written = [line for line in examples(root) if line.startswith("fluss spark ") and " tier" not in line]
    assert sorted(written) == sorted(EXAMPLES)
    with EmbeddedServer({"durability": "os"}) as server, EmbeddedServer({"durability": "os"}) as other:
        monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", server.bootstrap_servers)
        main(["db", "create", "sales"])
        main(["table", "create", "sales.orders", "-c", "id BIGINT", "-c", "price DOUBLE", "-k", "id"])
        for line, told in EXAMPLES.items():
            capsys.readouterr()
            words = shlex.split(line.replace("prod:9123", other.bootstrap_servers))[1:]
            assert main([*words, "--format", "json"]) == 0, f"{line}: {capsys.readouterr().err}"
            rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
            assert [row.get("rows", row) for row in rows] == told, line


def test_tiering_logs_in_as_the_command_does() -> None:
    session = Session(server="a:1", user="ada", output_format="json", options={"request-timeout": "5000"})
    options, lake = _settings(_parser().parse_args(tier_arguments(session)))
    assert lake == {}
    assert options["bootstrap.servers"] == "a:1"
    assert options["security.sasl.username"] == "ada"
    assert options["security.protocol"] == "sasl"
    assert options["request-timeout"] == "5000"
    assert "--json" in tier_arguments(session)
