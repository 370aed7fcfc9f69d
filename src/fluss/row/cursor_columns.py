"""A position in every row of a batch, moved a column at a time: the columnar twin of ``fluss.row.cursor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from fluss.buffers import BytesLike, Int64Array
from fluss.errors import CorruptRecordError, SizeLimitError
from fluss.row import compacted
from fluss.row.byte_ranges import unaligned
from fluss.row.encoded import EncodedRows
from fluss.row.null_columns import BoolArray, ValidMask, masks_from_null_planes
from fluss.row.scalars import null_byte_count
from fluss.row.varint_columns import WORD_BYTES, UInt64Array, read_varints
from fluss.schema.types import DataType


class ColumnCursor:
    """Reads rows front to back. Whatever would need bytes behind the end of a row is a CorruptRecordError.

    Between ``enter_column`` calls every read takes one number (or range) from each row that has a value in this
    column, and returns an array with zeros for the others. No read looks at memory outside ``data``: numbers are
    gathered only after the row was found long enough, or from positions that are clipped to the end of the data.
    """

    def __init__(self, rows: EncodedRows, *, arrays_bytes_max: int | None = None) -> None:
        """``arrays_bytes_max`` limits what ``count_bytes`` is told, all together; None does not."""
        self.data = rows.data
        if len(self.data) < WORD_BYTES:
            # Words can then be read at any position without a case for tiny data.
            self.data = np.concatenate((self.data, np.zeros(WORD_BYTES, dtype=np.uint8)))
        if len(rows) and not (
            rows.starts.min() >= 0 and rows.ends.max() <= len(rows.data) and (rows.starts <= rows.ends).all()
        ):
            raise CorruptRecordError(f"The boundaries of {len(rows)} rows do not lie inside {len(rows.data)} bytes")
        self._positions = rows.starts
        self._ends = rows.ends
        self._before_columns = "The null bits"
        # The number and the type of the column that is being read.
        self._column: tuple[int, DataType] | None = None
        self.valid: ValidMask = None
        self._arrays_bytes_max = arrays_bytes_max
        self._arrays_bytes = 0

    def __len__(self) -> int:
        return len(self._ends)

    def null_bits(self, types: Sequence[DataType]) -> list[ValidMask]:
        """Read which values are null."""
        starts = self._positions
        byte_count = null_byte_count(len(types))
        self._advance(byte_count)
        planes = [self.data[starts + index] for index in range(byte_count)]
        masks = masks_from_null_planes(planes, len(types))
        for index, (data_type, valid) in enumerate(zip(types, masks, strict=True)):
            if valid is not None and not data_type.nullable:
                self.enter_column(index, data_type, None)
                self.refuse("is null", ~valid)
        return masks

    def enter_column(self, index: int, data_type: DataType, valid: ValidMask) -> None:
        """Say what the next reads are about."""
        self._column = index, data_type
        self.valid = valid

    @property
    def column(self) -> str:
        """What is being read, for messages."""
        return self._before_columns if self._column is None else "Column {} ({})".format(*self._column)

    def fixed(self, dtype: str) -> npt.NDArray[Any]:
        """Read numbers of one size."""
        positions = self._positions
        size = np.dtype(dtype).itemsize
        self._advance(size)
        if self.valid is not None:
            # A null may be the last thing in the data.
            positions = np.minimum(positions, len(self.data) - size)
        return self._without_nulls(unaligned(self.data, dtype)[positions])

    def varints(self, bits: int) -> UInt64Array:
        """Read variable-length numbers of 32 or 64 bits, as unsigned."""
        values, lengths = read_varints(self.data, self._positions, bits=bits)
        if self.valid is not None:
            lengths |= ~self.valid
        if not lengths.all():
            self.refuse(f"has no varint of {bits} bits", lengths == 0)
        self._advance(lengths)
        return self._without_nulls(values)

    def ranges(self) -> tuple[Int64Array, Int64Array]:
        """Read the lengths in front of byte strings and move over the strings; return where they start, and lengths."""
        lengths = self.varints(32).astype(np.uint32).view(np.int32).astype(np.int64)
        if len(lengths) and int(lengths.min()) < 0:
            self.refuse("has a negative length", lengths < 0)
        starts = self._positions
        self._advance(lengths)
        return starts, lengths

    def decode_nested(self, data_type: DataType, data: BytesLike) -> Any:
        """Decode the bytes of one ARRAY, MAP or ROW."""
        return compacted.decode_nested(data_type, data)

    def count_bytes(self, byte_count: int) -> None:
        """Count what arrays take, or will take; more than is allowed is a SizeLimitError."""
        self._arrays_bytes += byte_count
        if self._arrays_bytes_max is not None and self._arrays_bytes > self._arrays_bytes_max:
            raise SizeLimitError(
                f"{len(self)} rows would take {self._arrays_bytes} bytes of memory or more, the limit is "
                f"{self._arrays_bytes_max}; decode fewer rows at once"
            )

    def finish(self) -> None:
        """Check that nothing is left: bytes behind the last field mean that a row has another schema."""
        rest = self._ends - self._positions
        if rest.any():
            row = int((rest != 0).argmax())
            raise CorruptRecordError(
                f"Row {row} has {rest[row]} bytes behind its last field; "
                "it was written with another schema or is damaged"
            )

    def refuse(self, trouble: str, bad: BoolArray) -> NoReturn:
        """Refuse all rows for what was found in the first bad one."""
        raise CorruptRecordError(f"{self.column} {trouble} in row {int(bad.argmax())}")

    def _advance(self, lengths: npt.NDArray[Any] | int) -> None:
        """Move each position over the bytes of a value; a null has none."""
        positions = self._positions + (lengths if self.valid is None else lengths * self.valid)
        if (positions > self._ends).any():
            bad = positions > self._ends
            row = int(bad.argmax())
            left = self._ends[row] - self._positions[row]
            needed = positions[row] - self._positions[row]
            self.refuse(f"needs {needed} bytes where only {left} are left,", bad)
        self._positions = positions

    def _without_nulls(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.valid is not None:
            values[~self.valid] = 0
        return values
