"""The options of Spark queries: what each means, what is refused and with which words, and what Spark adds by itself.
Shown by parsing mappings as Spark hands them over, with all keys in lower case."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import FlussError, PartitionSpec, TablePath
from fluss.spark.naming import TableName
from fluss.spark.query_options import (
    ReadOptions,
    WriteOptions,
    applicable_options,
    read_options,
    schema_options,
    write_options,
)
from fluss.spark.session import has_read_limits
from fluss.spark.source_options import COLUMNS, OPTION_BY_KEY, SPARK_OPTIONS, USE_NAMES, Use, quoted_columns

BASE = {"bootstrap.servers": "localhost:9123", "table": "sales.orders"}


def _read(*, is_stream: bool = False, **options: str) -> ReadOptions:
    return read_options(BASE | _keys(options), is_stream=is_stream)


def _write(*, is_stream: bool = False, **options: str) -> WriteOptions:
    return write_options(BASE | _keys(options), is_stream=is_stream)


def _keys(options: dict[str, str]) -> dict[str, str]:
    """Write keys as Python names: two underscores are a point, one is a dash."""
    return {key.replace("__", ".").replace("_", "-"): text for key, text in options.items()}


def test_the_defaults_of_the_fields_are_those_of_the_table_of_options() -> None:
    connection = {"bootstrap.servers": "localhost:9123"}
    table = TableName("sales", "orders", "")
    for is_stream in (False, True):
        assert _read(is_stream=is_stream) == ReadOptions(connection, table)
    assert _write() == WriteOptions(connection, table)
    assert _write(is_stream=True) == WriteOptions(connection, table, delivery_guarantee="exactly-once")


READ_VALUES: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"case-sensitive": "true"}, {"is_case_sensitive": True}),
    ({"log.level": "info"}, {"log_level": "info"}),
    ({"scan.cores": "4"}, {"cores": 4}),
    ({"scan.columns": "id, price"}, {"columns": ("id", "price")}),
    ({"scan.columns": "`a,b`,`c``d`, e f "}, {"columns": ("a,b", "c`d", "e f")}),
    ({"scan.filter": "price > 10"}, {"filter": "price > 10"}),
    ({"scan.partitions": "2026-01-01$EU"}, {"partitions": ("2026-01-01$EU",)}),
    ({"scan.partitions": "2026-01-01, 2026-01-02"}, {"partitions": ("2026-01-01", "2026-01-02")}),
    (
        {"scan.partitions": "day=2026-01-01,region=EU; day=2026-01-02 ;x"},
        {
            "partitions": (
                PartitionSpec({"day": "2026-01-01", "region": "EU"}),
                PartitionSpec({"day": "2026-01-02"}),
                "x",
            )
        },
    ),
    ({"scan.partitions": "day=1/region=EU"}, {"partitions": (PartitionSpec({"day": "1", "region": "EU"}),)}),
    ({"scan.mode": "Fluss"}, {"mode": "fluss"}),
    ({"read.optimized": "true"}, {"mode": "snapshot"}),
    ({"scan.changelog": "TRUE"}, {"changelog": True}),
    ({"scan.target-task-bytes": "64 mb"}, {"target_task_bytes": 64 * 1024**2}),
    ({"scan.target-task-bytes": "4096"}, {"target_task_bytes": 4096}),
    ({"scan.max-tasks": "7"}, {"max_tasks": 7}),
    ({"scan.maxrecordsperpartition": "1000"}, {"max_records_per_partition": 1000}),
    ({"scan.poll.timeout": "1000ms"}, {"poll_timeout_s": 1.0}),
    ({"scan.pushdown": "false"}, {"pushdown": False}),
]
BATCH_VALUES: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"scan.incremental.start.timestamp": "1767225600000"}, {"incremental_start_ms": 1767225600000}),
    ({"scan.incremental.start.timestamp": "2026-01-01 00:00:00"}, {"incremental_start_ms": 1767225600000}),
    ({"scan.incremental.start.timestamp": "2026-01-01"}, {"incremental_start_ms": 1767225600000}),
    (
        {
            "scan.incremental.start.timestamp": "2025-12-31 19:00:00",
            "scan.incremental.end.timestamp": "2026-01-01T00:00:00.5+00:00",
            "scan.time-zone": "America/New_York",
        },
        {
            "incremental_start_ms": 1767225600000,
            "incremental_end_ms": 1767225600500,
            "time_zone": "America/New_York",
        },
    ),
    ({"scan.as-of.timestamp": "1767225600000"}, {"as_of_ms": 1767225600000}),
    ({"scan.as-of.offsets": '{":0": 17}'}, {"as_of_offsets": {":0": 17}}),
    ({"scan.mode": "lake", "scan.lake.snapshot-id": "17"}, {"mode": "lake", "lake_snapshot_id": 17}),
]
STREAM_VALUES: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"scan.startup.mode": "latest"}, {"startup_mode": "latest"}),
    (
        {"scan.startup.mode": "timestamp", "scan.startup.timestamp": "2026-01-01 01:00:00", "scan.time-zone": "+01:00"},
        {"startup_mode": "timestamp", "startup_timestamp_ms": 1767225600000, "time_zone": "+01:00"},
    ),
    (
        {"scan.startup.mode": "offsets", "scan.startup.offsets": '{":0": 17, "2026-01-01:3": 0}'},
        {"startup_mode": "offsets", "startup_offsets": {":0": 17, "2026-01-01:3": 0}},
    ),
    ({"maxrowspertrigger": "500"}, {"max_rows_per_trigger": 500}),
    ({"maxbytespertrigger": "1mb"}, {"max_bytes_per_trigger": 1024**2}),
    ({"scan.partition.discovery.interval": "0s"}, {"partition_discovery_interval_s": 0.0}),
    ({"scan.on-data-loss": "skip"}, {"on_data_loss": "skip"}),
]


@pytest.mark.parametrize(
    ("is_stream", "given_options", "expected"),
    [
        *((False, *case) for case in (*READ_VALUES, *BATCH_VALUES)),
        *((True, *case) for case in (*READ_VALUES, *STREAM_VALUES)),
    ],
)
def test_an_option_of_a_read_is_a_typed_field(
    is_stream: bool, given_options: dict[str, str], expected: dict[str, Any]
) -> None:
    if is_stream and any(key.endswith("pertrigger") for key in given_options) and not has_read_limits():
        pytest.skip("before 4.2 Spark had no limits for Python sources")
    options = read_options(BASE | given_options, is_stream=is_stream)
    plain = read_options(BASE, is_stream=is_stream)
    assert options == ReadOptions(**(vars(plain) | expected))
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given_options", "expected"),
    [
        ({"sink.delivery-guarantee": "exactly-once"}, {"delivery_guarantee": "exactly-once"}),
        ({"sink.delivery-guarantee": "AT-LEAST-ONCE"}, {"delivery_guarantee": "at-least-once"}),
        ({"sink.change-type-column": "op"}, {"change_type_column": "op"}),
        (
            {"sink.change-type-column": "`o,p`", "sink.ignore-delete": "true"},
            {"change_type_column": "o,p", "ignore_delete": True},
        ),
        ({"sink.target-columns": "id,price"}, {"target_columns": ("id", "price")}),
        ({"sink.bucket-shuffle": "false"}, {"bucket_shuffle": False}),
    ],
)
def test_an_option_of_a_write_is_a_typed_field(given_options: dict[str, str], expected: dict[str, Any]) -> None:
    for is_stream in (False, True):
        options = write_options(BASE | given_options, is_stream=is_stream)
        plain = write_options(BASE, is_stream=is_stream)
        assert options == WriteOptions(**(vars(plain) | expected))
        assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_has_been_shown_to_mean_something() -> None:
    shown = {
        key
        for cases in (READ_VALUES, BATCH_VALUES, STREAM_VALUES)
        for given_options, _ in cases
        for key in given_options
    }
    others = {"table", "sink.delivery-guarantee", "sink.change-type-column", "sink.ignore-delete"}
    others |= {"sink.target-columns", "sink.bucket-shuffle", "sink.allow-overwrite", "sink.transaction"}
    others |= {"sink.on-table-change"}
    assert set(OPTION_BY_KEY) == shown | others
    assert _write(sink__allow_overwrite="true").allow_overwrite
    assert _write(log__level="info").log_level == "info"
    assert [_write().on_table_change, _write(sink__on_table_change="accept").on_table_change] == ["fail", "accept"]
    repeatable = _write(sink__transaction="daily-load/17", checkpointlocation="/c")
    assert repeatable.transaction == ("daily-load", 17)
    assert (repeatable.delivery_guarantee, repeatable.checkpoint_location) == ("exactly-once", "/c")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sales.orders", TableName("sales", "orders", "")),
        (" a.b$changelog ", TableName("a", "b", "changelog")),
        ("a.b$BINLOG", TableName("a", "b", "binlog")),
        ("a.b$lake", TableName("a", "b", "lake")),
    ],
)
def test_a_table_is_named_with_its_database(text: str, expected: TableName) -> None:
    assert _read(table=text).table == expected
    assert expected.path == TablePath(expected.database, expected.table)
    assert str(expected).lower() == text.strip().lower()


def test_the_view_follows_from_the_name_or_from_an_option() -> None:
    assert _read().view == ""
    assert _read(table="a.b$binlog").view == "binlog"
    assert _read(table="a.b$changelog", scan__changelog="true").view == "changelog"
    assert _read(scan__changelog="true").view == "changelog"


# The client


def test_client_options_are_taken_with_or_without_their_prefix() -> None:
    options = read_options(
        BASE | {"client.request-timeout": "5000", "writer.acks": "all", "client.bucket-hash": "rust"}, is_stream=False
    )
    assert options.connection == {
        "bootstrap.servers": "localhost:9123",
        "request-timeout": "5000",
        "writer.acks": "all",
        "client.bucket-hash": "rust",
    }


def test_client_options_are_checked_at_once() -> None:
    with pytest.raises(FlussError, match="Invalid value 'soon' for 'request-timeout'"):
        read_options(BASE | {"client.request-timeout": "soon"}, is_stream=False)
    with pytest.raises(FlussError, match="'request-timeout' must be greater than 0"):
        read_options(BASE | {"request-timeout": "0"}, is_stream=False)
    with pytest.raises(FlussError, match=r"'request-timeout' and 'client\.request-timeout' are both given; keep one"):
        read_options(BASE | {"request-timeout": "1", "client.request-timeout": "1"}, is_stream=False)
    with pytest.raises(FlussError, match=r"'writer\.batch-size' and 'writer\.batch\.size' are both given; keep one"):
        read_options(BASE | {"writer.batch-size": "500000", "writer.batch.size": "600000"}, is_stream=False)


def test_passwords_are_shown_nowhere() -> None:
    secret = {"security.protocol": "sasl", "security.sasl.username": "me", "client.security.sasl.password": "s3cret"}
    for options in (read_options(BASE | secret, is_stream=False), write_options(BASE | secret, is_stream=True)):
        assert options.connection["security.sasl.password"] == "s3cret"
        assert "s3cret" not in repr(options)
    with pytest.raises(FlussError) as error:
        read_options(BASE | secret | {"nonsense": "s3cret"}, is_stream=False)
    assert "s3cret" not in error.value.message


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scan.colums": "a"},
            "Unknown option 'scan.colums'; did you mean 'scan.columns'\\? There are table, case-sensitive",
        ),
        ({"maxrowpertrigger": "1"}, "Unknown option 'maxrowpertrigger'."),
        ({"scan.maxrecordperpartition": "1"}, "did you mean 'scan.maxRecordsPerPartition'\\?"),
        ({"bootstrap.server": "x"}, "Unknown option 'bootstrap.server'; did you mean 'bootstrap.servers'"),
        ({"qwertz": "x"}, "Unknown option 'qwertz'. There are table"),
        (
            {"maxrowspertrigger": "1"},
            "'maxRowsPerTrigger' is an option of streaming reads, but this is one of the batch",
        ),
        ({"scan.startup.mode": "latest"}, "'scan.startup.mode' is an option of streaming reads"),
        ({"sink.allow-overwrite": "true"}, "'sink.allow-overwrite' is an option of batch writes"),
        ({"scan.columns": ""}, "Invalid value '' for 'scan.columns': expected column names separated by commas"),
        ({"scan.columns": "a,,b"}, "Invalid value 'a,,b' for 'scan.columns'"),
        ({"scan.columns": "a,"}, "Invalid value 'a,' for 'scan.columns'"),
        ({"scan.columns": "`a"}, "Invalid value '`a' for 'scan.columns'"),
        ({"scan.columns": "a,b,a"}, "'scan.columns': the column 'a' is there twice"),
        ({"scan.partitions": " ; "}, "Invalid value ' ; ' for 'scan.partitions'"),
        ({"scan.partitions": "day="}, "Invalid value 'day=' for 'scan.partitions'"),
        ({"scan.partitions": "a,,b"}, "Invalid value 'a,,b' for 'scan.partitions'"),
        ({"scan.partitions": "day=1,2"}, "Invalid value 'day=1,2' for 'scan.partitions'"),
        ({"scan.partitions": "day=1,day=2"}, "a partition has one value of 'day'; separate partitions with semicolons"),
        ({"scan.mode": "all"}, "Invalid value 'all' for 'scan.mode': expected one of union, fluss, lake, snapshot"),
        ({"scan.changelog": "yes"}, "Invalid value 'yes' for 'scan.changelog': expected true or false"),
        ({"scan.max-tasks": "many"}, "Invalid value 'many' for 'scan.max-tasks': expected an integer"),
        ({"scan.max-tasks": "0"}, "Invalid value '0' for 'scan.max-tasks': it must be at least 1"),
        ({"scan.poll.timeout": "10"}, "Invalid value '10' for 'scan.poll.timeout': expected a duration with a unit"),
        ({"scan.poll.timeout": "0s"}, "Invalid value '0s' for 'scan.poll.timeout': it must be at least"),
        ({"scan.target-task-bytes": "32 parsec"}, "expected a size such as '32mb', or a number of bytes"),
        ({"scan.time-zone": "Mars"}, "Invalid value 'Mars' for 'scan.time-zone': expected a time zone"),
        ({"scan.incremental.start.timestamp": ""}, "expected epoch milliseconds, or a time such as"),
        ({"scan.incremental.start.timestamp": "2026-02-30 00:00:00"}, "expected epoch milliseconds"),
        ({"scan.incremental.start.timestamp": "9" * 25}, "expected epoch milliseconds"),
        ({"scan.incremental.end.timestamp": "5"}, "needs 'scan.incremental.start.timestamp', too"),
        (
            {"scan.incremental.start.timestamp": "5", "scan.incremental.end.timestamp": "5"},
            "The time range is empty: it begins at 5 ms and ends before 5 ms",
        ),
        ({"scan.incremental.start.timestamp": "5", "read.optimized": "true"}, "A time range is read from Fluss"),
        (
            {"read.optimized": "true", "scan.mode": "fluss"},
            "'read.optimized' means 'scan.mode'=snapshot, but it is fluss",
        ),
        ({"table": "a.b$binlog", "scan.changelog": "true"}, "a.b\\$binlog is a view; leave one out"),
        ({"table": "a.b$changelog", "scan.mode": "lake"}, "'scan.mode'=lake has no changes"),
        ({"table": "orders"}, "Invalid value 'orders' for 'table': expected database.table"),
        ({"table": "a.b.c"}, "Invalid value 'a.b.c' for 'table'"),
        ({"table": "a.b$log"}, "a table has no view '\\$log'; there are \\$changelog, \\$binlog and \\$lake"),
        ({"table": "a.b$"}, "a table has no view '\\$'"),
        ({"path": "x.y"}, "The path 'x.y' is not the table 'sales.orders'; leave the path out"),
    ],
)
def test_what_a_batch_read_cannot_be_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(FlussError, match=message):
        read_options(BASE | options, is_stream=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scan.incremental.start.timestamp": "5"},
            "is an option of batch reads, but this is one of the streaming reads",
        ),
        (
            {"scan.startup.mode": "timestamp"},
            "'scan.startup.mode' is timestamp, but 'scan.startup.timestamp' is not given",
        ),
        (
            {"scan.startup.timestamp": "5"},
            "'scan.startup.timestamp' is given, but 'scan.startup.mode' is full; set it to",
        ),
        ({"scan.startup.mode": "offsets"}, "'scan.startup.mode' is offsets, but 'scan.startup.offsets' is not given"),
        ({"scan.startup.offsets": '{":0": 1}'}, "'scan.startup.offsets' is given, but 'scan.startup.mode' is full"),
        ({"scan.startup.offsets": "[1]"}, "expected JSON with an offset for each bucket"),
        ({"scan.startup.offsets": "{"}, "expected JSON with an offset for each bucket"),
        ({"scan.startup.offsets": '{"0": 1}'}, "expected JSON with an offset for each bucket"),
        ({"scan.startup.offsets": '{":0": -1}'}, "expected JSON with an offset for each bucket"),
        ({"scan.startup.offsets": '{":0": true}'}, "expected JSON with an offset for each bucket"),
        (
            {"maxrowspertrigger": "1", "maxbytespertrigger": "1"},
            "'maxRowsPerTrigger' and 'maxBytesPerTrigger' are both",
        ),
        ({"maxrowspertrigger": "0"}, "it must be at least 1"),
    ],
)
def test_what_a_stream_cannot_be_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(FlussError, match=message):
        read_options(BASE | options, is_stream=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scan.columns": "a"}, "'scan.columns' is an option of reads, but this is one of the batch writes"),
        ({"sink.ignore-delete": "true"}, "'sink.ignore-delete' needs 'sink.change-type-column'"),
        ({"table": "a.b$changelog"}, "a.b\\$changelog can only be read; write to a.b"),
        ({"sink.delivery-guarantee": "at-most-once"}, "expected one of at-least-once, exactly-once"),
        ({"sink.transaction": "job"}, "expected a name and a number, such as daily-load/17"),
        (
            {"sink.transaction": "job/1", "sink.delivery-guarantee": "at-least-once"},
            "'sink.transaction' is for exactly-once writes",
        ),
    ],
)
def test_what_a_write_cannot_be_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(FlussError, match=message):
        write_options(BASE | options, is_stream=False)


def test_a_query_without_any_option_is_one_on_a_table_of_sparks_catalog() -> None:
    with pytest.raises(FlussError, match=r"Make tables known to Spark with FlussSpark\.attach"):
        read_options({}, is_stream=False)


def test_table_and_cluster_must_be_given() -> None:
    with pytest.raises(FlussError, match=r"Which table\? Give the option 'table', such as 'sales\.orders'"):
        read_options({"bootstrap.servers": "x:1"}, is_stream=False)
    with pytest.raises(FlussError, match=r"Which cluster\? Give the option 'bootstrap\.servers'"):
        write_options({"table": "a.b"}, is_stream=True)


# What Spark adds


def test_the_path_of_a_load_or_save_is_the_table() -> None:
    options = {"bootstrap.servers": "x:1", "path": "sales.orders"}
    assert read_options(options, is_stream=False).table == TableName("sales", "orders", "")
    assert write_options(options | {"table": "sales.orders"}, is_stream=True).table.path == TablePath("sales", "orders")


def test_what_spark_adds_to_a_streaming_write_is_taken() -> None:
    options = write_options(
        BASE | {"checkpointlocation": "/c", "queryname": "q", "asyncprogresstrackingenabled": "true"}, is_stream=True
    )
    assert options.checkpoint_location == "/c"
    with pytest.raises(FlussError, match="Unknown option 'checkpointlocation'"):
        _read(is_stream=True, checkpointlocation="/c")


def test_of_what_create_table_hands_over_only_the_options_count() -> None:
    handed_over = {
        "option.table": "sales.orders",
        "table": "sales.orders",
        "option.bootstrap.servers": "x:1",
        "bootstrap.servers": "x:1",
        "option.sink.ignore-delete": "true",
        "sink.ignore-delete": "true",
        "provider": "fluss",
        "owner": "somebody",
        "comment": "...",
        "location": "file:/somewhere",
        "path": "file:/somewhere",
        "my.own.property": "7",
    }
    options = schema_options(handed_over)
    assert options.table == TableName("sales", "orders", "")
    assert options.connection == {"bootstrap.servers": "x:1"}
    with pytest.raises(FlussError, match=r"Unknown option 'scan\.colums'"):
        schema_options(handed_over | {"option.scan.colums": "a", "scan.colums": "a"})


def test_a_schema_is_asked_for_with_options_of_any_kind_of_query() -> None:
    options = schema_options(BASE | {"maxrowspertrigger": "5", "sink.bucket-shuffle": "true", "scan.columns": "a"})
    assert options.columns == ("a",)


def test_options_that_several_kinds_share_are_sorted_out() -> None:
    shared = BASE | {"maxRowsPerTrigger": "5", "scan.columns": "a", "sink.bucket-shuffle": "true", "writer.acks": "all"}
    assert set(applicable_options(shared, Use.STREAM_READ)) == {
        *BASE,
        "maxRowsPerTrigger",
        "scan.columns",
        "writer.acks",
    }
    assert set(applicable_options(shared, Use.BATCH_WRITE)) == {*BASE, "sink.bucket-shuffle", "writer.acks"}


# The table of options


def test_every_option_is_described_and_has_a_default_that_can_be_read() -> None:
    for option in SPARK_OPTIONS:
        assert option.doc.endswith(".")
        assert option.uses in USE_NAMES
        assert option.default is not None or not option.default_text


@given(st.lists(st.text(alphabet="ab`, ", min_size=1).filter(str.strip), min_size=1, max_size=4, unique=True))
def test_any_columns_can_be_written_as_a_text(names: list[str]) -> None:
    assert COLUMNS.read(quoted_columns(names)) == tuple(names)
