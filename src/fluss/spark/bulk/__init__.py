"""Bulk jobs whose rows never pass through the JVM: load files, export to files, copy tables.

Without PySpark there are only the parts that do not need it, such as ``table_copy``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fluss.spark.bulk.reports import BucketCheck, CopyReport, ExportReport, LoadReport, Progress, TableCopyReport
from fluss.spark.bulk.task_results import UnfitInputError

if TYPE_CHECKING or find_spec("pyspark") is not None:
    from fluss.spark.bulk.copy import copy
    from fluss.spark.bulk.export import export
    from fluss.spark.bulk.load import load

__all__ = [
    "BucketCheck",
    "CopyReport",
    "ExportReport",
    "LoadReport",
    "Progress",
    "TableCopyReport",
    "UnfitInputError",
    "copy",
    "export",
    "load",
]
