"""From the rows of a DataFrame to the rows of a table: which columns are written, and what each row means.

Everything that can be wrong with the columns is found out on the driver, before a task begins. Tasks convert batch by
batch; a value that does not fit ends them.

Rows of a DataFrame with a change type (``sink.change-type-column``) are applied to a primary-key table one by one:

    insert, +I, update_after, +U    the row is written
    delete, -D                      the row of its key is deleted
    update_before, -U               nothing: the row after it says what the key has become
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructField, StructType

from fluss import FlussTable
from fluss.errors import FlussError
from fluss.options import suggestion
from fluss.row.arrow_arrays import bool_array, string_array
from fluss.schema.schema import Schema, schema_from_columns, shown_names
from fluss.schema.table import TableInfo, matching_name
from fluss.spark.connections import await_table
from fluss.spark.conversion import FromSpark
from fluss.spark.query_options import WriteOptions
from fluss.spark.text_limits import text_limits
from fluss.spark.write.sink_rows import SinkRows
from fluss.spark.write.task_failure import refusing_rows

_WRITE, _DELETE, _IGNORE = range(3)
_CHANGES: Final = {
    "insert": _WRITE,
    "update_after": _WRITE,
    "update_before": _IGNORE,
    "delete": _DELETE,
    "+i": _WRITE,
    "+u": _WRITE,
    "-u": _IGNORE,
    "-d": _DELETE,
}
# Rows are not written before so many bytes of them have been looked at: a small write with a bad row writes nothing.
_LOOK_AHEAD_BYTES: Final = 8 * 1024 * 1024
# Batches are joined until they have so many bytes, times the buckets among which they are divided afterwards.
_BATCH_BYTES_MIN: Final = 1024 * 1024
_BUCKETS_JOINED_FOR_MAX: Final = 8


@dataclass(frozen=True)
class SinkPlan:
    """How a DataFrame is written to a table. Made on the driver, sent to tasks."""

    options: WriteOptions
    table_id: int
    # The columns of the table that are written, and whether others keep their values.
    columns: tuple[str, ...]
    is_partial: bool
    # Columns of the DataFrame that the table has in other upper and lower case, and how it calls them.
    renames: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: WriteOptions, struct: StructType) -> SinkPlan:
        """Check that rows with these columns can be written; a FlussError says what is wrong with them."""
        info = await_table(options.connection, options.table.path).get_table_info()
        options, renames = _resolved(options, struct, info)
        struct = StructType([StructField(renames.get(f.name, f.name), f.dataType, f.nullable) for f in struct])
        _check_change_types(options, struct, info)
        columns, is_partial = _written_columns(options, struct, info)
        plan = cls(options, info.table_id, columns, is_partial, renames)
        plan._conversion(info).check(
            StructType([field for field in struct if field.name in plan._given(info, struct.names)])
        )
        return plan

    @property
    def target_columns(self) -> tuple[str, ...] | None:
        """The columns of a partial update, None for whole rows."""
        return self.columns if self.is_partial else None

    def open_table(self) -> FlussTable:
        """Return the table, if it is still the same one."""
        table = await_table(self.options.connection, self.options.table.path)
        if table.get_table_info().table_id != self.table_id:
            raise FlussError(f"Table {table.table_path} was dropped and created again while it was written to")
        return table

    def rows(self, table: FlussTable, batches: Iterable[pa.RecordBatch]) -> Iterator[SinkRows]:
        """Convert batches of Spark. Rows come in their order, in batches of a good size for the table."""
        info = table.get_table_info()
        converted = _Conversion(self, info).rows(batches)
        is_divided = info.has_primary_key() or bool(info.bucket_keys)
        buckets = min(info.num_buckets, _BUCKETS_JOINED_FOR_MAX) if is_divided else 1
        return _looked_ahead(_joined(converted, buckets * _BATCH_BYTES_MIN))

    def _given(self, info: TableInfo, names: Sequence[str]) -> list[str]:
        """Return the columns of the DataFrame that are converted; those of the table that are not written are not."""
        left_out = {self.options.change_type_column, *info.schema.column_names} - {*self.columns}
        if self.options.target_columns is None:
            left_out = {self.options.change_type_column}
        return [name for name in names if name not in left_out]

    def _conversion(self, info: TableInfo) -> FromSpark:
        return FromSpark(
            self._schema(info),
            self.columns,
            text_limits(info),
            is_case_sensitive=self.options.is_case_sensitive,
        )

    def _schema(self, info: TableInfo) -> Schema:
        """Return the schema of what is converted: of rows that may be deletes only the key must be there."""
        schema = info.schema
        if self.options.change_type_column is None:
            return schema
        keys = schema.get_primary_keys()
        columns = [
            column if column.name in keys else replace(column, data_type=column.data_type.with_nullable(True))
            for column in schema.columns
        ]
        return schema_from_columns(columns, keys)


def _resolved(options: WriteOptions, struct: StructType, info: TableInfo) -> tuple[WriteOptions, dict[str, str]]:
    """Return options with the names that columns have, and how those of the DataFrame are called in the table."""
    find = partial(matching_name, is_case_sensitive=options.is_case_sensitive)
    change_types, targets = options.change_type_column, options.target_columns
    if change_types is not None:
        change_types = find(change_types, struct.names) or change_types
    if targets is not None:
        targets = tuple(find(name, info.schema.column_names) or name for name in targets)
    renames = {}
    for name in struct.names:
        found = None if name == change_types else find(name, info.schema.column_names)
        if found is not None and found != name:
            renames[name] = found
    return replace(options, change_type_column=change_types, target_columns=targets), renames


def _check_change_types(options: WriteOptions, struct: StructType, info: TableInfo) -> None:
    name = options.change_type_column
    if name is None:
        return
    if not info.has_primary_key():
        raise FlussError(
            f"{info.table_path} is a log table, whose rows are never updated or deleted; leave out "
            "'sink.change-type-column'"
        )
    if info.schema.get_auto_increment_columns():
        raise FlussError(
            f"{info.table_path} has an auto increment column, and its rows cannot be deleted; leave out "
            "'sink.change-type-column'"
        )
    if name not in struct.names:
        raise FlussError(
            f"'sink.change-type-column' is '{name}', but the DataFrame has no such column"
            f"{suggestion(name, struct.names) or f'; columns are {shown_names(struct.names)}'}"
        )
    if not isinstance(struct[name].dataType, StringType):
        raise FlussError(
            f"The column '{name}' of 'sink.change-type-column' must hold texts such as insert or -D, and holds "
            f"{struct[name].dataType.simpleString()}"
        )


def _written_columns(options: WriteOptions, struct: StructType, info: TableInfo) -> tuple[tuple[str, ...], bool]:
    """Return the columns of the table that are written, in its order, and whether that is an update of these only."""
    schema = info.schema
    generated = schema.get_auto_increment_columns()
    for name in generated:
        if name in struct.names:
            raise FlussError(
                f"'{name}' of {info.table_path} is an auto increment column, whose values the server makes up; drop it "
                "from the DataFrame"
            )
    if options.target_columns is None:
        return tuple(name for name in schema.column_names if name not in generated), bool(generated)
    if not info.has_primary_key():
        raise FlussError(
            f"{info.table_path} is a log table, whose rows are never updated; leave out 'sink.target-columns'"
        )
    for name in options.target_columns:
        if name not in schema.column_names:
            close = suggestion(name, schema.column_names) or f"; columns are {shown_names(schema.column_names)}"
            raise FlussError(f"'sink.target-columns' names '{name}', which {info.table_path} does not have{close}")
    targets = {*options.target_columns, *schema.get_primary_keys()}
    for name in targets:
        if name not in struct.names:
            raise FlussError(
                f"'{name}' is to be written to {info.table_path}, but the DataFrame has no such column; columns are "
                f"{shown_names(struct.names)}"
            )
    return tuple(name for name in schema.column_names if name in targets), True


class _Conversion:
    """Converts batches of one task."""

    def __init__(self, plan: SinkPlan, info: TableInfo) -> None:
        self._plan = plan
        self._info = info
        self._change_types = plan.options.change_type_column
        self._convert = plan._conversion(info)
        ignored = {_IGNORE, _DELETE} if plan.options.ignore_delete else {_IGNORE}
        self._is_ignored = np.array([change in ignored for change in _CHANGES.values()])
        self._is_delete = np.array([change == _DELETE for change in _CHANGES.values()])
        self._words = string_array(list(_CHANGES))

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[SinkRows]:
        for batch in batches:
            with refusing_rows():
                converted = self._converted(batch)
            if converted is not None:
                yield converted

    def _converted(self, batch: pa.RecordBatch) -> SinkRows | None:
        """Return the rows of a batch in the form of the table, None if there are none."""
        renames = self._plan.renames
        if renames:
            batch = batch.rename_columns([renames.get(name, name) for name in batch.schema.names])
        is_delete = None
        if self._change_types is not None:
            batch, is_delete = self._changes(batch, batch.column(self._change_types))
        if not batch.num_rows:
            return None
        given = self._plan._given(self._info, batch.schema.names)
        return SinkRows(self._convert(batch.select(given)), is_delete)

    def _changes(
        self, batch: pa.RecordBatch, change_types: pa.Array
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_] | None]:
        """Return the rows that count, and which of them are deletes."""
        codes = pc.index_in(pc.utf8_lower(change_types), value_set=self._words)
        if codes.null_count:
            unknown = change_types.filter(pc.is_null(codes))[0].as_py()
            raise FlussError(
                f"The change type {unknown!r} in column '{self._change_types}' is none: use "
                f"{shown_names(sorted(_CHANGES))}"
            )
        # The array is new and has no nulls. Its own way to numpy would import pandas.
        numbers = np.frombuffer(codes.buffers()[1], np.int32, len(codes))
        is_ignored = self._is_ignored[numbers]
        if is_ignored.any():
            batch, numbers = batch.filter(bool_array(~is_ignored)), numbers[~is_ignored]
        is_delete = self._is_delete[numbers]
        return batch, is_delete if is_delete.any() else None


def _joined(batches: Iterable[SinkRows], bytes_min: int) -> Iterator[SinkRows]:
    """Put batches together until they have so many bytes."""
    waiting: list[SinkRows] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.rows.nbytes
        if waiting_bytes >= bytes_min:
            yield _put_together(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _put_together(waiting)


def _put_together(batches: Sequence[SinkRows]) -> SinkRows:
    if len(batches) == 1:
        return batches[0]
    is_delete = None
    if any(batch.is_delete is not None for batch in batches):
        marks = [
            np.zeros(each.rows.num_rows, np.bool_) if each.is_delete is None else each.is_delete for each in batches
        ]
        is_delete = np.concatenate(marks)
    return SinkRows(pa.concat_batches([batch.rows for batch in batches]), is_delete)


def _looked_ahead(batches: Iterator[SinkRows]) -> Iterator[SinkRows]:
    """Convert the first batches before the first of them is handed on."""
    first: list[SinkRows] = []
    for batch in batches:
        first.append(batch)
        if sum(each.rows.nbytes for each in first) >= _LOOK_AHEAD_BYTES:
            break
    return chain(first, batches)
