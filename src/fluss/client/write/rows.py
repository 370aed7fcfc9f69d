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
from fluss.client.given_rows import internal_values
from fluss.client.write.result import WriteResultHandle
from fluss.client.write.row_compiler import NULLS_INTEGER_BITS_MAX, AppendCode, PackedForm, RowWays
from fluss.client.write.row_slots import Slot
from fluss.errors import FlussError
from fluss.row.encoded import gather_ranges, offsets_of, unaligned
from fluss.row.partition_names import row_partition_name
from fluss.row.python_values import to_internal
from fluss.schema.schema import Schema

# The column that says which rows are deletes, in batches that have some. No column of a table can have this name.
DELETE_MARK: Final = ""
_ARROW_OFFSET_MAX: Final = 2**31 - 1


class RowLayout:
    """Packs the rows of one schema, and unpacks them as Arrow. Has no state: it may be shared by threads.

    Most rows are packed by functions that ``append_function`` makes. ``pack_any`` takes all rows, and gives the same
    bytes. The rows of a table with a primary key can also be deletes: ``delete_function`` and ``pack_delete`` take
    keys.
    """

    def __init__(
        self,
        schema: Schema,
        partition_keys: Sequence[str] = (),
        required_keys: Sequence[str] = (),
        *,
        delete_keys: Sequence[str] = (),
        filled_keys: Sequence[str] = (),
        has_rows_by_key: bool = False,
    ) -> None:
        """Describe the rows of a table.

        The ``required_keys`` must have a value whatever their type says. The texts and bytes of ``filled_keys`` must
        not be empty. Deletes have the ``delete_keys``.
        """
        if not schema.columns:
            raise FlussError("A table without columns has no rows")
        self.schema = schema
        self._partition_indexes = [schema.index_of(name) for name in partition_keys]
        self._columns = schema.columns
        self._required_keys = frozenset(required_keys)
        self._delete_columns = [schema.column(name) for name in delete_keys]
        slots = [
            Slot.of(column.data_type.with_nullable(column.data_type.nullable and column.name not in required_keys))
            for column in self._columns
        ]
        null_bit_count = len(slots) + bool(delete_keys)
        head = struct.Struct(f"<{_null_code(null_bit_count)}{''.join(slot.code for slot in slots)}")
        filled_indexes = frozenset(schema.index_of(name) for name in filled_keys)
        self._form = PackedForm(schema.column_names, slots, head, null_bit_count, filled_indexes)
        self._null_bytes = _null_bytes(null_bit_count)
        self._dtype = np.dtype(
            [("nulls", np.uint8, (self._null_bytes,))] + [(f"{index}", slot.dtype) for index, slot in enumerate(slots)]
        )
        assert self._dtype.itemsize == head.size
        self._append_code = AppendCode(
            self._form,
            self._partition_indexes,
            has_rows_by_key=has_rows_by_key,
            given_indexes=range(len(slots)),
            name="upsert" if delete_keys else "append",
        )
        self._delete_code: AppendCode | None = None
        if delete_keys:
            delete_indexes = [schema.index_of(name) for name in delete_keys]
            self._delete_code = AppendCode(
                self._form,
                self._partition_indexes,
                has_rows_by_key=has_rows_by_key,
                given_indexes=delete_indexes,
                null_bits=_all_bits(null_bit_count) - sum(1 << index for index in delete_indexes),
                name="delete",
                parameter="pk",
            )

    @classmethod
    def of(
        cls,
        schema: Schema,
        partition_keys: Sequence[str] = (),
        required_keys: Sequence[str] = (),
        *,
        delete_keys: Sequence[str] = (),
        filled_keys: Sequence[str] = (),
        has_rows_by_key: bool = False,
    ) -> RowLayout:
        """Return the layout of a schema; the same one each time, because making it takes a millisecond."""
        return _layout_of(
            schema,
            tuple(partition_keys),
            tuple(required_keys),
            delete_keys=tuple(delete_keys),
            filled_keys=tuple(filled_keys),
            has_rows_by_key=has_rows_by_key,
        )

    # Packing

    def append_function(self, ways: RowWays) -> Callable[[Any], WriteResultHandle]:
        """Return the function that packs ordinary rows and adds them to blocks; the others it hands on."""
        return self._append_code.function(ways)

    def delete_function(self, ways: RowWays) -> Callable[[Any], WriteResultHandle]:
        """Return the function that does the same with the keys of rows that are to be deleted."""
        assert self._delete_code is not None, "only tables with a primary key can delete rows"
        return self._delete_code.function(ways)

    def pack_any(self, row: Any) -> tuple[bytes, str | None]:
        """Pack a row of any accepted form; return the bytes and the name of its partition, if there are partitions.

        What cannot be converted is a FlussError that names the column.
        """
        values = internal_values(row, self._columns)
        for value, name in zip(values, self._form.names, strict=True):
            if value is None and name in self._required_keys:
                raise FlussError(f"Field '{name}': null is not allowed in a bucket key")
        return self._packed(values), self._partition_name(values)

    def pack_delete(self, key: Any) -> tuple[bytes, str | None]:
        """Pack a delete: like ``pack_any``, of a row that has nothing but the key."""
        by_name = dict(
            zip(
                (column.name for column in self._delete_columns),
                internal_values(key, self._delete_columns),
                strict=True,
            )
        )
        values = [by_name.get(name) for name in self._form.names]
        return self._packed(values, null_bits=1 << len(values)), self._partition_name(values)

    def partition_name(self, key: Any) -> str:
        """Return the partition of a row from the value of its partition column, or a tuple of them if it has more."""
        values = key if len(self._partition_indexes) > 1 else (key,)
        columns = [self._columns[index] for index in self._partition_indexes]
        return row_partition_name(
            [column.data_type for column in columns],
            [to_internal(value, column.data_type, column.name) for value, column in zip(values, columns, strict=True)],
        )

    def _packed(self, values: Sequence[Any], null_bits: int = 0) -> bytes:
        packed: list[Any] = []
        bodies: list[bytes] = []
        for index, (value, slot) in enumerate(zip(values, self._form.slots, strict=True)):
            if value is None:
                null_bits |= 1 << index
                packed.append(slot.null)
            elif slot.has_body:
                body = slot.from_internal(value)
                if not body and index in self._form.filled_indexes:
                    raise FlussError(f"Field '{self._form.names[index]}': a key that is empty belongs to no bucket")
                packed.append(len(body))
                bodies.append(body)
            else:
                packed.append(slot.from_internal(value))
        is_integer = self._form.null_bit_count <= NULLS_INTEGER_BITS_MAX
        nulls = null_bits if is_integer else null_bits.to_bytes(self._null_bytes, "little")
        try:
            head = self._form.head.pack(nulls, *packed)
        except struct.error:
            # Everything else was checked when it was converted.
            raise FlussError("A row has a value of more than 4 gigabytes, which no batch can hold") from None
        return b"".join((head, *bodies))

    def _partition_name(self, values: Sequence[Any]) -> str | None:
        if not self._partition_indexes:
            return None
        types = [self._columns[index].data_type for index in self._partition_indexes]
        return row_partition_name(types, [values[index] for index in self._partition_indexes])

    # Unpacking

    def to_arrow(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """Turn packed rows into a record batch with the Arrow schema of the table.

        If there are deletes among them, it has the column ``DELETE_MARK`` at its end.
        """
        head_bytes = self._form.head.size
        data: UInt8Array = np.frombuffer(b"".join(rows), np.uint8)
        bodies_start: npt.NDArray[np.int64] | None = None
        if any(slot.has_body for slot in self._form.slots):
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            starts = offsets_of(lengths)[:-1]
            heads = unaligned(data, f"V{head_bytes}")[starts].view(self._dtype)
            bodies_start = starts + head_bytes
        else:
            heads = data.view(self._dtype)
        columns: list[pa.Array] = []
        for index, slot in enumerate(self._form.slots):
            nulls = _null_mask(heads["nulls"], index)
            validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
            slots = heads[f"{index}"]
            if slot.has_body:
                assert bodies_start is not None
                offsets = _arrow_offsets(slots, self._form.names[index])
                bodies = gather_ranges(data, bodies_start, np.diff(offsets))
                columns.append(slot.body_column(bodies, offsets, validity))
                bodies_start = bodies_start + slots
            else:
                columns.append(slot.fixed_column(slots, validity))
        deletes = _null_mask(heads["nulls"], len(columns)) if self._delete_columns else None
        if deletes is None:
            return pa.RecordBatch.from_arrays(columns, schema=self.schema.to_arrow())
        # Deletes are null in columns in which rows cannot be, so this is no longer the schema of the table.
        return pa.RecordBatch.from_arrays([*columns, pa.array(deletes)], names=[*self._form.names, DELETE_MARK])


_layout_of = lru_cache(maxsize=256)(RowLayout)


def _null_bytes(bit_count: int) -> int:
    """Return how many bytes the null bits have. Up to eight they are an integer of a size that ``struct`` knows."""
    byte_count = -(-bit_count // 8)
    return byte_count if bit_count > NULLS_INTEGER_BITS_MAX else 1 << (byte_count - 1).bit_length()


def _null_code(bit_count: int) -> str:
    byte_count = _null_bytes(bit_count)
    return f"{byte_count}s" if bit_count > NULLS_INTEGER_BITS_MAX else {1: "B", 2: "H", 4: "I", 8: "Q"}[byte_count]


def _all_bits(bit_count: int) -> int:
    return (1 << bit_count) - 1


def _null_mask(null_bits: UInt8Array, column: int) -> npt.NDArray[np.bool_] | None:
    """Return which rows are null in a column, or None if no row is."""
    bits = null_bits[:, column >> 3] & (1 << (column & 7))
    return bits.astype(np.bool_) if bits.any() else None


def _arrow_offsets(lengths: npt.NDArray[np.uint32], column_name: str) -> npt.NDArray[np.int32]:
    offsets = offsets_of(lengths)
    if offsets[-1] > _ARROW_OFFSET_MAX:
        raise FlussError(f"The values of column '{column_name}' in one batch exceed two gigabytes; write smaller rows")
    return offsets.astype(np.int32)
