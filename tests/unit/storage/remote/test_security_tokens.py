"""Clients get credentials of an object store that do not live long, and never the server's own.
Shown with a token service on a real socket, which checks that requests are signed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.net.transport import run
from fluss.storage.remote.file_systems import FileSystemOptions
from fluss.storage.remote.security_tokens import SecurityTokens, request_s3_token

NOW = datetime(2024, 9, 10, 12, tzinfo=UTC)
ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>temporary</SecretAccessKey><SessionToken>session</SessionToken>
<Expiration>2024-09-10T13:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


class TokenService(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[dict[str, list[str]], str]] = []
        self.status, self.answer = 200, ANSWER

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: TokenService

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.requests.append((parse_qs(body), self.headers["authorization"]))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[TokenService]:
    with TokenService() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def options(service: TokenService, **more: str) -> FileSystemOptions:
    keys = {"s3.access-key": "AKIA1", "s3.secret-key": "for ever", "s3.region": "eu-1", "s3.endpoint": service.endpoint}
    return FileSystemOptions(keys | {key.replace("_", "."): value for key, value in more.items()})


def test_a_session_of_the_key_is_what_clients_get(service: TokenService) -> None:
    token = request_s3_token("s3", options(service), NOW)
    [(fields, authorization)] = service.requests
    assert fields["Action"] == ["GetSessionToken"]
    assert authorization.startswith("AWS4-HMAC-SHA256 Credential=AKIA1/20240910/eu-1/sts/aws4_request, SignedHeaders=")
    assert json.loads(token.credentials) == {
        "version": 1,
        "access_key_id": "ASIA1",
        "access_key_secret": "temporary",
        "security_token": "session",
    }
    assert token.expires_ms == int(datetime(2024, 9, 10, 13, tzinfo=UTC).timestamp() * 1000)
    assert token.settings == {
        "fs.s3a.endpoint": service.endpoint,
        "fs.s3a.endpoint.region": "eu-1",
        "fs.s3a.path.style.access": "true",
    }
    assert b"for ever" not in token.credentials
    assert "temporary" not in repr(token)


def test_a_role_is_assumed_where_one_is_named(service: TokenService) -> None:
    given = {"s3.assumed.role.arn": "arn:aws:iam::1:role/reader", "s3.assumed.role.sts.endpoint": service.endpoint}
    keys = {"s3.access-key": "AKIA1", "s3.secret-key": "for ever", "s3.endpoint": "http://127.0.0.1:1"}
    request_s3_token("s3a", FileSystemOptions(keys | given), NOW)
    [(fields, _)] = service.requests
    assert (fields["Action"], fields["RoleArn"]) == (["AssumeRole"], ["arn:aws:iam::1:role/reader"])


def test_the_signature_is_the_one_that_the_service_computes(service: TokenService) -> None:
    request_s3_token("s3", options(service), NOW)
    request_s3_token("s3", options(service), NOW)
    request_s3_token("s3", options(service, s3_region="eu-2"), NOW)
    first, second, third = (authorization for _, authorization in service.requests)
    assert first == second
    assert first.rpartition("=")[2] != third.rpartition("=")[2]


@pytest.mark.parametrize(("status", "answer"), [(403, "no"), (200, "not XML"), (200, "<a/>")])
def test_a_service_that_refuses_is_code_30_without_secrets(service: TokenService, status: int, answer: str) -> None:
    service.status, service.answer = status, answer
    with pytest.raises(FlussError) as refused:
        request_s3_token("s3", options(service), NOW)
    assert refused.value.error_code == ErrorCode.SECURITY_TOKEN_EXCEPTION
    assert "for ever" not in refused.value.message


def test_without_a_key_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(FlussError, match=r"set s3\.access-key and s3\.secret-key"):
        request_s3_token("s3", FileSystemOptions({}), NOW)


def test_a_token_is_given_to_many_clients(service: TokenService) -> None:
    async def scenario() -> None:
        tokens = SecurityTokens("s3://bucket/a", options(service))
        first = await tokens.current()
        assert await tokens.current() is first

    run(scenario())
    assert len(service.requests) == 1


def test_a_directory_needs_no_token() -> None:
    async def scenario() -> None:
        for location in (None, "/data/remote"):
            token = await SecurityTokens(location, FileSystemOptions({})).current()
            assert (token.scheme, token.credentials, token.expires_ms) == ("file", b"", None)

    run(scenario())
