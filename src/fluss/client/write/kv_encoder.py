"""How the rows of one table with a primary key become KV batches: its keys, its row format, its buckets.

Batches of rows have the columns that are written, under their names; columns that a batch does not have are null in its
rows. The column ``DELETE_MARK``, if there is one, says which rows are deletes: only their key counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import BytesLike, Int64Array, UInt8Array, byte_view
from fluss.client.table_keys import TableKeys
from fluss.client.write.rows import DELETE_MARK, RowLayout
from fluss.client.write.table_encoder import BY_KEY, Encoded, TableEncoder, filled_keys
from fluss.record.kv_batch import HEADER_BYTES, RECORDS_MAX, encode_kv_records, sealed_kv_header
from fluss.row import compacted_columns, indexed
from fluss.row.arrow_arrays import bool_array, unpacked_bits
from fluss.row.bucketing import HashVariant, split_by_bucket
from fluss.row.encoded import EncodedRows, gather_ranges, offsets_of
from fluss.schema.normalize import normalize_batch
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo
from fluss.schema.table_options import KvFormat

_ENCODERS = {KvFormat.COMPACTED: compacted_columns.encode_rows, KvFormat.INDEXED: indexed.encode_rows}


@dataclass(frozen=True, slots=True, eq=False)
class KvRecords:
    """A KV batch but for its header: what the header says about it, and the bytes that follow."""

    schema_id: int
    record_count: int
    targets: tuple[int, ...]
    body: memoryview

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.body)

    def sealed(self, writer_id: int, batch_sequence: int) -> list[BytesLike]:
        header = sealed_kv_header(
            self.body,
            schema_id=self.schema_id,
            writer_id=writer_id,
            batch_sequence=batch_sequence,
            record_count=self.record_count,
        )
        return [header, self.body]


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
        # The columns that writers are given, in the order in which they are.
        self.columns = _subset(schema, targets) if targets else schema
        self.keys = TableKeys(info, hash_variant)
        self._batch_bytes_max = batch_bytes_max
        self._encode_rows = _ENCODERS[info.kv_format]
        self._names = schema.column_names
        self._arrow_types = schema.to_arrow().types
        # Whoever made a batch has checked its rows; what deletes and partial rows leave out is null whatever the type.
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

    def bucket_of(self, packed_row: bytes) -> int:
        columns = self._key_columns(self.layout.to_arrow([packed_row]))
        return int(self.keys.buckets(columns, self.keys.encode(columns))[0])

    def encode(self, batch: pa.RecordBatch, bucket_id: int | None) -> Encoded:
        if not batch.num_rows:
            return []
        keys, records = self.encode_records(batch)
        if bucket_id is not BY_KEY:
            return [(bucket_id, part) for part in self._batches(records.data, records.lengths)]
        groups = split_by_bucket(self.keys.buckets(self._key_columns(batch), keys), self.info.num_buckets)
        return [(number, part) for number, places in groups for part in self._batches(*gathered(records, places))]

    def checked(
        self, rows: pa.RecordBatch, is_delete: npt.NDArray[np.bool_] | None = None, *, holder: str = "the table"
    ) -> pa.RecordBatch:
        """Return rows that were given in the form that is encoded, or say what does not fit; as ``normalize_batch``.

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

    def batch_of(self, body: memoryview, record_count: int) -> KvRecords:
        """Make a batch of records back to back."""
        return KvRecords(self.info.schema_id, record_count, self.targets, body)

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self.keys.key_names]

    def _rows(self, batch: pa.RecordBatch) -> EncodedRows:
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = [
            given[name] if name in given else pa.nulls(batch.num_rows, arrow_type)
            for name, arrow_type in zip(self._names, self._arrow_types, strict=True)
        ]
        return self._encode_rows(columns, self._types)

    def _batches(self, data: UInt8Array, lengths: Int64Array) -> Iterator[KvRecords]:
        """Cut records that lie back to back into batches. Nothing is copied."""
        offsets = offsets_of(lengths)
        view = byte_view(data)
        for first, end in _cuts(offsets, self._batch_bytes_max - HEADER_BYTES):
            body = view[int(offsets[first]) : int(offsets[end])]
            yield self.batch_of(body, end - first)


def _subset(schema: Schema, indexes: Sequence[int]) -> Schema:
    return Schema._create([schema.columns[index] for index in indexes], schema.primary_key or ())


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
