"""Reads of the past: where the logs of a table ended at a time, or at offsets that the user has written down.

What a table with a primary key had at an offset is what ``rows_at`` finds out; so all it takes is the right offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing

from fluss import FlussTable
from fluss.client.bulk import LogRange, named_buckets_of, offsets_of, read_ranges
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import narrowest_column
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket
from fluss.spark.naming import format_bucket


def ended_at(
    ranges: Mapping[TableBucket, tuple[int, int]], stops: Mapping[TableBucket, int]
) -> dict[TableBucket, tuple[int, int]]:
    """Return what was there of logs when they ended at these offsets; without one, a log had not begun."""
    return {bucket: (min(start, stops.get(bucket, 0)), stops.get(bucket, 0)) for bucket, (start, _) in ranges.items()}


def stops_after(
    table: FlussTable, ranges: Mapping[TableBucket, tuple[int, int]], time_ms: int
) -> dict[TableBucket, int]:
    """Return where each log ended at a time: behind its last record of that time or earlier."""
    try:
        found = offsets_of(table, ranges, OffsetSpec.timestamp(time_ms + 1))
    except FlussError as error:
        if error.error_code != ErrorCode.INVALID_TIMESTAMP_EXCEPTION:
            raise
        raise FlussError(f"What {table.table_path} will have at {time_ms} ms is not known yet") from None
    columns = [narrowest_column(table.get_table_info().schema)]
    stops = {}
    for bucket, (_, latest) in ranges.items():
        # The answer comes from a coarse index: there may be older records behind it.
        stops[bucket] = latest
        with closing(
            read_ranges(table, [LogRange(bucket, min(found[bucket], latest), latest)], columns=columns)
        ) as runs:
            for run in runs:
                if run.timestamp_ms > time_ms:
                    stops[bucket] = run.base_offset
                    break
    return stops


def given_stops(
    table: FlussTable,
    names: Mapping[TableBucket, str | None],
    ranges: Mapping[TableBucket, tuple[int, int]],
    offsets: Mapping[str, int],
) -> dict[TableBucket, int]:
    """Return the buckets of offsets as users write them; a FlussError for one that is not there, or not yet.

    ``names`` are the buckets that are read. Others of the table may be given, too: they are left out.
    """
    by_key = _by_key(names)
    if not offsets.keys() <= by_key.keys():
        _check_existing(table, offsets)
    stops = {}
    for key, offset in offsets.items():
        bucket = by_key.get(key)
        if bucket is None:
            continue
        latest = ranges[bucket][1]
        if offset > latest:
            raise FlussError(f"The log of '{key}' of {table.table_path} ends at {latest}, before the offset {offset}")
        stops[bucket] = offset
    return stops


def _by_key(names: Mapping[TableBucket, str | None]) -> dict[str, TableBucket]:
    return {format_bucket(name, bucket.bucket_id): bucket for bucket, name in names.items()}


def _check_existing(table: FlussTable, offsets: Iterable[str]) -> None:
    """Refuse offsets of buckets that a table does not have: what they had cannot be read."""
    known = _by_key(named_buckets_of(table))
    for key in offsets:
        if key not in known:
            partition, _, _ = key.rpartition(":")
            info = table.get_table_info()
            if info.is_partitioned() and format_bucket(partition, 0) not in known:
                reason = f"it has no partition '{partition}' (any more)"
            else:
                named = "'<partition>:<bucket>'" if info.is_partitioned() else "':<bucket>'"
                reason = f"buckets are written {named} and numbered from 0 to {info.num_buckets - 1}"
            raise FlussError(f"{table.table_path} has no bucket '{key}' to be read at an offset: {reason}")


def version_of(table: FlussTable) -> str:
    """Return where the logs of a table end now, as VERSION AS OF takes it."""
    names = named_buckets_of(table)
    ends = offsets_of(table, names, OffsetSpec.latest())
    shown = {format_bucket(names[bucket], bucket.bucket_id): end for bucket, end in ends.items() if end}
    return json.dumps(shown)
