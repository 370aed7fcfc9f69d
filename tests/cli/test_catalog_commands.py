"""Databases, tables and partitions from the command line: through a pipe, and at a terminal, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.runner import FlussCommand

ESCAPE = "\x1b"


def test_a_database_is_created_shown_and_dropped(fluss: FlussCommand, fluss_database: str) -> None:
    name = f"{fluss_database}_x"
    assert fluss("db", "create", name, "--comment", "all orders", "--property", "owner=me").out == (
        f"Created the database {name}.\n"
    )
    shown = fluss("db", "show", name, "--format", "json").rows[0]
    assert (shown["comment"], shown["properties"], shown["tables"]) == ("all orders", {"owner": "me"}, 0)
    assert name in [row["database"] for row in fluss("db", "ls", "-f", "json").rows]
    assert name in [line.split()[0] for line in fluss("db", "ls", terminal=True).out.splitlines()]
    again = fluss.run("db", "create", name)
    assert (again.code, "--if-not-exists" in again.err) == (1, True)
    fluss("db", "create", name, "--if-not-exists")
    refused = fluss.run("db", "drop", name)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    fluss("db", "drop", name, "--yes")
    gone = fluss.run("db", "show", name)
    assert (gone.code, gone.out) == (3, "")
    assert "`fluss db ls`" in gone.err


def test_a_table_is_created_from_columns_and_shown(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.orders"
    columns = ["-c", "id BIGINT", "-c", "day STRING", "-c", "price DECIMAL(10, 2)"]
    flags = ["--primary-key", "id,day", "--partition-by", "day", "--buckets", "2", "--property", "owner=me"]
    assert fluss("table", "create", table, *columns, *flags, "--format", "json").rows == [{"created": table}]
    shown = fluss("table", "show", table, "--format", "json").rows[0]
    assert shown["primary_key"] == ["id", "day"]
    assert shown["partitioned_by"] == ["day"]
    assert shown["properties"]["owner"] == "me"
    assert [each["type"] for each in shown["columns"]] == ["bigint NOT NULL", "string NOT NULL", "decimal(10,2)"]
    seen = fluss("table", "show", table, terminal=True).out
    assert ESCAPE in seen
    assert "decimal(10,2)" in seen
    assert ESCAPE not in fluss("table", "show", table, terminal=True, environment={"NO_COLOR": "1"}).out

    fluss("partition", "add", table, "day=2026-01-31")
    again = fluss.run("partition", "add", table, "day=2026-01-31")
    assert (again.code, "--if-not-exists" in again.err) == (1, True)
    assert [row["day"] for row in fluss("partition", "ls", table, "-f", "json").rows] == ["2026-01-31"]
    assert "2026-01-31" in fluss("partition", "ls", table, terminal=True).out
    counted = fluss("table", "stats", table, "-f", "json").rows
    assert counted == [{"partition": "2026-01-31", "bucket": bucket, "rows": 0} for bucket in (0, 1)]
    assert "2026-01-31" in fluss("table", "stats", table, terminal=True).out
    fluss("partition", "drop", table, "day=2026-01-31", "--yes")
    assert fluss("partition", "ls", table).err == f"{table} has no such partitions\n"


def test_the_statement_of_a_table_creates_it_again(fluss: FlussCommand, fluss_database: str) -> None:
    statement = f"""CREATE TABLE {fluss_database}.a (
        id INT, `a b` ROW<x INT, y STRING> COMMENT 'it''s', PRIMARY KEY (id))
        COMMENT 'two' TBLPROPERTIES ('bucket.num' = '3', 'table.log.ttl' = '3 d')"""
    fluss("table", "create", "--sql", "-", text=statement)
    first = fluss("table", "show", f"{fluss_database}.a", "--sql").out
    fluss("table", "create", "--sql", first.replace("`a`", "`b`"))
    assert fluss("table", "show", f"{fluss_database}.b", "--sql").out == first.replace("`a`", "`b`")
    assert "CREATE TABLE" in fluss("table", "show", f"{fluss_database}.b", "--sql", terminal=True).out


def test_decimals_of_other_widths_become_decimals(fluss: FlussCommand, fluss_database: str) -> None:
    pq.write_table(pa.table({"price": pa.array(["1.5"]).cast(pa.decimal256(30, 3))}), fluss.home / "a.parquet")
    with pa.ipc.new_file(fluss.home / "a.arrow", pq.read_schema(fluss.home / "a.parquet")) as writer:
        writer.write_table(pq.read_table(fluss.home / "a.parquet"))
    fluss("table", "create", f"{fluss_database}.prices", "--from", "a.arrow")
    fluss("load", "a.arrow", f"{fluss_database}.prices")
    assert fluss("head", f"{fluss_database}.prices", "-f", "json").rows == [{"price": "1.500"}]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "arrow"])
def test_a_table_has_the_columns_of_a_file(fluss: FlussCommand, fluss_database: str, suffix: str) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "city": ["Bonn", "Kiel"], "km": [3.5, 12.25]})
    path = fluss.home / f"trips.{suffix}"
    match suffix:
        case "parquet":
            pq.write_table(rows, path)
        case "csv":
            path.write_text("id,city,km\n1,Bonn,3.5\n2,Kiel,12.25\n")
        case "jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows.to_pylist()))
        case "arrow":
            with pa.ipc.new_file(path, rows.schema) as writer:
                writer.write_table(rows)
    table = f"{fluss_database}.trips"
    fluss("table", "create", table, "--from", path.name, "-k", "id", "-c", "note STRING")
    columns = fluss("table", "show", table, "-f", "json").rows[0]["columns"]
    assert [(each["name"], each["type"]) for each in columns] == [
        ("id", "bigint NOT NULL"),
        ("city", "string"),
        ("km", "double"),
        ("note", "string"),
    ]


def test_a_table_is_altered_listed_and_dropped(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.t"
    fluss("table", "create", table, "-c", "id INT")
    fluss("table", "alter", table, "--add", "note STRING", "--set", "owner=me")
    assert fluss("table", "show", table, "-f", "json").rows[0]["properties"]["owner"] == "me"
    fluss("table", "alter", table, "--reset", "owner", terminal=True)
    assert "owner" not in fluss("table", "show", table, "-f", "json").rows[0]["properties"]
    assert fluss("table", "ls", fluss_database, "-f", "csv").lines == ["table", table]
    assert fluss("table", "ls", fluss_database, "--long").lines[1].split()[:3] == [table, "log", "2"]
    assert table in fluss("table", "ls", terminal=True).out

    asked = fluss.start("table", "drop", table, terminal=True)
    asked.read_until("[y/N]")
    asked.send("n\n")
    assert asked.wait().code == 130
    asked = fluss.start("table", "drop", table, terminal=True)
    asked.read_until("[y/N]")
    asked.send("y\n")
    assert asked.wait().ok().out.endswith(f"Dropped the table {table}.\n")
    assert fluss.run("table", "show", table).code == 3


def test_mistakes_are_told_in_a_sentence_with_the_next_step(fluss: FlussCommand, fluss_database: str) -> None:
    for arguments, code, told in (
        (["tabel", "ls"], 2, "did you mean `fluss table`?"),
        (["table", "sow"], 2, "did you mean `fluss table show`?"),
        (["table", "show"], 2, "`fluss table show --help`"),
        (["table", "show", "a.b.c"], 2, "DATABASE.TABLE"),
        (["table", "create", f"{fluss_database}.x"], 2, "--column, --from FILE or --sql"),
        (["table", "create", f"{fluss_database}.x", "--from", "none.csv"], 3, "there is no file none.csv"),
        (["table", "create", f"{fluss_database}.x", "-c", "id BIGINTT"], 1, "BIGINTT"),
        (["table", "create", "--sql", "SELECT 1"], 1, "only CREATE TABLE is taken here"),
        (["db", "ls", "--server", "localhost:1"], 4, "`fluss serve` starts a server here"),
        (["db", "ls", "-o", "request-timeot=1"], 1, "request-timeout"),
        (["db", "ls", "--profile", "none"], 3, "fluss profile add none"),
    ):
        failed = fluss.run(*arguments)
        assert (failed.code, failed.out) == (code, ""), arguments
        assert failed.err.startswith("Error: "), failed.err
        assert told in failed.err
        assert "Traceback" not in failed.err
    assert "Traceback" in fluss.run("db", "ls", "--server", "localhost:1", "--debug").err
    # At a terminal the first word is red.
    assert f"{ESCAPE}[31mError" in fluss.run("table", "show", "a.b.c", terminal=True).out
    plain = fluss.run("table", "show", "a.b.c", terminal=True, environment={"NO_COLOR": "1"}).out
    assert plain.startswith("Error: ")


def test_names_of_tables_are_completed_from_the_cluster(fluss: FlussCommand, fluss_database: str) -> None:
    fluss("table", "create", f"{fluss_database}.orders", "-c", "id INT")
    for shell in ("bash", "zsh", "fish"):
        assert "_FLUSS_COMPLETE" in fluss("completion", shell).out
    for words, completed in (
        (f"fluss table show {fluss_database}.o", f"{fluss_database}.orders"),
        ("fluss table sh", "show"),
        ("fluss ta", "table"),
        ("fluss table show --for", "--format"),
    ):
        environment = {
            "_FLUSS_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        found = fluss.run(environment=environment).out
        assert completed in [line.partition(",")[2] for line in found.splitlines()], words


def test_help_loads_nothing_of_the_client_and_other_commands_only_what_they_need(
    fluss: FlussCommand, fluss_database: str
) -> None:
    program = "import sys; from fluss.cli.app import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    server = fluss.environment["FLUSS_BOOTSTRAP_SERVERS"]

    def loaded(*arguments: str) -> set[str]:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        return set(done.stderr.split())

    shown = loaded("--help")
    assert not {"pyarrow", "numpy", "asyncio", "rich", "fluss.client", "fluss.config", "tomllib"} & shown
    listed = loaded("db", "ls", "--server", server)
    assert "fluss.blocking" in listed
    unneeded = {"rich", "pandas", "polars", "duckdb", "pyspark", "fluss.server", "fluss.spark", "pyarrow.parquet"}
    assert not unneeded & listed
    fluss("table", "create", f"{fluss_database}.few", "-c", "id BIGINT", "-c", "name STRING", "-k", "id")
    fluss("put", f"{fluss_database}.few", '{"id": 1, "name": "Ada"}')
    looked_up = loaded("get", f"{fluss_database}.few", "1", "--server", server)
    assert "fluss.client.lookup.lookup_client" in looked_up
    slow_to_load = {"pyarrow.compute", "crc32c", "importlib.metadata", "fluss.filter.row_filter"}
    not_for_lookups = {"fluss.client.write.writer_client", "fluss.client.consume.membership"}
    assert not (unneeded | slow_to_load | not_for_lookups) & looked_up
