"""Upserts and deletes reach the right buckets, complete and in the order of the calls; what does not fit is refused.
Shown with writers on real sockets against a server that keeps what it gets in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from fluss.client.kernel.input_rows import GenericRow
from fluss.client.write.writers import UpsertWriter
from fluss.errors import ErrorCode, FlussError
from fluss.row.bucketing import bucket_for
from fluss.row.compacted import encode_fields
from fluss.schema.schema import Schema
from fluss.schema.types import DataTypes
from fluss.testing.waiting import eventually
from tests.fakes.faulty_server import Fault
from tests.fakes.write_server import PATH, USERS, Client, WriteServer, client_of, upsert_of

ARROW = USERS.to_arrow()
LONG_MS = 3_600_000
SALES = Schema(
    pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("region", pa.string()), ("day", pa.date32())]),
    primary_keys=["region", "id", "day"],
)


def writer_of(client: Client, **columns: Any) -> UpsertWriter:
    return upsert_of(client, **columns).create_writer()


def users(ids: list[int], age: int | None = 1) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids], "age": [age] * len(ids)}, schema=ARROW)


def bucket_of(key: int, bucket_count: int) -> int:
    return bucket_for(encode_fields([DataTypes.bigint().not_null()], [key]), bucket_count)


# Rows


def test_rows_and_deletes_of_every_form_arrive_in_order(server: WriteServer) -> None:
    server.add_kv_table()
    with client_of(server, writer__batch_timeout_ms=LONG_MS) as client:
        writer = writer_of(client)
        for row in (
            {"id": 0, "name": "a", "age": 1},
            [1, "b", 2],
            (2, "c", 3),
            {"id": 3},
            GenericRow.from_data([4, "e", 5]),
        ):
            writer.upsert(row)
        for key in ({"id": 0}, [1], (2,), GenericRow.from_data([3])):
            writer.delete(key)
        writer.upsert([0, "again", None])
        client.flush(writer)
        assert repr(writer) == "UpsertWriter()"
    assert [(change.is_delete, change.row["id"]) for change in server.changes_of()] == [
        *((False, i) for i in range(5)),
        *((True, i) for i in range(4)),
        (False, 0),
    ]
    assert server.rows_put()[3:] == [
        {"id": 3, "name": None, "age": None},
        {"id": 4, "name": "e", "age": 5},
        {"id": 0, "name": "again", "age": None},
    ]
    # All of it is one batch: deletes do not end it.
    assert len(server.batches[1, None, 0]) == 1


def test_arguments_have_the_documented_names_and_wrong_calls_name_the_method(server: WriteServer) -> None:
    server.add_kv_table()
    with client_of(server) as client:
        for made in (writer_of(client), upsert_of(client)):
            made.upsert(row=[1, "a", 1])
            made.delete(pk={"id": 1})
        writer: Any = writer_of(client)
        for call, named in (
            (writer.upsert, "upsert"),
            (lambda: writer.upsert(pk=[1]), "upsert"),
            (writer.delete, "delete"),
            (lambda: writer.delete(row=[1]), "delete"),
        ):
            with pytest.raises(TypeError, match=rf"{named}\(\)"):
                call()
        client.flush(writer)
    assert [change.is_delete for change in server.changes_of()] == [False, True] * 2


def test_refused_rows_and_keys_poison_nothing(server: WriteServer) -> None:
    server.add_kv_table()
    with client_of(server) as client:
        writer, partial = writer_of(client), writer_of(client, columns=["id", "age"])
        writer.upsert([1, "a", 1])
        refused: list[tuple[Any, Any, str]] = [
            (writer.upsert, [2, 3, 4], "Field 'name': expected str, got int"),
            (writer.upsert, [None, "a", 1], "Field 'id': null is not allowed"),
            (writer.upsert, {"name": "a"}, "Missing value for non-nullable field 'id'"),
            (writer.upsert, {"id": 2, "nme": "a"}, "Unknown field 'nme'"),
            (writer.upsert, [2], "Expected 3 elements, got 1"),
            (writer.upsert, "text", "Row must be a dict, list, or tuple; got str"),
            (partial.upsert, {"id": 2, "name": "a"}, "Unknown field 'name'. Expected: 'id', 'age'"),
            (partial.upsert, [2, "a", 3], "Expected 2 elements, got 3"),
            (writer.delete, {"id": 2, "name": "a"}, "Unknown field 'name'. Expected: 'id'"),
            (writer.delete, {}, "Missing value for non-nullable field 'id'"),
            (writer.delete, [None], "Field 'id': null is not allowed"),
            (writer.delete, [1, 2], "Expected 1 elements, got 2"),
            (writer.delete, 2, "Row must be a dict, list, or tuple; got int"),
        ]
        for call, argument, message in refused:
            with pytest.raises(FlussError) as caught:
                call(argument)
            assert message in caught.value.message
            assert caught.value.error_code == -2
        writer.upsert([3, "c", 3])
        client.flush(writer)
    assert [change.row["id"] for change in server.changes_of()] == [1, 3]


def test_writers_of_different_columns_interleave_in_the_order_of_the_calls(server: WriteServer) -> None:
    server.add_kv_table()
    with client_of(server, writer__batch_timeout_ms=LONG_MS) as client:
        whole, ages, names = (
            writer_of(client),
            writer_of(client, columns=["id", "age"]),
            writer_of(client, column_indices=[1, 0]),
        )
        for turn in range(5):
            whole.upsert([1, f"whole {turn}", turn])
            ages.upsert([1, 100 + turn])
            ages.upsert({"id": 2, "age": turn})
            names.upsert([f"name {turn}", 1])
            names.upsert_arrow(pa.table({"name": [f"arrow {turn}"], "id": [2]}, schema=names._columns.to_arrow()))
            whole.delete([2])
        client.flush(whole)
    operations = [(change.targets, change.row["id"], change.is_delete) for change in server.changes_of()]
    assert operations == [
        ((), 1, False), ((0, 2), 1, False), ((0, 2), 2, False), ((1, 0), 1, False), ((1, 0), 2, False), ((), 2, True),
    ] * 5  # fmt: skip
    assert server.state() == {(None, 1): {"id": 1, "name": "name 4", "age": 104}}
    # Only what can be told apart was separated: nothing of the second turn waited for an answer of the first. The rows
    # that came as Arrow are a batch of their own, which may have been joined with the one before it.
    assert 5 * 3 + 1 <= len(server.puts) <= 5 * 4 + 1


def test_rows_go_where_their_key_belongs_and_keep_their_order(server: WriteServer) -> None:
    server.add_kv_table(bucket_count=5)
    with client_of(server) as client:
        writer = writer_of(client)
        handles = [writer.upsert([i % 40, "x", i]) for i in range(400)]
        handles += [writer.delete([i]) for i in range(0, 40, 2)]
        writer.upsert_arrow(users(list(range(40, 200))))
        client.flush(writer)
        for handle in handles:
            handle.result(0)
    for (_, _, bucket_id), changes in server.changes.items():
        assert {bucket_of(change.row["id"], 5) for change in changes} == {bucket_id}
        ages = [change.row["age"] for change in changes if not change.is_delete and change.row["id"] < 40]
        assert ages == sorted(ages)
    assert sorted(row["id"] for row in server.state().values()) == [*range(1, 40, 2), *range(40, 200)]


def waiting_count(client: Client) -> int:
    """Count the batches that wait in the client to be sent."""
    return sum(len(queue.waiting) for queue in list(client.writes._get_sender()._queues.values()))


def test_small_batches_behind_many_others_are_sent_as_one(server: WriteServer) -> None:
    bucket_count, ids = 300, list(range(3000))
    server.add_kv_table(bucket_count=bucket_count)
    server.hold()
    with client_of(server) as client:
        writer = writer_of(client)
        writer.upsert_arrow(users(ids, 0))
        eventually(lambda: sum(len(put.buckets) for put in server.puts) == bucket_count)
        for age in (1, 2, 3):
            writer.upsert_arrow(users(ids, age))
        eventually(lambda: waiting_count(client) == 3 * bucket_count)
        # One of the buckets refuses what it gets next.
        server.faults.extend([Fault(bucket_id=7, bucket_code=ErrorCode.DELETION_DISABLED_EXCEPTION)])
        server.release()
        with pytest.raises(FlussError, match="refused with 57"):
            client.flush(writer)
    for number in range(bucket_count):
        own = [key for key in ids if bucket_of(key, bucket_count) == number]
        stored_ages, sequences = (range(1), [0]) if number == 7 else (range(4), [0, 1])
        found = [(change.row["age"], change.row["id"]) for change in server.changes_of(number)]
        assert found == [(age, key) for age in stored_ages for key in own]
        assert [batch.batch_sequence for batch in server.batches[1, None, number]] == sequences


def test_the_hash_of_keys_is_an_option(server: WriteServer) -> None:
    server.add_kv_table(bucket_count=16)
    for variant, bucket_id in (("java", 2), ("rust", 7)):
        server.changes.clear()
        with client_of(server, client__bucket_hash=variant) as client:
            writer_of(client).upsert([128, "a", 1]).result(120)
        assert len(server.changes_of(bucket_id)) == 1


def test_rows_and_deletes_find_their_partition(server: WriteServer) -> None:
    server.add_kv_table(schema=SALES, partition_keys=("day", "region"), bucket_count=2)
    for number, name in enumerate(["2024-01-15$EU", "2024-01-15$US", "2024-01-16$EU"]):
        server.add_partition(name, 10 + number, bucket_count=2)
    monday, tuesday = date(2024, 1, 15), date(2024, 1, 16)
    with client_of(server) as client:
        writer = writer_of(client)
        assert writer._info.physical_primary_keys == ["id"]
        writer.upsert({"id": 1, "amount": 1.0, "region": "EU", "day": monday})
        writer.upsert([2, 2.0, "US", monday])
        writer.upsert([1, 3.0, "EU", tuesday])
        # Keys are given in the order of the primary key.
        writer.delete(["EU", 1, monday])
        writer.delete({"day": monday, "region": "US", "id": 2})
        rows = [(3, "EU", monday), (4, "US", monday), (5, "EU", tuesday), (6, "EU", monday)]
        table = pa.table(
            {
                "id": [row[0] for row in rows],
                "amount": [0.5] * 4,
                "region": [row[1] for row in rows],
                "day": [row[2] for row in rows],
            },
            schema=SALES.to_arrow(),
        )
        writer.upsert_arrow(table)
        writer.delete_arrow(table.slice(3).select(["day", "id", "region"]))
        client.flush(writer)
    ids = {
        partition_id: sorted(row["id"] for (held_in, _), row in server.state().items() if held_in == partition_id)
        for partition_id in (10, 11, 12)
    }
    assert ids == {10: [3], 11: [4], 12: [1, 5]}


def test_tables_of_the_indexed_format_are_written_like_others(server: WriteServer) -> None:
    server.add_kv_table(properties={"table.kv.format": "INDEXED"})
    with client_of(server) as client:
        writer = writer_of(client)
        writer.upsert([1, "a", None])
        writer.upsert_arrow(users([2, 3]))
        writer.delete([3])
        upsert_of(client, columns=["id", "age"]).upsert([1, 9])
        client.flush(writer)
    assert list(server.state().values()) == [{"id": 1, "name": "a", "age": 9}, {"id": 2, "name": "n2", "age": 1}]


# Arrow and pandas


def strictly(write: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda data: write(data, strict=True)


def test_arrow_data_is_checked_as_a_whole_before_the_first_row_is_written(server: WriteServer) -> None:
    server.add_kv_table()
    with client_of(server) as client:
        writer, partial = writer_of(client), writer_of(client, columns=["age", "id"])
        loose = pa.schema([field.with_nullable(True) for field in ARROW])
        good = users([1, 2]).cast(loose).to_batches()
        no_key = pa.RecordBatch.from_pylist([{"id": None, "name": "b", "age": 2}], schema=loose)
        refused: list[tuple[Any, Any, str]] = [
            (
                writer.upsert_arrow,
                users([1]).append_column("more", [[1]]),
                "a column 'more', which the table does not have; columns are 'id', 'name', 'age'",
            ),
            # The first batch would fit.
            (
                writer.upsert_arrow,
                pa.Table.from_batches([*good, no_key]),
                "Column 'id' is non-nullable but contains null",
            ),
            (writer.upsert_arrow, no_key, "Column 'id' is non-nullable but contains null"),
            (writer.upsert_arrow, users([1]).select(["age", "name"]), "The data has no column 'id'"),
            (
                strictly(writer.upsert_arrow),
                users([1]).select(["id", "age", "name"]),
                "Column 1 is named 'age' but the table declares 'name'",
            ),
            (
                strictly(writer.upsert_arrow_batch),
                pa.record_batch({"id": [1], "name": ["a"], "age": [1]}),
                "Column 'age' has Arrow type int64",
            ),
            (
                writer.upsert_arrow_batch,
                pa.record_batch({"id": [1, 2], "name": ["a", "b"], "age": [1, 2**31]}),
                "Row 1 has 2147483648 in column 'age', which does not fit int",
            ),
            (partial.upsert_arrow, users([1]), "a column 'name', which the partial update does not have"),
            (
                strictly(partial.upsert_arrow),
                users([1]),
                "RecordBatch has 3 columns but the partial update has 2: 'age', 'id'",
            ),
            (
                strictly(partial.upsert_arrow),
                users([1]).select(["id", "age"]),
                "Column 0 is named 'id' but the partial update declares 'age'",
            ),
            (
                writer.delete_arrow,
                users([1]),
                "exactly the primary-key columns 'id', in any order; the data has 'id', 'name', 'age'",
            ),
            (writer.delete_arrow_batch, pa.record_batch({"ID": [1]}), "Select the key columns"),
            (
                strictly(writer.delete_arrow),
                pa.table({"id": pa.array([1], pa.int32())}),
                "Column 'id' has Arrow type int32",
            ),
            (writer.delete_arrow, pa.table({"id": [1.5]}), "Row 0 has 1.5 in column 'id'"),
            (
                writer.delete_arrow,
                pa.table({"id": pa.array([1, None])}),
                "Column 'id' is non-nullable but contains null in row 1",
            ),
        ]
        for call, argument, message in refused:
            with pytest.raises(FlussError) as caught:
                call(argument)
            assert message in caught.value.message
        for call in (writer.upsert_arrow, writer.delete_arrow):
            with pytest.raises(TypeError, match="expected a pyarrow Table"):
                call([1])
        client.flush(writer)
    assert not server.puts


def test_arrow_data_of_every_kind_is_taken(server: WriteServer) -> None:
    server.add_kv_table(bucket_count=3)
    with client_of(server) as client:
        writer = writer_of(client)
        writer.upsert_arrow(users([1, 2]))
        writer.upsert_arrow(users([3]).to_batches()[0])
        writer.upsert_arrow(pa.RecordBatchReader.from_batches(ARROW, users([4, 5]).to_batches()))
        writer.upsert_arrow(users([6, 7, 8]).slice(1, 1))
        large = users([9]).set_column(1, "name", pa.array(["nine"], pa.large_string()))
        writer.upsert_arrow_batch(large.to_batches()[0]).result(120)
        writer.upsert_arrow(users([]))
        writer.upsert_arrow_batch(pa.RecordBatch.from_pylist([], schema=ARROW)).result(0)
        writer.delete_arrow_batch(pa.record_batch({"id": pa.array([], pa.int64())})).result(0)
        writer_of(client, columns=["age", "id"]).upsert_arrow(users([1, 2], age=50).select(["age", "id"]))
        writer.delete_arrow(
            pa.RecordBatchReader.from_batches(ARROW.remove(2).remove(1), users([4]).select(["id"]).to_batches())
        )
        writer.delete_arrow_batch(pa.record_batch({"id": [5, 99]})).result(120)
        client.flush(writer)
    state = {row["id"]: (row["name"], row["age"]) for row in server.state().values()}
    assert state == {1: ("n1", 50), 2: ("n2", 50), 3: ("n3", 1), 7: ("n7", 1), 9: ("nine", 1)}


def test_data_frames_are_taken_by_column_name(server: WriteServer) -> None:
    server.add_kv_table()
    with client_of(server) as client:
        writer = writer_of(client)
        writer.write_pandas(pd.DataFrame({"age": [1.0, None], "name": ["a", "b"], "id": [1, 2]}))
        writer_of(client, columns=["id", "age"]).write_pandas(pd.DataFrame({"age": [7], "id": [2]}))
        writer.upsert_arrow(pd.DataFrame({"name": ["c"]}, index=pd.Index([3], name="id")))
        with pytest.raises(FlussError, match=r"Row 0 has 1.5 in column 'age'"):
            writer.write_pandas(pd.DataFrame({"id": [4], "name": ["d"], "age": [1.5]}))
        with pytest.raises(FlussError, match="no column 'id', which is bigint NOT NULL; it has 'age'"):
            writer.write_pandas(pd.DataFrame({"age": [3]}))
        with pytest.raises(FlussError, match="a column 'more', which the table does not have"):
            writer.write_pandas(pd.DataFrame({"id": [4], "more": [1]}))
        writer.write_pandas(pd.DataFrame({"id": [], "name": [], "age": []}))
        client.flush(writer)
    assert list(server.state().values()) == [
        {"id": 1, "name": "a", "age": 1},
        {"id": 2, "name": "b", "age": 7},
        {"id": 3, "name": "c", "age": None},
    ]


def test_the_last_row_of_a_key_wins_within_arrow_data(server: WriteServer) -> None:
    server.add_kv_table(bucket_count=4)
    with client_of(server, writer__batch_size=4_000) as client:
        writer = writer_of(client)
        table = pa.table(
            {"id": [i % 50 for i in range(5_000)], "name": ["x"] * 5_000, "age": list(range(5_000))}, schema=ARROW
        )
        writer.upsert_arrow(table)
        client.flush(writer)
    assert {row["id"]: row["age"] for row in server.state().values()} == {i: 4_950 + i for i in range(50)}


# Sizes and memory


@pytest.mark.parametrize("bucket_count", [1, 3])
def test_batches_obey_the_batch_size(server: WriteServer, bucket_count: int) -> None:
    # Such rows are larger in a KV batch than in memory.
    narrow = Schema(pa.schema([("id", pa.int32()), ("flag", pa.int8())]), primary_keys=["id"])
    server.add_kv_table(schema=narrow, bucket_count=bucket_count)
    with client_of(server, writer__batch_size=20_000, writer__batch_timeout_ms=LONG_MS) as client:
        writer = writer_of(client)
        ids = list(range(1_000_000, 1_020_000))
        writer.upsert_arrow(pa.table({"id": ids, "flag": [1] * len(ids)}, schema=narrow.to_arrow()))
        for i in ids:
            writer.upsert([i, 2])
        client.flush(writer)
    sizes = [len(batch.data) for batches in server.batches.values() for batch in batches]
    assert max(sizes) <= 20_000
    assert sum(sizes) / len(sizes) > 8_000
    assert {row["flag"] for row in server.state().values()} == {2}
    assert len(server.state()) == 20_000


def test_the_first_batch_is_small_and_those_behind_it_grow(server: WriteServer) -> None:
    # A server that has nothing to do begins soon; one that is behind gets large batches, which are less work for it.
    server.add_kv_table()
    with client_of(server, writer__batch_timeout_ms=LONG_MS, writer__batch_size=2 * 1024 * 1024) as client:
        writer = writer_of(client)
        server.hold()
        for i in range(6000):
            writer.upsert({"id": i, "name": "x" * 500, "age": 1})
        server.release()
        client.flush(writer)
    sizes = [len(batch.data) for batch in server.batches[1, None, 0]]
    assert len(server.rows_put()) == 6000
    assert sizes[0] < 300_000
    assert 400_000 < sizes[1] < 600_000
    assert max(sizes) > 800_000


def test_a_row_that_is_larger_than_a_batch_is_sent_alone_and_one_that_is_larger_than_memory_is_refused(
    server: WriteServer,
) -> None:
    server.add_kv_table()
    with client_of(server, writer__batch_size=1_000, writer__buffer__memory_size=100_000) as client:
        writer = writer_of(client)
        for number, length in enumerate([10, 50_000, 10]):
            writer.upsert([number, "x" * length, 1])
        with pytest.raises(FlussError, match="exceeds total buffer memory limit"):
            writer.upsert([9, "x" * 200_000, 1])
        names = ["x" * length for length in (10, 60_000, 60_000, 200_000)]
        table = pa.table({"id": [9] * 4, "name": names, "age": [1] * 4}, schema=ARROW)
        # Nor does what comes before it arrive.
        with pytest.raises(FlussError, match="exceeds total buffer memory limit"):
            writer.upsert_arrow(table)
        client.flush(writer)
    assert [change.row["id"] for change in server.changes_of()] == [0, 1, 2]
    assert 50_000 < max(len(batch.data) for batch in server.batches[1, None, 0]) < 50_100


def test_all_memory_comes_back(server: WriteServer) -> None:
    server.add_kv_table(bucket_count=3)
    with client_of(server) as client:
        writer = writer_of(client)
        writer.upsert_arrow(users(list(range(20_000))))
        for i in range(5_000):
            writer.upsert([i, "x" * 50, i])
            writer.delete([i])
        client.flush(writer)
        assert client.writes.memory.used_bytes == 0


# Failures


def test_a_batch_that_is_sent_twice_takes_effect_once(server: WriteServer) -> None:
    server.add_kv_table()
    server.faults.extend([Fault(is_cut=True, is_stored=True), Fault(bucket_code=ErrorCode.STORAGE_EXCEPTION)])
    with client_of(server) as client:
        writer = writer_of(client)
        for i in range(3):
            writer.upsert([i, "x", 1]).result(120)
            writer.delete([i]).result(120)
    assert [(change.row["id"], change.is_delete) for change in server.changes_of()] == [
        (i, is_delete) for i in range(3) for is_delete in (False, True)
    ]
    assert [batch.batch_sequence for batch in server.batches[1, None, 0]] == list(range(6))


def test_a_refused_batch_fails_its_rows_and_no_others(server: WriteServer) -> None:
    server.add_kv_table(bucket_count=2)
    keys = {bucket_of(key, 2): key for key in range(20)}
    server.default_fault = Fault(bucket_id=1, bucket_code=ErrorCode.DELETION_DISABLED_EXCEPTION)
    with client_of(server, writer__batch_timeout_ms=LONG_MS) as client:
        writer = writer_of(client)
        good, bad = writer.upsert([keys[0], "x", 1]), writer.delete([keys[1]])
        whole = writer.upsert_arrow_batch(users([keys[0]]).to_batches()[0])
        with pytest.raises(FlussError) as caught:
            client.flush(writer)
        assert caught.value.error_code == ErrorCode.DELETION_DISABLED_EXCEPTION
        good.result(0)
        whole.result(0)
        with pytest.raises(FlussError, match="refused with 57"):
            bad.result(0)
    assert [change.row["id"] for change in server.changes_of()] == [keys[0]] * 2


def test_a_schema_that_a_server_has_not_heard_of_yet_is_waited_for_and_not_for_ever(server: WriteServer) -> None:
    server.add_kv_table()
    server.faults.append(Fault(bucket_code=ErrorCode.SCHEMA_NOT_EXIST))
    with client_of(server, request_timeout=3000) as client:
        writer = writer_of(client)
        writer.upsert([1, "a", 1]).result(120)
        server.default_fault = Fault(bucket_code=ErrorCode.SCHEMA_NOT_EXIST)
        with pytest.raises(FlussError, match="refused with 9"):
            writer.upsert([2, "b", 1]).result(120)
    assert [change.row["id"] for change in server.changes_of()] == [1]


def test_leaving_a_writer_flushes_it(server: WriteServer) -> None:
    server.add_kv_table()

    async def write(writer: UpsertWriter) -> None:
        async with writer as same:
            assert same is writer
            writer.upsert([1, "a", 1])

    async def fail(writer: UpsertWriter) -> None:
        async with writer:
            writer.upsert([2, "b", 1])
            raise ZeroDivisionError

    with client_of(server, writer__batch_timeout_ms=LONG_MS) as client:
        asyncio.run(write(writer_of(client)))
        assert len(server.changes_of()) == 1
        server.default_fault = Fault(bucket_code=ErrorCode.DELETION_DISABLED_EXCEPTION)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(fail(writer_of(client)))


# Requests


def test_a_request_has_one_choice_of_columns(server: WriteServer) -> None:
    server.add_kv_table(bucket_count=2)
    keys = {bucket_of(key, 2): key for key in range(20)}
    server.hold()
    with client_of(server, writer__batch_timeout_ms=LONG_MS, writer__max_inflight_requests_per_bucket=1) as client:
        whole, ages = writer_of(client), writer_of(client, columns=["id", "age"])
        for key in keys.values():
            whole.upsert([key, "first", 0])
        client.writes.accumulator.close_all()
        eventually(lambda: server.in_progress == 1)
        # Both buckets are busy; what comes next leaves in the same round, and not in the same request.
        whole.upsert([keys[0], "second", 1])
        ages.upsert([keys[1], 2])
        server.release()
        client.flush(ages)
    assert len(server.puts[0].buckets) == 2
    assert sorted((tuple(put.target_columns), len(put.buckets)) for put in server.puts[1:]) == [((), 1), ((0, 2), 1)]
    assert server.state()[None, keys[0]] == {"id": keys[0], "name": "second", "age": 1}
    assert server.state()[None, keys[1]] == {"id": keys[1], "name": "first", "age": 2}


def test_logs_and_tables_with_keys_share_a_connection(server: WriteServer) -> None:
    other = type(PATH)("fluss", "log")
    server.add_kv_table()
    server.add_table(other, 2)
    with client_of(server) as client:
        writer, appender = writer_of(client), client.writer(other)
        for i in range(10):
            writer.upsert([i, "x", 1])
            appender.append([i, "x"])
        client.flush(writer)
    assert server.ids(table_id=2) == list(range(10))
    assert [change.row["id"] for change in server.changes_of()] == list(range(10))
    assert len(server.init_writer_requests) == 1


@pytest.mark.parametrize(
    ("fault", "share"),
    [
        (Fault(pressure=1.0), 1.0),
        (Fault(pressure=0.5), 1 / 4),
        (Fault(pressure=7.0), 1.0),
        (Fault(bucket_code=ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION), 1.0),
        (Fault(pressure=float("nan")), 0.0),
    ],
)
def test_pressure_pauses_its_bucket_and_no_other(server: WriteServer, fault: Fault, share: float) -> None:
    server.add_kv_table()
    server.add_kv_table(other := type(PATH)("fluss", "other"), 2)
    fault.table_id = 1
    server.faults.append(fault)
    with client_of(server, writer__kv_backpressure__max_throttle_ms=LONG_MS, writer__batch_timeout_ms=0) as client:
        writer, calm = writer_of(client), upsert_of(client, other).create_writer()
        first = writer.upsert([1, "x", 1])
        if share:
            # The pause is an hour or a quarter of one; the minutes are what a busy machine may need to get here.
            eventually(lambda: pause_left_s(client, 1) > 0)
            assert pause_left_s(client, 1) == pytest.approx(share * LONG_MS / 1000, abs=300)
        else:
            first.result(120)
        second = writer.upsert([2, "x", 1])
        calm.upsert([2, "x", 1]).result(120)
        if share:
            assert not second.done()
            assert [put.table_id for put in server.puts] == [1, 2]
            with pytest.raises(FlussError, match="writer closed"):
                client.close(0.1)
        else:
            second.result(120)


def test_an_answer_without_pressure_ends_the_pauses(server: WriteServer) -> None:
    server.add_kv_table()
    server.faults.append(Fault(pressure=1.0))
    with client_of(server, writer__kv_backpressure__max_throttle_ms=300, writer__batch_timeout_ms=0) as client:
        writer = writer_of(client)
        started_s = time.monotonic()
        writer.upsert([1, "x", 1]).result(120)
        writer.upsert([2, "x", 1]).result(120)
        assert time.monotonic() - started_s >= 0.3
        assert pause_left_s(client, 1) <= 0


def pause_left_s(client: Client, table_id: int) -> float:
    """How much longer the one bucket of a table is left alone."""
    sender = client.writes._sender
    queues = list(sender._queues.values()) if sender is not None else []
    until_s = [queue.backoff.until_s for queue in queues if queue.table.table_id == table_id]
    return until_s[0] - client.runtime.loop.time() if until_s else 0.0


def test_threads_may_share_a_writer(server: WriteServer) -> None:
    server.add_kv_table(bucket_count=3)
    with client_of(server, writer__batch_size=5_000) as client:
        writer = writer_of(client)

        def write(thread: int) -> None:
            for i in range(1_000):
                writer.upsert([thread, "x", i])
                if i % 100 == 0:
                    writer.delete([thread])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        client.flush(writer)
    for thread in range(4):
        mine = [c for changes in server.changes.values() for c in changes if c.row["id"] == thread]
        assert [c.row["age"] for c in mine if not c.is_delete] == list(range(1_000))
        assert sum(c.is_delete for c in mine) == 10
