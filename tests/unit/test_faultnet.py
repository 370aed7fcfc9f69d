"""The bad network does what it is told and nothing else: bytes pass unchanged, up to the place where they are cut.
Shown with an echo server behind it and plain sockets in front of it."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fluss.testing.faultnet import FaultProxy, Faults
from fluss.testing.waiting import eventually
from tests.open_files import lasting_threads, open_files

TIMEOUT_S = 120


@pytest.fixture
def echo_port() -> Iterator[int]:
    """The port of a server that sends back what it gets."""

    def serve(client: socket.socket) -> None:
        try:
            with client:
                while data := client.recv(65536):
                    client.sendall(data)
        except OSError:
            pass

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def proxy(echo_port: int) -> Iterator[FaultProxy]:
    with FaultProxy(seed=7) as running:
        running.upstream_port = echo_port
        yield running


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT_S)


def exchange(proxy: FaultProxy, data: bytes) -> bytes:
    """Send everything, end, and return what comes back before the end or a reset."""
    received = bytearray()
    # A reset may come before connecting is over, too.
    with suppress(ConnectionError), connect(proxy) as client:
        sender = threading.Thread(target=send_all, args=(client, data))
        sender.start()
        try:
            while piece := client.recv(65536):
                received += piece
        finally:
            sender.join()
    return bytes(received)


def send_all(client: socket.socket, data: bytes) -> None:
    try:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_without_faults_everything_passes_in_both_directions(proxy: FaultProxy) -> None:
    data = os.urandom(3_000_000)
    assert exchange(proxy, data) == data
    assert (proxy.connection_count, proxy.cut_count) == (1, 0)


def test_a_connection_is_cut_after_its_number_of_bytes(proxy: FaultProxy) -> None:
    proxy.faults = Faults(cut_after_bytes=(1000, 1000))
    data = os.urandom(600)
    received = exchange(proxy, data)
    # 600 bytes went to the server, 400 came back. A reset may throw away what was not read.
    assert data.startswith(received)
    assert len(received) <= 400
    assert proxy.cut_count == 1
    assert exchange(proxy, data[:500]) == data[:500]
    assert proxy.cut_count == 2, "also at its very end"


def test_the_same_seed_cuts_at_the_same_places(echo_port: int) -> None:
    def lengths(seed: int) -> list[int]:
        cut = []
        with FaultProxy(seed=seed, faults=Faults(cut_after_bytes=(1, 50_000))) as proxy:
            proxy.upstream_port = echo_port
            for _ in range(5):
                with connect(proxy) as client:
                    cut.append(bytes_until_cut(client))
        return cut

    first = lengths(3)
    assert first == lengths(3)
    assert first != lengths(4)
    assert len(set(first)) > 2


def bytes_until_cut(client: socket.socket) -> int:
    """Send a little and wait for it to come back, again and again; count until that fails."""
    passed = 0
    try:
        while True:
            client.sendall(b"x" * 100)
            needed = 100
            while needed:
                piece = client.recv(needed)
                if not piece:
                    return passed
                needed -= len(piece)
            passed += 100
    except ConnectionError:
        return passed


def test_pieces_are_delayed(proxy: FaultProxy) -> None:
    proxy.faults = Faults(delay_s=(0.05, 0.05))
    begun = time.monotonic()
    assert exchange(proxy, b"hello") == b"hello"
    assert time.monotonic() - begun >= 0.1


def test_a_stalled_network_passes_nothing_until_it_heals(proxy: FaultProxy) -> None:
    proxy.faults = Faults(stalls=True)
    with connect(proxy) as client:
        client.sendall(b"hello")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(5)
        proxy.faults = Faults()
        client.settimeout(TIMEOUT_S)
        assert client.recv(5) == b"hello"


def test_connections_are_refused_and_cut_on_demand(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
        proxy.cut_all()
        with pytest.raises(ConnectionResetError):
            client.recv(5)
    proxy.faults = Faults(refuses=True)
    assert exchange(proxy, b"hello") == b""
    proxy.faults = Faults()
    assert exchange(proxy, b"hello") == b"hello"


def test_a_server_that_is_not_there_is_a_reset(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        proxy.upstream_port = unused.getsockname()[1]
    assert exchange(proxy, b"hello") == b""


def test_stopping_leaves_neither_threads_nor_descriptors(echo_port: int) -> None:
    threads, files = lasting_threads(), len(open_files())
    for _ in range(3):
        with FaultProxy(seed=1) as proxy:
            proxy.upstream_port = echo_port
            exchange(proxy, b"x")
    # The server's thread for the last connection may need a moment.
    eventually(lambda: lasting_threads() <= threads and len(open_files()) <= files)
    proxy.stop()


def test_a_client_that_resets_its_connection_ends_the_one_to_the_server_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, FaultProxy(seed=7) as proxy:
        proxy.upstream_port = listening.getsockname()[1]
        client = connect(proxy)
        client.sendall(b"hello")
        server, _ = listening.accept()
        with server:
            server.settimeout(TIMEOUT_S)
            assert server.recv(5) == b"hello"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            with suppress(ConnectionResetError):
                assert server.recv(1) == b""
