"""Whatever a server answers, a client's calls end in time, with a result or with a FlussError, and it can be closed.
Shown by a server that answers everything with random messages, damaged ones, errors, noise or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

import fluss
from fluss.client.faces import wait_for
from tests.integration.hostile_server import BUCKETS, HostileServer
from tests.integration.lying_batches import rows

PATH = fluss.TablePath("fluss", "t")
# Requests time out after a tenth of a second; calls that repeat them a few times take a multiple of it.
CALL_SECONDS_MAX = 10.0


def connect(port: int) -> fluss.FlussConnection:
    options = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "request-timeout": "100",
        "connect-timeout": "100",
        "writer.retries": "2",
        "scanner.log.fetch.wait-max-time-ms": "10",
    }
    return wait_for(fluss.FlussConnection.create(fluss.Config(options)))


def ends_well(call: Callable[[], object]) -> bool:
    """Whether a call has a result; anything but a FlussError in time fails the test."""
    begun = time.monotonic()
    try:
        call()
        return True
    except fluss.FlussError:
        return False
    finally:
        assert time.monotonic() - begun < CALL_SECONDS_MAX


def ask_everything(connection: fluss.FlussConnection) -> list[bool]:
    admin = connection.get_admin()
    calls: list[Callable[[], object]] = [
        lambda: wait_for(admin.list_databases()),
        lambda: wait_for(admin.get_database_info("fluss")),
        lambda: wait_for(admin.list_tables("fluss")),
        lambda: wait_for(admin.get_table_info(PATH)),
        lambda: wait_for(admin.get_table_schema(PATH)),
        lambda: wait_for(admin.list_partition_infos(PATH)),
        lambda: wait_for(admin.list_offsets(PATH, [0, 1], fluss.OffsetSpec.latest())),
        lambda: wait_for(admin.get_server_nodes()),
        lambda: wait_for(admin.describe_cluster_configs()),
        lambda: wait_for(admin.create_database("x")),
    ]
    return [ends_well(call) for call in calls]


def use_table(connection: fluss.FlussConnection) -> list[bool]:
    table = wait_for(connection.get_table(PATH))

    def write() -> None:
        writer = table.new_append().create_writer()
        writer.write_arrow_batch(rows())
        wait_for(writer.flush())

    def scan() -> None:
        scanner = wait_for(table.new_scan().create_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        for _ in range(3):
            for record in scanner.poll(30):
                assert len(repr(dict(record.row))) > 0

    def scan_newest() -> None:
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        wait_for(table.new_scan().limit(3).create_bucket_batch_scanner(bucket).to_arrow())

    return [ends_well(call) for call in (write, scan, scan_newest)]


@pytest.mark.parametrize("honesty", [0.7, 0.9, 1.0])
def test_calls_end_with_a_result_or_a_typed_error(honesty: float, caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[bool] = []
    with caplog.at_level(logging.INFO):
        for seed in range(4):
            with HostileServer(seed, honesty) as server:
                try:
                    connection = connect(server.port)
                except fluss.FlussError:
                    outcomes.append(False)
                    continue
                outcomes += ask_everything(connection)
                try:
                    outcomes += use_table(connection)
                except fluss.FlussError:
                    outcomes.append(False)
                # Rows that a liar did not take are lost, and closing says so.
                ends_well(lambda opened=connection: opened.close(timeout_ms=200))
    assert set(outcomes) == {True, False}, "something worked, and something did not"
    unexpected = [(record.getMessage(), record.exc_info) for record in caplog.records if record.exc_info]
    assert unexpected == []
