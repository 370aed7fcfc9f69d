"""Lake tables that others have dropped, set back or altered: nothing is left out silently, and there is a way on."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from fluss import FlussError
from fluss.client.bulk import lake_snapshot_of, wait_for
from fluss.errors import ErrorCode
from fluss.tiering.rounds import tier
from fluss.tiering.verification import verify
from tests.unit.tiering.lakes import LAKE, LakeCluster, lake_table

EVENTS = pa.schema([("id", pa.int64()), ("name", pa.string())])
OFF = {"table.datalake.enabled": "false"}


def append(cluster: LakeCluster, name: str, first: int, stop: int) -> None:
    ids = range(first, stop)
    cluster.append(name, pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=EVENTS))


def switch(cluster: LakeCluster, name: str, properties: dict[str, str]) -> None:
    wait_for(cluster.admin.alter_table(name, set_properties=properties))


def ids_of(cluster: LakeCluster, name: str) -> list[Any]:
    return sorted(cluster.table(name).to_arrow().column("id").to_pylist())


def test_a_lake_table_that_was_set_back_gets_no_more_rows(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)
    tier(table)
    append(lake_cluster, name, 10, 20)
    newest = tier(table).snapshot_id
    assert newest is not None
    first = lake_table(table).metadata.snapshots[0].snapshot_id
    lake_table(table).manage_snapshots().create_tag(first, "before").set_current_snapshot(first).commit()
    assert lake_table(table).current_snapshot().snapshot_id == first
    append(lake_cluster, name, 20, 30)
    with pytest.raises(FlussError, match="was set back behind the snapshot") as refused:
        tier(table)
    assert refused.value.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    assert ids_of(lake_cluster, name) == [*range(30)], "readers have the snapshot that Fluss knows"
    # Another snapshot on top of the old one does not hide it.
    foreign = lake_table(table)
    foreign.append(foreign.schema().as_arrow().empty_table())
    with pytest.raises(FlussError, match="was set back behind the snapshot"):
        tier(table)
    lake_table(table).manage_snapshots().set_current_snapshot(newest).commit()
    assert tier(table).rows == 10
    assert verify(table).is_right
    assert ids_of(lake_cluster, name) == [*range(30)]


def test_a_lake_that_was_dropped_can_be_switched_off_and_begun_anew(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)
    tier(table)
    shutil.rmtree(lake_table(table).location().removeprefix("file://"))
    append(lake_cluster, name, 10, 20)
    for ask in (table.to_arrow, lambda: tier(table), lambda: verify(table)):
        with pytest.raises(FlussError, match=r"switch 'table\.datalake\.enabled' off and on") as refused:
            ask()
        assert refused.value.error_code == ErrorCode.TABLE_NOT_EXIST
    switch(lake_cluster, name, OFF)
    assert ids_of(lake_cluster, name) == [*range(20)]
    switch(lake_cluster, name, LAKE)
    table = lake_cluster.table(name)
    assert lake_snapshot_of(table) is None, "what was known of the old lake table says nothing about the new one"
    assert tier(table).rows == 20
    assert verify(table).is_right
    # One that is still there is gone on with.
    switch(lake_cluster, name, OFF)
    append(lake_cluster, name, 20, 25)
    switch(lake_cluster, name, LAKE)
    assert tier(lake_cluster.table(name)).rows == 5
    assert ids_of(lake_cluster, name) == [*range(25)]


def test_an_empty_lake_table_in_the_place_of_another_gets_no_rows(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)
    tier(table)
    old = lake_table(table)
    schema, spec, order, properties = old.schema(), old.spec(), old.sort_order(), old.properties
    old.catalog.drop_table(old.name())
    old.catalog.create_table(old.name(), schema, partition_spec=spec, sort_order=order, properties=properties)
    append(lake_cluster, name, 10, 20)
    with pytest.raises(FlussError, match="the lake table does not have it"):
        tier(table)


def test_the_lake_of_a_dropped_table_is_not_that_of_a_new_one(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)
    tier(table)
    wait_for(lake_cluster.admin.drop_table(name, False))
    lake_cluster.create(name, EVENTS, properties=OFF)
    append(lake_cluster, name, 100, 105)
    with pytest.raises(FlussError, match="rows of another table of this name, which was dropped") as refused:
        switch(lake_cluster, name, LAKE)
    assert refused.value.error_code == ErrorCode.LAKE_TABLE_ALREADY_EXIST
    assert ids_of(lake_cluster, name) == [*range(100, 105)]


def test_columns_that_others_add_are_null_and_those_that_they_remove_are_missed(
    lake_cluster: LakeCluster, name: str
) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)
    tier(table)
    with lake_table(table).update_schema() as update:
        update.add_column("remark", StringType())
    append(lake_cluster, name, 10, 20)
    assert tier(table).rows == 10
    assert lake_table(table).scan().to_arrow().column("remark").null_count == 20
    assert verify(table).is_right
    with lake_table(table).update_schema() as update:
        update.rename_column("name", "title")
    with pytest.raises(FlussError, match="has no column 'name' any more"):
        table.to_arrow()
    assert sorted(table.to_arrow(["id"]).column("id").to_pylist()) == [*range(20)]
    with lake_table(table).update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("title", "name")
        update.add_column("needed", StringType(), required=True)
    append(lake_cluster, name, 20, 30)
    with pytest.raises(FlussError, match="'needed' that must have values"):
        tier(table)


def test_what_is_said_about_a_removed_column_is_right(lake_cluster: LakeCluster, name: str) -> None:
    table = lake_cluster.create(name, EVENTS)
    append(lake_cluster, name, 0, 10)
    tier(table)
    with lake_table(table).update_schema() as update:
        update.delete_column("name")
    append(lake_cluster, name, 10, 20)
    with pytest.raises(FlussError, match=r"'name' any more.*added again is null in all rows that the lake has"):
        tier(table)
    with lake_table(table).update_schema() as update:
        update.add_column("name", StringType())
        update.move_after("name", "id")
    assert tier(table).rows == 10
    assert lake_table(table).scan().to_arrow().column("name").null_count == 10
    assert not verify(table).is_right
    # The other way: begin anew with what Fluss has.
    shutil.rmtree(lake_table(table).location().removeprefix("file://"))
    switch(lake_cluster, name, OFF)
    switch(lake_cluster, name, LAKE)
    table = lake_cluster.table(name)
    assert tier(table).rows == 20
    assert lake_table(table).scan().to_arrow().column("name").null_count == 0
    assert verify(table).is_right


def test_columns_may_have_dots_in_their_names(lake_cluster: LakeCluster, name: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("a.b", pa.string()), ("a", pa.struct([("c", pa.int32())]))])
    table = lake_cluster.create(name, columns)
    lake_cluster.append(name, pa.table({"id": [1, 2], "a.b": ["x", "y"], "a": [{"c": 1}, None]}, schema=columns))
    tier(table)
    lake_cluster.append(name, pa.table({"id": [3], "a.b": ["x"], "a": [{"c": 3}]}, schema=columns))
    found = table.to_arrow(["id", "a.b"], filter="`a.b` = 'x'")
    assert sorted(found.to_pylist(), key=repr) == [{"id": 1, "a.b": "x"}, {"id": 3, "a.b": "x"}]
