"""Spark beside what users have around it: virtual environments that nobody activated, and pandas 3.
Shown by a program with a session of its own, and by all ways in which PySpark uses pandas."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import pandas_udf

from fluss import embedded
from fluss.spark import FlussSpark
from fluss.spark.session.java import find_java

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from fluss.spark import FlussSpark

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
fs = FlussSpark(spark, bootstrap_servers=sys.argv[1])
fs.catalog.create_table("fluss.venv", "id BIGINT", bucket_count=1)
fs.write(spark.range(3), "fluss.venv")
print(sorted(row.id for row in fs.read("fluss.venv").collect()))
"""


@pytest.mark.slow
def test_workers_find_the_package_in_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    # The first python3 that Spark would find has none of the packages.
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "VIRTUAL_ENV")}
    variables = {**kept, "PATH": f"{tmp_path}:/usr/bin:/bin", "JAVA_HOME": str(find_java().home)}
    with embedded.start({"durability": "os"}) as server:
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.bootstrap_servers],
            env=variables,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert answer.stdout == "[0, 1, 2]\n", answer.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas", "ignore:.*The copy keyword")
def test_data_frames_of_the_installed_pandas_go_both_ways(
    spark: SparkSession, bootstrap_servers: str, database: str
) -> None:
    fs = FlussSpark(spark, bootstrap_servers=bootstrap_servers)
    table = f"{database}.t"
    columns = "id BIGINT, name STRING, at TIMESTAMP"
    fs.catalog.create_table(table, columns, bucket_count=1)
    times = pd.to_datetime(["2026-01-01", "2026-01-02", None])
    fs.write(fs.spark.createDataFrame(pd.DataFrame({"id": [1, 2, 3], "name": ["a", None, "c"], "at": times})), table)
    read = fs.read(table).orderBy("id").toPandas()
    assert read["name"].isna().tolist() == [False, True, False]
    assert read["at"].isna().tolist() == [False, False, True]

    def same(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from frames

    mapped = fs.read(table).mapInPandas(same, columns).orderBy("id").toPandas()
    pd.testing.assert_frame_equal(mapped, read)

    @pandas_udf("string")  # type: ignore[call-overload,untyped-decorator] # PySpark's own
    def upper(names: pd.Series) -> pd.Series:
        return names.str.upper()

    assert sorted(row[0] or "" for row in fs.read(table).select(upper("name")).collect()) == ["", "A", "C"]
