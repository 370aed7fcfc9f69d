"""Spark on a Fluss table: how long it takes until a mistake is told that no second attempt can mend.

Each is done once, in a session that has read and written before. The seconds are those of a machine with nothing else
to do; most of them are Python workers that Spark starts anew after a task has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from fluss import embedded
from fluss.spark import FlussSpark, session

Line = tuple[str, float, str, str]
_DATABASE: Final = "bench"


def measure() -> Iterator[Line]:
    with embedded.start({"durability": "os"}, process=True) as server:
        spark = session("fluss-bench")
        try:
            yield from _measured(FlussSpark(spark, bootstrap_servers=server.bootstrap_servers))
        finally:
            spark.stop()


def _measured(fs: FlussSpark) -> Iterator[Line]:
    spark = fs.spark
    fs.catalog.create_database(_DATABASE)
    plain, days = f"{_DATABASE}.plain", f"{_DATABASE}.days"
    fs.catalog.create_table(plain, "id BIGINT NOT NULL", bucket_count=1)
    fs.catalog.create_table(days, "id BIGINT, day STRING", partition_keys=["day"], bucket_count=1)
    fs.catalog.add_partition(days, {"day": "monday"})
    fs.write(spark.range(1), plain)
    fs.write(spark.sql("SELECT 1L AS id, 'monday' AS day"), days)
    monday = fs.read(days)
    monday.count()
    nulls = spark.createDataFrame([(None,)], "id BIGINT")
    yield "spark: write of a null into NOT NULL, until the error", _until_error(lambda: fs.write(nulls, plain)), "s", ""
    missing = spark.sql("SELECT 1L AS id, 'tuesday' AS day")
    took_s = _until_error(lambda: fs.write(missing, days))
    yield "spark: write into a partition that does not exist, until the error", took_s, "s", ""
    fs.catalog.drop_partition(days, {"day": "monday"})
    yield "spark: read of a partition dropped since the plan, until the error", _until_error(monday.collect), "s", ""
    took_s = _until_error(lambda: fs.read(plain, filter="nosuch > 1").count())
    yield "spark: read with a filter on no column, until the error", took_s, "s", ""


def _until_error(call: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    try:
        call()
    except Exception:
        return time.perf_counter() - begun_s
    raise AssertionError("it cannot be done")
