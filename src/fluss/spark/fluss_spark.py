"""Fluss tables for programs that use Spark: read, write, stream, SQL, bulk jobs.

fs = FlussSpark(session(), bootstrap_servers="localhost:9123")
fs.catalog.create_table("sales.orders", "id BIGINT, price DOUBLE", primary_keys=["id"])
fs.write(dataframe, "sales.orders")
fs.read("sales.orders", columns=["id"], filter="price > 10").show()
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.streaming.query import StreamingQuery

from fluss.config import Config
from fluss.errors import FlussError
from fluss.filter.lexer import quoted_name
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo, TablePath, matching_name
from fluss.spark.attachments import Attachments
from fluss.spark.catalog_answers import CatalogAnswers
from fluss.spark.connections import open_table
from fluss.spark.data_source import FlussDataSource
from fluss.spark.fluss_catalog import FlussCatalog
from fluss.spark.naming import table_name, table_path
from fluss.spark.pushdown.installation import install_pushdown
from fluss.spark.query_options import (
    PartitionLike,
    TimeLike,
    client_settings,
    format_columns,
    format_options,
    format_partitions,
    format_time,
    joined_options,
    merged_options,
    read_options,
    session_options,
    sink_options,
    time_range_options,
    write_options,
)
from fluss.spark.read.native_lake import native_read
from fluss.spark.read.past import version_of
from fluss.spark.read.planner import read_view
from fluss.spark.read.split_read import view_filter
from fluss.spark.read.stream_lag import TableLag, backlog, lags
from fluss.spark.session import session
from fluss.spark.session.noise import plain_errors
from fluss.spark.session.running import check_usable
from fluss.spark.source_options import Use
from fluss.spark.sql.runner import RowWrites, StatementRunner
from fluss.spark.type_mapping import CHANGE_TYPE, view_schema
from fluss.spark.write.dataframe import Trigger, ordered_for, same_tasks, triggered, update_writer
from fluss.spark.write.only_in_lake import check_changeable_rows
from fluss.spark.write.row_changes import ExpressionLike, Merge, check_keys, updated_rows
from fluss.spark.write.sink import SinkPlan
from fluss.spark.write.sink_table import SinkTable, check_sink_table

if TYPE_CHECKING:
    from fluss.spark.bulk.reports import CopyReport, ExportReport, LoadReport
    from fluss.spark.lake.fluss_lake import FlussLake
    from fluss.spark.lake.tiering_query import TieringQuery
    from fluss.tiering.progress import TieringReport

_SHUFFLE_TASKS = "spark.sql.shuffle.partitions"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


class FlussSpark:
    """A Spark session and a Fluss cluster: the way in for Python programs.

    Every method takes further options of the data source by name: ``scan_max_tasks=4``, or
    ``**{"scan.max-tasks": 4}``. Options given here hold for every query, and after them those of the session,
    ``spark.sql.fluss.<option>``. The cluster is one of these options, ``bootstrap.servers``.
    """

    def __init__(
        self, spark: SparkSession | None = None, bootstrap_servers: str | None = None, **options: object
    ) -> None:
        """Use a session, by default the one of ``fluss.spark.session()``. Nothing is asked of the cluster yet.

        A session in which Fluss tables cannot be used is a FlussError that says why.
        """
        self._spark = session() if spark is None else spark
        check_usable(self._spark)
        self._own_options = format_options({"bootstrap.servers": bootstrap_servers, **options})
        settings = client_settings(self.options)
        if Config.bootstrap_servers.key not in settings:
            raise FlussError(
                "Which cluster? Give its address: FlussSpark(spark, bootstrap_servers='localhost:9123'), or set "
                "spark.sql.fluss.bootstrap.servers in the session"
            )
        Config(dict(settings)).validate()
        install_pushdown(self._spark)
        self._attachments = Attachments(self._spark, settings, lambda: self._merged({}, Use.ALL))
        self._catalog = FlussCatalog(settings, on_change=self._attachments.follow)
        self._statements = StatementRunner(
            self._spark,
            self._catalog,
            self._attachments,
            RowWrites(
                write=self.write,
                delete=lambda path, where: self.delete(table=path, where=where),
                update=self.update,
            ),
        )
        answers = CatalogAnswers(self._catalog, self._catalog_options, self._delete_where)
        answers.register(self._spark)

    def _catalog_options(self) -> Mapping[str, str]:
        """Return the options of every query on a table of the catalog ``fluss``."""
        self._spark.dataSource.register(FlussDataSource)
        return self._merged({}, Use.ALL)

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self._spark

    @property
    def catalog(self) -> FlussCatalog:
        """Databases, tables and partitions of the cluster: create, describe, alter, drop."""
        return self._catalog

    @property
    def options(self) -> Mapping[str, str]:
        """The options that hold for every query: those given here, and those of the session."""
        return session_options(self._spark) | self._own_options

    @cached_property
    def _format(self) -> str:
        """The data source. Registered, though Spark would find it: what it finds it runs in processes of their own.

        They would be started, and would import everything, beside those that tables by name and bulk jobs use.
        """
        self._spark.dataSource.register(FlussDataSource)
        return FlussDataSource.name()

    # Reading

    def read(
        self,
        table: str | TablePath,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        partitions: PartitionLike | Sequence[PartitionLike] | None = None,
        mode: Literal["union", "fluss", "lake", "snapshot"] | None = None,
        **options: object,
    ) -> DataFrame:
        """Read what a table has now: the rows of a log, or the current rows of a table with a primary key.

        Columns and conditions that are chosen later, with Spark, reach the reader. Where Spark cannot tell it, as with
        Spark Connect, name the ``columns`` that are needed, a ``filter``, which is a condition such as
        ``"price > 10"``, and ``partitions``, such as ``{"day": "2026-01-01"}``, so that less is read.

        A DataFrame is a snapshot: it reads the same rows however often it is used. Read again for newer ones.
        """
        chosen: dict[str, object] = {
            "scan.columns": format_columns(columns),
            "scan.filter": filter,
            "scan.partitions": format_partitions(partitions),
            "scan.mode": mode,
        }
        return self._load(table, joined_options(chosen, options), Use.BATCH_READ)

    def read_incremental(
        self, table: str | TablePath, start: TimeLike, end: TimeLike | None = None, **options: Any
    ) -> DataFrame:
        """Read what was written from ``start`` on, before ``end`` or up to now; options as those of ``read``.

        Of a table with a primary key: the rows that were written in this time, in their last state. Times are
        datetimes, epoch milliseconds, or text such as ``"2026-01-01 12:30:00"``; without a zone they are in the zone of
        the session.
        """
        return self.read(table, **time_range_options(start, end), **options)

    def changelog(
        self, table: str | TablePath, start: TimeLike | None = None, end: TimeLike | None = None, **options: Any
    ) -> DataFrame:
        """Read every change of a table, all or those of some time; options as those of ``read``.

        The columns ``_change_type``, ``_log_offset`` and ``_commit_timestamp`` stand before those of the table.
        """
        return self.read(table, scan_changelog=True, **time_range_options(start, end), **options)

    def read_stream(
        self,
        table: str | TablePath,
        *,
        startup: Literal["full", "earliest", "latest", "timestamp", "offsets"] | None = None,
        timestamp: TimeLike | None = None,
        offsets: Mapping[str, int] | None = None,
        max_rows: int | None = None,
        max_bytes: int | str | None = None,
        changelog: bool | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        partitions: PartitionLike | Sequence[PartitionLike] | None = None,
        **options: object,
    ) -> DataFrame:
        """Read a table as a stream: what it has, then whatever is written to it.

        ``startup`` says where a new query begins, by default with everything (``full``); with ``timestamp`` or
        ``offsets`` it is clear from them. One with a checkpoint goes on where it was. ``max_rows`` or ``max_bytes``
        bound a micro-batch. Of a table with a primary key come new states of rows, without deletes; with ``changelog``
        every change, with columns that say what it is.
        """
        if startup is None:
            startup = "timestamp" if timestamp is not None else "offsets" if offsets is not None else None
        chosen: dict[str, object] = {
            "scan.startup.mode": startup,
            "scan.startup.timestamp": None if timestamp is None else format_time(timestamp),
            "scan.startup.offsets": None if offsets is None else json.dumps(dict(offsets)),
            "maxRowsPerTrigger": max_rows,
            "maxBytesPerTrigger": max_bytes,
            "scan.changelog": changelog,
            "scan.columns": format_columns(columns),
            "scan.filter": filter,
            "scan.partitions": format_partitions(partitions),
        }
        return self._load(table, joined_options(chosen, options), Use.STREAM_READ)

    def _load(self, table: str | TablePath, options: Mapping[str, object], use: Use) -> DataFrame:
        merged = self._merged({"table": str(table_name(table)), **options}, use)
        is_stream = use is Use.STREAM_READ
        # Checked here, so that an error is one of Python and not a traceback inside one of Spark. With a schema Spark
        # need not start a process to ask for one.
        checked = read_options(merged, is_stream=is_stream)
        info = self._catalog.table_info(checked.table.path)
        schema = view_schema(info.schema, checked.view, checked.columns, is_case_sensitive=checked.is_case_sensitive)
        view_filter(checked, info, read_view(info, checked))
        if not is_stream:
            native = native_read(self._spark, self._format, info, checked, merged, schema)
            if native is not None:
                return native
        reader = self._spark.readStream if is_stream else self._spark.read
        return reader.format(self._format).schema(schema).options(**merged).load()

    # Writing

    def write(
        self,
        rows: DataFrame,
        table: str | TablePath,
        *,
        mode: Literal["append", "overwrite"] = "append",
        change_type_column: str | None = None,
        target_columns: Sequence[str] | None = None,
        sequence_column: str | None = None,
        shuffle: bool | int | None = None,
        **options: object,
    ) -> None:
        """Write rows: append them to a log, or insert and update rows of a table with a primary key.

        ``change_type_column`` names a column that says of each row what to do: ``+I``, ``+U``, ``-U`` or ``-D``.
        ``target_columns`` are the only ones that change, beside the key. With ``sequence_column`` rows of the same key
        are written in its order, wherever they come from: they are brought together in one task first. ``shuffle``
        does the same without an order, or not even with one (False: they are together already); a number is that of
        the tasks.
        """
        path, info = self._target(table)
        chosen = sink_options(change_type_column, target_columns)
        merged = self._merged({"table": str(path), **joined_options(chosen, options)}, Use.BATCH_WRITE)
        tasks = self._shuffle_tasks(shuffle, sequence_column, merged)
        checked = write_options(merged, is_stream=False)
        ordered = ordered_for(
            rows, info, sequence_column=sequence_column, tasks=tasks, is_case_sensitive=checked.is_case_sensitive
        )
        # As with reads: what is wrong is said here, by a plain error, before Spark begins.
        SinkPlan.of(checked, ordered.schema)
        with plain_errors():
            ordered.write.format(self._format).mode(mode).options(**merged).save()

    def upsert(self, rows: DataFrame, table: str | TablePath, **options: Any) -> None:
        """Insert and update rows of a table with a primary key; options as those of ``write``."""
        path, _ = self._keyed_target(table)
        self.write(rows, path, **options)

    def delete(
        self,
        keys: DataFrame | None = None,
        table: str | TablePath | None = None,
        *,
        where: ExpressionLike | None = None,
        **options: Any,
    ) -> None:
        """Delete the rows of a table whose primary keys are in ``keys``, or those for which a condition holds.

        Of ``keys`` only the columns of the primary key matter. ``where`` is SQL or a column of Spark:
        ``fs.delete(table="sales.prices", where="price < 3")``; the rows are those that the table has now.
        """
        if table is None or (keys is None) is (where is None):
            raise TypeError("delete() takes keys and a table, or a table and where")
        path, info = self._keyed_target(table)
        if where is not None:
            check_keys(info)
            self._check_in_fluss(path, lambda rows: rows.where(where))
            keys = self.read(path).alias(path.table_name).where(where)
        assert keys is not None, "one of them is there"
        for key in info.primary_keys:
            if matching_name(key, keys.columns, is_case_sensitive=self._is_case_sensitive()) is None:
                raise FlussError(f"The keys have no column '{key}'; columns are {shown_names(keys.columns)}")
        chosen = keys.select(*(col(quoted_name(key)) for key in info.primary_keys))
        if where is None and info.is_partitioned():
            # Also keys that the lake does not have: a partition that began anew with a delete would hide its rows.
            by, names = list(info.partition_keys), [quoted_name(key) for key in info.partition_keys]
            self._check_in_fluss(path, lambda rows: chosen.join(rows.select(*names).distinct(), by, "left_semi"))
        self.write(chosen.withColumn(CHANGE_TYPE, lit("-D")), path, change_type_column=CHANGE_TYPE, **options)

    def update(
        self,
        table: str | TablePath,
        set: Mapping[str, ExpressionLike],
        where: ExpressionLike | None = None,
        **options: Any,
    ) -> None:
        """Set columns of a table with a primary key, in all rows or in those for which a condition holds.

        Values are SQL or columns of Spark, and may name columns of the row: ``set={"price": "price * 2"}``.
        """
        path, info = self._keyed_target(table)
        # By the name of the table as well, as a statement of SQL has it: orders.price.
        self._check_in_fluss(path, lambda rows: rows if where is None else rows.where(where))
        rows = self.read(path).alias(path.table_name)
        chosen = rows if where is None else rows.where(where)
        self.write(updated_rows(chosen, info, set, is_case_sensitive=self._is_case_sensitive()), path, **options)

    def merge(self, table: str | TablePath, source: DataFrame, on: ExpressionLike, **options: Any) -> Merge:
        """Begin to merge a DataFrame into a table with a primary key, as MERGE INTO does.

        ``on`` says which rows match: ``"target.item = source.item"``. What to do with them is said by the methods of
        what is returned, and done by ``execute()``.
        """
        path, info = self._keyed_target(table)

        def write(changes: DataFrame) -> None:
            self.write(changes, path, change_type_column=CHANGE_TYPE, **options)

        def check(changes_of: Callable[[DataFrame], DataFrame]) -> None:
            self._check_in_fluss(path, changes_of)

        return Merge(info, self.read(path), source, on, write, check, is_case_sensitive=self._is_case_sensitive())

    def _check_in_fluss(self, path: TablePath, chosen: Callable[[DataFrame], DataFrame], **how: Any) -> None:
        """Refuse to change rows that only the lake has; ``chosen`` returns those of some rows that change."""
        if self._merged({}, Use.BATCH_READ).get("scan.mode") == "fluss":
            return

        def changed(partitions: Sequence[str]) -> DataFrame:
            return chosen(self.read(path, partitions=partitions, **how).alias(path.table_name))

        check_changeable_rows(open_table(client_settings(self.options), path), changed)

    def _is_case_sensitive(self) -> bool:
        """Whether names of columns that differ in upper and lower case only are two names."""
        return bool(self._merged({}, Use.BATCH_WRITE)["case-sensitive"] == "true")

    def _delete_where(self, path: TablePath, condition: str) -> None:
        """Delete rows by a condition in the language of ``scan.filter``, as the catalog of Spark is asked to."""
        _, info = self._keyed_target(path)
        check_keys(info)
        checked = read_options({**self._merged({"table": str(path)}, Use.BATCH_READ)}, is_stream=False)
        if not checked.is_same_for_spark(condition, info.schema):
            raise FlussError("The condition is on times that Spark sees with fewer digits; use fs.delete(where=...)")
        how: dict[str, Any] = {"filter": condition, "columns": info.primary_keys}
        self._check_in_fluss(path, lambda rows: rows, **how)
        self.delete(self.read(path, **how), path)

    def write_stream(
        self,
        rows: DataFrame,
        table: str | TablePath,
        *,
        checkpoint: str | None = None,
        guarantee: Literal["exactly-once", "at-least-once"] | None = None,
        trigger: Trigger = None,
        output_mode: Literal["append", "update", "complete"] | None = None,
        query_name: str | None = None,
        change_type_column: str | None = None,
        target_columns: Sequence[str] | None = None,
        sequence_column: str | None = None,
        shuffle: bool | int | None = None,
        **options: object,
    ) -> StreamingQuery:
        """Write a stream to a table, and return the query, which runs until it is stopped or fails.

        ``checkpoint`` is the directory where the query keeps its progress; started again with the same one, it goes
        on where it was. By default every row is written exactly once, whatever fails. ``trigger`` is a time between
        micro-batches, such as ``"5 seconds"``, or ``"available-now"``: take what there is and stop. Into a table with a
        primary key an aggregation writes with ``output_mode="update"``. The rest is as for ``write``; the number of
        tasks must stay the same as long as the checkpoint is used.
        """
        path, info = self._target(table)
        chosen = sink_options(change_type_column, target_columns) | {
            "sink.delivery-guarantee": guarantee,
            "checkpointLocation": checkpoint or self._default_checkpoint(query_name),
        }
        merged = self._merged({"table": str(path), **joined_options(chosen, options)}, Use.STREAM_WRITE)
        tasks = self._shuffle_tasks(shuffle, sequence_column, merged)
        checked = write_options(merged, is_stream=True)
        ordered = ordered_for(
            rows, info, sequence_column=sequence_column, tasks=tasks, is_case_sensitive=checked.is_case_sensitive
        )
        plan = SinkPlan.of(checked, ordered.schema)
        check_sink_table(checked, SinkTable(str(path), plan.table_id), is_noted=False)
        if output_mode == "update":
            writer = update_writer(ordered, merged, self._format)
        else:
            writer = ordered.writeStream.format(self._format).options(**merged)
            if output_mode is not None:
                writer = writer.outputMode(output_mode)
        if query_name is not None:
            writer = writer.queryName(query_name)
        with same_tasks(self._spark):
            return triggered(writer, trigger).start()

    def _default_checkpoint(self, query_name: str | None) -> str:
        """Return the directory that Spark would use, for which a query needs a name that stays the same."""
        directory = self._spark.conf.get(_CHECKPOINTS, None)
        if not directory or query_name is None:
            raise FlussError(
                "A stream needs a directory for its progress: write_stream(..., checkpoint=...), or "
                f"{_CHECKPOINTS} in the session, and a query_name"
            )
        return f"{directory.rstrip('/')}/{query_name}"

    def version(self, table: str | TablePath) -> str:
        """Return where the logs of a table end now, as ``VERSION AS OF`` and ``scan.as-of.offsets`` take it."""
        path, _ = self._target(table)
        return version_of(open_table(client_settings(self.options), path))

    def backlog(self, query: StreamingQuery) -> int | None:
        """Return how many rows of Fluss tables a query was behind at its last micro-batch; None before the first."""
        progress = query.lastProgress
        return None if progress is None else backlog(progress)

    def lag(self, query: StreamingQuery) -> list[TableLag] | None:
        """Return how far a query was behind each Fluss table that it reads, at its last micro-batch; None before it.

        That is in rows, in seconds, the age of the oldest row that was waiting, and for the worst buckets.
        """
        progress = query.lastProgress
        return None if progress is None else lags(progress)

    def _target(self, table: str | TablePath) -> tuple[TablePath, TableInfo]:
        path = table_path(table)
        return path, self._catalog.table_info(path)

    def _keyed_target(self, table: str | TablePath) -> tuple[TablePath, TableInfo]:
        path, info = self._target(table)
        if not info.has_primary_key():
            raise FlussError(f"{path} has no primary key: rows can only be appended, with write()")
        return path, info

    def _shuffle_tasks(
        self, shuffle: bool | int | None, sequence_column: str | None, options: Mapping[str, str]
    ) -> int | None:
        """Return among how many tasks rows are divided by key; None if they stay where they are."""
        if shuffle is None:
            shuffle = sequence_column is not None and options.get("sink.bucket-shuffle", "true").lower() == "true"
        if isinstance(shuffle, bool):
            return int(self._spark.conf.get(_SHUFFLE_TASKS) or 1) if shuffle else None
        if shuffle < 1:
            raise ValueError(f"shuffle is the number of tasks, at least 1, got {shuffle}")
        return shuffle

    def _merged(self, options: Mapping[str, object], use: Use) -> dict[str, Any]:
        return {**merged_options(self._spark, self._own_options, options, use)}

    # SQL

    def attach(self, database: str, tables: Sequence[str] | None = None, *, name: str | None = None) -> list[str]:
        """Make the tables of a database known to Spark SQL by name, and return the names.

        After that ``SELECT``, ``INSERT INTO``, ``spark.table``, ``readStream.table``, ``toTable`` and ``writeTo`` work
        on them. Spark's names are in lower case, with ``_`` for ``-``; ``name`` is another name of the database.
        ``tables`` are some of many: a table takes about 30 ms. Attach again for tables and columns that other programs
        have added; what is done through this object is known by itself.
        """
        if isinstance(tables, str):
            raise TypeError(f"tables are a list such as ['orders'], got the text {tables!r}")
        return self._attachments.attach(database, tables, name=name)

    def detach(self, database: str) -> None:
        """Let Spark SQL forget a database. The tables stay as they are."""
        self._attachments.detach(database)

    def sql(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> DataFrame:
        """Run an SQL statement: as Spark does, and also those that create, alter, show and describe Fluss tables.

        A name such as ``fluss.sales.orders`` always means a table of the cluster; ``sales.orders`` does if ``sales`` is
        attached. There are CREATE and DROP DATABASE and TABLE, COMMENT ON DATABASE, CREATE TABLE AS, ALTER TABLE with
        ADD COLUMNS, SET and UNSET TBLPROPERTIES, ADD and DROP PARTITION, SHOW DATABASES, TABLES, PARTITIONS,
        TBLPROPERTIES and CREATE TABLE, and DESCRIBE. ``args`` are parameters, as in ``spark.sql``.
        """
        return self._statements.run(text, args)

    # Bulk jobs

    def bulk_load(self, paths: str | Path | Sequence[str | Path], table: str | TablePath, **options: Any) -> LoadReport:
        """Load Parquet, CSV, JSON or Arrow files into a table; the options are those of ``fluss.spark.bulk.load``."""
        from fluss.spark import bulk

        return bulk.load(self, paths, table, **options)

    def export(self, table: str | TablePath, path: str, **options: Any) -> ExportReport:
        """Write a table to Parquet files; the options are those of ``fluss.spark.bulk.export``."""
        from fluss.spark import bulk

        return bulk.export(self, table, path, **options)

    def copy(self, source: str, target: str, **options: Any) -> CopyReport:
        """Copy a table or a database, also to another cluster; the options are those of ``fluss.spark.bulk.copy``."""
        from fluss.spark import bulk

        return bulk.copy(self, source, target, **options)

    # The lake

    @property
    def lake(self) -> FlussLake:
        """The lake of tables: compact, expire, verify, remove what was forgotten."""
        from fluss.spark.lake.fluss_lake import FlussLake

        return FlussLake(self)

    def tier(self, tables: str | TablePath | Sequence[str | TablePath] | None = None, **options: Any) -> TieringReport:
        """Bring to the lake what tables have got since the last time, now; without ``tables`` all that have a lake.

        The options are those of ``fluss.spark.lake.tiering.tier``.
        """
        from fluss.spark.lake import tiering

        return tiering.tier(self, self._catalog, tables, **options)

    def start_tiering(
        self, tables: str | TablePath | Sequence[str | TablePath] | None = None, **options: Any
    ) -> TieringQuery:
        """Keep lakes fresh in the background: of the tables that the coordinator hands out, or of those named.

        Returns a query in the manner of streams; stop it in the end. The options are those of
        ``fluss.spark.lake.tiering.start_tiering``.
        """
        from fluss.spark.lake import tiering

        return tiering.start_tiering(self, tables, **options)

    def __repr__(self) -> str:
        return f"FlussSpark({self.options.get(Config.bootstrap_servers.key, '')!r})"
