"""A server is backed up to an object store behind HTTP, and restored from it, also when the store fails meanwhile.
Shown with a server that speaks S3, and a proxy before it; the same with a directory is in test_backup.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss import embedded
from fluss.server.__main__ import main
from fluss.testing.waiting import eventually
from tests.integration.test_backup import EVENTS, QUICK, append, connected, create, ids
from tests.s3_server import KEYS, FaultyProxy, faulty_proxy, new_bucket, s3_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def proxy(endpoint: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(endpoint) as running:
        yield running


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    # The command line takes no secrets.
    monkeypatch.setenv("FLUSS_S3_ACCESS_KEY", KEYS["s3.access-key"])
    monkeypatch.setenv("FLUSS_S3_SECRET_KEY", KEYS["s3.secret-key"])


def arguments(endpoint: str) -> list[str]:
    return ["-D", f"s3.endpoint={endpoint}", "-D", f"s3.region={KEYS['s3.region']}"]


def test_a_server_is_restored_from_an_object_store(
    endpoint: str, proxy: FaultyProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = f"s3://{new_bucket(endpoint)}/fluss"
    options = {**QUICK, **KEYS, "s3.endpoint": proxy.endpoint, "backup.interval": "200ms"}
    old_dir, new_dir = tmp_path / "old", tmp_path / "new"
    with (
        embedded.start({**options, "remote.data.dir": location}, data_dir=old_dir) as server,
        connected(server) as connection,
    ):
        create(connection)
        writer = connection.get_table(EVENTS).new_append().create_writer()
        append(writer, 0, 10)
        # Some requests fail while it is shipped.
        proxy.faults = [500, 503, "close", 500]
        append(writer, 10, 10)
        eventually(lambda: not proxy.faults)
    shutil.rmtree(old_dir)
    assert main(["--verify-backup", location, *arguments(endpoint)]) == 0
    assert capsys.readouterr().out.startswith("complete: ")
    proxy.faults = [500, 503]
    with (
        embedded.start({**options, "backup.restore-from": location}, data_dir=new_dir) as server,
        connected(server) as connection,
    ):
        assert ids(connection) == list(range(20))
        append(connection.get_table(EVENTS).new_append().create_writer(), 20, 3)
        assert ids(connection) == list(range(23))
    assert main(["--verify-backup", location, *arguments(endpoint)]) == 0


def test_the_older_of_two_servers_on_an_object_store_takes_no_more_writes(endpoint: str, tmp_path: Path) -> None:
    location = f"s3://{new_bucket(endpoint)}/fluss"
    options = {**QUICK, **KEYS, "s3.endpoint": endpoint, "backup.interval": "200ms"}
    with (
        embedded.start({**options, "remote.data.dir": location}, data_dir=tmp_path / "old") as old_server,
        connected(old_server) as old,
    ):
        create(old)
        append(old.get_table(EVENTS).new_append().create_writer(), 0, 5)
        eventually(lambda: main(["--verify-backup", location, *arguments(endpoint)]) == 0)
        with (
            embedded.start({**options, "backup.restore-from": location}, data_dir=tmp_path / "new") as new_server,
            connected(new_server) as new,
        ):
            eventually(lambda: old.get_admin().get_cluster_health().status.name == "RED")
            found = ids(new)
            assert found == list(range(len(found)))
            append(new.get_table(EVENTS).new_append().create_writer(), len(found), 3)
            assert ids(new) == list(range(len(found) + 3))
