"""After a flood a server is what it was before: its memory is given back, its places are free."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import psutil
import pytest

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
