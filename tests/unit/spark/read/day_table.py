"""A table that tests of streams write to, with partitions that come and go."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import pyarrow as pa

import fluss
from fluss import TablePath, blocking
from fluss.testing.waiting import eventually


class DayTable:
    """A table of its own for a test: ids and texts, and a day if it has partitions."""

    def __init__(
        self,
        connection: blocking.FlussConnection,
        path: TablePath | None = None,
        *,
        keys: Sequence[str] = (),
        days: Sequence[str] = (),
        bucket_count: int = 2,
        **properties: str,
    ) -> None:
        self._connection = connection
        self.admin = connection.get_admin()
        self.path = path or TablePath("fluss", f"t_{secrets.token_hex(6)}")
        self._is_partitioned = bool(days)
        self._keys = list(keys)
        self._bucket_count = bucket_count
        self._properties = properties
        self.create()
        for day in days:
            self.add_day(day)

    def create(self) -> None:
        columns = [("id", pa.int64()), ("text", pa.string())]
        columns += [("day", pa.string())] if self._is_partitioned else []
        keys = [*self._keys, "day"] if self._keys and self._is_partitioned else self._keys
        descriptor = fluss.TableDescriptor(
            fluss.Schema(pa.schema(columns), primary_keys=keys),
            partition_keys=["day"] if self._is_partitioned else [],
            bucket_count=self._bucket_count,
            bucket_keys=["id"],
            properties=self._properties,
        )
        self.admin.create_table(self.path, descriptor)

    def add_day(self, day: str) -> None:
        self.admin.create_partition(self.path, {"day": day})

    def drop_day(self, day: str) -> None:
        self.admin.drop_partition(self.path, {"day": day})

    def write(self, ids: Sequence[int], text: str = "x", day: str | None = None) -> None:
        table = self._connection.get_table(self.path)
        columns = {"id": list(ids), "text": [text] * len(ids)} | ({"day": [day] * len(ids)} if day else {})
        batch = pa.RecordBatch.from_pydict(columns, schema=table.arrow_schema)
        if self._keys:
            upserts = table.new_upsert().create_writer()
            upserts.upsert_arrow_batch(batch)
            upserts.flush()
        else:
            appends = table.new_append().create_writer()
            appends.write_arrow_batch(batch)
            appends.flush()

    def delete(self, ids: Sequence[int]) -> None:
        writer = self._connection.get_table(self.path).new_upsert().create_writer()
        for id_ in ids:
            writer.delete({"id": id_})
        writer.flush()

    def expire(self) -> None:
        """Have everything deleted that is there."""
        self.admin.alter_table(self.path, set_properties={"table.log.ttl": "1ms"})
        spec = fluss.OffsetSpec.earliest()
        buckets = range(self._bucket_count)
        latest = self.admin.list_offsets(self.path, buckets, fluss.OffsetSpec.latest())
        eventually(lambda: self.admin.list_offsets(self.path, buckets, spec) == latest)
        self.admin.alter_table(self.path, set_properties={"table.log.ttl": "7d"})
