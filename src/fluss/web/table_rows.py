"""Reading a few rows of a table for a page: the last ones, the current ones, changes, a live tail; all within limits.

A read ends when it has enough rows, when it has looked at what there is, or when its time is over; then its scanner is
closed, which ends its requests. Rows are decoded by the threads of the client.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss import FlussTable, LogScanner
from fluss.client.bulk import named_buckets_of, offsets_of
from fluss.errors import FlussError
from fluss.schema.offsets import LATEST_OFFSET, OffsetSpec
from fluss.schema.table import TableBucket
from fluss.web.json_rows import json_rows, json_value

ROWS_MAX: Final = 500
# How long one read may take.
READ_TIME_S: Final = 5.0
_BUCKETS_MAX: Final = 64
# With a filter, how many records of all buckets together are looked at, from the end backwards.
_LOOK_BACK_RECORDS: Final = 500_000
_POLL_MS: Final = 250
# Of a live tail: rows of one message, and how long a silent one waits before it says that it is alive.
_TAIL_ROWS_MAX: Final = 200
_TAIL_POLL_MS: Final = 1000
# The first columns of a changelog.
_CHANGE_COLUMNS: Final = ("_change_type", "_log_offset", "_commit_timestamp")


@dataclass(frozen=True, slots=True)
class PageRows:
    """Rows for a page, and what there is to say about them."""

    columns: list[str]
    rows: list[list[Any]]
    # Whether the read ended because of a limit, so that there may be more.
    is_cut: bool
    note: str

    def to_json(self) -> dict[str, Any]:
        return {"columns": self.columns, "rows": self.rows, "is_cut": self.is_cut, "note": self.note}


async def last_changes(
    table: FlussTable, *, limit: int, condition: str | None, partition: str | None, with_types: bool
) -> PageRows:
    """Return the newest records of a log, or the newest changes of a table with a key, the newest first."""
    buckets, has_more_buckets = await _buckets(table, partition)
    ends = await asyncio.to_thread(offsets_of, table, buckets, OffsetSpec.latest())
    starts = await asyncio.to_thread(offsets_of, table, buckets, OffsetSpec.earliest())
    look_back = limit if condition is None else max(limit, _LOOK_BACK_RECORDS // max(1, len(buckets)))
    wanted = {bucket: max(starts[bucket], ends[bucket] - look_back) for bucket in buckets}
    wanted = {bucket: start for bucket, start in wanted.items() if start < ends[bucket]}
    kept: deque[pa.Table] = deque()
    kept_count, is_late = 0, False
    async with _changelog(table, condition) as scanner:
        if wanted:
            await asyncio.to_thread(_subscribe, scanner, wanted)
        ends_at = time.monotonic() + READ_TIME_S
        while wanted and any(scanner.position().get(bucket, 0) < ends[bucket] for bucket in wanted):
            is_late = time.monotonic() > ends_at
            if is_late:
                break
            found = await scanner.poll_arrow_async(_POLL_MS)
            if found.num_rows:
                kept.append(found)
                kept_count += found.num_rows
                # Of what is read, only as much is kept as can be among the last rows of each bucket.
                if kept_count > 4 * limit * max(1, len(wanted)):
                    kept = deque([_newest(kept, limit * len(wanted))])
                    kept_count = kept[0].num_rows
    if not kept:
        return PageRows(_shown_columns(table, with_types), [], is_late, _note(is_late, has_more_buckets, condition))
    rows = _newest(kept, limit)
    return await asyncio.to_thread(
        _found, rows, with_types, is_late or has_more_buckets, _note(is_late, has_more_buckets, condition)
    )


def _newest(tables: Collection[pa.Table], count: int) -> pa.Table:
    joined = pa.concat_tables(tables)
    order = [("_commit_timestamp", "descending"), ("_log_offset", "descending")]
    return joined.sort_by(order).slice(0, count)


def _found(rows: pa.Table, with_types: bool, is_cut: bool, note: str) -> PageRows:
    if not with_types:
        rows = rows.drop_columns([_CHANGE_COLUMNS[0]])
    return PageRows(rows.column_names, json_rows(rows), is_cut, note)


def _shown_columns(table: FlussTable, with_types: bool) -> list[str]:
    first = _CHANGE_COLUMNS if with_types else _CHANGE_COLUMNS[1:]
    return [*first, *table.get_table_info().schema.column_names]


def _note(is_late: bool, has_more_buckets: bool, condition: str | None) -> str:
    notes = []
    if is_late:
        notes.append(f"stopped after {READ_TIME_S:g} s")
    if has_more_buckets:
        notes.append(f"of the first {_BUCKETS_MAX} buckets; choose a partition to see others")
    if condition is not None and not is_late:
        notes.append(f"among the last {_LOOK_BACK_RECORDS:,} records")
    return "; ".join(notes)


async def current_rows(table: FlussTable, *, limit: int, condition: str | None, partition: str | None) -> PageRows:
    """Return some rows of a table with a primary key as they are now."""
    if condition is not None:
        return await _filtered_rows(table, limit=limit, condition=condition, partition=partition)
    buckets, has_more_buckets = await _buckets(table, partition)
    found: list[pa.Table] = []
    count = 0
    async with asyncio.timeout(READ_TIME_S):
        for bucket in buckets:
            scanner = table.new_scan().limit(limit - count).create_bucket_batch_scanner(bucket)
            rows = await scanner.to_arrow()
            found.append(rows)
            count += rows.num_rows
            if count >= limit:
                break
    joined = pa.concat_tables(found) if found else table.arrow_schema.empty_table()
    is_cut = count >= limit or has_more_buckets
    return await asyncio.to_thread(
        lambda: PageRows(joined.column_names, json_rows(joined), is_cut, "in no order" if is_cut else "")
    )


async def _filtered_rows(table: FlussTable, *, limit: int, condition: str, partition: str | None) -> PageRows:
    found: list[pa.Table] = []
    count, is_late = 0, False
    async with _changelog(table, condition) as scanner:
        partitions = None if partition is None else [partition]
        await asyncio.to_thread(scanner.subscribe_from_snapshot, partitions)
        ends_at = time.monotonic() + READ_TIME_S
        while count < limit:
            is_late = time.monotonic() > ends_at
            if is_late:
                break
            rows = await scanner.poll_arrow_async(_POLL_MS)
            if not rows.num_rows and scanner.position() and all(at >= 0 for at in scanner.position().values()):
                # All snapshots are read, and their buckets are at the changes behind them.
                break
            snapshot = rows.filter(pc.less(rows.column("_log_offset"), 0))
            found.append(snapshot)
            count += snapshot.num_rows
    joined = pa.concat_tables(found).slice(0, limit).drop_columns(list(_CHANGE_COLUMNS)) if found else None
    if joined is None:
        return PageRows(list(table.get_table_info().schema.column_names), [], is_late, _note(is_late, False, None))
    return await asyncio.to_thread(
        lambda: PageRows(joined.column_names, json_rows(joined), is_late or count >= limit, _note(is_late, False, None))
    )


async def rows_from_now_on(table: FlussTable, condition: str | None) -> AsyncGenerator[dict[str, Any], None]:
    """Yield what is written from now on, as messages for a page; an empty one now and then if nothing is."""
    async with _changelog(table, condition) as scanner:
        await asyncio.to_thread(scanner.subscribe_all, LATEST_OFFSET)
        yield {"columns": [*_CHANGE_COLUMNS, *table.get_table_info().schema.column_names], "rows": [], "skipped": 0}
        while True:
            found = await scanner.poll_arrow_async(_TAIL_POLL_MS)
            skipped = max(0, found.num_rows - _TAIL_ROWS_MAX)
            shown = found.slice(skipped)
            yield {
                "columns": shown.column_names,
                "rows": await asyncio.to_thread(json_rows, shown) if shown.num_rows else [],
                "skipped": skipped,
            }


async def look_up(table: FlussTable, key: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row with a key, whose values are texts as the user has typed them."""
    info = table.get_table_info()
    wanted = {}
    for name in info.primary_keys:
        if name not in key:
            raise FlussError(f"The key has the columns {', '.join(info.primary_keys)}; '{name}' is missing")
        wanted[name] = _typed(name, table.arrow_schema.field(name).type, str(key[name]))
    async with asyncio.timeout(READ_TIME_S):
        row = await table.new_lookup().create_lookuper().lookup(wanted)
    return None if row is None else {name: json_value(value) for name, value in row.items()}


def _typed(name: str, data_type: pa.DataType, text: str) -> Any:
    if pa.types.is_string(data_type):
        return text
    try:
        if pa.types.is_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
            return bytes.fromhex(text.removeprefix("0x"))
        return pa.array([text]).cast(data_type)[0].as_py()
    except (ValueError, pa.ArrowException):
        raise FlussError(f"'{text}' is no {data_type} for the column '{name}'") from None


# Scanners


@asynccontextmanager
async def _changelog(table: FlussTable, condition: str | None) -> AsyncIterator[LogScanner[Any]]:
    scan = table.new_scan()
    if condition is not None:
        scan = scan.filter(condition)
    scanner = await scan.create_changelog_scanner()
    try:
        yield scanner
    finally:
        await asyncio.to_thread(scanner.close)


def _subscribe(scanner: LogScanner[Any], starts: dict[TableBucket, int]) -> None:
    if scanner.is_partitioned():
        offsets = {(bucket.partition_id or 0, bucket.bucket_id): start for bucket, start in starts.items()}
        scanner.subscribe_partition_buckets(offsets)
    else:
        scanner.subscribe_buckets({bucket.bucket_id: start for bucket, start in starts.items()})


async def _buckets(table: FlussTable, partition: str | None) -> tuple[Sequence[TableBucket], bool]:
    """Return the buckets to read, those of the newest partitions first, and whether there are more."""
    named = await asyncio.to_thread(named_buckets_of, table)
    if partition is not None:
        chosen = [bucket for bucket, name in named.items() if name == partition]
        if not chosen:
            raise FlussError(f"'{table.table_path}' has no partition '{partition}'")
        return chosen[:_BUCKETS_MAX], len(chosen) > _BUCKETS_MAX
    newest_first = sorted(named, key=lambda bucket: (-(bucket.partition_id or 0), bucket.bucket_id))
    return newest_first[:_BUCKETS_MAX], len(newest_first) > _BUCKETS_MAX
