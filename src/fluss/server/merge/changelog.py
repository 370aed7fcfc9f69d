"""Changes as log batches, and log batches as what they write to a store.

The changelog of a primary-key table is its log: one batch per KV batch, in the newest schema and in the log format of
the table. A KV batch that changes nothing becomes a log batch without records, which takes one offset and carries the
sequence of its writer.

Replaying the changelog gives the store: +I and +U put, -D removes, -U says only what was there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike, UInt8Array, byte_array
from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import DECOMPRESSED_BYTES_MAX, decode_arrow_batch, encode_arrow_batch
from fluss.record.arrow_ipc import column_layout
from fluss.record.compression import ArrowCompression
from fluss.record.log_batch import LogBatch, build_batch, decode_row_body, encode_row_body
from fluss.record.mutations import Mutations
from fluss.row.arrow_arrays import bool_array, take_rows
from fluss.schema.offsets import ChangeType
from fluss.schema.table_options import KvFormat, LogFormat
from fluss.server.merge.changes import Changes
from fluss.server.merge.decoded_batch import spread
from fluss.server.merge.key_fold import KeyFold
from fluss.server.merge.table_codec import TableKeyEncoder, TableRowCodec
from fluss.server.model import Table

_CHANGE_TYPES = (ChangeType.Insert, ChangeType.UpdateBefore, ChangeType.UpdateAfter, ChangeType.Delete)
# A smaller message is not worth the time that it takes to compress its columns: the disk has blocks of this size.
_COMPRESSED_BYTES_MIN: Final = 4096


class ChangelogRows(NamedTuple):
    """The records of a changelog batch: what each of them says, and its row in the newest schema."""

    change_types: UInt8Array
    rows: pa.RecordBatch


class ChangelogEncoder:
    """Encodes changes as log batches. Made per version of a table, has no state."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._compression = ArrowCompression.from_properties(table.descriptor.properties)
        row_format = _row_format(table)
        # None for a log of Arrow batches.
        self._rows = None if row_format is None else TableRowCodec(table, row_format)
        if self._rows is None:
            # Once, and not for every batch: it takes as long as encoding a few rows.
            column_layout(table.descriptor.schema.to_arrow())

    def encode(
        self, changes: Changes, *, writer_id: int, batch_sequence: int, bytes_max: int = DECOMPRESSED_BYTES_MAX
    ) -> bytearray:
        """Encode changes as one log batch that stands for the KV batch of a writer.

        Code 13: readers would not take so much at once.
        """
        rows, change_types = changes.rows, changes.change_types
        # With what slices leave out, which takes long to tell.
        if rows.get_total_buffer_size() > bytes_max and rows.nbytes > bytes_max:
            raise FlussError(
                f"The changelog of a batch for table {self._table.path} would have {rows.nbytes} bytes, readers take "
                f"at most {bytes_max} at once; write or delete fewer rows at a time",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        if self._rows is None:
            return encode_arrow_batch(
                rows,
                self._table.schema_id,
                self._compression,
                compressed_bytes_min=_COMPRESSED_BYTES_MIN,
                writer_id=writer_id,
                batch_sequence=batch_sequence,
                change_types=change_types,
                is_layout_known=True,
            )
        body: list[BytesLike] = []
        if rows.num_rows:
            body.append(encode_row_body(self._rows.encode(rows), change_types))
        return build_batch(
            body,
            schema_id=self._table.schema_id,
            record_count=rows.num_rows,
            append_only=False,
            writer_id=writer_id,
            batch_sequence=batch_sequence,
        )


def decode_changelog(table: Table, batch: LogBatch) -> ChangelogRows:
    """Return the records of a batch of any schema of the table. Damage is a CorruptRecordError.

    The checksum of the batch has been verified: what its rows are made of was written here.
    """
    codec = TableRowCodec(table, _row_format(table))
    schema_id, record_count = batch.header.schema_id, batch.header.record_count
    if table.descriptor.log_format is LogFormat.ARROW:
        rows = codec.padded(decode_arrow_batch(batch, codec.schema_of(schema_id).to_arrow(), trusted=True))
        change_types = byte_array(batch.change_type_bytes)
    else:
        encoded, change_types = decode_row_body(batch.records, record_count)
        rows = codec.decode(encoded, schema_id)
    if not bool(np.isin(change_types, _CHANGE_TYPES).all()) or len(change_types) != record_count:
        raise CorruptRecordError(
            f"The batch at offset {batch.header.base_offset} of the changelog has records that are no changes"
        )
    return ChangelogRows(change_types, rows)


def store_entries(table: Table, records: ChangelogRows) -> Mutations:
    """Return what replaying records writes to the store: the last row of each key, encoded in the newest schema."""
    change_types, rows = records
    is_shown_before = change_types == ChangeType.UpdateBefore
    if bool(is_shown_before.any()):
        rows = rows.filter(bool_array(~is_shown_before))
        change_types = change_types[~is_shown_before]
    fold = KeyFold.of(TableKeyEncoder(table).encode(rows))
    lasts = np.flatnonzero(fold.is_last)
    is_put = change_types[lasts] != ChangeType.Delete
    codec = TableRowCodec(table)
    put_rows = codec.encode(take_rows(rows, lasts[is_put]))
    return Mutations(fold.unique_keys.some(fold.slots[lasts]), spread(put_rows, is_put), codec.schema_id)


def _row_format(table: Table) -> KvFormat | None:
    """Return the format of rows in the log; None for ARROW, which has none."""
    log_format = table.descriptor.log_format
    return None if log_format is LogFormat.ARROW else KvFormat(log_format.value)
