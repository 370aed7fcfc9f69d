"""A server that dies takes nothing with it that a client saw acknowledged, and doubles nothing when it comes back.

Each client writes or reads while a server in a process of its own is killed and started again on the same data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.embedded import EmbeddedServer
from fluss.testing.waiting import eventually
from tests.interop.client import READ_TIMEOUT_S, Client
from tests.interop.conftest import ALL, Libraries

SCHEMA = pa.schema([("id", pa.int64())])
KILL_COUNT = 2
# So many rows may be under way when the server dies.
WINDOW = 10
WRITING_S = 0.2


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(data_dir=tmp_path / "data", process=True) as server:
        yield server


def test_what_was_acknowledged_is_there_once_after_the_server_was_killed(
    mortal: EmbeddedServer, any_name: str, libraries: Libraries, tmp_path: Path
) -> None:
    client = Client(libraries[any_name], mortal.bootstrap_servers, writer_batch_timeout_ms=1)
    client.create_table("t", SCHEMA, bucket_count=2)
    stop_file = tmp_path / "stop"
    reader = Client(libraries["flussbett"], mortal.bootstrap_servers)

    def row_count() -> int:
        return sum(reader.latest("t", [0, 1]).values())

    with ThreadPoolExecutor(1) as executor:
        writing = executor.submit(client.tools.append_until, client.writer("t"), str(stop_file), WINDOW, 0.005)
        for _ in range(KILL_COUNT):
            before = row_count()
            eventually(lambda before=before: row_count() > before + 2 * WINDOW)
            mortal.kill()
            mortal.restart()
        before = row_count()
        eventually(lambda: row_count() > before + 2 * WINDOW)
        stop_file.touch()
        outcomes = writing.result(120)

    acknowledged = {number for number, code in outcomes if code is None}
    # A client may give up on what was under way when a server died; it never gives up on more than that.
    assert len(outcomes) - len(acknowledged) <= KILL_COUNT * WINDOW
    assert len(acknowledged) > KILL_COUNT * WINDOW, "something was written between the kills"

    count = row_count()
    found = reader.tools.poll_records(reader.record_scanner("t"), count, READ_TIMEOUT_S)
    assert len(found) == count
    counts = Counter(row["id"] for *_, row in found)
    assert acknowledged <= counts.keys()
    assert set(counts.values()) == {1}
    for bucket in {bucket for bucket, *_ in found}:
        ids = [row["id"] for found_in, *_, row in found if found_in == bucket]
        assert ids == sorted(ids), "a writer's rows keep their order"


def test_a_scanner_goes_on_where_it_was_after_a_restart(tmp_path: Path, any_name: str, libraries: Libraries) -> None:
    with EmbeddedServer(data_dir=tmp_path) as server:
        client = Client(libraries[any_name], server.bootstrap_servers)
        client.create_table("t", SCHEMA)
        client.append_rows("t", [{"id": i} for i in range(5)])
        scanner = client.record_scanner("t")
        assert len(client.tools.poll_records(scanner, 5, READ_TIMEOUT_S)) == 5

        server.restart()
        later = Client(libraries[any_name], server.bootstrap_servers)
        later.append_rows("t", [{"id": i} for i in range(5, 8)])

        found = client.tools.poll_records(scanner, 3, READ_TIMEOUT_S)
        assert [(offset, row["id"]) for _, offset, _, _, row in found] == [(5, 5), (6, 6), (7, 7)]
        libraries.reset()


def test_tables_and_rows_of_all_clients_survive_a_crash(mortal: EmbeddedServer, libraries: Libraries) -> None:
    rows = [{"id": i, "region": "x"} for i in range(4)]
    schema = pa.schema([("id", pa.int64()), ("region", pa.string())])
    partition_ids: dict[str, dict[str, int]] = {}
    for number, name in enumerate(ALL):
        client = Client(libraries[name], mortal.bootstrap_servers)
        client.create_table(f"t{number}", schema, partition_keys=["region"], comment=name)
        client.admin.create_partition(client.path(f"t{number}"), {"region": "x"})
        client.append_rows(f"t{number}", rows)
        partition_ids[name] = client.partition_ids(f"t{number}")

    mortal.kill()
    mortal.restart()
    for number, name in enumerate(ALL):
        client = Client(libraries[name], mortal.bootstrap_servers)
        assert client.admin.get_table_info(client.path(f"t{number}")).comment == name
        assert client.partition_ids(f"t{number}") == partition_ids[name]
        assert client.read_rows(f"t{number}", 4) == rows
