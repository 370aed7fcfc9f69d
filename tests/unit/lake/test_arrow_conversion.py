"""Rows of every type in the types of the lake, there and back through a file."""

import datetime as dt

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fluss.lake.arrow_conversion import arrow_schema, lake_array, lake_batch
from fluss.lake.commits import commit_files
from fluss.lake.data_files import DataFileWriter, FileLayout
from fluss.lake.scans import LakeScan
from fluss.lake.schema_mapping import lake_schema
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from tests.unit.lake.lakes import PATH, open_lake

COLUMNS = {
    "boolean": ([True, None], pa.bool_()),
    "tinyint": ([-128, 127], pa.int8()),
    "smallint": ([-32768, None], pa.int16()),
    "int": ([1, 2], pa.int32()),
    "bigint": ([1 << 62, -1], pa.int64()),
    "float": ([1.5, None], pa.float32()),
    "double": ([1e300, -0.0], pa.float64()),
    "string": (["ä", ""], pa.string()),
    "binary": ([b"abc", b"\0\0\0"], pa.binary(3)),
    "bytes": ([b"", None], pa.binary()),
    "decimal": ([1, None], pa.decimal128(38, 10)),
    "date": ([dt.date(1500, 1, 1), None], pa.date32()),
    "time": ([dt.time(1, 2, 3), None], pa.time32("s")),
    "time3": ([dt.time(1, 2, 3, 4000), None], pa.time32("ms")),
    "timestamp0": ([dt.datetime(2026, 1, 1), None], pa.timestamp("s")),
    "timestamp6": ([dt.datetime(1901, 1, 1, 1, 1, 1, 7), None], pa.timestamp("us")),
    "ltz3": ([dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("ms", "UTC")),
    "array": ([[1, None], None], pa.list_(pa.int8())),
    "map": ([[("a", [1])], []], pa.map_(pa.string(), pa.list_(pa.int16()))),
    "row": ([{"x": 1, "y": [dt.time(1)]}, None], pa.struct([("x", pa.int8()), ("y", pa.list_(pa.time32("s")))])),
}


def test_rows_of_every_type_come_back(tmp_path):
    rows = pa.RecordBatch.from_arrays(
        [pa.array(*each) for each in COLUMNS.values()],
        schema=pa.schema({key: each[1] for key, each in COLUMNS.items()}),
    )
    descriptor = TableDescriptor(Schema(rows.schema), bucket_count=1)
    table = open_lake(tmp_path).create(PATH, descriptor)
    layout = FileLayout.of(table)
    with DataFileWriter(layout, layout.partition((), 0)) as writer:
        writer.write(lake_batch(rows, layout.arrow_schema, bucket_id=0, offsets=7, timestamps_ms=3))
        # The second half of a batch is a slice, also inside of what is nested.
        writer.write(lake_batch(rows.slice(1), layout.arrow_schema, bucket_id=0, offsets=9, timestamps_ms=3))
    commit_files(table, added=writer.files)
    expected = [*rows.to_pylist(), rows.to_pylist()[1]]
    for judge in (LakeScan(table).to_table(), table.scan().to_arrow()):
        found = judge.to_pylist()
        assert [row.pop("__offset") for row in found] == [7, 8, 9]
        assert {row.pop("__timestamp") for row in found} == {dt.datetime(1970, 1, 1, 0, 0, 0, 3000, tzinfo=dt.UTC)}
        assert {row.pop("__bucket") for row in found} == {0}
        assert found == expected


def test_columns_that_were_added_later_are_null_in_older_rows():
    schema = arrow_schema(lake_schema(Schema(pa.schema({"a": pa.int32(), "b": pa.list_(pa.string())}))))
    batch = lake_batch(pa.record_batch({"a": [1]}), schema, bucket_id=2, offsets=0, timestamps_ms=0)
    assert batch.select(["a", "b", "__bucket"]).to_pylist() == [{"a": 1, "b": None, "__bucket": 2}]


@given(st.lists(st.integers(-(10**15), 10**15) | st.none()))
def test_nanoseconds_are_cut_downwards(values):
    array = pa.array(values, pa.int64()).cast(pa.timestamp("ns"))
    micros = lake_array(array, pa.timestamp("us")).cast(pa.int64()).to_pylist()
    assert micros == [None if value is None else value // 1000 for value in values]
