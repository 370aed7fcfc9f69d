"""Which target columns a table takes, and how its properties choose the way it merges.
Shown by good and bad lists of targets for tables of all engines, and by the defaults of deletes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import AggFunction, Schema
from fluss.schema.types import BigIntType, IntType, StringType
from fluss.server.merge.engines import check_targets
from fluss.server.model import Table
from tests.unit.server.merge.merging import Delete, Merging, make_table


def schema(*, not_null: bool = False, numbered: bool = False) -> Schema:
    builder = Schema.builder().column("x", IntType(nullable=not not_null)).column("k1", IntType())
    builder.column("k2", StringType()).column("n", BigIntType()).primary_key(["k2", "k1"])
    return (builder.enable_auto_increment("n") if numbered else builder).build()


PLAIN = make_table(schema())
STRICT = make_table(schema(not_null=True))
NUMBERED = make_table(schema(numbered=True))
FIRST_ROW = make_table(schema(), {"merge-engine": "first_row"})
VERSIONED = make_table(schema(), {"merge-engine": "versioned", "merge-engine.versioned.ver-column": "n"})
AGGREGATION = make_table(schema(), {"merge-engine": "aggregation"})


@pytest.mark.parametrize(
    ("table", "targets", "overwrite"),
    [
        (PLAIN, [], False),
        (PLAIN, [1, 2], False),
        (PLAIN, [2, 1, 0, 2, 1], False),
        (PLAIN, [0, 1, 2, 3], False),
        (STRICT, [], False),
        (STRICT, [3, 2, 1, 0], False),
        (NUMBERED, [0, 1, 2], False),
        (NUMBERED, [1, 2], True),
        (FIRST_ROW, [], False),
        (FIRST_ROW, [1, 2, 0], True),
        (VERSIONED, [1, 2], True),
        (AGGREGATION, [1, 2, 3], False),
    ],
)
def test_targets_with_the_whole_primary_key_are_taken(table: Table, targets: list[int], overwrite: bool) -> None:
    check_targets(table, targets, is_overwrite=overwrite)


@pytest.mark.parametrize(
    ("table", "targets", "overwrite", "reason"),
    [
        (PLAIN, [1, 2, 4], False, "there is no column 4; columns are numbered 0 to 3"),
        (PLAIN, [1, 2, -1], False, "there is no column -1"),
        (PLAIN, [0, 1], False, "the primary key is not complete, it lacks 'k2'"),
        (PLAIN, [0, 3], True, "it lacks 'k2', 'k1'"),
        (STRICT, [1, 2], False, "but 'x' are NOT NULL"),
        (STRICT, [0, 1, 2], False, "but 'x' are NOT NULL"),
        (NUMBERED, [], False, "auto-increment column 'n'"),
        (NUMBERED, [0, 1, 2, 3], False, "auto-increment column 'n'"),
        (NUMBERED, [1, 2, 3], True, "auto-increment column 'n'"),
        (FIRST_ROW, [1, 2], False, "the merge engine 'first_row' takes whole rows only"),
        (FIRST_ROW, [0, 1, 2, 3], False, "the merge engine 'first_row' takes whole rows only"),
        (VERSIONED, [1, 2, 3], False, "the merge engine 'versioned' takes whole rows only"),
        (AGGREGATION, [1, 3], False, "the primary key is not complete"),
    ],
)
def test_other_targets_are_refused_with_code_35(
    table: Table, targets: Sequence[int], overwrite: bool, reason: str
) -> None:
    with pytest.raises(FlussError) as caught:
        check_targets(table, targets, is_overwrite=overwrite)
    assert caught.value.error_code == ErrorCode.INVALID_TARGET_COLUMN
    assert caught.value.message.startswith("Table db.t cannot be written like this: ")
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("table", "is_deleted"), [(PLAIN, True), (FIRST_ROW, False), (VERSIONED, False), (AGGREGATION, False)]
)
def test_deletes_are_allowed_by_default_unless_there_is_a_merge_engine(table: Table, is_deleted: bool) -> None:
    merging = Merging(table)
    row = (1, 2, "k", 3)
    merging.put(row)
    assert merging.put(Delete(row)) == ([("-D", row)] if is_deleted else [])


def test_overwriting_replaces_what_a_table_would_aggregate() -> None:
    builder = Schema.builder().column("k", IntType()).column("n", BigIntType(), aggregation=AggFunction.of("sum"))
    builder.column("m", BigIntType(), aggregation=AggFunction.of("sum"))
    merging = Merging(make_table(builder.primary_key(["k"]).build(), {"merge-engine": "aggregation"}))
    merging.put((1, 10, 1))
    assert merging.put((1, 5, 1)) == [("-U", (1, 10, 1)), ("+U", (1, 15, 2))]
    assert merging.put((1, 3, None), targets=[0, 1], overwrite=True) == [("-U", (1, 15, 2)), ("+U", (1, 3, 2))]
    assert merging.put((1, 4, 4), overwrite=True) == [("-U", (1, 3, 2)), ("+U", (1, 4, 4))]
    assert merging.put(Delete((1,)), overwrite=True) == [("-D", (1, 4, 4))]
