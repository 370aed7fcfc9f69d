"""Arrow columns to the Python objects that users get, a column at a time.

The plain way is ``from_internal`` over ``internal_from_arrow``, value by value. Here the columns whose values pyarrow
or numpy already turn into the right objects take a short cut; all others go the plain way. Both give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.errors import CorruptRecordError
from fluss.row.null_columns import mask_from_arrow
from fluss.row.python_values import from_internal
from fluss.row.values import internal_from_arrow
from fluss.schema.types import DataType, TimestampLtzType, TimestampType, TypeRoot

# What pyarrow gives for these is what users get.
_SAME_IN_ARROW: Final = frozenset(
    {
        TypeRoot.BOOLEAN,
        TypeRoot.TINYINT,
        TypeRoot.SMALLINT,
        TypeRoot.INTEGER,
        TypeRoot.BIGINT,
        TypeRoot.FLOAT,
        TypeRoot.DOUBLE,
        TypeRoot.CHAR,
        TypeRoot.STRING,
        TypeRoot.BINARY,
        TypeRoot.BYTES,
    }
)
_NANOS_PER_MICRO: Final = 1000
# Years 1 to 9999 in microseconds since the epoch: what a Python datetime can be.
_MICROS_LOWEST: Final = int(np.datetime64("0001-01-01T00:00:00.000000").astype(np.int64))
_MICROS_HIGHEST: Final = int(np.datetime64("9999-12-31T23:59:59.999999").astype(np.int64))
_MICROS_PER_UNIT: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


def python_column(array: pa.Array, data_type: DataType) -> list[Any]:
    """Convert a column; the array has the Arrow type of ``data_type`` and may be a slice.

    CorruptRecordError: the array is well-formed, its content is not. FlussError: Python has no such date.
    """
    if data_type.root in _SAME_IN_ARROW:
        try:
            values: list[Any] = array.to_pylist()
        except UnicodeDecodeError as error:
            raise CorruptRecordError(f"A string column holds bytes that are not UTF-8: {error}") from error
        return values
    if isinstance(data_type, TimestampType | TimestampLtzType):
        micros = _micros(array)
        if micros is not None:
            return _datetimes(array, micros, has_zone=isinstance(data_type, TimestampLtzType))
    return [from_internal(value, data_type) for value in internal_from_arrow(array, data_type)]


def python_rows(names: Sequence[str], columns: Iterable[list[Any]]) -> list[dict[str, Any]]:
    """Put converted columns together to rows. A name that occurs twice is one key, at its first place."""
    return _row_maker(tuple(names))(*columns)


@lru_cache(maxsize=256)
def _row_maker(names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    """Return a function from columns to rows.

    It is compiled for these names, because a dict display with constant keys is several times as fast as anything
    that learns them at run time, and this is most of the work of reading records.
    """
    if not names:
        return lambda: []
    variables = [f"value_{index}" for index in range(len(names))]
    display = ", ".join(f"{name!r}: {variable}" for name, variable in zip(names, variables, strict=True))
    arguments = ", ".join(f"column_{index}" for index in range(len(names)))
    code = f"lambda {arguments}: [{{{display}}} for {', '.join(variables)}, in zip({arguments}, strict=True)]"
    # Nothing a name contains becomes code: repr quotes it.
    maker: Callable[..., list[dict[str, Any]]] = eval(code)
    return maker


def _micros(array: pa.Array) -> Int64Array | None:
    """Return timestamps as whole microseconds, nulls as 0; None if there is one that no datetime can be."""
    # Read from its buffers: pyarrow's own way to numpy imports pandas if that is installed, in the middle of a read.
    data = array.buffers()[1]
    numbers: Int64Array = np.frombuffer(data or b"", np.int64)[array.offset : array.offset + len(array)]
    valid = mask_from_arrow(array)
    if valid is not None:
        numbers = np.where(valid, numbers, 0)
    if array.type.unit == "ns":
        return numbers // _NANOS_PER_MICRO
    per_unit = _MICROS_PER_UNIT[array.type.unit]
    lowest, highest = _MICROS_LOWEST // per_unit, _MICROS_HIGHEST // per_unit
    if len(numbers) and not (lowest <= numbers.min() and numbers.max() <= highest):
        return None
    return numbers * per_unit


def _datetimes(array: pa.Array, micros: Int64Array, *, has_zone: bool) -> list[Any]:
    values: list[Any] = micros.view("datetime64[us]").tolist()
    if has_zone:
        values = [value.replace(tzinfo=UTC) for value in values]
    valid = mask_from_arrow(array)
    if valid is not None:
        for index in np.flatnonzero(~valid).tolist():
            values[index] = None
    return values
