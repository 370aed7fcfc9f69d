"""Rows and Arrow data reach the right buckets, complete and in order; what does not fit is refused at the call.
Shown with a writer on real sockets against a server that keeps what it gets in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from fluss.client.kernel.input_rows import GenericRow
from fluss.errors import FlussError
from fluss.row.bucketing import bucket_for
from fluss.row.compacted import encode_fields
from fluss.schema.schema import Schema
from fluss.schema.types import DataTypes
from fluss.testing.waiting import eventually
from tests.fakes.faulty_server import Fault
from tests.fakes.write_server import PATH, SCHEMA, WriteServer, client_of

ARROW = SCHEMA.to_arrow()
EVENTS = Schema(pa.schema([("id", pa.int64()), ("region", pa.string()), ("day", pa.date32())]))


def table_of(ids: list[int], names: list[str | None] | None = None) -> pa.Table:
    return pa.table({"id": ids, "name": names or ["x"] * len(ids)}, schema=ARROW)


def all_ids(server: WriteServer) -> list[int]:
    return sorted(row["id"] for rows in server.rows.values() for row in rows)


# Rows


def test_rows_of_every_form_arrive_in_order(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        for row in ({"id": 0, "name": "a"}, [1, "b"], (2, "c"), {"id": 3}, GenericRow.from_data([4, "e"])):
            writer.append(row)
        client.flush(writer)
    assert server.stored() == [{"id": i, "name": name} for i, name in enumerate(["a", "b", "c", None, "e"])]


def test_a_refused_row_poisons_nothing(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        first = writer.append([1, "a"])
        for row in ([2, 3], [True, "a"], {"nme": 1}, "text", [2**63, "a"], [1]):
            with pytest.raises(FlussError):
                writer.append(row)
        second = writer.append([2, "b"])
        client.flush(writer)
        assert first.done()
        assert second.done()
    assert server.ids() == [1, 2]


def test_a_batch_leaves_when_it_is_full(server: WriteServer) -> None:
    server.add_table()
    with client_of(server, writer__batch_size=10_000, writer__batch_timeout_ms=3_600_000) as client:
        writer = client.writer()
        for i in range(150):
            writer.append([i, "x" * 100])
        eventually(lambda: len(server.ids()) >= 75)
        client.flush(writer)
    assert server.ids() == list(range(150))
    sizes = [header.size for header in server.headers[1, None, 0]]
    assert len(sizes) == 2
    assert 0.8 * 10_000 < sizes[0] <= 10_000


def test_a_batch_leaves_when_its_first_row_has_waited_long_enough(server: WriteServer) -> None:
    server.add_table()
    # Longer than it takes to append three rows, also on a busy machine.
    with client_of(server, writer__batch_timeout_ms=2000) as client:
        writer = client.writer()
        handles = [writer.append([i, "x"]) for i in range(3)]
        assert not handles[0].done()
        handles[0].result(120)
        assert [handle.done() for handle in handles] == [True] * 3
    assert len(server.headers[1, None, 0]) == 1


def test_sticky_rows_fill_a_batch_and_then_go_to_another_bucket(server: WriteServer) -> None:
    server.add_table(bucket_count=3)
    with client_of(server) as client:
        writer = client.writer()
        for batch in range(12):
            for i in range(5):
                writer.append([batch * 5 + i, "x"])
            client.flush(writer)
    assert all_ids(server) == list(range(60))
    batches = {tuple(row["id"] // 5 for row in rows) for rows in server.rows.values()}
    assert all(batch.count(number) in (0, 5) for batch in batches for number in batch)
    assert len([rows for rows in server.rows.values() if rows]) == 3


def test_rows_with_a_bucket_key_go_where_their_key_belongs(server: WriteServer) -> None:
    server.add_table(bucket_count=5, bucket_keys=("name",))
    with client_of(server) as client:
        writer = client.writer()
        handles = [writer.append([i, f"key-{i % 40}"]) for i in range(400)]
        writer.write_arrow(table_of(list(range(400, 600)), [f"key-{i % 40}" for i in range(200)]))
        client.flush(writer)
        for handle in handles:
            handle.result(0)
        with pytest.raises(FlussError, match="Field 'name': null is not allowed in a bucket key"):
            writer.append([1, None])
        with pytest.raises(FlussError, match="Bucket key column 'name' contains null"):
            writer.write_arrow_batch(table_of([1], [None]).to_batches()[0])
    assert all_ids(server) == list(range(600))
    for (_, _, bucket_id), rows in server.rows.items():
        assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
        for row in rows:
            assert bucket_for(encode_fields([DataTypes.string().not_null()], [row["name"]]), 5) == bucket_id


def test_the_hash_of_bucket_keys_is_an_option(server: WriteServer) -> None:
    server.add_table(bucket_count=7, bucket_keys=("name",))

    def bucket_of(name: str, variant: Any) -> int:
        return bucket_for(encode_fields([DataTypes.string().not_null()], [name]), 7, None, variant)

    # The two do not agree on all texts that are not ASCII.
    name = next(text for text in map(chr, range(0xC0, 0x200)) if bucket_of(text, "java") != bucket_of(text, "rust"))
    for variant in ("java", "rust"):
        server.rows.clear()
        with client_of(server, client__bucket_hash=variant) as client:
            client.writer().append([1, name]).result(120)
        assert server.ids(bucket_of(name, variant)) == [1]


def test_rows_of_a_key_table_learn_what_became_of_their_own_bucket(server: WriteServer) -> None:
    server.add_table(bucket_count=2, bucket_keys=("name",), leaders=[0, None])
    with client_of(server, writer__retries=1) as client:
        writer = client.writer()
        handles = {i: writer.append([i, str(i)]) for i in range(20)}
        for i, handle in handles.items():
            key = encode_fields([DataTypes.string().not_null()], [str(i)])
            if bucket_for(key, 2) == 0:
                handle.result(120)
            else:
                with pytest.raises(FlussError, match="has no leader"):
                    handle.result(120)
    assert 0 < len(server.ids(0)) < 20


def test_rows_go_to_their_partitions(server: WriteServer) -> None:
    server.add_table(schema=EVENTS, partition_keys=("day", "region"))
    for number, name in enumerate(["2024-01-01$EU", "2024-01-01$US", "2024-01-02$EU"]):
        server.add_partition(name, 10 + number)
    days = [pd.Timestamp(2024, 1, day).date() for day in (1, 1, 2)]
    with client_of(server) as client:
        writer = client.writer()
        for i in range(30):
            writer.append([i, ["EU", "US", "EU"][i % 3], days[i % 3]])
        rows = {
            "id": list(range(30, 60)),
            "region": [["EU", "US", "EU"][i % 3] for i in range(30)],
            "day": [days[i % 3] for i in range(30)],
        }
        writer.write_arrow(pa.table(rows, schema=EVENTS.to_arrow()))
        client.flush(writer)
        with pytest.raises(FlussError, match="Partition value shouldn't be null"):
            writer.append({"id": 1, "region": "EU"})
        with pytest.raises(FlussError, match="Partition value shouldn't be null"):
            writer.write_arrow(pa.table({"id": [1], "region": [None], "day": [days[0]]}, schema=EVENTS.to_arrow()))
    for number in range(3):
        assert server.ids(partition_id=10 + number) == list(range(number, 60, 3))


def test_partitions_of_equal_numbers_with_different_texts_are_told_apart(server: WriteServer) -> None:
    schema = Schema(pa.schema([("id", pa.int64()), ("level", pa.float64())]))
    server.add_table(schema=schema, partition_keys=("level",))
    server.add_partition("0_0", 10)
    server.add_partition("-0_0", 11)
    with client_of(server) as client:
        writer = client.writer()
        for i, level in enumerate([0.0, -0.0, 0, -0.0]):
            writer.append([i, level])
        client.flush(writer)
    assert server.ids(partition_id=10) == [0, 2]
    assert server.ids(partition_id=11) == [1, 3]


def test_writers_of_different_schemas_share_a_table(server: WriteServer) -> None:
    server.add_table()
    wider = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("more", pa.int32())]))
    with client_of(server) as client:
        old = client.writer()
        server.add_table(schema=wider, schema_id=2)
        server._schemas[1] = ARROW
        new = client.writer()
        old.append([1, "a"])
        old_again = client.writer()
        assert old_again._encoder is new._encoder
        client.flush(old)
        server._schemas[1] = wider.to_arrow()
        new.append([2, "b", 3])
        client.flush(new)
    assert server.stored() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b", "more": 3}]
    assert [header.schema_id for header in server.headers[1, None, 0]] == [1, 2]


def test_threads_share_a_writer_and_each_keeps_its_order(server: WriteServer) -> None:
    server.add_table()
    with client_of(server, writer__batch_size=20_000) as client:
        writer = client.writer()

        def work(thread: int) -> None:
            for i in range(3000):
                writer.append([thread * 10_000 + i, "x"])

        with ThreadPoolExecutor(4) as threads:
            for future in [threads.submit(work, number) for number in range(4)]:
                future.result(120)
        client.flush(writer)
    ids = server.ids()
    assert len(ids) == 12_000
    for thread in range(4):
        assert [i for i in ids if i // 10_000 == thread] == [thread * 10_000 + i for i in range(3000)]


# Arrow


def test_arrow_data_in_every_form_is_written(server: WriteServer) -> None:
    server.add_table()
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    with client_of(server) as client:
        writer = client.writer()
        batches = table_of([0, 1, 2, 3]).to_batches(max_chunksize=2)
        writer.write_arrow(pa.Table.from_batches(batches))
        writer.write_arrow(table_of([4]).to_batches()[0])
        writer.write_arrow(pa.RecordBatchReader.from_batches(ARROW, table_of([5, 6]).to_batches()))
        writer.write_arrow(polars.DataFrame({"id": [7], "name": ["x"]}))
        writer.write_arrow(duckdb.sql("select 8::bigint as id, 'x' as name"))
        writer.write_arrow(duckdb.sql("select 9::bigint as id, 'x' as name").arrow())
        writer.write_arrow_batch(table_of([10]).to_batches()[0])
        writer.append_arrow_batch(table_of([11]).to_batches()[0])
        writer.write_arrow_batch(table_of([12, 13]))
        writer.write_pandas(pd.DataFrame({"name": ["x"], "id": [14.0]}, index=["a"]))
        writer.write_arrow(pd.DataFrame({"id": [15]}))
        client.flush(writer)
    assert server.ids() == list(range(16))


def test_nothing_is_sent_for_no_rows(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        handle = writer.write_arrow_batch(pa.record_batch([[], []], schema=ARROW))
        assert handle.done()
        handle.result()
        writer.write_arrow(table_of([]))
        writer.write_pandas(pd.DataFrame({"id": [], "name": []}))
        client.flush(writer)
    assert server.requests == []


def test_large_batches_are_sent_in_pieces_and_the_handle_waits_for_all(server: WriteServer) -> None:
    server.add_table(bucket_count=3)
    with client_of(server, writer__batch_size=50_000, writer__dynamic_batch_size__enabled=False) as client:
        writer = client.writer()
        server.faults.extend([Fault(), Fault(bucket_code=13)])
        handle = writer.write_arrow_batch(table_of(list(range(20_000))).to_batches()[0])
        with pytest.raises(FlussError, match="refused with 13"):
            handle.result(120)
        assert client.writes.memory.used_bytes == 0
    (headers,) = [headers for headers in server.headers.values() if headers]
    assert all(header.size <= 60_000 for header in headers)
    assert len(headers) >= 5
    (ids,) = [[row["id"] for row in rows] for rows in server.rows.values() if rows]
    assert ids == sorted(ids)
    assert len(ids) < 20_000


def test_an_arrow_batch_of_just_the_right_size_stays_whole(server: WriteServer) -> None:
    server.add_table()
    batch = table_of(list(range(4000))).to_batches()[0]
    options = {"writer__batch_size": batch.nbytes, "writer__dynamic_batch_size__enabled": False}
    with client_of(server, **options) as client:
        client.writer().write_arrow_batch(batch).result(120)
    assert [header.record_count for headers in server.headers.values() for header in headers] == [4000]


def test_rows_and_arrow_of_one_thread_stay_in_order(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        for i in range(0, 60, 3):
            writer.append([i, "x"])
            writer.write_arrow(table_of([i + 1]))
            writer.append([i + 2, "x"])
        client.flush(writer)
    assert server.ids() == list(range(60))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pa.table({"id": [1]}), "RecordBatch has 1 columns but the table has 2"),
        (pa.table({"name": ["x"], "id": [1]}), "Column 0 is named 'name' but the table declares 'id'"),
        (pa.table({"id": [1], "nme": ["x"]}), "Column 1 is named 'nme' but the table declares 'name'"),
        (pa.table({"id": pa.array([1], pa.int32()), "name": ["x"]}), "Column 'id' has Arrow type int32"),
    ],
)
def test_nothing_is_fitted_if_that_is_said(server: WriteServer, data: pa.Table, message: str) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        for write, value in (
            (writer.write_arrow, data),
            (writer.write_arrow, data.to_reader()),
            (writer.write_arrow_batch, data.to_batches()[0]),
            (writer.append_arrow_batch, data.to_batches()[0]),
        ):
            with pytest.raises(FlussError, match=message):
                write(value, strict=True)
        client.flush(writer)
    assert server.requests == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pa.table({"id": [1], "nme": ["x"]}), "a column 'nme', which the table does not have; did you mean 'name'"),
        (pa.table({"id": ["x"], "name": ["x"]}), "Row 0 has 'x' in column 'id', which does not fit bigint"),
        (pa.table({"id": [True], "name": ["x"]}), "Column 'id' is bigint and takes no bool"),
        (pa.table([[1], [2]], names=["id", "id"]), "The data has two columns named 'id'"),
    ],
)
def test_arrow_data_that_does_not_fit_is_refused_before_anything_is_written(
    server: WriteServer, data: pa.Table, message: str
) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        for write, value in (
            (writer.write_arrow, data),
            (writer.write_arrow, data.to_reader()),
            (writer.write_arrow_batch, data.to_batches()[0]),
        ):
            with pytest.raises(FlussError, match=message):
                write(value)
        client.flush(writer)
    assert server.requests == []


def test_a_table_is_checked_as_a_whole_and_a_stream_batch_by_batch(server: WriteServer) -> None:
    schema = Schema(pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]))
    server.add_table(schema=schema)
    nullable = pa.schema([("id", pa.int64()), ("name", pa.string())])
    good = pa.record_batch([[1], ["x"]], schema=nullable)
    bad = pa.record_batch([[None], ["x"]], schema=nullable)
    with client_of(server) as client:
        writer = client.writer()
        with pytest.raises(FlussError, match="Column 'id' is non-nullable but contains null in row 1;"):
            writer.write_arrow(pa.Table.from_batches([good, bad]))
        client.flush(writer)
        assert server.requests == []
        with pytest.raises(FlussError, match="Column 'id' is non-nullable but contains null in row 1;"):
            writer.write_arrow(pa.RecordBatchReader.from_batches(nullable, [good, bad]))
        client.flush(writer)
    assert server.ids() == [1]


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (1, "got int"),
        ("text", "got str"),
        ([1, 2], "append_many"),
        ({"id": 1}, "pyarrow.table"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_arrow_data_is_refused(server: WriteServer, value: Any, way_out: str) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        with pytest.raises(TypeError, match=f"expected a pyarrow Table.*{way_out}"):
            writer.write_arrow(value)
        with pytest.raises(FlussError, match="Failed to convert RecordBatch"):
            writer.write_arrow_batch(value)


def test_pandas_frames_that_do_not_fit_are_refused(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        for frame, problem in [
            ({"id": [1, 2], "more": [1, 2]}, "a column 'more', which the table does not have"),
            ({"id": [1.0, 1.5], "name": ["x", "y"]}, "Row 1 has 1.5 in column 'id', which does not fit bigint"),
            ({"id": [1, 2], "name": ["x", 5]}, "Row 1 has 5 in column 'name', which does not fit string"),
            ({"id": [1], 5: ["x"]}, "need names that are str, got 5"),
        ]:
            with pytest.raises(FlussError, match=problem):
                writer.write_pandas(pd.DataFrame(frame))
        for strict_frame in ({"name": ["x"]}, {"id": [1.5], "name": ["x"]}):
            with pytest.raises(FlussError, match="The data frame does not fit the table"):
                writer.write_pandas(pd.DataFrame(strict_frame), strict=True)
        with pytest.raises(TypeError, match="expected a pandas DataFrame, got list"):
            writer.write_pandas([1])
        client.flush(writer)
    assert server.requests == []


# Objects


def test_the_names_of_things(server: WriteServer) -> None:
    server.add_table()
    with client_of(server) as client:
        writer = client.writer()
        assert repr(writer) == "AppendWriter()"
        handle = writer.append([1, "x"])
        assert repr(handle) == "WriteResultHandle(pending)"
        handle.result(120)
        assert repr(handle) == "WriteResultHandle(consumed)"


async def test_a_writer_is_a_context_manager_that_flushes(server: WriteServer) -> None:
    server.add_table()
    server.faults.extend([Fault(), Fault(bucket_code=13)])
    with client_of(server) as client:
        async with await client.writer() as writer:
            writer.append([1, "x"])
        assert server.ids() == [1]
        with pytest.raises(FlussError, match="refused with 13"):
            async with client.writer() as writer:
                writer.append([2, "x"])
        with pytest.raises(ZeroDivisionError):
            async with client.writer() as writer:
                writer.append([1 // len(server.scripted.partitions), "a mistake of the user"])
        async with client.writer() as writer:
            assert not await writer.__aexit__(ValueError, ValueError(), None)


def test_options_reach_the_path(server: WriteServer) -> None:
    server.add_table()
    with client_of(server, writer__buffer__memory_size=2_200_000) as client:
        assert client.writes.memory.bytes_max == 2_200_000
        with pytest.raises(FlussError, match="exceeds total buffer memory limit"):
            client.writer().append([1, "x" * 2_200_000])
        assert client.table(PATH).table_id == 1
