"""Carries out calls on a Fluss client for a test in another process: remote objects over a pair of pipes.

It runs inside the environment of an official client, where ``import fluss`` is that client, and uses only the parts of
the API that all generations share. What is asynchronous in one generation and not in the other looks the same from
outside: every awaitable is awaited before the answer. The tests load the same module to drive this project's client.

A request is a pickled tuple ``(operation, target, name, args, kwargs)``, an answer ``("value", encoded)`` or
``("error", class name, text, code, is retriable, traceback)``. Plain values travel as they are, Arrow data as IPC
bytes, everything else as the number of an object that stays here until ``reset``.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import inspect
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import fluss

PLAIN_TYPES = (
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    slice,
    decimal.Decimal,
    datetime.date,
    datetime.time,
    datetime.datetime,
    datetime.timezone,
)

MODULE_ID, TOOLS_ID = 0, 1
CLOSE_TIMEOUT_S = 60.0
POLL_TIMEOUT_MS = 1000


class Codec:
    """Turns values into what a pickle between two environments can carry, and back."""

    def __init__(self, number_of: Callable[[Any], int], object_of: Callable[[int], Any]) -> None:
        self._number_of = number_of
        self._object_of = object_of

    def encode(self, value: Any) -> tuple[str, Any]:
        # Exact types: a subclass, an enumeration for instance, is an object with behaviour of its own.
        if type(value) in PLAIN_TYPES:
            return "plain", value
        if isinstance(value, (list, tuple)):
            return ("list" if isinstance(value, list) else "tuple"), [self.encode(item) for item in value]
        if isinstance(value, dict):
            return "dict", [(self.encode(key), self.encode(item)) for key, item in value.items()]
        if isinstance(value, pa.Schema):
            return "schema", value.serialize().to_pybytes()
        if isinstance(value, (pa.Table, pa.RecordBatch)):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as stream:
                stream.write(value)
            return ("table" if isinstance(value, pa.Table) else "batch"), sink.getvalue().to_pybytes()
        return "object", self._number_of(value)

    def decode(self, encoded: tuple[str, Any]) -> Any:
        kind, value = encoded
        if kind == "plain":
            return value
        if kind == "list":
            return [self.decode(item) for item in value]
        if kind == "tuple":
            return tuple(self.decode(item) for item in value)
        if kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in value}
        if kind == "schema":
            return pa.ipc.read_schema(pa.py_buffer(value))
        if kind == "table":
            return pa.ipc.open_stream(value).read_all()
        if kind == "batch":
            # The stream of an empty batch holds one batch, too.
            return pa.ipc.open_stream(value).read_next_batch()
        assert kind == "object"
        return self._object_of(value)


async def settled(result: Any) -> Any:
    """Await what is awaitable, except a write handle: whether to wait for a write is the test's decision."""
    if isinstance(result, fluss.WriteResultHandle) or not inspect.isawaitable(result):
        return result
    return await result


class Tools:
    """What a test wants done next to the objects: many calls in one, and the syntax that no single call expresses."""

    def repr_of(self, value: Any) -> str:
        return repr(value)

    def class_name(self, value: Any) -> str:
        return type(value).__name__

    def is_equal(self, one: Any, other: Any) -> bool:
        return bool(one == other)

    def is_same(self, one: Any, other: Any) -> bool:
        return one is other

    def data_frame(self, columns: dict[str, list[Any]]) -> Any:
        import pandas as pd

        return pd.DataFrame(columns)

    def field(self, name: str, schema: pa.Schema) -> Any:
        """Return a field of a schema as an object, because fields do not travel on their own."""
        return schema.field(name)

    def record(self, record: Any) -> tuple[int, int, str, dict[str, Any]]:
        return record.offset, record.timestamp, record.change_type.short_string(), record.row

    def records(self, scan_records: Any) -> list[tuple[tuple[int | None, int], int, int, str, dict[str, Any]]]:
        """Return (bucket, offset, timestamp, change, row) of each record, as (partition id, bucket id)."""
        return [
            ((bucket.partition_id, bucket.bucket_id), *self.record(record))
            for bucket in scan_records.buckets()
            for record in scan_records.records(bucket)
        ]

    def append_all(self, writer: Any, rows: list[Any]) -> list[Any]:
        """Append rows without waiting; return the handles."""
        return [writer.append(row) for row in rows]

    def upsert_all(self, writer: Any, rows: list[Any]) -> list[Any]:
        """Upsert rows without waiting; return the handles."""
        return [writer.upsert(row) for row in rows]

    def delete_all(self, writer: Any, keys: list[Any]) -> list[Any]:
        """Delete keys without waiting; return the handles."""
        return [writer.delete(key) for key in keys]

    async def lookup_all(self, table: Any, keys: list[Any]) -> list[Any]:
        """Look keys up at the same time, each with a lookuper of its own: in one client they would wait in line."""
        lookups = [table.new_lookup().create_lookuper().lookup(key) for key in keys]
        return list(await asyncio.gather(*lookups))

    async def wait_all(self, handles: list[Any]) -> None:
        for handle in handles:
            await handle.wait()

    async def append_until(self, writer: Any, stop_file: str, window: int, pause_s: float) -> list[Any]:
        """Append numbered rows, ``window`` of them unacknowledged at most, until the file exists.

        Return (number, code of the failure or None) of each.
        """
        outcomes: list[Any] = []
        while not os.path.exists(stop_file):
            numbers = range(len(outcomes), len(outcomes) + window)
            for number, handle in [(number, writer.append({"id": number})) for number in numbers]:
                try:
                    await handle.wait()
                except fluss.FlussError as error:
                    outcomes.append((number, error.error_code))
                else:
                    outcomes.append((number, None))
            await asyncio.sleep(pause_s)
        return outcomes

    async def poll_records(self, scanner: Any, count: int, timeout_s: float) -> list[Any]:
        """Poll until ``count`` records came or the time is over; return them as ``records`` does."""
        found: list[Any] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < deadline:
            found += self.records(await settled(scanner.poll(POLL_TIMEOUT_MS)))
        return found

    async def poll_tables(self, scanner: Any, count: int, timeout_s: float) -> Any:
        """Poll Arrow tables until ``count`` rows came or the time is over; return one table."""
        tables = [await settled(scanner.poll_arrow(POLL_TIMEOUT_MS))]
        deadline = time.monotonic() + timeout_s
        while sum(table.num_rows for table in tables) < count and time.monotonic() < deadline:
            tables.append(await settled(scanner.poll_arrow(POLL_TIMEOUT_MS)))
        return pa.concat_tables(tables)

    async def poll_batches(self, scanner: Any, count: int, timeout_s: float) -> list[Any]:
        """Poll record batches until ``count`` rows came; return (bucket, base offset, last offset, batch) of each."""
        found: list[Any] = []
        deadline = time.monotonic() + timeout_s
        while sum(entry[3].num_rows for entry in found) < count and time.monotonic() < deadline:
            found += [self.batch(batch) for batch in await settled(scanner.poll_record_batch(POLL_TIMEOUT_MS))]
        return found

    def batch(self, batch: Any) -> tuple[tuple[int | None, int], int, int, Any]:
        bucket = batch.bucket
        return (bucket.partition_id, bucket.bucket_id), batch.base_offset, batch.last_offset, batch.batch

    async def iterate_records(self, scanner: Any, count: int) -> list[Any]:
        """Take ``count`` records with ``async for`` and leave the loop."""
        taken: list[Any] = []
        async for record in scanner:
            taken.append(self.record(record))
            if len(taken) == count:
                break
        return taken

    async def iterate_batches(self, scanner: Any, row_count: int) -> list[Any]:
        """Take batches with ``async for`` until they hold ``row_count`` rows."""
        found: list[Any] = []
        async for batch in scanner:
            found.append(self.batch(batch))
            if sum(entry[3].num_rows for entry in found) >= row_count:
                break
        return found

    async def append_inside(self, manager: Any, table: Any, rows: list[Any], fail: bool) -> None:
        """Append inside ``async with``: ``manager`` is the writer or the connection."""
        async with manager as entered:
            writer = entered if hasattr(entered, "append") else table.new_append().create_writer()
            for row in rows:
                writer.append(row)
            if fail:
                raise ValueError("the body failed")


class Driver:
    """Holds the objects and carries out requests, one at a time, on the event loop that awaits ``answer``."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        # Never used twice: what is left of an earlier test must not reach an object of the next one.
        self._next_id = TOOLS_ID + 1
        self._codec = Codec(self._register, self._objects.__getitem__)
        self._forget()

    async def answer(self, request: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return "value", self._codec.encode(await self._carry_out(*request))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the native library is no Exception
            code = getattr(error, "error_code", None)
            text = getattr(error, "message", None) if code is not None else str(error)
            is_retriable = getattr(error, "is_retriable", None)
            return "error", type(error).__name__, text, code, is_retriable, traceback.format_exc()

    async def _carry_out(self, operation: str, target: int, name: str, args: Any, kwargs: Any) -> Any:
        if operation == "reset":
            return await self._reset()
        if operation == "release":
            self._objects.pop(target, None)
            return None
        subject = self._objects[target]
        if operation == "get":
            value = getattr(subject, name)
            # The caller calls it next; classes are objects, because their attributes are wanted, too.
            return ("callable",) if callable(value) and not isinstance(value, type) else (value,)
        if operation == "set":
            return setattr(subject, name, self._codec.decode(args))
        if operation == "list":
            return list(subject)
        assert operation == "call"
        result = getattr(subject, name)(*self._codec.decode(args), **self._codec.decode(kwargs))
        return await settled(result)

    async def _reset(self) -> None:
        """Close connections and forget all objects, so that one test leaves nothing for the next."""
        connections = [found for found in self._objects.values() if isinstance(found, fluss.FlussConnection)]
        self._forget()
        for connection in connections:
            closing = connection.close()
            if inspect.isawaitable(closing):
                await asyncio.wait_for(closing, CLOSE_TIMEOUT_S)

    def _forget(self) -> None:
        self._objects.clear()
        self._objects[MODULE_ID] = fluss
        self._objects[TOOLS_ID] = Tools()

    def _register(self, value: Any) -> int:
        number = self._next_id
        self._next_id += 1
        self._objects[number] = value
        return number


async def serve() -> None:
    """Answer requests from standard input until it ends."""
    requests = sys.stdin.buffer
    # Whatever else writes to standard output must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    driver = Driver()
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(await driver.answer(request), answers)
        answers.flush()


if __name__ == "__main__":
    asyncio.run(serve())
