"""HTTP of a real server: metrics, health, the API, and who may have them."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import fluss
from fluss.errors import FlussError
from fluss.net.login_throttle import _ADDRESS_GUESSES
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.testing.certificates import ThrowawayCa
from fluss.testing.waiting import eventually_async

EVENTS, USERS = "fluss.events", "fluss.users"
HOSTILE = '<img src=x onerror="alert(1)">'


def options(data_dir: Path, **more: object) -> ServerOptions:
    given = {"data.dir": str(data_dir), "bind.listeners": "FLUSS://127.0.0.1:0", "http.listener": "0"}
    return ServerOptions(given | {key.replace("_", "."): value for key, value in more.items()})


def secured(data_dir: Path, **more: object) -> ServerOptions:
    given = {
        "data.dir": str(data_dir),
        "bind.listeners": "FLUSS://127.0.0.1:0",
        "http.listener": "0",
        "security.protocol.map": "FLUSS:SASL",
        "security.sasl.plain.credentials": "admin:admin-secret,alice:alice-secret",
        "authorizer.enabled": True,
        "super.users": "User:admin",
    }
    return ServerOptions(given | more)


@asynccontextmanager
async def browser(server: FlussServer, **arguments: object):
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(server.http_url, cookie_jar=jar, **arguments) as session:
        yield session


async def get(session: aiohttp.ClientSession, path: str, status: int = 200, **arguments: object):
    async with session.get(path, **arguments) as answer:
        body = await answer.text()
        assert answer.status == status, body
        return json.loads(body) if answer.content_type == "application/json" else body


async def log_in(session: aiohttp.ClientSession, user: str, password: str, status: int = 200):
    async with session.post("/api/login", json={"user": user, "password": password}) as answer:
        assert answer.status == status, await answer.text()
        return answer


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def connect(server: FlussServer, **more: str):
    return fluss.FlussConnection.create({"bootstrap.servers": f"127.0.0.1:{server.listeners[0].port}"} | more)


async def create_tables(connection: fluss.FlussConnection) -> None:
    admin = connection.get_admin()
    log = fluss.Schema(pa.schema([("n", pa.int64()), ("text", pa.string())]))
    await admin.create_table(EVENTS, fluss.TableDescriptor(log, bucket_count=2, comment=HOSTILE))
    keyed = pa.schema([pa.field("id", pa.int32(), nullable=False), ("name", pa.string())])
    await admin.create_table(USERS, fluss.TableDescriptor(fluss.Schema(keyed, primary_keys=["id"])))
    writer = (await connection.get_table(EVENTS)).new_append_writer()
    writer.write_arrow(pa.table({"n": range(1000), "text": [HOSTILE] * 1000}, schema=log.to_arrow()))
    await writer.flush()
    upserts = (await connection.get_table(USERS)).new_upsert().create_writer()
    for number in range(20):
        upserts.upsert({"id": number, "name": f"user {number}"})
    await upserts.flush()
    upserts.upsert({"id": 7, "name": "renamed"})
    await upserts.flush()


async def test_everything_there_is_to_see(tmp_path: Path) -> None:
    async with FlussServer(options(tmp_path)) as server, browser(server) as page:
        async with await connect(server) as connection:
            await create_tables(connection)
            assert await get(page, "/health") == {"status": "green", "alive": True, "ready": True, "reasons": []}
            assert await get(page, "/health/live")
            assert await get(page, "/health/ready")
            assert (await get(page, "/api/session"))["needs_login"] is False
            assert (await get(page, "/api/databases"))["databases"][0]["tables"] == 2
            assert (await get(page, "/api/tables?search=EVE"))["tables"] == [{"database": "fluss", "table": "events"}]
            table = await get(page, "/api/tables/fluss/events")
            assert (table["comment"], table["columns"][0]["name"], table["buckets"]) == (HOSTILE, "n", 2)
            buckets = (await get(page, "/api/tables/fluss/events/buckets?limit=1&offset=1"))["buckets"]
            assert [bucket["bucket"] for bucket in buckets] == [1]
            ends = [each["end"] for each in (await get(page, "/api/tables/fluss/events/buckets"))["buckets"]]
            assert sum(ends) == 1000
            # The newest rows of a log, with and without a filter.
            found = await get(page, "/api/tables/fluss/events/rows", params={"limit": 5})
            assert len(found["rows"]) == 5
            assert found["rows"][0][-1] == HOSTILE
            found = await get(page, "/api/tables/fluss/events/rows", params={"filter": "n = 17"})
            assert [row[2] for row in found["rows"]] == [17]
            # The rows of a table with a key, its changes, and one of them.
            found = await get(page, "/api/tables/fluss/users/rows", params={"filter": "id >= 18"})
            assert sorted(row[0] for row in found["rows"]) == [18, 19]
            found = await get(page, "/api/tables/fluss/users/rows", params={"filter": "id > 100"})
            assert found["rows"] == []
            assert len((await get(page, "/api/tables/fluss/users/rows"))["rows"]) == 20
            changes = (await get(page, "/api/tables/fluss/users/changes?limit=2"))["rows"]
            assert [change[0] for change in changes] == ["update_after", "update_before"]
            found = await get(page, "/api/tables/fluss/users/lookup", params={"key": '{"id": "7"}'})
            assert found == {"row": {"id": 7, "name": "renamed"}}
            found = await get(page, "/api/tables/fluss/users/lookup", params={"key": '{"id": 99}'})
            assert found == {"row": None}
            assert (await get(page, "/api/tables/fluss/users/consumers")) == {"consumers": []}
            assert (await get(page, "/api/tables/fluss/users/storage"))["lake"] is None
            connections = (await get(page, "/api/connections"))["connections"]
            assert connections[0]["requests"] > 0
            assert connections[0]["address"].startswith("127.0.0.1:")
        config = {each["key"]: each for each in (await get(page, "/api/config"))["options"]}
        assert config["http.listener"] == {"key": "http.listener", "value": "0", "origin": "argument"}
        assert "lines" in await get(page, "/api/logs?level=warning&search=x")

        # What is wrong is said in a sentence.
        for path, status in (
            ("/api/tables/fluss/nothing", 404),
            ("/api/tables/fluss/events/rows?filter=nothing", 400),
            ("/api/tables/fluss/events/rows?limit=x", 400),
            ("/api/tables/fluss/users/lookup?key=x", 400),
            ("/api/tables/fluss/users/lookup?key=%7B%22id%22%3A%22x%22%7D", 400),
            ("/api/nothing", 404),
            ("/static/../site.py", 404),
        ):
            assert (await get(page, path, status))["error"]
        async with page.post("/api/tables/fluss/events") as answer:
            assert answer.status == 405


async def test_metrics_can_be_parsed_and_count_requests(tmp_path: Path) -> None:
    async with FlussServer(options(tmp_path)) as server, browser(server) as page:
        async with await connect(server) as connection:
            await create_tables(connection)

        async def requests_by_api() -> dict[str, float]:
            families = {each.name: each for each in text_string_to_metric_families(await get(page, "/metrics"))}
            assert families["fluss_request_seconds"].type == "histogram"
            assert families["fluss_buckets"].samples[0].value == 3
            if "fluss_tabletserver_request_produceLog_requestsPerSecond" not in families:
                return {}
            return {sample.labels["api"]: sample.value for sample in families["fluss_requests"].samples}

        counted = await eventually_async(requests_by_api)
        assert counted["produceLog"] >= 1
        assert counted["createTable"] == 2

        async def overview_with_writes() -> dict[str, Any]:
            overview = await get(page, "/api/overview")
            return overview if {each["api"] for each in overview["apis"]} >= {"produceLog", "putKv"} else {}

        overview = await eventually_async(overview_with_writes)
        assert overview["tables"] == 2
        assert len(overview["series"]["requests_per_s"]) == len(overview["series"]["time_ms"])


async def test_a_live_tail(tmp_path: Path) -> None:
    async with (
        FlussServer(options(tmp_path)) as server,
        browser(server) as page,
        await connect(server) as connection,
    ):
        await create_tables(connection)
        async with page.get("/api/tables/fluss/users/tail", params={"filter": "id = 3"}) as answer:
            assert answer.content_type == "text/event-stream"
            messages = (json.loads(line[6:]) async for line in answer.content if line.startswith(b"data: "))
            assert (await anext(messages))["rows"] == []
            upserts = (await connection.get_table(USERS)).new_upsert().create_writer()
            for number in (2, 3):
                upserts.upsert({"id": number, "name": HOSTILE})
            await upserts.flush()
            found = (await anext(messages))["rows"]
            assert {(row[0], row[3]) for row in found} <= {("update_before", 3), ("update_after", 3)}
            # One session has only so many.
            others = [await page.get("/api/tables/fluss/users/tail") for _ in range(3)]
            assert [other.status for other in others] == [200, 200, 429]
            for other in others:
                other.close()


async def test_what_every_answer_carries(tmp_path: Path) -> None:
    async with FlussServer(options(tmp_path, http_hosts="proxy.example")) as server, browser(server) as page:
        for path in ("/", "/metrics", "/health", "/api/overview", "/nothing", "/static/nothing"):
            async with page.get(path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        # A foreign page whose name leads here must not read anything.
        refused = await get(page, "/api/overview", 400, headers={"Host": "evil.example"})
        assert "http.hosts" in refused["error"]
        await get(page, "/api/overview", headers={"Host": "localhost:1"})
        await get(page, "/api/overview", headers={"Host": "proxy.example"})


async def test_it_is_off_unless_asked_for_and_says_if_a_port_is_taken(tmp_path: Path) -> None:
    async with FlussServer(ServerOptions({"data.dir": str(tmp_path), "bind.listeners": "FLUSS://127.0.0.1:0"})) as off:
        assert off.http_url is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = FlussServer(options(tmp_path, http_listener=taken.getsockname()[1]))
        with pytest.raises(FlussError, match=r"the port is in use.*http\.listener"):
            await server.start()
    for address, problem in (("0.0.0.0:0", "--insecure"), ("https://127.0.0.1:0", "certificate")):
        with pytest.raises(FlussError, match=problem):
            FlussServer(options(tmp_path, http_listener=address))


async def test_users_see_what_they_may_see(tmp_path: Path) -> None:
    async with FlussServer(secured(tmp_path)) as server:
        login = {"security.protocol": "sasl", "security.sasl.username": "admin"}
        async with await connect(server, **login, **{"security.sasl.password": "admin-secret"}) as connection:
            await create_tables(connection)
            grant = fluss.AclBinding(
                fluss.AclResource.table(fluss.TablePath.of(USERS)), "User:alice", fluss.AclOperation.READ
            )
            await connection.get_admin().create_acls([grant])
        async with browser(server) as page:
            for path in ("/api/overview", "/api/tables", "/api/config", "/api/tables/fluss/users"):
                await get(page, path, 401)
            assert (await get(page, "/api/session"))["is_open"] is False
            await get(page, "/")
            await log_in(page, "alice", "wrong", 401)
            answer = await log_in(page, "alice", "alice-secret")
            cookie = answer.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert (await get(page, "/api/session"))["user"] == "alice"
            # Alice has a right to one table, and none to the server itself.
            found = await get(page, "/api/tables?database=fluss")
            assert found["tables"] == [{"database": "fluss", "table": "users"}]
            assert len((await get(page, "/api/tables/fluss/users/rows"))["rows"]) == 20
            for path in ("overview", "config", "connections", "logs", "tables/fluss/events/rows"):
                assert (await get(page, f"/api/{path}", 403))["error"]
            # A form of a foreign page is refused.
            async with page.post("/api/logout", headers={"Origin": "https://evil.example"}) as answer:
                assert answer.status == 403
            async with page.post("/api/logout") as answer:
                assert answer.status == 200
            await get(page, "/api/tables", 401)
        # Programs send the password with each request.
        async with browser(server, headers=basic("admin", "admin-secret")) as program:
            config = {each["key"]: each["value"] for each in (await get(program, "/api/config"))["options"]}
            assert "alice-secret" not in json.dumps(config)
            assert config["security.sasl.plain.credentials"]
            assert (await get(program, "/api/overview"))["tables"] == 2


async def test_a_new_password_ends_sessions_and_guesses_are_throttled(tmp_path: Path) -> None:
    async with FlussServer(secured(tmp_path)) as server, browser(server) as page:
        login = {"security.protocol": "sasl", "security.sasl.username": "admin"}
        await log_in(page, "alice", "alice-secret")
        await get(page, "/api/tables")
        async with await connect(server, **login, **{"security.sasl.password": "admin-secret"}) as connection:
            changed = {"security.sasl.plain.credentials": "alice:another"}
            await connection.get_admin().alter_cluster_configs(set_configs=changed)
        await get(page, "/api/tables", 401)
        # The first guesses are checked at once, further ones have to wait for longer than anybody does.
        answers = await asyncio.gather(
            *(page.post("/api/login", json={"user": f"nobody {n}", "password": "x"}) for n in range(60))
        )
        statuses = [answer.status for answer in answers]
        assert set(statuses) == {401, 429}
        assert statuses.count(401) >= _ADDRESS_GUESSES


@pytest.mark.parametrize(("access", "is_open"), [("local", True), ("open", True), ("users", False)])
async def test_who_may_read_metrics(tmp_path: Path, access: str, is_open: bool) -> None:
    given = secured(tmp_path, **{"http.monitoring.access": access})
    async with FlussServer(given) as server, browser(server) as page:
        health = await get(page, "/health")
        assert ("reasons" in health) is is_open
        await get(page, "/metrics", 200 if is_open else 401)
        if not is_open:
            await get(page, "/metrics", headers=basic("admin", "admin-secret"))
            await get(page, "/metrics", 403, headers=basic("alice", "alice-secret"))


async def test_https(tmp_path: Path) -> None:
    authority = ThrowawayCa(tmp_path)
    issued = authority.issue("server", names=["localhost"])
    given = {
        "http.listener": "https://localhost:0",
        "http.session-timeout": "90 s",
        "security.ssl.listener.name.http.certificate.file": str(issued.certificate_file),
        "security.ssl.listener.name.http.key.file": str(issued.key_file),
    }
    async with FlussServer(secured(tmp_path / "data", **given)) as server, browser(server) as page:
        assert server.http_url.startswith("https://localhost:")
        trusted = ssl.create_default_context(cafile=str(authority.certificate_file))
        login = {"user": "alice", "password": "alice-secret"}
        async with page.post("/api/login", json=login, ssl=trusted) as answer:
            assert answer.status == 200
            assert "Secure" in answer.headers["Set-Cookie"]
            assert "Max-Age=90;" in answer.headers["Set-Cookie"]


async def test_the_age_of_the_backup(tmp_path: Path) -> None:
    for remote, has_backup in (("", False), (str(tmp_path / "remote"), True)):
        given = options(tmp_path / f"data-{has_backup}", **{"remote.data.dir": remote})
        async with FlussServer(given) as server, browser(server) as page:
            age_s = (await get(page, "/api/overview"))["backup_age_s"]
            assert (age_s is not None and age_s >= 0) is has_backup
            assert (await get(page, "/health"))["status"] == "green"
