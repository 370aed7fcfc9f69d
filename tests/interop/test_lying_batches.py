"""What a lying writer can store harms no official client: it raises, stays alive, and reads what is behind the lie.
Shown with one table per lie, each with a good batch before and behind it, read by every library."""

from __future__ import annotations

from fluss.net.transport import run
from tests.integration.lying_batches import ROW_COUNT, harmless_lies, hidden_lies, tell_lies
from tests.interop.client import EARLIEST, Client
from tests.interop.conftest import Addresses
from tests.interop.remote import RemoteFaultError, RemoteFlussError

READ_TIMEOUT_S = 120.0


def read(client: Client, table: str, row_count: int, start: int = EARLIEST) -> int:
    scanner = client.batch_scanner(table, start=start)
    return int(client.tools.poll_tables(scanner, row_count, READ_TIMEOUT_S).num_rows)


def test_what_makes_no_difference_is_read_by_everybody(client: Client, server: Addresses, unique: str) -> None:
    port = int(server.plain.rpartition(":")[2])
    for name, (table, answers) in run(tell_lies(port, unique, harmless_lies())).items():
        assert [answer.error_code for answer in answers] == [0, 0, 0]
        assert read(client, table, 3 * ROW_COUNT) == 3 * ROW_COUNT, name


def test_a_reader_survives_a_lie_and_goes_on_behind_it(client: Client, server: Addresses, unique: str) -> None:
    port = int(server.plain.rpartition(":")[2])
    found = 0
    for name, (table, answers) in run(tell_lies(port, unique, hidden_lies(ROW_COUNT))).items():
        try:
            assert read(client, table, 3 * ROW_COUNT) == 3 * ROW_COUNT, name
        except (RemoteFlussError, RemoteFaultError):
            found += 1
        assert read(client, table, ROW_COUNT, start=answers[2].base_offset) == ROW_COUNT, name
    # Days and times that no calendar has are nothing to libraries that do not look at them.
    assert found >= 10
