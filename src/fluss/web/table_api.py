"""``/api`` about databases and tables: what there is, one table with its buckets and partitions, its rows, a live tail.

Everything is asked for as the user who looks, through the client, so rights are those of the protocol.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from fluss import FlussTable
from fluss.client.bulk import lake_snapshot_of, offsets_of, partitions_of
from fluss.errors import ErrorCode, FlussError
from fluss.options import HIDDEN, is_secret_key
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket, TableInfo, TablePath
from fluss.server.operator_view import BucketFacts, OperatorView
from fluss.web.server_api import UserHandler
from fluss.web.sessions import Session
from fluss.web.table_rows import ROWS_MAX, current_rows, last_changes, look_up, rows_from_now_on

_PAGE_ROWS: Final = 100
_PAGE_ROWS_MAX: Final = 1000
# Reads of rows at a time, and live tails, of all users together.
_READS_MAX: Final = 4
_TAILS_MAX: Final = 32
# A tail ends after so long; a browser that still shows it starts another one.
_TAIL_S: Final = 1800.0
_TAIL_START_S: Final = 15.0
_TABLE: Final = "tables/{database}/{table}"
TAIL_PATH: Final = f"{_TABLE}/tail"


class TableApi:
    """Answers about tables. Belongs to the loop of HTTP."""

    def __init__(self, view: OperatorView) -> None:
        self._view = view
        self._reads = asyncio.Semaphore(_READS_MAX)
        self._tails: set[asyncio.Task[Any]] = set()

    def routes(self) -> Mapping[str, UserHandler]:
        return {
            "databases": self._databases,
            "tables": self._tables_page,
            _TABLE: self._table,
            f"{_TABLE}/buckets": self._buckets,
            f"{_TABLE}/partitions": self._partitions,
            f"{_TABLE}/rows": self._rows,
            f"{_TABLE}/changes": self._changes,
            f"{_TABLE}/lookup": self._lookup,
            f"{_TABLE}/consumers": self._consumers,
            f"{_TABLE}/storage": self._storage,
        }

    # What there is

    async def _databases(self, request: web.Request, session: Session) -> Any:
        admin = (await session.connection()).get_admin()
        summaries = await admin.list_database_summaries()
        return {
            "databases": [
                {"name": summary.database_name, "tables": summary.table_count, "created_ms": summary.created_time}
                for summary in summaries
            ]
        }

    async def _tables_page(self, request: web.Request, session: Session) -> Any:
        """Return a page of all tables whose names contain a text, in the order of their names."""
        admin = (await session.connection()).get_admin()
        wanted, database = request.query.get("search", "").casefold(), request.query.get("database")
        databases = [database] if database else await admin.list_databases()
        names = [
            (database_name, name) for database_name in databases for name in await admin.list_tables(database_name)
        ]
        found = sorted(name for name in names if wanted in f"{name[0]}.{name[1]}".casefold())
        offset, limit = _page(request)
        return {
            "total": len(found),
            "offset": offset,
            "tables": [{"database": database, "table": name} for database, name in found[offset : offset + limit]],
        }

    # One table

    async def _open(self, request: web.Request, session: Session) -> FlussTable:
        return await (await session.connection()).get_table(_path(request))

    async def _table(self, request: web.Request, session: Session) -> Any:
        info = (await self._open(request, session)).get_table_info()
        return _table_facts(info)

    async def _partitions(self, request: web.Request, session: Session) -> Any:
        table = await self._open(request, session)
        if not table.get_table_info().is_partitioned():
            return {"total": 0, "offset": 0, "partitions": []}
        wanted = request.query.get("search", "").casefold()
        found = [
            each for each in await asyncio.to_thread(partitions_of, table) if wanted in each.partition_name.casefold()
        ]
        found.sort(key=lambda each: -each.partition_id)
        offset, limit = _page(request)
        return {
            "total": len(found),
            "offset": offset,
            "partitions": [
                {"id": each.partition_id, "name": each.partition_name} for each in found[offset : offset + limit]
            ],
        }

    async def _buckets(self, request: web.Request, session: Session) -> Any:
        """Return a page of the buckets of a table, or of one of its partitions."""
        table = await self._open(request, session)
        info, path = table.get_table_info(), _path(request)
        partition_id = await _partition_id(table, request.query.get("partition"))
        offset, limit = _page(request)
        numbers = range(offset, min(offset + limit, info.num_buckets))
        buckets = [TableBucket.new_with_partition(info.table_id, partition_id, number) for number in numbers]
        starts = await asyncio.to_thread(offsets_of, table, buckets, OffsetSpec.earliest())
        ends = await asyncio.to_thread(offsets_of, table, buckets, OffsetSpec.latest())
        facts = await self._view.buckets(path, partition_id, numbers, session.guest)
        rows = await asyncio.to_thread(_with_sizes, facts)
        for row, bucket in zip(rows, buckets, strict=True):
            row["start"], row["end"] = starts[bucket], ends[bucket]
        return {"total": info.num_buckets, "offset": offset, "buckets": rows}

    async def _storage(self, request: web.Request, session: Session) -> Any:
        """Say how far the lake and remote storage have a table."""
        table, path = await self._open(request, session), _path(request)
        tiering = await self._view.tiering(path, session.guest)
        snapshot = None if tiering is None else await asyncio.to_thread(lake_snapshot_of, table)
        return {
            "lake": None
            if tiering is None
            else {
                "state": tiering.state,
                "freshness_ms": tiering.freshness_ms,
                "failures": tiering.failure_count,
                "file_bytes": tiering.file_bytes,
                "records": tiering.record_count,
                "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
                "offsets": []
                if snapshot is None
                else [
                    {"partition_id": bucket.partition_id, "bucket": bucket.bucket_id, "offset": offset}
                    for bucket, offset in snapshot.table_buckets_offset.items()
                ][:_PAGE_ROWS_MAX],
            },
            "remote": {"is_enabled": bool(self._view.options.remote_locations)},
        }

    async def _consumers(self, request: web.Request, session: Session) -> Any:
        table = await self._open(request, session)
        async with self._reads:
            consumers = await table.consumers()
        return {
            "consumers": [
                {
                    "name": consumer.name,
                    "members": list(consumer.members),
                    "lag": consumer.lag,
                    "buckets": [
                        {
                            "partition_id": each.bucket.partition_id,
                            "bucket": each.bucket.bucket_id,
                            "member": each.member,
                            "position": each.position,
                            "end": each.end,
                            "lag": each.lag,
                        }
                        for each in consumer.buckets[:_PAGE_ROWS_MAX]
                    ],
                }
                for consumer in consumers[:_PAGE_ROWS_MAX]
            ]
        }

    # Rows

    async def _rows(self, request: web.Request, session: Session) -> Any:
        """Return the newest rows of a log table, or rows of a table with a primary key as they are now."""
        table = await self._open(request, session)
        limit, condition, partition = _row_limit(request), _condition(request), request.query.get("partition") or None
        async with self._reads:
            if table.has_primary_key():
                found = await current_rows(table, limit=limit, condition=condition, partition=partition)
            else:
                found = await last_changes(
                    table, limit=limit, condition=condition, partition=partition, with_types=False
                )
        return found.to_json()

    async def _changes(self, request: web.Request, session: Session) -> Any:
        table = await self._open(request, session)
        async with self._reads:
            found = await last_changes(
                table,
                limit=_row_limit(request),
                condition=_condition(request),
                partition=request.query.get("partition") or None,
                with_types=True,
            )
        return found.to_json()

    async def _lookup(self, request: web.Request, session: Session) -> Any:
        table = await self._open(request, session)
        try:
            key = json.loads(request.query.get("key", ""))
        except (ValueError, RecursionError):
            key = None
        if not isinstance(key, dict):
            raise FlussError('the key is an object of columns and values, such as {"id": "1"}')
        return {"row": await look_up(table, key)}

    async def tail(self, request: web.Request, session: Session) -> web.StreamResponse:
        """Send what is written from now on, as server-sent events."""
        task = asyncio.current_task()
        assert task is not None
        if not session.may_tail or len(self._tails) >= _TAILS_MAX:
            raise FlussError("there are too many live tails; close one", ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION)
        # Before anything is waited for: others come in the meantime.
        self._tails.add(task)
        session.tail_count += 1
        try:
            return await self._send_tail(request, session)
        finally:
            self._tails.discard(task)
            session.tail_count -= 1

    async def _send_tail(self, request: web.Request, session: Session) -> web.StreamResponse:
        table = await self._open(request, session)
        async with aclosing(rows_from_now_on(table, _condition(request))) as messages:
            # What is wrong with the filter or the table is found before the answer begins.
            async with asyncio.timeout(_TAIL_START_S):
                first = await anext(messages)
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
            ends_at = time.monotonic() + _TAIL_S
            try:
                await response.prepare(request)
                await response.write(_event(first))
                async for message in messages:
                    # A new password, or a logout, ends what has begun before it.
                    if time.monotonic() > ends_at or not session.is_current:
                        break
                    await response.write(_event(message) if message["rows"] else b": still here\n\n")
                await response.write(b"event: end\ndata: {}\n\n")
            except ConnectionError:
                # The reader has gone.
                pass
            except FlussError as error:
                await response.write(_event({"error": error.message}))
            return response

    def end_tails(self) -> None:
        for task in self._tails:
            task.cancel()


def _event(message: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def _path(request: web.Request) -> TablePath:
    return TablePath(request.match_info["database"], request.match_info["table"])


def _number(request: web.Request, name: str, default: int, highest: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise FlussError(f"'{name}' must be a number, got '{text[:20]}'")
    return min(int(text), highest)


def _page(request: web.Request) -> tuple[int, int]:
    return _number(request, "offset", 0, 10**9), max(1, _number(request, "limit", _PAGE_ROWS, _PAGE_ROWS_MAX))


def _row_limit(request: web.Request) -> int:
    return max(1, _number(request, "limit", _PAGE_ROWS, ROWS_MAX))


def _condition(request: web.Request) -> str | None:
    return request.query.get("filter", "").strip() or None


async def _partition_id(table: FlussTable, name: str | None) -> int | None:
    if not table.get_table_info().is_partitioned():
        return None
    if not name:
        raise FlussError(f"'{table.table_path}' has partitions; say which one with ?partition=")
    for partition in await asyncio.to_thread(partitions_of, table):
        if partition.partition_name == name:
            return partition.partition_id
    raise FlussError(f"'{table.table_path}' has no partition '{name}'", ErrorCode.PARTITION_NOT_EXISTS)


def _table_facts(info: TableInfo) -> dict[str, Any]:
    schema = info.schema
    keys, partition_keys = set(info.primary_keys), set(info.partition_keys)
    return {
        "database": info.table_path.database_name,
        "table": info.table_path.table_name,
        "id": info.table_id,
        "schema_id": info.schema_id,
        "comment": info.comment,
        "created_ms": info.created_time,
        "modified_ms": info.modified_time,
        "buckets": info.num_buckets,
        "bucket_keys": list(info.bucket_keys),
        "primary_keys": list(info.primary_keys),
        "partition_keys": list(info.partition_keys),
        "log_format": str(info.log_format),
        "columns": [
            {
                "name": column.name,
                "type": str(column.data_type),
                "comment": column.comment,
                "is_key": column.name in keys,
                "is_partition": column.name in partition_keys,
            }
            for column in schema.columns
        ],
        "properties": _sorted(info.properties),
        "custom_properties": _sorted(info.custom_properties),
    }


def _sorted(properties: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": HIDDEN if is_secret_key(key) else value} for key, value in sorted(properties.items())]


def _with_sizes(facts: Iterable[BucketFacts]) -> list[dict[str, Any]]:
    """Return buckets with what they take on the disk. Blocking."""
    return [
        {
            "bucket": bucket.bucket_id,
            "state": bucket.state,
            "segments": bucket.segment_count,
            "log_bytes": _directory_bytes(bucket.log_directory) if bucket.log_bytes is None else bucket.log_bytes,
            "kv_bytes": None if bucket.kv_directory is None else _directory_bytes(bucket.kv_directory),
            "remote_start": bucket.remote_start,
            "remote_end": bucket.remote_end,
            "remote_bytes": bucket.remote_bytes,
        }
        for bucket in facts
    ]


def _directory_bytes(directory: Path) -> int:
    total = 0
    try:
        for found in directory.rglob("*"):
            # Files come and go while they are looked at.
            try:
                status = found.lstat()
            except FileNotFoundError:
                continue
            total += status.st_size if not found.is_dir() else 0
    except FileNotFoundError:
        return total
    return total
