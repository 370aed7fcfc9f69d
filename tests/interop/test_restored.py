"""The official clients, and ours, work with a server that was restored from its backup as with the lost one.

What they wrote to a real server, whose disk is gone then, is read from another one that has taken its place.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fluss import embedded
from tests.interop.client import Client
from tests.interop.conftest import Libraries
from tests.interop.samples import EVENTS, event_batch, events


def test_a_restored_server_is_used_like_the_lost_one(
    libraries: Libraries, any_name: str, table: str, tmp_path: Path
) -> None:
    options = {
        "log.segment.file-size": "16kb",
        "remote.log.task-interval-duration": "20 ms",
        "backup.interval": "50 ms",
        "durability": "os",
    }
    remote = str(tmp_path / "remote")
    with embedded.start({**options, "remote.data.dir": remote}, data_dir=tmp_path / "data") as server:
        client = Client(libraries[any_name], server.bootstrap_servers)
        client.create_table(table, EVENTS)
        client.write_batches(table, event_batch(0, 3_999))
    shutil.rmtree(tmp_path / "data")
    with embedded.start({**options, "backup.restore-from": remote}, data_dir=tmp_path / "new") as server:
        client = Client(libraries[any_name], server.bootstrap_servers)
        assert client.read_table(table).to_pylist() == events(0, 3_999)
        client.append_rows(table, events(4_000, 4_009))
        assert client.read_table(table).to_pylist() == events(0, 4_009)
