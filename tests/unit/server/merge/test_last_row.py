"""Without a merge engine the last row of a key is its row, and the changelog says how it came to be.
Shown by the rules one by one, for both changelog images, by chains of records of one key, and by the stored bytes."""

from __future__ import annotations

import math
import time

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.record.log_batch import read_batch
from fluss.schema.schema import Column, Schema
from fluss.schema.types import BigIntType, DoubleType, IntType, StringType
from fluss.server.merge.engines import merger_of
from tests.unit.server.merge.merging import (
    Change,
    Delete,
    Merging,
    Row,
    encode_row,
    key_of,
    kv_batch,
    make_table,
    resealed,
    values_of,
    with_columns,
)

SCHEMA = Schema.builder().column("id", IntType()).column("name", StringType()).primary_key(["id"]).build()
A, B, C = (1, "a"), (1, "b"), (1, "c")
GONE = Delete((1,))


def merging(**properties: str) -> Merging:
    return Merging(make_table(SCHEMA, {key.replace("_", "."): value for key, value in properties.items()}))


def test_a_full_image_shows_inserts_updates_and_deletes() -> None:
    table = merging()
    assert table.put(A) == [("+I", A)]
    assert table.put(B) == [("-U", A), ("+U", B)]
    assert table.put(B) == [("-U", B), ("+U", B)]
    assert table.put(GONE) == [("-D", B)]
    assert table.put(GONE) == []
    assert table.row_count == 0


def test_a_wal_image_shows_every_put_as_an_update_and_what_was_deleted() -> None:
    table = merging(changelog_image="WAL")
    assert table.put(A) == [("+U", A)]
    assert table.put(B) == [("+U", B)]
    assert table.put(GONE) == [("-D", B)]
    assert table.put(GONE) == []
    assert table.put(A, GONE, B) == [("+U", A), ("-D", A), ("+U", B)]
    assert table.row_count is None


def test_updates_take_two_offsets_and_no_effect_takes_one() -> None:
    table = merging()
    for record in ((1, "a"), (2, "b"), (1, "c"), Delete((1,)), Delete((1,))):
        table.put(record)
    spans = [read_batch(batch).header.last_offset_delta + 1 for batch in table.log]
    assert spans == [1, 1, 2, 1, 1]


@pytest.mark.parametrize(
    ("records", "before", "after"),
    [
        ([A, B], [("+I", A), ("-U", A), ("+U", B)], [("-U", C), ("+U", A), ("-U", A), ("+U", B)]),
        ([A, GONE], [("+I", A), ("-D", A)], [("-U", C), ("+U", A), ("-D", A)]),
        ([GONE, A], [("+I", A)], [("-D", C), ("+I", A)]),
        ([GONE, GONE], [], [("-D", C)]),
        ([A, GONE, GONE], [("+I", A), ("-D", A)], [("-U", C), ("+U", A), ("-D", A)]),
        ([A, GONE, B, GONE, A], None, None),
    ],
)
def test_each_record_of_a_batch_builds_on_the_one_before(
    records: list[Row | Delete], before: list[Change] | None, after: list[Change] | None
) -> None:
    for stored, expected in (((), before), ((C,), after)):
        whole, single = merging(), merging()
        for table in (whole, single):
            for row in stored:
                table.put(row)
        changes = whole.put(*records)
        assert changes == [change for record in records for change in single.put(record)]
        assert expected is None or changes == expected
        assert whole.store == single.store
        assert whole.row_count == single.row_count


def test_keys_without_an_effect_are_not_written() -> None:
    table = merging()
    table.put((1, "a"), (2, "b"))
    changes = table.merge(kv_batch(table.table, [(key_of(table.table, (i,)), None) for i in (3, 2, 4)]))
    assert values_of(changes.changed) == {key_of(table.table, (2,)): None}
    assert changes.row_count_delta == -1


def test_rows_are_stored_as_they_were_received_with_the_schema_of_their_batch() -> None:
    table = merging()
    # Longer varints than needed are not rewritten.
    row = bytes.fromhex("00018300616263")
    odd = kv_batch(table.table, [(b"\1", (1, "abcd"))]).replace(encode_row(table.table, (1, "abcd"), 1), row)
    table.put_batch(resealed(odd))
    assert table.store == {b"\1": b"\1\0" + row}
    table.alter(with_columns(table.table, Column("n", BigIntType())))
    assert table.put((2, "old writer"), schema_id=1) == [("+I", (2, "old writer", None))]
    assert table.store[b"\2"] == b"\1\0" + encode_row(table.table, (2, "old writer"), 1)
    assert table.put((1, "x", 5)) == [("-U", (1, "abc", None)), ("+U", (1, "x", 5))]
    assert table.store[b"\1"] == b"\2\0" + encode_row(table.table, (1, "x", 5), 2)


def test_not_a_number_passes_unchanged() -> None:
    schema = Schema.builder().column("id", IntType()).column("x", DoubleType()).primary_key(["id"]).build()
    table = Merging(make_table(schema))
    ((_, (_, number)),) = table.put((1, math.nan))
    assert math.isnan(number)
    assert table.store[b"\1"] == b"\1\0" + encode_row(table.table, (1, math.nan), 1)


def test_a_batch_without_records_changes_nothing_and_takes_its_offset() -> None:
    table = merging()
    assert table.put() == []
    assert read_batch(table.log[0]).header.last_offset_delta == 0


def test_a_wal_image_reads_stored_values_only_for_deletes() -> None:
    table = make_table(SCHEMA, {"changelog.image": "WAL"})
    assert not merger_of(table).needs_old_values((), False, False)
    assert merger_of(table).needs_old_values((), False, True)
    assert merger_of(table).needs_old_values((0,), False, False)
    ignoring = make_table(SCHEMA, {"changelog.image": "WAL", "delete.behavior": "ignore"})
    assert not merger_of(ignoring).needs_old_values((), False, True)
    assert merger_of(make_table(SCHEMA)).needs_old_values((), False, False)


def test_refused_deletes_refuse_the_whole_batch_and_ignored_ones_are_skipped() -> None:
    refusing = merging(delete_behavior="Disable")
    refusing.put(A)
    with pytest.raises(FlussError, match="takes no deletes") as caught:
        refusing.put((2, "b"), GONE)
    assert caught.value.error_code == ErrorCode.DELETION_DISABLED_EXCEPTION
    assert (len(refusing.store), len(refusing.log)) == (1, 1)
    ignoring = merging(delete_behavior="IGNORE")
    assert ignoring.put(A, GONE, B) == [("+I", A), ("-U", A), ("+U", B)]
    assert ignoring.put(GONE) == ignoring.put(GONE, targets=[0]) == []
    assert ignoring.put(Delete((3,)), (2, "b"), (3, "c")) == [("+I", (2, "b")), ("+I", (3, "c"))]
    assert ignoring.rows() == {b"\1": B, b"\2": (2, "b"), b"\3": (3, "c")}
    assert ignoring.put(GONE, overwrite=True) == [("-D", B)]


def test_a_batch_of_one_key_takes_no_longer_than_one_of_many() -> None:
    table = merging()
    batch = kv_batch(table.table, [(b"\1", (1, str(i)) if i % 3 else None) for i in range(20_000)])
    began_s = time.thread_time()
    changes = table.merge(batch)
    assert time.thread_time() - began_s < 1
    assert values_of(changes.changed) == {b"\1": b"\1\0" + encode_row(table.table, (1, "19999"), 1)}
