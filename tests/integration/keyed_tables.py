"""What tests of primary-key tables share: tables that nobody else uses, and a copy that believes no change blindly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import fluss
from fluss import ChangeType, TablePath, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.schema.table import TableBucket
from fluss.schema.table_options import STATISTICS_COLUMNS
from fluss.testing.cluster import ServerProcess
from tests.java.cluster import JavaCluster

ID_NAME = pa.schema([("id", pa.int32()), ("name", pa.string())])


class Tables:
    """Makes tables of one server, each with a name of its own."""

    def __init__(self, server: embedded.EmbeddedServer | ServerProcess | JavaCluster, **options: Any) -> None:
        self.server: Any = server
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers, **options})
        self.connection = wait_for(fluss.FlussConnection.create(config))
        self.admin = self.connection.get_admin()
        self._count = 0

    def create(
        self, schema: pa.Schema | fluss.Schema = ID_NAME, keys: Iterable[str] = ("id",), **descriptor: Any
    ) -> fluss.FlussTable:
        self._count += 1
        path = TablePath("fluss", f"keyed_{self._count}_{time.monotonic_ns()}")
        if isinstance(self.server, JavaCluster):
            # Statistics make filters quicker. Apache Fluss 0.9 does not know them.
            properties = descriptor.get("properties", {})
            descriptor["properties"] = {key: properties[key] for key in properties if key != STATISTICS_COLUMNS.key}
        made = schema if isinstance(schema, fluss.Schema) else fluss.Schema(schema, primary_keys=list(keys))
        wait_for(self.admin.create_table(path, fluss.TableDescriptor(made, **descriptor)))
        return wait_for(self.connection.get_table(path))

    def create_log(self, schema: pa.Schema | fluss.Schema = ID_NAME, **descriptor: Any) -> fluss.FlussTable:
        return self.create(schema, (), **descriptor)

    def again(self, table: fluss.FlussTable) -> fluss.FlussTable:
        """Return a table as it is now."""
        return wait_for(self.connection.get_table(table.table_path))

    def partition_ids(self, table: fluss.FlussTable) -> dict[str, int]:
        infos = wait_for(self.admin.list_partition_infos(table.table_path))
        return {info.partition_name: info.partition_id for info in infos}

    def close(self) -> None:
        wait_for(self.connection.close())


@contextmanager
def tables_of(server: embedded.EmbeddedServer | ServerProcess | JavaCluster, **options: Any) -> Iterator[Tables]:
    tables = Tables(server, **options)
    try:
        yield tables
    finally:
        tables.close()


def poll_rows(scanner: Any, count: int) -> list[dict[str, Any]]:
    """Poll until there are so many rows."""
    rows: list[dict[str, Any]] = []
    poll_until(lambda: rows.extend(record.row for record in scanner.poll(500)), lambda: len(rows) >= count)
    return rows


def upsert(table: fluss.FlussTable, rows: Iterable[Any]) -> None:
    writer = table.new_upsert().create_writer()
    for row in rows:
        writer.upsert(row)
    wait_for(writer.flush())


def upsert_batch(table: fluss.FlussTable, **columns: Any) -> None:
    """Upsert rows as one batch."""
    writer = table.new_upsert().create_writer()
    writer.upsert_arrow(pa.RecordBatch.from_pydict(columns, schema=table.arrow_schema))
    wait_for(writer.flush())


def delete(table: fluss.FlussTable, keys: Iterable[Any]) -> None:
    writer = table.new_upsert().create_writer()
    for key in keys:
        writer.delete(key)
    wait_for(writer.flush())


def by_key(table: pa.Table, *keys: str) -> dict[Any, dict[str, Any]]:
    """Return rows by their key, which no two of them may share."""
    rows = table.to_pylist()
    found = {tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]]: row for row in rows}
    assert len(found) == len(rows), "a key comes twice"
    return found


class Copy:
    """A copy of a table, made of its changes. Every change must fit the copy as it is, or it is an error.

    So a change that is missing, comes twice, or comes too early or too late is found, not only a wrong end.
    """

    def __init__(self, *keys: str) -> None:
        self._keys = keys
        self.rows: dict[Any, dict[str, Any]] = {}
        self.snapshot_count = 0
        self.change_count = 0
        self._before: dict[TableBucket, Any] = {}

    def key(self, row: dict[str, Any]) -> Any:
        values = tuple(row[key] for key in self._keys)
        return values if len(values) > 1 else values[0]

    def apply(self, bucket: TableBucket, change_type: ChangeType, offset: int, row: dict[str, Any]) -> None:
        key = self.key(row)
        if offset < 0:
            assert change_type is ChangeType.Insert
            self.snapshot_count += 1
        else:
            self.change_count += 1
        open_update = self._before.pop(bucket, None)
        assert (open_update == key) is (change_type is ChangeType.UpdateAfter), "-U and +U belong together"
        match change_type:
            case ChangeType.Insert:
                assert key not in self.rows, f"{key} is inserted at {offset} and was there"
                self.rows[key] = row
            case ChangeType.UpdateBefore:
                assert self.rows[key] == row, f"{key} is not what is updated at {offset}"
                self._before[bucket] = key
            case ChangeType.UpdateAfter:
                self.rows[key] = row
            case ChangeType.Delete:
                assert self.rows.pop(key) == row, f"{key} is not what is deleted at {offset}"
            case _:
                raise AssertionError(f"no change of a table with a primary key: {change_type}")

    def apply_records(self, records: Iterable[fluss.ScanRecord]) -> None:
        for record in records:
            self.apply(record.bucket, record.change_type, record.offset, record.row)

    def apply_batches(self, batches: Iterable[fluss.RecordBatch]) -> None:
        for batch in batches:
            for index, (name, row) in enumerate(
                zip(batch.change_types.to_pylist(), batch.batch.to_pylist(), strict=True)
            ):
                offset = -1 if batch.base_offset < 0 else batch.base_offset + index
                self.apply(batch.bucket, CHANGE_TYPES[name], offset, row)


CHANGE_TYPES = {
    "insert": ChangeType.Insert,
    "update_before": ChangeType.UpdateBefore,
    "update_after": ChangeType.UpdateAfter,
    "delete": ChangeType.Delete,
}


@contextmanager
def in_background(work: Callable[[Callable[[], bool]], None]) -> Iterator[Callable[[], bool]]:
    """Run something on a thread until the block ends; it is told when to stop. Yields whether it still runs."""
    is_over = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work(is_over.is_set)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="test-writer")
    thread.start()
    try:
        yield thread.is_alive
    finally:
        is_over.set()
        thread.join(120)
    if errors:
        raise errors[0]


def poll_until(poll: Callable[[], None], is_done: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < deadline_s, "it did not come"
        poll()
