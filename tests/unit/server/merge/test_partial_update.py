"""Partial updates write some columns, partial deletes make them null, and the other columns stay what they are.
Shown by the rules one by one, for both changelog images and across schemas, and with an auto-increment column."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import Column, Schema
from fluss.schema.types import BigIntType, IntType, StringType
from tests.unit.server.merge.merging import Delete, Merging, encode_row, kv_batch, make_table, values_of, with_columns

SCHEMA = (
    Schema.builder()
    .column("id", IntType())
    .column("a", StringType())
    .column("b", StringType())
    .primary_key(["id"])
    .build()
)
GONE = Delete((1,))


def merging(**properties: str) -> Merging:
    return Merging(make_table(SCHEMA, {key.replace("_", "."): value for key, value in properties.items()}))


def test_columns_that_are_not_targets_stay_and_begin_as_null() -> None:
    table = merging()
    # What a row has in other columns does not matter.
    assert table.put((1, "a", "ignored"), targets=[0, 1]) == [("+I", (1, "a", None))]
    assert table.put((1, None, "b"), targets=[2, 0]) == [("-U", (1, "a", None)), ("+U", (1, "a", "b"))]
    assert table.put((1, None, None), targets=[0, 1]) == [("-U", (1, "a", "b")), ("+U", (1, None, "b"))]
    assert table.store[b"\1"] == b"\1\0" + encode_row(table.table, (1, None, "b"), 1)


def test_a_put_of_nothing_but_the_key_inserts_or_does_nothing() -> None:
    table = merging()
    nothing = (1, None, None)
    assert table.put(nothing, nothing, targets=[0]) == [("+I", nothing)]
    assert table.put(nothing, targets=[0]) == []
    table.put((1, "a", "b"))
    assert table.put(nothing, targets=[0]) == []
    assert table.put(nothing, targets=[0, 0]) == []
    assert merging(changelog_image="WAL").put(nothing, nothing, targets=[0]) == [("+I", nothing)]


def test_a_partial_delete_removes_the_row_when_nothing_else_is_left() -> None:
    table = merging()
    table.put((1, "a", "b"))
    assert table.put(GONE, targets=[0, 1]) == [("-U", (1, "a", "b")), ("+U", (1, None, "b"))]
    assert table.put(GONE, targets=[0, 2]) == [("-D", (1, None, "b"))]
    assert table.put(GONE, targets=[0, 2]) == []
    assert table.store == {}
    assert table.row_count == 0


def test_a_wal_image_leaves_out_the_rows_before() -> None:
    table = merging(changelog_image="WAL")
    assert table.put((1, "a", None), targets=[0, 1]) == [("+I", (1, "a", None))]
    assert table.put((1, None, "b"), targets=[0, 2]) == [("+U", (1, "a", "b"))]
    assert table.put(GONE, targets=[0, 1]) == [("+U", (1, None, "b"))]
    assert table.put(GONE, targets=[0, 2]) == [("-D", (1, None, "b"))]


@pytest.mark.parametrize("stored", [None, (1, "x", None), (1, None, "y"), (1, "x", "y")])
@pytest.mark.parametrize("targets", [[0], [0, 1], [0, 2]])
def test_each_record_of_a_batch_builds_on_the_one_before(
    stored: tuple[object, ...] | None, targets: Sequence[int]
) -> None:
    a, b = (1, "a", "A"), (1, "b", None)
    for records in ((a, b), (a, GONE), (GONE, a), (GONE, GONE, b), (a, GONE, GONE, b, GONE), (GONE, a, a, GONE, b)):
        whole, single = merging(), merging()
        for table in (whole, single):
            if stored is not None:
                table.put(stored)
        assert whole.put(*records, targets=targets) == [
            change for record in records for change in single.put(record, targets=targets)
        ]
        assert whole.rows() == single.rows()
        assert whole.row_count == single.row_count


def test_targets_that_name_all_columns_write_whole_rows() -> None:
    table = merging(changelog_image="WAL")
    assert table.put((1, "a", "b"), targets=[0, 1, 2, 1]) == [("+U", (1, "a", "b"))]
    assert table.put(GONE, targets=[2, 1, 0]) == [("-D", (1, "a", "b"))]


def test_rows_of_older_schemas_are_merged_in_the_newest() -> None:
    table = merging()
    table.put((1, "a", "b"))
    table.alter(with_columns(table.table, Column("c", BigIntType())))
    assert table.put((1, None, None, 7), targets=[0, 3]) == [("-U", (1, "a", "b", None)), ("+U", (1, "a", "b", 7))]
    assert table.store[b"\1"] == b"\2\0" + encode_row(table.table, (1, "a", "b", 7), 2)
    # An older writer names all columns that it knows.
    assert table.put((1, "x", "y"), targets=[0, 1, 2], schema_id=1) == [
        ("-U", (1, "a", "b", 7)),
        ("+U", (1, "x", "y", 7)),
    ]


def test_a_batch_of_one_key_takes_no_longer_than_one_of_many() -> None:
    table = merging()
    batch = kv_batch(table.table, [(b"\1", (1, str(i), None) if i % 3 else None) for i in range(20_000)])
    began_s = time.thread_time()
    changes = table.merge(batch, targets=[0, 1])
    assert time.thread_time() - began_s < 1
    assert values_of(changes.changed) == {b"\1": b"\1\0" + encode_row(table.table, (1, "19999", None), 1)}


# Auto-increment

NUMBERED = (
    Schema.builder()
    .column("id", IntType())
    .column("n", BigIntType())
    .column("a", StringType())
    .primary_key(["id"])
    .enable_auto_increment("n")
    .build()
)


class Ids:
    """Hands out ids and remembers for how many it was asked."""

    def __init__(self, first: int = 1) -> None:
        self._next = first
        self.asked: list[int] = []

    def __call__(self, count: int) -> Sequence[int]:
        self.asked.append(count)
        self._next += count
        return range(self._next - count, self._next)


def test_only_new_keys_draw_ids_in_the_order_of_their_records() -> None:
    ids = Ids()
    table = Merging(make_table(NUMBERED), ids)
    assert table.put((7, None, "a"), (5, None, "b"), (7, None, "c"), targets=[0, 2]) == [
        ("+I", (7, 1, "a")),
        ("+I", (5, 2, "b")),
        ("-U", (7, 1, "a")),
        ("+U", (7, 1, "c")),
    ]
    # Whatever a writer puts there, an id stays what it is.
    assert table.put((5, 99, "d"), (6, 99, "e"), targets=[0, 2]) == [
        ("-U", (5, 2, "b")),
        ("+U", (5, 2, "d")),
        ("+I", (6, 3, "e")),
    ]
    assert table.put((5, None, None), (8, None, None), targets=[0]) == [("+I", (8, 4, None))]
    assert ids.asked == [2, 1, 1]


def test_a_delete_leaves_the_id_of_a_row() -> None:
    ids = Ids()
    table = Merging(make_table(NUMBERED, {"changelog.image": "WAL"}), ids)
    assert table.put(GONE, (1, None, "a"), GONE, GONE, (1, None, "b"), targets=[0, 2]) == [
        ("+I", (1, 1, "a")),
        ("+U", (1, 1, None)),
        ("+U", (1, 1, None)),
        ("+U", (1, 1, "b")),
    ]
    assert table.put(GONE, targets=[0, 2]) == [("+U", (1, 1, None))]
    assert table.put(Delete((2,)), targets=[0, 2]) == []
    assert ids.asked == [1]


def test_ids_that_do_not_fit_an_int_are_refused() -> None:
    schema = (
        Schema.builder().column("id", IntType()).column("n", IntType()).primary_key(["id"]).enable_auto_increment("n")
    ).build()
    table = Merging(make_table(schema), Ids(2**31 - 1))
    assert table.put((1, None), targets=[0]) == [("+I", (1, 2**31 - 1))]
    with pytest.raises(FlussError, match="are used up") as caught:
        table.put((2, None), targets=[0])
    assert caught.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(table.store) == 1


@pytest.mark.parametrize("image", ["FULL", "WAL"])
@pytest.mark.parametrize("record", [(1, None, "b"), GONE])
def test_many_records_for_the_key_of_a_large_row_are_refused(image: str, record: tuple[object, ...] | Delete) -> None:
    table = merging(changelog_image=image)
    table.put((1, "a" * (1 << 20), "b"))
    with pytest.raises(FlussError, match="write or delete fewer rows") as caught:
        table.put(*[record] * 600, targets=[0, 2])
    assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert len(table.put(*[record] * 20, targets=[0, 2])) == (40 if image == "FULL" else 20)
