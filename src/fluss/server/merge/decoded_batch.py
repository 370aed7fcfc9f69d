"""The rows of one KV batch, decoded and checked, together with the stored rows of its keys.

A stored row that no reader can decode would stop every reader of the changelog at its offset, and a row under the key
of another one would come back under its own key after a recovery. So every received row is decoded, its nulls and
lengths are checked on the way, and its key is compared with the key it came with.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.errors import CorruptRecordError, ErrorCode, FlussError, KvDamagedError, SizeLimitError
from fluss.record.arrow_batch import DECOMPRESSED_BYTES_MAX
from fluss.record.mutations import FoundRows
from fluss.row.arrow_arrays import BoolArray, slots_bytes
from fluss.row.encoded import EncodedRows, joined_rows
from fluss.row.hashed_keys import HashedKeys
from fluss.schema.table_options import DELETE_BEHAVIOR, DeleteBehavior
from fluss.server.merge.aggregate_functions import bitmap_format_of, check_bitmaps
from fluss.server.merge.changes import NO_ROW, MergeInput
from fluss.server.merge.key_fold import KeyFold
from fluss.server.merge.table_codec import TableKeyEncoder, TableRowCodec
from fluss.server.model import Table

# Of a key, in messages.
_SHOWN_BYTES: Final = 64
# Sources with so few rows each are copied into one piece: decoding that takes less time than decoding each by itself.
_FEW_ROWS: Final = 512
_JOINED_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class DecodedKvBatch:
    """The records of a batch that count (ignored deletes do not), and all rows they are about.

    ``rows`` has the newest schema: first the stored rows, then the received ones in the order of their records.
    """

    fold: KeyFold
    is_delete: BoolArray
    rows: pa.RecordBatch
    stored_count: int
    # Slot -> number of the stored row, NO_ROW if there is none.
    stored: Int64Array
    # Record -> number of the received row, NO_ROW for deletes.
    received: Int64Array
    # As they were received; the row of a delete is empty.
    encoded: EncodedRows
    schema_id: int

    def __len__(self) -> int:
        """The number of records."""
        return len(self.received)

    def only(self, records: Int64Array) -> DecodedKvBatch:
        """Leave out all but some records, ascending. Rows keep their numbers."""
        if len(records) == len(self):
            return self
        return replace(
            self,
            fold=self.fold.only(records),
            is_delete=self.is_delete[records],
            received=self.received[records],
            encoded=self.encoded.some(records),
        )

    def final_state(self, has_effect: BoolArray) -> tuple[HashedKeys, Int64Array]:
        """Return the keys that any effective record changes, and the last record of each."""
        fold = self.fold
        if bool(has_effect.all()):
            records = np.flatnonzero(fold.is_last)
        else:
            is_changed = np.zeros(len(fold.unique_keys), np.bool_)
            is_changed[fold.slots[has_effect]] = True
            records = np.flatnonzero(fold.is_last & is_changed[fold.slots])
        slots = fold.slots[records]
        if len(slots) == len(fold.unique_keys) and bool((slots == np.arange(len(slots))).all()):
            return fold.unique_keys, records
        return fold.unique_keys.some(slots), records

    def received_rows(self, records: Int64Array) -> EncodedRows:
        """Return the rows of some records, ascending, as they came and where they are; those of deletes are empty."""
        return self.encoded if len(records) == len(self) else self.encoded.some(records)


class KvBatchDecoder:
    """Decodes batches for the mergers of one table. Made per version of the table, has no state."""

    def __init__(self, table: Table) -> None:
        self.codec = TableRowCodec(table, arrays_bytes_max=DECOMPRESSED_BYTES_MAX)
        self._keys = TableKeyEncoder(table)
        self._has_bitmaps = any(bitmap_format_of(column) is not None for column in self.codec.schema.columns)
        self._path = table.path

    def decode(self, batch: MergeInput, deletes: DeleteBehavior, *, with_stored_rows: bool = True) -> DecodedKvBatch:
        """Decode and check a batch. Without stored rows, every key counts as absent.

        Code 57: the batch has deletes and the table takes none. Code 15: a row does not fit the table, or not its key;
        the checksum was right, so sending it again would not help. Code 13: the rows are too large to be logged
        together. KvDamagedError: a stored value cannot be read.
        """
        fold, is_delete, encoded, keys = batch.fold, batch.is_delete, batch.rows, batch.keys
        puts = np.flatnonzero(~is_delete)
        if len(puts) < len(is_delete) and deletes is not DeleteBehavior.ALLOW:
            if deletes is DeleteBehavior.DISABLE:
                raise FlussError(
                    f"Table {self._path} takes no deletes: '{DELETE_BEHAVIOR.key}' is '{DeleteBehavior.DISABLE}'; "
                    "nothing of the batch was written",
                    ErrorCode.DELETION_DISABLED_EXCEPTION,
                )
            fold, is_delete = fold.only(puts), is_delete[puts]
            encoded, keys = encoded.some(puts), keys.some(puts)
            puts = np.arange(len(puts))
        put_rows, put_keys = encoded, keys
        if len(puts) < len(is_delete):
            put_rows, put_keys = encoded.some(puts), keys.some(puts)
        old = batch.old if with_stored_rows else FoundRows()
        stored, stored_count = np.full(len(fold.unique_keys), NO_ROW), 0
        byte_count = int(put_rows.lengths.sum())
        if old.groups:
            stored_count = len(old.numbers)
            stored[old.numbers] = np.arange(stored_count)
            byte_count += int(old.value_lengths.sum())
        self.check_size(stored_count + len(puts), byte_count)
        rows = self._decode_rows(old, put_rows, batch.schema_id, byte_count)
        received_rows = rows.slice(stored_count) if stored_count else rows
        self._check_keys(put_keys, received_rows)
        if self._has_bitmaps:
            check_bitmaps(self.codec.schema, received_rows)
        received = np.full(len(is_delete), NO_ROW)
        received[puts] = np.arange(stored_count, rows.num_rows)
        return DecodedKvBatch(fold, is_delete, rows, stored_count, stored, received, encoded, batch.schema_id)

    def _decode_rows(self, old: FoundRows, rows: EncodedRows, schema_id: int, byte_count: int) -> pa.RecordBatch:
        """Decode stored rows, and behind them received ones."""
        source_count = len(old.groups) + 1
        are_few = len(old.numbers) + len(rows) <= source_count * _FEW_ROWS
        if old.groups and are_few and byte_count <= _JOINED_BYTES_MAX:
            # If that fails, decoding them one after the other tells which of them are to blame.
            with suppress(CorruptRecordError):
                return self.codec.decode_mixed(*_joined(old, rows, schema_id))
        # First those that were received: they are to blame, whatever is stored.
        try:
            received = self.codec.decode(rows, schema_id)
        except SizeLimitError as error:
            raise self._too_large(error.message) from error
        except CorruptRecordError as error:
            raise self._misfit(error.message) from error
        if not old.groups:
            return received
        decoded, byte_count = [], received.get_total_buffer_size()
        for _, stored in old.groups:
            try:
                decoded.append(self.codec.decode_mixed(stored.rows, stored.schema_ids))
            except SizeLimitError as error:
                raise self._too_large(error.message) from error
            except CorruptRecordError as error:
                raise KvDamagedError(f"A stored row of table {self._path} cannot be read: {error.message}") from error
            # Each of them may have as much as all together: arrays take more than was counted before they were decoded.
            byte_count += decoded[-1].get_total_buffer_size()
            if byte_count > DECOMPRESSED_BYTES_MAX:
                raise self._too_large(f"its rows take {byte_count} bytes")
        return pa.concat_batches([*decoded, received])

    def check_size(self, row_count: int, byte_count: int) -> None:
        """Refuse (code 13) rows that would take too much memory, or too much room in the changelog.

        ``byte_count`` is what they have as encoded rows; as columns they may take more.
        """
        byte_count += slots_bytes(self.codec.schema.data_types, row_count)
        if byte_count > DECOMPRESSED_BYTES_MAX:
            raise self._too_large(f"{row_count} rows take {byte_count} bytes")

    def _too_large(self, reason: str) -> FlussError:
        return FlussError(
            f"A batch for table {self._path} concerns too much: {reason}. Readers of the changelog take at most "
            f"{DECOMPRESSED_BYTES_MAX} bytes at once; write or delete fewer rows at a time",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )

    def _check_keys(self, keys: EncodedRows, rows: pa.RecordBatch) -> None:
        row = self._keys.first_difference(keys, rows)
        if row is not None:
            raise self._misfit(f"row {row} came with the key {_shown(keys.row(row))}, which is not that of its columns")

    def _misfit(self, reason: str) -> FlussError:
        return FlussError(
            f"A batch for table {self._path} was refused: {reason}; write it in the table's schema and KV format",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )


def _shown(key: bytes) -> str:
    return key.hex() if len(key) <= _SHOWN_BYTES else f"{key[:_SHOWN_BYTES].hex()}... of {len(key)} bytes"


def spread(present: EncodedRows, is_present: BoolArray) -> EncodedRows:
    """Return present rows where there are some, and empty rows between them."""
    if len(present) == len(is_present):
        return present
    starts, ends = np.zeros((2, len(is_present)), np.int64)
    starts[is_present] = present.starts
    ends[is_present] = present.ends
    return EncodedRows(present.data, starts, ends)


def _joined(old: FoundRows, rows: EncodedRows, schema_id: int) -> tuple[EncodedRows, npt.NDArray[np.int16]]:
    """Copy rows into one piece, the stored ones first; return them and the schema of each."""
    received_ids = np.full(len(rows), schema_id, np.int16)
    schema_ids = np.concatenate([*(stored.schema_ids for _, stored in old.groups), received_ids])
    return joined_rows([*(stored.rows for _, stored in old.groups), rows]), schema_ids
