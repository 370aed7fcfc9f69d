"""Keys in, rows out: between what the callers of lookups have and the bytes that are stored.

``LookupKeys`` takes keys in the form that they come in and finds the partition, the bucket and the bytes of each.

``ValueReader`` makes rows of stored values: dicts of Python objects for single rows, Arrow for many. A value says with
which schema it was written. Its columns are matched by column id: those it does not have yet are null, those that were
added later than the reader's schema are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from fluss.buffers import Int64Array
from fluss.client.kernel.decode import ScanColumns, ValueDecoder
from fluss.client.kernel.input_rows import internal_values
from fluss.client.kernel.placement import PartitionSplitter, TableKeys
from fluss.errors import CorruptRecordError, FlussError
from fluss.record.value_batch import SCHEMA_ID_BYTES, decode_value, split_values
from fluss.row import compacted, indexed
from fluss.row.bucketing import HashVariant, rows_by_bucket
from fluss.row.encoded import EncodedRows
from fluss.row.partition_names import row_partition_name
from fluss.row.python_values import from_internal, python_column, python_rows
from fluss.row.values import arrow_from_internal
from fluss.schema.arrow import arrow_type
from fluss.schema.normalize import normalize_array
from fluss.schema.schema import Column, Schema, shown_names
from fluss.schema.table import TableInfo
from fluss.schema.table_options import KvFormat
from fluss.schema.types import DataType

# With fewer rows than this, converting them one by one is faster than column by column.
_COLUMNAR_ROWS_MIN: Final = 32


class Located(NamedTuple):
    """Where a key is looked for: a partition, if the table has some, one of its buckets, and the bytes there."""

    partition_name: str | None
    bucket_id: int
    key: bytes


@dataclass(slots=True, eq=False)
class KeyRun:
    """Keys of one bucket that are asked for together, and which rows of their batch they are."""

    partition_name: str | None
    bucket_id: int
    keys: EncodedRows
    rows: Int64Array

    def split(self, key_count: int) -> tuple[KeyRun, KeyRun]:
        """Return the first so many keys, and the others."""
        return self._piece(slice(key_count)), self._piece(slice(key_count, None))

    def _piece(self, some: slice) -> KeyRun:
        return KeyRun(self.partition_name, self.bucket_id, self.keys.some(some), self.rows[some])


class LookupKeys:
    """Takes apart the keys that are looked up in one table. Has no state: it may be shared by threads.

    Callers give the columns ``names``, in this order: all partition columns, and all columns of the primary key; or of
    the bucket key, if ``is_prefix``.
    """

    def __init__(
        self, info: TableInfo, names: Sequence[str], hash_variant: HashVariant, *, is_prefix: bool = False
    ) -> None:
        self._names = names
        self._columns = [info.schema.column(name) for name in names]
        self._keys = TableKeys(info, hash_variant, is_prefix=is_prefix)
        self._key_indexes = [names.index(name) for name in self._keys.key_names]
        self._bucket_count = info.num_buckets
        self._partitions = PartitionSplitter.of(info)
        self._partition_indexes = [names.index(name) for name in info.partition_keys]
        self._partition_types = [self._columns[index].data_type for index in self._partition_indexes]

    # One key

    def locate(self, row: Any) -> Located:
        """Find out where a key is: a dict by column name, or a list or tuple. What does not fit is a FlussError."""
        values = internal_values(row, self._columns)
        partition_name = None
        if self._partition_indexes:
            partition_name = row_partition_name(
                self._partition_types, [values[index] for index in self._partition_indexes]
            )
        key_values = [values[index] for index in self._key_indexes]
        key = self._keys.encode_row(key_values)
        return Located(partition_name, self._keys.bucket(key_values, key), key)

    # Many keys: from the form that the caller has them in to columns

    def batches(self, keys: Any, rows_max: int) -> list[pa.RecordBatch]:
        """Return the key columns in batches of at most so many rows, checked, with exactly the types of the table.

        Keys that do not fit are a FlussError. What cannot be keys at all is a TypeError.
        """
        columns = self._columns_of(keys)
        table = pa.Table.from_arrays(
            [self._fitted(*pair) for pair in zip(columns, self._columns, strict=True)], self._names
        )
        return list(table.combine_chunks().to_batches(max_chunksize=rows_max))

    def _columns_of(self, keys: Any) -> Sequence[pa.ChunkedArray | pa.Array]:
        # There is a frame only when the program has imported pandas. Another thread may be doing so right now.
        frame_class: Any = getattr(sys.modules.get("pandas"), "DataFrame", ())
        if isinstance(keys, frame_class):
            self._check_names(keys.columns)
            return [self._from_pandas(keys[column.name], column) for column in self._columns]
        if isinstance(keys, list | tuple):
            return self._columns_of_rows(keys)
        table = _arrow_table(keys)
        self._check_names(table.column_names)
        return [table.column(name) for name in self._names]

    def _columns_of_rows(self, rows: Sequence[Any]) -> list[pa.Array]:
        converted = []
        for index, row in enumerate(rows):
            try:
                converted.append(internal_values(row, self._columns))
            except FlussError as error:
                raise FlussError(f"Key {index}: {error.message}") from error
        by_column = zip(*converted, strict=True) if converted else ((),) * len(self._columns)
        return [
            arrow_from_internal(list(values), column.data_type)
            for values, column in zip(by_column, self._columns, strict=True)
        ]

    def _from_pandas(self, series: Any, column: Column) -> pa.Array:
        try:
            return pa.Array.from_pandas(series, type=arrow_type(column.data_type))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise FlussError(f"Field '{column.name}': {error}") from error

    def _fitted(self, values: pa.ChunkedArray | pa.Array, column: Column) -> pa.ChunkedArray:
        """Return a key column with its physical type. Integers may have another width, as long as they fit."""
        target = arrow_type(column.data_type)
        if pat.is_integer(values.type) and pat.is_integer(target):
            try:
                values = values.cast(target)
            except pa.ArrowInvalid as error:
                raise FlussError(f"Field '{column.name}': {error}") from error
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        return pa.chunked_array(
            [normalize_array(chunk, column.data_type.not_null(), column.name) for chunk in chunks], target
        )

    def _check_names(self, names: Iterable[Any]) -> None:
        counts = [sum(name == other for other in names) for name in self._names]
        for name, count in zip(self._names, counts, strict=True):
            if count != 1:
                problem = "is missing" if count == 0 else f"occurs {count} times"
                raise FlussError(f"The key column '{name}' {problem}; keys have the columns {shown_names(self._names)}")

    # Many keys: from columns to buckets

    def runs(self, batch: pa.RecordBatch) -> list[KeyRun]:
        """Encode the keys of a batch, and sort them by bucket."""
        key_columns = [batch.column(index) for index in self._key_indexes]
        encoded = self._keys.encode(key_columns)
        buckets = self._keys.buckets(key_columns, encoded)
        runs = []
        for partition_name, rows in self._by_partition(batch):
            order, bucket_ids, ends = rows_by_bucket(buckets[rows], self._bucket_count)
            # All of them at once, bucket by bucket: there may be thousands of buckets with a few keys each.
            rows = rows[order]
            keys = encoded.some(rows)
            for bucket_id, first, end in zip(bucket_ids, [0, *ends], ends, strict=False):
                runs.append(KeyRun(partition_name, bucket_id, keys.some(slice(first, end)), rows[first:end]))
        return runs

    def _by_partition(self, batch: pa.RecordBatch) -> list[tuple[str | None, Int64Array]]:
        if self._partitions is None:
            return [(None, np.arange(batch.num_rows))]
        return [*self._partitions.groups(batch)]


def _arrow_table(data: Any) -> pa.Table:
    if isinstance(data, pa.RecordBatch) or (hasattr(data, "__arrow_c_array__") and not isinstance(data, pa.Array)):
        return pa.Table.from_batches([pa.record_batch(data)])
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.ChunkedArray):
        return data if isinstance(data, pa.Table) else pa.table(data)
    raise TypeError(
        "keys must be a list of dicts, lists or tuples, a pandas DataFrame, or Arrow data such as a pyarrow Table, got "
        f"{type(data).__name__}"
    )


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
        return self._unknown(int.from_bytes(prefix, "little", signed=True) for prefix in prefixes)

    def unknown_schemas_of(self, values: EncodedRows) -> list[int]:
        """Return the same for many values."""
        try:
            return self._unknown(np.unique(split_values(values)[0]).tolist())
        except CorruptRecordError as error:
            raise self._unreadable(error) from error

    def _unknown(self, schema_ids: Iterable[int]) -> list[int]:
        return [schema_id for schema_id in schema_ids if schema_id not in self._schemas]

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
            return self._python_rows(self._decoder.decode_values(EncodedRows.from_list(values)))
        except CorruptRecordError as error:
            raise self._unreadable(error) from error

    def arrow(self, values: EncodedRows) -> pa.RecordBatch:
        """Return rows as a record batch."""
        try:
            return self._decoder.decode_values(values)
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

    def _unreadable(self, error: CorruptRecordError) -> FlussError:
        return FlussError(f"A stored row of {self._info.table_path} cannot be read: {error.message}")


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """How single rows of one schema are read."""

    written_types: tuple[DataType, ...]
    # The name of each output column, where it stands in the row (None: nowhere, it is null) and its type.
    fields: tuple[tuple[str, int | None, DataType], ...]
