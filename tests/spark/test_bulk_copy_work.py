"""A bucket is copied in order and once, wherever an attempt before has stopped, and also beside another one.

The work of tasks without a session, against a real server; attempts that died are made by writing what they had.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from fluss import FlussTable, blocking
from fluss.client.bulk.sequenced_writer import SequencedWriter, new_writer_id
from fluss.schema.table import TableBucket
from fluss.spark.bulk.copy_work import BucketPair, CheckWork, CopyWork, TableRef, even_batches
from fluss.spark.bulk.task_results import UnfitInputError
from fluss.spark.connections import open_table
from fluss.spark.read.planner import Split

ROWS = 40_000
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


class OneBucket:
    """A table with one bucket, and an empty one of the same kind that it is copied to."""

    def __init__(self, connection: blocking.FlussConnection, servers: str, database: str) -> None:
        self._settings = {"bootstrap.servers": servers}
        self._paths = [blocking.TablePath(database, name) for name in ("source", "target")]
        for path in self._paths:
            descriptor = blocking.TableDescriptor(blocking.Schema(SCHEMA), bucket_count=1)
            connection.get_admin().create_table(path, descriptor)
        self.source, self.target = (open_table(self._settings, path) for path in self._paths)
        self.writer_id = new_writer_id(self.target)
        self.stop = 0

    def fill(self, rows: pa.Table, *, holes: int = 0) -> None:
        """Write the source, with some offsets that have no rows."""
        bucket = parse_table_bucket(self.source)
        with SequencedWriter(self.source, new_writer_id(self.source)) as writer:
            for batch in rows.to_batches(max_chunksize=1000):
                writer.append(bucket, batch)
                for _ in range(holes):
                    writer.append_nothing(bucket)
                    self.stop += 1
                self.stop += batch.num_rows
            writer.flush()

    def write_target(self, batches: list[pa.RecordBatch]) -> None:
        """Write the first batches of the copy, as an attempt that died."""
        with SequencedWriter(self.target, self.writer_id) as writer:
            for batch in batches:
                writer.append(parse_table_bucket(self.target), batch)
            writer.flush()

    @property
    def pair(self) -> BucketPair:
        return BucketPair(Split(None, None, 0, 0, self.stop), Split(None, None, 0, 0, 0))

    @property
    def _refs(self) -> tuple[TableRef, TableRef]:
        return self._ref(self.source), self._ref(self.target)

    def _ref(self, table: FlussTable) -> TableRef:
        return TableRef(self._settings, table.table_path, table.get_table_info().table_id)

    def copy(self) -> int:
        return CopyWork(*self._refs, (self.writer_id,))([self.pair]).rows  # type: ignore[call-arg]

    def is_equal(self) -> bool:
        """Compare the rows and their order, and what a check says."""
        pair = self.pair._replace(target=Split(None, None, 0, 0, self.target.to_arrow().num_rows))
        (check,) = CheckWork(*self._refs)([pair]).checks
        is_equal = bool(self.target.to_arrow().equals(self.source.to_arrow()))
        assert check.is_equal == is_equal
        return is_equal


def parse_table_bucket(table: FlussTable) -> TableBucket:
    return TableBucket(table.get_table_info().table_id, 0)


def rows(count: int, text: str = "x") -> pa.Table:
    return pa.table([pa.array(range(count), pa.int64()), pa.array([text] * count)], schema=SCHEMA)


@pytest.fixture
def bucket(connection: blocking.FlussConnection, bootstrap_servers: str, database: str) -> OneBucket:
    return OneBucket(connection, bootstrap_servers, database)


def test_a_bucket_is_copied_in_order_and_a_second_time_nothing_happens(bucket: OneBucket) -> None:
    bucket.fill(rows(ROWS))
    assert bucket.copy() == ROWS
    assert bucket.copy() == ROWS
    assert bucket.is_equal()


def test_offsets_without_rows_do_not_matter(bucket: OneBucket) -> None:
    bucket.fill(rows(ROWS), holes=2)
    bucket.write_target(list(even_batches(bucket.source.to_arrow().to_batches()))[:2])
    assert bucket.copy() == ROWS
    assert bucket.is_equal()


@pytest.mark.parametrize("stored", [0, 1, 2, 3, 4])
def test_a_copy_goes_on_behind_any_batch_also_of_large_rows(bucket: OneBucket, stored: int) -> None:
    # So large that a group of rows becomes several batches.
    table = rows(20_000, "long " * 300)
    bucket.fill(table)
    batches = list(even_batches(table.to_batches(max_chunksize=777)))
    assert len(batches) == 4
    bucket.write_target(batches[:stored])
    assert bucket.copy() == table.num_rows
    assert bucket.is_equal()


def test_two_attempts_at_the_same_time_copy_every_row_once(bucket: OneBucket) -> None:
    bucket.fill(rows(ROWS))
    with ThreadPoolExecutor(2) as threads:
        attempts = [threads.submit(bucket.copy) for _ in range(2)]
        failures = [attempt.exception() for attempt in attempts]
    # One may have to give up; Spark would try it again.
    assert None in failures
    assert bucket.copy() == ROWS
    assert bucket.is_equal()


def test_rows_of_others_in_the_target_are_noticed(bucket: OneBucket) -> None:
    bucket.fill(rows(ROWS))
    with SequencedWriter(bucket.target, new_writer_id(bucket.target)) as other:
        other.append(parse_table_bucket(bucket.target), rows(1).to_batches()[0])
        other.flush()
    bucket.write_target(list(even_batches(rows(ROWS).to_batches()))[:1])
    with pytest.raises(UnfitInputError, match="rows that the copy did not write"):
        bucket.copy()


def test_a_check_finds_what_is_different(bucket: OneBucket) -> None:
    bucket.fill(rows(ROWS))
    bucket.write_target(rows(ROWS - 1).to_batches())
    assert not bucket.is_equal()
