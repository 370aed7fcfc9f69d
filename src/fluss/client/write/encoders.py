"""How the rows of one table become batches: log batches of a log table, KV batches of a table with a primary key.

An encoder knows the schema, the formats, the compression, the statistics, the keys and the buckets of its table. Rows
come as Arrow, with the columns that are written, under their names. For a table with a primary key, columns that are
not there are null in its rows, and the column ``DELETE_MARK``, if there is one, says which rows are deletes: only their
key counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

import fluss.arrow_compute as pc
from fluss.buffers import BytesLike, Int64Array, UInt8Array, byte_view
from fluss.client.kernel.placement import BucketSplitter, PartitionSplitter, TableKeys, lake_format
from fluss.client.write.few_rows import FewRows
from fluss.client.write.row_layout import DELETE_MARK, RowLayout
from fluss.errors import FlussError
from fluss.record.compression import ArrowCompression, compress_message
from fluss.record.kv_batch import HEADER_BYTES, RECORDS_MAX, encode_kv_records, sealed_kv_header
from fluss.record.log_batch import HEADER_LAYOUTS, MAGIC_V0, MAGIC_V1, append_header, encode_row_body
from fluss.record.statistics import collect_statistics, supports_statistics
from fluss.row import compacted_columns, indexed
from fluss.row.arrow_arrays import bool_array, unpacked_bits
from fluss.row.bucketing import HashVariant, rows_by_bucket
from fluss.row.encoded import EncodedRows, gather_ranges, offsets_of
from fluss.schema.normalize import normalize_batch
from fluss.schema.offsets import ChangeType
from fluss.schema.schema import Schema, schema_from_columns
from fluss.schema.table import TableInfo
from fluss.schema.table_options import STATISTICS_COLUMNS, CompressionType, KvFormat, LogFormat
from fluss.schema.types import TypeRoot

# Instead of a bucket: the rows are put into buckets by their keys, later.
BY_KEY: Final = None
_MAYBE_EMPTY_ROOTS: Final = (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES)
_ALL_COLUMNS: Final = "*"
_UNITS_PER_MILLI: Final = {"us": 1_000, "ns": 1_000_000}
_ENCODERS = {KvFormat.COMPACTED: compacted_columns.encode_rows, KvFormat.INDEXED: indexed.encode_rows}


class EncodedBatch(Protocol):
    """A batch but for its header, which names the writer and the number of the batch."""

    @property
    def record_count(self) -> int:
        """The rows of the batch."""
        ...

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole batch, header included."""
        ...

    @property
    def targets(self) -> tuple[int, ...] | None:
        """For a table with a primary key: the columns that are written, or none for all of them. Else None."""
        ...

    @property
    def joined_kind(self) -> tuple[int, tuple[int, ...]] | None:
        """What batches of a bucket must have in common to be ``joined``; None for one that stays as it is."""
        ...

    def sealed(self, writer_id: int, batch_sequence: int) -> list[BytesLike]:
        """Return the bytes of the batch, in parts. They are made anew each time; the records are not copied."""
        ...

    def joined(self, later: Sequence[EncodedBatch]) -> EncodedBatch:
        """Return one batch with the rows of this one and of those after it, which are of the same kind."""
        ...


# The batches that rows have become, by bucket. A bucket may have several, which are to be sent in this order.
Encoded: TypeAlias = list[tuple[int, EncodedBatch]]


class TableEncoder(ABC):
    """Encodes rows of one table in one of its schemas. Has no state: threads may share it.

    All rows of a block have the same encoder, so whatever must not be mixed in a batch has encoders of its own.
    """

    def __init__(
        self,
        info: TableInfo,
        layout: RowLayout,
        *,
        has_rows_by_key: bool,
        is_slow: bool,
        is_stepwise: bool = False,
    ) -> None:
        self.info = info
        self.layout = layout
        self.partitions = PartitionSplitter.of(info)
        # Whether the bucket of a row depends on its key.
        self.has_rows_by_key = has_rows_by_key
        # Whether encoding takes much longer than copying the rows, and whether it does so in many short steps.
        self.is_slow = is_slow
        self.is_stepwise = is_stepwise

    def check_keys(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that belong to no partition or to no bucket."""
        if self.partitions is not None:
            self.partitions.check_keys(batch)
        for name in filled_keys(self.info):
            if pc.binary_length(batch.column(name)).to_numpy(zero_copy_only=False).min(initial=1) == 0:
                raise FlussError(f"Column '{name}' has an empty value; a key that is empty belongs to no bucket")

    @abstractmethod
    def bucket_of(self, packed_row: bytes) -> int:
        """Return the bucket of a row by its key."""

    @abstractmethod
    def encode(self, batch: pa.RecordBatch, bucket_id: int | None) -> Encoded:
        """Encode rows that were checked, for one bucket or ``BY_KEY``. Takes a while: not for event loops."""

    def encode_few(self, rows: Sequence[bytes], bucket_id: int | None) -> Encoded | None:
        """Encode packed rows in a quicker way, if they are few enough for it; None if not."""
        return None


def filled_keys(info: TableInfo) -> list[str]:
    """Return the key columns that must not be empty, because their bytes alone choose the bucket."""
    if lake_format(info) != "iceberg":
        return []
    return [name for name in info.bucket_keys if info.schema.column(name).data_type.root in _MAYBE_EMPTY_ROOTS]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedLogBatch:
    """A log batch but for its header: what the header says about it, and the bytes that follow."""

    schema_id: int
    record_count: int
    magic: int
    statistics: bytes
    body: BytesLike | pa.Buffer

    @property
    def size_bytes(self) -> int:
        return HEADER_LAYOUTS[self.magic].size + len(self.statistics) + len(memoryview(self.body))

    @property
    def targets(self) -> None:
        return None

    @property
    def joined_kind(self) -> None:
        """Columns of several batches cannot be put together without making them again."""
        return None

    def sealed(self, writer_id: int, batch_sequence: int) -> list[BytesLike]:
        content: list[BytesLike] = [part for part in (self.statistics, byte_view(self.body)) if len(part)]
        header = append_header(
            content,
            magic=self.magic,
            schema_id=self.schema_id,
            record_count=self.record_count,
            writer_id=writer_id,
            batch_sequence=batch_sequence,
            statistics_length=len(self.statistics),
        )
        return [header, *content]

    def joined(self, later: Sequence[EncodedBatch]) -> EncodedBatch:
        raise AssertionError("log batches stay as they are")


class LogEncoder(TableEncoder):
    """Encodes log batches of one table in one of its schemas."""

    def __init__(self, info: TableInfo, hash_variant: HashVariant) -> None:
        self._schema = info.schema
        self._compression = ArrowCompression.from_properties(info.properties)
        self._statistics_columns = _statistics_columns(info.schema, info.properties)
        self._buckets = BucketSplitter.of(info, hash_variant)
        self._log_format = info.log_format
        has_rows_by_key = self._buckets is not None and info.num_buckets > 1
        layout = RowLayout.of(
            info.schema,
            info.partition_keys,
            self._buckets.required_keys if self._buckets is not None else (),
            filled_keys=filled_keys(info),
            has_rows_by_key=has_rows_by_key,
        )
        super().__init__(
            info,
            layout,
            has_rows_by_key=has_rows_by_key,
            is_slow=self._log_format is not LogFormat.ARROW or self._compression.type is not CompressionType.NONE,
        )
        self._few_rows: FewRows | None = None
        if self._log_format is LogFormat.ARROW and not self._statistics_columns:
            self._few_rows = FewRows(layout.form, self._compression)

    def check_keys(self, batch: pa.RecordBatch) -> None:
        super().check_keys(batch)
        if self._log_format is not LogFormat.ARROW:
            _check_times(batch)
        if self._buckets is not None:
            self._buckets.check_keys(batch)

    def bucket_of(self, packed_row: bytes) -> int:
        assert self._buckets is not None, "only tables with a bucket key know"
        return int(self._buckets.buckets(self.layout.to_arrow([packed_row]))[0])

    def encode(self, batch: pa.RecordBatch, bucket_id: int | None) -> Encoded:
        if not batch.num_rows:
            return []
        if bucket_id is not BY_KEY:
            return [(bucket_id, self.encode_batch(batch))]
        assert self._buckets is not None, "only tables with a bucket key leave the bucket open"
        return [(number, self.encode_batch(part)) for number, part in self._buckets.split(batch)]

    def encode_few(self, rows: Sequence[bytes], bucket_id: int | None) -> Encoded | None:
        if self._few_rows is None or bucket_id is BY_KEY:
            return None
        message = self._few_rows.message(rows)
        if message is None:
            return None
        return [(bucket_id, EncodedLogBatch(self.info.schema_id, len(rows), MAGIC_V0, b"", message))]

    def encode_batch(self, batch: pa.RecordBatch) -> EncodedLogBatch:
        """Encode rows that have the Arrow schema of the table as one batch."""
        types = self._schema.data_types
        statistics = b""
        match self._log_format:
            case LogFormat.ARROW:
                statistics = collect_statistics(batch, types, self._statistics_columns)
                body: BytesLike | pa.Buffer = compress_message(batch.serialize(), self._compression)
            case LogFormat.COMPACTED:
                body = _row_body(compacted_columns.encode_rows(batch.columns, types))
            case LogFormat.INDEXED:
                body = _row_body(indexed.encode_rows(batch.columns, types))
        magic = MAGIC_V1 if statistics else MAGIC_V0
        return EncodedLogBatch(self.info.schema_id, batch.num_rows, magic, statistics, body)


def _row_body(rows: EncodedRows) -> BytesLike:
    return encode_row_body(rows, np.full(len(rows), ChangeType.AppendOnly, np.uint8))


def _statistics_columns(schema: Schema, properties: Mapping[str, str]) -> list[int]:
    """Return the columns for which the table asks for statistics: all that can have them, or those it names."""
    text = properties.get(STATISTICS_COLUMNS.key, "").strip()
    if text == _ALL_COLUMNS:
        return [index for index, t in enumerate(schema.data_types) if supports_statistics(t)]
    indexes = [schema.index_of(name.strip()) for name in text.split(",") if name.strip()]
    for index in indexes:
        column = schema.columns[index]
        if not supports_statistics(column.data_type):
            raise FlussError(f"'{STATISTICS_COLUMNS.key}' names '{column.name}', whose type has no statistics")
    return indexes


@dataclass(slots=True, eq=False)
class EncodedKvBatch:
    """A KV batch but for its header: what the header says about it, and the bytes that follow."""

    schema_id: int
    record_count: int
    targets: tuple[int, ...]
    body: memoryview

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.body)

    @property
    def joined_kind(self) -> tuple[int, tuple[int, ...]]:
        return self.schema_id, self.targets

    def sealed(self, writer_id: int, batch_sequence: int) -> list[BytesLike]:
        header = sealed_kv_header(
            self.body,
            schema_id=self.schema_id,
            writer_id=writer_id,
            batch_sequence=batch_sequence,
            record_count=self.record_count,
        )
        return [header, self.body]

    def joined(self, later: Sequence[EncodedBatch]) -> EncodedKvBatch:
        batches = [self, *(batch for batch in later if isinstance(batch, EncodedKvBatch))]
        assert len(batches) == 1 + len(later), "all are of one kind"
        body = memoryview(b"".join([batch.body for batch in batches]))
        return replace(self, record_count=sum([batch.record_count for batch in batches]), body=body)


def _check_times(rows: pa.RecordBatch) -> None:
    """Refuse times of the day with digits that a row cannot hold: it has milliseconds, whatever the TIME of its column.

    Only batches of Arrow can keep the others, in log tables.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for times in _times_in(column):
            has_more = times.view(pa.int64()).fill_null(0).to_numpy() % _UNITS_PER_MILLI[times.type.unit] != 0
            if has_more.any():
                shown = times.slice(int(has_more.argmax()), 1).cast(pa.string())[0].as_py()
                raise FlussError(
                    f"Column '{name}' has {shown}, with digits below a millisecond; only log tables whose "
                    "'table.log.format' is ARROW keep them: round it, or use another type"
                )


def _times_in(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the times of a column that may have such digits, also those inside of its values."""
    if pat.is_time64(column.type):
        yield column
    elif not _has_times(column.type):
        return
    elif pat.is_map(column.type):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        for child in column.values.slice(first, last - first).flatten():
            yield from _times_in(child)
    elif pat.is_list(column.type):
        yield from _times_in(column.flatten())
    else:
        for child in column.flatten():
            yield from _times_in(child)


def _has_times(data_type: pa.DataType) -> bool:
    if pat.is_nested(data_type):
        return any(_has_times(data_type.field(index).type) for index in range(data_type.num_fields))
    return bool(pat.is_time64(data_type))


class KvEncoder(TableEncoder):
    """Encodes KV batches of one table in one of its schemas, of whole rows or of some of their columns.

    ``targets`` are the positions of these columns, the primary key among them; none of them means all columns.
    A batch has at most ``batch_bytes_max`` bytes, unless that is too little for a single row.
    """

    def __init__(
        self, info: TableInfo, hash_variant: HashVariant, *, targets: tuple[int, ...] = (), batch_bytes_max: int
    ) -> None:
        schema = info.schema
        self.targets = targets
        # The columns of input rows, in their order.
        self.columns = _subset(schema, targets) if targets else schema
        self.keys = TableKeys(info, hash_variant)
        self._batch_bytes_max = batch_bytes_max
        self._encode_rows = _ENCODERS[info.kv_format]
        self._names = schema.column_names
        self._arrow_types = schema.to_arrow().types
        # Rows were checked before they came here; what deletes and partial rows leave out is null whatever the type.
        self._types = [data_type.with_nullable(True) for data_type in schema.data_types]
        has_rows_by_key = info.num_buckets > 1
        layout = RowLayout.of(
            self.columns,
            info.partition_keys,
            delete_keys=info.primary_keys,
            filled_keys=filled_keys(info),
            has_rows_by_key=has_rows_by_key,
        )
        super().__init__(info, layout, has_rows_by_key=has_rows_by_key, is_slow=True, is_stepwise=True)

    def check_keys(self, batch: pa.RecordBatch) -> None:
        super().check_keys(batch)
        _check_times(batch)

    def bucket_of(self, packed_row: bytes) -> int:
        columns = self._key_columns(self.layout.to_arrow([packed_row]))
        return int(self.keys.buckets(columns, self.keys.encode(columns))[0])

    def encode(self, batch: pa.RecordBatch, bucket_id: int | None) -> Encoded:
        if not batch.num_rows:
            return []
        keys, records = self.encode_records(batch)
        if bucket_id is not BY_KEY:
            offsets = offsets_of(records.lengths)
            return [(bucket_id, part) for part in self._batches(byte_view(records.data), offsets)]
        order, bucket_ids, ends = rows_by_bucket(
            self.keys.buckets(self._key_columns(batch), keys), self.info.num_buckets
        )
        data, lengths = records.data, records.lengths
        if len(bucket_ids) > 1:
            # All of them at once, bucket by bucket: there may be thousands of buckets with a few rows each.
            lengths = lengths[order]
            data = gather_ranges(data, records.starts[order], lengths)
        offsets, view = offsets_of(lengths), byte_view(data)
        encoded: Encoded = []
        first = first_byte = 0
        for number, end, end_byte in zip(bucket_ids, ends, offsets[ends].tolist(), strict=True):
            if end_byte - first_byte <= self._batch_bytes_max - HEADER_BYTES and end - first <= RECORDS_MAX:
                body = view[first_byte:end_byte]
                if 2 * len(body) < len(view):
                    # A bucket that has to wait would keep the rows of all the others in memory, too.
                    body = memoryview(bytes(body))
                encoded.append((number, self.batch_of(body, end - first)))
            else:
                encoded += [(number, part) for part in self._batches(view, offsets[first : end + 1])]
            first, first_byte = end, end_byte
        return encoded

    def checked(
        self, rows: pa.RecordBatch, is_delete: npt.NDArray[np.bool_] | None = None, *, holder: str = "the table"
    ) -> pa.RecordBatch:
        """Return input rows in the form that is encoded, or say what does not fit; as ``normalize_batch``.

        Of the rows that ``is_delete`` marks only the key counts: what else they have may be null.
        """
        if is_delete is None or not is_delete.any():
            checked = normalize_batch(rows, self.columns, holder=holder)
        else:
            normalize_batch(rows.filter(bool_array(~is_delete)), self.columns, holder=holder)
            checked = rows.append_column(DELETE_MARK, bool_array(is_delete))
        self.check_keys(checked)
        return checked

    def encode_records(self, batch: pa.RecordBatch) -> tuple[EncodedRows, EncodedRows]:
        """Encode rows that were checked as records back to back, in their order; return their keys, and the records."""
        keys = self.keys.encode(self._key_columns(batch))
        deletes = _deletes(batch)
        rows = None if deletes is not None and bool(deletes.all()) else self._rows(batch)
        return keys, encode_kv_records(keys, rows, deletes)

    def batch_of(self, body: memoryview, record_count: int) -> EncodedKvBatch:
        """Make a batch of records back to back."""
        return EncodedKvBatch(self.info.schema_id, record_count, self.targets, body)

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self.keys.key_names]

    def _rows(self, batch: pa.RecordBatch) -> EncodedRows:
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = [
            given[name] if name in given else pa.nulls(batch.num_rows, arrow_type)
            for name, arrow_type in zip(self._names, self._arrow_types, strict=True)
        ]
        return self._encode_rows(columns, self._types)

    def _batches(self, data: memoryview, offsets: Int64Array) -> Iterator[EncodedKvBatch]:
        """Cut records that lie back to back, between offsets, into batches. Nothing is copied."""
        for first, end in _cuts(offsets, self._batch_bytes_max - HEADER_BYTES):
            body = data[int(offsets[first]) : int(offsets[end])]
            yield self.batch_of(body, end - first)


def _subset(schema: Schema, indexes: Sequence[int]) -> Schema:
    return schema_from_columns([schema.columns[index] for index in indexes], schema.primary_key or ())


def _deletes(batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    index = batch.schema.get_field_index(DELETE_MARK)
    if index < 0:
        return None
    marks = batch.column(index)
    return unpacked_bits(marks.buffers()[1], marks.offset, len(marks))


def gathered(records: EncodedRows, places: Int64Array) -> tuple[UInt8Array, Int64Array]:
    """Copy out some records, ascending; all of them, if they are all, are not copied."""
    lengths = records.lengths
    if len(places) == len(records):
        return records.data, lengths
    lengths = lengths[places]
    return gather_ranges(records.data, records.starts[places], lengths), lengths


def _cuts(offsets: Int64Array, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield the first record and the end of each piece of at most so many bytes; a larger record is a piece alone.

    No piece has more records than a server takes.
    """
    first, count = 0, len(offsets) - 1
    while first < count:
        fitting = int(np.searchsorted(offsets, offsets[first] + bytes_max, side="right")) - 1
        end = min(max(fitting, first + 1), first + RECORDS_MAX)
        yield first, end
        first = end
