"""What tests of lake tables share: a lake in a directory, a table in it, rows as the log has them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fluss.lake.arrow_conversion import lake_batch
from fluss.lake.data_files import DataFileWriter, FileLayout
from fluss.lake.lake_tables import LakeTables
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.table import TablePath
from fluss.schema.types import DataTypes

PATH = TablePath("shop", "orders")
BUCKETS = 3


def open_lake(directory) -> LakeTables:
    return LakeTables.open({"type": "hadoop", "warehouse": str(directory / "warehouse")})


def log_descriptor(**more) -> TableDescriptor:
    schema = Schema.builder().column("id", DataTypes.bigint()).column("name", DataTypes.string()).build()
    return TableDescriptor(schema, bucket_count=BUCKETS, **more)


def key_descriptor(**more) -> TableDescriptor:
    schema = (
        Schema.builder()
        .column("id", DataTypes.bigint().not_null())
        .column("name", DataTypes.string())
        .primary_key(["id"])
        .build()
    )
    return TableDescriptor(schema, bucket_count=BUCKETS, **more)


def rows(ids, name="row") -> pa.RecordBatch:
    ids = list(ids)
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([f"{name} {each}" for each in ids])], names=["id", "name"]
    )


def written(table, batch, *, bucket_id=0, first_offset=0, partition_values=()):
    """Write rows of a bucket to data files, which are not committed."""
    layout = FileLayout.of(table)
    with DataFileWriter(layout, layout.partition(partition_values, bucket_id)) as writer:
        writer.write(
            lake_batch(batch, layout.arrow_schema, bucket_id=bucket_id, offsets=first_offset, timestamps_ms=1_000)
        )
    return writer.files


def ids_of(table) -> list[int]:
    return sorted(np.asarray(table["id"]).tolist())
