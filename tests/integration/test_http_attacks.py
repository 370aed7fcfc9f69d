"""What strangers can do to the port of HTTP: odd requests, slow ones, many of them, guesses from a whole network."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from functools import partial
from pathlib import Path

import pytest

from fluss.net.admission import Admission
from fluss.net.burst_log import BurstLog
from fluss.net.login_throttle import _ADDRESS_GUESSES
from fluss.server import operator_view
from fluss.server.process import FlussServer
from fluss.server.tablet.manager import TabletManager
from fluss.testing.certificates import ThrowawayCa
from fluss.testing.waiting import eventually_async
from fluss.web import application
from fluss.web.http_connections import _CLOSING_S, _HEADERS_S, _UNREAD_S, HttpConnection, HttpConnections
from tests.integration.test_http import USERS, basic, browser, connect, create_tables, get, log_in, options, secured

_LOGIN = "POST /api/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def login(body: bytes) -> bytes:
    return _LOGIN.format(len(body)).encode() + body


ODD_REQUESTS = {
    "a host that is none": (b"GET /api/session HTTP/1.1\r\nHost: [\r\n\r\n", 200),
    "an origin that is none": (
        b"POST /api/logout HTTP/1.1\r\nHost: x\r\nOrigin: http://[\r\nContent-Length: 0\r\n\r\n",
        403,
    ),
    "no JSON": (login(b"{{{"), 400),
    "no text": (login(b"\xff\xfe\xfd"), 400),
    "deep JSON": (login(b"[" * 16_000), 400),
    "too much": (login(b"[" * 17_000), 413),
    "half of a character": (login(b'{"user":"\\ud800","password":"\\ud800"}'), 401),
    "bytes of no password": (b"GET /api/tables HTTP/1.1\r\nHost: x\r\nAuthorization: Basic \xff\xfe\r\n\r\n", 401),
    "a cookie of no text": (b"GET /api/tables HTTP/1.1\r\nHost: x\r\nCookie: fluss_session=\xff\xfe\r\n\r\n", 401),
    "a broken chunk": (
        b"POST /api/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        400,
    ),
    "two lengths": (
        b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "a long line": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "many headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 5000 + b"\r\n", 400),
    "a way out of the files": (b"GET /static/..%2fapplication.py HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "a line in a name": (b"GET /static/%0d%0aSet-Cookie:x HTTP/1.1\r\nHost: x\r\n\r\n", 404),
}


async def status_of(server: FlussServer, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.http_url.rpartition(":")[2]))
    try:
        writer.write(request)
        line = await reader.readline()
        return int(line.split()[1])
    finally:
        writer.close()


async def test_odd_requests_are_refused_in_few_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with FlussServer(secured(tmp_path)) as server:
        caplog.set_level(logging.INFO)
        statuses = {what: await status_of(server, request) for what, (request, _) in ODD_REQUESTS.items()}
        assert statuses == {what: status for what, (_, status) in ODD_REQUESTS.items()}
        # No traceback, and one line for all requests that are none.
        logged = [record for record in caplog.records if record.name.startswith(("fluss.web", "aiohttp"))]
        assert [record.levelname for record in logged] == ["INFO"]
        assert not logged[0].exc_info


async def test_there_are_only_so_many_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_view, "http_connections_possible", lambda: 4)
    async with FlussServer(options(tmp_path)) as server:
        port = int(server.http_url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert await status_of(server, health) == 503
        for _, writer in silent:
            writer.close()

        async def is_served() -> bool:
            return await status_of(server, health) == 200

        await eventually_async(is_served)


async def test_plaintext_on_the_port_of_https(tmp_path: Path) -> None:
    issued = ThrowawayCa(tmp_path).issue("server", names=["localhost"])
    given = {
        "http.listener": "https://127.0.0.1:0",
        "security.ssl.listener.name.http.certificate.file": str(issued.certificate_file),
        "security.ssl.listener.name.http.key.file": str(issued.key_file),
    }
    async with FlussServer(secured(tmp_path / "data", **given)) as server:
        assert await status_of(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == 400


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.is_aborted = self.is_closed = False

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed


async def test_slow_clients_are_ended() -> None:
    now_s = 100.0
    connections = HttpConnections(asyncio.Protocol, Admission(3), BurstLog(logging.getLogger(__name__)), lambda: now_s)

    def new() -> tuple[HttpConnection, _Transport]:
        connection, transport = connections.new_admitted(), _Transport()
        connections.admit("192.0.2.1")
        connection.connection_made(transport)
        return connection, transport

    for begin, limit_s in (
        (lambda connection, _: connection.data_received(b"GET"), _HEADERS_S),
        (lambda connection, _: connection.pause_writing(), _UNREAD_S),
        (lambda _, transport: setattr(transport, "is_closed", True), _CLOSING_S),
    ):
        connection, transport = new()
        begin(connection, transport)
        connections.end_slow()
        now_s += limit_s
        connection.data_received(b"one byte more")
        connections.end_slow()
        assert not transport.is_aborted
        now_s += 1
        connections.end_slow()
        assert transport.is_aborted
        connection.connection_lost(None)
    assert connections.admission.address_count == 0
    # Whoever has asked may wait, read, and ask again.
    connection, transport = new()
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    connection.request_began()
    now_s += 1000
    connection.pause_writing()
    connection.resume_writing()
    connections.end_slow()
    connection.request_ended()
    now_s += 50
    connections.end_slow()
    assert not transport.is_aborted


async def test_monitoring_is_local_for_programs_and_not_for_proxies_and_foreign_pages(tmp_path: Path) -> None:
    async with FlussServer(secured(tmp_path)) as server, browser(server) as page:
        await get(page, "/metrics")
        for headers in ({"X-Forwarded-For": "203.0.113.9"}, {"Forwarded": "for=203.0.113.9"}, {"Host": "evil.example"}):
            await get(page, "/metrics", 401, headers=headers)
            assert "reasons" not in await get(page, "/health", headers=headers)
            await get(page, "/metrics", headers=headers | basic("admin", "admin-secret"))


async def test_a_network_is_one_guesser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = (f"2001:db8::{number:x}" for number in range(10_000))
    monkeypatch.setattr(application, "_host", lambda _request: next(hosts))
    async with FlussServer(secured(tmp_path)) as server, browser(server) as page:
        guess = partial(page.post, "/api/login")
        guesses = [asyncio.create_task(guess(json={"user": f"nobody {n}", "password": "x"})) for n in range(40)]
        # A few are checked at once, a few wait for their turn, and the others are told to come back.
        answers = [await answer for answer in itertools.islice(asyncio.as_completed(guesses), 30)]
        assert {answer.status for answer in answers} == {401, 429}
        assert sum(answer.status == 401 for answer in answers) < 2 * _ADDRESS_GUESSES
        for unanswered in guesses:
            unanswered.cancel()


async def test_tails_are_counted_before_they_begin(tmp_path: Path) -> None:
    async with FlussServer(secured(tmp_path)) as server, browser(server) as page:
        admin = {"security.protocol": "sasl", "security.sasl.username": "admin"}
        async with await connect(server, **admin, **{"security.sasl.password": "admin-secret"}) as connection:
            await create_tables(connection)
            await log_in(page, "admin", "admin-secret")
            tail = f"/api/tables/{USERS.replace('.', '/')}/tail"
            answers = await asyncio.gather(*(page.get(tail) for _ in range(9)))
            assert sorted(answer.status for answer in answers) == [200] * 3 + [429] * 6
            running = [answer for answer in answers if answer.status == 200]
            assert all(answer.headers["X-Content-Type-Options"] == "nosniff" for answer in running)
            for answer in running:
                answer.close()


async def test_a_tail_ends_with_the_password_of_its_user(tmp_path: Path) -> None:
    async with FlussServer(secured(tmp_path, **{"authorizer.enabled": False, "super.users": ""})) as server:
        admin = {"security.protocol": "sasl", "security.sasl.username": "admin"}
        async with (
            browser(server) as page,
            await connect(server, **admin, **{"security.sasl.password": "admin-secret"}) as connection,
        ):
            await create_tables(connection)
            await log_in(page, "alice", "alice-secret")
            async with page.get("/api/tables/fluss/users/tail") as answer:
                assert b"columns" in await answer.content.readline()
                changed = {"security.sasl.plain.credentials": "alice:another"}
                await connection.get_admin().alter_cluster_configs(set_configs=changed)
                assert (await answer.content.read()).endswith(b"event: end\ndata: {}\n\n")


async def test_sessions_of_one_user_do_not_end_those_of_others(tmp_path: Path) -> None:
    async with FlussServer(secured(tmp_path)) as server, browser(server) as alice, browser(server) as other:
        await log_in(alice, "alice", "alice-secret")
        for _ in range(250):
            await log_in(other, "admin", "admin-secret")
        assert (await get(alice, "/api/session"))["user"] == "alice"
        assert (await get(other, "/api/session"))["user"] == "admin"


async def test_asking_for_health_is_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], TabletManager.health
    monkeypatch.setattr(TabletManager, "health", lambda manager: looks.append(1) or look(manager))
    async with FlussServer(options(tmp_path)) as server, browser(server) as page:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(100):
            assert json.loads(await (await page.get("/health/live")).text())["alive"]
        # The page looks for itself now and then, too.
        assert len(looks) <= 2 * (loop.time() - began_s) + 5
