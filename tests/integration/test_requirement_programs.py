"""The programs of the guides run against a real server, with the names of both generations of the API.

Each test is one guide: its statements in its order. ``Names`` has what the generations call differently. Ours are the
server's address, the data that a guide takes for granted, the end of loops that it lets run for ever, and the
assertions.
"""

# ruff: noqa: C420 - the statements stay as the guides print them

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import fluss
from fluss import embedded

PA_TABLE = pa.table(
    {"id": [4, 5], "name": ["Dora", "Emil"], "score": [70.0, 71.0]},
    schema=pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float32())]),
)
RECORD_BATCH = PA_TABLE.slice(0, 1).to_batches()[0]
DATA_FRAME = pd.DataFrame({"id": [6, 7, 8], "name": ["Finn", "Gül", "Hana"], "score": [1.0, 2.0, 3.0]})
# Three rows one by one, two as a table, one as a batch, three as a frame.
EVENT_IDS = [1, 2, 3, 4, 4, 5, 6, 7, 8]


@dataclass(frozen=True)
class Names:
    """What the two generations of the API call differently."""

    connect: Callable[[fluss.Config], Awaitable[fluss.FlussConnection]]
    new_append_writer: Callable[[fluss.FlussTable], Any]
    new_upsert_writer: Callable[..., Any]
    new_lookuper: Callable[[fluss.FlussTable], Any]
    create_batch_scanner: Callable[[Any], Awaitable[Any]]
    get_table_info: Callable[[fluss.FlussAdmin, fluss.TablePath], Awaitable[fluss.TableInfo]]
    latest: dict[str, Any]
    at_timestamp: Callable[[int], dict[str, Any]]


async def _ready(made: Any) -> Any:
    return made


NEWER = Names(
    connect=fluss.FlussConnection.create,
    new_append_writer=lambda table: _ready(table.new_append().create_writer()),
    new_upsert_writer=lambda table, columns=None: (
        table.new_upsert() if columns is None else table.new_upsert().partial_update_by_name(columns)
    ).create_writer(),
    new_lookuper=lambda table: table.new_lookup().create_lookuper(),
    create_batch_scanner=lambda scan: scan.create_record_batch_log_scanner(),
    get_table_info=lambda admin, path: admin.get_table_info(path),
    latest={"offset_spec": fluss.OffsetSpec.latest()},
    at_timestamp=lambda timestamp_ms: {"offset_spec": fluss.OffsetSpec.timestamp(timestamp_ms)},
)
OLDER = Names(
    connect=fluss.FlussConnection.connect,
    new_append_writer=lambda table: table.new_append_writer(),
    new_upsert_writer=lambda table, columns=None: table.new_upsert(columns=columns),
    new_lookuper=lambda table: table.new_lookup(),
    create_batch_scanner=lambda scan: scan.create_batch_scanner(),
    get_table_info=lambda admin, path: admin.get_table(path),
    latest={"offset_type": "latest"},
    at_timestamp=lambda timestamp_ms: {"offset_type": "timestamp", "timestamp": timestamp_ms},
)


@pytest.fixture(params=[NEWER, OLDER], ids=["newer", "older"])
def names(request: pytest.FixtureRequest) -> Names:
    found: Names = request.param
    return found


@pytest.fixture
def bootstrap_servers(tmp_path: Path) -> Iterator[str]:
    with embedded.start(data_dir=tmp_path) as server:
        yield server.bootstrap_servers


async def test_the_guide_to_log_tables(
    bootstrap_servers: str, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    conn = await names.connect(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    admin = await conn.get_admin()

    # Creating a log table
    schema = fluss.Schema(
        pa.schema(
            [
                pa.field("id", pa.int32()),
                pa.field("name", pa.string()),
                pa.field("score", pa.float32()),
            ]
        )
    )
    table_path = fluss.TablePath("fluss", "events")
    await admin.create_table(table_path, fluss.TableDescriptor(schema), ignore_if_exists=True)

    # Writing
    table = await conn.get_table(table_path)
    writer = await names.new_append_writer(table)
    # Fire-and-forget: queue writes, flush at the end
    writer.append({"id": 1, "name": "Alice", "score": 95.5})
    writer.append([2, "Bob", 87.0])
    await writer.flush()
    # Per-record acknowledgment
    handle = writer.append({"id": 3, "name": "Charlie", "score": 91.0})
    await handle.wait()
    # Bulk writes
    writer.write_arrow(PA_TABLE)
    writer.write_arrow_batch(RECORD_BATCH)
    writer.write_pandas(DATA_FRAME)
    await writer.flush()

    # One-shot batch read
    num_buckets = (await names.get_table_info(admin, table_path)).num_buckets
    scanner = await names.create_batch_scanner(table.new_scan())
    scanner.subscribe_buckets({i: fluss.EARLIEST_OFFSET for i in range(num_buckets)})
    # Reads everything up to current latest offset, then returns
    arrow_table = scanner.to_arrow()
    df = scanner.to_pandas()
    print(df)
    assert sorted(arrow_table["id"].to_pylist()) == EVENT_IDS
    assert sorted(df["id"]) == EVENT_IDS

    # Continuous polling: a batch scanner gives Arrow tables
    scanner = await names.create_batch_scanner(table.new_scan())
    scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
    ids: list[int] = []
    while True:
        result = scanner.poll_arrow(timeout_ms=5000)
        if result.num_rows > 0:
            print(result.to_pandas())
        ids += result["id"].to_pylist()
        if len(ids) == len(EVENT_IDS):
            break
    assert sorted(ids) == EVENT_IDS
    scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
    assert sum(batch.batch.num_rows for batch in scanner.poll_batches(timeout_ms=120_000)) > 0

    # A record scanner gives single records
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets({i: fluss.EARLIEST_OFFSET for i in range(num_buckets)})
    seen = 0
    while True:
        scan_records = scanner.poll(timeout_ms=5000)
        for record in scan_records:
            print(f"offset={record.offset}, change={record.change_type.short_string()}, row={record.row}")
            assert record.change_type.short_string() == "+A"
            assert record.bucket.bucket_id == 0
        # Or per-bucket access (dict-like)
        for bucket, records in scan_records.items():
            for record in records:
                print(f"bucket={bucket.bucket_id}, offset={record.offset}, row={record.row}")
                assert record.offset == seen
                seen += 1
        if seen == len(EVENT_IDS):
            break

    # To stop consuming from a bucket
    scanner.unsubscribe(bucket_id=0)

    # Only new records: resolve the latest offset first
    admin = await conn.get_admin()
    offsets = await admin.list_offsets(table_path, [0], **names.latest)
    latest = offsets[0]
    scanner = await names.create_batch_scanner(table.new_scan())
    scanner.subscribe(bucket_id=0, start_offset=latest)
    assert scanner.poll_arrow(timeout_ms=50).num_rows == 0
    # or let the scanner do it
    newest = await names.create_batch_scanner(table.new_scan())
    newest.subscribe(bucket_id=0, start_offset=fluss.LATEST_OFFSET)
    await writer.append([9, "Ida", 0.0]).wait()
    for each in (scanner, newest):
        assert each.poll_arrow(timeout_ms=120_000)["name"].to_pylist() == ["Ida"]

    # Column projection, by position or by name
    for scan in (table.new_scan().project([0, 2]), table.new_scan().project_by_name(["id", "score"])):
        scanner = await names.create_batch_scanner(scan)
        scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        assert scanner.to_arrow().column_names == ["id", "score"]

    await admin.drop_table(table_path, ignore_if_not_exists=True)
    conn.close()
    printed = capsys.readouterr().out
    assert "Alice" in printed
    assert "Bob" in printed


async def test_the_guide_to_administration(bootstrap_servers: str, names: Names) -> None:
    with await names.connect(fluss.Config({"bootstrap.servers": bootstrap_servers})) as conn:
        admin = await conn.get_admin()

        # Databases
        await admin.create_database("my_database", ignore_if_exists=True)
        databases = await admin.list_databases()
        exists = await admin.database_exists("my_database")
        await admin.drop_database("my_database", ignore_if_not_exists=True, cascade=True)
        assert "my_database" in databases
        assert exists

        # Tables
        await admin.create_database("my_database", ignore_if_exists=True)
        schema = fluss.Schema(
            pa.schema(
                [
                    pa.field("id", pa.int32()),
                    pa.field("name", pa.string()),
                    pa.field("amount", pa.int64()),
                ]
            )
        )
        table_path = fluss.TablePath("my_database", "my_table")
        await admin.create_table(table_path, fluss.TableDescriptor(schema), ignore_if_exists=True)

        table_info = await names.get_table_info(admin, table_path)
        tables = await admin.list_tables("my_database")
        await admin.drop_table(table_path, ignore_if_not_exists=True)
        assert table_info.get_column_names() == ["id", "name", "amount"]
        assert tables == ["my_table"]

        # Offsets
        await admin.create_table(table_path, fluss.TableDescriptor(schema, bucket_count=2))
        assert (await names.get_table_info(admin, table_path)).num_buckets == 2
        offsets = await admin.list_offsets(table_path, bucket_ids=[0, 1], **names.latest)
        assert offsets == {0: 0, 1: 0}
        offsets = await admin.list_offsets(table_path, bucket_ids=[0], **names.at_timestamp(1704067200000))
        assert offsets == {0: 0}

        # Without a lake, asking for its snapshot raises
        with pytest.raises(fluss.FlussError) as refusal:
            await admin.get_latest_lake_snapshot(table_path)
        assert refusal.value.error_code in (40, 53)
        snapshot = fluss.LakeSnapshot(3)
        print(f"Snapshot ID: {snapshot.snapshot_id}")
        print(f"Table buckets: {snapshot.get_table_buckets()}")
        bucket = fluss.TableBucket(table_id=1, bucket=0)
        offset = snapshot.get_bucket_offset(bucket)
        assert offset is None


async def test_the_guide_to_partitioned_tables(bootstrap_servers: str, names: Names) -> None:
    conn = await names.connect(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    admin = await conn.get_admin()
    schema = fluss.Schema(
        pa.schema(
            [
                pa.field("id", pa.int32()),
                pa.field("region", pa.string()),
                pa.field("value", pa.int64()),
            ]
        )
    )
    table_path = fluss.TablePath("fluss", "partitioned_events")
    await admin.create_table(
        table_path,
        fluss.TableDescriptor(schema, partition_keys=["region"], bucket_count=1),
        ignore_if_exists=True,
    )

    # Create partitions
    await admin.create_partition(table_path, {"region": "US"}, ignore_if_exists=True)
    await admin.create_partition(table_path, {"region": "EU"}, ignore_if_exists=True)

    # List partitions
    partition_infos = await admin.list_partition_infos(table_path)
    assert sorted(p.partition_name for p in partition_infos) == ["EU", "US"]

    # Writing
    table = await conn.get_table(table_path)
    writer = await names.new_append_writer(table)
    writer.append({"id": 1, "region": "US", "value": 100})
    writer.append({"id": 2, "region": "EU", "value": 200})
    await writer.flush()

    # Per-partition offsets
    offsets = await admin.list_partition_offsets(table_path, partition_name="US", bucket_ids=[0], **names.latest)
    assert offsets == {0: 1}

    # Reading
    scanner = await names.create_batch_scanner(table.new_scan())
    # Subscribe to individual partitions
    for p in partition_infos:
        scanner.subscribe_partition(partition_id=p.partition_id, bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
    # Or batch-subscribe
    scanner.subscribe_partition_buckets({(p.partition_id, 0): fluss.EARLIEST_OFFSET for p in partition_infos})
    frame = scanner.to_pandas()
    print(frame)
    assert sorted(frame["id"]) == [1, 2]
    conn.close()


async def test_the_guide_to_primary_key_tables(
    bootstrap_servers: str, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    conn = await names.connect(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    admin = await conn.get_admin()

    # Creating
    schema = fluss.Schema(
        pa.schema(
            [
                pa.field("id", pa.int32()),
                pa.field("name", pa.string()),
                pa.field("age", pa.int64()),
            ]
        ),
        primary_keys=["id"],
    )
    table_path = fluss.TablePath("fluss", "users")
    await admin.create_table(table_path, fluss.TableDescriptor(schema, bucket_count=3), ignore_if_exists=True)

    # Upsert, delete, lookup
    table = await conn.get_table(table_path)

    # Upsert (fire-and-forget, flush at the end)
    writer = names.new_upsert_writer(table)
    writer.upsert({"id": 1, "name": "Alice", "age": 25})
    writer.upsert({"id": 2, "name": "Bob", "age": 30})
    await writer.flush()

    # Per-record acknowledgment (for read-after-write)
    handle = writer.upsert({"id": 3, "name": "Charlie", "age": 35})
    await handle.wait()

    # Delete by primary key
    handle = writer.delete({"id": 2})
    await handle.wait()

    # Lookup
    lookuper = names.new_lookuper(table)
    result = await lookuper.lookup({"id": 1})
    if result:
        print(f"Found: name={result['name']}, age={result['age']}")
    assert await lookuper.lookup({"id": 2}) is None
    assert await lookuper.lookup({"id": 3}) == {"id": 3, "name": "Charlie", "age": 35}

    # Partial updates
    partial_writer = names.new_upsert_writer(table, columns=["id", "age"])
    partial_writer.upsert({"id": 1, "age": 27})  # only updates age
    await partial_writer.flush()
    assert await lookuper.lookup({"id": 1}) == {"id": 1, "name": "Alice", "age": 27}
    conn.close()
    assert capsys.readouterr().out == "Found: name=Alice, age=25\n"


async def test_the_guide_to_partitioned_primary_key_tables(bootstrap_servers: str, names: Names) -> None:
    conn = await names.connect(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    admin = await conn.get_admin()
    schema = fluss.Schema(
        pa.schema(
            [
                pa.field("user_id", pa.int32()),
                pa.field("region", pa.string()),
                pa.field("score", pa.int64()),
            ]
        ),
        primary_keys=["user_id", "region"],
    )
    table_path = fluss.TablePath("fluss", "partitioned_users")
    await admin.create_table(
        table_path,
        fluss.TableDescriptor(schema, partition_keys=["region"]),
        ignore_if_exists=True,
    )
    await admin.create_partition(table_path, {"region": "US"}, ignore_if_exists=True)

    table = await conn.get_table(table_path)
    writer = names.new_upsert_writer(table)
    writer.upsert({"user_id": 1, "region": "US", "score": 1234})
    await writer.flush()

    # Lookup includes partition columns
    lookuper = names.new_lookuper(table)
    result = await lookuper.lookup({"user_id": 1, "region": "US"})
    assert result == {"user_id": 1, "region": "US", "score": 1234}
    assert await lookuper.lookup({"user_id": 1, "region": "EU"}) is None
    conn.close()


async def test_the_api_reference(bootstrap_servers: str) -> None:
    conn = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    admin = await conn.get_admin()
    table_path = fluss.TablePath("fluss", "reference")
    schema = fluss.Schema(pa.schema([pa.field("id", pa.int32())]))
    await admin.create_table(table_path, fluss.TableDescriptor(schema))
    table = await conn.get_table(table_path)
    writer = table.new_append().create_writer()
    for i in range(7):
        writer.append({"id": i})
    await writer.flush()
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)

    scan_records = scanner.poll(timeout_ms=5000)
    # Sequence access
    assert scan_records[0].row == {"id": 0}  # first record
    assert scan_records[-1].row == {"id": 6}  # last record
    assert [record.row["id"] for record in scan_records[:5]] == [0, 1, 2, 3, 4]  # first 5 records
    # Per-bucket access
    for bucket, records in scan_records.items():
        for record in records:
            print(f"bucket={bucket.bucket_id}, offset={record.offset}, row={record.row}")
    # Flat iteration
    for record in scan_records:
        print(record.row)
    assert len(scan_records) == scan_records.count() == 7
    assert scan_records.buckets()[0] in scan_records
    assert not scan_records.is_empty()

    # Start reading from the latest offset
    offsets = await admin.list_offsets(table_path, [0], fluss.OffsetSpec.latest())
    scanner.subscribe(bucket_id=0, start_offset=offsets[0])
    assert scanner.poll(timeout_ms=50).is_empty()
    with conn:
        pass


async def test_the_api_reference_of_primary_key_tables(bootstrap_servers: str) -> None:
    conn = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    admin = await conn.get_admin()
    table_path = fluss.TablePath("fluss", "reference")
    arrow_schema = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string()), pa.field("age", pa.int64())])
    schema = fluss.Schema(arrow_schema, primary_keys=["id"])
    assert schema.get_primary_keys() == ["id"]
    await admin.create_table(table_path, fluss.TableDescriptor(schema, bucket_count=3, kv_format="COMPACTED"))
    table = await conn.get_table(table_path)
    assert table.has_primary_key()
    assert table.get_table_info().get_bucket_keys() == ["id"]

    # UpsertWriter
    writer = table.new_upsert().create_writer()
    handle = writer.upsert({"id": 1, "name": "Alice", "age": 25})
    await handle.wait()
    writer.upsert([2, "Bob", 30])
    writer.upsert((3, "Charlie", 35))
    await writer.flush()
    handle = writer.delete({"id": 3})
    await handle.wait()

    # Partial updates
    by_name = table.new_upsert().partial_update_by_name(["id", "age"]).create_writer()
    by_name.upsert({"id": 1, "age": 26})
    await by_name.flush()
    by_index = table.new_upsert().partial_update_by_index([0, 1]).create_writer()
    by_index.upsert([2, "Robert"])
    await by_index.flush()

    # Lookuper
    lookuper = table.new_lookup().create_lookuper()
    assert await lookuper.lookup({"id": 1}) == {"id": 1, "name": "Alice", "age": 26}
    assert await lookuper.lookup([2]) == {"id": 2, "name": "Robert", "age": 30}
    assert await lookuper.lookup((3,)) is None

    # ScanRecord: the change types of what was written
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets({i: fluss.EARLIEST_OFFSET for i in range(3)})
    changes: dict[int, list[str]] = {}
    while sum(map(len, changes.values())) < 8:
        for record in scanner.poll(timeout_ms=5000):
            changes.setdefault(record.row["id"], []).append(record.change_type.short_string())
    assert changes == {1: ["+I", "-U", "+U"], 2: ["+I", "-U", "+U"], 3: ["+I", "-D"]}
    conn.close()


async def test_the_older_guide_to_configuration(bootstrap_servers: str) -> None:
    config = fluss.Config(
        {
            "bootstrap.servers": bootstrap_servers,
            "request.max.size": "10485760",
            "writer.acks": "all",
            "writer.retries": "2147483647",
            "writer.batch.size": "2097152",
        }
    )
    conn = await fluss.FlussConnection.connect(config)
    admin = await conn.get_admin()
    assert await admin.database_exists("fluss")
    conn.close()


async def test_the_older_guide_to_errors(bootstrap_servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    conn = await fluss.FlussConnection.connect(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    admin = await conn.get_admin()
    table_path = fluss.TablePath("fluss", "twice")
    table_descriptor = fluss.TableDescriptor(fluss.Schema(PA_TABLE.schema))
    await admin.create_table(table_path, table_descriptor)
    try:
        await admin.create_table(table_path, table_descriptor)
    except fluss.FlussError as e:
        print(f"Fluss error: {e.message}")
    conn.close()
    assert "Fluss error: Table fluss.twice already exists" in capsys.readouterr().out


async def test_the_guide_to_data_types(bootstrap_servers: str, names: Names) -> None:
    types = {
        "boolean": (pa.bool_(), True),
        "int8": (pa.int8(), 1),
        "int16": (pa.int16(), 2),
        "int32": (pa.int32(), 3),
        "int64": (pa.int64(), 4),
        "float32": (pa.float32(), 0.5),
        "float64": (pa.float64(), 0.25),
        "string": (pa.string(), "text"),
        "binary": (pa.binary(), b"bytes"),
        "date": (pa.date32(), datetime.date(2024, 1, 15)),
        "time": (pa.time32("ms"), datetime.time(12, 30, 45, 123000)),
        "timestamp": (pa.timestamp("us"), datetime.datetime(2024, 1, 15, 12, 30, 45, 123456)),
        "timestamp_ltz": (
            pa.timestamp("us", tz="UTC"),
            datetime.datetime(2024, 1, 15, 12, 30, 45, 123456, tzinfo=datetime.UTC),
        ),
        "decimal": (pa.decimal128(10, 2), Decimal("123.45")),
    }
    conn = await names.connect(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    admin = await conn.get_admin()
    table_path = fluss.TablePath("fluss", "types")
    schema = fluss.Schema(pa.schema([pa.field(name, type_) for name, (type_, _) in types.items()]))
    await admin.create_table(table_path, fluss.TableDescriptor(schema))
    table = await conn.get_table(table_path)
    writer = await names.new_append_writer(table)
    row = {name: value for name, (_, value) in types.items()}
    writer.append(row)
    await writer.flush()
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
    assert [record.row for record in scanner.poll(timeout_ms=120_000)] == [row]

    # The same row in a table that has all of them but one as its primary key
    table_path = fluss.TablePath("fluss", "types_by_key")
    schema = fluss.Schema(schema.to_arrow(), primary_keys=[name for name in types if name != "string"])
    await admin.create_table(table_path, fluss.TableDescriptor(schema, bucket_count=2))
    table = await conn.get_table(table_path)
    await names.new_upsert_writer(table).upsert(row).wait()
    assert await names.new_lookuper(table).lookup({k: v for k, v in row.items() if k != "string"}) == row
    conn.close()
