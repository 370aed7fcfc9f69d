"""Files of a lake read by Spark itself: its Parquet reader is much faster than anything that goes through Python.

    log table      files, and the source ``fluss`` for everything else
    primary key    files without the rows whose keys have changed since, by an anti join with the keys of the changes;
                   and the source ``fluss`` for the rows that changed, and for files from which rows are deleted;
                   a few rows that changed are read on the driver, if there is nothing else for the source

Everything is decided once, so that what Spark reads and what the source reads are one table. Where Spark cannot read
the files as they are, or there is too little to gain, the source reads everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.functions import broadcast, col, expr

from fluss import FlussTable
from fluss.client.bulk import LogRange, last_rows, read_ranges
from fluss.filter.lexer import quoted_name
from fluss.schema.table import TableBucket, TableInfo
from fluss.schema.table_options import LAKE_ENABLED
from fluss.schema.types import ArrayType, DataType, MapType, RowType, TypeRoot
from fluss.spark.connections import open_table
from fluss.spark.conversion import ToSpark
from fluss.spark.pushdown.hints import GIVEN_KEY
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.lake_part import lake_files, lake_snapshot, reads_only_lake, reads_union, union_snapshot
from fluss.spark.read.planner import matching_buckets, read_view
from fluss.spark.read.snapshot import Snapshot
from fluss.spark.read.split_read import table_columns, table_filter, view_filter
from fluss.spark.type_mapping import spark_schema, view_schema

if TYPE_CHECKING:
    from fluss.lake.scans import LakeFile

# With fewer rows in its files a lake is read by the source: a scan more takes longer than they do.
NATIVE_ROWS_MIN: Final = 200_000
# With more changes than this the keys are too many to be sent to every task.
_CHANGES_MAX: Final = 2_000_000
# So many changes are read on the driver, if their keys are of types that Spark has as they are.
_FEW_CHANGES: Final = 200_000
_SIMPLE_KEYS: Final = frozenset({TypeRoot.INTEGER, TypeRoot.BIGINT, TypeRoot.STRING})
# What is read there of them may take so much memory.
_FEW_BYTES_MAX: Final = 16 << 20
_SIMPLE_TYPES: Final = _SIMPLE_KEYS | {
    TypeRoot.BOOLEAN,
    TypeRoot.DOUBLE,
    TypeRoot.DECIMAL,
    TypeRoot.DATE,
    TypeRoot.TIMESTAMP,
}
# Spark reads local files without further libraries. Those of object stores may not be known to it.
_SCHEMES: Final = frozenset({"", "file", "hdfs", "viewfs"})
# Zero and minus zero are one key for a join of Spark, and two for Fluss.
_INEXACT_KEYS: Final = frozenset({TypeRoot.FLOAT, TypeRoot.DOUBLE})

# Options of a read of rows that a read of changes does not have.
_ONLY_ROWS: Final = frozenset({"table", "scan.columns", "scan.filter", "scan.mode"})


def native_read(
    session: SparkSession,
    source: str,
    info: TableInfo,
    options: ReadOptions,
    given: Mapping[str, str],
    schema: spark.StructType,
) -> DataFrame | None:
    """Return a read of a table whose files Spark reads itself, as far as it can; None if the source reads everything.

    ``given`` are the options for the source, ``options`` what they mean, ``schema`` the columns that are wanted.
    """
    if not LAKE_ENABLED.of(info.properties) or not (reads_only_lake(options) or reads_union(options)):
        return None
    view = read_view(info, options)
    row_filter = table_filter(view_filter(options, info, view), info)
    columns = table_columns(schema, view, row_filter, info)
    if not _can_read(session, options, info, columns):
        return None
    table = open_table(options.connection, options.table.path)
    bucket_ids = matching_buckets(info, row_filter)
    if reads_only_lake(options):
        snapshot: Snapshot | None = lake_snapshot(table, options)
    else:
        snapshot = union_snapshot(table, options, columns, row_filter, bucket_ids)
    if snapshot is None or snapshot.lake is None:
        return None
    lake, by_bucket = lake_files(table, snapshot, columns, row_filter, bucket_ids)
    plain = [file for files in by_bucket.values() for file in files if lake.is_plain(file)]
    changes = {bucket: both for bucket, both in snapshot.ranges.items() if bucket not in snapshot.lake.in_fluss}
    change_count = sum(stop - start for start, stop in changes.values()) if info.has_primary_key() else 0
    is_worth_it = sum(file.data.record_count for file in plain) >= NATIVE_ROWS_MIN and change_count <= _CHANGES_MAX
    if not is_worth_it or any(urlsplit(file.data.file_path).scheme not in _SCHEMES for file in plain):
        return None
    rows = _file_rows(session, info, plain, [*dict.fromkeys([*columns, *info.primary_keys])], options.filter)
    few: DataFrame | None = None
    if change_count:
        fields = view_schema(info.schema, "changelog", info.primary_keys, is_case_sensitive=True)
        if change_count <= _FEW_CHANGES and _SIMPLE_KEYS.issuperset(_key_roots(info)):
            is_all = len(plain) == sum(map(len, by_bucket.values())) and not snapshot.lake.in_fluss
            changed, few = _few_changes(session, table, info, changes, fields, options, schema if is_all else None)
        else:
            keys = replace(snapshot, ranges=changes, lake=None)
            changed = _loaded(session, source, given, keys, fields, table=f"{info.table_path}$changelog")
        rows = rows.join(broadcast(changed), list(info.primary_keys), "left_anti")
    wanted = rows.select(*(col(quoted_name(field.name)).cast(field.dataType).alias(field.name) for field in schema))
    if few is not None:
        return wanted.unionByName(few)
    rest = replace(snapshot, lake=replace(snapshot.lake, is_rest=True))
    return wanted.unionByName(_loaded(session, source, given, rest, schema))


def _can_read(session: SparkSession, options: ReadOptions, info: TableInfo, columns: Sequence[str]) -> bool:
    """Whether Spark reads these columns of files as the source would."""
    if not options.pushdown:
        return False
    if options.filter is not None and options.time_zone != session.conf.get("spark.sql.session.timeZone"):
        # A time in the filter would be another one.
        return False
    if options.is_case_sensitive != (str(session.conf.get("spark.sql.caseSensitive")).lower() == "true"):
        return False
    names = info.schema.column_names
    if not options.is_case_sensitive and len({name.lower() for name in names}) < len(names):
        return False
    types = [info.schema.column(name).data_type for name in columns]
    return not any(map(_has_time, types)) and _INEXACT_KEYS.isdisjoint(_key_roots(info))


def _key_roots(info: TableInfo) -> list[TypeRoot]:
    return [info.schema.column(name).data_type.root for name in info.primary_keys]


def _few_changes(
    session: SparkSession,
    table: FlussTable,
    info: TableInfo,
    changes: Mapping[TableBucket, tuple[int, int]],
    fields: spark.StructType,
    options: ReadOptions,
    schema: spark.StructType | None,
) -> tuple[DataFrame, DataFrame | None]:
    """Return the keys that have changed, read here: a scan of the source costs more than a few of them.

    With a ``schema`` the second are the rows of these keys that are there, unless they are too large, or of types that
    only the source brings into the form of Spark.
    """
    names = list(info.primary_keys)
    ranges = [LogRange(bucket, start, stop) for bucket, (start, stop) in changes.items()]
    if schema is None or not schema.names or options.filter is not None or not _is_simple(info, schema):
        runs = read_ranges(table, ranges, columns=names, idle_timeout_s=options.poll_timeout_s)
        key_schema = pa.schema([info.schema.to_arrow().field(name) for name in names])
        keys = pa.Table.from_batches([run.batch for run in runs if run.batch is not None], key_schema)
        return session.createDataFrame(keys.group_by(names).aggregate([]), fields), None
    keys, rows = last_rows(table, ranges, schema.names, idle_timeout_s=options.poll_timeout_s)
    changed = session.createDataFrame(keys.group_by(names).aggregate([]), fields)
    if rows.nbytes > _FEW_BYTES_MAX:
        return changed, None
    converted = list(map(ToSpark(schema), rows.to_batches()))
    return changed, session.createDataFrame(pa.Table.from_batches(converted), schema) if converted else None


def _is_simple(info: TableInfo, schema: spark.StructType) -> bool:
    names = info.schema.column_names
    return all(name in names and info.schema.column(name).data_type.root in _SIMPLE_TYPES for name in schema.names)


def _has_time(data_type: DataType) -> bool:
    """Whether values of a type are, or have, times of day, which Spark does not take from Parquet in microseconds."""
    match data_type:
        case ArrayType():
            return _has_time(data_type.element_type)
        case MapType():
            return _has_time(data_type.key_type) or _has_time(data_type.value_type)
        case RowType():
            return any(_has_time(field.data_type) for field in data_type.fields)
    return data_type.root is TypeRoot.TIME


def _file_rows(
    session: SparkSession, info: TableInfo, files: Sequence[LakeFile], columns: Sequence[str], condition: str | None
) -> DataFrame:
    """Read columns of files, in the types that the lake has them in."""
    fields = [
        spark.StructField(field.name, _lake_type(field.dataType), nullable=True)
        for field in spark_schema(info.schema, columns)
    ]
    frame = session.read.schema(spark.StructType(fields)).parquet(*(file.data.file_path for file in files))
    return frame if condition is None else frame.where(expr(condition))


def _lake_type(data_type: spark.DataType) -> spark.DataType:
    """Return the type in which Spark finds values in the files: the lake has no small integers."""
    match data_type:
        case spark.ByteType() | spark.ShortType():
            return spark.IntegerType()
        case spark.ArrayType():
            return spark.ArrayType(_lake_type(data_type.elementType), containsNull=True)
        case spark.MapType():
            return spark.MapType(_lake_type(data_type.keyType), _lake_type(data_type.valueType))
        case spark.StructType():
            return spark.StructType([spark.StructField(each.name, _lake_type(each.dataType)) for each in data_type])
    return data_type


def _loaded(
    session: SparkSession,
    source: str,
    given: Mapping[str, str],
    snapshot: Snapshot,
    schema: spark.StructType,
    *,
    table: str | None = None,
) -> DataFrame:
    """Read with the source what a snapshot says."""
    options = {**given, GIVEN_KEY: snapshot.to_text()}
    if table is not None:
        options = {key: text for key, text in options.items() if key.lower() not in _ONLY_ROWS} | {"table": table}
    return session.read.format(source).schema(schema).options(**options).load()
