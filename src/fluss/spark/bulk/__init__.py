"""Bulk jobs on Spark, whose rows never pass through the JVM: load files, export to files, copy tables."""

from __future__ import annotations

from fluss.spark.bulk.copy import copy
from fluss.spark.bulk.export import export
from fluss.spark.bulk.jobs import UnfitInputError
from fluss.spark.bulk.load import load
from fluss.spark.bulk.reports import BucketCheck, CopyReport, ExportReport, LoadReport, Progress, TableCopyReport

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
