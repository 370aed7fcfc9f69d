"""Offsets as earlier releases wrote them into checkpoints: every bucket in plain sight, partitions by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluss.schema.table import TableBucket
from fluss.spark.naming import format_table_bucket
from fluss.spark.read.stream_offsets import BucketPosition, StreamOffset


def version_1(offset: StreamOffset, *, has_names: bool = True) -> dict[str, Any]:
    """Return the JSON of version 1; its first releases did not have the names of the table and its partitions."""
    found: dict[str, Any] = {"v": 1, "table_id": offset.table_id, "phase": "log", **_positions(offset.positions)}
    if offset.begun:
        found["begun"] = _positions(offset.begun)
    if offset.ends:
        found["ends"] = {format_table_bucket(bucket): end for bucket, end in offset.ends.items()}
    if offset.task_count is not None:
        found["tasks"] = offset.task_count
    if offset.is_initial:
        found["initial"] = True
    if has_names:
        if offset.table is not None:
            found["table"] = offset.table
        if offset.names:
            found["names"] = {str(id_): name for id_, name in offset.names.items()}
        if offset.newest_partition_id is not None:
            found["seen"] = offset.newest_partition_id
    return found


def _positions(positions: Mapping[TableBucket, BucketPosition]) -> dict[str, Any]:
    found: dict[str, Any] = {"b": {format_table_bucket(bucket): each.offset for bucket, each in positions.items()}}
    rows = [format_table_bucket(bucket) for bucket, each in positions.items() if each.has_rows]
    return {**found, "rows": rows} if rows else found
