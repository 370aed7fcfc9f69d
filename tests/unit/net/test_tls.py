"""TLS between a channel and a listener, on both kinds of event loop: what is carried, who is who, what is refused."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from fluss.errors import AuthenticationError, FlussError, NetworkError
from fluss.net import tls as tls_module
from fluss.net.channel import Channel
from fluss.net.listener import Listener, ListenerSettings
from fluss.net.tls import (
    ClientAuth,
    ClientTls,
    PrincipalRule,
    ServerCertificate,
    ServerTls,
    TlsVersion,
    certificate_principal,
)
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import ANONYMOUS, Credentials, UserTable
from fluss.testing.certificates import IssuedCertificate, ThrowawayCa
from fluss.testing.waiting import eventually_async

HOST = "127.0.0.1"


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="session")
def server(ca: ThrowawayCa) -> IssuedCertificate:
    return ca.issue("server", names=["localhost", HOST])


@pytest.fixture(scope="session")
def alice(ca: ThrowawayCa) -> IssuedCertificate:
    return ca.issue("alice", subject="/O=Example, Inc./OU=billing/CN=alice", names=["spiffe://example/alice"])


def _listener(issued: IssuedCertificate, users: UserTable | None = None, **settings: object) -> Listener:
    tls = ServerTls(issued.certificate_file, issued.key_file, **settings)
    names: list[str] = []

    def list_databases(context, request):
        names.append(context.principal.name)
        return pb.ListDatabasesResponse(database_name=names[-1:])

    def echo(context, request):
        # A path of any length is as good as any other payload.
        return pb.DatabaseExistsResponse(exists=len(request.database_name) > 0)

    handlers = {ApiKey.LIST_DATABASES: list_databases, ApiKey.DATABASE_EXISTS: echo}
    return Listener(ListenerSettings(certificate=ServerCertificate(tls), check_credentials=users), handlers)


def _client(ca: ThrowawayCa, shown: IssuedCertificate | None = None, **settings: object) -> ClientTls:
    files = {} if shown is None else {"certificate": str(shown.certificate_file), "key": str(shown.key_file)}
    return ClientTls(ca=str(ca.certificate_file), **{**files, **settings})


async def _name(port: int, tls: ClientTls, credentials: Credentials | None = None, host: str = HOST) -> str:
    """Return whom the server takes this client for."""
    async with await Channel.connect(host, port, tls=tls.load(), credentials=credentials) as channel:
        response = await channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=60)
        return response.database_name[0]


async def _refusal(port: int, tls: ClientTls | None, host: str = HOST) -> FlussError:
    with pytest.raises(FlussError) as raised:
        async with await Channel.connect(host, port, tls=None if tls is None else tls.load()) as channel:
            await channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=60)
    return raised.value


async def test_a_client_without_a_certificate_is_anonymous_and_one_with_is_whom_it_names(ca, server, alice):
    async with _listener(server, client_auth=ClientAuth.REQUESTED, client_ca_file=ca.certificate_file) as listener:
        assert await _name(listener.port, _client(ca)) == ANONYMOUS.name
        assert await _name(listener.port, _client(ca, alice)) == "alice"
        assert await _name(listener.port, _client(ca, alice), host="localhost") == "alice"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (PrincipalRule.CN, "alice"),
        (PrincipalRule.DN, "CN=alice,OU=billing,O=Example\\, Inc."),
        (PrincipalRule.SAN, "spiffe://example/alice"),
    ],
)
async def test_the_part_of_the_certificate_that_counts_can_be_chosen(ca, server, alice, rule, expected):
    tls = {"client_auth": ClientAuth.REQUIRED, "client_ca_file": ca.certificate_file, "principal_rule": rule}
    async with _listener(server, **tls) as listener:
        assert await _name(listener.port, _client(ca, alice)) == expected


async def test_where_users_log_in_the_login_counts_and_the_certificate_is_needed_as_well(ca, server, alice):
    tls = {"client_auth": ClientAuth.REQUIRED, "client_ca_file": ca.certificate_file}
    async with _listener(server, UserTable({"bob": "pw"}), **tls) as listener:
        assert await _name(listener.port, _client(ca, alice), Credentials("bob", "pw")) == "bob"
        with pytest.raises(AuthenticationError, match="asks for a client's certificate"):
            await _name(listener.port, _client(ca), Credentials("bob", "pw"))
        with pytest.raises(AuthenticationError, match="wrong user name"):
            await _name(listener.port, _client(ca, alice), Credentials("bob", "no"))


async def test_certificates_may_be_texts_that_travel_with_the_options(ca, server, alice):
    texts = ClientTls(
        ca=ca.certificate_file.read_text(),
        certificate=alice.certificate_file.read_text(),
        key=alice.key_file.read_text().replace("\n", "\\n"),
    )
    async with _listener(server, client_auth=ClientAuth.REQUIRED, client_ca_file=ca.certificate_file) as listener:
        assert await _name(listener.port, texts) == "alice"
    together = ClientTls(certificate=alice.certificate_file.read_text() + alice.key_file.read_text())
    assert together.load() is not None
    assert "PRIVATE" not in repr(texts)


async def test_large_messages_pass_whole_in_both_directions(ca, server):
    name = "x" * (5 * 1024 * 1024 + 7)
    async with (
        _listener(server) as listener,
        await Channel.connect(HOST, listener.port, tls=_client(ca).load()) as channel,
    ):
        request = pb.DatabaseExistsRequest(database_name=name)
        answers = await asyncio.gather(
            *(channel.request(apis.DATABASE_EXISTS, request, timeout_s=120) for _ in range(8))
        )
        assert [answer.exists for answer in answers] == [True] * 8


async def test_a_reader_that_pauses_gets_everything_in_order(ca, server):
    """Answers that the client does not take wait at the server, and none is lost or written before its time."""
    count, size = 40, 512 * 1024
    handlers = {ApiKey.LIST_DATABASES: lambda context, request: pb.ListDatabasesResponse(database_name=["y" * size])}
    tls = ServerTls(server.certificate_file, server.key_file)
    async with Listener(ListenerSettings(certificate=ServerCertificate(tls)), handlers) as listener:
        async with await Channel.connect(HOST, listener.port, tls=_client(ca).load()) as channel:
            assert channel._transport is not None
            channel._transport.pause_reading()
            calls = [
                asyncio.create_task(channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=120))
                for _ in range(count)
            ]
            await eventually_async(lambda: listener.shared.answer_memory.used_bytes > size)
            channel._transport.resume_reading()
            for answer in await asyncio.gather(*calls):
                assert answer.database_name == ["y" * size]
        await eventually_async(lambda: listener.shared.answer_memory.used_bytes == 0)


# What is refused, and in which words


async def test_a_plaintext_client_of_a_tls_listener_is_told_so(ca, server):
    async with _listener(server) as listener:
        error = await _refusal(listener.port, None)
    assert isinstance(error, AuthenticationError)
    assert "set 'security.protocol' to ssl or sasl_ssl" in error.message


async def test_a_tls_client_of_a_plaintext_listener_is_told_so(ca):
    async with Listener(ListenerSettings(), {}) as listener:
        error = await _refusal(listener.port, _client(ca))
    assert not error.is_retriable
    assert "does not speak TLS; use the address of its TLS listener" in error.message


async def test_a_server_that_cannot_be_trusted_is_refused_with_the_next_step(ca, other_ca, server):
    expired = ca.issue("expired", names=[HOST], days=-1)
    async with _listener(server) as listener, _listener(expired) as stale:
        for port, tls, host, expected in (
            (listener.port, _client(other_ca), HOST, "set 'security.ssl.ca' to the certificate of the CA"),
            (listener.port, ClientTls(), HOST, "set 'security.ssl.ca' to the certificate of the CA"),
            (listener.port, _client(ca, server_name="elsewhere"), HOST, "set 'security.ssl.server-name'"),
            (stale.port, _client(ca), HOST, "has expired; renew it on the server"),
        ):
            error = await _refusal(port, tls, host)
            assert expected in error.message
            assert not error.is_retriable, "trying again does not help"


async def test_the_name_to_be_verified_can_be_given_or_waived(ca):
    elsewhere = ca.issue("elsewhere", names=["elsewhere.example.org"])
    async with _listener(elsewhere) as listener:
        assert "is for another name" in (await _refusal(listener.port, _client(ca))).message
        assert await _name(listener.port, _client(ca, server_name="elsewhere.example.org")) == ANONYMOUS.name
        assert await _name(listener.port, _client(ca, verify_hostname=False)) == ANONYMOUS.name


async def test_a_client_whose_certificate_is_not_trusted_does_not_come_in(ca, other_ca, server):
    mallory = other_ca.issue("mallory")
    async with _listener(server, client_auth=ClientAuth.REQUESTED, client_ca_file=ca.certificate_file) as listener:
        error = await _refusal(listener.port, _client(ca, mallory))
        assert isinstance(error, NetworkError)
        assert "certificate" in error.message
        await eventually_async(lambda: listener.connection_count == 0)


async def test_a_version_that_is_too_old_is_refused(ca, server, monkeypatch):
    import ssl

    context = _client(ca).load()
    context.context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with _listener(server, min_version=TlsVersion.V1_3) as listener:
        with pytest.raises(FlussError):
            await Channel.connect(HOST, listener.port, tls=context)
    async with _listener(server) as listener, await Channel.connect(HOST, listener.port, tls=context) as channel:
        await channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=60)


@pytest.mark.parametrize(
    ("certificate", "expected"),
    [
        ({"subject": ()}, "0 entries"),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, "2 entries"),
        ({"subject": ((("commonName", "anonymous"),),)}, "no user can have"),
        ({"subject": ((("commonName", "*"),),)}, "no user can have"),
        ({"subject": ((("commonName", "a\nb"),),)}, "no user can have"),
    ],
)
def test_a_certificate_that_names_nobody_is_refused(certificate, expected):
    with pytest.raises(AuthenticationError, match=expected):
        certificate_principal(certificate, PrincipalRule.CN)


def test_files_that_cannot_be_used_are_refused_with_what_is_wrong(ca, server, alice, tmp_path):
    encrypted = ca.issue("encrypted", key_password="pass")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    password = tmp_path / "password"
    password.write_text("pass\n")
    for tls, expected in (
        (ServerTls(Path("missing.pem")), "missing.pem cannot be read: No such file"),
        (ServerTls(server.certificate_file, alice.key_file), "they do not belong together"),
        (ServerTls(server.certificate_file), "a certificate and a private key are needed"),
        (ServerTls(nothing, server.key_file), "a certificate and a private key are needed"),
        (ServerTls(encrypted.certificate_file, encrypted.key_file), "password is missing or wrong"),
        (ServerTls(encrypted.certificate_file, encrypted.key_file, "wrong"), "password is missing or wrong"),
        (
            ServerTls(
                server.certificate_file, server.key_file, client_auth=ClientAuth.REQUIRED, client_ca_file=nothing
            ),
            "holds no certificate of a CA",
        ),
        (ClientTls(ca="missing.pem"), "'security.ssl.ca': missing.pem cannot be read"),
        (ClientTls(ca=str(nothing)), "holds no certificate of a CA"),
        (_client(ca, alice, key="missing.key"), "'security.ssl.key': missing.key cannot be read"),
        (_client(ca, alice, key=str(server.key_file)), "they do not belong together"),
    ):
        with pytest.raises(FlussError, match=expected):
            tls.load()
    assert ServerTls(encrypted.certificate_file, encrypted.key_file, "pass").load()
    assert ServerTls(encrypted.certificate_file, encrypted.key_file, key_password_file=password).load()


# What clients cost before they have come in


async def test_a_client_that_does_not_finish_its_handshake_is_gone_after_a_while(ca, server):
    async with _listener(server, handshake_timeout_s=0.2) as listener:
        for first in (b"", b"\x16", b"\x16\x03\x01\x02\x00"):
            with socket.create_connection((HOST, listener.port)) as client:
                client.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(client, first)
                with suppress(ConnectionResetError):
                    assert await loop.sock_recv(client, 100) == b""
        await eventually_async(lambda: listener._server.pending_count == 0)
        assert await _name(listener.port, _client(ca)) == ANONYMOUS.name


async def test_handshakes_count_as_connections_and_what_is_beyond_the_limit_costs_none(ca, server):
    tls = ServerTls(server.certificate_file, server.key_file)
    settings = ListenerSettings(certificate=ServerCertificate(tls), connections_max=3)
    async with Listener(settings, {}) as listener:
        silent = [socket.create_connection((HOST, listener.port)) for _ in range(3)]
        await eventually_async(lambda: listener._server.pending_count == 3)
        with pytest.raises(NetworkError):
            await Channel.connect(HOST, listener.port, tls=_client(ca).load())
        assert listener._server.pending_count == 3
        silent[0].close()
        await eventually_async(lambda: listener._server.pending_count == 2)
        channel = await Channel.connect(HOST, listener.port, tls=_client(ca).load())
        await channel.close()
        for connection in silent:
            connection.close()


async def test_handshakes_take_turns_so_that_a_flood_of_them_leaves_the_server_time(ca, server):
    async with _listener(server) as listener:
        acceptor, loop = listener._server, asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(100):
            waiting = asyncio.ensure_future(acceptor._wait_for_turn())
            await asyncio.sleep(0)
            waiting.cancel()
        now_s = loop.time()
        assert now_s + acceptor._turns.wait_s(now_s) - began_s >= 99 / 250 - 1e-6


async def test_a_listener_that_stops_leaves_no_handshake_behind(ca, server):
    listener = _listener(server)
    await listener.start()
    with socket.create_connection((HOST, listener.port)):
        await eventually_async(lambda: listener._server.pending_count == 1)
        await listener.stop()
        assert listener._server.pending_count == 0


# A certificate that is renewed


def test_a_certificate_that_could_not_be_read_for_a_moment_is_read_again(ca, tmp_path, monkeypatch):
    """For want of descriptors, say: its files do not change any more when there are some again."""
    tls = ServerTls(tmp_path / "now.pem", tmp_path / "now.key")

    def put(issued: IssuedCertificate) -> None:
        tls.certificate_file.write_bytes(issued.certificate_file.read_bytes())
        tls.key_file.write_bytes(issued.key_file.read_bytes())

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    put(ca.issue("first", names=[HOST]))
    certificate = ServerCertificate(tls)
    before = certificate.context
    put(ca.issue("second", names=[HOST]))
    with monkeypatch.context() as patch:
        patch.setattr(tls_module, "open", refuse, raising=False)
        for _ in range(2):
            with pytest.raises(FlussError, match="Too many open files"):
                certificate.renew()
    assert certificate.context is before
    assert certificate.renew()
    assert certificate.context is not before
    assert not certificate.renew()


async def test_new_connections_get_the_new_certificate_and_others_stay(ca, other_ca, tmp_path):
    first, second = ca.issue("first", names=[HOST]), other_ca.issue("second", names=[HOST])
    tls = ServerTls(tmp_path / "now.pem", tmp_path / "now.key")

    def put(issued: IssuedCertificate) -> None:
        tls.certificate_file.write_bytes(issued.certificate_file.read_bytes())
        tls.key_file.write_bytes(issued.key_file.read_bytes())

    put(first)
    certificate = ServerCertificate(tls)
    handlers = {ApiKey.LIST_DATABASES: lambda context, request: pb.ListDatabasesResponse()}
    async with Listener(ListenerSettings(certificate=certificate), handlers) as listener:
        before = await Channel.connect(HOST, listener.port, tls=_client(ca).load())
        assert not certificate.renew(), "nothing has changed"
        tls.certificate_file.write_text("broken")
        with pytest.raises(FlussError):
            certificate.renew()
        assert not certificate.renew(), "it is still the same broken file"
        await (await Channel.connect(HOST, listener.port, tls=_client(ca).load())).close()
        put(second)
        assert certificate.renew()
        await (await Channel.connect(HOST, listener.port, tls=_client(other_ca).load())).close()
        assert "not signed by a CA" in (await _refusal(listener.port, _client(ca))).message
        await before.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=60)
        await before.close()


def test_names_that_differ_behind_their_last_dot_have_certificates_of_their_own(ca: ThrowawayCa) -> None:
    smith, jones = ca.issue("alice.smith"), ca.issue("alice.jones")
    for first, second in ((smith.certificate_file, jones.certificate_file), (smith.key_file, jones.key_file)):
        assert first.read_bytes() != second.read_bytes()
