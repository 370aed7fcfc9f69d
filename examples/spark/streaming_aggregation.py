"""Count page views while they come, exactly, whatever is restarted on the way.

Page views arrive in a log table, some of them late. Two streaming queries count them:

- per page and minute of their own time, with Spark's state, into a table with one row per page and minute;
- per page, without any state in Spark: every view is written with the number 1, and the table adds up.

The second would be wrong at once if a row were written twice. On the way both queries are stopped, miss some views and
go on from their checkpoints; and while they run the server is killed. In the end every count must be right.
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import fluss
from fluss import blocking, embedded
from fluss.spark import FlussSpark, session

VIEWS, PER_MINUTE, TOTALS = "web.views", "web.views_per_minute", "web.views_in_all"
PAGES = [f"/page/{number:02d}" for number in range(40)]
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
ROUNDS = 6
VIEWS_PER_ROUND = 20_000
LATE_S_MAX = 90
BEGAN_AT = time.perf_counter()


class Visitors:
    """Make page views, the same ones in every run, and remember how many there were."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(11)
        self._round = 0
        self.by_minute = np.zeros((len(PAGES), ROUNDS * 2 + 2), np.int64)

    def next_views(self) -> pa.Table:
        """Return the views of two minutes, in no order; some belong to the minutes before."""
        pages = np.minimum(self._rng.geometric(0.1, VIEWS_PER_ROUND), len(PAGES)) - 1
        late_s = self._rng.integers(0, LATE_S_MAX, VIEWS_PER_ROUND)
        seconds = np.maximum(self._round * 120 + self._rng.integers(0, 120, VIEWS_PER_ROUND) - late_s, 0)
        np.add.at(self.by_minute, (pages, seconds // 60), 1)
        self._round += 1
        seen_at = pa.array((int(FIRST_DAY.timestamp()) + seconds) * 1_000_000).cast(pa.timestamp("us", "UTC"))
        return pa.table({"page": pa.array(PAGES).take(pa.array(pages)), "seen_at": seen_at})


def create_tables(fs: FlussSpark) -> None:
    fs.sql("CREATE DATABASE web")
    fs.sql(f"CREATE TABLE {VIEWS} (page STRING, seen_at TIMESTAMP) TBLPROPERTIES ('bucket.num' = '2')")
    fs.sql(f"""
        CREATE TABLE {PER_MINUTE} (page STRING, minute TIMESTAMP, views BIGINT, PRIMARY KEY (page, minute))
        TBLPROPERTIES ('bucket.num' = '1')""")
    fs.sql(f"""
        CREATE TABLE {TOTALS} (page STRING, views BIGINT, PRIMARY KEY (page))
        TBLPROPERTIES ('bucket.num' = '1', 'table.merge-engine' = 'aggregation', 'fields.views.agg' = 'sum')""")


def start_queries(fs: FlussSpark, checkpoints: Path) -> list[StreamingQuery]:
    """Start both queries, or let them go on where their checkpoints say."""
    views = fs.read_stream(VIEWS)
    per_minute = (
        views.withWatermark("seen_at", f"{LATE_S_MAX + 120} seconds")
        .groupBy("page", f.window("seen_at", "1 minute").start.alias("minute"))
        .agg(f.count("*").alias("views"))
    )
    ones = views.select("page", f.lit(1).cast("bigint").alias("views"))
    return [
        fs.write_stream(per_minute, PER_MINUTE, checkpoint=str(checkpoints / "minutes"), output_mode="update"),
        fs.write_stream(ones, TOTALS, checkpoint=str(checkpoints / "totals")),
    ]


def stop(queries: list[StreamingQuery]) -> None:
    """Stop queries when they have read what there is."""
    for query in queries:
        query.processAllAvailable()
        query.stop()


def say(text: str) -> None:
    print(f"{time.perf_counter() - BEGAN_AT:5.1f} s  {text}", flush=True)


def check(what: str, found: object, expected: object) -> None:
    if found != expected:
        sys.exit(f"WRONG: {what}\n  found    {str(found)[:300]}\n  expected {str(expected)[:300]}")
    say(f"right: {what}")


def check_results(connection: blocking.FlussConnection, visitors: Visitors) -> None:
    found = connection.get_table(fluss.TablePath(*PER_MINUTE.split("."))).to_arrow().to_pylist()
    expected = {
        (page, FIRST_DAY + timedelta(minutes=minute)): int(visitors.by_minute[i, minute])
        for i, page in enumerate(PAGES)
        for minute in range(visitors.by_minute.shape[1])
        if visitors.by_minute[i, minute]
    }
    counts = {(row["page"], row["minute"]): row["views"] for row in found}
    check(f"the views of {len(expected)} pages and minutes", counts, expected)

    totals = dict(zip(PAGES, visitors.by_minute.sum(axis=1).tolist(), strict=True))
    lookuper = connection.get_table(fluss.TablePath(*TOTALS.split("."))).new_lookup().create_lookuper()
    by_page = {page: row["views"] if (row := lookuper.lookup([page])) else 0 for page in PAGES}
    check(f"{sum(totals.values()):,} views of {len(PAGES)} pages, looked up one by one", by_page, totals)


def main() -> None:
    visitors = Visitors()
    with tempfile.TemporaryDirectory() as directory, embedded.start(process=True) as server:
        spark = session("streaming aggregation")
        say("Spark is up")
        fs = FlussSpark(spark, bootstrap_servers=server.bootstrap_servers)
        with blocking.FlussConnection.create(server.config()) as connection:
            create_tables(fs)
            views = connection.get_table(fluss.TablePath(*VIEWS.split(".")))
            queries = start_queries(fs, Path(directory))
            for number in range(1, ROUNDS + 1):
                with views.new_append().create_writer() as writer:
                    writer.write_arrow(visitors.next_views())
                say(f"{number} of {ROUNDS}: {VIEWS_PER_ROUND:,} views more")
                if number == 2:
                    stop(queries)
                    say("both queries are stopped; views go on")
                if number == 3:
                    queries = start_queries(fs, Path(directory))
                    say("both queries go on from their checkpoints")
                if number == 4:
                    server.kill()
                    server.restart()
                    say("the server was killed, and is back")
            stop(queries)
            check_results(connection, visitors)
        spark.stop()


if __name__ == "__main__":
    main()
