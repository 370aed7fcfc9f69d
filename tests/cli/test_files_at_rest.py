"""Files at rest are checked without a server, and tables are copied from one server to another."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from fluss.cli.rows.copying import LocalTasks
from fluss.embedded import EmbeddedServer
from fluss.spark.bulk.reports import quiet
from fluss.testing.waiting import eventually
from tests.cli.runner import FlussCommand


@pytest.fixture
def data_dir(fluss: FlussCommand) -> Path:
    """The directory of a server that has stopped, with a log table and a table of rows by key."""
    path = fluss.home / "data"
    with EmbeddedServer({"durability": "os", "kv.shared-store.max-size": "1kb"}, data_dir=path) as server:
        environment = {"FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers}
        for name, flags in (("log", []), ("keyed", ["-k", "id"])):
            columns = ["-c", "id INT", "-c", "text STRING", "--buckets", "1"]
            fluss("table", "create", name, *columns, *flags, environment=environment)
        lines = "".join(f'{{"id": {number}, "text": "row {number}"}}\n' for number in range(2000))
        for command, name in (("append", "log"), ("put", "keyed")):
            for _ in range(2):
                fluss(command, name, text=lines, environment=environment)
    return path


def test_logs_and_stores_are_checked_and_damage_is_found(fluss: FlussCommand, data_dir: Path) -> None:
    checked = fluss("log", "verify", "data", "-f", "json").rows[0]
    assert checked["checked"] == len(list(data_dir.glob("fluss/*/log-*/*.log"))) >= 2
    # Logs of RocksDB, which are none of ours.
    for name in ("000004.log", "000012.log"):
        (data_dir / name).touch()
    assert checked["damaged"] == []
    assert "all are well" in fluss("log", "verify", "data", terminal=True).out
    segment = next(data_dir.glob("fluss/log-*/log-0/*.log"))
    batches = fluss("log", "show", str(segment.parent), "-f", "json").rows
    assert sum(batch["records"] for batch in batches) == 4000
    assert len(fluss("log", "show", str(segment), "-n", "1").lines) == 2
    assert "OFFSET" in fluss("log", "show", str(segment), terminal=True).out

    with segment.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\xff\x00\xff")
    damaged = fluss.run("log", "verify", "data", "-f", "json")
    assert (damaged.code, [Path(each["file"]) for each in damaged.rows[0]["damaged"]]) == (
        6,
        [Path("data", *segment.parts[-4:])],
    )
    shown = fluss.run("log", "show", str(segment))
    assert (shown.code, segment.name in shown.err) == (6, True)

    stores = fluss.run("kv", "verify", "data", "-f", "json")
    files = sorted(data_dir.rglob("*.sst"))
    assert (stores.code, stores.rows[0]["checked"] if files else None) == ((0, len(files)) if files else (3, None))
    if files:
        assert "all are well" in fluss("kv", "verify", "data", terminal=True).out
        content = bytearray(files[0].read_bytes())
        content[10] ^= 0xFF
        files[0].write_bytes(content)
        broken = fluss.run("kv", "verify", "data")
        assert (broken.code, "1 damaged" in broken.out) == (6, True)
    assert fluss.run("log", "verify", "nowhere").code == 3


def test_a_database_is_copied_to_another_server_and_goes_on_after_a_kill(
    fluss: FlussCommand, fluss_database: str
) -> None:
    source, server = fluss_database, fluss.environment["FLUSS_BOOTSTRAP_SERVERS"]
    fluss("table", "create", f"{source}.log", "-c", "id INT", "-c", "t STRING", "--buckets", "2")
    fluss("table", "create", f"{source}.keyed", "-c", "id INT", "-c", "t STRING", "-k", "id", "--buckets", "2")
    flags = ["-c", "id INT", "-c", "day STRING", "-k", "id,day", "--partition-by", "day", "--buckets", "1"]
    fluss("table", "create", f"{source}.parts", *flags, "--comment", "by day")
    lines = "".join(f'{{"id": {number}, "t": "{number}"}}\n' for number in range(30_000))
    fluss("append", f"{source}.log", text=lines)
    fluss("put", f"{source}.keyed", text=lines)
    fluss("put", f"{source}.parts", '{"id": 1, "day": "2026-01-31"}', '{"id": 2, "day": "2026-02-01"}')
    with EmbeddedServer({"durability": "os"}) as other:
        command = ["copy", source, "copied", "--to", other.bootstrap_servers]
        fluss("profile", "add", "other", "--server", other.bootstrap_servers)
        running = fluss.start(*command)

        def has_begun() -> bool:
            found = fluss.run("table", "ls", "copied", "--profile", "other")
            return found.code == 0 and "copied.keyed" in found.out

        eventually(has_begun, "a table at the other side")
        os.kill(running.number, signal.SIGKILL)
        running.wait()
        done = fluss(*command, "-f", "json").rows
        assert {row["target"]: row["rows"] for row in done} == {
            "copied.keyed": 30_000,
            "copied.log": 30_000,
            "copied.parts": 2,
        }
        ends = {row["target"]: [entry["target_end"] for entry in row["offsets"]] for row in done}
        assert sum(ends["copied.log"]) == 30_000
        assert fluss("table", "show", "copied.parts", "--profile", "other", "-f", "json").rows[0]["comment"] == "by day"
        counted = fluss("table", "stats", "copied.keyed", "--profile", "other", "-f", "json").rows
        assert sum(row["rows"] for row in counted) == 30_000
        shown = fluss("copy", source, "copied", "--from", server, "--to", "other", "--offsets", terminal=True).out
        assert "TARGET_END" in shown
        again = fluss(*command, "--from", server)
        assert "drop the target to copy it anew" in again.err
        refused = fluss.run("copy", f"{source}.log", f"{source}.log")
        assert (refused.code, "onto itself" in refused.err) == (1, True)
        assert json.loads(fluss("health", "--profile", "other", "-f", "json").out)["status"] == "green"


def test_ctrl_c_does_not_wait_for_what_a_copy_has_begun() -> None:
    left = threading.Event()
    ended: list[int] = []

    def work(item: int) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        # Only ends it where Ctrl-C waits for it.
        left.wait(60)
        ended.append(item)

    # A shell has what it starts in the background ignore Ctrl-C, these tests among it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            LocalTasks().run("copy", work, [1], [1], rows_known=None, listener=quiet)
        assert ended == []
    finally:
        signal.signal(signal.SIGINT, before)
        left.set()


def test_a_backup_is_checked_and_started_from(fluss: FlussCommand) -> None:
    nothing = fluss.run("backup", "verify", "nowhere")
    assert (nothing.code, "Traceback" in nothing.err) == (1, False)
    assert "nowhere" in nothing.err + nothing.out
    assert "--data-dir" in fluss.run("backup", "restore", "nowhere").err
    refused = fluss.run("backup", "restore", "nowhere", "--data-dir", "new", "--port", "0", terminal=True)
    assert (refused.code, "nowhere" in refused.out) == (1, True)
    with EmbeddedServer({"durability": "os", "remote.data.dir": str(fluss.home / "archive")}) as server:
        environment = {"FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers}
        fluss("table", "create", "t", "-c", "id INT", environment=environment)
        fluss("append", "t", text='{"id": 1}\n{"id": 2}\n', environment=environment)
    checked = fluss("backup", "verify", "archive").out
    assert "complete" in checked
    assert checked in fluss("backup", "verify", "archive", terminal=True).out
    restored = fluss.start(
        "backup", "restore", "archive", "--data-dir", "new", "--port", "0", "--durability", "os", terminal=True
    )
    ready = re.search(r"ready on (\S+) ", restored.read_until(", durability os"))
    assert ready is not None
    assert fluss("head", "t", "--server", ready[1], "-f", "csv").lines == ["id", "1", "2"]
    restored.interrupt()
    restored.wait().ok()


def test_a_table_with_a_lake_is_copied(fluss: FlussCommand) -> None:
    lake = {"datalake.format": "iceberg", "datalake.iceberg.warehouse": str(fluss.home / "warehouse")}
    with EmbeddedServer({"durability": "os", **lake}) as server:
        fluss.environment = {"FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers}
        fluss("table", "create", "t", "-c", "id INT", "--property", "table.datalake.enabled=true")
        fluss("append", "t", text='{"id": 1}\n')
        assert fluss("copy", "fluss.t", "fluss.copied", "-f", "json").rows[0]["rows"] == 1
        properties = fluss("table", "show", "copied", "-f", "json").rows[0]["properties"]
        assert properties["table.datalake.enabled"] == "true"
