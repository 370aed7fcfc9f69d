"""A table as duckdb wants it to pass on what a query needs: a dataset of pyarrow, as far as duckdb asks for one.

Imported only when there is a use for it: the datasets of pyarrow take their time to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds


class DatasetScan:
    """One scan of a dataset."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Begin to read."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())


class ScanDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """What can be scanned with some columns and a condition, again and again, each time as it is then.

    Nothing of the base class works but what is here: it would look for files.
    """

    def __init__(
        self,
        schema: pa.Schema,
        read: Callable[[Sequence[str] | None, pc.Expression | None, int | None], Iterator[pa.RecordBatch]],
    ) -> None:
        self._schema = schema
        self._read = read

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_options: Any
    ) -> DatasetScan:
        """Return a scan of some columns, of rows for which a condition holds."""
        names = self._schema.names if columns is None else list(columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        return DatasetScan(schema, lambda: self._read(names, filter, None))

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        return iter(self.scanner(**options).to_reader())

    def to_table(self, **options: Any) -> pa.Table:
        return self.scanner(**options).to_reader().read_all()

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        raise NotImplementedError("read the table itself, by its own methods")

    get_fragments = head = take = count_rows = filter = sort_by = join = join_asof = replace_schema = _refuse
    partition_expression = property(_refuse)
    __reduce__ = _refuse

    def __repr__(self) -> str:
        return f"ScanDataset({self._schema.names})"
