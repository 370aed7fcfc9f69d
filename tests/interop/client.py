"""A connected client library with the few steps that most tests consist of: make a table, write, read it whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.interop.remote import Api, RemoteFlussError

EARLIEST = -2
DATABASE = "fluss"
READ_TIMEOUT_S = 120.0


class Client:
    """One connection of one library. Table names are those of the database that every cluster has."""

    def __init__(self, api: Api, bootstrap_servers: str, **options: Any) -> None:
        self.api = api
        self.fluss = api.fluss
        self.tools = api.tools
        self.connection = api.connect(bootstrap_servers, **options)
        self.admin = self.connection.get_admin()

    def path(self, name: str, database: str = DATABASE) -> Any:
        return self.fluss.TablePath(database, name)

    def descriptor(self, schema: pa.Schema, *, primary_keys: Sequence[str] = (), **options: Any) -> Any:
        table_schema = self.fluss.Schema(schema, primary_keys=list(primary_keys))
        return self.fluss.TableDescriptor(table_schema, **options)

    def create_table(self, name: str, schema: pa.Schema, *, primary_keys: Sequence[str] = (), **options: Any) -> None:
        self.admin.create_table(self.path(name), self.descriptor(schema, primary_keys=primary_keys, **options))

    def table(self, name: str) -> Any:
        return self.connection.get_table(self.path(name))

    def writer(self, name: str) -> Any:
        return self.table(name).new_append().create_writer()

    def append_rows(self, name: str, rows: Sequence[Any]) -> None:
        """Append rows and wait until each of them is acknowledged."""
        writer = self.writer(name)
        handles = self.tools.append_all(writer, list(rows))
        writer.flush()
        self.tools.wait_all(handles)

    def write_batches(self, name: str, *batches: pa.RecordBatch) -> None:
        """Write Arrow batches and wait until each of them is acknowledged."""
        writer = self.writer(name)
        handles = [writer.write_arrow_batch(batch) for batch in batches]
        writer.flush()
        self.tools.wait_all(handles)

    def upserter(self, name: str, columns: Sequence[str | int] | None = None) -> Any:
        """Return a writer of whole rows, or of some columns."""
        upsert = self.table(name).new_upsert()
        if columns is not None:
            by_name = isinstance(columns[0], str)
            upsert = (upsert.partial_update_by_name if by_name else upsert.partial_update_by_index)(list(columns))
        return upsert.create_writer()

    def upsert_rows(self, name: str, rows: Sequence[Any], columns: Sequence[str | int] | None = None) -> None:
        """Upsert rows and wait until each of them is acknowledged."""
        writer = self.upserter(name, columns)
        handles = self.tools.upsert_all(writer, list(rows))
        writer.flush()
        self.tools.wait_all(handles)

    def delete_keys(self, name: str, keys: Sequence[Any], columns: Sequence[str | int] | None = None) -> None:
        """Delete keys and wait until each of them is acknowledged."""
        writer = self.upserter(name, columns)
        handles = self.tools.delete_all(writer, list(keys))
        writer.flush()
        self.tools.wait_all(handles)

    def lookup(self, name: str, *keys: Any) -> list[Any]:
        """Return the row of each key, None where there is none."""
        found: list[Any] = self.tools.lookup_all(self.table(name), list(keys))
        return found

    def changes(self, name: str, count: int, **options: Any) -> list[tuple[int, str, dict[str, Any]]]:
        """Read ``count`` records of the changelog of a table with one bucket: offset, kind of change, row."""
        records = self.tools.poll_records(self.record_scanner(name, **options), count, READ_TIMEOUT_S)
        return [(offset, change, row) for _, offset, _, change, row in records]

    def record_scanner(self, name: str, *, columns: Sequence[str | int] | None = None, start: int = EARLIEST) -> Any:
        return self._subscribed(name, self._scan(name, columns).create_log_scanner(), start)

    def batch_scanner(self, name: str, *, columns: Sequence[str | int] | None = None, start: int = EARLIEST) -> Any:
        return self._subscribed(name, self._scan(name, columns).create_record_batch_log_scanner(), start)

    def read_rows(self, name: str, count: int, **options: Any) -> list[dict[str, Any]]:
        """Read ``count`` rows as records, in the order of their buckets and offsets."""
        records = self.tools.poll_records(self.record_scanner(name, **options), count, READ_TIMEOUT_S)
        return [row for *_, row in sorted(records, key=lambda record: record[:2])]

    def read_table(self, name: str, **options: Any) -> pa.Table:
        """Read what is there now as one Arrow table."""
        return self.batch_scanner(name, **options).to_arrow()

    def partition_ids(self, name: str) -> dict[str, int]:
        infos = self.admin.list_partition_infos(self.path(name))
        return {info.partition_name: info.partition_id for info in infos}

    def latest(self, name: str, bucket_ids: Sequence[int] = (0,)) -> Any:
        """Return the next offset of each bucket."""
        return self.admin.list_offsets(self.path(name), list(bucket_ids), self.fluss.OffsetSpec.latest())

    def _scan(self, name: str, columns: Sequence[str | int] | None) -> Any:
        scan = self.table(name).new_scan()
        if columns is None:
            return scan
        if isinstance(columns[0], str):
            return scan.project_by_name(list(columns))
        return scan.project(list(columns))

    def _subscribed(self, name: str, scanner: Any, start: int) -> Any:
        info = self.admin.get_table_info(self.path(name))
        bucket_ids = range(info.num_buckets)
        if info.is_partitioned():
            partition_ids = self.partition_ids(name).values()
            scanner.subscribe_partition_buckets(
                {(id_, bucket): start for id_ in partition_ids for bucket in bucket_ids}
            )
        else:
            scanner.subscribe_buckets(dict.fromkeys(bucket_ids, start))
        return scanner


@contextmanager
def refused(code: int, text: str = "") -> Iterator[pytest.ExceptionInfo[RemoteFlussError]]:
    """Expect that the client refuses, or the server does, with this code and a message that contains the text."""
    with pytest.raises(RemoteFlussError) as caught:
        yield caught
    assert caught.value.error_code == code, caught.value
    assert text in caught.value.message, caught.value
