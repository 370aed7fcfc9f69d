"""Every name of the published guides exists with that spelling: classes, methods, properties, keywords, constants.
Shown by a table per generation of guides; arguments are bound to signatures by the keywords that the guides use."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fluss

# Methods, as "name(keyword, ...)": it can be called with all keywords, and without those that end with "=".
METHODS: dict[str, list[str]] = {
    "Config": ["__init__(properties=)"],
    "FlussConnection": [
        *("create(config)", "connect(config)", "new(config)", "config()"),
        *("get_admin()", "get_table(table_path)", "close()"),
        *("__enter__()", "__aenter__()"),
    ],
    "FlussAdmin": [
        "create_database(name, database_descriptor=, ignore_if_exists=)",
        "create_database(database_name, database_descriptor=, ignore_if_exists=)",
        "drop_database(name, ignore_if_not_exists=, cascade=)",
        "drop_database(database_name, ignore_if_not_exists=, cascade=)",
        *("list_databases()", "database_exists(name)", "database_exists(database_name)"),
        *("get_database_info(name)", "get_database_info(database_name)"),
        "create_table(table_path, table_descriptor, ignore_if_exists=)",
        *("drop_table(table_path, ignore_if_not_exists=)", "get_table_info(table_path)", "get_table(table_path)"),
        *("list_tables(database_name)", "table_exists(table_path)"),
        *("list_offsets(table_path, bucket_ids, offset_spec)", "list_offsets(table_path, bucket_ids, offset_type)"),
        "list_offsets(table_path, bucket_ids, offset_type, timestamp)",
        "list_partition_offsets(table_path, partition_name, bucket_ids, offset_spec)",
        "list_partition_offsets(table_path, partition_name, bucket_ids, offset_type, timestamp=)",
        "create_partition(table_path, partition_spec, ignore_if_exists=)",
        "drop_partition(table_path, partition_spec, ignore_if_not_exists=)",
        *(
            "list_partition_infos(table_path, partition_spec=)",
            "list_partition_infos_with_spec(table_path, partition_spec)",
        ),
        *("get_latest_lake_snapshot(table_path)", "get_server_nodes()"),
    ],
    "FlussTable": [
        *("new_scan()", "new_append()", "new_append_writer()", "new_upsert(columns=, column_indices=)", "new_lookup()"),
        *("get_table_info()", "get_table_path()", "has_primary_key()"),
    ],
    "TableScan": [
        *(
            "project(indices)",
            "project_by_name(names)",
            "limit(n)",
            "filter(predicate)",
            "with_fixed_schema(fixed_schema)",
        ),
        *("create_log_scanner()", "create_record_batch_log_scanner()", "create_batch_scanner()"),
        "create_bucket_batch_scanner(bucket)",
    ],
    "TableAppend": ["create_writer()"],
    "AppendWriter": [
        *("append(row)", "write_arrow(table)", "write_arrow_batch(batch)", "append_arrow_batch(batch)"),
        *("write_pandas(df)", "flush()", "__aenter__()"),
    ],
    "TableUpsert": [
        *("partial_update_by_name(columns)", "partial_update_by_index(indices)"),
        *("partial_update_by_index(column_indices)", "create_writer()"),
        *("partial_update(column_indices=)", "partial_update_with_column_names(columns)"),
        *("upsert(row)", "delete(pk)", "flush()", "__aenter__()"),
    ],
    "UpsertWriter": ["upsert(row)", "delete(pk)", "flush()", "__aenter__()"],
    "TableLookup": ["create_lookuper()", "lookup_by(column_names)", "lookup(pk)"],
    "Lookuper": ["lookup(pk)"],
    "TablePrefixLookup": ["create_lookuper()"],
    "PrefixLookuper": ["lookup(prefix)"],
    "WriteResultHandle": ["wait()", "__await__()"],
    "LogScanner": [
        *("subscribe(bucket_id, start_offset)", "subscribe_buckets(bucket_offsets)"),
        *("subscribe_partition(partition_id, bucket_id, start_offset)", "unsubscribe(bucket_id)"),
        "subscribe_partition_buckets(partition_bucket_offsets)",
        *("unsubscribe_partition(partition_id, bucket_id)", "poll(timeout_ms)", "poll_arrow(timeout_ms)"),
        *("poll_record_batch(timeout_ms)", "poll_batches(timeout_ms)", "to_arrow()", "to_pandas()"),
        *("to_arrow_batch_reader()", "is_partitioned()", "get_subscribed_buckets()", "__aiter__()"),
        *("poll_async(timeout_ms)", "poll_arrow_async(timeout_ms)", "poll_record_batch_async(timeout_ms)"),
        *("to_arrow_async()", "to_pandas_async()"),
    ],
    "BatchScanner": ["next_batch()", "collect_all_batches()", "to_arrow()", "to_pandas()"],
    "ScanRecords": [
        *("buckets()", "records(bucket)", "count()", "is_empty()", "keys()", "values()", "items()"),
        *("records_by_buckets()", "__len__()", "__iter__()"),
    ],
    "RecordBatch": ["__len__()"],
    "Schema": [
        *("__init__(schema, primary_keys=, auto_increment_column=)", "builder()", "to_arrow()"),
        *("get_column_names()", "get_column_types()", "get_columns()", "get_primary_keys()"),
        "get_auto_increment_columns()",
    ],
    "TableDescriptor": [
        "__init__(schema, partition_keys=, bucket_count=, bucket_keys=, comment=, log_format=, kv_format=, "
        "properties=, custom_properties=)",
        *("get_schema()", "builder()", "has_primary_key()", "is_partitioned()"),
    ],
    "TablePath": [
        *("__init__(database_name, table_name)", "__init__(database, table)", "table_path_str()"),
    ],
    "TableInfo": [
        *("get_primary_keys()", "get_partition_keys()", "get_bucket_keys()", "has_primary_key()", "is_partitioned()"),
        *("get_schema()", "get_column_names()", "get_column_count()", "get_properties()", "get_custom_properties()"),
    ],
    "PartitionInfo": ["get_partition_id()", "get_partition_name()", "get_partition_spec()"],
    "PartitionSpec": ["__init__(spec_map)", "get_spec_map()"],
    "DatabaseDescriptor": ["__init__(comment=, custom_properties=)", "get_custom_properties()", "builder()"],
    "DatabaseInfo": ["get_database_descriptor()"],
    "LakeSnapshot": ["__init__(snapshot_id)", "get_bucket_offset(bucket)", "get_table_buckets()"],
    "TableBucket": [
        *("__init__(table_id, bucket)", "__init__(table_id, bucket_id)"),
        *("with_partition(table_id, partition_id, bucket)", "new_with_partition(table_id, partition_id, bucket_id)"),
    ],
    "FlussError": ["__init__(message, error_code=)"],
    "OffsetSpec": ["earliest()", "latest()", "timestamp(ts)"],
    "ChangeType": ["short_string()"],
    "GenericRow": [
        *("__init__(field_count)", "set_field(pos, value)", "from_data(data)", "is_null_at(pos)", "get_boolean(pos)"),
        *("get_byte(pos)", "get_short(pos)", "get_int(pos)", "get_long(pos)", "get_float(pos)", "get_double(pos)"),
        *("get_string(pos)", "get_char(pos, length)", "get_bytes(pos)", "get_binary(pos, length)", "get_date(pos)"),
        *("get_decimal(pos, precision, scale)", "get_time(pos)"),
        *("get_timestamp_ntz(pos, precision)", "get_timestamp_ltz(pos, precision)"),
    ],
    "DataTypes": [
        *("boolean()", "tinyint()", "smallint()", "int()", "bigint()", "float()", "double()", "string()", "bytes()"),
        *("date()", "time(precision=)", "timestamp(precision=)", "timestamp_ltz(precision=)"),
        *("decimal(precision, scale)", "char(length)", "binary(length)"),
        *("array(element_type)", "map(key_type, value_type)", "row(fields)"),
    ],
    "DataType": ["not_null()", "to_string()"],
    "DataField": ["__init__(name, data_type, description=)"],
    "ColumnRef": [
        *("__init__(name)", "equal(value)", "not_equal(value)", "less_than(value)", "less_or_equal(value)"),
        *("greater_than(value)", "greater_or_equal(value)", "is_null()", "is_not_null()", "starts_with(prefix)"),
        *("ends_with(suffix)", "contains(infix)", "is_in(values)", "not_in(values)"),
    ],
    "Predicate": ["and_(other)", "or_(other)"],
}

PROPERTIES: dict[str, list[str]] = {
    "Config": [
        *("bootstrap_servers", "bootstrap_server", "writer_request_max_size", "request_max_size", "writer_acks"),
        *("writer_retries", "writer_batch_size", "writer_batch_timeout_ms", "writer_bucket_no_key_assigner"),
        *("scanner_remote_log_prefetch_num", "remote_file_download_thread_num", "scanner_remote_log_read_concurrency"),
        *("scanner_log_max_poll_records", "scanner_log_fetch_max_bytes", "scanner_log_fetch_min_bytes"),
        *("scanner_log_fetch_wait_max_time_ms", "scanner_log_fetch_max_bytes_for_bucket", "connect_timeout_ms"),
        *("request_timeout_ms", "security_protocol", "security_sasl_mechanism", "security_sasl_username"),
        *("security_sasl_password", "writer_enable_idempotence", "writer_max_inflight_requests_per_bucket"),
        *("writer_buffer_memory_size", "writer_buffer_wait_timeout_ms", "writer_dynamic_batch_size_enabled"),
        *("writer_dynamic_batch_size_min", "writer_kv_backpressure_max_throttle_ms"),
    ],
    "ServerNode": ["id", "host", "port", "server_type", "uid"],
    "FlussTable": ["table_path", "arrow_schema"],
    "BatchScanner": ["bucket"],
    "ScanRecord": ["offset", "timestamp", "change_type", "row", "bucket"],
    "RecordBatch": ["batch", "bucket", "base_offset", "last_offset", "num_records", "commit_timestamp"],
    "Schema": ["columns", "primary_key", "column_names", "primary_key_indexes"],
    "Column": ["name", "data_type", "comment"],
    "TableDescriptor": [
        *("schema", "partition_keys", "bucket_keys", "bucket_count", "properties", "custom_properties", "comment"),
    ],
    "TablePath": ["database_name", "table_name", "database", "table"],
    "TableInfo": [
        *("table_id", "table_path", "num_buckets", "schema_id", "comment", "created_time", "modified_time", "schema"),
        *("primary_keys", "partition_keys", "bucket_keys", "properties", "custom_properties"),
    ],
    "PartitionInfo": ["partition_id", "partition_name"],
    "DatabaseDescriptor": ["comment", "custom_properties"],
    "DatabaseInfo": ["database_name", "created_time", "modified_time", "database_descriptor"],
    "LakeSnapshot": ["snapshot_id", "table_buckets_offset"],
    "TableBucket": ["table_id", "bucket_id", "partition_id"],
    "FlussError": ["message", "error_code", "is_retriable"],
    "DataField": ["name"],
    "ColumnRef": ["name"],
}

BUILDERS = {
    "Schema": ["column(name, data_type, comment=)", "primary_key(keys)", "enable_auto_increment(name)", "build()"],
    "TableDescriptor": [
        *("schema(schema)", "log_format(log_format)", "kv_format(kv_format)", "property(key, value)"),
        *("properties(properties)", "custom_property(key, value)", "custom_properties(properties)"),
        *("partitioned_by(keys)", "distributed_by(bucket_count, bucket_keys)", "comment(comment)", "build()"),
    ],
    "DatabaseDescriptor": [
        *("comment(comment)", "custom_property(key, value)", "custom_properties(properties)", "build()"),
    ],
}

CONSTANTS = {
    "EARLIEST_OFFSET": -2,
    "LATEST_OFFSET": -1,
    "NO_COMMIT_TIMESTAMP": -1,
    "OffsetType.EARLIEST": "earliest",
    "OffsetType.LATEST": "latest",
    "OffsetType.TIMESTAMP": "timestamp",
    "ChangeType.AppendOnly": 0,
    "ChangeType.Insert": 1,
    "ChangeType.UpdateBefore": 2,
    "ChangeType.UpdateAfter": 3,
    "ChangeType.Delete": 4,
    "ErrorCode.CLIENT_ERROR": -2,
    "LogFormat.ARROW": "ARROW",
    "LogFormat.INDEXED": "INDEXED",
    "KvFormat.INDEXED": "INDEXED",
    "KvFormat.COMPACTED": "COMPACTED",
    "ServerType.COORDINATOR_SERVER": "CoordinatorServer",
    "ServerType.TABLET_SERVER": "TabletServer",
}
# Decorated functions take these keywords beside those of their signature.
SECOND_NAMES = {"name": "database_name"}


def _cases(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(cls, entry) for cls, entries in table.items() for entry in entries]


def _check_call(function: Callable[..., Any], keywords: list[str], *, has_self: bool) -> None:
    """Bind all keywords, and those that are not optional, as a call would."""
    signature = inspect.signature(function)
    for wanted in (keywords, [keyword for keyword in keywords if not keyword.endswith("=")]):
        named = {keyword.rstrip("="): object() for keyword in wanted}
        signature.bind(*([object()] if has_self else []), **named)


def _parsed(entry: str) -> tuple[str, list[str]]:
    name, _, arguments = entry.rstrip(")").partition("(")
    return name, [argument for argument in arguments.split(", ") if argument]


@pytest.mark.parametrize(("cls", "entry"), _cases(METHODS))
def test_a_documented_method_takes_its_documented_keywords(cls: str, entry: str) -> None:
    name, keywords = _parsed(entry)
    member = inspect.getattr_static(getattr(fluss, cls), name)
    function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    if cls == "FlussAdmin":
        keywords = [SECOND_NAMES.get(keyword, keyword) for keyword in keywords]
    _check_call(function, keywords, has_self=not isinstance(member, staticmethod))


@pytest.mark.parametrize(("cls", "entry"), _cases(BUILDERS))
def test_a_documented_builder_has_its_documented_steps(cls: str, entry: str) -> None:
    name, keywords = _parsed(entry)
    _check_call(getattr(getattr(fluss, cls).builder(), name), keywords, has_self=False)


@pytest.mark.parametrize(("cls", "name"), _cases(PROPERTIES))
def test_a_documented_property_is_one(cls: str, name: str) -> None:
    member = inspect.getattr_static(getattr(fluss, cls), name)
    assert hasattr(type(member), "__get__")
    assert not inspect.isroutine(member), "it is read without a call"


@pytest.mark.parametrize(("name", "value"), CONSTANTS.items())
def test_a_documented_constant_has_its_value(name: str, value: int | str) -> None:
    found: Any = fluss
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize("method", ["create_database", "drop_database", "database_exists", "get_database_info"])
def test_the_name_of_a_database_is_given_once(method: str) -> None:
    function = getattr(fluss.FlussAdmin, method)
    for arguments, keywords in (((), {"name": "a", "database_name": "b"}), (("a",), {"name": "b"}), ((), {})):
        with pytest.raises(TypeError, match="database_name"):
            function(object(), *arguments, **keywords).send(None)


def test_change_types_have_their_signs() -> None:
    assert [change.short_string() for change in fluss.ChangeType] == ["+A", "+I", "-U", "+U", "-D"]
    assert f"{fluss.ChangeType.Insert}" == "+I"


def test_a_description_may_leave_out_everything_by_saying_none() -> None:
    schema = fluss.Schema(pa.schema([("id", pa.int32())]))
    nothing = dict.fromkeys(
        ("partition_keys", "bucket_count", "bucket_keys", "comment", "log_format", "kv_format", "properties")
    )
    assert fluss.TableDescriptor(schema, **nothing, custom_properties=None) == fluss.TableDescriptor(schema)
    with pytest.raises(TypeError, match="buckets"):
        fluss.TableDescriptor(schema, buckets=3)  # type: ignore[call-arg]  # the mistake is the point
