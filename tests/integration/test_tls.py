"""TLS from a user's program to a server and back: every kind of client, users and certificates, and files that change.

The servers are real ones, and so are the sockets; a certificate authority is made for the length of the run.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded
from fluss.errors import FlussError
from fluss.testing.certificates import IssuedCertificate, ThrowawayCa
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually
from tests.pages import ROOT

ARROW_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
LISTENERS = {
    "bind.listeners": "INSIDE://127.0.0.1:0, PLAIN://127.0.0.1:0, SECRET://127.0.0.1:0, NAMED://127.0.0.1:0",
    "internal.listener.name": "INSIDE",
    "security.protocol.map": "SECRET:sasl_ssl, NAMED:ssl",
    "security.sasl.plain.credentials": "bob:bob-secret",
    "security.ssl.listener.name.named.client.auth": "required",
    "authorizer.enabled": "true",
    "super.users": "User:bob",
    "durability": "os",
}


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def alice(ca: ThrowawayCa) -> IssuedCertificate:
    return ca.issue("alice")


@pytest.fixture(scope="module")
def server(ca: ThrowawayCa) -> Iterator[embedded.EmbeddedServer]:
    """A server with a plaintext listener, one for users with passwords, and one for users with certificates."""
    issued = ca.issue("server", names=["localhost", "127.0.0.1"])
    client_ca = {"security.ssl.client.ca.file": str(ca.certificate_file)}
    with embedded.start({**LISTENERS, **issued.server_options, **client_ca}) as running:
        yield running


@pytest.fixture(scope="module")
def bob(server: embedded.EmbeddedServer, ca: ThrowawayCa) -> fluss.Config:
    return server.config(
        "SECRET",
        security_protocol="sasl_ssl",
        security_sasl_username="bob",
        security_sasl_password="bob-secret",
        security_ssl_ca=str(ca.certificate_file),
    )


def _with_certificate(server: embedded.EmbeddedServer, ca: ThrowawayCa, shown: IssuedCertificate) -> fluss.Config:
    return server.config(
        "NAMED",
        security_protocol="ssl",
        security_ssl_ca=ca.certificate_file.read_text(),
        security_ssl_certificate=str(shown.certificate_file),
        security_ssl_key=str(shown.key_file),
    )


def _read(table: blocking.FlussTable) -> pa.Table:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    return scanner.to_arrow()


def _refused(config: fluss.Config) -> FlussError:
    with pytest.raises(FlussError) as raised, blocking.FlussConnection.create(config):
        pass
    return raised.value


def test_a_blocking_client_writes_and_reads_over_tls(bob):
    path = blocking.TablePath("fluss", "tls_blocking")
    with blocking.FlussConnection.create(bob) as connection:
        connection.get_admin().create_table(path, blocking.TableDescriptor(blocking.Schema(ARROW_SCHEMA)))
        table = connection.get_table(path)
        rows = pa.table({"id": range(50_000), "name": [f"n{number}" for number in range(50_000)]}, schema=ARROW_SCHEMA)
        with table.new_append().create_writer() as writer:
            writer.write_arrow(rows)
        assert _read(table).sort_by("id").equals(rows)


async def test_an_asyncio_client_writes_and_looks_up_over_tls(bob):
    path = aio.TablePath("fluss", "tls_aio")
    schema = aio.Schema(ARROW_SCHEMA, primary_keys=["id"])
    async with await aio.FlussConnection.create(bob) as connection:
        await connection.get_admin().create_table(path, aio.TableDescriptor(schema))
        table = await connection.get_table(path)
        writer = table.new_upsert().create_writer()
        await writer.upsert([1, "one"]).wait()
        assert await table.new_lookup().create_lookuper().lookup({"id": 1}) == {"id": 1, "name": "one"}


async def test_the_default_client_speaks_tls_as_well(bob):
    async with await fluss.FlussConnection.create(bob) as connection:
        assert await connection.get_admin().database_exists("fluss")


def test_a_plaintext_listener_works_beside_those_of_tls(server):
    with blocking.FlussConnection.create(server.config("PLAIN")) as connection:
        assert connection.get_admin().list_databases() is not None


def test_acls_name_the_user_of_a_certificate(server, ca, alice, bob):
    path = blocking.TablePath("fluss", "tls_acl")
    with (
        blocking.FlussConnection.create(bob) as admin_connection,
        blocking.FlussConnection.create(_with_certificate(server, ca, alice)) as connection,
    ):
        admin = admin_connection.get_admin()
        admin.create_table(path, blocking.TableDescriptor(blocking.Schema(ARROW_SCHEMA)))
        with pytest.raises(FlussError):
            connection.get_table(path)
        for operation in (fluss.AclOperation.WRITE, fluss.AclOperation.READ, fluss.AclOperation.DESCRIBE):
            admin.create_acls([fluss.AclBinding(fluss.AclResource.table(path), "User:alice", operation)])
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.append([1, "one"])
        assert _read(table).num_rows == 1


def test_a_listener_that_requires_certificates_says_so(server, ca):
    error = _refused(server.config("NAMED", security_protocol="ssl", security_ssl_ca=str(ca.certificate_file)))
    assert error.error_code == 46
    assert "asks for a client's certificate" in error.message


def test_plaintext_and_tls_do_not_mix_and_say_so_at_once(server, ca):
    error = _refused(server.config("NAMED"))
    assert error.error_code == 46
    assert "speaks TLS; set 'security.protocol' to ssl or sasl_ssl" in error.message
    error = _refused(server.config("PLAIN", security_protocol="ssl", security_ssl_ca=str(ca.certificate_file)))
    assert "does not speak TLS" in error.message


def test_a_missing_file_is_named_before_anything_is_sent(server):
    error = _refused(server.config("NAMED", security_protocol="ssl", security_ssl_ca="nowhere.pem"))
    assert error.message == "'security.ssl.ca': nowhere.pem cannot be read: No such file or directory"


def test_a_client_may_have_an_encrypted_key(server, ca, alice):
    encrypted = ca.issue("carl", key_password="carl-key")
    config = _with_certificate(server, ca, encrypted)
    assert "password is missing or wrong" in _refused(config).message
    config.security_ssl_key_password = "carl-key"
    blocking.FlussConnection.create(config).close()
    assert "carl-key" not in repr(config)
    assert "security.ssl.key.password" in repr(config)


def test_the_name_of_a_server_can_be_waived(server, ca, bob):
    config = bob.copy()
    config.security_ssl_server_name = "elsewhere"
    assert "is for another name" in _refused(config).message
    # As with {"security.ssl.verify-hostname": "false"}.
    config.security_ssl_verify_hostname = False
    blocking.FlussConnection.create(config).close()


def test_an_encrypted_key_needs_its_password(ca, tmp_path):
    issued = ca.issue("sealed", names=["127.0.0.1"], key_password="sealed-key")
    options = {"security.protocol.map": "FLUSS:SSL", **issued.server_options}
    for password in ("", "wrong"):
        with pytest.raises(FlussError, match="its password is missing or wrong"):
            embedded.start({**options, "security.ssl.key.password": password})
    password = tmp_path / "password"
    password.write_text("sealed-key\n")
    embedded.start({**options, "security.ssl.key.password.file": str(password)}).stop()
    with embedded.start({**options, "security.ssl.key.password": "sealed-key"}) as server:
        config = server.config(security_protocol="ssl", security_ssl_ca=str(ca.certificate_file))
        blocking.FlussConnection.create(config).close()


def test_a_client_that_says_nothing_is_gone_after_the_handshake_timeout(ca):
    issued = ca.issue("impatient", names=["127.0.0.1"])
    options = {
        "security.protocol.map": "FLUSS:SSL",
        "security.ssl.handshake-timeout": "100 ms",
        **issued.server_options,
    }
    with (
        embedded.start(options) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=120) as silent,
    ):
        assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "speaks TLS, but has no certificate; set 'security.ssl.certificate.file'"),
        ({"security.ssl.certificate.file": "nowhere.pem"}, "listener FLUSS: nowhere.pem cannot be read"),
        (
            {"security.ssl.certificate.file": "nowhere.pem", "security.ssl.client.auth": "required"},
            "no CA is trusted to sign them; set 'security.ssl.client.ca.file'",
        ),
        ({"security.ssl.listener.name.flus.key.file": "x"}, "there is no listener of that name; did you mean 'fluss'?"),
        ({"security.ssl.listener.name.fluss.key.fil": "x"}, "did you mean 'key.file'?"),
        ({"security.ssl.min-version": "TLSv1.1"}, "TLSv1.2, TLSv1.3"),
        ({"security.ssl.client.principal": "name"}, "cn, dn, san"),
        ({"security.ssl.client.auth": "maybe"}, "none, requested, required"),
    ],
)
def test_a_server_does_not_start_with_tls_that_cannot_work(tmp_path, options, expected):
    with pytest.raises(FlussError, match=expected.replace("?", r"\?")):
        embedded.start({"security.protocol.map": "FLUSS:SSL", **options}, data_dir=tmp_path / "data")


def test_options_of_a_listener_count_more_than_those_of_all(ca, tmp_path):
    general, own = ca.issue("general", names=["general.example.org"]), ca.issue("own", key_password="pw", names=["own"])
    password = tmp_path / "password"
    password.write_text("pw\n")
    options = {
        "bind.listeners": "ONE://127.0.0.1:0,TWO://127.0.0.1:0",
        "security.protocol.map": "ONE:SSL,TWO:SSL",
        "security.ssl.min-version": "TLSv1.3",
        "security.ssl.handshake-timeout": "1 min",
        **general.server_options,
        "security.ssl.listener.name.two.certificate.file": str(own.certificate_file),
        "security.ssl.listener.name.two.key.file": str(own.key_file),
        "security.ssl.listener.name.two.key.password.file": str(password),
    }
    with embedded.start(options) as server:
        for listener, name in (("ONE", "general.example.org"), ("TWO", "own")):
            config = server.config(
                listener,
                security_protocol="ssl",
                security_ssl_ca=str(ca.certificate_file),
                security_ssl_server_name=name,
            )
            with blocking.FlussConnection.create(config) as connection:
                assert connection.get_admin().database_exists("fluss")


# Files that change while the server runs


def test_a_renewed_certificate_is_shown_without_a_restart(ca, tmp_path):
    """SIGHUP has changed files loaded at once; a broken one changes nothing, and the log says what is wrong."""
    first, second = ca.issue("first", names=["first"]), ca.issue("second", names=["second"])
    files = {"security.ssl.certificate.file": tmp_path / "now.pem", "security.ssl.key.file": tmp_path / "now.key"}

    def put(issued: IssuedCertificate) -> None:
        files["security.ssl.certificate.file"].write_bytes(issued.certificate_file.read_bytes())
        files["security.ssl.key.file"].write_bytes(issued.key_file.read_bytes())

    def shows(name: str) -> bool:
        config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{running.port}", "security.protocol": "ssl"})
        config.security_ssl_ca = str(ca.certificate_file)
        config.security_ssl_server_name = name
        try:
            blocking.FlussConnection.create(config).close()
        except FlussError as error:
            return "is for another name" not in error.message
        return True

    put(first)
    arguments = [f"-D{key}={file}" for key, file in files.items()]
    arguments += ["-Dsecurity.protocol.map=FLUSS:SSL", "-Dsecurity.reload-interval=0s"]
    with ServerProcess(tmp_path / "data", *arguments) as running:
        assert shows("first")
        put(second)
        assert shows("first"), "nobody has said that it changed"
        os.kill(running.process_id, signal.SIGHUP)
        eventually(lambda: shows("second"))
        files["security.ssl.certificate.file"].write_text("broken")
        os.kill(running.process_id, signal.SIGHUP)
        eventually(lambda: "the certificate of listener FLUSS stays as it was" in running.log_text)
        assert shows("second")


def test_files_are_looked_at_again_and_again(ca, tmp_path, caplog):
    issued = ca.issue("watched", names=["127.0.0.1"])
    with (
        caplog.at_level(logging.INFO, "fluss.server.security_files"),
        embedded.start(
            {"security.protocol.map": "FLUSS:SSL", "security.reload-interval": "10 ms", **issued.server_options}
        ),
    ):
        ca.issue("watched", names=["127.0.0.1"])
        eventually(lambda: "the certificate of listener FLUSS was loaded again" in caplog.text)


# What the guide says


def test_the_commands_of_the_guide_make_certificates_that_work(tmp_path):
    page = (ROOT / "docs" / "operations" / "security.md").read_text(encoding="utf-8")
    commands = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "openssl" in block]
    assert len(commands) == 2
    for command in commands:
        subprocess.run(["bash", "-ec", command], cwd=tmp_path, check=True, capture_output=True)
    options = {
        "security.protocol.map": "FLUSS:SSL",
        "security.ssl.certificate.file": str(tmp_path / "server.pem"),
        "security.ssl.key.file": str(tmp_path / "server.key"),
        "security.ssl.client.auth": "required",
        "security.ssl.client.ca.file": str(tmp_path / "ca.pem"),
        "authorizer.enabled": "true",
        "super.users": "User:alice",
    }
    with embedded.start(options) as server:
        config = server.config(
            security_protocol="ssl",
            security_ssl_ca=str(tmp_path / "ca.pem"),
            security_ssl_certificate=str(tmp_path / "alice.pem"),
            security_ssl_key=str(tmp_path / "alice.key"),
        )
        config.bootstrap_servers = f"localhost:{server.port}"
        with blocking.FlussConnection.create(config) as connection:
            connection.get_admin().create_database("made_by_alice")
