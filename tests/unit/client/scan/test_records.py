"""What a poll returns is a sequence and a mapping at once, and rows are made when somebody looks at them, once.
Shown on records of two buckets with every kind of index, and by counting conversions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from fluss.client.scan import records as scan_records
from fluss.client.scan.records import (
    NO_COMMIT_TIMESTAMP,
    RecordBatch,
    RecordBatches,
    RecordRun,
    ScanBatch,
    ScanRecord,
    ScanRecords,
)
from fluss.schema.offsets import ChangeType
from fluss.schema.table import TableBucket
from fluss.schema.types import DataTypes

FIRST, SECOND, ABSENT = TableBucket(7, 0), TableBucket.with_partition(7, 3, 1), TableBucket(7, 9)
TYPES = (DataTypes.int(), DataTypes.string())


def run_of(bucket: TableBucket, base_offset: int, ids: list[int], changes: list[int] | None = None) -> RecordRun:
    batch = pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int32()), "name": [f"n{i}" for i in ids]})
    change_types = None if changes is None else np.array(changes, np.uint8)
    return RecordRun(bucket, base_offset, 1_700_000_000_000, batch, TYPES, change_types)


@pytest.fixture
def polled() -> ScanRecords:
    """Two runs of the first bucket with one of the second between them."""
    runs = [run_of(FIRST, 10, [0, 1]), run_of(SECOND, 5, [2, 3, 4], [1, 2, 3]), run_of(FIRST, 12, [5])]
    return ScanRecords._create(runs)


def ids_of(records: Iterator[ScanRecord] | list[ScanRecord] | ScanRecords) -> list[int]:
    return [record.row["id"] for record in records]


def test_records_of_a_bucket_stand_together_and_all_ways_lead_to_the_same_objects(polled: ScanRecords) -> None:
    assert ids_of(polled) == [0, 1, 5, 2, 3, 4]
    assert ids_of(polled[FIRST]) == [0, 1, 5]
    assert [record.offset for record in polled[FIRST]] == [10, 11, 12]
    assert polled.buckets() == polled.keys() == [FIRST, SECOND]
    assert polled[0] is polled[0] is polled[FIRST][0] is next(iter(polled)) is polled.records(FIRST)[0]
    assert list(polled.values()) == [polled[FIRST], polled[SECOND]]
    assert dict(polled) == dict(polled.items()) == polled.records_by_buckets()
    assert polled[-1].row is polled[SECOND][-1].row
    polled[0].row["id"] = 99
    assert polled[0].row["id"] == 99


def test_every_kind_of_slice_is_a_list(polled: ScanRecords) -> None:
    flat = list(polled)
    for part in (slice(None), slice(1, 3), slice(None, None, -1), slice(1, None, 3), slice(5, 0, -2), slice(9, 12)):
        assert polled[part] == flat[part]
        assert isinstance(polled[part], list)
    with pytest.raises(ValueError, match="zero"):
        polled[::0]


def test_wrong_indexes_say_what_is_wrong(polled: ScanRecords) -> None:
    assert polled[True] is polled[1]
    assert ids_of([polled[-6]]) == [0]
    with pytest.raises(IndexError, match="index 6 out of range for ScanRecords of size 6"):
        polled[6]
    with pytest.raises(IndexError, match="index -1 out of range for ScanRecords of size 6"):
        polled[-7]
    for key in ("a", 1.0, None):
        with pytest.raises(TypeError, match="index must be int, slice, or TableBucket"):
            polled[key]  # type: ignore[call-overload]
    assert polled[ABSENT] == polled.records(ABSENT) == []
    assert FIRST in polled
    assert ABSENT not in polled
    with pytest.raises(TypeError, match="TableBucket"):
        _ = 1 in polled
    with pytest.raises(TypeError, match="TableBucket"):
        polled.records(0)  # type: ignore[arg-type]


def test_counts_and_texts(polled: ScanRecords) -> None:
    empty = ScanRecords._create()
    assert (len(polled), polled.count(), polled.is_empty(), bool(polled)) == (6, 6, False, True)
    assert (len(empty), empty.count(), empty.is_empty(), bool(empty), list(empty)) == (0, 0, True, False, [])
    assert str(polled) == repr(polled) == "ScanRecords(records=6, buckets=2)"
    assert (
        repr(polled[0]) == "ScanRecord(offset=10, timestamp=1700000000000, change_type=+A, row={'id': 0, 'name': 'n0'})"
    )
    assert (
        repr(polled[4]) == "ScanRecord(offset=6, timestamp=1700000000000, change_type=-U, row={'id': 3, 'name': 'n3'})"
    )
    assert [record.change_type for record in polled[SECOND]] == [
        ChangeType.Insert,
        ChangeType.UpdateBefore,
        ChangeType.UpdateAfter,
    ]
    assert polled[4].bucket == SECOND


def test_rows_are_converted_once_and_only_when_looked_at(polled: ScanRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = 0
    convert = scan_records.python_column  # type: ignore[attr-defined]

    def counted(*arguments: object) -> list[object]:
        nonlocal converted
        converted += 1
        return convert(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scan_records, "python_column", counted)
    assert [record.offset for record in polled] == [10, 11, 12, 5, 6, 7]
    assert converted == 0
    assert polled[3].row == {"id": 2, "name": "n2"}
    assert converted == len(TYPES)
    assert ids_of(polled) * 2 == [0, 1, 5, 2, 3, 4] * 2
    assert converted == 3 * len(TYPES)


def test_a_column_that_was_asked_for_twice_appears_once_in_a_row() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["x"]), pa.array([1])], names=["a", "b", "a"])
    doubled = RecordRun(FIRST, 0, 0, batch, (DataTypes.bigint(), DataTypes.string(), DataTypes.bigint()), None)
    assert doubled.rows() == [{"a": 1, "b": "x"}]
    assert list(doubled.rows()[0]) == ["a", "b"]


def test_batches_know_their_place() -> None:
    assert ScanBatch is RecordBatch
    batch = RecordBatch._create(pa.RecordBatch.from_pydict({"id": [1, 2, 3]}), FIRST, 4)
    assert (batch.base_offset, batch.last_offset, batch.num_records, len(batch), batch.bucket) == (4, 6, 3, 3, FIRST)
    assert repr(batch) == f"RecordBatch(bucket={FIRST}, base_offset=4, last_offset=6, rows=3)"
    assert RecordBatch._create(batch.batch.slice(0, 0), FIRST, 4).last_offset == 3
    assert batch.commit_timestamp == NO_COMMIT_TIMESTAMP == -1


async def test_results_may_be_awaited_and_gathered(polled: ScanRecords) -> None:
    batches = RecordBatches([RecordBatch._create(pa.RecordBatch.from_pydict({"id": [1]}), FIRST, 0)])
    assert await polled is polled
    assert await batches is batches
    assert isinstance(batches, list)
    first, second = await asyncio.gather(polled, batches)
    assert first is polled
    assert second is batches


@pytest.mark.parametrize("cls", [ScanRecords, ScanRecord, RecordBatch])
def test_users_cannot_make_them(cls: type) -> None:
    with pytest.raises(TypeError, match="cannot be constructed"):
        cls()
