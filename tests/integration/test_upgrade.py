"""A data directory of the first layout is taken over by this server, whether its own has stopped or was killed.

The archive was written by the first version that had everything in it: metadata version 2, a RocksDB for each bucket.
"""

from __future__ import annotations

import logging
import tarfile
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from fluss import blocking, embedded
from fluss.errors import FlussError
from fluss.server.data_dir import FORMAT_FILE

ARCHIVE = Path(__file__).parents[1] / "data" / "first-layout.tar.xz"
EVENTS = [
    {"id": number, "name": f"event {number}", "day": date(2026, 1, 2) if number % 3 else None} for number in range(30)
]
USERS = {
    number: {"id": number, "name": f"user {number}", "score": number / 2}
    if number % 4
    else {"id": number, "name": "changed", "score": None}
    for number in range(20)
    if number not in (3, 7)
}


def rows(table: blocking.FlussTable) -> list[dict[str, object]]:
    return table.to_arrow().sort_by("id").to_pylist()


@pytest.fixture(params=["stopped", "killed"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / str(request.param)


def test_everything_is_there_and_goes_on(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="fluss.server"),
        embedded.start(data_dir=directory) as server,
        blocking.connect(server.bootstrap_servers) as connection,
    ):
        assert "metadata.sqlite to version 3" in caplog.text
        admin = connection.get_admin()
        assert admin.list_databases() == ["fluss", "sales"]
        assert admin.get_table_info("fluss.events").comment == "the first release's"
        assert rows(connection.get_table("fluss.events")) == EVENTS
        by_name = rows(connection.get_table("fluss.by_name"))
        assert [(row["id"], row["name"]) for row in by_name] == [(number, "ab"[number % 2]) for number in range(10)]
        users = connection.get_table("fluss.users")
        assert rows(users) == list(USERS.values())
        assert users.new_lookup().create_lookuper().lookup([4]) == USERS[4]
        with users.new_upsert().create_writer() as writer:
            writer.upsert_arrow(pa.table({"id": [7], "name": ["back"], "score": [7.0]}))
        with connection.get_table("fluss.events").new_append().create_writer() as events:
            events.append([30, "later", None])
    with (
        embedded.start(data_dir=directory) as server,
        blocking.connect(server.bootstrap_servers) as connection,
    ):
        assert rows(connection.get_table("fluss.events")) == [*EVENTS, {"id": 30, "name": "later", "day": None}]
        users_now = {**USERS, 7: {"id": 7, "name": "back", "score": 7.0}}
        assert rows(connection.get_table("fluss.users")) == [users_now[number] for number in sorted(users_now)]


def test_a_newer_layout_is_refused_and_left_alone(directory: Path) -> None:
    (directory / FORMAT_FILE).write_text("2\n")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(FlussError, match=r"layout version 2.*start it with the release that wrote it"):
        embedded.start(data_dir=directory)
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == {path: content for path, content in before.items() if path.name != ".lock"}
