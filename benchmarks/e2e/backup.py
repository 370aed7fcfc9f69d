"""What a backup costs writers, and how soon a restored server answers and has everything: in turns with one without.

    python -m benchmarks.e2e backup             BACKUP_MB=10000 for a restore of 10 GB

Both servers copy closed segments to a directory; one also ships the rest, as often as by default. Only ratios mean
something; times of a restore are those of this disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import fluss
from benchmarks.e2e.remote import COMMON, Side
from benchmarks.e2e.turns import in_turns
from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import blocking
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually

APPEND_TURNS = 7
APPEND_S = 6.0
RESTORED_MB = int(os.environ.get("BACKUP_MB", "200"))
BUCKETS = 4
PATH = fluss.TablePath("fluss", "restored")


def measure() -> Iterator[tuple[str, float, str, str]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flussbett-bench-")))
        shipping = (f"remote.data.dir={directory / 'first'}",)
        plain = (f"remote.data.dir={directory / 'second'}", "backup.interval=0ms")
        sides = [Side(stack, directory / "shipping", shipping), Side(stack, directory / "plain", plain)]
        rate, ratio = in_turns(sides, _append_long, APPEND_TURNS)
        yield "append rows, without a backup", rate, "/s", ""
        yield "append rows, with a backup every 10 s", ratio, "x", "at least 0.9"
    with tempfile.TemporaryDirectory(prefix="flussbett-bench-") as name:
        yield from _restore(Path(name))


def _append_long(side: Side) -> int:
    """Append for some seconds, so that every other turn or so meets a round of shipping."""
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() - began_s < APPEND_S:
        count += side.append()
    return count


def _restore(directory: Path) -> Iterator[tuple[str, float, str, str]]:
    remote = directory / "remote"
    options = [part for option in (*COMMON, "remote.log.task-interval-duration=1s") for part in ("-D", option)]
    batch = order_batch(BATCH_ROWS)
    with (
        ServerProcess(directory / "lost", *options, "-D", f"remote.data.dir={remote}") as server,
        blocking.FlussConnection.create(_config(server)) as connection,
    ):
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=BUCKETS)
        connection.get_admin().create_table(PATH, descriptor)
        writer = connection.get_table(PATH).new_append().create_writer()
        row_count = 0
        while row_count * batch.nbytes // BATCH_ROWS < RESTORED_MB * 1_000_000:
            writer.write_arrow_batch(batch)
            row_count += BATCH_ROWS
        writer.flush()
    byte_count = sum(path.stat().st_size for path in remote.rglob("*") if path.is_file())
    began_s = time.perf_counter()
    with (
        ServerProcess(directory / "new", *options, "--restore-from", str(remote)) as server,
        blocking.FlussConnection.create(_config(server)) as connection,
    ):
        connection.get_admin().list_offsets(PATH, list(range(BUCKETS)), fluss.OffsetSpec.latest())
        yield f"restore {byte_count / 1e9:.2f} GB, until the first answer", time.perf_counter() - began_s, "s", ""
        eventually(lambda: '"is_complete":true' in (directory / "new" / "restore.json").read_text())
        yield "restore, until all logs are there", time.perf_counter() - began_s, "s", ""
        found = connection.get_table(PATH).new_scan().project_by_name(["id"]).to_arrow().num_rows
        assert found == row_count, f"{found} of {row_count} rows"
        yield "restore, until all rows were read", time.perf_counter() - began_s, "s", ""


def _config(server: ServerProcess) -> fluss.Config:
    return fluss.Config({"bootstrap.servers": server.bootstrap_servers})
