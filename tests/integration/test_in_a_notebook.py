"""What a user sees of objects and of errors: reprs that tell, tables of HTML, and tracebacks without our own threads.
Shown on a real server, and for errors by what a program prints."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.client.kernel.runtime import runtime
from fluss.schema.value_objects import html_table, shown

SCHEMA = pa.schema([("id", pa.int32()), ("note", pa.string())])


@pytest.fixture(scope="module")
def plain(server: embedded.EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    with blocking.connect(server.bootstrap_servers) as made:
        yield made


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows]


def test_tables_schemas_and_records_are_shown_as_html(plain: blocking.FlussConnection) -> None:
    schema = fluss.Schema(SCHEMA, primary_keys=["id", "note"])
    plain.get_admin().create_table(
        "fluss.shown", fluss.TableDescriptor(schema, partition_keys=["note"], bucket_count=1)
    )
    plain.get_admin().create_partition("fluss.shown", {"note": "b"})
    table = plain.get_table("fluss.shown")
    columns = [["column", "type", "key", "comment"], ["id", "int NOT NULL", "primary 1", ""]]
    assert cells(schema._repr_html_()) == [*columns, ["note", "string NOT NULL", "primary 2", ""]]
    for html in (table._repr_html_(), table.get_table_info()._repr_html_()):
        assert "<caption>fluss.shown: table with a primary key, 1 bucket in each partition by note</caption>" in html
        assert cells(html) == [*columns, ["note", "string NOT NULL", "primary 2, partition 1", ""]]

    table.new_upsert().upsert_many([[number, "b"] for number in range(30)]).wait()
    scanner = table.new_scan().create_log_scanner()
    scanner.subscribe_all()
    records = scanner.poll(10_000)
    while len(records) < 30:
        scanner.subscribe_all()
        records = scanner.poll(10_000)
    html = records._repr_html_()
    assert "<caption>30 records of 1 bucket</caption>" in html
    assert cells(html)[:2] == [["bucket", "offset", "change", "id", "note"], ["0", "0", "+I", "0", "b"]]
    assert len(cells(html)) == 21
    assert cells(records[3]._repr_html_())[1:] == [["0", "3", "+I", "3", "b"]]
    assert repr(records[3]).endswith("change_type=+I, row={'id': 3, 'note': 'b'})")

    batches = table.new_scan().create_changelog_scanner()
    batches.subscribe_all()
    batch = next(iter(batches))
    assert cells(batch._repr_html_())[:2] == [["offset", "change", "id", "note"], ["0", "insert", "0", "b"]]


def test_values_are_escaped_and_cut_off() -> None:
    html = html_table(("<h>",), [["<script>"], [b"x"], [None], ["y" * 1000]], "a & b")
    assert "<script>" not in html
    assert cells(html) == [["&lt;h&gt;"], ["&lt;script&gt;"], ["b&#x27;x&#x27;"], [""], ["y" * 200 + "…"]]
    assert "<caption>a &amp; b</caption>" in html
    assert shown({"a": "x" * 5000}) == "{'a': '" + "x" * 993 + "…"


PROGRAM = """
import asyncio, sys, traceback
import fluss
from fluss import blocking

address = sys.argv[1]

def failing_plainly():
    with blocking.connect(address) as connection:
        connection.get_table("fluss.not_there")

def failing_in_the_admin():
    with blocking.connect(address) as connection:
        connection.get_admin().drop_table("fluss.not_there")

def failing_to_connect():
    blocking.connect("127.0.0.1:1")

def failing_in_a_loop():
    async def main():
        async with fluss.connect(address) as connection:
            await connection.get_admin().get_table_info("fluss.not_there")
    asyncio.run(main())

def failing_with_a_wrong_type():
    with blocking.connect(address) as connection:
        connection.get_table(5)

def failing_in_the_admin_with_a_wrong_type():
    with blocking.connect(address) as connection:
        connection.get_admin().create_table("fluss.new", 5)

def failing_with_a_wrong_value():
    with blocking.connect(address) as connection:
        connection.get_table("fluss.traced").new_scan().filter(5)

failing_functions = [function for name, function in list(globals().items()) if name.startswith("failing_")]
for failing in failing_functions:
    try:
        failing()
    except (fluss.FlussError, TypeError, ValueError):
        print(failing.__name__, traceback.format_exc().replace("\\n", "|"))
"""


def test_tracebacks_are_those_of_the_user(server: embedded.EmbeddedServer, plain: blocking.FlussConnection) -> None:
    plain.get_admin().create_table("fluss.traced", fluss.TableDescriptor(fluss.Schema(SCHEMA)))
    command = [sys.executable, "-c", PROGRAM, server.bootstrap_servers]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout.splitlines()
    assert len(printed) == 7
    for line in printed:
        files = re.findall(r'File "([^"]*)"', line)
        ours = [file for file in files if "fluss" in file]
        assert 1 <= len(ours) <= 4, line
        assert not [file for file in files if "concurrent" in file or "/net/" in file or "cluster" in file], line
        assert line.count("Traceback") == 1, line


MISTAKE = """
async def answer():
    try:
        {}["not there"]
    except KeyError:
        raise_deliberately() if is_deliberate else 1 + "1"

def raise_deliberately():
    raise TypeError("expected a text")
"""


@pytest.mark.parametrize("is_deliberate", [False, True])
def test_a_mistake_of_the_library_keeps_its_traceback(is_deliberate: bool) -> None:
    code: dict[str, Any] = {"__name__": "fluss.somewhere", "is_deliberate": is_deliberate}
    exec(MISTAKE, code)
    with pytest.raises(TypeError) as caught:
        runtime().run(code["answer"]())
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert ("answer" in frames) is not is_deliberate
    assert "raise_deliberately" not in frames
    assert ("not there" in "".join(traceback.format_exception(caught.value))) is not is_deliberate


def test_the_way_of_an_error_is_logged(plain: blocking.FlussConnection, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fluss"), pytest.raises(fluss.FlussError) as caught:
        plain.get_table("fluss.not_there")
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3
    assert any("on its way" in record.getMessage() and "cluster.py" in caplog.text for record in caplog.records)
