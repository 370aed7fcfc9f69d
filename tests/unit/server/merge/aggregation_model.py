"""What the merge engine should do, one value and one record at a time, with plain Python objects.

Values are internal values (see ``fluss.row.values``), except that bitmaps are frozen sets of numbers.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from fluss.schema.schema import AggFunction, Schema
from fluss.schema.table_options import DeleteBehavior
from fluss.schema.types import DataType, DecimalType, TypeRoot
from tests.unit.server.merge.bitmap_samples import numbers_in

Row: TypeAlias = tuple[Any, ...]
Change: TypeAlias = tuple[str, Row]

INTEGER_BITS = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INTEGER: 32, TypeRoot.BIGINT: 64}
BITMAP_BITS = {"rbm32": 32, "rbm64": 64}


def merged(function: AggFunction | None, data_type: DataType, state: Any, value: Any) -> Any:
    """Return the state of a column after one more value."""
    name = "last_value_ignore_nulls" if function is None else function.name
    if name == "last_value":
        return value
    if state is None or value is None:
        return value if state is None else state
    match name:
        case "sum":
            return _fitting(data_type, state + value)
        case "product":
            product = state * value
            return _fitting(data_type, _half_up(product, data_type) if isinstance(data_type, DecimalType) else product)
        case "max":
            return max(state, value, key=_order)
        case "min":
            return min(state, value, key=_order)
        case "last_value_ignore_nulls":
            return value
        case "first_value" | "first_value_ignore_nulls":
            return state
        case "listagg" | "string_agg":
            assert function is not None
            return f"{state}{function.delimiter}{value}"
        case "bool_and":
            return state and value
        case "bool_or":
            return state or value
        case "rbm32" | "rbm64":
            return state | value
    raise AssertionError(name)


def _fitting(data_type: DataType, number: Any) -> Any:
    if data_type.root in INTEGER_BITS:
        half = 1 << INTEGER_BITS[data_type.root] - 1
        return (number + half) % (2 * half) - half
    if isinstance(data_type, DecimalType):
        return number if abs(number) < 10**data_type.precision else None
    return ctypes.c_float(number).value if data_type.root is TypeRoot.FLOAT else number


def _half_up(product: int, data_type: DecimalType) -> int:
    """Round an unscaled product to the scale, halves away from zero."""
    unit = 10**data_type.scale
    return int(math.copysign(1, product)) * ((2 * abs(product) + unit) // (2 * unit))


def _order(value: Any) -> Any:
    if isinstance(value, float):
        is_nan = math.isnan(value)
        return (is_nan, 0.0, 0.0) if is_nan else (is_nan, value, math.copysign(1, value))
    return value.encode() if isinstance(value, str) else value


def shown(schema: Schema, row: Sequence[Any]) -> Row:
    """Return a row in a form that can be compared: bitmaps as sets, floats so that NaN is equal to itself."""
    return tuple(shown_value(c.aggregation, value) for c, value in zip(schema.columns, row, strict=True))


def shown_value(function: AggFunction | None, value: Any) -> Any:
    if isinstance(value, bytes) and function is not None and function.name in BITMAP_BITS:
        return numbers_in(BITMAP_BITS[function.name], value)
    return repr(value) if isinstance(value, float) else value


class TableModel:
    """Rows by key, and what each record does to them. The key is the first column."""

    def __init__(self, schema: Schema, deletes: DeleteBehavior) -> None:
        self.schema = schema
        self.deletes = deletes
        self.rows: dict[Any, Row] = {}

    def add_columns(self, schema: Schema) -> None:
        missing = len(schema.columns) - len(self.schema.columns)
        self.schema = schema
        self.rows = {key: row + (None,) * missing for key, row in self.rows.items()}

    def apply(self, key: Any, row: Row | None, targets: Sequence[int], *, is_overwrite: bool = False) -> list[Change]:
        """Apply one record and return its changes; no row is a delete."""
        written = set(targets or range(len(self.schema.columns)))
        old = self.rows.get(key)
        if row is None:
            if old is None or (self.deletes is DeleteBehavior.IGNORE and not is_overwrite):
                return []
            new = self._deleted(old, written)
        elif old is None:
            new = tuple(v if i in written or not is_overwrite else None for i, v in enumerate(row))
        elif is_overwrite and written == {0}:
            # Without functions, writing nothing but the key does nothing to a row that is there.
            return []
        else:
            new = self._merged(old, row, written, is_overwrite)
        if new is None:
            del self.rows[key]
            return [("-D", old)] if old is not None else []
        self.rows[key] = new
        return [("+I", new)] if old is None else [("-U", old), ("+U", new)]

    def _merged(self, old: Row, row: Row, written: set[int], is_overwrite: bool) -> Row:
        result = list(old)
        for index in written:
            column = self.schema.columns[index]
            is_plain = index == 0 or is_overwrite
            result[index] = (
                row[index] if is_plain else merged(column.aggregation, column.data_type, old[index], row[index])
            )
        return tuple(result)

    def _deleted(self, old: Row, written: set[int]) -> Row | None:
        result = tuple(None if index in written and index else value for index, value in enumerate(old))
        is_rest = any(value is not None for index, value in enumerate(old) if index not in written)
        return result if is_rest else None
