"""What scanners return: records with their rows, and record batches with their place in the log.

As Arrow, a changelog has columns that say what each row means in front of the columns of the table:

| column            | type               | meaning                                                              |
|-------------------|--------------------|----------------------------------------------------------------------|
| _change_type      | string             | insert, update_before, update_after or delete                        |
| _log_offset       | int64              | the position in the log of the bucket; -1 for a row of a snapshot    |
| _commit_timestamp | timestamp(ms, UTC) | when the server appended the change; null for a row of a snapshot    |

Names and values are those of the virtual ``$changelog`` tables of Flink SQL. All rows of a log table are inserts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import chain
from operator import index
from typing import Any, Final, overload

import numpy as np
import pyarrow as pa

from fluss.amounts import format_count
from fluss.buffers import Int64Array, UInt8Array
from fluss.client.kernel.runtime import AwaitsItself
from fluss.errors import FlussError
from fluss.row.arrow_arrays import number_array, string_array
from fluss.row.python_values import python_column, python_rows
from fluss.schema.offsets import ChangeType
from fluss.schema.table import TableBucket
from fluss.schema.types import DataType
from fluss.schema.value_objects import ROWS_SHOWN_MAX, html_table, shown

_CHANGE_TYPES: Final = tuple(ChangeType)

_CHANGELOG_FIELDS: Final = (
    pa.field("_change_type", pa.string(), nullable=False),
    pa.field("_log_offset", pa.int64(), nullable=False),
    pa.field("_commit_timestamp", pa.timestamp("ms", "UTC")),
)
_CHANGE_TYPE_NAMES: Final = {
    ChangeType.AppendOnly: "insert",
    ChangeType.Insert: "insert",
    ChangeType.UpdateBefore: "update_before",
    ChangeType.UpdateAfter: "update_after",
    ChangeType.Delete: "delete",
}
# The offset and the timestamp of rows that were not read from the log.
NOT_IN_LOG: Final = -1
# The timestamp of a batch whose rows have none, or several.
NO_COMMIT_TIMESTAMP: Final = -1


class RecordRun:
    """Records of one bucket in the order of their offsets, as columns until the rows are asked for.

    They are consecutive, beginning at ``base_offset``, unless a filter has left some out: then ``offsets`` has the
    offset of each. Rows of a snapshot are no records of the log: their offset and timestamp are ``NOT_IN_LOG``, and
    they are inserts.
    """

    __slots__ = (
        "_rows",
        "base_offset",
        "batch",
        "bucket",
        "change_types",
        "count",
        "data_types",
        "offsets",
        "timestamp_ms",
    )

    def __init__(
        self,
        bucket: TableBucket,
        base_offset: int,
        timestamp_ms: int,
        batch: pa.RecordBatch,
        data_types: tuple[DataType, ...],
        change_types: UInt8Array | None,
        offsets: Int64Array | None = None,
    ) -> None:
        self.bucket = bucket
        self.base_offset = base_offset
        self.offsets = offsets
        self.timestamp_ms = timestamp_ms
        self.count: int = batch.num_rows
        self.data_types = data_types
        self.change_types = change_types
        # None once the rows have been converted.
        self.batch: pa.RecordBatch | None = batch
        self._rows: list[dict[str, Any]] | None = None

    @classmethod
    def of_snapshot(cls, bucket: TableBucket, batch: pa.RecordBatch, data_types: tuple[DataType, ...]) -> RecordRun:
        """Make a run of rows that a bucket had at one moment."""
        change_types = np.full(batch.num_rows, ChangeType.Insert, np.uint8)
        return cls(bucket, NOT_IN_LOG, NOT_IN_LOG, batch, data_types, change_types)

    @property
    def is_snapshot(self) -> bool:
        return self.base_offset == NOT_IN_LOG

    def with_changes(self) -> pa.RecordBatch:
        """Return the rows behind the leading columns of a changelog."""
        assert self.batch is not None, "the rows have not been converted to dicts"
        return changelog_batch(self.batch, self.base_offset, self.timestamp_ms, self.change_types, self.offsets)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows as dicts, converted at the first call, column by column; later always the same ones."""
        if self._rows is None:
            assert self.batch is not None
            columns = map(python_column, self.batch.columns, self.data_types)
            self._rows = python_rows(self.batch.schema.names, columns)
            # The columns may be views of much more than these rows.
            self.batch = None
        return self._rows


class ScanRecord:
    """One record: a row, what the record says about it, and where it stands in the log."""

    __slots__ = ("_index", "_run")

    _run: RecordRun
    _index: int

    def __init__(self, *_args: object, **_fields: object) -> None:
        raise TypeError("ScanRecord objects cannot be constructed; a scanner returns them")

    @classmethod
    def _create_all(cls, run: RecordRun) -> list[ScanRecord]:
        """Return the records of a run. They are made in one call: a call for each would cost as much again."""
        new = object.__new__
        records = []
        for number in range(run.count):
            record = new(cls)
            record._run = run
            record._index = number
            records.append(record)
        return records

    @property
    def bucket(self) -> TableBucket:
        """Where the record was read from."""
        return self._run.bucket

    @property
    def offset(self) -> int:
        """The position of the record in the log of its bucket; -1 for a row of a snapshot."""
        run = self._run
        if run.offsets is not None:
            return int(run.offsets[self._index])
        return NOT_IN_LOG if run.base_offset == NOT_IN_LOG else run.base_offset + self._index

    @property
    def timestamp(self) -> int:
        """When the server appended the record, in epoch milliseconds; -1 for a row of a snapshot."""
        return self._run.timestamp_ms

    @property
    def change_type(self) -> ChangeType:
        """What the record says about its row; ``+A`` in log tables, ``+I`` for a row of a snapshot."""
        change_types = self._run.change_types
        return ChangeType.AppendOnly if change_types is None else _CHANGE_TYPES[change_types[self._index]]

    @property
    def row(self) -> dict[str, Any]:
        """The values by column name; the same dict every time."""
        return (self._run._rows or self._run.rows())[self._index]

    def __repr__(self) -> str:
        return (
            f"ScanRecord(offset={self.offset}, timestamp={self.timestamp}, change_type={self.change_type}, "
            f"row={shown(self.row)})"
        )

    def _repr_html_(self) -> str:
        return _records_html([self], "ScanRecord")


class ScanRecords(AwaitsItself):
    """The records of one poll: a sequence of records, and a mapping from buckets to their records.

    Records of a bucket stand together, in the order of their offsets. Record objects are made at the first
    look at one, rows at the first look at a row.
    """

    __slots__ = ("_by_bucket", "_count", "_flat", "_runs")

    _runs: dict[TableBucket, list[RecordRun]]
    _count: int
    _flat: list[ScanRecord] | None
    _by_bucket: dict[TableBucket, list[ScanRecord]]

    def __init__(self, *_args: object, **_fields: object) -> None:
        raise TypeError("ScanRecords objects cannot be constructed; LogScanner.poll returns them")

    @classmethod
    def _create(cls, runs: Iterable[RecordRun] = ()) -> ScanRecords:
        records = object.__new__(cls)
        records._runs = {}
        records._count = 0
        for run in runs:
            records._runs.setdefault(run.bucket, []).append(run)
            records._count += run.count
        records._flat = None
        records._by_bucket = {}
        return records

    def _records(self) -> list[ScanRecord]:
        if self._flat is None:
            self._by_bucket = {
                bucket: list(chain.from_iterable(map(ScanRecord._create_all, runs)))
                for bucket, runs in self._runs.items()
            }
            self._flat = list(chain.from_iterable(self._by_bucket.values()))
        return self._flat

    def count(self) -> int:
        """Return the number of records of all buckets."""
        return self._count

    def is_empty(self) -> bool:
        """Whether there are no records."""
        return self._count == 0

    def buckets(self) -> list[TableBucket]:
        """The buckets that have records."""
        return list(self._runs)

    def keys(self) -> list[TableBucket]:
        """The buckets that have records: the same as ``buckets``."""
        return self.buckets()

    def records(self, bucket: TableBucket) -> list[ScanRecord]:
        """The records of one bucket, none if it has none."""
        if not isinstance(bucket, TableBucket):
            raise TypeError(f"bucket must be a TableBucket, got {type(bucket).__name__}")
        self._records()
        return list(self._by_bucket.get(bucket, ()))

    def values(self) -> Iterator[list[ScanRecord]]:
        """The records of each bucket, one bucket after the other."""
        return (self.records(bucket) for bucket in self._runs)

    def items(self) -> Iterator[tuple[TableBucket, list[ScanRecord]]]:
        """Pairs of a bucket and its records."""
        return ((bucket, self.records(bucket)) for bucket in self._runs)

    def records_by_buckets(self) -> dict[TableBucket, list[ScanRecord]]:
        """The records of each bucket."""
        return dict(self.items())

    @overload
    def __getitem__(self, key: int) -> ScanRecord: ...
    @overload
    def __getitem__(self, key: slice | TableBucket) -> list[ScanRecord]: ...
    def __getitem__(self, key: int | slice | TableBucket) -> ScanRecord | list[ScanRecord]:
        if isinstance(key, TableBucket):
            return self.records(key)
        if isinstance(key, slice):
            return self._records()[key]
        try:
            number = index(key)
        except TypeError:
            raise TypeError(f"index must be int, slice, or TableBucket, got {type(key).__name__}") from None
        number += self._count if number < 0 else 0
        if not 0 <= number < self._count:
            raise IndexError(f"index {number} out of range for ScanRecords of size {self._count}")
        return self._records()[number]

    def __contains__(self, bucket: object) -> bool:
        if not isinstance(bucket, TableBucket):
            raise TypeError(f"ScanRecords are searched for a TableBucket, got {type(bucket).__name__}")
        return bucket in self._runs

    def __iter__(self) -> Iterator[ScanRecord]:
        return iter(self._records())

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"ScanRecords(records={self._count}, buckets={len(self._runs)})"

    def _repr_html_(self) -> str:
        caption = f"{format_count(self._count, 'record')} of {format_count(len(self._runs), 'bucket')}"
        return _records_html(self._records()[:ROWS_SHOWN_MAX], caption)


class RecordBatch:
    """A batch of rows as Arrow, and where it stands in the log."""

    __slots__ = ("_base_offset", "_batch", "_bucket", "_change_types", "_commit_timestamp", "_offsets")

    _batch: pa.RecordBatch
    _bucket: TableBucket
    _base_offset: int
    _change_types: UInt8Array | None
    _offsets: Int64Array | None
    _commit_timestamp: int

    def __init__(self, *_args: object, **_fields: object) -> None:
        raise TypeError("RecordBatch objects cannot be constructed; a scanner returns them")

    @classmethod
    def _create(
        cls,
        batch: pa.RecordBatch,
        bucket: TableBucket,
        base_offset: int,
        change_types: UInt8Array | None = None,
        offsets: Int64Array | None = None,
        commit_timestamp: int = NO_COMMIT_TIMESTAMP,
    ) -> RecordBatch:
        made = object.__new__(cls)
        made._batch = batch
        made._bucket = bucket
        made._base_offset = base_offset
        made._change_types = change_types
        made._offsets = offsets
        made._commit_timestamp = commit_timestamp
        return made

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows."""
        return self._batch

    @property
    def bucket(self) -> TableBucket:
        """Where the rows were read from."""
        return self._bucket

    @property
    def base_offset(self) -> int:
        """The offset of the first row; -1 for rows of a snapshot."""
        return self._base_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last row; one less than ``base_offset`` when there is none, -1 for rows of a snapshot."""
        if self._offsets is not None and len(self._offsets):
            return int(self._offsets[-1])
        return NOT_IN_LOG if self._base_offset == NOT_IN_LOG else self._base_offset + self.num_records - 1

    @property
    def commit_timestamp(self) -> int:
        """When the server appended the rows, in epoch milliseconds; -1 (``NO_COMMIT_TIMESTAMP``) for rows of a snapshot
        and of a limited scan, which may be of several batches."""
        return self._commit_timestamp

    @property
    def offsets(self) -> pa.Array:
        """The offset of each row; -1 for rows of a snapshot. They are consecutive if the scan has no filter."""
        return number_array(row_offsets(self._base_offset, self.num_records, self._offsets))

    @property
    def change_types(self) -> pa.Array:
        """What each row says, by name: insert, update_before, update_after or delete; all insert in a log table."""
        return change_type_names(self._change_types, self.num_records)

    @property
    def num_records(self) -> int:
        """The number of rows."""
        count: int = self._batch.num_rows
        return count

    def __len__(self) -> int:
        return self.num_records

    def __repr__(self) -> str:
        return (
            f"RecordBatch(bucket={self._bucket}, base_offset={self._base_offset}, last_offset={self.last_offset}, "
            f"rows={self.num_records})"
        )

    def _repr_html_(self) -> str:
        head = self._batch.slice(0, ROWS_SHOWN_MAX)
        offsets = self.offsets.slice(0, ROWS_SHOWN_MAX).to_pylist()
        changes = self.change_types.slice(0, ROWS_SHOWN_MAX).to_pylist()
        rows = zip(offsets, changes, *(column.to_pylist() for column in head.columns), strict=True)
        caption = f"{format_count(self.num_records, 'row')} of {self._bucket}"
        return html_table(("offset", "change", *head.schema.names), rows, caption)


# The name in the reference of the other language bindings.
ScanBatch = RecordBatch


class RecordBatches(list[RecordBatch], AwaitsItself):
    """The batches of one poll: a list that may also be awaited."""

    __slots__ = ()

    # ``asyncio.gather`` keeps what it awaits in a dict.
    __hash__ = object.__hash__  # type: ignore[assignment]  # Lists have no hash, because they change; identity does not.


def _records_html(records: list[ScanRecord], caption: str) -> str:
    """Return a table of records, for notebooks."""
    names = list(dict.fromkeys(name for record in records for name in record.row))
    rows = [
        (record.bucket.bucket_id, record.offset, str(record.change_type), *map(record.row.get, names))
        for record in records
    ]
    return html_table(("bucket", "offset", "change", *names), rows, caption)


def changelog_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of changes of such rows. Columns that have a name of the leading ones are a FlussError."""
    for field in _CHANGELOG_FIELDS:
        if field.name in rows.names:
            raise FlussError(
                f"A changelog has a column '{field.name}' of its own, and so has the table; choose other columns of it"
            )
    return pa.schema([*_CHANGELOG_FIELDS, *rows])


def change_type_names(change_types: UInt8Array | None, row_count: int) -> pa.Array:
    """Return the names of change types; without any, all rows are inserts."""
    if change_types is None:
        change_types = np.zeros(row_count, np.uint8)
    return string_array([*_CHANGE_TYPE_NAMES.values()]).take(number_array(change_types))


def row_offsets(base_offset: int, count: int, offsets: Int64Array | None) -> Int64Array:
    """Return the offset of each row: ``offsets``, or consecutive ones, or ``NOT_IN_LOG`` for rows of a snapshot."""
    if offsets is not None:
        return offsets
    if base_offset == NOT_IN_LOG:
        return np.full(count, NOT_IN_LOG, np.int64)
    return np.arange(base_offset, base_offset + count, dtype=np.int64)


def changelog_batch(
    rows: pa.RecordBatch,
    base_offset: int,
    timestamp_ms: int,
    change_types: UInt8Array | None,
    offsets: Int64Array | None = None,
) -> pa.RecordBatch:
    """Put the leading columns before rows of a log, or before rows of a snapshot (``NOT_IN_LOG``).

    The rows of a log are consecutive unless ``offsets`` says otherwise.
    """
    count = rows.num_rows
    if base_offset == NOT_IN_LOG:
        timestamps = pa.nulls(count, _CHANGELOG_FIELDS[2].type)
    else:
        timestamps = number_array(np.full(count, timestamp_ms, np.int64)).view(_CHANGELOG_FIELDS[2].type)
    numbers = number_array(row_offsets(base_offset, count, offsets))
    leading = [change_type_names(change_types, count), numbers, timestamps]
    return pa.RecordBatch.from_arrays([*leading, *rows.columns], schema=pa.schema([*_CHANGELOG_FIELDS, *rows.schema]))


def require_pandas() -> None:
    """Say what to install for data frames, before anything is read."""
    if find_spec("pandas") is None:
        raise FlussError("A data frame needs pandas: pip install pandas. Or read with to_arrow, which needs nothing")
