"""Rows that are read by Spark and written back are the same rows as before, but for what is set: what Spark sees with
fewer digits than a table has is refused. Nothing is read for that, so Spark is not needed."""

from __future__ import annotations

from typing import Any, cast

import pytest

import fluss
from fluss import DataTypes
from fluss.errors import FlussError
from fluss.schema.table import TableInfo
from fluss.schema.types import DataField, DataType
from fluss.spark.write.row_changes import Merge, check_keys, updated_rows

_NOTHING = cast(Any, object())


def _info(key: DataType, **columns: DataType) -> TableInfo:
    builder = fluss.Schema.builder().column("k", key)
    for name, data_type in columns.items():
        builder = builder.column(name, data_type)
    descriptor = fluss.TableDescriptor(builder.primary_key(["k"]).build(), bucket_count=1)
    return TableInfo._create(fluss.TablePath("fluss", "t"), 7, 1, descriptor, 1000, 1000)


def _merge(info: TableInfo) -> Merge:
    nothing = cast(Any, None)
    return Merge(info, nothing, nothing, _NOTHING, nothing, nothing, is_case_sensitive=False)


@pytest.mark.parametrize("key", [DataTypes.timestamp(9), DataTypes.timestamp_ltz(7)])
def test_rows_are_not_changed_by_keys_that_spark_cuts(key: DataType) -> None:
    info = _info(key, price=DataTypes.int())
    for change in (lambda: check_keys(info), lambda: _merge(info)):
        with pytest.raises(FlussError, match=r"'k' of .* other keys would be written"):
            change()
    with pytest.raises(FlussError, match="other keys would be written"):
        updated_rows(_NOTHING, info, {"price": "1"}, is_case_sensitive=False)


@pytest.mark.parametrize(
    "fine",
    [
        DataTypes.timestamp(9),
        DataTypes.array(DataTypes.timestamp_ltz(7)),
        DataTypes.map(DataTypes.string(), DataTypes.timestamp(8)),
        DataTypes.row([DataField("at", DataTypes.timestamp(9))]),
    ],
)
def test_an_update_does_not_cut_columns_that_it_does_not_set(fine: DataType) -> None:
    info = _info(DataTypes.int(), price=DataTypes.int(), seen=fine)
    with pytest.raises(FlussError, match=r"'seen' of .* it would be cut"):
        updated_rows(_NOTHING, info, {"price": "1"}, is_case_sensitive=False)
    for clause in (Merge.when_matched_update, Merge.when_not_matched_by_source_update):
        with pytest.raises(FlussError, match=r"'seen' of .* it would be cut"):
            clause(_merge(info), {"price": "1"})
    # Rows that go, that are new, or whose column is set have nothing to lose.
    merge = _merge(info).when_matched_delete().when_not_matched_insert({"k": "source.k"})
    merge.when_matched_update({"SEEN": "source.seen"})


def test_columns_that_spark_sees_as_they_are_do_not_matter() -> None:
    info = _info(DataTypes.timestamp(6), price=DataTypes.int(), seen=DataTypes.timestamp_ltz(6), at=DataTypes.time(9))
    check_keys(info)
    _merge(info).when_matched_update({"price": "1"})
