"""Rows of users on their way into a batch: checked and packed one by one, turned into Arrow columns all at once.

A row is converted completely or not at all: whoever gets packed bytes has a row that will fit its batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import UInt8Array
from fluss.client.write.result import WriteResultHandle
from fluss.client.write.row_compiler import NULLS_INTEGER_COLUMNS_MAX, AppendCode, RowWays
from fluss.client.write.row_slots import Slot
from fluss.errors import FlussError
from fluss.row.byte_ranges import gather_ranges, offsets_of, unaligned
from fluss.row.partition import row_partition_name
from fluss.row.python_values import to_internal
from fluss.schema.schema import Schema, shown_names

_ARROW_OFFSET_MAX: Final = 2**31 - 1


class RowLayout:
    """Packs the rows of one schema, and unpacks them as Arrow. Has no state: it may be shared by threads.

    Most rows are packed by functions that ``append_function`` makes. ``pack_any`` takes all rows, and gives the same
    bytes.
    """

    def __init__(
        self,
        schema: Schema,
        partition_keys: Sequence[str] = (),
        required_keys: Sequence[str] = (),
        *,
        has_rows_by_key: bool = False,
    ) -> None:
        """The ``required_keys`` must have a value whatever their type says."""
        if not schema.columns:
            raise FlussError("A table without columns has no rows")
        self.schema = schema
        self._partition_indexes = [schema.index_of(name) for name in partition_keys]
        self._columns = schema.columns
        self._column_names = schema.column_names
        self._required_keys = frozenset(required_keys)
        self._slots = [
            Slot.of(column.data_type.with_nullable(column.data_type.nullable and column.name not in required_keys))
            for column in self._columns
        ]
        self._null_bytes = _null_bytes(len(self._slots))
        self._layout = struct.Struct(f"<{_null_code(len(self._slots))}{''.join(slot.code for slot in self._slots)}")
        self._dtype = np.dtype(
            [("nulls", np.uint8, (self._null_bytes,))]
            + [(f"{index}", slot.dtype) for index, slot in enumerate(self._slots)]
        )
        assert self._dtype.itemsize == self._layout.size
        self._append_code = AppendCode(
            self._column_names,
            self._slots,
            self._layout,
            self._partition_indexes,
            has_rows_by_key=has_rows_by_key,
        )

    @classmethod
    def of(
        cls,
        schema: Schema,
        partition_keys: Sequence[str] = (),
        required_keys: Sequence[str] = (),
        *,
        has_rows_by_key: bool = False,
    ) -> RowLayout:
        """Return the layout of a schema; the same one each time, because making it takes a millisecond."""
        return _layout_of(schema, tuple(partition_keys), tuple(required_keys), has_rows_by_key=has_rows_by_key)

    # Packing

    def append_function(self, ways: RowWays) -> Callable[[Any], WriteResultHandle]:
        """Return the function that packs ordinary rows and adds them to blocks; the others it hands on."""
        return self._append_code.function(ways)

    def pack_any(self, row: Any) -> tuple[bytes, str | None]:
        """Pack a row of any accepted form; return the bytes and the name of its partition, if there are partitions.

        What cannot be converted is a FlussError that names the column.
        """
        values = [
            to_internal(value, column.data_type, column.name)
            for value, column in zip(self._values(row), self._columns, strict=True)
        ]
        for value, name in zip(values, self._column_names, strict=True):
            if value is None and name in self._required_keys:
                raise FlussError(f"Field '{name}': null is not allowed in a bucket key")
        return self._packed(values), self._partition_name(values)

    def partition_name(self, key: Any) -> str:
        """Return the partition of a row from the value of its partition column, or a tuple of them if it has more."""
        values = key if len(self._partition_indexes) > 1 else (key,)
        columns = [self._columns[index] for index in self._partition_indexes]
        return row_partition_name(
            [column.data_type for column in columns],
            [to_internal(value, column.data_type, column.name) for value, column in zip(values, columns, strict=True)],
        )

    def _packed(self, values: Sequence[Any]) -> bytes:
        nulls = 0
        packed: list[Any] = []
        bodies: list[bytes] = []
        for index, (value, slot) in enumerate(zip(values, self._slots, strict=True)):
            if value is None:
                nulls |= 1 << index
                packed.append(slot.null)
            elif slot.has_body:
                body = slot.from_internal(value)
                packed.append(len(body))
                bodies.append(body)
            else:
                packed.append(slot.from_internal(value))
        is_integer = len(self._slots) <= NULLS_INTEGER_COLUMNS_MAX
        null_bits = nulls if is_integer else nulls.to_bytes(self._null_bytes, "little")
        try:
            head = self._layout.pack(null_bits, *packed)
        except struct.error:
            # Everything else was checked when it was converted.
            raise FlussError("A row has a value of more than 4 gigabytes, which no batch can hold") from None
        return b"".join((head, *bodies))

    def _partition_name(self, values: Sequence[Any]) -> str | None:
        if not self._partition_indexes:
            return None
        types = [self._columns[index].data_type for index in self._partition_indexes]
        return row_partition_name(types, [values[index] for index in self._partition_indexes])

    def _values(self, row: Any) -> Sequence[Any]:
        if isinstance(row, dict):
            return self._values_by_name(row)
        if not isinstance(row, list | tuple):
            # A GenericRow carries its values by position; the attribute of that name of other classes is no list.
            row_class, row = type(row).__name__, getattr(row, "values", None)
            if not isinstance(row, list | tuple):
                raise FlussError(f"Row must be a dict, list, or tuple; got {row_class}")
        if len(row) != len(self._columns):
            raise FlussError(
                f"Expected {len(self._columns)} elements, got {len(row)}; the columns are "
                f"{shown_names(self._column_names)}"
            )
        return row

    def _values_by_name(self, row: dict[Any, Any]) -> list[Any]:
        for name in row:
            if not isinstance(name, str):
                raise FlussError(f"Dict keys must be strings; got {type(name).__name__}")
            if name not in self._column_names:
                raise FlussError(f"Unknown field '{name}'. Expected: {shown_names(self._column_names)}")
        for column in self._columns:
            if column.name not in row and not column.data_type.nullable:
                raise FlussError(f"Missing value for non-nullable field '{column.name}'")
        return [row.get(name) for name in self._column_names]

    # Unpacking

    def to_arrow(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """Turn packed rows into a record batch with the Arrow schema of the table."""
        data: UInt8Array = np.frombuffer(b"".join(rows), np.uint8)
        bodies_start: npt.NDArray[np.int64] | None = None
        if any(slot.has_body for slot in self._slots):
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            starts = offsets_of(lengths)[:-1]
            heads = unaligned(data, f"V{self._layout.size}")[starts].view(self._dtype)
            bodies_start = starts + self._layout.size
        else:
            heads = data.view(self._dtype)
        columns: list[pa.Array] = []
        for index, slot in enumerate(self._slots):
            nulls = _null_mask(heads["nulls"], index)
            validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
            slots = heads[f"{index}"]
            if slot.has_body:
                assert bodies_start is not None
                offsets = _arrow_offsets(slots, self._column_names[index])
                bodies = gather_ranges(data, bodies_start, np.diff(offsets))
                columns.append(slot.body_column(bodies, offsets, validity))
                bodies_start = bodies_start + slots
            else:
                columns.append(slot.fixed_column(slots, validity))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.to_arrow())


_layout_of = lru_cache(maxsize=256)(RowLayout)


def _null_bytes(column_count: int) -> int:
    """Return how many bytes the null bits have. Up to eight they are an integer of a size that ``struct`` knows."""
    byte_count = -(-column_count // 8)
    return byte_count if column_count > NULLS_INTEGER_COLUMNS_MAX else 1 << (byte_count - 1).bit_length()


def _null_code(column_count: int) -> str:
    byte_count = _null_bytes(column_count)
    return (
        f"{byte_count}s" if column_count > NULLS_INTEGER_COLUMNS_MAX else {1: "B", 2: "H", 4: "I", 8: "Q"}[byte_count]
    )


def _null_mask(null_bits: UInt8Array, column: int) -> npt.NDArray[np.bool_] | None:
    """Return which rows are null in a column, or None if no row is."""
    bits = null_bits[:, column >> 3] & (1 << (column & 7))
    return bits.astype(np.bool_) if bits.any() else None


def _arrow_offsets(lengths: npt.NDArray[np.uint32], column_name: str) -> npt.NDArray[np.int32]:
    offsets = offsets_of(lengths)
    if offsets[-1] > _ARROW_OFFSET_MAX:
        raise FlussError(f"The values of column '{column_name}' in one batch exceed two gigabytes; write smaller rows")
    return offsets.astype(np.int32)
