"""A tiering round without a tiering service: what a table has between two offsets goes to its lake, registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from fluss import FlussTable, TableBucket
from fluss.client.bulk import LogRange, lake_snapshot_of, named_buckets_of, offsets_of, read_ranges
from fluss.client.fluss_table import context_of
from fluss.client.kernel.table_calls import fresh_table_info
from fluss.lake.arrow_conversion import lake_batch
from fluss.lake.catalogs import catalog_properties
from fluss.lake.commits import commit_files, tiering_properties
from fluss.lake.data_files import DataFileWriter, FileLayout, write_equality_deletes, write_position_deletes
from fluss.lake.key_positions import key_positions
from fluss.lake.key_set import KeySet
from fluss.lake.lake_tables import LakeTables
from fluss.lake.scans import LakeScan
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.offsets import ChangeType, OffsetSpec

# Returns up to where a bucket is tiered, given where the lake and where the log ends.
ChooseStop = Callable[[TableBucket, int, int], int]


def lake_table_of(table: FlussTable):
    """Return the Iceberg table of a table."""
    context = context_of(table)
    info = context.runtime.run(fresh_table_info(context.cluster, table.table_path))
    return LakeTables.open(catalog_properties(info.properties)).load(table.table_path)


def tier(
    table: FlussTable,
    choose_stop: ChooseStop = lambda _bucket, _start, stop: stop,
    *,
    deletes_by_key: bool = False,
) -> int | None:
    """Tier the buckets of a table, and return the snapshot; None if there is nothing to do.

    ``deletes_by_key`` is how Apache Fluss's own service says which rows are no longer there.
    """
    buckets = named_buckets_of(table)
    snapshot = lake_snapshot_of(table)
    tiered = {} if snapshot is None else snapshot.table_buckets_offset
    ends = offsets_of(table, list(buckets), OffsetSpec.latest())
    stops = {bucket: choose_stop(bucket, tiered.get(bucket, 0), end) for bucket, end in ends.items()}
    moved = {bucket: stop for bucket, stop in stops.items() if stop > tiered.get(bucket, 0)}
    if not moved:
        return None
    lake_table = lake_table_of(table)
    layout = FileLayout.of(lake_table)
    added, deletes = [], []
    for bucket, stop in moved.items():
        name = buckets[bucket]
        values = () if name is None else tuple(name.split("$"))
        partition = layout.partition(values, bucket.bucket_id)
        runs = list(read_ranges(table, [LogRange(bucket, tiered.get(bucket, 0), stop)]))
        if table.has_primary_key():
            rows, keys = _last_changes(table, runs)
            if deletes_by_key:
                deletes += write_equality_deletes(layout, partition, keys)
            else:
                live = [
                    f
                    for f in LakeScan(lake_table).files()
                    if (f.partition_values, f.bucket_id) == (values, bucket.bucket_id)
                ]
                positions = key_positions(lake_table, live, KeySet(keys))
                deletes += write_position_deletes(layout, partition, positions)
            batches = rows.to_batches()
            offsets = [np.zeros(batch.num_rows, np.int64) for batch in batches]
        else:
            batches = [run.batch for run in runs]
            offsets = [run.base_offset for run in runs]
        with DataFileWriter(layout, partition) as writer:
            for batch, first in zip(batches, offsets, strict=True):
                writer.write(
                    lake_batch(
                        batch, layout.arrow_schema, bucket_id=bucket.bucket_id, offsets=first, timestamps_ms=1_000
                    )
                )
        added += writer.files
    path = _prepare(table, moved)
    snapshot_id = commit_files(lake_table, added=added, deletes=deletes, properties=tiering_properties(path))
    _commit(table, snapshot_id, path)
    return snapshot_id


def _last_changes(table: FlussTable, runs) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are left of changes, and all keys that they touch."""
    names = table.get_table_info().primary_keys
    schema = table.arrow_schema
    last: dict[tuple, tuple[pa.RecordBatch, int, bool]] = {}
    for run in runs:
        keys = zip(*(run.batch.column(name).to_pylist() for name in names), strict=True)
        for index, key in enumerate(keys):
            change = ChangeType(run.change_types[index])
            last[key] = run.batch, index, change != ChangeType.Delete
    rows = [batch.slice(index, 1) for batch, index, is_there in last.values() if is_there]
    keyed = [batch.slice(index, 1).select(names) for batch, index, _ in last.values()]
    return (
        pa.Table.from_batches(rows, schema).combine_chunks(),
        pa.Table.from_batches(keyed, pa.schema([schema.field(name) for name in names])).combine_chunks(),
    )


def _prepare(table: FlussTable, offsets: Mapping[TableBucket, int]) -> str:
    path = table.table_path
    request = pb.PrepareLakeTableSnapshotRequest(
        bucket_offsets=[
            pb.PbTableOffsets(
                table_id=table.get_table_info().table_id,
                table_path=pb.PbTablePath(database_name=path.database_name, table_name=path.table_name),
                bucket_offsets=[
                    pb.PbBucketOffset(
                        partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset
                    )
                    for bucket, offset in offsets.items()
                ],
            )
        ]
    )
    (answer,) = _ask(table, apis.PREPARE_LAKE_TABLE_SNAPSHOT, request).prepare_lake_table_resp
    assert not answer.error_code, answer
    return answer.lake_table_offsets_path


def _commit(table: FlussTable, snapshot_id: int, path: str) -> None:
    entry = pb.PbLakeTableSnapshotMetadata(
        table_id=table.get_table_info().table_id,
        snapshot_id=snapshot_id,
        tiered_bucket_offsets_file_path=path,
        readable_bucket_offsets_file_path=path,
    )
    request = pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[entry])
    (answer,) = _ask(table, apis.COMMIT_LAKE_TABLE_SNAPSHOT, request).table_resp
    assert not answer.error_code, answer


def _ask(table: FlussTable, api, request):
    context = context_of(table)
    return context.runtime.run(context.cluster.request_coordinator(api, request))
