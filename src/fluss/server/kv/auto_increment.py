"""Ids for the auto-increment column of a table: reserved in blocks for each bucket, handed out in order.

A table has one counter, kept by the coordinator. Each bucket reserves blocks of ``table.auto-increment.cache-size`` ids
from it, or several at once for a large batch, so a block of that size with ids of one bucket has no ids of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.schema.table_options import AUTO_INCREMENT_CACHE_SIZE
from fluss.schema.types import TypeRoot
from fluss.server.model import Table
from fluss.storage.kv.state import IdBlock

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AutoIncrement:
    """What a table says about its auto-increment column."""

    column_id: int
    column_index: int
    column_name: str
    id_max: int
    block_size: int

    @classmethod
    def of(cls, table: Table) -> AutoIncrement | None:
        """Return None for a table that has no such column."""
        schema = table.descriptor.schema
        for name in schema.get_auto_increment_columns():
            column = schema.column(name)
            return cls(
                column.column_id,
                schema.index_of(name),
                name,
                INT32_MAX if column.data_type.root is TypeRoot.INTEGER else _INT64_MAX,
                max(1, AUTO_INCREMENT_CACHE_SIZE.of(table.descriptor.properties)),
            )
        return None

    def block_after(self, id_last: int) -> IdBlock:
        """Return what is left of the block that a bucket has used up to an id."""
        return IdBlock(self.column_id, id_last + 1, -(-id_last // self.block_size) * self.block_size + 1)


class IdAllocation:
    """Hands out the ids of one batch. If the batch fails it is forgotten, and nothing was used.

    ``reserve`` asks for so many more ids and returns the first; it may block.
    """

    def __init__(self, column: AutoIncrement, block: IdBlock | None, reserve: Callable[[int], int]) -> None:
        self._column = column
        self._reserve = reserve
        # What is left.
        self.block = block

    def take(self, count: int) -> Sequence[int]:
        """Return so many ids in ascending order. Code -1 if the column cannot hold them."""
        if not count:
            return ()
        block = self.block or IdBlock(self._column.column_id, 0, 0)
        missing = count - (block.id_end - block.id_next)
        if missing <= 0:
            ids: Sequence[int] = range(block.id_next, block.id_next + count)
            self.block = IdBlock(block.column_id, block.id_next + count, block.id_end)
        else:
            reserved = -(-missing // self._column.block_size) * self._column.block_size
            first = self._reserve(reserved)
            ids = [*range(block.id_next, block.id_end), *range(first, first + missing)]
            self.block = IdBlock(block.column_id, first + missing, first + reserved)
        if ids[-1] > self._column.id_max:
            raise FlussError(
                f"Column '{self._column.column_name}' has run out of ids: the next one is {ids[-1]} and the largest "
                f"its type holds is {self._column.id_max}",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        return ids
