"""Which Python runs the workers of Spark: this one, unless a setting says otherwise."""

from __future__ import annotations

import os
import shutil
import sys


def prefer_this_python() -> None:
    """Have sessions that are started later run their workers with this interpreter.

    Spark takes the first ``python3`` that it finds. Where a virtual environment was not activated that is another one,
    with neither Fluss nor PySpark. What the user has set, and programs that spark-submit has started, stay as they are.
    """
    decided = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
    if sys.prefix == sys.base_prefix or any(name in os.environ for name in decided):
        return
    found = shutil.which("python3")
    if found is None or os.path.dirname(found) != os.path.dirname(sys.executable):
        os.environ["PYSPARK_PYTHON"] = sys.executable
