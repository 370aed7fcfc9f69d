"""The golden vectors, with their JSON values turned into types and internal values."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fluss.row.values import Timestamp
from fluss.schema.type_parser import parse_type
from fluss.schema.types import ArrayType, DataType, DoubleType, FloatType, MapType, RowType

Vector = dict[str, Any]

_PATH = Path(__file__).with_name("vectors.json")
# What the vectors write for floats that JSON cannot.
_NAMED_FLOATS = {
    "FLT_MAX (7f7fffff)": float.fromhex("0x1.fffffep127"),
    "smallest subnormal (00000001)": 2.0**-149,
    "Inf": float("inf"),
    "-Inf": float("-inf"),
    "NaN": float("nan"),
}


@cache
def document() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_PATH.read_text(encoding="utf-8"))
    return content


def all_vectors() -> list[Vector]:
    vectors: list[Vector] = document()["vectors"]
    return vectors


@cache
def _by_id() -> dict[str, Vector]:
    return {vector["id"]: vector for vector in all_vectors()}


def vector(vector_id: str) -> Vector:
    """Return one vector by its id."""
    return _by_id()[vector_id]


def vectors_of(*groups: str) -> list[Vector]:
    """Return the vectors of some groups. A group without any is a mistake in the test."""
    found = [of for of in all_vectors() if of["group"] in groups]
    assert {of["group"] for of in found} == set(groups), groups
    return found


def vector_id(of: Vector) -> str:
    return str(of["id"])


def expected_bytes(of: Vector) -> bytes:
    return bytes.fromhex(of["expected_hex"])


def types_of(of: Vector) -> list[DataType]:
    """Return the types of a vector that has several."""
    return [parse_type(text) for text in of["inputs"]["types"]]


def row_of(of: Vector) -> tuple[list[DataType], tuple[Any, ...]]:
    """Return the types and internal values of a vector that has several."""
    types, values = types_of(of), of["inputs"]["values"]
    return types, tuple(internal(value, data_type) for value, data_type in zip(values, types, strict=True))


def field_of(of: Vector) -> tuple[DataType, Any]:
    """Return the type and internal value of a vector that has one of each."""
    data_type = parse_type(of["inputs"]["type"])
    return data_type, internal(of["inputs"]["value"], data_type)


def internal(value: Any, data_type: DataType) -> Any:
    """Turn a JSON value of a vector into the internal value of its type."""
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
        case _, FloatType():
            return float(np.float32(_NAMED_FLOATS.get(value, value)))
        case _, DoubleType():
            return float(_NAMED_FLOATS.get(value, value))
    return value
