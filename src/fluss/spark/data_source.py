"""The data source ``fluss``: from the options of a query to its schema, its reader or its writer.

All of this runs in Python processes of the driver that know nothing of the session. What they make is sent to the
executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from fluss.errors import FlussError
from fluss.schema.table import matching_name
from fluss.spark.connections import await_table
from fluss.spark.pushdown.hints import SHARED_KEY, Hints, without_hints
from fluss.spark.query_options import ReadOptions, applicable_options, read_options, schema_options, write_options
from fluss.spark.session import has_read_limits
from fluss.spark.session.noise import ShortTracebacks
from fluss.spark.source_options import Use
from fluss.spark.type_mapping import check_projection, view_schema


class FlussDataSource(DataSource):
    """Tables as Spark reads and writes them.

    A subclass may be bound to a table: ``bound_options`` are options that every query on it has. Those of a query
    itself win.
    """

    bound_options: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def name(cls) -> str:
        return "fluss"

    def schema(self) -> StructType:
        """Return the columns that a read returns, unless the user says which."""
        with ShortTracebacks():
            options = schema_options(self._options(Use.ALL))
            return _view_schema(options, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from fluss.spark.read.batch_reader import FlussBatchReader

        with ShortTracebacks():
            options, hints = self._read_options(Use.BATCH_READ)
            checked = _checked(options, schema)
            return FlussBatchReader(options, checked, hints.snapshot, names=schema.names, given=hints.given)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        with ShortTracebacks():
            options, _ = self._read_options(Use.STREAM_READ)
            return _stream_reader(options, _checked(options, schema), schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from fluss.spark.write.batch_writer import FlussBatchWriter

        with ShortTracebacks():
            options = write_options(self._options(Use.BATCH_WRITE), is_stream=False)
            return FlussBatchWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from fluss.spark.write.stream_writer import FlussStreamWriter

        with ShortTracebacks():
            options = write_options(self._options(Use.STREAM_WRITE), is_stream=True)
            return FlussStreamWriter(options, schema, overwrite)

    def _read_options(self, use: Use) -> tuple[ReadOptions, Hints]:
        """Return the options of a read, and what Spark's optimizer has to say about it."""
        given = self._options(use)
        options = read_options(without_hints(given), is_stream=use is Use.STREAM_READ)
        hints = Hints.of(given)
        if not options.pushdown:
            return options, hints
        return replace(options, hinted_filter=hints.filter, hinted_limit=hints.limit), hints

    def _options(self, use: Use) -> dict[str, str]:
        """Return the options of a query; of the bound ones, which all kinds share, those that this kind can have."""
        bound = {key.lower(): text for key, text in applicable_options(self.bound_options, use).items()}
        given = {key.lower(): text for key, text in self.options.items()}
        if given.pop(SHARED_KEY, None) is not None:
            given = applicable_options(given, use)
        return bound | given


def _stream_reader(options: ReadOptions, schema: StructType, names: Sequence[str]) -> DataSourceStreamReader:
    """Return the reader that this version of Spark knows how to ask."""
    if not has_read_limits():
        from fluss.spark.read.stream_reader import LatestStreamReader

        return LatestStreamReader(options, schema, names)
    from fluss.spark.read.limited_stream_reader import LimitedStreamReader

    return LimitedStreamReader(options, schema, names)


def _checked(options: ReadOptions, schema: StructType) -> StructType:
    """Return the schema that Spark wants to read, if it can be: some columns of the table, in any order.

    Its names are those of the table; what was wanted may have them in other upper and lower case.
    """
    is_case_sensitive = options.is_case_sensitive
    found = check_projection(schema, _view_schema(options, None), options.table, is_case_sensitive=is_case_sensitive)
    for name in found.names:
        if options.columns is not None and not matching_name(
            name, options.columns, is_case_sensitive=is_case_sensitive
        ):
            raise FlussError(
                f"'scan.columns' leaves out '{name}', but the schema of the query has it. A schema that is given to "
                "Spark, and that of a table in its catalog, already say what is read; leave 'scan.columns' out"
            )
    return found


def _view_schema(options: ReadOptions, columns: Sequence[str] | None) -> StructType:
    """Return the columns of what is read; a filter that cannot be is refused here, before anything begins."""
    info = await_table(options.connection, options.table.path).get_table_info()
    if options.filter is not None:
        from fluss.spark.read.planner import read_view
        from fluss.spark.read.split_read import view_filter

        view_filter(options, info, read_view(info, options))
    return view_schema(info.schema, options.view, columns, is_case_sensitive=options.is_case_sensitive)
