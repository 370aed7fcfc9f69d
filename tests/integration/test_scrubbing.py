"""Damage of files that nobody reads is found and reported, or mended, before a reader meets it.
Shown with a server process whose sealed segments, indexes and SST files are changed while it runs."""

from __future__ import annotations

import json
import os
import random
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking
from fluss.errors import FlussError
from fluss.schema.cluster_info import HealthStatus
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually
from tests.ports import free_port

EVENTS = fluss.TablePath("fluss", "events")
USERS = fluss.TablePath("fluss", "users")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
ROWS = 1000
# A pass follows the other, and files are read as fast as they can be.
SCRUBBING = ("server.scrub.interval=100ms", "server.scrub.max-bytes-per-second=1gb")
# A database for each store, however small.
OWN_STORES = ("kv.shared-store.max-size=0b",)
OPTIONS = ("durability=os", "log.segment.file-size=20kb", "log.flush.offset.checkpoint-interval=100ms")


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[tuple[ServerProcess, blocking.FlussConnection]]:
    arguments = [part for option in (*OPTIONS, *options) for part in ("-D", option)]
    with ServerProcess(directory, *arguments) as server:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:
            yield server, connection


def text_of(number: int) -> str:
    # Nothing that compression makes much smaller.
    return random.Random(number).randbytes(50).hex()


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"id": numbers, "text": [text_of(number) for number in numbers]}, schema=SCHEMA)


def write_events(connection: blocking.FlussConnection) -> None:
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
    connection.get_admin().create_table(EVENTS, descriptor)
    writer = connection.get_table(EVENTS).new_append().create_writer()
    for first in range(0, ROWS, 100):
        writer.write_arrow(rows(first, 100))
        writer.flush()


def write_users(connection: blocking.FlussConnection, properties: dict[str, str] | None = None) -> None:
    schema = fluss.Schema(SCHEMA, primary_keys=["id"])
    descriptor = fluss.TableDescriptor(schema, bucket_count=1, properties=properties or {})
    connection.get_admin().create_table(USERS, descriptor)
    writer = connection.get_table(USERS).new_upsert().create_writer()
    writer.upsert_arrow(rows(0, ROWS))
    writer.flush()


def health(connection: blocking.FlussConnection) -> HealthStatus:
    return connection.get_admin().get_cluster_health().status


def read_damaged(data_dir: Path) -> dict[str, str]:
    """Return what the server has noted: the damaged files, and what is wrong with them."""
    try:
        damaged: dict[str, str] = json.loads((data_dir / "scrub.json").read_bytes())["damaged"]
    except FileNotFoundError:
        return {}
    return damaged


def flip(path: Path, position: int) -> None:
    """Change a bit, as a disk does: the file does not look any newer."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))
    # Written an hour ago.
    os.utime(path, (status.st_atime, time.time() - 3600))


def test_a_damaged_segment_is_reported_before_it_is_read_and_forgotten_when_it_is_restored(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path / "data", *SCRUBBING, f"metrics.reporter.prometheus.port={port}") as (server, connection):
        write_events(connection)
        (segment, *_, _) = sorted(server.data_dir.glob("fluss/events-*/log-0/*.log"))
        assert health(connection) is HealthStatus.GREEN
        position = segment.stat().st_size // 2
        flip(segment, position)
        eventually(lambda: health(connection) is HealthStatus.RED, "noticing the damage")
        name = segment.relative_to(server.data_dir).as_posix()
        reason = eventually(lambda: read_damaged(server.data_dir).get(name), "noting it")
        assert reason is not None
        assert f"{segment}, byte " in reason
        assert "checksum" in reason
        assert "restore the file from a backup" in server.log_text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()
        assert "\nfluss_scrub_damaged_buckets 1\n" in text
        assert '\nfluss_scrub_damaged_total{kind="segment"} 1\n' in text
        # Other rows can be read.
        assert connection.get_table(EVENTS).new_scan().limit(10).create_bucket_batch_scanner(
            fluss.TableBucket(connection.get_table(EVENTS).get_table_info().table_id, 0)
        ).to_arrow()["id"].to_pylist() == list(range(ROWS - 10, ROWS))
        # After a restart it is known at once, and found again.
        server.restart()
        eventually(lambda: health(connection) is HealthStatus.RED, "noticing it again")
        flip(segment, position)
        eventually(lambda: health(connection) is HealthStatus.GREEN, "noticing that it is good again")
        eventually(lambda: read_damaged(server.data_dir) == {}, "noting it")
        assert connection.get_table(EVENTS).new_scan().to_arrow().num_rows == ROWS


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", *SCRUBBING, "log.index.interval-size=1kb") as (server, connection):
        write_events(connection)
        (index, *_) = sorted(server.data_dir.glob("fluss/events-*/log-0/*.index"))
        flip(index, 1)
        eventually(lambda: not index.exists(), "removing the index")
        assert "made again when it is needed" in server.log_text
        assert connection.get_table(EVENTS).new_scan().to_arrow().num_rows == ROWS
        assert health(connection) is HealthStatus.GREEN
        assert read_damaged(server.data_dir) == {}


@pytest.mark.parametrize("options", [OWN_STORES, ()], ids=["of its own", "shared"])
def test_a_damaged_store_is_built_again_from_its_changelog(tmp_path: Path, options: tuple[str, ...]) -> None:
    with serving(tmp_path / "data", *options) as (server, connection):
        write_users(connection)
    # A stop brings the rows to the disk.
    (sst, *_) = sorted((tmp_path / "data").glob("**/*.sst"))
    flip(sst, sst.stat().st_size // 3)
    with serving(tmp_path / "data", *options, *SCRUBBING) as (server, connection):
        eventually(lambda: "is built again from its changelog" in server.log_text, "mending the store")
        assert f"{sst}, byte " in server.log_text
        lookuper = connection.get_table(USERS).new_lookup().create_lookuper()
        for number in range(0, ROWS, 100):
            assert lookuper.lookup([number]) == {"id": number, "text": text_of(number)}
        assert connection.get_table(USERS).new_scan().to_arrow().num_rows == ROWS
        eventually(lambda: read_damaged(server.data_dir) == {})
        eventually(lambda: health(connection) is HealthStatus.GREEN)


def linked_sst_files(data_dir: Path) -> list[Path]:
    """Return the SST files of stores that are in a copy, too."""
    return [path for path in data_dir.glob("fluss/users-*/kv-0/*.sst") if path.stat().st_nlink > 1]


def test_a_store_that_could_only_be_built_from_the_same_damage_is_left_as_it_is_and_reported(tmp_path: Path) -> None:
    expiring = (*OWN_STORES, "log.retention.check-interval=100ms", "log.retention.roll-active-segment.enabled=true")
    with serving(tmp_path / "data", *expiring) as (server, connection):
        write_users(connection, {"table.log.ttl": "1 s"})
        # Before the changelog goes, a copy of the store is made.
        eventually(lambda: linked_sst_files(server.data_dir), "making a copy")
        eventually(
            lambda: not list(server.data_dir.glob(f"fluss/users-*/log-0/{0:020d}.log")), "expiring the changelog"
        )
    (sst, *_) = linked_sst_files(tmp_path / "data")
    position = sst.stat().st_size // 3
    flip(sst, position)
    with serving(tmp_path / "data", *OWN_STORES, *SCRUBBING) as (server, connection):
        eventually(lambda: health(connection) is HealthStatus.RED, "noticing the damage")
        eventually(lambda: "It cannot be built again from the changelog" in server.log_text)
        # Everything else can still be read, and the file be restored.
        assert sst.exists()
        flip(sst, position)
        eventually(lambda: health(connection) is HealthStatus.GREEN, "noticing that it is good again")
        lookuper = connection.get_table(USERS).new_lookup().create_lookuper()
        assert lookuper.lookup([7]) == {"id": 7, "text": text_of(7)}


@pytest.mark.parametrize("option", ["server.scrub.interval=0s", "server.scrub.max-bytes-per-second=0b"])
def test_how_often_and_how_fast_files_are_read_again_are_options(tmp_path: Path, option: str) -> None:
    with serving(tmp_path / "data", *SCRUBBING, option) as (server, connection):
        write_events(connection)
        (segment, *_) = sorted(server.data_dir.glob("fluss/events-*/log-0/*.log"))
        flip(segment, segment.stat().st_size // 2)
        # Far longer than a pass would take; it does not happen.
        with pytest.raises(AssertionError, match="did not happen"):
            eventually(lambda: health(connection) is HealthStatus.RED, timeout_s=3)
        with pytest.raises(FlussError, match="checksum"):
            connection.get_table(EVENTS).new_scan().to_arrow()
