"""The aggregate functions: what a column of a row becomes with each new value for its key.

A function gets the values of a column in the order in which they are merged, cut into one segment per key: the stored
value first, if there is one, then the new ones. It returns the state after every single entry, because the changelog
shows them all. Where a function does not say otherwise, a null changes nothing.

| function | state |
|---|---|
| sum, product | in the type of the column: integers wrap around, a DECIMAL that does not fit is null |
| max, min | by the order of the type: NaN is above all numbers, -0.0 below 0.0, strings compare as UTF-8 bytes |
| last_value | the new value, null too |
| last_value_ignore_nulls | the new value unless it is null |
| first_value, first_value_ignore_nulls | the first value that is not null |
| listagg, string_agg | all values with a delimiter between them |
| bool_and, bool_or | logical |
| rbm32, rbm64 | the union of serialized bitmaps |

Each is exact, whatever the order of work: the results are those of merging one row after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.row.arrow_arrays import mask_from_arrow, number_array
from fluss.schema.aggregation import AggFunction
from fluss.schema.schema import Column
from fluss.schema.types import TypeRoot
from fluss.server.kv.aggregation.bitmap_states import bitmap_format_of, united_bitmaps
from fluss.server.kv.aggregation.decimals import decimal_products, decimal_sums
from fluss.server.kv.aggregation.numbers import conjunctions, disjunctions, maxima, minima, products, sums
from fluss.server.kv.aggregation.segments import Segments
from fluss.server.kv.aggregation.texts import joined_texts

# Makes the states of a column from its values.
StatesFunction: TypeAlias = Callable[[pa.Array, Segments], pa.Array]

DEFAULT_FUNCTION: Final = AggFunction("last_value_ignore_nulls")


def states_function(column: Column) -> StatesFunction:
    """Return the function of a column that is not part of the key; its type has been checked against the function."""
    function = column.aggregation or DEFAULT_FUNCTION
    bitmap_format = bitmap_format_of(column)
    if bitmap_format is not None:
        return partial(united_bitmaps, bitmap_format)
    if function.name in ("listagg", "string_agg"):
        return partial(joined_texts, function.delimiter)
    if column.data_type.root is TypeRoot.DECIMAL and function.name in _DECIMAL_FUNCTIONS:
        return _DECIMAL_FUNCTIONS[function.name]
    return _FUNCTIONS[function.name]


def last_values(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep the last value, null or not."""
    return column


def last_present_values(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep the last value that is not null."""
    valid = mask_from_arrow(column)
    return column if valid is None else taken(column, segments.last_valid(valid))


def first_present_values(column: pa.Array, segments: Segments) -> pa.Array:
    """Keep the first value that is not null."""
    valid = mask_from_arrow(column)
    return taken(column, segments.first_entries if valid is None else segments.first_valid(valid))


def taken(column: pa.Array, entries: Int64Array) -> pa.Array:
    """Return the values at some entries."""
    return column.take(number_array(entries))


_FUNCTIONS: Final[dict[str, StatesFunction]] = {
    "sum": sums,
    "product": products,
    "max": maxima,
    "min": minima,
    "last_value": last_values,
    "last_value_ignore_nulls": last_present_values,
    "first_value": first_present_values,
    "first_value_ignore_nulls": first_present_values,
    "bool_and": conjunctions,
    "bool_or": disjunctions,
}
_DECIMAL_FUNCTIONS: Final[dict[str, StatesFunction]] = {"sum": decimal_sums, "product": decimal_products}
