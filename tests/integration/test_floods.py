"""After a flood a server is what it was before: its memory is given back, its places are free."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import fluss
from fluss import blocking
from fluss.protocol.api import ApiKey
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually

LOCALHOST = "127.0.0.1"
MIB = 1024 * 1024


@pytest.mark.timeout(300)
def test_the_memory_of_a_flood_is_given_back(tmp_path: Path) -> None:
    # The beginning of a large request, which never becomes whole.
    beginning = struct.pack(">ihhi", 90 * MIB, ApiKey.PRODUCE_LOG, 0, 0) + bytes(300_000)
    with ServerProcess(tmp_path) as server:
        process = psutil.Process(server.process_id)
        before_bytes = process.memory_info().rss
        for _ in range(6):
            clients = [socket.create_connection((LOCALHOST, server.port)) for _ in range(100)]
            for client in clients:
                client.sendall(beginning)
            for client in clients:
                client.close()
        # The last client has been seen by the server when its answer to a new one has come.
        eventually(lambda: process.num_fds() < 60, timeout_s=120)
        eventually(lambda: process.memory_info().rss - before_bytes < 64 * MIB, timeout_s=120)


@pytest.mark.timeout(300)
def test_connections_leave_descriptors_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = tmp_path / "python"
    limited.write_text(f'#!/bin/sh\nulimit -n 1024\nexec "{sys.executable}" "$@"\n')
    limited.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(limited))
    schema = pa.schema([("id", pa.int64())])
    # No more than one address may have; the flood comes from many.
    flood: list[socket.socket] = []
    with ServerProcess(tmp_path / "data", "-D", "durability=os") as server:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        with blocking.FlussConnection.create(config) as connection:

            def append(name: str, bucket_count: int) -> None:
                path = blocking.TablePath("fluss", name)
                descriptor = blocking.TableDescriptor(blocking.Schema(schema), bucket_count=bucket_count)
                connection.get_admin().create_table(path, descriptor)
                writer = connection.get_table(path).new_append().create_writer()
                for number in range(2 * bucket_count):
                    writer.append([number])
                writer.flush()

            # A client that came before the flood has all its connections.
            append("before", 1)
            for number in range(900):
                source = (f"127.0.{number // 50 + 1}.1", 0)
                flood.append(socket.create_connection((LOCALHOST, server.port), source_address=source))
            process = psutil.Process(server.process_id)
            eventually(lambda: "has its limit of" in server.log_text)
            assert process.num_fds() < 512
            append("during", 200)
        for client in flood:
            client.close()
        assert "Too many open files" not in server.log_text
