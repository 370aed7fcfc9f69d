"""A connection at whose address another cluster answers: a server was started again with another data directory.

Ids of tables say nothing then. Shown with other clusters whose table of that name has the same id, a smaller one, or is
older, and with one where the id is that of a table with another name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking
from fluss.errors import ErrorCode, FlussError
from fluss.testing.cluster import ServerProcess

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
OTHER_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("number", pa.int64())])
Use = Callable[[], object]


def create(server: ServerProcess, *tables: tuple[str, pa.Schema, list[str]]) -> None:
    with blocking.connect(server.bootstrap_servers) as connection:
        for name, schema, keys in tables:
            described = fluss.TableDescriptor(fluss.Schema(schema, primary_keys=keys), bucket_count=1)
            connection.get_admin().create_table(f"fluss.{name}", described)


class Client:
    """Everything that a program may keep of a table, made before the other cluster is there."""

    def __init__(self, address: str, connection: blocking.FlussConnection) -> None:
        self.address = address
        self.connection = connection
        self.log = connection.get_table("fluss.log")
        self.keyed = connection.get_table("fluss.keyed")
        writer, upserts = self.log.new_append().create_writer(), self.keyed.new_upsert().create_writer()
        lookuper = self.keyed.new_lookup().create_lookuper()
        scanner = self.log.new_scan().create_log_scanner()
        for number in range(3):
            writer.append([number, "old"]).wait()
            upserts.upsert([number, "old"]).wait()
        scanner.subscribe(0, 3)
        assert lookuper.lookup([1]) == {"id": 1, "text": "old"}
        self.uses: dict[str, Use] = {
            "append": lambda: writer.append([7, "lost"]).wait(),
            "upsert": lambda: upserts.upsert([7, "lost"]).wait(),
            "lookup": lambda: lookuper.lookup([1]),
            "poll": lambda: scanner.poll(20_000),
            "to_arrow": self.log.to_arrow,
        }


@contextmanager
def replaced(tmp_path: Path, *tables: tuple[str, pa.Schema, list[str]], padding: int = 0) -> Iterator[Client]:
    """A client of a server that is killed, and in whose place another one has these tables, with rows of their own."""
    with ServerProcess(tmp_path / "first", "-D", "durability=os") as first:
        create(first, *((f"padding{number}", SCHEMA, []) for number in range(padding)))
        create(first, ("log", SCHEMA, []), ("keyed", SCHEMA, ["id"]))

        with blocking.connect(first.bootstrap_servers) as connection:
            client = Client(first.bootstrap_servers, connection)
            first.kill()
            listener = f"bind.listeners=FLUSS://127.0.0.1:{first.port}"
            with ServerProcess(tmp_path / "second", "-D", "durability=os", "-D", listener) as second:
                create(second, *tables)
                yield client


def refusal(use: Use) -> str:
    with pytest.raises(FlussError) as caught:
        use()
    assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST, caught.value
    return caught.value.message


def all_rows(client: Client, name: str) -> list[dict[str, object]]:
    with blocking.connect(client.address) as connection:
        return connection.get_table(f"fluss.{name}").to_arrow().to_pylist()


def test_tables_with_the_same_ids_are_refused(tmp_path: Path) -> None:
    with replaced(tmp_path, ("log", OTHER_SCHEMA, []), ("keyed", OTHER_SCHEMA, ["id"])) as client:
        for use in client.uses.values():
            assert "create a new connection" in refusal(use)
        assert "create a new connection" in refusal(lambda: client.connection.get_table("fluss.log"))
        assert (all_rows(client, "log"), all_rows(client, "keyed")) == ([], [])


def test_tables_with_smaller_ids_are_new_ones(tmp_path: Path) -> None:
    with replaced(tmp_path, ("log", OTHER_SCHEMA, []), ("keyed", OTHER_SCHEMA, ["id"]), padding=3) as client:
        for use in client.uses.values():
            assert "created again" in refusal(use)
        client.connection.get_table("fluss.log").new_append().create_writer().append([1, 2]).wait()
        assert (all_rows(client, "log"), all_rows(client, "keyed")) == ([{"id": 1, "number": 2}], [])


def test_a_table_of_another_name_with_the_same_id_gets_no_rows(tmp_path: Path) -> None:
    with replaced(tmp_path, ("other", OTHER_SCHEMA, []), ("another", OTHER_SCHEMA, ["id"])) as client:
        assert "create a new connection" in refusal(lambda: client.connection.get_table("fluss.other"))
        for use in client.uses.values():
            refusal(use)
        assert (all_rows(client, "other"), all_rows(client, "another")) == ([], [])


def test_an_older_data_directory_is_told_from_a_late_answer(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "older", "-D", "durability=os") as older:
        create(older, ("log", OTHER_SCHEMA, []), ("keyed", OTHER_SCHEMA, ["id"]))
        older.stop()
        os.rename(tmp_path / "older", tmp_path / "second")
    with replaced(tmp_path, padding=3) as client:
        for use in client.uses.values():
            assert "created again" in refusal(use)
        assert client.connection.get_table("fluss.log").to_arrow().num_rows == 0


def test_the_same_server_is_still_the_same_after_a_restart(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "-D", "durability=os") as server:
        create(server, ("log", SCHEMA, []), ("keyed", SCHEMA, ["id"]))
        with blocking.connect(server.bootstrap_servers) as connection:
            client = Client(server.bootstrap_servers, connection)
            server.restart()
            for use in client.uses.values():
                use()
            assert all_rows(client, "keyed")[-1] == {"id": 7, "text": "lost"}
