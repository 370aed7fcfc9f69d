"""With the merge engine ``first_row`` the first row of a key stays.
Shown by repeated keys in one batch and in several, and by what deletes and overwriting do."""

from __future__ import annotations

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import Schema
from fluss.schema.types import IntType, StringType
from tests.unit.server.merge.merging import Delete, Merging, encode_row, make_table

SCHEMA = Schema.builder().column("id", IntType()).column("name", StringType()).primary_key(["id"]).build()


def merging(**properties: str) -> Merging:
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return Merging(make_table(SCHEMA, {"merge-engine": "First_Row", **named}))


@pytest.mark.parametrize("image", ["FULL", "WAL"])
def test_ten_versions_of_each_key_give_one_insert_each(image: str) -> None:
    table = merging(changelog_image=image)
    rows = [(key, f"{key}-{version}") for version in range(10) for key in range(5)]
    assert table.put(*rows[:25]) == [("+I", row) for row in rows[:5]]
    assert table.put(*rows[25:]) == []
    assert table.put((5, "new"), *rows[:3]) == [("+I", (5, "new"))]
    assert table.store[b"\1"] == b"\1\0" + encode_row(table.table, (1, "1-0"), 1)
    assert table.row_count == (6 if image == "FULL" else None)


def test_deletes_are_ignored_unless_they_are_refused() -> None:
    table = merging()
    table.put((1, "a"))
    assert table.put(Delete((1,)), (1, "b"), (2, "c"), Delete((2,))) == [("+I", (2, "c"))]
    with pytest.raises(FlussError) as caught:
        merging(delete_behavior="disable").put(Delete((1,)))
    assert caught.value.error_code == ErrorCode.DELETION_DISABLED_EXCEPTION


def test_overwriting_bypasses_the_engine() -> None:
    table = merging()
    table.put((1, "a"))
    assert table.put((1, "b"), overwrite=True) == [("-U", (1, "a")), ("+U", (1, "b"))]
    assert table.put((1, None), targets=[0], overwrite=True) == []
    assert table.put(Delete((1,)), overwrite=True) == [("-D", (1, "b"))]
