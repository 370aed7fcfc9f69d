"""PySpark's own mapping of schemas to Arrow, in the way in which each of its versions wants to be asked."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def utc_arrow_schema(struct: StructType) -> pa.Schema:
    """Return the Arrow schema that PySpark has for a schema, with instants in UTC: before 4.2 the only zone."""
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(struct, **zone)
