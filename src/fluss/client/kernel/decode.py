"""Stored batches to record batches: the columns a reader asked for, whatever schema and format they were written with.

``BatchDecoder`` reads log batches, ``ValueDecoder`` the rows of a primary-key table as they are stored. Both name their
schema. When that is not the reader's own, columns are matched by column id: columns that the data does not have yet are
null, columns that the reader does not know are left out. A scan that is not aligned gets the columns of a log batch as
they were written instead. Column positions are the same in all schemas of a table, as far as they have them: columns
are only ever added at the end.

Rows that a filter does not want are left out here, before anything else is done with them. The columns that only the
filter needs are fetched, and left out as well. Of an Arrow batch the columns of the filter are decompressed first, and
the others only if a row is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from fluss.buffers import Int64Array, UInt8Array
from fluss.errors import CorruptRecordError
from fluss.record.arrow_batch import ColumnProjection, decode_arrow_batch, project_batch
from fluss.record.batch_columns import BatchColumns
from fluss.record.log_batch import LogBatch, decode_row_body, read_batch, verify_crc
from fluss.record.value_batch import decode_by_schema, decode_value_batch, split_values
from fluss.row import compacted_columns, indexed
from fluss.row.arrow_arrays import empty_batch, number_array, true_indexes
from fluss.row.encoded import EncodedRows
from fluss.schema.arrow import arrow_type
from fluss.schema.schema import Column, Schema
from fluss.schema.table_options import KvFormat, LogFormat
from fluss.schema.types import DataType

if TYPE_CHECKING:
    from fluss.filter.row_filter import RowFilter

# Schemas of one table are few; this many are remembered, then all are forgotten.
_READINGS_MAX: Final = 256
# What the rows of one batch may take in memory besides their own bytes. Nulls are small in rows, and not in Arrow.
_ARRAYS_BYTES_MAX: Final = 1 << 30
# Up to this part of the rows it is faster to pick them one by one than to go over all of them.
_PICKED_SHARE_MAX: Final = 1 / 4


class ScanColumns:
    """The columns a scan returns, in the order asked for, taken from the schema the table had when it began.

    Those of its filter are fetched besides.
    """

    def __init__(
        self,
        schema_id: int,
        schema: Schema,
        positions: Sequence[int] | None = None,
        row_filter: RowFilter | None = None,
    ) -> None:
        self.row_filter = row_filter
        self._filter_positions = () if row_filter is None else tuple(map(schema.index_of, row_filter.columns))
        self.schema_id = schema_id
        self.schema = schema
        # None stands for all columns; otherwise any order, and columns may occur twice.
        self.positions = None if positions is None else tuple(positions)
        columns = schema.columns
        chosen = columns if positions is None else [columns[position] for position in positions]
        self.columns: tuple[Column, ...] = tuple(chosen)
        full = schema.to_arrow()
        self.arrow_schema: pa.Schema = (
            full if positions is None else pa.schema([full.field(position) for position in positions])
        )

    def with_columns(self, names: Sequence[str]) -> ScanColumns:
        """Return these columns and, behind them, those of the names that are not among them."""
        if self.positions is None:
            return self
        positions = map(self.schema.index_of, names)
        added = [position for position in positions if position not in self.positions]
        return ScanColumns(self.schema_id, self.schema, [*self.positions, *added])

    def with_filter_columns(self) -> ScanColumns:
        """Return these columns and, behind them, what else the filter needs, for rows that are not filtered yet."""
        if self.row_filter is None:
            return self
        return ScanColumns(self.schema_id, self.schema, self.positions).with_columns(sorted(self.row_filter.columns))

    @property
    def pushdown(self) -> tuple[int, ...]:
        """The positions a server is asked for: ascending, each once; empty when all columns are wanted."""
        return () if self.positions is None else tuple(sorted({*self.positions, *self._filter_positions}))


@dataclass(frozen=True, slots=True, eq=False)
class DecodedBatch:
    """The rows of one log batch; without change types all are +A.

    Row ``i`` has the offset ``base_offset + i``, unless a filter has left rows out: then ``offsets`` has it.
    """

    base_offset: int
    timestamp_ms: int
    rows: pa.RecordBatch
    data_types: tuple[DataType, ...]
    change_types: UInt8Array | None
    offsets: Int64Array | None = None


# The columns of a filter: name, index in a batch or None for a column of nulls, type.
_Sources: TypeAlias = tuple[tuple[str, int | None, pa.DataType], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """How batches of one schema are read."""

    # The columns in the payload, and for each output column which of them it is; None is a column of nulls.
    payload_columns: tuple[Column, ...]
    payload_schema: pa.Schema
    sources: tuple[int | None, ...]
    output_types: tuple[DataType, ...]
    output_schema: pa.Schema
    # Whether the output is the payload as it is.
    is_payload: bool
    # Cuts unwanted columns out of a whole Arrow batch before anything is decoded.
    cut: ColumnProjection | None
    # The columns of a batch as it was received, which of them the output has, and where the filter finds its own.
    received_schema: pa.Schema
    received_sources: tuple[int | None, ...]
    filter_sources: _Sources


class BatchDecoder:
    """Decodes the batches of one table for one scan; threads may decode several batches at the same time.

    ``load_schema`` returns the schema with an id other than the scan's own; it may block, and what it raises passes
    through. Damage is a CorruptRecordError.
    """

    def __init__(self, columns: ScanColumns, log_format: LogFormat, load_schema: Callable[[int], Schema]) -> None:
        self._columns = columns
        self._log_format = log_format
        self._load_schema = load_schema
        self._readings: dict[tuple[int, bool, bool], _Reading] = {}
        # Whether the last batch that was filtered was compressed.
        self._is_compressed = False

    @property
    def is_filtered(self) -> bool:
        """Whether a filter leaves rows of Arrow batches out, so that each batch is decoded by one thread."""
        return self._log_format is LogFormat.ARROW and self._columns.row_filter is not None

    def decode(self, batch: LogBatch, *, is_projected: bool, aligned: bool = True) -> DecodedBatch:
        """Return the rows of a batch. ``is_projected`` says that the server has cut out the pushed-down columns.

        A server does not renew the checksum of what it cuts, so only whole batches are verified.
        """
        reading = self._reading(batch.header.schema_id, is_projected, aligned)
        if not is_projected:
            verify_crc(batch)
        is_arrow = self._log_format is LogFormat.ARROW
        row_filter = self._columns.row_filter
        if is_arrow and row_filter is not None and batch.header.record_count:
            columns = BatchColumns(batch, reading.received_schema, trusted=not is_projected)
            self._is_compressed = columns.is_compressed
            return _filtered(batch, reading, row_filter, columns.columns, batch.change_types)
        if is_arrow:
            change_types = batch.change_types
            payload = self._arrow_payload(batch, reading, trusted=not is_projected)
        else:
            payload, change_types = self._row_payload(batch, reading)
        if row_filter is not None:
            return _filtered(batch, reading, row_filter, lambda indexes: map(payload.column, indexes), change_types)
        return _decoded(batch, reading, payload if reading.is_payload else _chosen(payload, reading), change_types)

    def is_worth_a_thread(self, batch: LogBatch, *, is_projected: bool, aligned: bool = True) -> bool:
        """Whether another thread may decode a batch, and it takes long enough, by those that were decoded before.

        Schemas are loaded by the thread that reads, and what is not compressed is decoded faster than it arrives.
        """
        return self._is_compressed and (batch.header.schema_id, is_projected, aligned) in self._readings

    def _arrow_payload(self, batch: LogBatch, reading: _Reading, *, trusted: bool) -> pa.RecordBatch:
        if reading.cut is not None and batch.header.record_count:
            batch = read_batch(b"".join(project_batch(batch, reading.cut, recompute_crc=False)))
        return decode_arrow_batch(batch, reading.payload_schema, trusted=trusted)

    def _row_payload(self, batch: LogBatch, reading: _Reading) -> tuple[pa.RecordBatch, UInt8Array | None]:
        rows, change_types = decode_row_body(batch.records, batch.header.record_count)
        return self._decoded_rows(rows, reading), None if batch.header.is_append_only else change_types

    def decode_rows(self, rows: EncodedRows, schema_id: int) -> pa.RecordBatch:
        """Return encoded rows of one schema as columns; the format must be one of rows."""
        reading = self._reading(schema_id, is_projected=False, aligned=True)
        payload = self._decoded_rows(rows, reading)
        return payload if reading.is_payload else _chosen(payload, reading)

    def _decoded_rows(self, rows: EncodedRows, reading: _Reading) -> pa.RecordBatch:
        types = [column.data_type for column in reading.payload_columns]
        codec = indexed if self._log_format is LogFormat.INDEXED else compacted_columns
        columns = codec.decode_rows(rows, types, arrays_bytes_max=_ARRAYS_BYTES_MAX)
        return pa.RecordBatch.from_arrays(columns, schema=reading.payload_schema)

    def _reading(self, schema_id: int, is_projected: bool, aligned: bool) -> _Reading:
        key = (schema_id, is_projected, aligned)
        reading = self._readings.get(key)
        if reading is None:
            if len(self._readings) >= _READINGS_MAX:
                self._readings.clear()
            reading = self._readings[key] = self._new_reading(schema_id, is_projected, aligned)
        return reading

    def _new_reading(self, schema_id: int, is_projected: bool, aligned: bool) -> _Reading:
        wanted = self._columns
        written = wanted.schema if schema_id == wanted.schema_id else self._load_schema(schema_id)
        full, fields = written.columns, written.to_arrow()
        output, output_schema = wanted.columns, wanted.arrow_schema
        if not aligned and wanted.positions is None:
            output, output_schema = tuple(full), fields
        # The columns that are received.
        received, received_schema = full, fields
        pushdown = wanted.pushdown
        cut = None
        if pushdown and (is_projected or self._log_format is LogFormat.ARROW):
            present = [position for position in pushdown if position < len(full)]
            if present and not is_projected:
                cut = ColumnProjection.of(fields, present)
            if present:
                full, fields = [full[p] for p in present], pa.schema([fields.field(p) for p in present])
        if is_projected:
            received, received_schema = full, fields
        sources = _indexes(output, full)
        return _Reading(
            payload_columns=tuple(full),
            payload_schema=fields,
            sources=sources,
            output_types=tuple(column.data_type for column in output),
            output_schema=output_schema,
            is_payload=sources == tuple(range(len(full))) and output_schema.equals(fields),
            cut=cut,
            received_schema=received_schema,
            received_sources=_indexes(output, received),
            filter_sources=_filter_sources(wanted, received),
        )


def _indexes(wanted: Iterable[Column], found: Sequence[Column]) -> tuple[int | None, ...]:
    """Return where columns are among others, by their ids; None for those that are not."""
    index_by_id = {column.column_id: index for index, column in enumerate(found)}
    return tuple(index_by_id.get(column.column_id) for column in wanted)


def _filter_sources(wanted: ScanColumns, found: Sequence[Column]) -> _Sources:
    columns = [] if wanted.row_filter is None else [wanted.schema.column(name) for name in wanted.row_filter.columns]
    types = [arrow_type(column.data_type) for column in columns]
    return tuple(zip((column.name for column in columns), _indexes(columns, found), types, strict=True))


def _filtered(
    batch: LogBatch,
    reading: _Reading,
    row_filter: RowFilter,
    columns: Callable[[Sequence[int]], Iterable[pa.Array]],
    change_types: UInt8Array | None,
) -> DecodedBatch:
    """Return the rows of a batch that a filter keeps, given its columns as they were received."""
    row_count = batch.header.record_count
    sources = sorted({source for _, source, _ in reading.filter_sources if source is not None})
    found = dict(zip(sources, columns(sources), strict=True))
    asked = {
        name: pa.nulls(row_count, type_) if source is None else found[source]
        for name, source, type_ in reading.filter_sources
    }
    truth = row_filter.truth(asked, row_count)
    kept = true_indexes(truth)
    if not len(kept):
        rows = empty_batch(reading.output_schema)
    else:
        others = sorted({source for source in reading.received_sources if source is not None} - found.keys())
        found.update(zip(others, columns(others), strict=True))
        rows = _kept_rows(found, reading, truth, kept)
    if len(kept) == row_count:
        return _decoded(batch, reading, rows, change_types)
    kept_types = None if change_types is None else change_types[kept]
    return _decoded(batch, reading, rows, kept_types, kept + batch.header.base_offset)


def _kept_rows(found: Mapping[int, pa.Array], reading: _Reading, truth: pa.Array, kept: Int64Array) -> pa.RecordBatch:
    """Return the output columns of the rows that a filter keeps; never views of all rows, if these are some of them."""
    is_all, is_few = len(kept) == len(truth), len(kept) <= len(truth) * _PICKED_SHARE_MAX
    indexes = number_array(kept)
    arrays = []
    for source, field in zip(reading.received_sources, reading.output_schema, strict=True):
        if source is None:
            arrays.append(_null_column(len(kept), field))
            continue
        array = found[source]
        if not is_all:
            array = array.take(indexes) if is_few else array.filter(truth)
        arrays.append(_fitted(array, field))
    return pa.RecordBatch.from_arrays(arrays, schema=reading.output_schema)


def _decoded(
    batch: LogBatch,
    reading: _Reading,
    rows: pa.RecordBatch,
    change_types: UInt8Array | None,
    offsets: Int64Array | None = None,
) -> DecodedBatch:
    return DecodedBatch(
        base_offset=batch.header.base_offset,
        timestamp_ms=batch.header.commit_timestamp,
        rows=rows,
        data_types=reading.output_types,
        # Copied: a view would keep everything that was received with this batch in memory.
        change_types=None if change_types is None else change_types.copy(),
        offsets=offsets,
    )


def _chosen(payload: pa.RecordBatch, reading: _Reading) -> pa.RecordBatch:
    arrays = [
        _null_column(payload.num_rows, field) if source is None else _fitted(payload.column(source), field)
        for source, field in zip(reading.sources, reading.output_schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=reading.output_schema)


def _null_column(row_count: int, field: pa.Field) -> pa.Array:
    if not field.nullable:
        raise CorruptRecordError(f"A log batch has no column '{field.name}', which must not be null")
    return pa.nulls(row_count, field.type)


def _fitted(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return the array with the type of the scan's schema, from which it may differ in what is nullable inside."""
    if array.type.equals(field.type):
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise CorruptRecordError(f"Column '{field.name}' was written as {array.type}: {error}") from error


class ValueDecoder:
    """Decodes the value batches of one table for one scan. Used by one thread at a time.

    Every row is decoded with the schema it was written with, and then has the columns of the scan, null where it is
    older than a column. ``load_schema`` and errors are as for ``BatchDecoder``.
    """

    def __init__(self, columns: ScanColumns, kv_format: KvFormat, load_schema: Callable[[int], Schema]) -> None:
        row_format = LogFormat.INDEXED if kv_format is KvFormat.INDEXED else LogFormat.COMPACTED
        self._columns = columns
        self._decoder = BatchDecoder(columns.with_filter_columns(), row_format, load_schema)

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """The types of the columns, in their order."""
        return tuple(column.data_type for column in self._columns.columns)

    def decode(self, records: memoryview) -> pa.RecordBatch:
        """Return the rows of a value batch in their order; no bytes at all are no rows."""
        return self.decode_values(decode_value_batch(records)) if records else self._nothing()

    def decode_values(self, values: EncodedRows) -> pa.RecordBatch:
        """Return the rows of stored values in their order."""
        schema_ids, rows = split_values(values)
        if not len(rows):
            return self._nothing()
        decoded = decode_by_schema(rows, schema_ids, self._decoder.decode_rows)
        return filtered_rows(decoded, self._columns)

    def _nothing(self) -> pa.RecordBatch:
        return empty_batch(self._columns.arrow_schema)


def filtered_rows(rows: pa.RecordBatch, columns: ScanColumns) -> pa.RecordBatch:
    """Return ``columns`` of the rows that their filter keeps; the rows have ``columns.with_filter_columns()``."""
    row_filter = columns.row_filter
    if row_filter is None:
        return rows
    # By position: a column may be there twice, and is the same both times.
    indexes = {name: rows.schema.names.index(name) for name in row_filter.columns}
    truth = row_filter.truth({name: rows.column(index) for name, index in indexes.items()}, rows.num_rows)
    return rows.select(range(len(columns.columns))).filter(truth)
