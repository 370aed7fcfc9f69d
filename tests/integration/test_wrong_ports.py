"""Addresses where no server of this protocol answers, and clients of another one at a server: what each is told.
Shown with ports where nothing listens, where something else does, and with HTTP requests to a server."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import fluss
from fluss import aio, blocking, embedded
from fluss.errors import NetworkError, RequestTimeoutError
from tests.ports import free_port


@contextmanager
def port_that_answers(answer: bytes) -> Iterator[int]:
    """A port that takes connections, says what it has to say, if anything, and waits."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    taken.append(listening.accept()[0])
                    taken[-1].sendall(answer)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in taken:
            connection.close()


@pytest.mark.parametrize("module", [fluss, aio, blocking], ids=lambda module: module.__name__)
def test_a_refused_connection_asks_whether_a_server_runs_there(module: Any) -> None:
    port = free_port()

    async def connect() -> None:
        created = module.FlussConnection.create(fluss.Config({"bootstrap.servers": f"127.0.0.1:{port}"}))
        if module is not blocking:
            await created

    with pytest.raises(NetworkError) as caught:
        asyncio.run(connect())
    assert caught.value.message == (
        f"no connection to 127.0.0.1:{port}: connection refused. Does a server run there? This starts one: "
        f"python -m fluss.server --data-dir ./data --port {port}"
    )


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "ssl"])
def test_a_port_that_says_nothing_is_given_up_after_one_request_timeout(protocol: str) -> None:
    with port_that_answers(b"") as port:
        config = fluss.Config(
            {"bootstrap.servers": f"127.0.0.1:{port}", "request-timeout": 200, "security.protocol": protocol}
        )
        with pytest.raises(RequestTimeoutError, match=r"said nothing for 0.2 s. It is probably not a Fluss server"):
            blocking.FlussConnection.create(config)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<!DOCTYPE HTML>\n<html>Bad request</html>\n"]
)
def test_an_http_server_is_recognised(answer: bytes) -> None:
    with port_that_answers(answer) as port:
        config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{port}"})
        with pytest.raises(NetworkError, match="the other side speaks HTTP"):
            blocking.FlussConnection.create(config)


@pytest.mark.only_here("Apache Fluss does not answer HTTP")
def test_http_on_the_port_of_the_protocol_gets_an_http_answer(server: embedded.EmbeddedServer) -> None:
    answer = http_get(port_of(server))
    assert answer.status == 400
    text = answer.read().decode()
    assert text.startswith("This port speaks the protocol of Apache Fluss, and not HTTP. ")
    assert "start the server with --http" in text


def test_the_http_answer_says_where_the_page_is() -> None:
    metrics_port = free_port()
    with embedded.start({"durability": "os", "metrics.reporter.prometheus.port": str(metrics_port)}) as other:
        page = http_get(port_of(other)).read().decode().split()[-1]
        assert page == f"http://127.0.0.1:{metrics_port}/metrics"
        assert http_get(metrics_port, "/metrics").status == 200


def port_of(server: embedded.EmbeddedServer) -> int:
    return int(server.bootstrap_servers.rpartition(":")[2])


def http_get(port: int, path: str = "/") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return connection.getresponse()
