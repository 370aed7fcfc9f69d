"""A data directory that cannot be used is refused in one sentence, and a disk or a clock that misbehaves loses nothing.
Shown by starting servers on files, links, foreign and damaged directories, full disks, and with a clock that jumps."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

import fluss
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_batch import encode_arrow_batch
from fluss.record.compression import NO_COMPRESSION
from fluss.schema.serde import table_to_json
from fluss.server.__main__ import main
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])
PATH = fluss.TablePath("fluss", "t")
TIMEOUT_S = 120


Start: TypeAlias = Callable[[Path], tuple[int, str]]


@pytest.fixture
def start(capsys: pytest.CaptureFixture[str]) -> Start:
    """Return a function that starts a server which cannot start; it returns the exit code and what was said."""

    def start_on(directory: Path) -> tuple[int, str]:
        code = main(["--data-dir", str(directory), "--port", "0", "--log-level", "warning"])
        said = capsys.readouterr()
        assert said.out == "", "it never said that it was ready"
        assert "Traceback" not in said.err
        return code, said.err

    return start_on


def connect(server: ServerProcess) -> fluss.FlussConnection:
    return wait_for(fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": server.bootstrap_servers})))


def create_table(server: ServerProcess) -> None:
    with connect(server) as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
        wait_for(connection.get_admin().create_table(PATH, descriptor))


def append(server: ServerProcess, first: int, count: int, text: str = "") -> None:
    with connect(server) as connection:
        writer = wait_for(connection.get_table(PATH)).new_append().create_writer()
        for number in range(first, first + count):
            writer.append({"id": number, "text": text})
        wait_for(writer.flush())


def read(server: ServerProcess) -> list[int]:
    with connect(server) as connection:
        scanner = wait_for(wait_for(connection.get_table(PATH)).new_scan().create_record_batch_log_scanner())
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        return list(scanner.to_arrow()["id"].to_pylist())


# What is refused


def a_file(directory: Path) -> None:
    directory.touch()


def below_a_file(directory: Path) -> None:
    directory.parent.touch()


def a_link_to_itself(directory: Path) -> None:
    directory.symlink_to(directory)


def a_link_to_nowhere(directory: Path) -> None:
    directory.symlink_to(directory.parent / "nowhere" / "at-all")


def something_else(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.odt").touch()


def a_directory_for_a_lock(directory: Path) -> None:
    (directory / ".lock").mkdir(parents=True)


def a_directory_for_a_format(directory: Path) -> None:
    (directory / "flussbett-format").mkdir(parents=True)


def a_directory_for_metadata(directory: Path) -> None:
    (directory / "metadata.sqlite").mkdir(parents=True)
    (directory / "flussbett-format").write_text("1\n")


def noise_for_metadata(directory: Path) -> None:
    directory.mkdir()
    (directory / "metadata.sqlite").write_bytes(os.urandom(5000))
    (directory / "flussbett-format").write_text("1\n")


UNUSABLE: dict[Callable[[Path], None], str] = {
    a_file: "cannot be used: Not a directory",
    below_a_file: "cannot be used: Not a directory",
    a_link_to_itself: "cannot be used: Too many levels of symbolic links",
    a_link_to_nowhere: "cannot be used: No such file or directory",
    something_else: "holds something else (thesis.odt)",
    a_directory_for_a_lock: "cannot be used: Is a directory",
    a_directory_for_a_format: "flussbett-format cannot be read: Is a directory",
    a_directory_for_metadata: "metadata.sqlite cannot be used",
    noise_for_metadata: "metadata.sqlite cannot be used",
}


@pytest.mark.parametrize(("make", "expected"), UNUSABLE.items(), ids=[make.__name__ for make in UNUSABLE])
def test_what_cannot_be_a_data_directory_is_refused_in_one_sentence(
    tmp_path: Path, start: Start, make: Callable[[Path], None], expected: str
) -> None:
    directory = tmp_path / "parent" / "data"
    if make is not below_a_file:
        directory.parent.mkdir()
    make(directory)
    code, said = start(directory)
    assert code == 1
    (line,) = said.splitlines()
    assert expected in line


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_directory_without_rights_is_refused(tmp_path: Path, start: Start, mode: int) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=mode)
    code, said = start(directory)
    assert code == 1
    assert "correct its rights" in said


def test_a_place_where_nothing_can_be_made_is_refused(start: Start) -> None:
    # Not even root can make a directory there.
    code, said = start(Path("/proc/flussbett"))
    assert code == 1
    assert "/proc/flussbett cannot be used" in said


def test_a_link_to_a_directory_is_as_good_as_the_directory(tmp_path: Path, start: Start) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with ServerProcess(tmp_path / "link") as server:
        create_table(server)
        append(server, 0, 3)
        # By whatever name: it is taken.
        for name in ("real", "link"):
            code, said = start(tmp_path / name)
            assert code == 1
            assert f"in use by process {server.process_id}" in said
    with ServerProcess(tmp_path / "real") as server:
        assert read(server) == [0, 1, 2]


def test_logs_whose_metadata_is_lost_are_not_touched(tmp_path: Path, start: Start) -> None:
    with ServerProcess(tmp_path / "data") as server:
        create_table(server)
        append(server, 0, 3)
        server.stop()
        metadata = tmp_path / "data" / "metadata.sqlite"
        content = metadata.read_bytes()
        metadata.unlink()
        for lose in (lambda: None, metadata.touch):
            lose()
            code, said = start(tmp_path / "data")
            assert code == 1
            (line,) = said.splitlines()
            assert "metadata.sqlite is missing or empty, but there are logs, such as " in line
        metadata.write_bytes(content)
        server.start()
        assert read(server) == [0, 1, 2]


# Disks


@pytest.fixture
def small_files(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose files cannot grow beyond a megabyte, which is what a full disk looks like to it."""
    with ServerProcess(tmp_path / "data") as server:
        create_table(server)
        yield server


def limit_files(server: ServerProcess, byte_count: int) -> None:
    resource.prlimit(server.process_id, resource.RLIMIT_FSIZE, (byte_count, resource.RLIM_INFINITY))


async def _produce(port: int, batch: bytes, count: int) -> list[int]:
    """Write a batch again and again; return the codes."""
    path = pb.PbTablePath(database_name=PATH.database_name, table_name=PATH.table_name)
    codes = []
    async with await Channel.connect("127.0.0.1", port) as channel:
        info = await channel.request(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path), timeout_s=TIMEOUT_S)
        for _ in range(count):
            request = ProduceLogRequest(-1, info.table_id, 5000, [BucketRecords(0, batch)])
            answer = await channel.request(apis.PRODUCE_LOG, request, timeout_s=TIMEOUT_S)
            codes.append(answer.buckets_resp[0].error_code)
    return codes


def test_what_does_not_fit_on_the_disk_is_refused_and_what_is_there_stays(small_files: ServerProcess) -> None:
    row_count = 1000
    rows = pa.RecordBatch.from_pydict({"id": [1] * row_count, "text": ["x" * 80] * row_count}, schema=SCHEMA)
    batch = bytes(encode_arrow_batch(rows, 1, NO_COMPRESSION))
    limit_files(small_files, 1_000_000)
    codes = run(_produce(small_files.port, batch, 15))
    stored = codes.index(next(code for code in codes if code))
    assert stored >= 5
    assert set(codes[stored:]) <= {ErrorCode.LOG_STORAGE_EXCEPTION, ErrorCode.STORAGE_EXCEPTION}
    assert len(read(small_files)) == stored * row_count, "what was acknowledged can be read meanwhile"
    limit_files(small_files, resource.RLIM_INFINITY)
    assert small_files.stop() == 0
    small_files.start()
    assert run(_produce(small_files.port, batch, 2)) == [0, 0]
    assert len(read(small_files)) == (stored + 2) * row_count
    assert "Traceback" not in small_files.log_text


def test_metadata_that_does_not_fit_on_the_disk_is_refused(small_files: ServerProcess) -> None:
    async def create(port: int) -> int:
        descriptor = fluss.TableDescriptor(
            fluss.Schema(SCHEMA), bucket_count=1, custom_properties={"long": "x" * 2_000_000}
        )
        request = pb.CreateTableRequest(
            table_path=pb.PbTablePath(database_name="fluss", table_name="long"),
            table_json=table_to_json(descriptor),
            ignore_if_exists=False,
        )
        async with await Channel.connect("127.0.0.1", port) as channel:
            try:
                await channel.request(apis.CREATE_TABLE, request, timeout_s=TIMEOUT_S)
            except fluss.FlussError as error:
                return error.error_code
        return 0

    limit_files(small_files, 1_000_000)
    assert run(create(small_files.port)) == ErrorCode.STORAGE_EXCEPTION
    with connect(small_files) as connection:
        assert wait_for(connection.get_admin().list_tables("fluss")) == [PATH.table_name]
    limit_files(small_files, resource.RLIM_INFINITY)
    assert small_files.stop() == 0
    small_files.start()
    assert run(create(small_files.port)) == 0
    assert "Traceback" not in small_files.log_text


def test_a_disk_that_counts_as_full_takes_no_writes_and_lets_reads_go_on(tmp_path: Path) -> None:
    limits = ("server.data-disk.write-limit-ratio", "server.data-disk.write-recover-ratio")
    rows = pa.RecordBatch.from_pydict({"id": [1], "text": [""]}, schema=SCHEMA)
    batch = bytes(encode_arrow_batch(rows, 1, NO_COMPRESSION))
    with ServerProcess(tmp_path / "data", "-D", "server.data-disk.check-interval=100ms") as server:
        create_table(server)
        with connect(server) as connection:
            admin = connection.get_admin()
            assert run(_produce(server.port, batch, 1)) == [0]
            wait_for(admin.alter_cluster_configs(set_configs=dict(zip(limits, ("0.000001", "0"), strict=True))))
            eventually(lambda: run(_produce(server.port, batch, 1)) == [ErrorCode.DISK_WRITE_LOCKED])
            assert set(read(server)) == {1}
            wait_for(admin.alter_cluster_configs(reset_configs=limits))
            eventually(lambda: run(_produce(server.port, batch, 1)) == [0])


# Clocks


async def test_a_clock_that_jumps_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000

    def clock() -> int:
        return now_ms

    options = ServerOptions({"data.dir": str(tmp_path / "data"), "bind.listeners": "FLUSS://127.0.0.1:0"})
    rows = pa.RecordBatch.from_pydict({"id": [1, 2], "text": ["", ""]}, schema=SCHEMA)
    batch = bytes(encode_arrow_batch(rows, 1, NO_COMPRESSION))
    table_path = pb.PbTablePath(database_name=PATH.database_name, table_name=PATH.table_name)
    descriptor = table_to_json(fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
    create = pb.CreateTableRequest(table_path=table_path, table_json=descriptor, ignore_if_exists=True)
    latest = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=0, bucket_id=[0])
    by_time = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=2, table_id=0, bucket_id=[0])
    for round_number in range(3):
        # Each time the server starts a day earlier than the last time.
        async with FlussServer(options, clock=clock) as server:
            port = server.listeners[0].port
            async with await Channel.connect("127.0.0.1", port) as channel:
                await channel.request(apis.CREATE_TABLE, create, timeout_s=TIMEOUT_S)
            assert await _produce(port, batch, 2) == [0, 0]
            now_ms -= 3_600_000
            assert await _produce(port, batch, 2) == [0, 0]
            async with await Channel.connect("127.0.0.1", port) as channel:
                answer = await channel.request(apis.LIST_OFFSETS, latest, timeout_s=TIMEOUT_S)
                assert answer.buckets_resp[0].offset == 8 * (round_number + 1)
                by_time.startTimestamp = now_ms - 1
                answer = await channel.request(apis.LIST_OFFSETS, by_time, timeout_s=TIMEOUT_S)
                assert answer.buckets_resp[0].error_code == 0
        now_ms -= 86_400_000
