"""Rows from the command line: single ones, the newest ones, and where readers are."""

from __future__ import annotations

import io
import json
import sys

import pytest

from fluss import blocking
from fluss.cli.kernel.exits import CommandError
from fluss.cli.kernel.output import Output
from tests.cli.runner import FlussCommand

EVERY_TYPE = {
    "b": ("BOOLEAN", True),
    "i": ("INT", -7),
    "d": ("DECIMAL(10, 2)", "1.50"),
    "f": ("DOUBLE", 2.5),
    "s": ("STRING", 'a "quoted", text\n'),
    "y": ("BYTES", "AAH/"),
    "day": ("DATE", "2026-01-31"),
    "t": ("TIME(3)", "12:30:00.500000"),
    "ts": ("TIMESTAMP(6)", "2026-01-31T12:30:00.123456"),
    "tz": ("TIMESTAMP_LTZ(3)", "2026-01-31T12:30:00Z"),
    "a": ("ARRAY<INT>", [1, None, 3]),
    "m": ("MAP<STRING, INT>", {"x": 1}),
    "r": ("ROW<x INT, y STRING>", {"x": 1, "y": "z"}),
}


@pytest.fixture
def users(fluss: FlussCommand, fluss_database: str) -> str:
    table = f"{fluss_database}.users"
    fluss("table", "create", table, "-c", "id BIGINT", "-c", "name STRING", "-c", "age INT", "-k", "id")
    return table


@pytest.fixture
def trips(fluss: FlussCommand, fluss_database: str) -> str:
    table = f"{fluss_database}.trips"
    fluss("table", "create", table, "-c", "id BIGINT", "-c", "city STRING", "-c", "km DOUBLE", "--buckets", "2")
    return table


def test_rows_are_put_looked_up_and_deleted(fluss: FlussCommand, users: str) -> None:
    assert fluss("put", users, "id=1", "name=Ada", "age=36").out == f"Put 1 row to {users}.\n"
    fluss("put", users, '{"id": 2, "name": "Bob"}', '{"id": 3, "name": "Eve", "age": 20}')
    fluss("put", users, text='{"id": 4, "name": "x"}\n\n{"id": 5, "name": "y"}\n')
    assert fluss("get", users, "1", "2", "-f", "json").rows == [
        {"id": 1, "name": "Ada", "age": 36},
        {"id": 2, "name": "Bob", "age": None},
    ]
    fluss("put", users, "--partial", "id=1", "name=Grace")
    assert fluss("get", users, "1", "--columns", "name,age", "-f", "csv").lines == ["name,age", "Grace,36"]
    assert "Grace" in fluss("get", users, "[1]", terminal=True).out
    assert fluss("delete", users, "3", '{"id": 4}').out == f"Deleted 2 keys of {users}.\n"
    fluss("delete", users, text="5\n")
    missing = fluss.run("get", users, "1", "3", "-f", "json")
    assert (missing.code, [row["id"] for row in missing.rows]) == (3, [1])
    assert "no row with the key 3" in missing.err
    assert len(fluss("head", users, "-f", "json").rows) == 2
    assert "Grace" in fluss("head", users, "--filter", "id = 1", terminal=True).out


def test_keys_of_two_columns_and_their_beginnings_are_looked_up(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.items"
    columns = ["-c", "order_id INT", "-c", "item STRING", "-c", "price DECIMAL(5, 2)"]
    fluss("table", "create", table, *columns, "-k", "order_id,item", "--bucket-key", "order_id")
    fluss("put", table, *(json.dumps({"order_id": 1, "item": item, "price": "1.5"}) for item in "ab"))
    assert fluss("get", table, "1,a", "-f", "json").rows == [{"order_id": 1, "item": "a", "price": "1.50"}]
    found = fluss("get", table, "1", "--prefix", "order_id", "-f", "json").rows
    assert sorted(row["item"] for row in found) == ["a", "b"]
    refused = fluss.run("get", table, "1")
    assert (refused.code, "ORDER_ID,ITEM" in refused.err) == (2, True)


def test_values_of_every_type_come_back_as_they_were_given(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.every"
    columns = [word for name, (kind, _) in EVERY_TYPE.items() for word in ("-c", f"{name} {kind}")]
    fluss("table", "create", table, "-c", "id INT", *columns, "--buckets", "1")
    given = {"id": 1} | {name: value for name, (_, value) in EVERY_TYPE.items()}
    nothing = dict.fromkeys(given) | {"id": 2}
    fluss("append", table, text=f"{json.dumps(given)}\n{json.dumps(nothing)}\n")
    assert fluss("tail", table, "--format", "json").rows == [given, nothing]
    for suffix in ("json", "parquet", "arrow"):
        fluss("dump", table, f"every.{suffix}")
        copy = f"{table}_{suffix}"
        fluss("table", "create", copy, "-c", "id INT", *columns, "--buckets", "1")
        fluss("load", f"every.{suffix}", copy)
        assert fluss("tail", copy, "--format", "json").rows == [given, nothing], suffix


def test_lines_that_do_not_fit_are_told_or_put_aside(fluss: FlussCommand, trips: str) -> None:
    lines = '{"id": 1, "city": "Bonn"}\n{"id": "x"}\nnonsense\n{"id": 2, "town": "Kiel"}\n{"id": 3}\n'
    refused = fluss.run("append", trips, text=lines)
    assert (refused.code, "line 2: column 'id' is bigint" in refused.err) == (6, True)
    done = fluss.run("append", trips, "--rejects", "bad.jsonl", text=lines)
    assert (done.code, "3 did not fit, see bad.jsonl" in done.out) == (6, True)
    bad = [json.loads(line) for line in (fluss.home / "bad.jsonl").read_text().splitlines()]
    assert [each["place"] for each in bad] == ["line 2", "line 3", "line 4"]
    assert "no column 'town'" in bad[2]["reason"]
    deep = fluss.run("append", trips, "--rejects", "bad.jsonl", text="[" * 100_000 + '\n{"id": 4}\n')
    assert (deep.code, "Appended 1 row" in deep.out) == (6, True)
    latin = fluss.start("append", trips, "--rejects", "bad.jsonl")
    latin.send_bytes(b'{"id": 5, "city": "K\xf6ln"}\n{"id": 6}\n')
    latin.close_input()
    ended = latin.wait()
    assert (ended.code, "Appended 1 row" in ended.out) == (6, True), ended.err
    assert fluss.run("append", "nowhere.at_all", text="{}\n").code == 3
    forgotten = fluss.run("append", trips, "--rejects", "/dev/null", text=lines)
    assert (forgotten.code, "3 did not fit" in forgotten.out) == (6, True), forgotten.err


def test_the_newest_records_are_shown_and_followed(fluss: FlussCommand, trips: str) -> None:
    fluss("append", trips, text="".join(f'{{"id": {number}, "km": {number}.5}}\n' for number in range(20)))
    assert len(fluss("tail", trips, "--format", "json").rows) == 10
    assert len(fluss("tail", trips, "--from", "earliest", "--format", "json").rows) == 20
    far = fluss("tail", trips, "--filter", "km > 18", "--columns", "id", "--format", "json").rows
    assert sorted(row["id"] for row in far) == [18, 19]
    placed = fluss("tail", trips, "-n", "1", "--positions", "--format", "json").rows[0]
    assert set(placed) == {"_partition", "_bucket", "_offset", "_timestamp", "id", "city", "km"}
    assert fluss("tail", trips, "--from", "latest").out == ""
    assert len(fluss("tail", trips, "--from", "1h", "--format", "json").rows) == 20
    assert fluss.run("tail", trips, "--from", "yesterday-ish").code == 2

    for terminal in (False, True):
        following = fluss.start("tail", "-f", trips, "-n", "0", "--columns", "id", terminal=terminal)
        # It reads from where the log ended when it began, so something must be there to see that it has begun.
        marked = fluss.start("tail", "-f", trips, "--from", "earliest", "--format", "csv", terminal=terminal)
        marked.read_until("id,city,km")
        number = 1000 + terminal
        while True:
            fluss("append", trips, text=f'{{"id": {number}}}\n')
            if str(number) in following.read_some():
                break
        following.interrupt()
        marked.interrupt()
        assert following.wait().code == 130
        assert marked.wait().code == 130


def test_changes_of_rows_are_followed(fluss: FlussCommand, users: str) -> None:
    fluss("put", users, "id=1", "name=a")
    fluss("put", users, "id=1", "name=b")
    fluss("delete", users, "1")
    changes = fluss("tail", users, "--format", "json", "--columns", "name").rows
    assert [(each["_change"], each["name"]) for each in changes] == [("+I", "a"), ("-U", "a"), ("+U", "b"), ("-D", "b")]
    shown = fluss("tail", users, terminal=True).out
    assert "\x1b[1m_CHANGE" in shown


def test_offsets_consumers_and_their_lag_are_shown(fluss: FlussCommand, trips: str) -> None:
    fluss("append", trips, text='{"id": 1}\n{"id": 2}\n{"id": 3}\n')
    shown = fluss("offsets", trips, "-f", "json").rows
    assert (len(shown), sum(row["records"] for row in shown)) == (2, 3)
    assert "LATEST" in fluss("offsets", trips, "--at", "1h", terminal=True).out
    assert fluss("consumers", trips).err == f"{trips} has no consumers\n"
    with blocking.connect(fluss.environment["FLUSS_BOOTSTRAP_SERVERS"]) as connection:
        with connection.get_table(trips).consumer("billing", auto_commit=False) as consumer:
            while not consumer.epochs():
                consumer.poll(timeout_ms=1000)
        try:
            assert fluss("consumers", trips, "-f", "json").rows == [
                {"consumer": "billing", "members": 0, "buckets": 2, "lag": 3}
            ]
            assert sum(row["lag"] for row in fluss("lag", trips, "billing", "-f", "json").rows) == 3
            assert "billing" in fluss("lag", trips, terminal=True).out
            assert "billing" in fluss("consumers", trips, terminal=True).out
            assert fluss.run("lag", trips, "nobody").code == 3
        finally:
            fluss("consumers", trips, "--drop", "billing", "--yes")
    assert fluss("consumers", trips, "-f", "json").rows == []


def test_a_reader_that_ends_ends_the_command_quietly(fluss: FlussCommand, trips: str) -> None:
    fluss("append", trips, text="".join(f'{{"id": {number}}}\n' for number in range(3000)))
    running = fluss.start("tail", trips, "-n", "3000", "--positions")
    running.close_output()
    ended = running.wait()
    assert (ended.code, ended.err) == (141, "")


def test_a_decimal_is_never_rounded_to_another_key(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.prices"
    fluss("table", "create", table, "-c", "price DECIMAL(5, 2)", "-c", "name STRING", "-k", "price")
    fluss("put", table, '{"price": 1.5000, "name": "a"}', '{"price": "1.01", "name": "b"}')
    for command in (("get", table, "1.005"), ("delete", table, "1.005"), ("put", table, '{"price": 1.005}')):
        refused = fluss.run(*command)
        assert (refused.code != 0, "more digits behind the point" in refused.err) == (True, True), refused.err
    assert sorted(row["name"] for row in fluss("head", table, "-f", "json").rows) == ["a", "b"]


def test_keys_that_cannot_be_are_told_with_their_line(fluss: FlussCommand, users: str) -> None:
    fluss("put", users, '{"id": 1}', '{"id": 2}')
    refused = fluss.run("delete", users, text="1\n\nx\n2\n")
    assert "line 3: column 'id'" in refused.err
    assert "1 key before it is deleted" in refused.err
    assert [row["id"] for row in fluss("head", users, "-f", "json").rows] == [2]
    for command in (("get", users, "[" * 100_000), ("put", users, "--partial", '{"id":')):
        refused = fluss.run(*command)
        assert "this is no JSON" in refused.err


def test_times_that_cannot_be_are_wrong_usage(fluss: FlussCommand, trips: str) -> None:
    for time in ("9" * 17 + "d", "@" + "9" * 23):
        assert fluss.run("tail", trips, "--from", time).code == 2
    assert fluss.run("offsets", trips, "--at", "9" * 23).code == 2


def test_an_output_without_a_letter_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    with pytest.raises(CommandError, match=r"the output is latin-1, which has no '\\u6f22'; `PYTHONIOENCODING=utf-8`"):
        Output("table").say("K\u00f6ln \u6f22")
