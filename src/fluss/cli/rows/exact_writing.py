"""Writes the rows of one part of a load, each once, however often it is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from fluss import FlussTable
from fluss.cli.rows.load_state import LoadPosition
from fluss.client.bulk import PartitionSplitter, partitions_of
from fluss.schema.table import PartitionSpec, spec_of_partition_name
from fluss.spark.write.keyed_write import KeyedWrite
from fluss.spark.write.log_write import LogWrite
from fluss.spark.write.sink_rows import SinkRows
from fluss.spark.write.writer_record import Attempt, WriterRecord


class _StateRecord:
    """Keeps the record of a part in the account of the load."""

    def __init__(self, state: LoadPosition) -> None:
        self._state = state

    def load(self) -> WriterRecord | None:
        return None if self._state.record is None else WriterRecord.from_json(self._state.record)

    def put(self, record: WriterRecord) -> bool:
        self._state.record = record.to_json()
        self._state.save()
        return True


def write_part(
    table: FlussTable,
    batches: Iterable[pa.RecordBatch],
    state: LoadPosition,
    create_partition: Callable[[PartitionSpec], None] | None,
) -> int:
    """Write what earlier tries have not, and return how many rows the part has."""
    attempt = Attempt(table, _StateRecord(state), is_resumed=state.record is not None)
    if create_partition is not None and table.get_table_info().is_partitioned():
        batches = _with_partitions(table, batches, create_partition)
    if table.has_primary_key():
        return KeyedWrite(table, attempt).write(SinkRows(batch) for batch in batches).rows
    return LogWrite(table, attempt).write(batches).rows


def _with_partitions(
    table: FlussTable, batches: Iterable[pa.RecordBatch], create: Callable[[PartitionSpec], None]
) -> Iterator[pa.RecordBatch]:
    """Pass batches on when the partitions of their rows exist."""
    info = table.get_table_info()
    splitter = PartitionSplitter(info.schema, info.partition_keys)
    known = {partition.partition_name for partition in partitions_of(table)}
    for batch in batches:
        for name, _ in splitter.groups(batch):
            if name not in known:
                create(spec_of_partition_name(name, info.partition_keys))
                known.add(name)
        yield batch
