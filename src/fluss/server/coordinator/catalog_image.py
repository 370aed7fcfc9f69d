"""The catalog in memory: databases, tables and partitions by name and by id. Reading never waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from fluss.errors import ErrorCode, FlussError
from fluss.schema.serde import table_to_json
from fluss.schema.table import TablePath
from fluss.server.coordinator.entities import Database
from fluss.server.model import Partition, Table

_NO_PARTITIONS: Mapping[str, Partition] = MappingProxyType({})


class CatalogImage:
    """Answers what exists. The values it hands out do not change, and neither do its mappings of partitions."""

    def __init__(self) -> None:
        self._databases: dict[str, Database] = {}
        self._tables_by_name: dict[str, dict[str, Table]] = {}
        self._tables: dict[int, Table] = {}
        self._table_jsons: dict[int, bytes] = {}
        self._partitions: dict[int, Partition] = {}
        # A new mapping for every change, so that those handed out stay as they were.
        self._partitions_by_name: dict[int, Mapping[str, Partition]] = {}

    # Reading

    def database_names(self) -> list[str]:
        return sorted(self._databases)

    def database(self, name: str) -> Database | None:
        return self._databases.get(name)

    def existing_database(self, name: str) -> Database:
        """Return a database, or raise code 4."""
        database = self._databases.get(name)
        if database is None:
            raise FlussError(f"Database {name} does not exist.", ErrorCode.DATABASE_NOT_EXIST)
        return database

    def table_names(self, database_name: str) -> list[str]:
        """Return the names of all tables of a database; raises code 4."""
        self.existing_database(database_name)
        return sorted(self._tables_by_name[database_name])

    def table_count(self, database_name: str) -> int:
        return len(self._tables_by_name[database_name])

    def tables(self) -> Collection[Table]:
        """Return all tables there are now."""
        return tuple(self._tables.values())

    def tables_of(self, database_name: str) -> Collection[Table]:
        return tuple(self._tables_by_name[database_name].values())

    def table_by_id(self, table_id: int) -> Table | None:
        return self._tables.get(table_id)

    def table_by_path(self, path: TablePath) -> Table | None:
        tables = self._tables_by_name.get(path.database_name)
        return None if tables is None else tables.get(path.table_name)

    def existing_table(self, path: TablePath) -> Table:
        """Return a table, or raise code 7, also when the database is missing."""
        table = self.table_by_path(path)
        if table is None:
            raise FlussError(f"Table '{path}' does not exist.", ErrorCode.TABLE_NOT_EXIST)
        return table

    def table_json(self, table: Table) -> bytes:
        """Return the descriptor of a table as JSON; it is written once for each version of a table."""
        if self._tables.get(table.table_id) is not table:
            return table_to_json(table.descriptor)
        json = self._table_jsons.get(table.table_id)
        if json is None:
            json = self._table_jsons[table.table_id] = table_to_json(table.descriptor)
        return json

    def partition_by_id(self, partition_id: int) -> Partition | None:
        return self._partitions.get(partition_id)

    def partitions_of(self, table_id: int) -> Mapping[str, Partition]:
        """Return the partitions of a table by name."""
        return self._partitions_by_name.get(table_id, _NO_PARTITIONS)

    # Changing

    def _put_database(self, database: Database) -> None:
        self._databases[database.name] = database
        self._tables_by_name.setdefault(database.name, {})

    def _remove_database(self, name: str) -> None:
        for table in self.tables_of(name):
            self._remove_table(table)
        del self._databases[name]
        del self._tables_by_name[name]

    def _put_table(self, table: Table) -> None:
        self._tables[table.table_id] = table
        self._tables_by_name[table.path.database_name][table.path.table_name] = table
        self._table_jsons.pop(table.table_id, None)

    def _remove_table(self, table: Table) -> None:
        for partition in self._partitions_by_name.pop(table.table_id, _NO_PARTITIONS).values():
            del self._partitions[partition.partition_id]
        del self._tables[table.table_id]
        del self._tables_by_name[table.path.database_name][table.path.table_name]
        self._table_jsons.pop(table.table_id, None)

    def _put_partitions(self, table_id: int, partitions: Iterable[Partition]) -> None:
        by_name = dict(self.partitions_of(table_id))
        for partition in partitions:
            by_name[partition.name] = partition
            self._partitions[partition.partition_id] = partition
        self._partitions_by_name[table_id] = MappingProxyType(by_name)

    def _remove_partitions(self, table_id: int, partitions: Iterable[Partition]) -> None:
        by_name = dict(self.partitions_of(table_id))
        for partition in partitions:
            del by_name[partition.name]
            del self._partitions[partition.partition_id]
        self._partitions_by_name[table_id] = MappingProxyType(by_name)
