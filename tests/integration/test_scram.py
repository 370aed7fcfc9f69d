"""Users log in by SCRAM-SHA-256 over real connections, beside PLAIN or instead of it, and nothing tells who exists."""

from __future__ import annotations

import asyncio
import base64
import itertools

import pytest

import fluss
from fluss import blocking, embedded
from fluss.errors import AuthenticationError, FlussError
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol import frame as frames
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, client_exchange, next_request
from fluss.protocol.stored_password import StoredPassword

SCRAM = "SCRAM-SHA-256"
HASHED = str(StoredPassword.of("hashed-secret", iterations=4096))
USERS = f"hashed:{HASHED},clear:clear-secret"
SECRETS = {"hashed": "hashed-secret", "clear": "clear-secret"}


def _server(mechanisms: str, **options: str) -> embedded.EmbeddedServer:
    return embedded.start(
        {
            "bind.listeners": "CLIENT://127.0.0.1:0",
            "security.protocol.map": "CLIENT:SASL",
            "security.sasl.enabled.mechanisms": mechanisms,
            "security.sasl.plain.credentials": USERS,
            **options,
        }
    )


def _config(server: embedded.EmbeddedServer, user: str, password: str, mechanism: str) -> fluss.Config:
    return server.config(
        security_protocol="sasl",
        security_sasl_mechanism=mechanism,
        security_sasl_username=user,
        security_sasl_password=password,
    )


def _code(server: embedded.EmbeddedServer, user: str, password: str, mechanism: str) -> int:
    """Return the code that a login fails with, 0 if it does not."""
    try:
        with blocking.FlussConnection.create(_config(server, user, password, mechanism)) as connection:
            assert connection.get_admin().database_exists("fluss")
    except FlussError as error:
        return error.error_code
    return 0


@pytest.mark.parametrize("mechanisms", ["PLAIN,SCRAM-SHA-256", "scram-sha-256", "PLAIN"])
def test_users_log_in_by_the_mechanisms_that_are_enabled(mechanisms):
    enabled = mechanisms.upper().split(",")
    with _server(mechanisms) as server:
        for user, mechanism in itertools.product(SECRETS, ("PLAIN", SCRAM)):
            expected = 0 if mechanism in enabled else 46
            assert _code(server, user, SECRETS[user], mechanism.lower()) == expected
        for user in ("hashed", "clear", "nobody"):
            assert _code(server, user, "wrong", enabled[-1]) == 46


def test_a_refused_mechanism_is_told_which_there_are():
    with _server(SCRAM) as server, pytest.raises(AuthenticationError, match="SCRAM-SHA-256; log in with that"):
        blocking.FlussConnection.create(_config(server, "clear", "clear-secret", "PLAIN"))


async def _challenge(port: int, user: str) -> bytes:
    """Send the first token for a user; return salt and iterations."""
    async with await Channel.connect("127.0.0.1", port) as channel:
        request = pb.AuthenticateRequest(protocol=SCRAM, token=f"n,,n={user},r=abc".encode())
        response = await channel.request(apis.AUTHENTICATE, request, timeout_s=60)
        return response.challenge.partition(b",")[2]


def test_a_user_that_does_not_exist_looks_like_one_that_does_also_after_a_restart():
    users = ("hashed", "clear", "nobody", "nobody2")
    with _server(SCRAM) as server:
        before = {user: run(_challenge(server.port, user)) for user in users}
        server.restart()
        assert {user: run(_challenge(server.port, user)) for user in users} == before
    assert len(set(before.values())) == len(users)
    for challenge in before.values():
        salt, _, iterations = challenge.partition(b",")
        assert len(base64.b64decode(salt.removeprefix(b"s="))) == 16
        assert iterations == b"i=4096"


async def test_a_proof_counts_once():
    """What was overheard of one login is of no use in another."""
    with _server(SCRAM) as server:
        config = _config(server, "hashed", "hashed-secret", SCRAM)
        tokens: list[bytes] = []
        exchange = client_exchange(Credentials("hashed", "hashed-secret", SCRAM))
        async with await Channel.connect("127.0.0.1", server.port) as channel:
            request = next(exchange)
            while request is not None:
                tokens.append(request.token)
                answer = await channel.request(apis.AUTHENTICATE, request, timeout_s=60)
                request = next_request(exchange, answer)
            assert len(tokens) == 2
        async with await Channel.connect("127.0.0.1", server.port) as channel:
            first, final = (pb.AuthenticateRequest(protocol=SCRAM, token=token) for token in tokens)
            await channel.request(apis.AUTHENTICATE, first, timeout_s=60)
            with pytest.raises(AuthenticationError, match="belongs to another login"):
                await channel.request(apis.AUTHENTICATE, final, timeout_s=60)
            with pytest.raises(AuthenticationError):
                await channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=60)
        assert await asyncio.to_thread(_code, server, "hashed", "hashed-secret", config.security_sasl_mechanism) == 0


async def test_a_server_that_does_not_know_the_password_is_refused():
    """A server that takes whatever it is shown cannot sign it."""

    async def pose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rounds = 0
        while data := await reader.read(65536):
            for frame in _frames(data):
                api_key, request_id, body = frame
                if api_key == apis.API_VERSIONS.key:
                    response = pb.ApiVersionsResponse()
                    response.api_versions.add(api_key=apis.AUTHENTICATE.key, min_version=0, max_version=0)
                    writer.write(_success(request_id, apis.API_VERSIONS.response.encode(response)))
                    continue
                token = apis.AUTHENTICATE.request.decode(memoryview(body)).token.decode()
                rounds += 1
                nonce = token.rpartition("r=")[2]
                salt = base64.b64encode(b"0" * 16).decode()
                challenge = f"r={nonce}more,s={salt},i=4096" if rounds == 1 else f"v={salt}"
                answer = pb.AuthenticateResponse(challenge=challenge.encode())
                writer.write(_success(request_id, apis.AUTHENTICATE.response.encode(answer)))
        writer.close()

    server = await asyncio.start_server(pose, "127.0.0.1", 0)
    with pytest.raises(AuthenticationError, match="did not prove that it knows the password"):
        await Channel.connect(
            "127.0.0.1", server.sockets[0].getsockname()[1], credentials=Credentials("bob", "secret", SCRAM)
        )
    server.close()
    await server.wait_closed()


def _frames(data: bytes) -> list[tuple[int, int, bytes]]:
    found = []
    while data:
        length = int.from_bytes(data[:4])
        frame, data = data[4 : 4 + length], data[4 + length :]
        found.append((int.from_bytes(frame[:2]), int.from_bytes(frame[4:8]), frame[8:]))
    return found


def _success(request_id: int, parts: list[bytes]) -> bytes:
    return b"".join(frames.success_frame(request_id, parts))
