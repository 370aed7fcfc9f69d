"""What the properties of CREATE TABLE say about keys, buckets and columns, and how names and values become options."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone

import pyarrow as pa
import pytest

import fluss
from fluss.errors import FlussError
from fluss.schema.schema import AggFunction
from fluss.schema.table import TableInfo, TablePath
from fluss.spark.naming import (
    TableName,
    provider_name,
    spark_name,
    spark_table_name,
    table_name,
    table_path,
    unique_spark_name,
)
from fluss.spark.query_options import format_columns, format_options, format_partitions, format_time
from fluss.spark.table_shape import TableShape, shown_properties

SCHEMA = fluss.Schema(
    pa.schema([("id", pa.int64()), ("day", pa.string()), ("total", pa.int64()), ("names", pa.string())])
)


def test_properties_say_everything_about_a_table() -> None:
    shape = TableShape(partition_keys=("day",)).with_properties(
        {
            "primary.key": "id, day",
            "bucket.num": "4",
            "bucket.key": "id",
            "fields.total.agg": "sum",
            "fields.names.agg": "listagg",
            "fields.names.listagg.delimiter": ";",
            "table.merge-engine": "aggregation",
            "owner": "me",
        }
    )
    descriptor = shape.descriptor(SCHEMA)
    assert descriptor.schema.primary_key == ["id", "day"]
    assert (descriptor.bucket_count, descriptor.bucket_keys) == (4, ["id"])
    assert descriptor.schema.column("total").aggregation == AggFunction.of("sum")
    assert descriptor.schema.column("names").aggregation == AggFunction.of("listagg", delimiter=";")
    assert descriptor.properties == {"table.merge-engine": "aggregation"}
    assert descriptor.custom_properties == {"owner": "me"}


def test_shown_properties_make_the_same_table_again() -> None:
    given = {
        "bucket.num": "2",
        "bucket.key": "id",
        "fields.names.agg": "listagg",
        "fields.names.listagg.delimiter": "|",
        "auto-increment.fields": "total",
        "table.log.ttl": "3 d",
        "owner": "me",
    }
    descriptor = TableShape(primary_keys=("id",)).with_properties(given).descriptor(SCHEMA)
    info = TableInfo._create(TablePath("d", "t"), 1, 1, descriptor, 0, 0)
    assert shown_properties(info) == given


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"bucket.nmu": "4"}, "Unknown property 'bucket.nmu'.*bucket.num"),
        ({"bucket.num": "four"}, "'bucket.num': expected the number of buckets"),
        ({"primary.key": "day"}, "primary key is given twice"),
        ({"fields.total.agg": "summ"}, "Unknown aggregate function"),
        ({"fields.names.listagg.delimiter": ";"}, "needs 'fields.names.agg' = 'listagg'"),
        ({"fields.nobody.agg": "sum"}, "Column 'nobody' not found"),
        ({"fields.names.agg": "sum"}, "does not work on column 'names'"),
    ],
)
def test_properties_that_cannot_be_are_refused(properties: dict[str, str], problem: str) -> None:
    with pytest.raises(FlussError, match=problem):
        TableShape(primary_keys=("id",)).with_properties(properties).descriptor(SCHEMA)


def test_tables_are_named_in_several_ways() -> None:
    path = TablePath("sales", "orders")
    assert table_path("sales.orders") == table_path(" fluss.sales.orders ") == table_path(path) == path
    assert table_name("sales.orders$changelog") == TableName("sales", "orders", "changelog")
    # A database may have this name, too.
    assert table_path("fluss.orders") == TablePath("fluss", "orders")


@pytest.mark.parametrize("text", ["orders", "a.b.c", ".x", "a.", ""])
def test_a_name_without_a_database_is_refused(text: str) -> None:
    with pytest.raises(FlussError, match="names no table"):
        table_path(text)


def test_a_view_can_only_be_read() -> None:
    with pytest.raises(FlussError, match=r"can only be read; write sales.orders for the table"):
        table_path("sales.orders$changelog")


def test_spark_gets_names_that_it_accepts() -> None:
    assert spark_name("My-Orders") == "my_orders"
    assert spark_table_name(TableName("d", "My-T", "changelog")) == "my_t__changelog"


def test_no_two_tables_have_the_same_provider() -> None:
    names = [("a", "b"), ("a__b", "c"), ("a", "b__c"), ("a_", "b"), ("a", "_b")]
    providers = [provider_name(*name) for name in names]
    assert providers[0] == "fluss__a__b"
    assert len(set(providers)) == len(names)


def test_options_may_be_written_as_keywords() -> None:
    given = {
        "scan_max_tasks": 4,
        "maxRowsPerTrigger": 7,
        "max_bytes_per_trigger": "1mb",
        "scan.mode": None,
        "read_optimized": True,
        "client.request-timeout": 5,
        "writer_batch_size": 100,
        "sink_target_columns": ["a", "b,c"],
        "unknown_one": "x",
    }
    assert format_options(given) == {
        "scan.max-tasks": "4",
        "maxRowsPerTrigger": "7",
        "maxBytesPerTrigger": "1mb",
        "read.optimized": "true",
        "request-timeout": "5",
        "writer.batch-size": "100",
        "sink.target-columns": "a,`b,c`",
        "unknown_one": "x",
    }


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(FlussError, match=r"'scan.mode' is given twice"):
        format_options({"scan.mode": "fluss", "scan_mode": "lake"})


def test_times_become_text() -> None:
    instant = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert format_time(instant) == format_time(instant.astimezone(timezone(timedelta(hours=5)))) == "1767268800000"
    assert format_time(datetime(2026, 1, 1, 12, 30)) == "2026-01-01 12:30:00"
    assert format_time(date(2026, 1, 1)) == "2026-01-01"
    assert format_time(17) == "17"
    assert format_time("2026-01-01") == "2026-01-01"
    with pytest.raises(TypeError, match="got bool"):
        format_time(True)


def test_partitions_and_columns_become_text() -> None:
    assert format_partitions({"day": date(2026, 1, 1), "n": 3}) == "day=2026-01-01,n=3"
    assert format_partitions(["2026-01-01$EU", {"day": "x"}]) == "2026-01-01$EU;day=x"
    assert format_columns(["a", "b`c"]) == "a,`b``c`"
    assert format_partitions(None) is format_columns(None) is None


def test_one_column_is_no_list_of_columns() -> None:
    with pytest.raises(TypeError, match="got the text 'abc'"):
        format_columns("abc")
    with pytest.raises(ValueError, match="empty list"):
        format_columns([])


def test_no_two_names_are_the_same_where_nobody_writes_them() -> None:
    names = ["a-b", "a_b", "A_b", "A-B", "ab"]
    assert unique_spark_name("a_b") == "a_b"
    assert len({unique_spark_name(name) for name in names}) == len(names)
    assert all(re.fullmatch("[a-z0-9_]+", unique_spark_name(name)) for name in names)
