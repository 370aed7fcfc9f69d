"""The data source ``fluss``, where Spark looks for it: a module whose name begins with ``pyspark_``.

Spark imports every such module before the first query on any Python data source. So this one imports nothing of the
library, until there is a query on a table of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from fluss.spark.data_source import FlussDataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """``format("fluss")``. See ``fluss.spark.data_source``, which does the work."""

    @classmethod
    def name(cls) -> str:
        return "fluss"

    def schema(self) -> StructType:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return self._source().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return self._source().streamWriter(schema, overwrite)

    def _source(self) -> FlussDataSource:
        from fluss.spark.session import check_pyspark

        check_pyspark()
        from fluss.spark.data_source import FlussDataSource

        return FlussDataSource(self.options)
