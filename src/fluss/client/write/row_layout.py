"""Packed rows: the form in which rows of users wait until their batch is closed.

Rows are checked and packed one by one, and turned into Arrow columns all at once. A row is converted completely or not
at all: a row that was packed fits its batch. A packed row is one ``bytes`` object. Integers are little-endian:

    null bits   column i is bit ``i & 7`` of byte ``i >> 3``; 1 is null. One bit more, if rows can be deletes: 1 is a
                delete
    slots       one per column, of fixed width, without padding; zero when null
    bodies      of the columns that have one, in column order

| type | slot | body |
|---|---|---|
| BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DATE | the number | |
| TIME, TIMESTAMP, TIMESTAMP_LTZ | int32 or int64 in the unit of the Arrow type | |
| DECIMAL | 16 bytes, unscaled | |
| BINARY(n) | the bytes | |
| CHAR, STRING, BYTES | uint32 length of the body | UTF-8, or the bytes |
| ARRAY, MAP, ROW | uint32 length of the body | pickle of the internal value |

Rows in this form take little memory, their size is known exactly, and numpy turns thousands of them into columns at
once. The form never leaves the process.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import UInt8Array, byte_view
from fluss.client.kernel.input_rows import internal_values
from fluss.errors import FlussError
from fluss.row.encoded import gather_ranges, offsets_of, unaligned
from fluss.row.partition_names import row_partition_name
from fluss.row.python_values import to_internal
from fluss.row.values import NANOS_PER_MILLI, Timestamp, arrow_from_internal
from fluss.schema.arrow import arrow_type
from fluss.schema.schema import Schema
from fluss.schema.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TypeRoot,
)

# The memory that a packed row takes beyond its bytes: the object around them and its place in a list.
PACKED_ROW_OVERHEAD_BYTES: Final = 48
BODY_LENGTH_CODE: Final = "I"
_DECIMAL_BYTES: Final = 16
_NUMBER_CODES: Final = {
    TypeRoot.BOOLEAN: "?",
    TypeRoot.TINYINT: "b",
    TypeRoot.SMALLINT: "h",
    TypeRoot.INTEGER: "i",
    TypeRoot.BIGINT: "q",
    TypeRoot.FLOAT: "f",
    TypeRoot.DOUBLE: "d",
    TypeRoot.DATE: "i",
}
_UNITS_PER_MILLI: Final = {"ms": 1, "us": 1_000, "ns": NANOS_PER_MILLI}
# ``nulls`` is an integer; up to this many bits ``struct`` packs it itself.
NULLS_INTEGER_BITS_MAX: Final = 64
# The column that says which rows are deletes, in batches that have some. No column of a table can have this name.
DELETE_MARK: Final = ""
_ARROW_OFFSET_MAX: Final = 2**31 - 1


class RowLayout:
    """Packs the rows of one schema, and unpacks them as Arrow. Has no state: it may be shared by threads.

    Most rows are packed by functions that ``row_compiler`` makes. ``pack_any`` takes all rows, and gives the same
    bytes. The rows of a table with a primary key can also be deletes: ``pack_delete`` takes keys.
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
        self.partition_indexes = [schema.index_of(name) for name in partition_keys]
        self.delete_indexes = [schema.index_of(name) for name in delete_keys]
        # Whether a block has rows of several buckets.
        self.has_rows_by_key = has_rows_by_key
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
        self.form = PackedForm(schema.column_names, slots, head, null_bit_count, filled_indexes)
        self._null_bytes = _null_bytes(null_bit_count)
        self._dtype = np.dtype(
            [("nulls", np.uint8, (self._null_bytes,))] + [(f"{index}", slot.dtype) for index, slot in enumerate(slots)]
        )
        assert self._dtype.itemsize == head.size

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

    def pack_any(self, row: Any) -> tuple[bytes, str | None]:
        """Pack a row of any accepted form; return the bytes and the name of its partition, if there are partitions.

        What cannot be converted is a FlussError that names the column.
        """
        values = internal_values(row, self._columns)
        for value, name in zip(values, self.form.names, strict=True):
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
        values = [by_name.get(name) for name in self.form.names]
        return self._packed(values, null_bits=1 << len(values)), self._partition_name(values)

    def partition_name(self, key: Any) -> str:
        """Return the partition of a row from the value of its partition column, or a tuple of them if it has more."""
        values = key if len(self.partition_indexes) > 1 else (key,)
        columns = [self._columns[index] for index in self.partition_indexes]
        return row_partition_name(
            [column.data_type for column in columns],
            [to_internal(value, column.data_type, column.name) for value, column in zip(values, columns, strict=True)],
        )

    def _packed(self, values: Sequence[Any], null_bits: int = 0) -> bytes:
        packed: list[Any] = []
        bodies: list[bytes] = []
        for index, (value, slot) in enumerate(zip(values, self.form.slots, strict=True)):
            if value is None:
                null_bits |= 1 << index
                packed.append(slot.null)
            elif slot.has_body:
                body = slot.from_internal(value)
                if not body and index in self.form.filled_indexes:
                    raise FlussError(f"Field '{self.form.names[index]}': a key that is empty belongs to no bucket")
                packed.append(len(body))
                bodies.append(body)
            else:
                packed.append(slot.from_internal(value))
        is_integer = self.form.null_bit_count <= NULLS_INTEGER_BITS_MAX
        nulls = null_bits if is_integer else null_bits.to_bytes(self._null_bytes, "little")
        try:
            head = self.form.head.pack(nulls, *packed)
        except struct.error:
            # Everything else was checked when it was converted.
            raise FlussError("A row has a value of more than 4 gigabytes, which no batch can hold") from None
        return b"".join((head, *bodies))

    def _partition_name(self, values: Sequence[Any]) -> str | None:
        if not self.partition_indexes:
            return None
        types = [self._columns[index].data_type for index in self.partition_indexes]
        return row_partition_name(types, [values[index] for index in self.partition_indexes])

    # Unpacking

    def to_arrow(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """Turn packed rows into a record batch with the Arrow schema of the table.

        If there are deletes among them, it has the column ``DELETE_MARK`` at its end.
        """
        head_bytes = self.form.head.size
        data: UInt8Array = np.frombuffer(b"".join(rows), np.uint8)
        bodies_start: npt.NDArray[np.int64] | None = None
        if any(slot.has_body for slot in self.form.slots):
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            starts = offsets_of(lengths)[:-1]
            heads = unaligned(data, f"V{head_bytes}")[starts].view(self._dtype)
            bodies_start = starts + head_bytes
        else:
            heads = data.view(self._dtype)
        columns: list[pa.Array] = []
        for index, slot in enumerate(self.form.slots):
            nulls = _null_mask(heads["nulls"], index)
            validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
            slots = heads[f"{index}"]
            if slot.has_body:
                assert bodies_start is not None
                offsets = _arrow_offsets(slots, self.form.names[index])
                bodies = gather_ranges(data, bodies_start, np.diff(offsets))
                columns.append(slot.body_column(bodies, offsets, validity))
                bodies_start = bodies_start + slots
            else:
                columns.append(slot.fixed_column(slots, validity))
        deletes = _null_mask(heads["nulls"], len(columns)) if self._delete_columns else None
        if deletes is None:
            return pa.RecordBatch.from_arrays(columns, schema=self.schema.to_arrow())
        # Deletes are null in columns in which rows cannot be, so this is no longer the schema of the table.
        return pa.RecordBatch.from_arrays([*columns, pa.array(deletes)], names=[*self.form.names, DELETE_MARK])


_layout_of = lru_cache(maxsize=256)(RowLayout)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one column in packed rows."""

    data_type: DataType
    # What ``struct`` packs into the slot.
    code: str
    # What a null leaves in the slot.
    null: Any
    # The internal value as it is packed, or as the bytes of the body.
    from_internal: Callable[[Any], Any]
    has_body: bool = False

    @classmethod
    def of(cls, data_type: DataType) -> Slot:
        number = _NUMBER_CODES.get(data_type.root)
        if number is not None:
            return cls(data_type, number, 0, _unchanged)
        match data_type:
            case TimeType() | TimestampType() | TimestampLtzType():
                target = arrow_type(data_type)
                to_units = _time_units if isinstance(data_type, TimeType) else _timestamp_units
                return cls(data_type, "i" if target.bit_width == 32 else "q", 0, to_units(target.unit))
            case DecimalType():
                return cls(data_type, f"{_DECIMAL_BYTES}s", b"", _unscaled_bytes)
            case BinaryType():
                return cls(data_type, f"{data_type.length}s", b"", bytes)
        match data_type.root:
            case TypeRoot.CHAR | TypeRoot.STRING:
                to_body: Callable[[Any], bytes] = str.encode
            case TypeRoot.BYTES:
                to_body = bytes
            case _:
                to_body = pickle.dumps
        return cls(data_type, BODY_LENGTH_CODE, 0, to_body, has_body=True)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The slot as numpy sees it."""
        return np.dtype(f"V{self.code[:-1]}" if self.code.endswith("s") else f"<{self.code}")

    def fixed_column(self, slots: npt.NDArray[Any], validity: pa.Buffer | None) -> pa.Array:
        """Return the Arrow column of the slots of all rows."""
        assert not self.has_body
        values = np.packbits(slots, bitorder="little") if isinstance(self.data_type, BooleanType) else slots
        buffers = [validity, pa.py_buffer(np.ascontiguousarray(values))]
        return pa.Array.from_buffers(arrow_type(self.data_type), len(slots), buffers)

    def body_column(self, bodies: UInt8Array, offsets: npt.NDArray[np.int32], validity: pa.Buffer | None) -> pa.Array:
        """Return the Arrow column of bodies that follow each other: ``i`` is ``bodies[offsets[i]:offsets[i + 1]]``."""
        assert self.has_body
        if not self.data_type.is_nested:
            buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(bodies)]
            return pa.Array.from_buffers(arrow_type(self.data_type), len(offsets) - 1, buffers)
        view = byte_view(bodies)
        values = [
            # Made by ``pickle.dumps`` above, in this process. No value has an empty pickle.
            pickle.loads(view[start:end]) if end > start else None
            for start, end in pairwise(offsets.tolist())
        ]
        # Rows were checked when they were packed; a delete has no value whatever the type says.
        return arrow_from_internal(values, self.data_type.with_nullable(True))


def _unchanged(value: Any) -> Any:
    return value


def _unscaled_bytes(value: int) -> bytes:
    return value.to_bytes(_DECIMAL_BYTES, "little", signed=True)


def _time_units(unit: str) -> Callable[[int], int]:
    if unit == "s":
        return lambda millis: millis // 1000
    factor = _UNITS_PER_MILLI[unit]
    return lambda millis: millis * factor


def _timestamp_units(unit: str) -> Callable[[Timestamp], int]:
    if unit == "s":
        return lambda timestamp: timestamp.millis // 1000
    factor = _UNITS_PER_MILLI[unit]
    nanos_per_unit = NANOS_PER_MILLI // factor
    return lambda timestamp: timestamp.millis * factor + timestamp.nanos // nanos_per_unit


@dataclass(frozen=True, slots=True)
class PackedForm:
    """What packed rows of a schema look like: a slot per column, and what ``struct`` packs before the bodies."""

    names: Sequence[str]
    slots: Sequence[Slot]
    head: struct.Struct
    # One per column, and one more if rows can be deletes.
    null_bit_count: int
    # Columns whose values must not be empty; they have bodies.
    filled_indexes: Set[int] = frozenset()


def _null_bytes(bit_count: int) -> int:
    """Return how many bytes the null bits have. Up to eight they are an integer of a size that ``struct`` knows."""
    byte_count = -(-bit_count // 8)
    return byte_count if bit_count > NULLS_INTEGER_BITS_MAX else 1 << (byte_count - 1).bit_length()


def _null_code(bit_count: int) -> str:
    byte_count = _null_bytes(bit_count)
    return f"{byte_count}s" if bit_count > NULLS_INTEGER_BITS_MAX else {1: "B", 2: "H", 4: "I", 8: "Q"}[byte_count]


def _null_mask(null_bits: UInt8Array, column: int) -> npt.NDArray[np.bool_] | None:
    """Return which rows are null in a column, or None if no row is."""
    bits = null_bits[:, column >> 3] & (1 << (column & 7))
    return bits.astype(np.bool_) if bits.any() else None


def _arrow_offsets(lengths: npt.NDArray[np.uint32], column_name: str) -> npt.NDArray[np.int32]:
    offsets = offsets_of(lengths)
    if offsets[-1] > _ARROW_OFFSET_MAX:
        raise FlussError(f"The values of column '{column_name}' in one batch exceed two gigabytes; write smaller rows")
    return offsets.astype(np.int32)
