"""The golden vectors of the row formats, with their JSON values turned into types and internal values."""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

from fluss.row.values import Timestamp
from fluss.schema.type_text import parse_type
from fluss.schema.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    RowType,
    TimestampLtzType,
    TimestampType,
)

_PATH = Path(__file__).parents[2] / "golden" / "vectors.json"
# One vector spells two floats that JSON cannot.
_NAMED_FLOATS = {
    "FLT_MAX (7f7fffff)": float.fromhex("0x1.fffffep127"),
    "smallest subnormal (00000001)": 2.0**-149,
    "Inf": float("inf"),
    "-Inf": float("-inf"),
    "NaN": float("nan"),
}


@cache
def _all_vectors() -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads(_PATH.read_text(encoding="utf-8"))["vectors"]
    return vectors


def vectors_of(group: str) -> list[dict[str, Any]]:
    """Return the vectors of a group. A group without any is a mistake in the test."""
    found = [vector for vector in _all_vectors() if vector["group"] == group]
    assert found, group
    return found


def vector_id(vector: dict[str, Any]) -> str:
    return str(vector["id"])


def row_of(vector: dict[str, Any]) -> tuple[list[DataType], tuple[Any, ...]]:
    """Return the types and internal values of a vector that has several."""
    types = [parse_type(text) for text in vector["inputs"]["types"]]
    values = vector["inputs"]["values"]
    return types, tuple(internal(value, data_type) for value, data_type in zip(values, types, strict=True))


def field_of(vector: dict[str, Any]) -> tuple[DataType, Any]:
    """Return the type and internal value of a vector that has one of each."""
    data_type = parse_type(vector["inputs"]["type"])
    return data_type, internal(vector["inputs"]["value"], data_type)


def internal(value: Any, data_type: DataType) -> Any:
    match value, data_type:
        case None, _:
            return None
        case {"hex": text}, _:
            return bytes.fromhex(text)
        case {"unscaled": text}, _:
            return int(text)
        case {"millis": millis, "nanos": nanos}, _:
            return Timestamp(millis, nanos)
        case list(), ArrayType(element_type=element):
            return [internal(item, element) for item in value]
        case list(), MapType(key_type=key_type, value_type=value_type):
            return [(internal(key, key_type), internal(item, value_type)) for key, item in value]
        case list(), RowType():
            return tuple(internal(item, t) for item, t in zip(value, data_type.field_types, strict=True))
        case _, DoubleType():
            return _number(value)
        case _, FloatType():
            return struct.unpack("<f", struct.pack("<f", _number(value)))[0]
    return value


def _number(value: str | float) -> float:
    return _NAMED_FLOATS[value] if isinstance(value, str) and value in _NAMED_FLOATS else float(value)


def stored(value: Any, data_type: DataType) -> Any:
    """Return what a row keeps of a value: a timestamp of whole milliseconds has no room for more."""
    is_compact = isinstance(data_type, TimestampType | TimestampLtzType) and data_type.is_compact
    return Timestamp(value.millis) if is_compact and value is not None else value
