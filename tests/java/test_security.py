"""SASL and rights of a cluster of Apache Fluss, with our client: who may do what, and what is said to who may not."""

from __future__ import annotations

import pyarrow as pa
import pytest

import fluss
from fluss import AclBinding, AclFilter, AclOperation, AclResource, Config, ErrorCode, FlussError, TablePath, blocking
from fluss.testing.waiting import eventually
from tests.java.cluster import JavaCluster, sasl_config


def connect(cluster: JavaCluster, user: str, password: str | None = None) -> blocking.FlussConnection:
    return blocking.connect(sasl_config(cluster.sasl_bootstrap_servers, user, password))


def test_rights_are_given_and_taken(cluster: JavaCluster, database: str) -> None:
    path = TablePath(database, "secret")
    read = AclBinding(AclResource.table(path), "User:alice", AclOperation.READ)
    with connect(cluster, "admin") as admin, connect(cluster, "alice") as alice:
        schema = fluss.Schema(pa.schema([("id", pa.int64())]))
        admin.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        table = admin.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.append([1])

        with pytest.raises(FlussError) as refused:
            alice.get_table(path)
        assert refused.value.error_code in (ErrorCode.AUTHORIZATION_EXCEPTION, ErrorCode.TABLE_NOT_EXIST)
        # An answer with code 0 is a success.
        admin.get_admin().create_acls([read])
        assert [found.principal for found in admin.get_admin().list_acls() if found.resource == read.resource] == [
            read.principal
        ]

        def her_rows() -> list[int]:
            try:
                return alice.get_table(path).new_scan().to_arrow()["id"].to_pylist()
            except FlussError:
                # Servers are told about rights one after the other.
                return []

        assert eventually(her_rows, "that the right counts") == [1]
        hers = alice.get_table(path).new_append().create_writer()
        hers.append([2])
        with pytest.raises(FlussError) as refused:
            hers.flush()
        assert refused.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
        admin.get_admin().drop_acls([AclFilter(principal=read.principal)])
        assert not admin.get_admin().list_acls()


def test_a_wrong_password_is_refused(cluster: JavaCluster) -> None:
    with pytest.raises(FlussError) as refused:
        connect(cluster, "alice", "wrong")
    assert refused.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
    assert "wrong" not in refused.value.message


def test_somebody_without_a_name_is_refused(cluster: JavaCluster) -> None:
    with pytest.raises(FlussError) as refused:
        blocking.FlussConnection.create(Config({"bootstrap.servers": cluster.sasl_bootstrap_servers}))
    assert refused.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
