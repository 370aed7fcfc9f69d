"""Fluss tables in Spark: batch, streaming and SQL.

    from fluss.spark import FlussSpark, session

    fs = FlussSpark(session(), bootstrap_servers="localhost:9123")
    fs.read("sales.orders", columns=["id", "price"]).show()

Importing this needs no PySpark and does not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Not on first use, as the class below: a module that is imported later would take the place of the function.
import fluss.neighbours  # noqa: F401 - it looks for what would be in the way
from fluss.spark.session import session as session
from fluss.spark.session.workers import prefer_this_python

if TYPE_CHECKING:
    from fluss.spark.fluss_spark import FlussSpark as FlussSpark

__all__ = ["FlussSpark", "session"]

prefer_this_python()


def __getattr__(name: str) -> Any:
    if name != "FlussSpark":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fluss.spark.session import check_pyspark

    check_pyspark()
    from fluss.spark.fluss_spark import FlussSpark

    return FlussSpark


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
