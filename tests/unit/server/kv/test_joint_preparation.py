"""Batches of many buckets have the same changelogs, rows and errors prepared as one as each by itself.
Made-up batches of all kinds of tables over stores that are dicts, then buckets of a real tablet server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.record.kv_batch import KvBatch
from fluss.record.mutations import FoundRows
from fluss.row.hashed_keys import HashedKeys
from fluss.schema.schema import Column, Schema
from fluss.schema.types import DataTypes
from fluss.server.kv.batches import KvPut
from fluss.server.kv.preparer import BatchPreparer, BucketShare, MergeMode, PreparedBatch, ShareOutcome
from fluss.server.merge.changelog import decode_changelog
from fluss.server.model import Table
from tests.unit.server.kv.bucket_support import TABLE, kv_batch
from tests.unit.server.kv.test_shared_stores import buckets_of, sharing, with_buckets
from tests.unit.server.kv.test_small_batches import noted_attempts
from tests.unit.server.merge.merging import (
    Delete,
    found_rows,
    key_of,
    make_table,
    parsed,
    rows_of,
    values_of,
    with_columns,
)
from tests.unit.server.merge.merging import kv_batch as batch_of_pairs

COLUMNS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("number", pa.int64()), ("is_good", pa.bool_())])
SCHEMA = Schema(COLUMNS, primary_keys=["id"])
OLD = Schema(COLUMNS.remove(3), primary_keys=["id"])
VERSIONED = {"merge-engine": "versioned", "merge-engine.versioned.ver-column": "number"}
TABLES = {
    "default": make_table(SCHEMA),
    "wal image": make_table(SCHEMA, {"changelog.image": "wal"}),
    "deletes ignored": make_table(SCHEMA, {"delete.behavior": "ignore"}),
    "deletes disabled": make_table(SCHEMA, {"delete.behavior": "disable"}),
    "first row": make_table(SCHEMA, {"merge-engine": "first_row"}),
    "versioned": make_table(SCHEMA, VERSIONED),
    "aggregation": make_table(SCHEMA, {"merge-engine": "aggregation", "delete.behavior": "allow"}),
    "indexed rows": make_table(SCHEMA, {"kv.format": "indexed"}),
    "rows in the log": make_table(SCHEMA, {"log.format": "compacted"}),
    "with another column": with_columns(make_table(OLD), Column("is_good", DataTypes.boolean())),
}
ROWS = st.tuples(
    st.integers(0, 9), st.none() | st.text(max_size=4), st.none() | st.integers(0, 5), st.none() | st.booleans()
)
RECORDS = ROWS | ROWS.map(Delete)
BUCKETS = st.lists(
    st.tuples(
        st.lists(st.lists(RECORDS, max_size=5), min_size=1, max_size=3), st.dictionaries(st.integers(0, 9), ROWS)
    ),
    min_size=1,
    max_size=6,
)


def find_in_dicts(shares: Sequence[BucketShare], keys: HashedKeys, key_ends: Sequence[int]) -> FoundRows:
    groups, first = [], 0
    for share, end in zip(shares, key_ends, strict=True):
        found = found_rows(share.store, keys.some(slice(first, end)))  # type: ignore[arg-type]
        groups += [(numbers + first, stored) for numbers, stored in found.groups]
        first = end
    assert first == len(keys)
    return FoundRows(groups)


def shown(table: Table, prepared: PreparedBatch | FlussError) -> Any:
    """Return everything that counts about a prepared batch."""
    if isinstance(prepared, FlussError):
        return prepared.error_code, prepared.message
    log_batch = parsed(bytes(prepared.changelog))
    header = log_batch.header
    types, rows = decode_changelog(table, log_batch)
    return (
        (header.writer_id, header.batch_sequence, header.schema_id, header.record_count, header.last_offset_delta),
        list(zip(types.tolist(), rows_of(rows, table.descriptor.schema.data_types), strict=True)),
        values_of(prepared.memtable.mutations),
        prepared.row_count_delta,
    )


def outcomes_shown(table: Table, outcomes: Sequence[ShareOutcome]) -> list[Any]:
    return [
        shown(table, outcome) if isinstance(outcome, FlussError) else [shown(table, batch) for batch in outcome]
        for outcome in outcomes
    ]


def checked(table: Table, records: list[Any], sequence: int, schema_id: int) -> KvBatch:
    width = len(table.schemas[schema_id].columns)
    cut = [Delete(r.row[:width]) if isinstance(r, Delete) else r[:width] for r in records]
    batch = KvBatch.parse(kv_batch(table, *cut, writer=7, sequence=sequence, schema_id=schema_id))
    batch.verify_crc()
    return batch


def stored(table: Table, rows: dict[int, Any], schema_id: int) -> dict[bytes, bytes]:
    """Return a store with some rows, all of one schema."""
    records = [(key, *row[1:]) for key, row in rows.items()]
    store: dict[bytes, bytes] = {}
    batch = checked(table, records, 0, schema_id)
    keys, encoded, _ = batch.records()
    for key, row in zip(keys.to_list(), encoded.to_list(), strict=True):
        store[key] = schema_id.to_bytes(2, "little") + row
    return store


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=25)
@given(buckets=BUCKETS, mode=st.sampled_from(["whole rows", "partial", "overwrite"]), data=st.data())
def test_as_one_is_as_each_by_itself(name: str, buckets: Any, mode: str, data: st.DataObject) -> None:
    table = TABLES[name]
    if mode == "partial" and name in ("first row", "versioned"):
        mode = "whole rows"
    old_schema_id = min(table.schemas)
    schema_id = data.draw(st.sampled_from(sorted(table.schemas)))
    merge_mode = MergeMode(schema_id, (0, 2) if mode == "partial" else (), mode == "overwrite")
    preparer = BatchPreparer(table)
    shares = []
    for number, (batches, rows) in enumerate(buckets):
        store: Any = stored(table, rows, old_schema_id if number % 2 else table.schema_id)
        shares.append(BucketShare([checked(table, batch, at, schema_id) for at, batch in enumerate(batches)], store))
    together = preparer.prepare(merge_mode, shares, find_in_dicts)
    alone = [preparer.prepare(merge_mode, [share], find_in_dicts)[0] for share in shares]
    assert outcomes_shown(table, together) == outcomes_shown(table, alone)
    for share, outcome in zip(shares, together, strict=True):
        first = preparer.prepare(merge_mode, [BucketShare(share.batches[:1], share.store)], find_in_dicts)
        whole = [outcome] if isinstance(outcome, FlussError) else [outcome[:1]]
        assert outcomes_shown(table, whole) == outcomes_shown(table, first), "what follows a batch does not change it"


@pytest.mark.parametrize("name", ["default", "aggregation"])
def test_what_is_wrong_with_one_batch_concerns_that_one_only(name: str) -> None:
    table = TABLES[name]
    preparer = BatchPreparer(table)
    good = [checked(table, [(key, "a", 1, True)], 0, 1) for key in range(20)]
    row = (1, "a", 1, True)
    # Its row is under the key of another one.
    bad = KvBatch.parse(batch_of_pairs(table, [(key_of(table, (2, *row[1:])), row)]))
    shares = [BucketShare([batch], {}) for batch in (*good[:7], bad, *good[7:])]  # type: ignore[arg-type]
    outcomes = preparer.prepare(MergeMode(1), shares, find_in_dicts)
    refused = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, FlussError)]
    assert refused == [7]
    assert isinstance(outcomes[7], FlussError)
    assert outcomes[7].error_code == ErrorCode.INVALID_TABLE_EXCEPTION


async def test_a_request_for_many_buckets_is_prepared_and_applied_as_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40
    async with sharing(tmp_path, with_buckets(count)) as bucket:
        buckets = buckets_of(bucket)
        attempts = noted_attempts(monkeypatch)
        for text in ("opens the stores", "a", "b"):
            attempts.clear()
            rows = [[(number, text), (number + 1000, text)] for number in range(count)]
            puts = [kv.put(KvPut(memoryview(kv_batch(TABLE, *some)))) for kv, some in zip(buckets, rows, strict=True)]
            await asyncio.gather(*puts)
            if text != "opens the stores":
                assert attempts == [[1] * count]
        stores = [await kv.store() for kv in buckets]
        assert [store.state.row_count for store in stores] == [2] * count


async def test_equal_keys_in_many_buckets_are_rows_of_their_own_and_a_bad_batch_is_refused_alone(
    tmp_path: Path,
) -> None:
    async with sharing(tmp_path, with_buckets(12)) as bucket:
        buckets = buckets_of(bucket)
        for text in ("first", "second"):
            answers = []
            for number, kv in enumerate(buckets):
                batch = memoryview(
                    kv_batch(TABLE, (1, f"{text} {number}"), writer=3, sequence=0 if text == "first" else 1)
                )
                if text == "second" and number == 5:
                    batch = memoryview(kv_batch(TABLE, (1, "out of order"), writer=3, sequence=8))
                answers.append(kv.put(KvPut(batch)))
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
        failures = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, FlussError)]
        assert failures == [5]
        for number, kv in enumerate(buckets):
            store = await kv.store()
            assert store.state.row_count == 1
            (value,) = store.first_values(2, bytes_max=1000)
            assert value.endswith(f"{'first' if number == 5 else 'second'} {number}".encode())
        assert bucket.manager.kv_runtime.memory.held_bytes == 0
