"""Types inside types: how deep they may go, and the ids of the fields inside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fluss.errors import FlussError
from fluss.schema.types import ArrayType, DataType, MapType, RowType

# A bare INT has depth 1, an ARRAY<INT> depth 2. Every reader of types stops here, so that no text, JSON or Arrow type
# of a stranger can exhaust the stack of the recursive functions that handle types.
NESTING_DEPTH_MAX = 64


def check_nesting_depth(depth: int) -> None:
    """Refuse to go ``depth`` levels deep into a type when that is more than any type may have."""
    if depth > NESTING_DEPTH_MAX:
        raise FlussError(f"The type is nested more than {NESTING_DEPTH_MAX} levels deep; use a flatter type")


def child_types(data_type: DataType) -> tuple[DataType, ...]:
    """Return the types directly inside: none, an element, a key and a value, or the fields of a ROW."""
    if isinstance(data_type, ArrayType):
        return (data_type.element_type,)
    if isinstance(data_type, MapType):
        return (data_type.key_type, data_type.value_type)
    if isinstance(data_type, RowType):
        return data_type.field_types
    return ()


def nesting_depth(data_type: DataType) -> int:
    """Count the levels of a type, failing as soon as there are too many."""
    return _depth(data_type, 1)


def _depth(data_type: DataType, depth: int) -> int:
    check_nesting_depth(depth)
    return max((_depth(child, depth + 1) for child in child_types(data_type)), default=depth)


def field_ids(data_type: DataType) -> Iterator[int]:
    """Yield the ids of all ROW fields inside a type, in the order in which they are numbered."""
    if isinstance(data_type, RowType):
        for row_field in data_type.fields:
            yield row_field.field_id
            yield from field_ids(row_field.data_type)
    else:
        for child in child_types(data_type):
            yield from field_ids(child)


def number_fields(data_type: DataType, first_id: int) -> tuple[DataType, int]:
    """Give every ROW field inside a type an id, depth first; return the type and the next free id.

    A field takes the next id before the fields inside its own type do.
    """
    next_id = first_id
    if isinstance(data_type, ArrayType):
        element_type, next_id = number_fields(data_type.element_type, next_id)
        return replace(data_type, element_type=element_type), next_id
    if isinstance(data_type, MapType):
        key_type, next_id = number_fields(data_type.key_type, next_id)
        value_type, next_id = number_fields(data_type.value_type, next_id)
        return replace(data_type, key_type=key_type, value_type=value_type), next_id
    if isinstance(data_type, RowType):
        fields = []
        for row_field in data_type.fields:
            field_id = next_id
            field_type, next_id = number_fields(row_field.data_type, field_id + 1)
            fields.append(replace(row_field, data_type=field_type, field_id=field_id))
        return replace(data_type, fields=tuple(fields)), next_id
    return data_type, next_id
