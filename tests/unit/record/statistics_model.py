"""Statistics and filters by the book: one block read from front to back, one batch judged after the other.

What the server does for many batches at once is compared with this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fluss.buffers import BytesLike, byte_view
from fluss.errors import CorruptRecordError
from fluss.record.batch_heads import BatchHeads, heads_of
from fluss.record.log_batch import MAGIC_V1, build_batch
from fluss.record.pruning import BatchFilter
from fluss.record.statistics import STATISTICS_PREFIX, STATISTICS_ROW_SIZE, STATISTICS_VERSION, supports_statistics
from fluss.row.slots import decode_aligned_row, encode_aligned_row
from fluss.schema.predicate import BoundCompound, BoundLeaf, BoundPredicate, CompoundFunction, LeafFunction
from fluss.schema.types import DataType


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


def decode_statistics(data: BytesLike, types: Sequence[DataType]) -> BatchStatistics | None:
    """Read a block; ``types`` are the types of all columns of the batch's schema.

    Returns None for a block that says nothing: empty, without columns, or of an unknown version. Damage raises
    CorruptRecordError; a reader that only wants to skip batches must keep such a batch.
    """
    reader = _Reader(byte_view(data))
    if not len(reader.view):
        return None
    version, count = reader.take(STATISTICS_PREFIX, "its prefix")
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
        (size,) = self.take(STATISTICS_ROW_SIZE, f"the size of {what}")
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


# Blocks and heads to ask about


def block_of(columns: Mapping[int, ColumnStatistics]) -> bytes:
    """Return a block that says this; unlike what writers make of rows, it may say anything."""
    types = [column.data_type for column in columns.values()]
    minimums = encode_aligned_row(types, [column.minimum for column in columns.values()])
    maximums = encode_aligned_row(types, [column.maximum for column in columns.values()])
    return b"".join(
        (
            STATISTICS_PREFIX.pack(STATISTICS_VERSION, len(columns)),
            struct.pack(f"<{len(columns)}h", *columns),
            struct.pack(f"<{len(columns)}i", *(column.null_count for column in columns.values())),
            STATISTICS_ROW_SIZE.pack(len(minimums)) + minimums,
            STATISTICS_ROW_SIZE.pack(len(maximums)) + maximums,
        )
    )


def heads_with(blocks: Sequence[BytesLike], record_counts: Sequence[int], schema_ids: Sequence[int]) -> BatchHeads:
    """Return the heads of batches with these statistics, read from stored batches."""
    batches = [
        build_batch(
            [b"rows"],
            schema_id=schema_id,
            record_count=record_count,
            append_only=True,
            magic=MAGIC_V1,
            statistics=block,
        )
        for block, record_count, schema_id in zip(blocks, record_counts, schema_ids, strict=True)
    ]
    return heads_of(b"".join(batches))


def filter_keeps(predicate: BoundPredicate, block: BytesLike, types: Sequence[DataType], record_count: int) -> bool:
    """Ask the server's own filter about a single batch."""
    heads = heads_with([block], [record_count], [1])
    return bool(BatchFilter(predicate).may_match(heads, lambda schema_id: types)[0])
