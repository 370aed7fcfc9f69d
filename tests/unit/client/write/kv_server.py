"""A server that keeps what is put to it, besides what ``LogServer`` can do: puts and deletes in the order of arrival.

Batches are decoded with the record layer, writers are checked like those of logs, and faults work alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fluss.client.write.writers import TableUpsert
from fluss.net.listener import RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import BucketRecords, PutKvRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.kv_batch import KvBatch
from fluss.row import compacted_columns, indexed
from fluss.row.compacted_columns import decode_keys
from fluss.row.encoded import EncodedRows
from fluss.schema.schema import Schema
from fluss.schema.table import TablePath
from tests.unit.client.write.log_server import DUPLICATE, PATH, Client, LogServer

USERS = Schema(
    pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())]),
    primary_keys=["id"],
)


@dataclass(frozen=True)
class Change:
    """A row that was put, or the key of one that was deleted, and the columns that its request wrote."""

    row: dict[str, Any]
    is_delete: bool
    targets: tuple[int, ...]


class KvServer(LogServer):
    """One tablet server with tables that have a primary key."""

    def __init__(self) -> None:
        self.changes: dict[tuple[int, int | None, int], list[Change]] = defaultdict(list)
        self.batches: dict[tuple[int, int | None, int], list[KvBatch]] = defaultdict(list)
        self.puts: list[PutKvRequest] = []
        self._kv_schemas: dict[int, tuple[Schema, list[str], bool]] = {}
        self._targets: tuple[int, ...] = ()
        super().__init__()

    def _handlers(self) -> dict[ApiKey, Any]:
        return {**super()._handlers(), ApiKey.PUT_KV: self._put}

    # What tests do

    def add_kv_table(
        self, path: TablePath = PATH, table_id: int = 1, *, schema: Schema = USERS, **arguments: Any
    ) -> None:
        partition_keys = arguments.get("partition_keys", ())
        key_names = [name for name in schema.get_primary_keys() if name not in partition_keys]
        is_indexed = arguments.get("properties", {}).get("table.kv.format") == "INDEXED"
        self._kv_schemas[table_id] = schema, key_names, is_indexed
        self.add_table(path, table_id, schema=schema, **arguments)

    def changes_of(self, bucket_id: int = 0, *, table_id: int = 1, partition_id: int | None = None) -> list[Change]:
        return self.changes[table_id, partition_id, bucket_id]

    def rows_put(self, bucket_id: int = 0, **where: Any) -> list[dict[str, Any]]:
        return [change.row for change in self.changes_of(bucket_id, **where) if not change.is_delete]

    def state(self, table_id: int = 1) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return what a table would hold now, by key; deletes take whole rows."""
        schema, key_names, _ = self._kv_schemas[table_id]
        names = schema.column_names
        held: dict[tuple[Any, ...], dict[str, Any]] = {}
        for (owner, partition_id, _), changes in self.changes.items():
            for change in changes if owner == table_id else ():
                key = (partition_id, *(change.row[name] for name in key_names))
                if change.is_delete:
                    held.pop(key, None)
                    continue
                written = [names[index] for index in change.targets] or names
                held[key] = {**held.get(key, dict.fromkeys(names)), **{name: change.row[name] for name in written}}
        return held

    # What clients ask

    async def _put(self, context: RequestContext, request: PutKvRequest) -> pb.PutKvResponse:
        self.puts.append(request)
        self._targets = tuple(request.target_columns)
        response = pb.PutKvResponse()
        await self._answer(request, response)
        return response

    def _store(self, table_id: int, bucket: BucketRecords) -> tuple[int, int]:
        if table_id not in self._kv_schemas:
            return super()._store(table_id, bucket)
        key = table_id, bucket.partition_id, bucket.bucket_id
        batch = KvBatch.parse(bytes(bucket.records_view))
        batch.verify_crc()
        code = self._check_sequence(key, batch.writer_id, batch.batch_sequence)
        if not code:
            self.batches[key].append(batch)
            self.changes[key] += self._changes_in(table_id, batch)
        return (0 if code == DUPLICATE else code), len(self.changes[key])

    def _changes_in(self, table_id: int, batch: KvBatch) -> list[Change]:
        schema, key_names, is_indexed = self._kv_schemas[table_id]
        keys, rows, is_delete = batch.records()
        key_columns = decode_keys(keys, [schema.column(name).data_type for name in key_names])
        decoded_keys = pa.RecordBatch.from_arrays(key_columns, names=key_names).to_pylist()
        codec = indexed if is_indexed else compacted_columns
        types = [data_type.with_nullable(True) for data_type in schema.data_types]
        puts = EncodedRows(rows.data, rows.starts[~is_delete], rows.ends[~is_delete])
        put_rows = pa.RecordBatch.from_arrays(codec.decode_rows(puts, types), names=schema.column_names).to_pylist()
        rows_left = iter(put_rows)
        changes = []
        for key, is_key_deleted in zip(decoded_keys, is_delete.tolist(), strict=True):
            row = key if is_key_deleted else next(rows_left)
            assert {name: row[name] for name in key_names} == key, "the key of a record is that of its row"
            changes.append(Change(row, is_key_deleted, self._targets))
        return changes


@contextmanager
def kv_server() -> Iterator[KvServer]:
    server = KvServer()
    try:
        yield server
    finally:
        server.close()


def upsert_of(client: Client, path: TablePath = PATH, **columns: Any) -> TableUpsert:
    """Return what ``FlussTable.new_upsert`` returns."""
    return TableUpsert(lambda: client.writes, client.table(path), **columns)
