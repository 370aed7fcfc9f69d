"""SQL over tables: by name, with pushdown and lookups, one query, a script or a shell; every output."""

from __future__ import annotations

import json
import subprocess
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss import FlussConnection, TableDescriptor
from fluss.cli.sql.key_queries import keys_of, syntax_tree, tables_of
from fluss.client.bulk import wait_for
from fluss.embedded import EmbeddedServer
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo, TablePath
from tests.cli.runner import FlussCommand


@pytest.fixture
def trips(fluss: FlussCommand, fluss_database: str) -> str:
    table = f"{fluss_database}.trips"
    fluss("table", "create", table, "-c", "id BIGINT", "-c", "city STRING", "-c", "km DOUBLE", "-k", "id")
    fluss(
        "put",
        table,
        '{"id": 1, "city": "Bonn", "km": 3.5}',
        '{"id": 2, "city": "Kiel", "km": 12}',
        '{"id": 3, "city": "Bonn", "km": 1}',
    )
    return table


def test_a_query_is_answered_in_every_form(fluss: FlussCommand, trips: str) -> None:
    query = f"SELECT city, sum(km) AS km FROM {trips} GROUP BY city ORDER BY city"
    assert fluss("sql", query).lines == ["CITY  KM", "Bonn  4.5", "Kiel  12.0"]
    assert fluss("sql", query, "-f", "json").rows == [{"city": "Bonn", "km": 4.5}, {"city": "Kiel", "km": 12.0}]
    assert fluss("sql", query, "-f", "csv").lines == ["city,km", "Bonn,4.5", "Kiel,12.0"]
    assert "Kiel" in fluss("sql", query, terminal=True).out
    for suffix in ("parquet", "csv", "json", "arrow"):
        assert fluss("sql", query, "--output", f"answer.{suffix}").out == f"Wrote 2 rows to answer.{suffix}.\n"
    assert pq.read_table(fluss.home / "answer.parquet").to_pydict() == {"city": ["Bonn", "Kiel"], "km": [4.5, 12.0]}
    assert (fluss.home / "answer.csv").read_text() == "city,km\nBonn,4.5\nKiel,12.0\n"
    twice = fluss("sql", "SELECT 1 AS a, 2 AS a", "-f", "json").rows
    assert twice == [{"a": 1, "a:1": 2}]
    fluss("sql", 'SELECT 1 AS a, 2 AS a, 3 AS "a:1"', "--output", "twice.json")
    assert json.loads((fluss.home / "twice.json").read_text()) == {"a": 1, "a:2": 2, "a:1": 3}
    unnamed = fluss.run("sql", query, "--output", "answer")
    assert (unnamed.code, "end it with .parquet" in unnamed.err) == (2, True)


def test_what_there_is_is_shown_from_the_cluster(fluss: FlussCommand, trips: str) -> None:
    database = trips.partition(".")[0]
    assert {"table": trips} in fluss("sql", "SHOW TABLES", "-f", "json").rows
    assert fluss("sql", f"SHOW TABLES FROM {database}", "-f", "json").rows == [{"table": "trips"}]
    assert {"database": database, "table": "trips"} in fluss("sql", "SHOW ALL TABLES", "-f", "json").rows
    for statement in ("SHOW DATABASES", "SHOW SCHEMAS"):
        assert {"database": database} in fluss("sql", statement, "-f", "json").rows
    assert "nowhere does not exist" in fluss.run("sql", "SHOW TABLES FROM nowhere").err
    for query in ("FROM (SHOW TABLES)", f"WITH x AS (SHOW TABLES FROM {database}) SELECT count(*) FROM x"):
        assert "statements of their own here" in fluss.run("sql", query).err
    for statement in (f"DESCRIBE {trips}", f"SHOW {trips}", f"FROM (DESCRIBE {trips})"):
        columns = fluss("sql", statement, "-f", "json").rows
        assert [(column["column_name"], column["column_type"]) for column in columns] == [
            ("id", "BIGINT"),
            ("city", "VARCHAR"),
            ("km", "DOUBLE"),
        ]


def test_moments_that_python_does_not_have_are_shown(fluss: FlussCommand) -> None:
    query = "SELECT 'infinity'::date AS d, DATE '0044-03-15 (BC)' AS b, TIMESTAMP '290000-01-01' AS t"
    assert fluss("sql", query, "--format", "json").rows[0].keys() == {"d", "b", "t"}
    nested = "SELECT [TIMESTAMP '290000-01-01'] AS l, {'x': TIMESTAMP '290000-01-01'} AS s"
    for statement in (query, nested):
        fluss("sql", statement, "--output", "moments.json", "--format", "json")
        assert (fluss.home / "moments.json").read_text() == fluss("sql", statement, "--format", "json").out


def test_files_are_joined_and_scripts_run(fluss: FlussCommand, trips: str) -> None:
    pq.write_table(pa.table({"city": ["Bonn"], "country": ["DE"]}), fluss.home / "cities.parquet")
    joined = f"SELECT id, country FROM {trips} JOIN 'cities.parquet' USING (city) ORDER BY id"
    assert [row["id"] for row in fluss("sql", joined, "-f", "json").rows] == [1, 3]
    script = f"""CREATE VIEW far AS SELECT * FROM {trips} WHERE km > 2;
        SELECT id FROM {trips} WHERE id = 3;
        SELECT count(*) AS n FROM far;
        COPY (SELECT id FROM {trips} ORDER BY id) TO 'ids.csv';"""
    assert fluss("sql", "-f", "json", text=script).rows[:2] == [{"id": 3}, {"n": 2}]
    assert (fluss.home / "ids.csv").read_text().split() == ["id", "1", "2", "3"]
    plan = fluss("sql", f"EXPLAIN SELECT id FROM {trips}").lines
    assert any("Projections: id" in line for line in plan), "only what is needed is read"
    database = trips.partition(".")[0]
    fluss("sql", f"CREATE\n TABLE {database}.made (id INT, PRIMARY KEY (id))")
    again = "WITH trips AS (SELECT * FROM trips WHERE id > 1) SELECT id FROM trips ORDER BY id"
    views = f"CREATE VIEW\n Trips AS SELECT * FROM {trips}; SELECT count(*) AS n FROM trips; {again}"
    assert fluss("sql", "-f", "json", text=views).rows == [{"n": 3}, {"id": 2}, {"id": 3}]
    shadowed = f"WITH q AS (SELECT * FROM {trips}) SELECT id FROM q WHERE id = 1"
    assert fluss("sql", shadowed, "-f", "json").rows == [{"id": 1}]
    assert fluss("table", "show", f"{database}.made", "-f", "json").rows[0]["primary_key"] == ["id"]


def test_mistakes_in_queries_are_told(fluss: FlussCommand, trips: str) -> None:
    for query, code, told in (
        (f"SELECT nothing FROM {trips}", 1, "nothing"),
        ("SELECT * FROM no_such_table", 3, "`fluss table ls`"),
        ("SELEC 1", 1, "syntax error"),
        (f"DELETE FROM {trips}", 2, "`fluss put`"),
        ("", 2, "no statement"),
    ):
        failed = fluss.run("sql", query)
        assert (failed.code, failed.out) == (code, ""), query
        assert told in failed.err
        assert "Traceback" not in failed.err


def test_a_shell_answers_describes_and_remembers(fluss: FlussCommand, trips: str) -> None:
    shell = fluss.start("sql", terminal=True)
    shell.read_until("fluss> ")
    shell.send(f"\\d {trips}\n")
    shell.read_until("bigint NOT NULL")
    shell.send(f"SELECT city FROM {trips}\nWHERE id = 2;\n")
    shell.read_until("1 row, by key (")
    shell.send(f"SELECT count(*) AS n FROM {trips} WHERE id > 1;\n")
    shell.read_until("1 row (")
    # Found by key, and gone before the next statement.
    fluss("table", "create", f"{trips}_brief", "-c", "id INT", "-k", "id")
    shell.send(f"SELECT * FROM {trips}_brief WHERE id = 2;\n")
    shell.read_until("0 rows, by key (")
    fluss("table", "drop", f"{trips}_brief", "--yes")
    shell.send("SELECT 6 * 7 AS n;\n")
    shell.read_until("42")
    shell.send("SELECT oops;\n")
    shell.read_until("Error: ")
    shell.send("\\f json\nSELECT 41 + 1 AS n;\n")
    shell.read_until('{"n": 42}')
    shell.send("\\?\n")
    shell.read_until("list the databases")
    shell.send("\\nonsense\n")
    shell.read_until("there is no \\nonsense")
    # Completed with the name of the table.
    shell.send(f"SELECT max(km) AS m FROM {trips[:-2]}\t;\n")
    shell.read_until('{"m": 12.0}')
    shell.read_until_end("fluss> ")
    shell.send("\x04")
    assert shell.wait().code == 0
    history = fluss.home / "state" / "fluss" / "sql_history"
    assert "WHERE id = 2;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


INFO = TableInfo._create(
    TablePath("d", "t"),
    1,
    1,
    TableDescriptor(
        Schema(pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int64())]), primary_keys=["a", "b"]),
        bucket_count=1,
    ),
    0,
    0,
)


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("SELECT * FROM d.t WHERE a = 1 AND b = 'x'", [(1, "x")]),
        ("SELECT c FROM d.t AS q WHERE 1 = q.a AND q.b IN ('x', 'y') AND c > 5", [(1, "x"), (1, "y")]),
        ("SELECT * FROM d.t WHERE a = 1", None),
        ("SELECT * FROM d.t WHERE a = 1 OR b = 'x'", None),
        ("SELECT * FROM d.t WHERE (a = 1 AND b = 'x') OR c = 2", None),
        ("SELECT * FROM d.t WHERE a = 1 AND b > 'x'", None),
        ("SELECT * FROM d.t WHERE a = 1.5 AND b = 'x'", None),
        ("SELECT * FROM d.t WHERE a = 99999999999 AND b = 'x'", None),
        ("SELECT * FROM d.t WHERE NOT (a = 1 AND b = 'x')", None),
        ("SELECT * FROM d.t x JOIN d.t y USING (a) WHERE x.a = 1 AND x.b = 'x'", None),
        ("WITH t AS (SELECT 1 AS a, 'x' AS b) SELECT * FROM t WHERE a = 1 AND b = 'x'", None),
        ("SELECT * FROM d.t WHERE a = NULL AND b = 'x'", None),
        ("SELECT (SELECT count(*) FROM d.t) FROM d.t WHERE a = 1 AND b = 'x'", None),
        ("SELECT * FROM d.t WHERE a = 1 AND b = 'x' AND c < (SELECT avg(c) FROM d.t)", None),
        ("SELECT * FROM d.t WHERE a = 1 AND b = 'x' AND EXISTS (FROM d.t AS other WHERE other.a = 2)", None),
        ("SELECT (SELECT count(*) FROM query_table('d.t')) FROM d.t WHERE a = 1 AND b = 'x'", None),
        ("SELECT * FROM d.t WHERE a = 1 AND b = 'x' UNION ALL FROM d.t", None),
        ("WITH q AS (FROM d.t) SELECT * FROM d.t WHERE a = 1 AND b = 'x' AND c IN (SELECT c FROM q)", None),
        ("SELECT * FROM d.t AS q(c, b, a) WHERE a = 1 AND b = 'x'", None),
        ("SELECT * FROM d.t TABLESAMPLE reservoir(1 ROWS) WHERE a = 1 AND b = 'x'", None),
        ("SELECT * FROM d.t WHERE a = 1 AND b = 'x' USING SAMPLE 1 ROWS", None),
    ],
)
def test_a_query_by_the_whole_key_is_known_as_one(query: str, keys: list[tuple[object, ...]] | None) -> None:
    with duckdb.connect() as connection:
        tree = syntax_tree(connection, query)
        assert tree is not None
        found = keys_of(tree, INFO)
    assert (None if found is None else [tuple(each.values()) for each in found]) == keys


def test_rows_by_key_are_those_that_a_scan_finds(fluss: FlussCommand, trips: str) -> None:
    by_key = fluss("sql", f"SELECT * FROM {trips} WHERE id IN (1, 3, 99) AND km > 2", "-f", "json").rows
    scanned = fluss("sql", f"SELECT * FROM {trips} WHERE id + 0 IN (1, 3, 99) AND km > 2", "-f", "json").rows
    assert by_key == scanned == [{"id": 1, "city": "Bonn", "km": 3.5}]


def test_a_query_inside_of_one_by_key_sees_the_whole_table(fluss: FlussCommand, trips: str) -> None:
    query = f"SELECT id, (SELECT count(*) FROM {trips}) AS n FROM {trips} WHERE id = 1"
    assert fluss("sql", query, "-f", "json").rows == [{"id": 1, "n": 3}]


def test_rows_by_key_are_found_that_only_the_lake_has(fluss: FlussCommand) -> None:
    pytest.importorskip("pyiceberg")
    from tests.lake_tiering import tier

    lake = {"datalake.format": "iceberg", "datalake.iceberg.warehouse": str(fluss.home / "warehouse")}
    with EmbeddedServer({"durability": "os", **lake}) as server:
        fluss.environment = {"FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers}
        columns = ("-c", "day STRING NOT NULL", "-c", "id INT NOT NULL", "-c", "city STRING")
        partitioned = ("-k", "day", "-k", "id", "--partition-by", "day", "--buckets", "1")
        fluss("table", "create", "t", *columns, *partitioned, "--property", "table.datalake.enabled=true")
        rows = ['{"day": "1", "id": 1, "city": "Bonn"}', '{"day": "2", "id": 1, "city": "Kiel"}']
        for day in (1, 2):
            fluss("partition", "add", "t", f"day={day}")
        fluss("put", "t", *rows)
        connection = wait_for(FlussConnection.create(server.bootstrap_servers))
        try:
            tier(wait_for(connection.get_table("fluss.t")))
        finally:
            connection.close()
        fluss("partition", "drop", "t", "day=1", "--yes")
        for days, cities in (("= '1'", ["Bonn"]), ("= '2'", ["Kiel"]), ("IN ('1', '2', '3')", ["Bonn", "Kiel"])):
            query = f"SELECT city FROM t WHERE day {days} AND id = 1 ORDER BY city"
            assert [row["city"] for row in fluss("sql", query, "-f", "json").rows] == cities


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", [["t"]]),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t", []),
        ("WITH t AS (SELECT * FROM d.t) SELECT * FROM t", [["d", "t"]]),
    ],
)
def test_what_with_makes_is_no_table_unless_it_is_made_of_one(query: str, tables: list[list[str]]) -> None:
    with duckdb.connect() as connection:
        tree = syntax_tree(connection, query)
    assert tree is not None
    assert tables_of(tree) == tables


def test_tables_of_a_query_are_found_wherever_they_stand() -> None:
    query = """WITH c AS (SELECT * FROM a.x) SELECT (SELECT max(n) FROM b.y), * FROM c JOIN 'f.parquet' USING (n)
        WHERE n IN (SELECT n FROM z) UNION ALL FROM "odd name" """
    with duckdb.connect() as connection:
        tree = syntax_tree(connection, query)
    assert tree is not None
    assert sorted(tables_of(tree)) == [["a", "x"], ["b", "y"], ["f.parquet"], ["odd name"], ["z"]]


INTERRUPTIONS = """
import os, random, signal, threading
from fluss.cli.kernel.session import Session
from fluss.cli.sql.sql_engine import SqlEngine

engine, rng = SqlEngine(Session()), random.Random(7)
ENDLESS = ["SELECT sum(a.range) FROM range(1000000000) a, range(1000000000) b", "FROM range(1000000000000)"]

def query(text):
    (statement,) = engine.statements(text)
    with engine.run(statement).rows as rows:
        return sum(batch.num_rows for batch in rows)

for _ in range(60):
    timer = threading.Timer(0.1 * rng.random() ** 3, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        query(rng.choice(ENDLESS))
    except KeyboardInterrupt:
        timer.join()
    assert query("SELECT 40 + 2") == 1
print("all were interrupted")
"""


def test_a_query_is_interrupted_at_any_moment_and_the_next_one_runs() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTIONS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all were interrupted\n"), done.stderr


def test_a_query_that_is_interrupted_is_no_reason_to_leave_the_shell(fluss: FlussCommand) -> None:
    shell = fluss.start("sql", terminal=True)
    shell.read_until_end("fluss> ")
    # The first is at work before its first row, the second between two of its rows.
    for endless in ("SELECT sum(a.range) FROM range(1000000000) a, range(1000000000) b;", "FROM range(1000000000000);"):
        shell.send(f"{endless}\n")
        shell.read_until(f"{endless}\n")
        shell.send("\x03")
        shell.read_until_end("fluss> ")
    shell.send("SELECT 40 + 2;\n")
    shell.read_until("1 row")
    assert "\n42\n" in shell.read_until_end("fluss> ")
    shell.send("\x04")
    shown = shell.wait().ok().out
    assert shown.count("^C") >= 2
    assert "unforeseen" not in shown
