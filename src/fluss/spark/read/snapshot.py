"""Snapshots: which records of a table a DataFrame reads, however often and in however many ways it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket, TableInfo
from fluss.spark.naming import format_table_bucket, parse_table_bucket

if TYPE_CHECKING:
    from fluss.filter.row_filter import RowFilter


@dataclass(frozen=True, slots=True)
class LakePart:
    """What is read of the lake of a table: partitions by their values, at one snapshot."""

    snapshot_id: int
    # None stands for all of them.
    partitions: frozenset[tuple[str, ...]] | None = None
    # Buckets with a primary key whose rows come from Fluss, and not from the lake.
    in_fluss: frozenset[TableBucket] = frozenset()
    # Whether files that can be read as they are, are read by Spark itself.
    is_rest: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """From where to where the log of each bucket is read, and the names of the partitions they are in.

    With a ``lake`` that is what the lake does not have.
    """

    table_id: int
    ranges: Mapping[TableBucket, tuple[int, int]]
    partition_names: Mapping[int | None, str | None]
    lake: LakePart | None = None

    def to_text(self) -> str:
        """Return the snapshot as an option has it."""
        names = {str(id_): name for id_, name in self.partition_names.items() if id_ is not None}
        ranges = {format_table_bucket(bucket): both for bucket, both in self.ranges.items()}
        found: dict[str, object] = {"table": self.table_id, "partitions": names, "ranges": ranges}
        if self.lake is not None:
            partitions = None if self.lake.partitions is None else sorted(self.lake.partitions)
            in_fluss = sorted(map(format_table_bucket, self.lake.in_fluss))
            found["lake"] = {
                "snapshot": self.lake.snapshot_id,
                "partitions": partitions,
                "in_fluss": in_fluss,
                "is_rest": self.lake.is_rest,
            }
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, info: TableInfo) -> Snapshot:
        """Read what ``to_text`` wrote; a FlussError if the table is another one now."""
        given = json.loads(text)
        table_id = given["table"]
        if table_id != info.table_id:
            raise FlussError(
                f"{info.table_path} was dropped and created again since the read was planned; read it again",
                ErrorCode.TABLE_NOT_EXIST,
            )
        names: dict[int | None, str | None] = {int(id_): name for id_, name in given["partitions"].items()}
        ranges = {parse_table_bucket(table_id, key): (start, stop) for key, (start, stop) in given["ranges"].items()}
        return cls(table_id, ranges, names or {None: None}, _lake_part(table_id, given.get("lake")))


def _lake_part(table_id: int, found: Mapping[str, Any] | None) -> LakePart | None:
    if found is None:
        return None
    partitions = None if found["partitions"] is None else frozenset(map(tuple, found["partitions"]))
    in_fluss = frozenset(parse_table_bucket(table_id, key) for key in found["in_fluss"])
    return LakePart(found["snapshot"], partitions, in_fluss, found["is_rest"])


def partition_may_match(info: TableInfo, partition_name: str | None, row_filter: RowFilter | None) -> bool:
    """Whether rows of a partition can be kept by a filter; always true without partitions."""
    if row_filter is None or partition_name is None:
        return True
    values = partition_name.split("$")
    if len(values) != len(info.partition_keys):
        return True
    return row_filter.may_match(dict(zip(info.partition_keys, values, strict=True)))
