"""Credentials of a server are asked for once for all scans, replaced before they end, and never shown.
Shown with tokens of our own making; files behind HTTP are in tests/integration/test_object_store_reads.py."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fluss.client.kernel.remote_storage import RemoteStorage
from fluss.errors import ErrorCode, FlussError
from fluss.net.transport import run
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.storage.remote import file_systems

LOCATION = "s3://bucket/log/0.log"
CREDENTIALS = {"access_key_id": "who", "access_key_secret": "secret word", "security_token": "session word"}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The properties of each file system that is opened; no store is asked."""
    found: list[dict[str, str]] = []

    def opened(location: str, options: file_systems.FileSystemOptions) -> object:
        found.append(dict(options._properties))
        return object()

    monkeypatch.setattr(file_systems, "arrow_file_system", opened)
    return found


class Tokens:
    """Answers as a server does, and counts."""

    def __init__(self, *answers: Any) -> None:
        self.count = 0
        self._answers = answers

    async def __call__(self) -> pb.GetFileSystemSecurityTokenResponse:
        answer = self._answers[min(self.count, len(self._answers) - 1)]
        self.count += 1
        await asyncio.sleep(0)
        if isinstance(answer, FlussError):
            raise answer
        response: pb.GetFileSystemSecurityTokenResponse = answer
        return response


def token(expires_s: float | None = None, credentials: bytes | None = None) -> pb.GetFileSystemSecurityTokenResponse:
    response = pb.GetFileSystemSecurityTokenResponse(
        schema="s3", token=json.dumps(CREDENTIALS).encode() if credentials is None else credentials
    )
    response.addition_info.add(key="fs.s3a.endpoint", value="http://store:9000")
    response.addition_info.add(key="fs.s3a.path.style.access", value="true")
    response.addition_info.add(key="fs.something.new", value="x")
    if expires_s is not None:
        response.expiration_time = int(expires_s * 1000)
    return response


def test_one_token_is_for_all_and_the_next_is_asked_for_before_it_ends(given: list[dict[str, str]]) -> None:
    tokens = Tokens(token(expires_s=1_000_010), token())

    async def main() -> None:
        # A token of which ten seconds are left is good for eight.
        storage = RemoteStorage(clock=lambda: 1_000_000.0)
        await asyncio.gather(*(storage.opener(LOCATION, tokens) for _ in range(5)))
        await storage.opener(LOCATION, tokens)
        assert tokens.count == 1
        [(key, system)] = storage._systems.items()
        now_s = asyncio.get_running_loop().time()
        assert now_s < system.renewed_at_s <= now_s + 8
        storage._systems[key] = type(system)(system.arrow, now_s)
        await storage.opener(LOCATION, tokens)
        assert tokens.count == 2
        storage.refused(LOCATION)
        await storage.opener(LOCATION, tokens)
        assert tokens.count == 3
        await storage.close()

    run(main())
    assert given[0] == {
        "s3.endpoint": "http://store:9000",
        "s3.path.style.access": "true",
        "s3.access-key": "who",
        "s3.secret-key": "secret word",
        "s3.session-token": "session word",
    }


@pytest.mark.parametrize("code", [ErrorCode.SECURITY_TOKEN_EXCEPTION, ErrorCode.UNSUPPORTED_VERSION])
def test_without_a_token_the_machine_has_to_know(given: list[dict[str, str]], code: ErrorCode) -> None:
    async def main() -> None:
        storage = RemoteStorage()
        await storage.opener(LOCATION, Tokens(FlussError("there is none", code)))
        await storage.close()

    run(main())
    assert given == [{}]


@pytest.mark.parametrize("text", [b"secret word", b'["secret word"]'])
def test_a_token_that_is_none_is_refused_without_showing_it(given: list[dict[str, str]], text: bytes) -> None:
    async def main() -> None:
        storage = RemoteStorage()
        with pytest.raises(FlussError, match="a form that is not known here") as error:
            await storage.opener(LOCATION, Tokens(token(credentials=text)))
        assert "secret" not in error.value.message
        with pytest.raises(FlussError, match="the server said no"):
            await storage.opener(LOCATION, Tokens(FlussError("the server said no", ErrorCode.AUTHORIZATION_EXCEPTION)))
        await storage.close()

    run(main())
    assert given == []
