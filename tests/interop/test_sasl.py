"""Credentials decide who gets in, for every client: right, wrong, unknown, missing, and offered where none are wanted.

Both official clients and ours meet a server with a plain listener and one that asks for SASL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fluss import embedded
from fluss.protocol.stored_password import StoredPassword
from fluss.testing.certificates import ThrowawayCa
from tests.interop.client import Client, refused
from tests.interop.conftest import SERVER_OPTIONS, Addresses, Libraries, addresses_of
from tests.interop.remote import Api, RemoteFlussError

SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])


def credentials(username: str, password: str) -> dict[str, str]:
    return {
        "security_protocol": "sasl",
        "security_sasl_mechanism": "PLAIN",
        "security_sasl_username": username,
        "security_sasl_password": password,
    }


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Addresses]:
    """A server that has not seen a failed login yet: after a few of them it takes its time to answer."""
    with embedded.start(SERVER_OPTIONS, data_dir=tmp_path) as running:
        yield addresses_of(running)


@pytest.mark.parametrize(("username", "password"), [("admin", "admin-secret"), ("alice", "alice-secret")])
def test_known_users_administrate_write_and_read(
    api: Api, server: Addresses, table: str, username: str, password: str
) -> None:
    client = Client(api, server.sasl, **credentials(username, password))
    assert client.admin.database_exists("fluss")
    client.create_table(table, SCHEMA)
    client.append_rows(table, [{"id": 1, "name": username}])
    assert client.read_rows(table, 1) == [{"id": 1, "name": username}]
    assert client.read_table(table).num_rows == 1


def test_clients_are_told_the_addresses_of_the_listener_they_came_in_by(api: Api, server: Addresses) -> None:
    client = Client(api, server.sasl, **credentials("admin", "admin-secret"))
    assert {f"{node.host}:{node.port}" for node in client.admin.get_server_nodes()} == {server.sasl}


def test_wrong_credentials_are_refused_and_stay_secret(api: Api, fresh: Addresses) -> None:
    for username, password in (("admin", "hunter2-hunter2"), ("nobody", "admin-secret"), ("Admin", "admin-secret")):
        with refused(46) as refusal:
            Client(api, fresh.sasl, **credentials(username, password))
        assert password not in refusal.value.message


def test_a_client_without_credentials_is_refused(api: Api, server: Addresses) -> None:
    with refused(46):
        Client(api, server.sasl)


def test_credentials_at_the_plain_listener_are_an_error_and_no_hang(api: Api, server: Addresses) -> None:
    with pytest.raises(RemoteFlussError):
        Client(api, server.plain, **credentials("admin", "admin-secret"))


@pytest.mark.parametrize(
    "options",
    [
        credentials("", "admin-secret"),
        credentials("admin", ""),
        {**credentials("a", "b"), "security_sasl_mechanism": "X"},
    ],
    ids=["no-user", "no-password", "unknown-mechanism"],
)
def test_incomplete_credentials_never_reach_a_server(api: Api, server: Addresses, options: dict[str, str]) -> None:
    with refused(-2):
        Client(api, server.sasl, **options)


# What official clients do not know: hashes, which they need not, and TLS, which they are told of


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """A server that keeps hashed passwords, takes SCRAM, too, and has a TLS listener in place of the plain one."""
    directory = tmp_path_factory.mktemp("hidden")
    options = {
        **SERVER_OPTIONS,
        "security.protocol.map": "CLIENT:sasl,PLAIN_CLIENT:ssl",
        "security.sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "security.sasl.plain.credentials": f"admin:{StoredPassword.of('admin-secret')}",
        **ThrowawayCa(directory).issue("server", names=["127.0.0.1"]).server_options,
    }
    with embedded.start(options, data_dir=directory / "data", process=True) as running:
        yield addresses_of(running)


def test_a_hashed_password_is_one_for_every_client(api: Api, hidden: Addresses) -> None:
    assert Client(api, hidden.sasl, **credentials("admin", "admin-secret")).admin.database_exists("fluss")
    with refused(46):
        Client(api, hidden.sasl, **credentials("admin", "admin-secret-not"))


def test_a_client_without_tls_is_told_that_the_listener_speaks_it(api: Api, hidden: Addresses) -> None:
    with pytest.raises(RemoteFlussError) as refusal:
        Client(api, hidden.plain)
    assert "speaks TLS" in refusal.value.message


# Permissions

GUARDED_OPTIONS = {**SERVER_OPTIONS, "authorizer.enabled": "true", "super.users": "User:admin"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """A server where nobody but the administrator may do anything unless allowed to."""
    with embedded.start(GUARDED_OPTIONS, data_dir=tmp_path_factory.mktemp("guarded"), process=True) as running:
        yield addresses_of(running)


def test_a_user_without_permission_sees_and_changes_nothing(
    api: Api, libraries: Libraries, guarded: Addresses, table: str
) -> None:
    admin = Client(libraries["flussbett"], guarded.sasl, **credentials("admin", "admin-secret"))
    admin.create_table(table, SCHEMA)
    admin.append_rows(table, [{"id": 1, "name": "secret"}])

    alice = Client(api, guarded.sasl, **credentials("alice", "alice-secret"))
    assert alice.admin.list_tables("fluss") == []
    assert not alice.admin.table_exists(alice.path(table))
    with refused(48):
        alice.create_table(f"{table}_2", SCHEMA)
    with refused(48):
        alice.admin.drop_table(alice.path(table))
    with refused(48):
        alice.admin.get_table_info(alice.path(table))
    with pytest.raises(RemoteFlussError):
        alice.table(table)


def test_a_user_who_may_only_read_cannot_write(api: Api, libraries: Libraries, guarded: Addresses, table: str) -> None:
    admin = Client(libraries["flussbett"], guarded.sasl, **credentials("admin", "admin-secret"))
    admin.create_table(table, SCHEMA)
    admin.append_rows(table, [{"id": 1, "name": "shared"}])
    fluss = admin.fluss
    resource = fluss.AclResource.table(admin.path(table))
    admin.admin.create_acls([fluss.AclBinding(resource, "User:alice", fluss.AclOperation.READ)])

    alice = Client(api, guarded.sasl, **credentials("alice", "alice-secret"))
    assert alice.read_rows(table, 1) == [{"id": 1, "name": "shared"}]
    handle = alice.writer(table).append({"id": 2, "name": "refused"})
    with pytest.raises(RemoteFlussError):
        handle.wait()
    assert admin.latest(table) == {0: 1}
