"""What the columns of a table are to one partial update, and the ids the server makes up for new rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import Column, Schema
from fluss.schema.types import TypeRoot
from fluss.server.merge.changes import NextIds

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """The positions of all columns, each in one role."""

    # The primary key, partition columns included.
    keys: tuple[int, ...]
    # What is written, without the key.
    targets: tuple[int, ...]
    # What is not written, without the generated column.
    others: tuple[int, ...]
    # The auto-increment column.
    generated: int | None

    @classmethod
    def of(cls, schema: Schema, targets: Sequence[int]) -> ColumnRoles:
        keys = set(schema.primary_key_indexes)
        generated = generated_column(schema)
        written = set(targets) - keys
        rest = set(range(len(schema.columns))) - keys - written - {generated}
        return cls(tuple(sorted(keys)), tuple(sorted(written)), tuple(sorted(rest)), generated)


def generated_column(schema: Schema) -> int | None:
    """Return the position of the auto-increment column; None if the table has none."""
    names = schema.get_auto_increment_columns()
    return schema.index_of(names[0]) if names else None


def drawn_ids(column: Column, count: int, next_ids: NextIds | None) -> pa.Array:
    """Draw ids for so many new rows, as values of the auto-increment column. None are drawn for no rows."""
    assert next_ids is not None, "a table with an auto-increment column has ids"
    ids = next_ids(count) if count else []
    if ids and column.data_type.root is TypeRoot.INTEGER and max(ids) > _INT32_MAX:
        raise FlussError(
            f"The ids of the auto-increment column '{column.name}' are used up: an INT ends at {_INT32_MAX}; "
            "move the data to a table with a BIGINT column",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    return pa.array(ids, pa.int32() if column.data_type.root is TypeRoot.INTEGER else pa.int64())
