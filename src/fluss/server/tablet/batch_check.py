"""What a batch must be to be stored in a table, so that every reader can decode it."""

from __future__ import annotations

from collections.abc import Mapping

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import DECOMPRESSED_BYTES_MAX, buffer_bounds
from fluss.record.arrow_ipc import ColumnLayout, column_layout, parse_message
from fluss.record.compression import examine_buffers
from fluss.record.framing import split_length_prefixed
from fluss.record.log_batch import CHANGE_TYPE_BYTES, LogBatch, iter_batches, verify_crc
from fluss.schema.table_options import LogFormat
from fluss.server.model import Table


class BatchCheck:
    """Checks the batches that clients produce to one table. Made once per version of the table.

    A batch that is stored is stored for good, and one that no reader can decode stops every reader at its offset. So
    its schema must be known, and its body must have the shape of that schema: for ARROW the nodes and buffers of the
    metadata, each buffer large enough for its values, for row formats the framing of the rows. Values are not decoded;
    this costs microseconds per batch, not per record.

    Readers look at all of this again: a server cannot vouch for the bytes of a client.
    """

    def __init__(self, table: Table) -> None:
        self._path = table.path
        self._is_arrow = table.descriptor.log_format is LogFormat.ARROW
        self._layouts: Mapping[int, ColumnLayout] = {
            schema_id: column_layout(schema.to_arrow()) for schema_id, schema in table.schemas.items()
        }

    def check(self, records: memoryview) -> None:
        """Refuse records that do not fit the table, with code 15: sending them again would not help.

        Bytes that were damaged on their way are another matter: for them the checksum is left to complain, whose code
        tells a client to try again. A batch at the end that is not whole is not looked at.
        """
        for batch in iter_batches(records):
            try:
                self._check_batch(batch)
            except CorruptRecordError as error:
                verify_crc(batch)
                raise self._misfit(error.message) from error
            except FlussError:
                verify_crc(batch)
                raise

    def _check_batch(self, batch: LogBatch) -> None:
        header = batch.header
        layout = self._layouts.get(header.schema_id)
        if layout is None:
            raise self._misfit(f"it has the schema id {header.schema_id}, known are {sorted(self._layouts)}")
        if header.last_offset_delta != max(header.record_count - 1, 0):
            raise self._misfit(f"it has {header.record_count} records and spans {header.last_offset_delta + 1} offsets")
        if not header.record_count and not len(batch.records):
            return
        # Some clients send the Arrow message of no rows as a batch without records.
        if self._is_arrow:
            self._check_arrow(batch, layout)
        else:
            split_length_prefixed(
                batch.records, header.record_count, what="log record", payload_bytes_min=CHANGE_TYPE_BYTES
            )

    def _check_arrow(self, batch: LogBatch, layout: ColumnLayout) -> None:
        if not batch.header.is_append_only:
            raise self._misfit("it has change types, and a log table takes appends only")
        view = batch.arrow_message
        message = parse_message(view)
        if message.length != batch.header.record_count:
            raise self._misfit(f"it has {batch.header.record_count} records, its Arrow message has {message.length}")
        layout.check(message)
        # Readers that ask for some columns get them cut out along these boundaries.
        buffer_bounds(message)
        contents = examine_buffers(view, message, DECOMPRESSED_BYTES_MAX)
        layout.check_sizes(message.nodes, contents.lengths)

    def _misfit(self, reason: str) -> FlussError:
        return FlussError(
            f"A batch for table {self._path} was refused: {reason}; write it in the table's schema and log format",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
