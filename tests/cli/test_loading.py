"""Files into tables and tables into files: every format, rows that do not fit, and loads that are killed and go on."""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import cast
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss import blocking
from fluss.cli.kernel.exits import CommandError
from fluss.cli.kernel.session import Session
from fluss.cli.rows.load_state import account_lock
from fluss.cli.rows.loading import _row_count
from fluss.cli.rows.row_reading import FileReader, Rejected
from fluss.embedded import EmbeddedServer
from fluss.errors import ErrorCode, FlussError, RequestTimeoutError
from fluss.file_formats import FileFormat
from fluss.schema.schema import Schema
from fluss.testing.waiting import eventually
from tests.cli.runner import FlussCommand

ROWS = pa.table({"id": range(5000), "city": [f"city-{number % 7}" for number in range(5000)], "km": [1.5] * 5000})


@pytest.fixture
def trips(fluss: FlussCommand, fluss_database: str) -> str:
    table = f"{fluss_database}.trips"
    fluss("table", "create", table, "-c", "id BIGINT", "-c", "city STRING", "-c", "km DOUBLE", "--buckets", "2")
    return table


def test_the_end_of_a_load_takes_as_long_as_rows_are_stored() -> None:
    """Closing has a limit. A server that stores, however slowly, must not come to it; one that has stopped must."""

    class Writer:
        def __init__(self, unsent: list[int]) -> None:
            self.unsent = unsent
            self.flushes = 0

        def flush(self, timeout: float) -> None:
            self.flushes += 1
            if len(self.unsent) > 1:
                self.unsent.pop(0)
            if self.unsent[0]:
                raise RequestTimeoutError("not yet")

        def metrics(self) -> Writer:
            return self

        def values(self) -> dict[tuple[str, tuple[()]], int]:
            return {("fluss_client_unsent_bytes", ()): self.unsent[0]}

    def finished(unsent: list[int]) -> int:
        session = Session()
        writer = Writer(unsent)
        session.__dict__["connection"] = writer
        session.finish(cast("blocking.AppendWriter", writer))
        assert "connection" not in session.__dict__
        return writer.flushes

    assert finished([9, 7, 5, 3, 1, 0]) == 5
    assert finished([9, 7]) == 2
    assert finished([0]) == 0


@pytest.mark.slow
def test_a_load_goes_on_while_a_slow_server_stores_it(fluss: FlussCommand) -> None:
    rows = pa.table({"data": pa.array([os.urandom(1000) for _ in range(1000)], pa.binary())})
    pq.write_table(rows, fluss.home / "rows.parquet")
    with EmbeddedServer({"durability": "os", "quota.produce.bytes-per-second": "200kb"}) as server:
        fluss.environment = {"FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers}
        fluss("table", "create", "t", "--from", "rows.parquet", "--buckets", "1")
        options = ("-o", "request-timeout=2000", "-o", "writer.batch-size=65536")
        assert fluss("load", "rows.parquet", "t", *options).out == "Loaded 1,000 rows into fluss.t.\n"
        assert fluss("table", "stats", "t", "-f", "json").rows[0]["rows"] == 1000


def ids(fluss: FlussCommand, table: str) -> list[int]:
    return sorted(int(line) for line in fluss("dump", table, "-", "--file-format", "csv", "--columns", "id").lines[1:])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "arrow", "csv.gz"])
def test_a_table_goes_to_a_file_and_back(fluss: FlussCommand, trips: str, suffix: str) -> None:
    pq.write_table(ROWS, fluss.home / "trips.parquet", row_group_size=1000)
    assert fluss("load", "trips.parquet", trips).out == f"Loaded 5,000 rows into {trips}.\n"
    file = f"dumped.{suffix.removesuffix('.gz')}"
    fluss("dump", trips, file, terminal=suffix == "csv")
    if suffix.endswith(".gz"):
        with pa.output_stream(fluss.home / f"{file}.gz", compression="gzip") as compressed:
            compressed.write((fluss.home / file).read_bytes())
        file += ".gz"
    refused = fluss.run("dump", trips, file)
    assert (refused.code, "--force" in refused.err) == (1, True)
    copy = f"{trips}_copy"
    fluss("table", "create", copy, "--from", file)
    fluss("load", file, copy, terminal=suffix == "csv")
    assert ids(fluss, copy) == list(range(5000))
    assert not list(fluss.home.glob("*.part"))


def test_a_server_that_cannot_count_rows_has_them_all_the_same() -> None:
    admin = mock.Mock()
    admin.get_table_stats.side_effect = FlussError("not served", ErrorCode.UNSUPPORTED_VERSION)
    assert _row_count(mock.Mock(admin=admin), "d.t") is None


def test_rows_come_from_standard_input(fluss: FlussCommand, trips: str) -> None:
    told = fluss("load", "-", trips, "--file-format", "csv", "-f", "json", text='id,city\n1,Bonn\n2,\n3,""\n').rows
    assert told == [{"table": trips, "files": 1, "rows": 3, "rejected": 0}]
    fluss("load", "-", trips, "--file-format", "json", text='{"id": 4}\n')
    fluss("load", "-", trips, "--file-format", "csv", "--no-header", "--delimiter", ";", text="5;Ulm;2.5\n")
    fluss("load", "-", trips, "--file-format", "csv", "--multiline", text='id,city\n6,"Bad\nEms"\n')
    # The password is the first line, and not a byte more.
    fluss("load", "-", trips, "--file-format", "csv", "--password-file", "-", text="sesame\nid,city\n7,Hof\n")
    found = {row["id"]: row["city"] for row in fluss("tail", trips, "--format", "json").rows}
    assert found == {1: "Bonn", 2: None, 3: "", 4: None, 5: "Ulm", 6: "Bad\nEms", 7: "Hof"}


def test_rows_that_do_not_fit_are_told_or_put_aside(fluss: FlussCommand, trips: str) -> None:
    (fluss.home / "a.csv").write_text("id,city,km\n1,Bonn,1\nx,Kiel,2\n\n3,Ulm\n4,Jena,four\n5,Hof,5\n")
    (fluss.home / "b.jsonl").write_text('{"id": 6}\n{"id": 7.5}\n[]\n{"id": 99999999999999999999}\n{"id": 8}\n')
    pq.write_table(pa.table({"id": [9, 10], "km": ["1", "far"]}), fluss.home / "c.parquet")
    refused = fluss.run("load", "a.csv", trips)
    assert (refused.code, "a.csv, line 5: 2 values" in refused.err, "--rejects" in refused.err) == (6, True, True)
    done = fluss.run("load", "a.csv", "b.jsonl", "c.parquet", trips, "--rejects", "bad.jsonl", "-f", "json")
    assert (done.code, done.rows[0]["rows"], done.rows[0]["rejected"]) == (6, 5, 7)
    bad = [json.loads(line) for line in (fluss.home / "bad.jsonl").read_text().splitlines()]
    assert sorted(each["place"] for each in bad) == [
        "a.csv, line 3",
        "a.csv, line 5",
        "a.csv, line 6",
        "b.jsonl, line 2",
        "b.jsonl, line 3",
        "b.jsonl, line 4",
        "c.parquet, row group 0, row 1",
    ]
    assert all(each["reason"] and "row" in each for each in bad)
    few = fluss.run("load", "a.csv", trips, "--rejects", "bad.jsonl", "--max-rejects", "1")
    assert (few.code, "more than 1 rows" in few.err) == (6, True)


def test_texts_that_are_not_utf8_are_told_or_put_aside(fluss: FlussCommand, trips: str) -> None:
    (fluss.home / "a.csv").write_bytes(b"id,city,km\n1,Bonn,1\n2,K\xf6ln,2\n3,Kiel,\xff\n")
    (fluss.home / "b.json").write_bytes(b'{"id": 4, "city": "Ulm"}\n{"id": 5, "city": "K\xf6ln"}\n')
    names = pa.array([b"Jena", b"K\xf6ln"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, names.buffers())
    pq.write_table(pa.table({"id": [6, 7], "city": text}), fluss.home / "c.parquet")
    for file, place in (("a.csv", "line 3"), ("b.json", "line 2"), ("c.parquet", "row group 0, row 1")):
        refused = fluss.run("load", file, f"{trips}")
        assert (refused.code, place in refused.err, "not UTF-8" in refused.err) == (6, True, True), refused.err
    done = fluss.run("load", "a.csv", "b.json", "c.parquet", trips, "--rejects", "bad.jsonl", "-f", "json")
    assert (done.code, done.rows[0]["rows"], done.rows[0]["rejected"]) == (6, 3, 4)
    bad = [json.loads(line) for line in (fluss.home / "bad.jsonl").read_text().splitlines()]
    assert [each["row"]["city"] for each in bad] == ["K\ufffdln", "Kiel", "K\ufffdln", "K\ufffdln"]
    assert {row["city"] for row in fluss("tail", trips, "--format", "json").rows} == {"Bonn", "Ulm", "Jena"}


def test_rows_of_partitions_that_cannot_be_are_told_or_put_aside(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.visits"
    fluss("table", "create", table, "-c", "id INT", "-c", "region STRING", "--partition-by", "region")
    lines = (
        '{"id": 1, "region": "EU"}\n{"id": 2, "region": "a/b"}\n{"id": 3, "region": ""}\n{"id": 4, "region": "US"}\n'
    )
    (fluss.home / "a.json").write_text(lines)
    refused = fluss.run("load", "a.json", table)
    assert (refused.code, "line 2: Partition value 'a/b' is invalid" in refused.err) == (6, True), refused.err
    for command, text in (
        (("load", "a.json", table, "--rejects", "bad"), None),
        (("load", "a.json", table, "--rejects", "bad", "--resume", "state"), None),
        (("append", table, "--rejects", "bad"), lines),
    ):
        done = fluss.run(*command, "-f", "json", text=text)
        assert (done.code, done.rows[0]["rows"], done.rows[0]["rejected"]) == (6, 2, 2), done.err
        reasons = [json.loads(line)["reason"] for line in (fluss.home / "bad").read_text().splitlines()]
        assert ["'a/b'" in reasons[0], "''" in reasons[1]] == [True, True], reasons
    # What stood before the row that ended the first load is stored.
    assert ids(fluss, table) == [1, 1, 1, 1, 4, 4, 4]


def test_nothing_that_is_read_is_written_over(fluss: FlussCommand, trips: str) -> None:
    (fluss.home / "a.json").write_text('{"id": 1}\n')
    (fluss.home / "link").symlink_to("a.json")
    for more in (("--rejects", "a.json"), ("--rejects", "link"), ("--resume", "s", "--rejects", "./s")):
        refused = fluss.run("load", "a.json", trips, *more)
        assert (refused.code, "would be written over" in refused.err) == (2, True), refused.err
    assert (fluss.home / "a.json").read_text() == '{"id": 1}\n'


def test_columns_are_renamed_or_left_out(fluss: FlussCommand, trips: str) -> None:
    (fluss.home / "a.csv").write_text("number,city,extra\n1,Bonn,x\n")
    refused = fluss.run("load", "a.csv", trips)
    assert (refused.code, "--rename number=COLUMN" in refused.err) == (6, True)
    fluss("load", "a.csv", trips, "--rename", "number=id", "--ignore-extra")
    assert fluss("tail", trips, "--format", "json").rows == [{"id": 1, "city": "Bonn", "km": None}]
    assert fluss.run("load", "none.csv", trips).code == 3
    assert fluss.run("load", "a.csv", f"{trips}_no").code == 3


@pytest.mark.parametrize("kind", ["log", "primary key", "partitioned"])
def test_a_load_that_is_killed_goes_on_and_loads_each_row_once(
    fluss: FlussCommand, fluss_database: str, kind: str
) -> None:
    table = f"{fluss_database}.t"
    flags = {"log": [], "primary key": ["-k", "id"], "partitioned": ["--partition-by", "city"]}[kind]
    fluss("table", "create", table, "-c", "id BIGINT", "-c", "city STRING", "-c", "km DOUBLE", *flags, "--buckets", "2")
    pq.write_table(ROWS, fluss.home / "a.parquet", row_group_size=250)
    (fluss.home / "b.csv").write_text(
        "".join(["id,city,km\n", *(f"{n},city-1,2\n" for n in range(5000, 5100)), "x,y,z\n"])
    )
    command = ["load", "a.parquet", "b.csv", table, "--resume", "state", "--rejects", "bad", "--part-bytes", "10000"]
    account = fluss.home / "state"
    for part in (2, 9):
        running = fluss.start(*command)
        eventually(partial(_has_come_to, account, part), f"part {part}")
        os.kill(running.number, signal.SIGKILL)
        assert running.wait().code == -signal.SIGKILL
    done = fluss.run(*command, "-f", "json", terminal=kind == "log")
    assert done.code == 6, "one row did not fit"
    assert json.loads(re.findall("{.*}", done.out)[-1]) == {"table": table, "files": 2, "rows": 5100, "rejected": 1}
    assert ids(fluss, table) == list(range(5100))
    assert len((fluss.home / "bad").read_text().splitlines()) == 1
    again = fluss.run(*command, "-f", "json")
    assert again.rows[0]["rows"] == 5100
    assert len(ids(fluss, table)) == 5100
    other = fluss.run("load", "b.csv", table, "--resume", "state")
    assert (other.code, "about other files" in other.err) == (6, True)


def test_the_most_rejects_are_those_of_all_parts_and_runs(fluss: FlussCommand, trips: str) -> None:
    for file in ("a.csv", "b.csv"):
        (fluss.home / file).write_text("id,city,km\n1,Bonn,1\nx,Kiel,2\n")
    command = ["load", "a.csv", "b.csv", trips, "--rejects", "bad", "--resume", "state"]
    few = fluss.run(*command, "--max-rejects", "1")
    assert (few.code, "b.csv, line 3" in few.err, "more than 1 rows" in few.err) == (6, True, True)
    again = fluss.run(*command, "--max-rejects", "1")
    assert (again.code, "b.csv, line 3" in again.err) == (6, True)
    enough = fluss.run(*command, "--max-rejects", "2", "-f", "json")
    assert (enough.code, enough.rows[0]["rows"], enough.rows[0]["rejected"]) == (6, 2, 2)
    done = fluss.run(*command, "-f", "json")
    assert (done.code, done.rows[0]["rows"], done.rows[0]["rejected"]) == (6, 2, 2)
    places = ["a.csv, line 3", "b.csv, line 3"]
    assert [json.loads(line)["place"] for line in (fluss.home / "bad").read_text().splitlines()] == places
    # What is known of the file outlasts a run without it, and rows that somebody has taken away are not made up.
    fluss.run(*command[:4], "--resume", "state")
    fluss.run(*command)
    assert [json.loads(line)["place"] for line in (fluss.home / "bad").read_text().splitlines()] == places
    (fluss.home / "bad").unlink()
    fluss.run(*command)
    assert (fluss.home / "bad").read_bytes() == b""
    assert ids(fluss, trips) == [1, 1]


def test_an_account_is_that_of_one_load_at_a_time(fluss: FlussCommand, trips: str) -> None:
    """Two that begin at the same position would both write what comes behind it."""
    (fluss.home / "a.json").write_text('{"id": 1}\n')
    command = ["load", "a.json", trips, "--resume", "state"]
    with account_lock(str(fluss.home / "state")):
        second = fluss.run(*command)
    assert (second.code, "another load goes on with the account in state" in second.err) == (1, True), second.err
    fluss(*command)
    fluss(*command)
    assert ids(fluss, trips) == [1]
    assert not (fluss.home / "state.lock").exists()


def _has_come_to(account: Path, position: int) -> bool:
    found = json.loads(account.read_text()) if account.exists() else {"file": 0, "position": 0}
    return bool(found["file"] or found["position"] >= position)


def test_a_terminal_sees_how_far_a_load_is(fluss: FlussCommand, trips: str) -> None:
    pq.write_table(ROWS, fluss.home / "trips.parquet", row_group_size=1000)
    shown = fluss("load", "trips.parquet", trips, terminal=True).out
    assert f"load {trips}" in shown
    assert "rows/s" in shown
    assert fluss("load", "trips.parquet", trips).err == ""


@pytest.mark.slow
def test_a_load_that_is_interrupted_does_not_wait_for_a_server_that_has_stopped(fluss: FlussCommand) -> None:
    with EmbeddedServer({"durability": "os"}, process=True) as server:
        fluss.environment = {"FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers}
        fluss("table", "create", "t", "-c", "id INT", "-c", "city STRING")
        loading = fluss.start("load", "-", "t", "--file-format", "csv", "-o", "request-timeout=600000")
        # More than a pipe holds: when it is written, the command is reading.
        loading.send("id,city\n" + "1,Bonn\n" * 200_000)
        os.kill(server.process_id, signal.SIGSTOP)
        try:
            loading.send("2,Kiel\n" * 200_000)
            loading.interrupt()
            ended = loading.wait()
        finally:
            os.kill(server.process_id, signal.SIGCONT)
    assert ended.code == 130, ended.err


# CSV whose rows are not its lines


def test_texts_of_several_lines_need_to_be_said(fluss: FlussCommand, fluss_database: str) -> None:
    """Blocks of a file end with a line: one that ends inside of a text would make two rows of one."""
    table = f"{fluss_database}.notes"
    fluss("table", "create", table, "-c", "name STRING", "-c", "note STRING")
    rows = [(f"user-{number}", f"line one {number:050}\nline, two") for number in range(60_000)]
    (fluss.home / "notes.csv").write_text("name,note\n" + "".join(f'{name},"{note}"\n' for name, note in rows))
    refused = fluss.run("load", "notes.csv", table, "--rejects", "bad")
    assert (refused.code, "notes.csv, line 2" in refused.err, "--multiline" in refused.err) == (6, True, True)
    assert (fluss.home / "bad").read_text() == ""
    fluss("load", "notes.csv", table, "--multiline")
    found = fluss("dump", table, "-", "--file-format", "json").rows
    assert sorted(tuple(row.values()) for row in found) == sorted(rows)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(b'name,note\n\nx,y\nx,"y\nz"\n', 4, id="in the middle"),
        pytest.param(b'name,note\nx,y\nx,"y\n', 3, id="without an end"),
        pytest.param(b'name,note\nx,y\n"x\n', 3, id="without an end, and too few values"),
        pytest.param(b'name,note\nx,y\nx,y,"z\n', 3, id="without an end, and too many values"),
        pytest.param(b"name,note\rx,y\r", 1, id="line ends of an old kind"),
        pytest.param(b"name,note\nx,y\rx,y\n", 2, id="two kinds of line ends"),
        # The only text of two lines is where a block ends.
        pytest.param(b"name,note\n" + b"x,y\n" * (2**20 - 4) + b'x,"y\ny"\nx,y\n', 2**20 - 2, id="between blocks"),
    ],
)
def test_a_row_that_is_no_line_is_refused_with_its_place(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / "notes.csv").write_bytes(content)
    reader = FileReader(Schema(pa.schema([("name", pa.string()), ("note", pa.string())])))
    rejected: list[Rejected] = []
    with pytest.raises(CommandError, match=f"notes.csv, line {line}: .*--multiline"):
        for _ in reader.read(str(tmp_path / "notes.csv"), FileFormat.CSV, rejected.append):
            pass
    assert not rejected


def test_lines_that_look_odd_are_rows_all_the_same(tmp_path: Path) -> None:
    content = b'"name"\r\n\r\n"a ""b"""\r\n  \r\nc" d\r\n\n""\r\n1,2\r\n"e\rf"\n\n'
    (tmp_path / "names.csv").write_bytes(content)
    reader = FileReader(Schema(pa.schema([("name", pa.string())])))
    rejected: list[Rejected] = []
    (batch,) = reader.read(str(tmp_path / "names.csv"), FileFormat.CSV, rejected.append)
    assert batch.rows.to_pydict() == {"name": ['a "b"', "  ", 'c" d', "", "e\rf"]}
    places = [batch.place(number).partition(", ")[2] for number in range(5)]
    assert places == ["line 3", "line 4", "line 5", "line 7", "line 9"]
    assert [each.place.partition(", ")[2] for each in rejected] == ["line 8"]


def test_a_single_column_with_nulls_does_not_become_csv(fluss: FlussCommand, fluss_database: str) -> None:
    """A line of it would be empty, which means no row; of two quotes it would be an empty text."""
    table, copy = f"{fluss_database}.names", f"{fluss_database}.copy"
    for name in (table, copy):
        fluss("table", "create", name, "-c", "id INT", "-c", "name STRING", "-c", "clock TIME(3)")
    fluss("append", table, text='{"id": 1, "name": ""}\n{"id": 2}\n')
    for column in ("name", "clock"):
        refused = fluss.run("dump", table, "out.csv", "--columns", column)
        assert (refused.code, "JSON lines" in refused.err) == (6, True)
    query = f"SELECT name FROM {table}"
    assert "JSON lines" in fluss.run("sql", query, "--output", "out.csv").err
    assert not list(fluss.home.glob("out.csv*"))
    assert sorted(fluss("sql", query, "-f", "csv").lines) == ["", '""', "name"]
    fluss("dump", table, "ids.csv", "--columns", "id")
    fluss("dump", table, "names.csv", "--columns", "name", "--filter", "id = 1")
    fluss("dump", table, "names.jsonl", "--columns", "name")
    fluss("dump", table, "both.csv", "--columns", "name,clock")
    fluss("load", "ids.csv", "names.csv", "names.jsonl", "both.csv", copy)
    found = [tuple(row.values()) for row in fluss("tail", copy, "--format", "json").rows]
    names = [("", None), (None, None)]
    assert sorted(found, key=repr) == sorted(
        [(1, None, None), (2, None, None), (None, "", None), *((None, *each) for each in names * 2)], key=repr
    )


# Values and files as they should not be


COLUMNS = {
    "id": "INT",
    "whole": "BYTES",
    "short": "BINARY(3)",
    "clock": "TIME(3)",
    "milli": "TIMESTAMP(3)",
    "nano": "TIMESTAMP(9)",
    "instant": "TIMESTAMP_LTZ(9)",
    "list": "ARRAY<INT>",
    "map": "MAP<STRING, INT>",
    "pairs": "MAP<INT, STRING>",
    "row": "ROW<x INT, y ARRAY<STRING>>",
    "text": "STRING",
}
VALUES: list[dict[str, object]] = [
    {
        "id": 1,
        "whole": "AP8=",
        "short": "AAEC",
        "clock": "12:34:56.789000",
        "milli": "2026-01-31T12:30:00.123000",
        "nano": "2026-01-31T12:30:00.123456789",
        "instant": "1969-12-31T23:59:59.999999999Z",
        "list": [1, None],
        "map": {'ä"': 1, "": None},
        "pairs": [[1, "a"], [-2, None]],
        "row": {"x": 1, "y": ["a", None]},
        "text": "null",
    },
    {**dict.fromkeys(COLUMNS), "id": 2, "whole": "", "list": [], "map": {}, "pairs": [], "text": ""},
    {**dict.fromkeys(COLUMNS), "id": 3},
]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "json.zst", "parquet", "arrow"])
def test_every_value_comes_back_from_a_file(fluss: FlussCommand, fluss_database: str, suffix: str) -> None:
    table, copy, file = f"{fluss_database}.all", f"{fluss_database}.copy", f"dumped.{suffix}"
    for name in (table, copy):
        fluss("table", "create", name, *(part for pair in COLUMNS.items() for part in ("-c", " ".join(pair))))
    fluss("append", table, text="".join(f"{json.dumps(row)}\n" for row in VALUES))
    fluss("dump", table, file)
    is_compressed = suffix in ("csv.gz", "json.zst")
    assert is_compressed == (
        not (fluss.home / file).read_bytes().startswith((b"id,", b"{", b"PAR1", b"\xff\xff\xff\xff"))
    )
    fluss("load", file, copy)
    assert fluss("head", copy, "--format", "json").rows == VALUES
    assert fluss("tail", copy, "--from", str(10**20)).out == ""
    if suffix == "parquet":
        fluss("table", "create", f"{fluss_database}.like", "--from", file)


MORE = ("-c", "clock TIME(3)", "-c", "short FLOAT", "-c", "long DOUBLE", "-c", "list ARRAY<FLOAT>")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("null.json", b"null\n", "line 1: an object is wanted"),
        ("nulls.json", b'{"id": 1}\nnull\n', "line 2: an object is wanted"),
        ("half.json", b'{"id": 1, "city": "\\ud800"}\n', "line 1: column 'city'"),
        ("nan.json", b'{"id": NaN}\n', "line 1: column 'id'"),
        ("huge.json", b'{"id": 1e999999999}\n', "line 1: column 'id'"),
        ("short.json", b'{"short": 3.4e38}\n{"short": 1e39}\n', "line 2: column 'short' is float"),
        ("long.json", b'{"long": -1e400}\n', "beyond the range of 64-bit floats"),
        ("whole.json", b'{"long": 1' + b"0" * 400 + b"}\n", "beyond the range of 64-bit floats"),
        ("text.json", b'{"long": "1e400"}\n', "beyond the range of 64-bit floats"),
        ("text.csv", b"long\n1e400\n", "beyond the range of 64-bit floats"),
        ("inside.json", b'{"list": [0.5, 1e39]}\n', "beyond the range of 32-bit floats"),
        ("inside.csv", b'list\n"[0.5, 1e39]"\n', "beyond the range of 32-bit floats"),
        ("clock.json", b'{"clock": "12:30:00+02:00"}\n', "line 1: column 'clock' is time(3)"),
        ("clock.csv", b"clock\n12:30:00Z\n", "line 2: '12:30:00Z' in column 'clock'"),
        ("fine.json", b'{"at": "2026-01-31T12:30:00.1234567"}\n', "more digits of a second"),
        ("empty.parquet", b"", "cannot be read as parquet"),
        ("damaged.arrow", b"\x12\x34\xff\xff\xff\xff" * 100, "cannot be read as arrow"),
        ("binary.csv", b"\xff\xfe\x00", "cannot be read as csv"),
        ("plain.csv.gz", b"id,city\n1,Bonn\n", "cannot be read as csv"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_file(
    fluss: FlussCommand, fluss_database: str, name: str, content: bytes, says: str
) -> None:
    table = f"{fluss_database}.trips"
    fluss("table", "create", table, "-c", "id BIGINT", "-c", "city STRING", "-c", "at TIMESTAMP(6)", *MORE)
    (fluss.home / name).write_bytes(content)
    refused = fluss.run("load", name, table)
    assert (refused.code, name in refused.err, says in refused.err) == (6, True, True), refused.err


def test_a_table_is_not_made_of_a_file_without_objects(fluss: FlussCommand, fluss_database: str) -> None:
    (fluss.home / "null.json").write_bytes(b"null\n")
    refused = fluss.run("table", "create", f"{fluss_database}.made", "--from", "null.json")
    assert (refused.code, "no object" in refused.err) == (6, True)


def test_names_of_columns_are_quoted(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.quoted"
    fluss("table", "create", table, "-c", "`unit price` INT", "-c", '"a""b" STRING', "-c", "`c``d` ROW<x INT>")
    assert [each["name"] for each in fluss("table", "show", table, "--format", "json").rows[0]["columns"]] == [
        "unit price",
        'a"b',
        "c`d",
    ]
    assert fluss.run("table", "create", f"{table}2", "-c", "`` INT").code == 2
