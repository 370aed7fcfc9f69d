"""What the tests of merging share: tables, batches of rows written as Python values, and a store that is a dict.

``Merging`` does with a batch what a server does: old rows, merge, changelog, store. A batch is written as rows of
internal values and as ``Delete(row)``; the changelog comes back as pairs of a text such as ``+I`` and a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from fluss.record.framing import crc32c
from fluss.record.kv_batch import KvBatch, encode_kv_batch
from fluss.record.log_batch import LogBatch, read_batch, verify_crc
from fluss.record.mutations import FoundRows, Mutations, StoredValues
from fluss.record.value_batch import encode_value
from fluss.row import compacted, indexed
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys
from fluss.row.key import KeyEncoder, primary_key_encoder
from fluss.row.values import internal_from_arrow
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.offsets import ChangeType
from fluss.schema.schema import Column, Schema
from fluss.schema.table import TablePath
from fluss.schema.table_options import KV_FORMAT_VERSION, LAKE_FORMAT, KvFormat
from fluss.schema.types import DataType
from fluss.server.merge import decoded_batch
from fluss.server.merge.changelog import ChangelogEncoder, decode_changelog, store_entries
from fluss.server.merge.changes import Changes, MergeInput
from fluss.server.merge.engines import check_targets, merger_of
from fluss.server.merge.key_fold import KeyFold
from fluss.server.model import Table

Row: TypeAlias = tuple[Any, ...]
Change: TypeAlias = tuple[str, Row]

WRITER_ID = 77
# Where the checksummed part of a KV batch begins.
CRC_START = 9
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Delete:
    """A delete of the key of a row; only the key columns of the row matter."""

    row: Row


def make_table(schema: Schema, properties: Mapping[str, str] | None = None, **more: Any) -> Table:
    """Return a primary-key table; properties need no ``table.`` in front."""
    named = {f"table.{key}": value for key, value in (properties or {}).items()}
    descriptor = TableDescriptor(schema, bucket_count=1, properties=named, **more)
    return Table(TablePath("db", "t"), 1, 1, descriptor, {1: schema}, NOW_MS, NOW_MS)


def with_columns(table: Table, *columns: Column) -> Table:
    """Return the table after an ALTER that added columns."""
    old, schema_id = table.descriptor, table.schema_id + 1
    schema = old.schema.with_added_columns(columns)
    descriptor = TableDescriptor(
        schema,
        bucket_count=1,
        properties=old.properties,
        partition_keys=old.partition_keys,
        bucket_keys=old.bucket_keys,
    )
    return replace(table, schema_id=schema_id, descriptor=descriptor, schemas={**table.schemas, schema_id: schema})


def key_encoder(table: Table) -> KeyEncoder:
    descriptor = table.descriptor
    names = descriptor.physical_primary_keys
    return primary_key_encoder(
        [descriptor.schema.column(name).data_type for name in names],
        LAKE_FORMAT.of(descriptor.properties),
        KV_FORMAT_VERSION.of(descriptor.properties),
        descriptor.bucket_keys == names,
    )


def key_of(table: Table, row: Row) -> bytes:
    """Return the key bytes of a row."""
    schema = table.descriptor.schema
    indexes = [schema.index_of(name) for name in table.descriptor.physical_primary_keys]
    return key_encoder(table).encode([row[index] for index in indexes])


def encode_row(table: Table, row: Row, schema_id: int) -> bytes:
    """Encode one row; nulls may be anywhere."""
    encode = compacted.encode_row if table.descriptor.kv_format is KvFormat.COMPACTED else indexed.encode_row
    return encode(_nullable(table.schemas[schema_id].data_types), row)


def decode_value(table: Table, value: bytes) -> Row:
    """Return a stored value as a row of the newest schema."""
    decode = compacted.decode_row if table.descriptor.kv_format is KvFormat.COMPACTED else indexed.decode_row
    row = decode(table.schemas[int.from_bytes(value[:2], "little")].data_types, value[2:])
    return row + (None,) * (len(table.descriptor.schema.columns) - len(row))


def rows_of(batch: pa.RecordBatch, types: Sequence[DataType]) -> list[Row]:
    columns = (internal_from_arrow(column, t) for column, t in zip(batch.columns, types, strict=True))
    return list(zip(*columns, strict=True))


def kv_batch(table: Table, records: Sequence[tuple[bytes, Row | None]], schema_id: int | None = None) -> bytes:
    """Return a KV batch of keys and rows; no row is a delete."""
    schema_id = table.schema_id if schema_id is None else schema_id
    keys = EncodedRows.from_list([key for key, _ in records])
    rows = [b"" if row is None else encode_row(table, row, schema_id) for _, row in records]
    deletes = np.array([row is None for _, row in records], np.bool_)
    return bytes(encode_kv_batch(keys, EncodedRows.from_list(rows), deletes, schema_id=schema_id))


def resealed(batch: bytes) -> bytes:
    """Give a KV batch that was changed the checksum of its bytes."""
    crc = crc32c(memoryview(batch)[CRC_START:])
    return batch[: CRC_START - 4] + crc.to_bytes(4, "little") + batch[CRC_START:]


class Merging:
    """A table and its store. The log is kept as batches, in the log format of the table."""

    def __init__(
        self,
        table: Table,
        next_ids: Callable[[int], Sequence[int]] | None = None,
        *,
        decodes_apart: bool = False,
    ) -> None:
        """``decodes_apart``: stored and received rows are decoded as those of large batches are, however few."""
        self.table = table
        self.store: dict[bytes, bytes] = {}
        self.log: list[bytes] = []
        self.row_count: int | None = 0
        self._next_ids = next_ids
        self._few_rows = 0 if decodes_apart else decoded_batch._FEW_ROWS

    def alter(self, table: Table) -> None:
        self.table = table

    def put(
        self, *records: Row | Delete, targets: Sequence[int] = (), overwrite: bool = False, schema_id: int | None = None
    ) -> list[Change]:
        """Write rows, and deletes, in one batch. Return the changelog."""
        pairs: list[tuple[bytes, Row | None]] = [
            (key_of(self.table, record.row), None)
            if isinstance(record, Delete)
            else (key_of(self.table, record), record)
            for record in records
        ]
        return self.put_batch(kv_batch(self.table, pairs, schema_id), targets=targets, overwrite=overwrite)

    def put_batch(self, data: bytes, *, targets: Sequence[int] = (), overwrite: bool = False) -> list[Change]:
        """Write a KV batch. Nothing has happened if this raises."""
        changes = self.merge(data, targets=targets, overwrite=overwrite)
        encoder = ChangelogEncoder(self.table)
        log_batch = bytes(encoder.encode(changes, writer_id=WRITER_ID, batch_sequence=len(self.log)))
        self.log.append(log_batch)
        apply_changes(self.store, changes.changed)
        if self.row_count is not None:
            self.row_count = None if changes.row_count_delta is None else self.row_count + changes.row_count_delta
        return self.changes_of(log_batch)

    def merge(self, data: bytes, *, targets: Sequence[int] = (), overwrite: bool = False) -> Changes:
        check_targets(self.table, targets, is_overwrite=overwrite)
        batch = KvBatch.parse(data)
        batch.verify_crc()
        keys, rows, is_delete = batch.records()
        fold = KeyFold.of(keys)
        merger = merger_of(self.table)
        old = FoundRows()
        if merger.needs_old_values(targets, overwrite, bool(is_delete.any())):
            old = found_rows(self.store, fold.unique_keys)
        taken = MergeInput(keys, rows, is_delete, batch.schema_id, fold, old, tuple(targets), overwrite)
        with patch.object(decoded_batch, "_FEW_ROWS", self._few_rows):
            return merger.merge(taken, self._next_ids)

    def changes_of(self, log_batch: bytes) -> list[Change]:
        """Return the records of a log batch, in the newest schema."""
        types, rows = decode_changelog(self.table, parsed(log_batch))
        texts = [ChangeType(change_type).short_string() for change_type in types.tolist()]
        return list(zip(texts, rows_of(rows, self.table.descriptor.schema.data_types), strict=True))

    def rows(self) -> dict[bytes, Row]:
        """Return the stored rows by key."""
        return {key: decode_value(self.table, value) for key, value in self.store.items()}

    def replayed(self) -> dict[bytes, Row]:
        """Return the rows that a replay of the whole log gives."""
        store: dict[bytes, bytes] = {}
        for log_batch in self.log:
            apply_changes(store, store_entries(self.table, decode_changelog(self.table, parsed(log_batch))))
        return {key: decode_value(self.table, value) for key, value in store.items()}


def parsed(log_batch: bytes) -> LogBatch:
    batch = read_batch(log_batch)
    verify_crc(batch)
    return batch


def found_rows(store: Mapping[bytes, bytes], keys: HashedKeys) -> FoundRows:
    """Return what a store has under keys, from two places, as if some of it were older than the rest."""
    found = [(number, store[key]) for number, key in enumerate(keys.keys.to_list()) if key in store]
    groups = []
    for place in (found[1::2], found[::2]):
        if place:
            numbers, values = zip(*place, strict=True)
            groups.append((np.array(numbers, np.int64), StoredValues.from_list(values)))
    return FoundRows(groups)


def values_of(changes: Mutations) -> dict[bytes, bytes | None]:
    """Return the stored value of each changed key; None removes it."""
    keys, rows = changes.keys.keys.to_list(), changes.rows.to_list()
    assert len(set(keys)) == len(keys), "a key comes twice"
    return {key: encode_value(changes.schema_id, row) if row else None for key, row in zip(keys, rows, strict=True)}


def apply_changes(store: dict[bytes, bytes], changes: Mutations) -> None:
    for key, value in values_of(changes).items():
        if value is None:
            store.pop(key, None)
        else:
            store[key] = value


def _nullable(types: Sequence[DataType]) -> list[DataType]:
    return [data_type.with_nullable(True) for data_type in types]
