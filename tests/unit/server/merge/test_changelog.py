"""Changes become log batches that every reader understands, and replaying them gives the store again.
Shown by golden bytes, by all log formats and compressions, by batches of older schemas, and by damaged batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import decode_arrow_batch, encode_arrow_batch
from fluss.record.compression import NO_COMPRESSION
from fluss.record.log_batch import read_batch, verify_crc
from fluss.record.mutations import Mutations
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys
from fluss.row.values import Timestamp
from fluss.schema.offsets import ChangeType
from fluss.schema.schema import Column, Schema
from fluss.schema.types import BigIntType, DataType, IntType, StringType, TimestampType
from fluss.server.merge.changelog import ChangelogEncoder, decode_changelog, store_entries
from fluss.server.merge.changes import Changes
from fluss.server.model import Table
from tests.unit.server.merge.merging import (
    Delete,
    Merging,
    encode_row,
    key_of,
    kv_batch,
    make_table,
    parsed,
    rows_of,
    values_of,
    with_columns,
)

SCHEMA = (
    Schema.builder()
    .column("name", StringType())
    .column("id", IntType())
    .column("at", TimestampType(3))
    .primary_key(["id", "name"])
    .build()
)
FORMATS = [("compacted", "arrow"), ("compacted", "compacted"), ("indexed", "arrow"), ("indexed", "indexed")]


def no_changes(table: Table) -> Changes:
    nothing = Mutations(HashedKeys.from_list([]), EncodedRows.from_list([]), table.schema_id)
    rows = pa.RecordBatch.from_pylist([], table.descriptor.schema.to_arrow())
    slots = np.empty(0, np.int64)
    return Changes(nothing, rows, np.empty(0, np.uint8), 0, slots, slots)


@pytest.mark.parametrize("log_format", ["arrow", "compacted"])
def test_a_batch_without_changes_is_a_header(log_format: str) -> None:
    table = make_table(SCHEMA, log_format=log_format)
    batch = ChangelogEncoder(table).encode(no_changes(table), writer_id=77, batch_sequence=3)
    assert batch.hex() == (
        "0000000000000000240000000000000000000000007ae2e10c010000000000004d000000000000000300000000000000"
    )
    change_types, rows = decode_changelog(table, read_batch(batch))
    assert (len(change_types), rows.num_rows) == (0, 0)


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4_frame"])
@pytest.mark.parametrize(("kv_format", "log_format"), FORMATS)
def test_replaying_the_log_gives_the_store(kv_format: str, log_format: str, compression: str) -> None:
    table = make_table(SCHEMA, {"log.arrow.compression.type": compression}, kv_format=kv_format, log_format=log_format)
    merging = Merging(table)
    rows = [(f"name {i}", i % 400, Timestamp(i * 1000) if i % 7 else None) for i in range(1000)]
    merging.put(*rows)
    merging.put(*((name, key, None) for name, key, _ in rows[::3]), *(Delete(row) for row in rows[::5]))
    merging.put(*(Delete(row) for row in rows[::5]))
    assert len(merging.store) == 800
    assert merging.replayed() == merging.rows()
    header = read_batch(merging.log[1]).header
    assert (header.writer_id, header.batch_sequence, header.schema_id) == (77, 1, 1)
    assert header.last_offset_delta == header.record_count - 1
    assert not header.is_append_only


def test_arrow_readers_see_the_rows_and_their_change_types() -> None:
    merging = Merging(make_table(SCHEMA))
    merging.put(("a", 1, None), ("a", 1, Timestamp(5)), Delete(("a", 1)))
    batch = parsed(merging.log[0])
    rows = decode_arrow_batch(batch, SCHEMA.to_arrow())
    assert rows_of(rows, SCHEMA.data_types) == [
        ("a", 1, None),
        ("a", 1, None),
        ("a", 1, Timestamp(5)),
        ("a", 1, Timestamp(5)),
    ]
    assert batch.change_types is not None
    assert batch.change_types.tolist() == [
        ChangeType.Insert,
        ChangeType.UpdateBefore,
        ChangeType.UpdateAfter,
        ChangeType.Delete,
    ]


@pytest.mark.parametrize(("kv_format", "log_format"), FORMATS)
def test_batches_of_older_schemas_are_replayed_in_the_newest(kv_format: str, log_format: str) -> None:
    merging = Merging(make_table(SCHEMA, kv_format=kv_format, log_format=log_format))
    merging.put(("a", 1, None), ("b", 2, None))
    merging.alter(with_columns(merging.table, Column("n", BigIntType())))
    merging.put(("b", 2, None, 7))
    assert merging.changes_of(merging.log[0])[0] == ("+I", ("a", 1, None, None))
    assert merging.replayed() == merging.rows()
    assert sorted(merging.rows().values()) == [("a", 1, None, None), ("b", 2, None, 7)]


@pytest.mark.parametrize("lake", ["paimon", "iceberg"])
def test_keys_are_encoded_as_the_lake_of_the_table_wants_them(lake: str) -> None:
    schema = Schema.builder().column("id", BigIntType()).column("x", IntType()).primary_key(["id"]).build()
    merging = Merging(make_table(schema, {"datalake.format": lake, "kv.format-version": "2"}))
    merging.put((300, 1), (301, 2), Delete((300,)))
    entries = store_entries(merging.table, decode_changelog(merging.table, parsed(merging.log[0])))
    values = values_of(entries)
    assert values.keys() == {key_of(merging.table, (i,)) for i in (300, 301)}
    assert values[key_of(merging.table, (300,))] is None
    assert values[key_of(merging.table, (301,))] == merging.store[key_of(merging.table, (301,))]
    assert merging.replayed() == merging.rows()


@pytest.mark.parametrize(("kv_format", "log_format"), FORMATS)
def test_of_several_changes_of_a_key_in_one_batch_the_last_one_counts(kv_format: str, log_format: str) -> None:
    merging = Merging(make_table(SCHEMA, kv_format=kv_format, log_format=log_format))
    a, a_later, a_last = (("a", 1, Timestamp(time)) for time in (1, 2, 3))
    b, b_later = (("b", 1, Timestamp(time)) for time in (1, 2))
    c, d = ("c", 1, None), ("d", 1, None)
    changes = merging.put(a, b, a_later, Delete(a), c, b_later, a_last, d, Delete(c))
    assert [kind for kind, row in changes if row[0] == "a"] == ["+I", "-U", "+U", "-D", "+I"]
    assert [kind for kind, row in changes if row[0] == "c"] == ["+I", "-D"]
    written = values_of(store_entries(merging.table, decode_changelog(merging.table, parsed(merging.log[0]))))
    expected = {a_last: True, b_later: True, c: False, d: True}
    assert written == {
        key_of(merging.table, row): b"\1\0" + encode_row(merging.table, row, 1) if is_there else None
        for row, is_there in expected.items()
    }
    # Onto rows that are there, and a batch that has nothing but removals.
    merging.put(Delete(a), b, Delete(b), b_later, Delete(d), d)
    merging.put(Delete(b), Delete(d))
    assert merging.rows() == {}
    assert merging.replayed() == {}


def test_records_that_are_no_changes_and_unknown_schemas_are_damage() -> None:
    table = make_table(SCHEMA)
    rows = pa.RecordBatch.from_pylist([{"name": "a", "id": 1}], SCHEMA.to_arrow())
    appended = encode_arrow_batch(rows, 1, NO_COMPRESSION)
    unknown_type = encode_arrow_batch(rows, 1, NO_COMPRESSION, change_types=np.zeros(1, np.uint8))
    unknown_schema = encode_arrow_batch(rows, 9, NO_COMPRESSION, change_types=np.full(1, 3, np.uint8))
    for batch in (appended, unknown_type, unknown_schema):
        verify_crc(read_batch(batch))
        with pytest.raises(CorruptRecordError):
            decode_changelog(table, read_batch(batch))


def test_a_changelog_that_readers_would_not_take_is_refused() -> None:
    merging = Merging(make_table(SCHEMA))
    row = ("a", 1, None)
    merging.put(row)
    changes = merging.merge(kv_batch(merging.table, [(key_of(merging.table, row), row)]))
    with pytest.raises(FlussError, match="at most 20 at once; write or delete fewer rows") as caught:
        ChangelogEncoder(merging.table).encode(changes, writer_id=1, batch_sequence=0, bytes_max=20)
    assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


@pytest.mark.parametrize("types", [[IntType(), StringType()], [StringType(), BigIntType()]], ids=str)
def test_the_order_of_the_primary_key_is_the_order_of_key_bytes(types: list[DataType]) -> None:
    builder = Schema.builder().column("a", types[0]).column("b", types[1])
    merging = Merging(make_table(builder.primary_key(["b", "a"]).build()))
    row = (1, "x") if isinstance(types[0], IntType) else ("x", 1)
    merging.put(row)
    assert list(merging.store) == [b"\1x\1" if isinstance(types[0], IntType) else b"\1\1x"]
    assert merging.replayed() == merging.rows()
