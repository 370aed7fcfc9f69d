"""What a client does while its server is away: writers and lookups wait for it, questions say that it does not answer.
Shown with a server process that is stopped before a client's first call, and started again when calls have failed."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking
from fluss.client.bulk import new_writer_id, wait_for
from fluss.errors import ErrorCode, FlussError, NetworkError
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually

EVENTS = fluss.TablePath("fluss", "events")
USERS = fluss.TablePath("fluss", "users")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
# More than a writer that gives up would make: four questions, each with three repetitions.
ATTEMPTS = 15


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", "-D", "durability=os") as running:
        with blocking.FlussConnection.create(config_of(running)) as connection:
            admin = connection.get_admin()
            admin.create_table(EVENTS, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
            admin.create_table(USERS, fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=["id"]), bucket_count=1))
            users = connection.get_table(USERS).new_upsert().create_writer()
            users.upsert([7, "seven"]).wait()
        yield running


def config_of(server: ServerProcess, **options: str) -> fluss.Config:
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    return fluss.Config({"bootstrap.servers": server.bootstrap_servers, **named})


def count(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def ids_of(server: ServerProcess, path: fluss.TablePath) -> list[int]:
    with blocking.FlussConnection.create(config_of(server)) as connection:
        return sorted(connection.get_table(path).new_scan().to_arrow()["id"].to_pylist())


def come_back(server: ServerProcess, caplog: pytest.LogCaptureFixture, attempts: int) -> threading.Thread:
    """Start the server again, in a thread, when clients have so often found nobody there."""

    def wait_and_start() -> None:
        eventually(lambda: count(caplog, "does not answer") >= attempts, "asking again")
        server.start()

    thread = threading.Thread(target=wait_and_start)
    thread.start()
    return thread


def test_the_first_write_of_a_writer_waits_for_its_server(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="fluss.client")
    with blocking.FlussConnection.create(config_of(server)) as connection:
        append = connection.get_table(EVENTS).new_append().create_writer()
        upsert = connection.get_table(USERS).new_upsert().create_writer()
        server.stop()
        handles = [append.append([1, "x"]), upsert.upsert([1, "x"])]
        starting = come_back(server, caplog, ATTEMPTS)
        for handle in handles:
            handle.wait()
        starting.join()
    assert ids_of(server, EVENTS) == [1]
    assert ids_of(server, USERS) == [1, 7]


async def test_the_first_write_waits_in_coroutines_too(server: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="fluss.client")
    async with (
        await fluss.FlussConnection.create(config_of(server)) as plain,
        await aio.FlussConnection.create(config_of(server)) as awaited,
    ):
        writers = [
            (await plain.get_table(EVENTS)).new_append().create_writer(),
            (await awaited.get_table(EVENTS)).new_append().create_writer(),
        ]
        await asyncio.to_thread(server.stop)
        first = writers[0].append([1, "x"])
        writers[1].append([2, "x"])
        starting = come_back(server, caplog, 2 * ATTEMPTS)
        await first
        await writers[1].flush()
        await asyncio.to_thread(starting.join)
    assert await asyncio.to_thread(ids_of, server, EVENTS) == [1, 2]


def test_a_job_waits_for_its_writer_id(server: ServerProcess) -> None:
    with wait_for(fluss.FlussConnection.create(config_of(server))) as connection:
        table = wait_for(connection.get_table(EVENTS))
        taken = new_writer_id(table)
        server.stop()
        starting = threading.Timer(4.0, server.start)
        starting.start()
        assert new_writer_id(table) > taken
        starting.join()


def test_retries_that_are_limited_end_with_the_code_of_what_is_wrong(server: ServerProcess) -> None:
    with blocking.FlussConnection.create(config_of(server, writer__retries="2")) as connection:
        writer = connection.get_table(EVENTS).new_append().create_writer()
        server.stop()
        with pytest.raises(NetworkError, match="no connection to") as caught:
            writer.append([1, "x"]).wait()
        assert caught.value.error_code == ErrorCode.NETWORK_EXCEPTION
        server.start()
        writer.append([2, "x"]).wait()
    assert ids_of(server, EVENTS) == [2]


def test_lookups_and_scanners_wait_and_questions_say_that_no_server_answers(server: ServerProcess) -> None:
    with blocking.FlussConnection.create(config_of(server)) as connection:
        users = connection.get_table(USERS)
        lookuper = users.new_lookup().create_lookuper()
        scanner = users.new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        eventually(lambda: [record.row["id"] for record in scanner.poll(100)])
        server.stop()
        assert len(scanner.poll(100)) == 0
        for question in (
            lambda: connection.get_admin().list_tables("fluss"),
            lambda: connection.get_table(EVENTS),
            lambda: users.new_scan().to_arrow(),
            lambda: users.new_scan().limit(1).create_bucket_batch_scanner(fluss.TableBucket(1, 0)).to_arrow(),
            lambda: blocking.FlussConnection.create(config_of(server)),
        ):
            with pytest.raises(FlussError) as caught:
                question()
            assert caught.value.is_retriable
            assert caught.value.error_code == ErrorCode.NETWORK_EXCEPTION
        starting = threading.Timer(2.0, server.start)
        starting.start()
        assert lookuper.lookup([7]) == {"id": 7, "text": "seven"}
        starting.join()
        users.new_upsert().create_writer().upsert([8, "eight"]).wait()
        assert eventually(lambda: [record.row["id"] for record in scanner.poll(100)]) == [8]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB. Making one is the right of root."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Write a file that takes the rest of a disk."""
    path = directory / "rest"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return path


def test_on_a_full_disk_writer_ids_are_refused_with_the_code_of_writes(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fluss.client.write.sender")
    with (
        ServerProcess(small_disk / "data", "-D", "server.data-disk.write-limit-ratio=1.0") as server,
        blocking.FlussConnection.create(config_of(server, writer__retries="1")) as impatient,
        blocking.FlussConnection.create(config_of(server)) as patient,
    ):
        patient.get_admin().create_table(EVENTS, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
        rest = fill(small_disk)
        with pytest.raises(FlussError, match="no room left; free some space") as caught:
            impatient.get_table(EVENTS).new_append().create_writer().append([1, "x"]).wait()
        assert caught.value.error_code == ErrorCode.DISK_WRITE_LOCKED
        handle = patient.get_table(EVENTS).new_append().create_writer().append([2, "x"])
        refused = count(caplog, "no writer id")
        eventually(lambda: count(caplog, "no writer id") >= refused + 5)
        rest.unlink()
        handle.wait()
        assert ids_of(server, EVENTS) == [2]


# What is in the log


def test_a_lost_server_is_one_warning_and_its_return_another(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="fluss.client")
    with blocking.FlussConnection.create(config_of(server)) as connection:
        append = connection.get_table(EVENTS).new_append().create_writer()
        lookuper = connection.get_table(USERS).new_lookup().create_lookuper()
        scanner = connection.get_table(EVENTS).new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        append.append([1, "x"]).wait()
        server.kill()
        # All who ask find nobody there, again and again: a writer, a scanner, lookups.
        handle = append.append([2, "x"])
        starting = come_back(server, caplog, ATTEMPTS)
        scanner.poll(100)
        assert lookuper.lookup([7]) is not None
        handle.wait()
        starting.join()
    loud = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    assert len(loud) == 2, loud
    assert loud[0].startswith(f"lost the server at 127.0.0.1:{server.port}: no connection to 127.0.0.1:{server.port}: ")
    assert loud[1].startswith(f"the server at 127.0.0.1:{server.port} is back, after ")
    assert {record.levelno for record in caplog.records} == {logging.DEBUG, logging.WARNING}


def test_a_loss_that_only_a_reader_notices_is_in_the_log_too(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="fluss.client")
    with (
        blocking.FlussConnection.create(config_of(server)) as connection,
        connection.get_table(EVENTS).new_scan().create_log_scanner() as scanner,
    ):
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert len(scanner.poll(100)) == 0
        # Its fetch is under way: the connection breaks in the middle of a request, and the server is asked no more.
        server.kill()
        starting = come_back(server, caplog, ATTEMPTS)
        while starting.is_alive():
            scanner.poll(100)
        eventually(lambda: (scanner.poll(100), count(caplog, "is back, after"))[1], "a line that it is back")
    loud = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    assert len(loud) == 2, loud
    assert loud[0].startswith(f"lost the server at 127.0.0.1:{server.port}: ")
