"""Stored values to rows: dicts of Python objects for single rows, Arrow for many.

A value says with which schema it was written. Its columns are matched by column id: those it does not have yet are
null, those that were added later than the reader's schema are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from fluss.client.kernel.decode import ScanColumns, ValueDecoder
from fluss.errors import CorruptRecordError, FlussError
from fluss.record.value_batch import SCHEMA_ID_BYTES, decode_value
from fluss.row import compacted, indexed
from fluss.row.encoded import EncodedRows
from fluss.row.python_values import from_internal, python_column, python_rows
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo
from fluss.schema.table_options import KvFormat
from fluss.schema.types import DataType

# With fewer rows than this, converting them one by one is faster than column by column.
_COLUMNAR_ROWS_MIN: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """How single rows of one schema are read."""

    written_types: tuple[DataType, ...]
    # The name of each output column, where it stands in the row (None: nowhere, it is null) and its type.
    fields: tuple[tuple[str, int | None, DataType], ...]


class ValueReader:
    """Reads the values of one table with the columns of one of its schemas, all of them or some.

    Schemas other than that one must be made known before their values are read. Used by one thread at a time.
    Damaged values are a FlussError that says so.
    """

    def __init__(self, info: TableInfo, positions: Sequence[int] | None = None) -> None:
        self._info = info
        self._columns = ScanColumns(info.schema_id, info.schema, positions)
        self._schemas: dict[int, Schema] = {info.schema_id: info.schema}
        self._readings: dict[int, _Reading] = {}
        self._decode_row = indexed.decode_row if info.kv_format is KvFormat.INDEXED else compacted.decode_row
        self._decoder = ValueDecoder(self._columns, info.kv_format, self._schemas.__getitem__)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of ``arrow``."""
        return self._columns.arrow_schema

    # Schemas

    def unknown_schemas(self, values: Sequence[bytes]) -> list[int]:
        """Return the ids of the schemas of some values that have to be made known first."""
        prefixes = {value[:SCHEMA_ID_BYTES] for value in values}
        ids = [int.from_bytes(prefix, "little", signed=True) for prefix in prefixes]
        return [schema_id for schema_id in ids if schema_id not in self._schemas]

    def add_schema(self, schema_id: int, schema: Schema) -> None:
        """Make a schema of the table known."""
        self._schemas[schema_id] = schema

    def twin(self) -> ValueReader:
        """Return another one that knows the same schemas, for another thread."""
        twin = ValueReader(self._info, self._columns.positions)
        twin._schemas.update(self._schemas)
        return twin

    # Rows

    def rows(self, values: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return rows as dicts, in the order of the columns."""
        try:
            if len(values) < _COLUMNAR_ROWS_MIN:
                return [self._row(value) for value in values]
            return self._python_rows(self._arrow(values))
        except CorruptRecordError as error:
            raise self._unreadable(error) from error

    def arrow(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Return rows as a record batch."""
        try:
            return self._arrow(values)
        except CorruptRecordError as error:
            raise self._unreadable(error) from error

    def _row(self, value: bytes) -> dict[str, Any]:
        schema_id, data = decode_value(value)
        reading = self._readings.get(schema_id)
        if reading is None:
            reading = self._readings[schema_id] = self._new_reading(schema_id)
        values = self._decode_row(reading.written_types, data)
        return {
            name: None if index is None else from_internal(values[index], data_type)
            for name, index, data_type in reading.fields
        }

    def _new_reading(self, schema_id: int) -> _Reading:
        written = self._schemas[schema_id]
        index_by_id = {column.column_id: index for index, column in enumerate(written.columns)}
        fields = []
        for column in self._columns.columns:
            index = index_by_id.get(column.column_id)
            if index is None and not column.data_type.nullable:
                raise CorruptRecordError(f"it has no column '{column.name}', which must not be null")
            fields.append((column.name, index, column.data_type))
        return _Reading(written.data_types, tuple(fields))

    def _python_rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        return python_rows(batch.schema.names, map(python_column, batch.columns, self._decoder.data_types))

    def _arrow(self, values: Sequence[bytes]) -> pa.RecordBatch:
        return self._decoder.decode_values(EncodedRows.from_list(values))

    def _unreadable(self, error: CorruptRecordError) -> FlussError:
        return FlussError(f"A stored row of {self._info.table_path} cannot be read: {error.message}")
