"""With the merge engine ``versioned`` a row replaces another one of its key unless its version is lower.
Shown by rising, falling, equal and missing versions of all types, in one batch and in several."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fluss.row.values import Timestamp
from fluss.schema.schema import Schema
from fluss.schema.types import BigIntType, DataType, IntType, StringType, TimestampLtzType, TimestampType
from tests.unit.server.merge.merging import Delete, Merging, kv_batch, make_table

RISING: list[tuple[DataType, list[Any]]] = [
    (IntType(), [-(2**31), 0, 2**31 - 1]),
    (BigIntType(), [-(2**63) + 1, 0, 2**63 - 1]),
    (TimestampType(3), [Timestamp(-1), Timestamp(0), Timestamp(1)]),
    (TimestampType(6), [Timestamp(0), Timestamp(0, 1000), Timestamp(1)]),
    (TimestampLtzType(9), [Timestamp(-1, 999_999), Timestamp(0, 1), Timestamp(0, 2)]),
]


def merging(version_type: DataType = IntType(), **properties: str) -> Merging:  # noqa: B008
    builder = Schema.builder().column("id", IntType()).column("v", version_type).column("name", StringType())
    named = {key.replace("_", "."): value for key, value in properties.items()}
    engine = {"merge-engine": "versioned", "merge-engine.versioned.ver-column": "v"}
    return Merging(make_table(builder.primary_key(["id"]).build(), engine | named))


@pytest.mark.parametrize(
    ("version_type", "versions"), RISING, ids=lambda value: str(value) if isinstance(value, DataType) else ""
)
def test_higher_and_equal_versions_replace_and_lower_ones_vanish(version_type: DataType, versions: list[Any]) -> None:
    low, middle, high = ((1, version, "x") for version in versions)
    equal = (1, versions[1], "y")
    for put in ("together", "apart"):
        table = merging(version_type)
        records = [middle, low, equal, high, middle]
        batches = [records] if put == "together" else [[record] for record in records]
        log = [change for batch in batches for change in table.put(*batch)]
        assert log == [("+I", middle), ("-U", middle), ("+U", equal), ("-U", equal), ("+U", high)]


def test_no_version_is_the_lowest() -> None:
    table = merging()
    nothing, something = (1, None, "a"), (1, -(2**31), "b")
    assert table.put(nothing, (1, None, "c")) == [("+I", nothing), ("-U", nothing), ("+U", (1, None, "c"))]
    assert table.put(something, nothing) == [("-U", (1, None, "c")), ("+U", something)]
    assert table.put(nothing) == []
    table = merging(BigIntType())
    lowest = (1, -(2**63), "b")
    assert table.put(lowest, nothing) == [("+I", lowest), ("-U", lowest), ("+U", nothing)]


def test_keys_do_not_disturb_each_other() -> None:
    table = merging(changelog_image="WAL")
    table.put((1, 5, "a"), (2, 1, "b"))
    records = [(2, 9, "c"), (1, 4, "d"), (3, 0, "e"), (2, 8, "f"), (1, 5, "g"), (3, -1, "h")]
    assert table.put(*records) == [("+U", (2, 9, "c")), ("+I", (3, 0, "e")), ("+U", (1, 5, "g"))]


def test_deletes_are_ignored_and_overwriting_takes_any_version() -> None:
    table = merging()
    table.put((1, 5, "a"))
    assert table.put(Delete((1,))) == []
    assert table.put((1, 1, "b"), overwrite=True) == [("-U", (1, 5, "a")), ("+U", (1, 1, "b"))]
    assert table.put(Delete((1,)), overwrite=True) == [("-D", (1, 1, "b"))]


def test_a_batch_of_one_key_takes_no_longer_than_one_of_many() -> None:
    table = merging()
    rows = [(1, i * 7919 % 20_011, str(i)) for i in range(20_000)]
    batch = kv_batch(table.table, [(b"\1", row) for row in rows])
    began_s = time.thread_time()
    changes = table.merge(batch)
    assert time.thread_time() - began_s < 1
    assert changes.rows.slice(changes.rows.num_rows - 1).to_pylist()[0]["v"] == max(row[1] for row in rows)
