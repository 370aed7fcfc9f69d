"""Where the values of one column lie in a packed row, and how they become an Arrow column.

A packed row is one ``bytes`` object that holds a whole row until its batch is closed. Integers are little-endian:

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
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import UInt8Array, byte_view
from fluss.row.values import NANOS_PER_MILLI, Timestamp, arrow_from_internal
from fluss.schema.arrow import arrow_type
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
