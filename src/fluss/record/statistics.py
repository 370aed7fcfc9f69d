"""Statistics of a log batch: per column the number of nulls, the smallest and the largest value.

Writers put them between header and records of a batch; servers use them to skip batches that cannot hold a wanted
row. Integers are little-endian.

| field          | type      | meaning                                                        |
|----------------|-----------|----------------------------------------------------------------|
| version        | int8      | 1; a block of another version is ignored                       |
| column_count   | int16     | N; a block without columns is ignored                          |
| column_indexes | N × int16 | positions in the schema of the batch, in any order             |
| null_counts    | N × int32 |                                                                |
| minimum_size   | int32     |                                                                |
| minimums       | bytes     | aligned row of N fields; a null field is an unknown bound      |
| maximum_size   | int32     |                                                                |
| maximums       | bytes     | the same                                                       |

Bounds are internal values: TIME in milliseconds of the day, strings compared by their UTF-8 bytes, decimals by value.

- CHAR columns get no bounds, as in other clients; their nulls are counted.
- A column of nulls has no bounds.
- A float column that holds NaN has no bounds, because readers do not agree on where NaN belongs in the order.
- A bound of zero is written as -0.0 below and 0.0 above: some readers tell the two apart.

A filter may skip a batch only if none of its rows can match. Whenever something is unknown (no statistics, no bounds,
another type, a literal that does not fit) the batch is kept; the reader looks at its rows anyway.

| function             | keep the batch when                                              |
|----------------------|------------------------------------------------------------------|
| =                    | minimum <= literal <= maximum                                    |
| <>                   | not minimum = maximum = literal                                  |
| <, <=, >, >=         | minimum < literal, minimum <= literal, maximum > literal, ...    |
| is null, is not null | it has nulls, it has values that are not null                    |
| starts with          | minimum, cut to the length of the prefix, <= prefix <= maximum   |
| contains, ends with  | always                                                           |
| in, not in           | = holds for some literal, <> holds for every literal             |
| and, or              | all children, any child                                          |

- A null matches nothing but "is null": in a column of nulls all other functions fail.
- A null literal matches nothing; in "not in" it is passed over.
- NaN has no agreed place in the order, so as a literal or a bound it keeps the batch.
- Some readers say that -0.0 < 0.0: with a zero, "<" keeps what "<=" keeps, and "<>" keeps every batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fluss.buffers import BytesLike, byte_view
from fluss.errors import CorruptRecordError, FlussError
from fluss.row.slots import decode_aligned_row, encode_aligned_row
from fluss.row.values import internal_from_arrow
from fluss.schema.predicate import BoundCompound, BoundLeaf, BoundPredicate, CompoundFunction, LeafFunction
from fluss.schema.types import CharType, DataType, DoubleType, FloatType, TypeRoot

STATISTICS_VERSION: Final = 1

_PREFIX = struct.Struct(
    "<b"  # version
    "h"  # column_count
)
_ROW_SIZE = struct.Struct("<i")
_SUPPORTED_ROOTS: Final = frozenset(TypeRoot) - {
    TypeRoot.BINARY,
    TypeRoot.BYTES,
    TypeRoot.ARRAY,
    TypeRoot.MAP,
    TypeRoot.ROW,
}


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known about one column of a batch. A bound of None is unknown."""

    data_type: DataType
    null_count: int
    minimum: Any
    maximum: Any


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """What is known about a batch, by position of the column in the batch's schema."""

    columns: Mapping[int, ColumnStatistics]


def supports_statistics(data_type: DataType) -> bool:
    """Tell whether columns of a type can have statistics."""
    return data_type.root in _SUPPORTED_ROOTS


def collect_statistics(batch: pa.RecordBatch, types: Sequence[DataType], column_indexes: Sequence[int]) -> bytes:
    """Return the statistics block of some columns; it is empty if there are no columns or no rows.

    ``types`` are the types of all columns of the batch; ``column_indexes`` chooses from them, in the order in which
    the block is written.
    """
    if not batch.num_rows or not column_indexes:
        return b""
    chosen = [types[index] for index in column_indexes]
    for index, data_type in zip(column_indexes, chosen, strict=True):
        if not supports_statistics(data_type):
            name = batch.schema.field(index).name
            raise FlussError(
                f"The column '{name}' of type {data_type} cannot have statistics: take it out of "
                f"'table.statistics.columns'"
            )
    arrays = [batch.column(index) for index in column_indexes]
    minimums, maximums = zip(*map(_bounds, arrays, chosen), strict=True)
    minimum_row, maximum_row = encode_aligned_row(chosen, minimums), encode_aligned_row(chosen, maximums)
    return b"".join(
        (
            _PREFIX.pack(STATISTICS_VERSION, len(chosen)),
            struct.pack(f"<{len(chosen)}h", *column_indexes),
            struct.pack(f"<{len(chosen)}i", *(array.null_count for array in arrays)),
            _ROW_SIZE.pack(len(minimum_row)),
            minimum_row,
            _ROW_SIZE.pack(len(maximum_row)),
            maximum_row,
        )
    )


def decode_statistics(data: BytesLike, types: Sequence[DataType]) -> BatchStatistics | None:
    """Read a block; ``types`` are the types of all columns of the batch's schema.

    Returns None for a block that says nothing: empty, without columns, or of an unknown version. Damage raises
    CorruptRecordError; a reader that only wants to skip batches must keep such a batch.
    """
    reader = _Reader(byte_view(data))
    if not len(reader.view):
        return None
    version, count = reader.take(_PREFIX, "its prefix")
    if version != STATISTICS_VERSION or count <= 0:
        return None
    column_indexes = reader.take(struct.Struct(f"<{count}h"), "its column indexes")
    null_counts = reader.take(struct.Struct(f"<{count}i"), "its null counts")
    chosen = _chosen_types(column_indexes, types)
    if min(null_counts) < 0:
        raise CorruptRecordError(f"Batch statistics count {min(null_counts)} nulls")
    minimums = decode_aligned_row(chosen, reader.take_row("the minimums"))
    maximums = decode_aligned_row(chosen, reader.take_row("the maximums"))
    reader.finish()
    columns = map(ColumnStatistics, chosen, null_counts, minimums, maximums)
    return BatchStatistics(dict(zip(column_indexes, columns, strict=True)))


def _bounds(array: pa.Array, data_type: DataType) -> tuple[Any, Any]:
    """Return the smallest and the largest value of a column, both None if they are to stay unknown."""
    if isinstance(data_type, CharType) or array.null_count == len(array):
        return None, None
    is_float = isinstance(data_type, FloatType | DoubleType)
    if is_float and pc.any(pc.is_nan(array)).as_py():
        return None, None
    bounds = pc.min_max(array)
    minimum, maximum = internal_from_arrow(pa.array([bounds["min"], bounds["max"]], array.type), data_type)
    if is_float:
        minimum, maximum = (minimum or -0.0), (maximum or 0.0)
    return minimum, maximum


def _chosen_types(column_indexes: Sequence[int], types: Sequence[DataType]) -> list[DataType]:
    if len(set(column_indexes)) != len(column_indexes):
        raise CorruptRecordError(f"Batch statistics name a column twice: {list(column_indexes)[:50]}")
    for index in column_indexes:
        if not 0 <= index < len(types):
            raise CorruptRecordError(f"Batch statistics name the column {index} of a schema with {len(types)} columns")
        if not supports_statistics(types[index]):
            raise CorruptRecordError(f"Batch statistics name the column {index}, whose type {types[index]} has none")
    return [types[index] for index in column_indexes]


class _Reader:
    """Takes a block apart from front to back, never reading behind its end."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self._position = 0

    def take(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        self._require(layout.size, what)
        values = layout.unpack_from(self.view, self._position)
        self._position += layout.size
        return values

    def take_row(self, what: str) -> memoryview:
        (size,) = self.take(_ROW_SIZE, f"the size of {what}")
        if size < 0:
            raise CorruptRecordError(f"Batch statistics give {what} a size of {size} bytes")
        self._require(size, what)
        row = self.view[self._position : self._position + size]
        self._position += size
        return row

    def finish(self) -> None:
        if self._position != len(self.view):
            raise CorruptRecordError(f"{len(self.view) - self._position} bytes follow the maximums of batch statistics")

    def _require(self, size: int, what: str) -> None:
        remaining = len(self.view) - self._position
        if size > remaining:
            raise CorruptRecordError(
                f"Batch statistics of {len(self.view)} bytes are too short: {what} need {size} bytes at byte "
                f"{self._position}, {remaining} follow"
            )


# Pruning

# Takes the minimum, the maximum and a literal.
_Test: TypeAlias = Callable[[Any, Any, Any], bool]


def may_match(predicate: BoundPredicate, statistics: BatchStatistics | None, record_count: int) -> bool:
    """Tell whether a batch can hold a row that the predicate accepts. True whenever that is not known."""
    if statistics is None:
        return True
    if isinstance(predicate, BoundLeaf):
        return _leaf_may_match(predicate, statistics.columns.get(predicate.column_index), record_count)
    return _compound_may_match(predicate, statistics, record_count)


def _compound_may_match(compound: BoundCompound, statistics: BatchStatistics, record_count: int) -> bool:
    if not compound.children:
        return True
    answers = (may_match(child, statistics, record_count) for child in compound.children)
    return all(answers) if compound.function is CompoundFunction.AND else any(answers)


def _leaf_may_match(leaf: BoundLeaf, column: ColumnStatistics | None, record_count: int) -> bool:
    # The bounds of a column that has changed its type since cannot be compared with the literals.
    if column is None or column.data_type.not_null() != leaf.data_type.not_null():
        return True
    if column.null_count > record_count:
        return True
    if leaf.function is LeafFunction.IS_NULL:
        return column.null_count > 0
    if column.null_count == record_count:
        return False
    test = _TESTS.get(leaf.function)
    if test is None or not (_has_order(column.minimum) and _has_order(column.maximum)):
        return True
    if leaf.function is LeafFunction.NOT_IN:
        return all(literal is None or _passes(test, column, literal) for literal in leaf.literals)
    if leaf.function is LeafFunction.IN or leaf.literals:
        return any(literal is not None and _passes(test, column, literal) for literal in leaf.literals)
    return True


def _passes(test: _Test, column: ColumnStatistics, literal: Any) -> bool:
    try:
        return not _has_order(literal) or test(column.minimum, column.maximum, literal)
    except TypeError:
        # A filter whose literal is not of the column's type is a fault elsewhere; rows must not get lost by it.
        return True


def _has_order(value: Any) -> bool:
    """Tell whether a value is known and is not NaN."""
    return value is not None and value == value


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0


def _may_equal(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(minimum <= literal <= maximum)


def _may_differ(minimum: Any, maximum: Any, literal: Any) -> bool:
    return not (minimum == maximum == literal) or _is_zero(literal)


def _may_be_less(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(minimum <= literal if _is_zero(literal) else minimum < literal)


def _may_be_less_or_equal(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(minimum <= literal)


def _may_be_greater(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(maximum >= literal if _is_zero(literal) else maximum > literal)


def _may_be_greater_or_equal(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(maximum >= literal)


def _may_start_with(minimum: Any, maximum: Any, literal: Any) -> bool:
    # Python orders strings by code point, which is the order of their UTF-8 bytes.
    return bool(minimum[: len(literal)] <= literal <= maximum)


# Functions that are not here keep every batch that has a value which is not null.
_TESTS: Final[dict[LeafFunction, _Test]] = {
    LeafFunction.EQUAL: _may_equal,
    LeafFunction.NOT_EQUAL: _may_differ,
    LeafFunction.LESS_THAN: _may_be_less,
    LeafFunction.LESS_OR_EQUAL: _may_be_less_or_equal,
    LeafFunction.GREATER_THAN: _may_be_greater,
    LeafFunction.GREATER_OR_EQUAL: _may_be_greater_or_equal,
    LeafFunction.STARTS_WITH: _may_start_with,
    LeafFunction.IN: _may_equal,
    LeafFunction.NOT_IN: _may_differ,
}
