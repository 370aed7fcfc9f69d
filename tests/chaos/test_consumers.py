"""Members of a consumer are paused and killed: others read on, nobody's late commits count, and no record is lost.
Shown with real processes; `make chaos-consumers` does the same for longer, with faults from a seed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.testing.waiting import eventually
from tests.chaos import consumers


def test_a_paused_member_is_told_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    # Long enough for a member that only waits for its turn on a busy machine.
    options = {"consumer.lease-ms": "3000", "consumer.commit-interval-ms": "0"}
    with embedded.start({"durability": "os"}) as server:
        options["bootstrap.servers"] = server.bootstrap_servers
        with blocking.FlussConnection.create(fluss.Config(dict(options))) as connection:
            path = fluss.TablePath(*consumers.TABLE)
            schema = fluss.Schema(pa.schema([("id", pa.int64())]))
            connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
            table = connection.get_table(path)
            writer = table.new_append().create_writer()
            writer.append([0]).wait()
            config = json.dumps({"table": consumers.TABLE, "options": options})
            command = [sys.executable, "-m", "tests.chaos.consuming_process", config, str(tmp_path)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as member:
                assert member.stdout is not None
                assert member.stdout.readline() == "begun\n"
                eventually(lambda: {info.name: info.lag for info in table.consumers()} == {"exact": 0, "plain": 0})
                with table.consumer("plain") as consumer:
                    # Nobody else can have the only bucket.
                    assert consumer.poll(0).is_empty()
                    member.send_signal(signal.SIGSTOP)
                    writer.append([1]).wait()
                    eventually(lambda: [record.row["id"] for record in consumer.poll(50)] == [1])
                    consumer.commit()
                    member.send_signal(signal.SIGCONT)
                    assert "has lost its buckets" in member.stdout.readline()
                    assert len(consumer.epochs()) == 1
                # It has joined again, and reads on behind what the other one has committed.
                writer.append([2]).wait()
                eventually(lambda: set((tmp_path / "plain.txt").read_text().split()) == {"0", "2"})
                member.kill()
            with table.consumer("plain") as consumer:
                writer.append([3]).wait()
                eventually(lambda: 3 in [record.row["id"] for record in consumer.poll(50)])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_record_is_lost_and_a_sink_that_stores_offsets_has_each_once(tmp_path: Path) -> None:
    report = consumers.run(tmp_path, faults=12, seed=5)
    assert not report.problems
