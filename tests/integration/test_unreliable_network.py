"""On a bad network nothing is lost, doubled or reordered, calls end in time with the right codes, and nothing leaks.
Shown with a proxy between client and server process that cuts connections at random places, stalls and refuses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import count, islice, pairwise
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode
from fluss.testing.cluster import ServerProcess
from fluss.testing.faultnet import FaultProxy, Faults
from fluss.testing.waiting import eventually
from tests.integration.keyed_tables import Copy
from tests.open_files import lasting_threads, open_files

BUCKETS = 3
# A request with its answer fits into what most connections let through; some end in the middle of the handshake.
CUTS = Faults(cut_after_bytes=(1, 60_000), delay_s=(0.0, 0.002))
SMALL_FETCHES = {"scanner.log.fetch.max-bytes": "20000", "scanner.log.fetch.max-bytes-for-bucket": "20000"}
TIMEOUT_S = 120
# What reads may end with when connections are cut.
FAILURES = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIME_OUT, ErrorCode.SCANNER_EXPIRED)

ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("noise", pa.string())])
KEYED = pa.schema([("id", pa.int64()), ("number", pa.int64()), ("noise", pa.string())])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    """A server that clients reach through the proxy only."""
    with FaultProxy(seed=11) as proxy:
        advertised = f"advertised.listeners=FLUSS://127.0.0.1:{proxy.port}"
        data_dir = tmp_path_factory.mktemp("unreliable") / "data"
        with ServerProcess(data_dir, "-D", advertised, "--durability", "os") as server:
            proxy.upstream_port = server.port
            yield proxy
            assert "Traceback" not in server.log_text


@pytest.fixture
def good_network(network: FaultProxy) -> Iterator[FaultProxy]:
    """The same, without faults at the beginning and at the end of a test."""
    network.faults = Faults()
    yield network
    network.faults = Faults()


def connect(network: FaultProxy, **options: str) -> fluss.FlussConnection:
    config = {"bootstrap.servers": f"127.0.0.1:{network.port}", **options}
    return wait_for(fluss.FlussConnection.create(fluss.Config(config)))


@pytest.fixture
def path(good_network: FaultProxy, request: pytest.FixtureRequest) -> fluss.TablePath:
    """A table that no other test has."""
    table_path = fluss.TablePath("fluss", f"t{abs(hash(request.node.name))}")
    with connect(good_network) as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(ROWS), bucket_count=BUCKETS)
        wait_for(connection.get_admin().create_table(table_path, descriptor))
    return table_path


def row(number: int, rng: random.Random) -> dict[str, Any]:
    # Noise does not compress, so there is something to cut.
    return {"id": number, "noise": rng.randbytes(40).hex()}


def read_by_bucket(network: FaultProxy, path: fluss.TablePath, row_count: int, **options: str) -> list[list[int]]:
    """Read so many rows as records; return the ids of each bucket, having checked that offsets follow each other."""
    found: list[list[int]] = [[] for _ in range(BUCKETS)]
    deadline = time.monotonic() + TIMEOUT_S
    with connect(network, **options) as connection:
        scanner = wait_for(wait_for(connection.get_table(path)).new_scan().create_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        while sum(map(len, found)) < row_count and time.monotonic() < deadline:
            for bucket, records in scanner.poll(500).items():
                ids = found[bucket.bucket_id]
                for record in records:
                    assert record.offset == len(ids), "no offset is skipped and none comes twice"
                    ids.append(record.row["id"])
    return found


def check_once_and_in_order(found: list[list[int]], acknowledged: set[int]) -> None:
    everything = [number for ids in found for number in ids]
    assert len(everything) == len(set(everything)), "nothing is there twice"
    assert set(everything) >= acknowledged, "nothing that was acknowledged is lost"
    for ids in found:
        assert ids == sorted(ids), "a writer's rows stay in their order"


# Writing


@pytest.mark.parametrize("in_flight", ["1", "5"])
def test_rows_written_through_cuts_are_there_once_and_in_order(
    good_network: FaultProxy, path: fluss.TablePath, in_flight: str
) -> None:
    rng = random.Random(1)
    options = {"writer.batch-size": "2048", "writer.max-inflight-requests-per-bucket": in_flight}
    with connect(good_network, **options) as connection:
        writer = wait_for(connection.get_table(path)).new_append().create_writer()
        cuts_before = good_network.cut_count
        good_network.faults = CUTS
        good_network.cut_all()
        handles = []
        for number in range(3000):
            handles.append(writer.append(row(number, rng)))
            if number % 1000 == 999:
                wait_for(writer.flush())
        for handle in handles:
            wait_for(handle.wait())
        assert good_network.cut_count - cuts_before >= 3
        good_network.faults = Faults()
    check_once_and_in_order(read_by_bucket(good_network, path, 3000), set(range(3000)))


def test_requests_that_arrive_late_and_again_are_stored_once(good_network: FaultProxy, path: fluss.TablePath) -> None:
    rng = random.Random(2)
    # The client gives up on requests that the network delivers later, and sends them again.
    with connect(good_network, **{"request-timeout": "1000", "writer.batch-size": "2048"}) as connection:
        writer = wait_for(connection.get_table(path)).new_append().create_writer()
        handles = []
        for number in range(1500):
            handles.append(writer.append(row(number, rng)))
            if number % 500 == 250:
                good_network.faults = Faults(stalls=True)
                time.sleep(1.3)
                good_network.faults = Faults()
        wait_for(writer.flush())
        for handle in handles:
            wait_for(handle.wait())
    check_once_and_in_order(read_by_bucket(good_network, path, 1500), set(range(1500)))


@pytest.mark.parametrize("outage", [Faults(refuses=True), Faults(stalls=True), CUTS], ids=["refuses", "stalls", "cuts"])
def test_after_rows_that_failed_for_good_the_next_are_stored_once_and_in_order(
    good_network: FaultProxy, path: fluss.TablePath, outage: Faults
) -> None:
    rng = random.Random(3)
    numbers = count()
    acknowledged: set[int] = set()
    # Batches fail soon, and some of them are stored, or arrive late.
    options = {"request-timeout": "1000" if outage.stalls else "30000", "writer.batch-size": "2048"}
    with connect(good_network, **options, **{"writer.retries": "2"}) as connection:
        table = wait_for(connection.get_table(path))
        writer = table.new_append().create_writer()

        def write(row_count: int) -> dict[int, fluss.WriteResultHandle]:
            return {number: writer.append(row(number, rng)) for number in islice(numbers, row_count)}

        def are_stored(written: dict[int, fluss.WriteResultHandle]) -> bool:
            stored = {number for number, handle in written.items() if not code_of(lambda h=handle: wait_for(h.wait()))}
            acknowledged.update(stored)
            return len(stored) == len(written)

        eventually(lambda: are_stored(write(100)))
        for _ in range(2):
            good_network.faults = Faults(stalls=True)
            written = write(60)
            with pytest.raises(fluss.FlussError, match="flush timed out"):
                wait_for(writer.flush(timeout=0.5))
            # They are on their way, and do not arrive, or too late.
            good_network.faults = outage
            if not outage.stalls:
                good_network.cut_all()
            assert not are_stored(written) or outage == CUTS
            good_network.faults = Faults()
            if outage.refuses:
                assert are_stored(write(100)), "nothing is left of what has failed"
            else:
                # Connections of before may still be cut, or take as long as the client waits.
                eventually(lambda: are_stored(write(100)))
        row_count = table.new_scan().to_arrow().num_rows
    found = read_by_bucket(good_network, path, row_count)
    everything = [number for ids in found for number in ids]
    assert len(everything) == len(set(everything)), "nothing is there twice"
    check_once_and_in_order([[number for number in ids if number in acknowledged] for ids in found], acknowledged)


# Reading


def test_scanners_lose_nothing_and_read_nothing_twice_through_cuts(
    good_network: FaultProxy, path: fluss.TablePath
) -> None:
    rng = random.Random(3)
    with connect(good_network, **{"writer.batch-size": "2048"}) as connection:
        table = wait_for(connection.get_table(path))
        writer = table.new_append().create_writer()
        for number in range(3000):
            writer.append(row(number, rng))
        wait_for(writer.flush())
    cuts_before = good_network.cut_count
    good_network.faults = CUTS
    found = read_by_bucket_with_patience(good_network, path, 3000)
    assert good_network.cut_count - cuts_before >= 3
    check_once_and_in_order(found, set(range(3000)))


def read_by_bucket_with_patience(network: FaultProxy, path: fluss.TablePath, row_count: int) -> list[list[int]]:
    """Read through cuts. Connecting may fail for good, since the first connections may be cut at their first byte."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return read_by_bucket(network, path, row_count, **SMALL_FETCHES)
        except fluss.FlussError as error:
            if error.error_code != ErrorCode.NETWORK_EXCEPTION or time.monotonic() > deadline:
                raise


def test_a_bounded_read_through_cuts_is_complete(good_network: FaultProxy, path: fluss.TablePath) -> None:
    rng = random.Random(4)
    with connect(good_network, **{"writer.batch-size": "2048"}, **SMALL_FETCHES) as connection:
        table = wait_for(connection.get_table(path))
        writer = table.new_append().create_writer()
        for number in range(3000):
            writer.append(row(number, rng))
        wait_for(writer.flush())
        scanner = wait_for(table.new_scan().create_record_batch_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        good_network.faults = CUTS
        good_network.cut_all()
        assert sorted(scanner.to_arrow()["id"].to_pylist()) == list(range(3000))
        good_network.faults = Faults()


# Rows by key


@pytest.fixture
def keys_path(good_network: FaultProxy, request: pytest.FixtureRequest) -> fluss.TablePath:
    """A table with a primary key that no other test has."""
    table_path = fluss.TablePath("fluss", f"k{abs(hash(request.node.name))}")
    with connect(good_network) as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(KEYED, primary_keys=["id"]), bucket_count=BUCKETS)
        wait_for(connection.get_admin().create_table(table_path, descriptor))
    return table_path


class Changes:
    """What one writer does to the rows of some keys: every change has a number of its own, deletes have none."""

    def __init__(self, table: fluss.FlussTable, seed: int) -> None:
        self._rng = random.Random(seed)
        self._writer = table.new_upsert().create_writer()
        self.handles: list[Any] = []
        # By key, in order; None is a delete of a row that is there.
        self.made: dict[int, list[int | None]] = {}

    def make(self, number: int) -> None:
        key = self._rng.randrange(100)
        made = self.made.setdefault(key, [])
        if made and made[-1] is not None and self._rng.random() < 0.2:
            self.handles.append(self._writer.delete({"id": key}))
            made.append(None)
        else:
            row = {"id": key, "number": number, "noise": self._rng.randbytes(40).hex()}
            self.handles.append(self._writer.upsert(row))
            made.append(number)

    def finish(self) -> None:
        wait_for(self._writer.flush())
        for handle in self.handles:
            wait_for(handle.wait())

    @property
    def rows(self) -> dict[int, int]:
        return {key: made[-1] for key, made in self.made.items() if made[-1] is not None}

    @property
    def change_count(self) -> int:
        """The records of the changelog: one for a new or a removed row, two for a changed one."""
        pairs = [(before, after) for made in self.made.values() for before, after in pairwise([None, *made])]
        return sum(1 if before is None or after is None else 2 for before, after in pairs)

    def check(self, network: FaultProxy, path: fluss.TablePath) -> None:
        """Every change is in the changelog once and in order, and the rows are what it leads to."""
        copy = Copy("id")
        seen: dict[int, list[int | None]] = {}
        with connect(network) as connection:
            table = wait_for(connection.get_table(path))
            assert numbers_of(table.to_arrow()) == self.rows
            scanner = wait_for(table.new_scan().create_log_scanner())
            scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
            deadline = time.monotonic() + TIMEOUT_S
            while copy.change_count < self.change_count and time.monotonic() < deadline:
                records = list(scanner.poll(500))
                copy.apply_records(records)
                for record in records:
                    if record.change_type is not fluss.ChangeType.UpdateBefore:
                        is_delete = record.change_type is fluss.ChangeType.Delete
                        seen.setdefault(record.row["id"], []).append(None if is_delete else record.row["number"])
            assert not list(scanner.poll(100))
        assert seen == self.made
        assert {key: row["number"] for key, row in copy.rows.items()} == self.rows


def numbers_of(rows: pa.Table) -> dict[int, int]:
    return dict(zip(rows["id"].to_pylist(), rows["number"].to_pylist(), strict=True))


def test_rows_changed_through_cuts_are_changed_once_and_in_order(
    good_network: FaultProxy, keys_path: fluss.TablePath
) -> None:
    with connect(good_network, **{"writer.batch-size": "2048"}) as connection:
        changes = Changes(wait_for(connection.get_table(keys_path)), 5)
        cuts_before = good_network.cut_count
        good_network.faults = CUTS
        good_network.cut_all()
        for number in range(2000):
            changes.make(number)
            if number % 1000 == 999:
                changes.finish()
        assert good_network.cut_count - cuts_before >= 3
        good_network.faults = Faults()
    changes.check(good_network, keys_path)


def test_changes_that_arrive_late_and_again_are_made_once(good_network: FaultProxy, keys_path: fluss.TablePath) -> None:
    with connect(good_network, **{"request-timeout": "1000", "writer.batch-size": "2048"}) as connection:
        changes = Changes(wait_for(connection.get_table(keys_path)), 6)
        for number in range(1000):
            changes.make(number)
            if number % 500 == 250:
                good_network.faults = Faults(stalls=True)
                time.sleep(1.3)
                good_network.faults = Faults()
        changes.finish()
    changes.check(good_network, keys_path)


def test_reads_by_key_through_cuts_are_right_or_fail(good_network: FaultProxy, keys_path: fluss.TablePath) -> None:
    options = {"request-timeout": "3000", "connect-timeout": "1000", **SMALL_FETCHES}
    with connect(good_network, **options) as connection:
        table = wait_for(connection.get_table(keys_path))
        changes = Changes(table, 7)
        for number in range(2000):
            changes.make(number)
        changes.finish()
        rows, lookuper = changes.rows, table.new_lookup().create_lookuper()
        keys = [{"id": key} for key in range(100)]
        expected = [rows.get(key) for key in range(100)]

        def look_up() -> None:
            for key in range(0, 100, 9):
                found = wait_for(lookuper.lookup({"id": key}))
                assert (None if found is None else found["number"]) == rows.get(key)

        def look_up_many() -> None:
            assert wait_for(lookuper.lookup_many(keys))["number"].to_pylist() == expected

        def read_all() -> None:
            assert numbers_of(table.to_arrow()) == rows

        def follow() -> None:
            scanner = wait_for(table.new_scan().create_log_scanner())
            scanner.subscribe_from_snapshot()
            copy = Copy("id")
            deadline = time.monotonic() + 120
            while len(copy.rows) < len(rows) and time.monotonic() < deadline:
                copy.apply_records(scanner.poll(100))
            assert {key: row["number"] for key, row in copy.rows.items()} == rows

        cuts_before = good_network.cut_count
        good_network.faults = CUTS
        good_network.cut_all()
        codes = {read.__name__: [code_of(read) for _ in range(5)] for read in (look_up, look_up_many, read_all, follow)}
        for name, found in codes.items():
            assert 0 in found, f"{name} comes through at times"
            assert set(found) <= {0, *FAILURES}, name
        assert good_network.cut_count - cuts_before >= 3
        good_network.faults = Faults()


def code_of(call: Callable[[], None]) -> int:
    begun = time.monotonic()
    try:
        call()
        return 0
    except fluss.FlussError as error:
        return error.error_code
    finally:
        assert time.monotonic() - begun < 100


# Administration


def test_admin_calls_say_what_happened(good_network: FaultProxy) -> None:
    with connect(good_network, **{"request-timeout": "3000", "connect-timeout": "3000"}) as connection:
        admin = connection.get_admin()

        def list_databases() -> list[str]:
            return list(wait_for(admin.list_databases()))

        assert "fluss" in list_databases()
        good_network.faults = Faults(stalls=True)
        assert code_and_seconds(list_databases)[0] == ErrorCode.REQUEST_TIME_OUT
        good_network.faults = Faults(refuses=True)
        good_network.cut_all()
        assert code_and_seconds(list_databases)[0] == ErrorCode.NETWORK_EXCEPTION
        code, seconds = code_and_seconds(lambda: connect(good_network, **{"connect-timeout": "300"}))
        assert code == ErrorCode.NETWORK_EXCEPTION
        assert seconds < 100
        good_network.faults = Faults()
        assert "fluss" in list_databases(), "the connection has come back by itself"


def code_and_seconds(call: Callable[[], object]) -> tuple[int, float]:
    begun = time.monotonic()
    with pytest.raises(fluss.FlussError) as caught:
        call()
    return caught.value.error_code, time.monotonic() - begun


# The end


@pytest.mark.parametrize("faults", [Faults(stalls=True), Faults(refuses=True)], ids=["stalled", "refused"])
def test_closing_takes_no_longer_than_it_may(good_network: FaultProxy, path: fluss.TablePath, faults: Faults) -> None:
    connection = connect(good_network)
    table = wait_for(connection.get_table(path))
    writer = table.new_append().create_writer()
    scanner = wait_for(table.new_scan().create_log_scanner())
    scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
    scanner.poll(10)
    good_network.faults = faults
    if faults.refuses:
        good_network.cut_all()
    handle = writer.append({"id": 1, "noise": ""})
    _, seconds = code_and_seconds(lambda: connection.close(timeout_ms=500))
    assert seconds < 60
    assert code_and_seconds(lambda: wait_for(handle.wait()))[1] < 60, "the row was given up, and its writer hears it"


def test_connections_leave_neither_threads_nor_descriptors(good_network: FaultProxy, path: fluss.TablePath) -> None:
    def use_a_connection() -> None:
        with connect(good_network) as connection:
            table = wait_for(connection.get_table(path))
            writer = table.new_append().create_writer()
            writer.append({"id": 1, "noise": ""})
            wait_for(writer.flush())
            scanner = wait_for(table.new_scan().create_log_scanner())
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            scanner.poll(10)
            good_network.cut_all()

    # The first ones start what all share, and keep: one thread with its event loop, and a few workers.
    for _ in range(3):
        use_a_connection()
    threads, files = lasting_threads(), len(open_files())
    for _ in range(10):
        use_a_connection()
    # The proxy, which is in this process, may need a moment to notice.
    eventually(lambda: lasting_threads() <= threads and len(open_files()) <= files)


def test_the_proxy_is_the_only_way_in(network: FaultProxy) -> None:
    # Otherwise everything above would show nothing.
    with connect(network) as connection:
        node, *_ = wait_for(connection.get_admin().get_server_nodes())
        assert node.port == network.port
