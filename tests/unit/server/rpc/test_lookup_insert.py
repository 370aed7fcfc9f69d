"""A lookup can insert rows for keys that have none: one for each key, also of many lookups, and numbered if need be.

A real server on a real socket; the changelog shows what was written.
"""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode
from fluss.row.values import Timestamp
from fluss.schema.schema import Column, Schema
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataTypes
from fluss.server.merge.key_only_rows import KeyOnlyRows
from fluss.server.model import Partition
from fluss.testing.waiting import eventually_async
from tests.unit.server.kv.bucket_support import HeldDisk, MemoryIds
from tests.unit.server.merge.merging import Delete, with_columns
from tests.unit.server.rpc.kv_server import KvServer, kv_table, serving_kv
from tests.unit.server.tablet.support import TIMEOUT_S, MemoryCatalog

NUMBERED = (
    Schema.builder()
    .column("word", DataTypes.string())
    .column("note", DataTypes.string())
    .column("number", DataTypes.bigint())
    .primary_key(["word"])
    .enable_auto_increment("number")
    .build()
)


async def _insert_code(server: KvServer, *keys: bytes, **options) -> tuple[int, str]:
    options = {"insert_if_not_exists": True, "acks": -1, "timeout_ms": 5000, **options}
    (answer,) = await server.lookup_answers({0: keys}, **options)
    return answer.error_code, answer.error_message


async def test_missing_keys_become_rows_and_others_stay_as_they_are(tmp_path):
    async with serving_kv(tmp_path) as server:
        await server.put((1, "one"))
        found = await server.lookup_or_insert((2,), (1,), (3,), (2,))
        assert found == [(2, None), (1, "one"), (3, None), (2, None)]
        assert await server.offset_end() == 3, "two rows were inserted"
        assert await server.lookup_or_insert((2,), (1,)) == [(2, None), (1, "one")]
        assert await server.offset_end() == 3, "there was nothing to insert"
        await server.put(Delete((2,)))
        assert await server.lookup((2,), (3,)) == [None, (3, None)]
        await eventually_async(lambda: server.used_bytes == 0)


async def test_a_key_has_one_number_however_many_ask_for_it(tmp_path):
    async with serving_kv(tmp_path, kv_table(NUMBERED), ids=MemoryIds()) as server:
        answers = await asyncio.gather(*(server.lookup_or_insert(("a",), ("b",), ("a",)) for _ in range(20)))
        assert {tuple(rows) for rows in answers} == {(("a", None, 1), ("b", None, 2), ("a", None, 1))}
        assert await server.lookup_or_insert(("c",), ("a",)) == [("c", None, 3), ("a", None, 1)]
        await server.put(("a", "noted", None), targets=[0, 1])
        assert await server.lookup_or_insert(("a",)) == [("a", "noted", 1)]


async def test_a_table_that_gets_a_column_while_keys_are_inserted_has_the_rows_of_others_under_them(
    tmp_path, monkeypatch, caplog
):
    is_missing, may_insert, batch = threading.Event(), threading.Event(), KeyOnlyRows.batch

    def held(rows, keys):
        is_missing.set()
        assert may_insert.wait(TIMEOUT_S)
        return batch(rows, keys)

    async with serving_kv(tmp_path) as server:
        await server.put((1, "one"))
        store = await server.server.manager.tables[1].group(None)[0].key_values().store()
        with monkeypatch.context() as patch:
            patch.setattr(KeyOnlyRows, "batch", held)
            asked = asyncio.create_task(server.lookup_or_insert((2,)))
            assert await asyncio.to_thread(is_missing.wait, TIMEOUT_S)
            altered = with_columns(server.table, Column("more", DataTypes.bigint()))
            server.server.manager.table_altered(altered)
            other = KvServer(server.server, altered)
            await other.put((2, "two", 22))
            may_insert.set()
            server.table = altered
            assert await asked == [(2, "two", 22)]
        assert await server.server.manager.tables[1].group(None)[0].key_values().store() is store
        assert not caplog.records, "nothing was taken for damage"


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
async def test_keys_of_several_columns_are_read_back_in_their_order(tmp_path, kv_format):
    schema = Schema(
        pa.schema([("v", pa.string()), ("b", pa.string()), ("t", pa.timestamp("us")), ("a", pa.int64())]),
        primary_keys=["a", "b", "t"],
    )
    table = kv_table(schema, properties={"table.kv.format": kv_format})
    async with serving_kv(tmp_path, table) as server:
        row = (None, "text", Timestamp(1_700_000_000_123, 456_000), -5)
        assert await server.lookup_or_insert(row) == [row]


async def test_rows_of_a_partition_get_its_values(tmp_path):
    schema = Schema(
        pa.schema([("id", pa.int32()), ("day", pa.date32()), ("region", pa.string()), ("v", pa.int32())]),
        primary_keys=["day", "id", "region"],
    )
    table = kv_table(schema, partition_keys=["day", "region"])
    catalog = MemoryCatalog(table)
    catalog.add_partition(Partition(5, 1, "2024-01-15$EMEA"))
    catalog.add_partition(Partition(6, 1, "someday$EMEA"))
    async with serving_kv(tmp_path, table, catalog=catalog) as server:
        assert await server.lookup_or_insert((7, None, ""), partition_id=5) == [(7, 19737, "EMEA", None)]
        code, text = await _insert_code(server, server.key((7,)), partition_id=6)
        assert code == ErrorCode.INVALID_TABLE_EXCEPTION
        assert "someday" in text


async def test_a_request_has_to_say_how_it_inserts(tmp_path):
    async with serving_kv(tmp_path) as server:
        for id, (options, code) in enumerate(
            (
                ({"acks": None}, ErrorCode.UNKNOWN_SERVER_ERROR),
                ({"timeout_ms": None}, ErrorCode.UNKNOWN_SERVER_ERROR),
                ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
                ({"acks": 0}, 0),
                ({"acks": 1}, 0),
            )
        ):
            assert (await _insert_code(server, server.key((id,)), **options))[0] == code
            assert await server.lookup((id,)) == ([None] if code else [(id, None)])


@pytest.mark.parametrize(
    ("columns", "properties", "code", "hint"),
    [
        ([("id", "INT NOT NULL"), ("v", "INT NOT NULL")], {}, 35, "NOT NULL"),
        ([("id", "INT NOT NULL"), ("v", "INT")], {"table.merge-engine": "first_row"}, 35, "first_row"),
        (
            [("id", "INT NOT NULL"), ("v", "INT")],
            {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"},
            35,
            "versioned",
        ),
        (
            [("id", "INT NOT NULL"), ("v", "INT")],
            {"table.datalake.format": "paimon", "table.kv.format-version": "2"},
            15,
            "upsert",
        ),
    ],
)
async def test_tables_that_do_not_take_such_rows_say_why(tmp_path, columns, properties, code, hint):
    builder = Schema.builder()
    for name, text in columns:
        builder = builder.column(name, parse_type(text))
    table = kv_table(builder.primary_key(["id"]).build(), properties=properties)
    async with serving_kv(tmp_path, table) as server:
        got, text = await _insert_code(server, server.key((1,)))
        assert (got, hint in text) == (code, True), text
        assert await server.offset_end() == 0


async def test_bytes_that_are_no_key_are_refused(tmp_path):
    async with serving_kv(tmp_path) as server:
        for key in (b"", b"\x80", b"\x01\x02"):
            assert (await _insert_code(server, server.key((1,)), key))[0] == ErrorCode.UNKNOWN_SERVER_ERROR
            assert await server.lookup((1,)) == [None]


async def test_a_full_disk_takes_no_rows_but_finds_them(tmp_path):
    ratio = 0.1
    async with serving_kv(tmp_path, usage_ratio=lambda path: ratio) as server:
        await server.put((1, "one"))
        ratio = 0.99
        await server.server.manager.disk_guard.check()
        assert (await _insert_code(server, server.key((1,))))[0] == 0
        assert (await _insert_code(server, server.key((2,))))[0] == ErrorCode.DISK_WRITE_LOCKED


async def test_rows_that_are_not_on_the_disk_in_time_may_come_later(tmp_path):
    disk = HeldDisk()
    async with serving_kv(tmp_path, files=disk) as server:
        await server.put((1, "one"))
        disk.hold()
        try:
            code, _ = await _insert_code(server, server.key((2,)), timeout_ms=30)
            assert code == ErrorCode.REQUEST_TIME_OUT
            assert await server.lookup((1,), (2,)) == [(1, "one"), None], "not yet on the disk"
        finally:
            disk.release()
        assert await server.lookup_or_insert((2,)) == [(2, None)]
        assert await server.offset_end() >= 2
