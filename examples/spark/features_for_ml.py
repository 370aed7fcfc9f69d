"""Features for machine learning: kept up to date by a stream, served by key, replayed for training.

Payments arrive in a log table. A streaming query keeps features of every customer in a primary-key table. A service
looks up the features of the payer, scores them, and writes down whom it scored and when.

For training, features are needed as they were when a customer was scored: with those of today a model would learn from
the future. The changelog of the table has all versions with their times, so a query finds the right one of each. What
it finds must be what the service was given at the time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import fluss
from fluss import blocking, embedded
from fluss.spark import FlussSpark, session

PAYMENTS, FEATURES, SCORES = "shop.payments", "ml.features", "ml.scores"
FEATURE_NAMES = ["payments", "cents_in_all", "cents_at_most"]
CUSTOMERS = 5_000
ROUNDS = 6
PAYMENTS_PER_ROUND = 4_000
SCORED_PER_ROUND = 500
# The server dates changes by its clock, in milliseconds: far enough from them, "before" and "after" are certain.
CLOCK_GAP_S = 0.02
BEGAN_AT = time.perf_counter()


class Payments:
    """Payments, the same in every run, and the features that follow from them, computed without any table."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self._counts, self._sums, self._largest = (np.zeros(CUSTOMERS, np.int64) for _ in range(3))

    def next_payments(self) -> pa.Table:
        customers = self.rng.integers(0, CUSTOMERS, PAYMENTS_PER_ROUND)
        cents = self.rng.integers(100, 100_000, PAYMENTS_PER_ROUND)
        np.add.at(self._counts, customers, 1)
        np.add.at(self._sums, customers, cents)
        np.maximum.at(self._largest, customers, cents)
        return pa.table({"customer": customers, "cents": cents})

    def features(self, customer: int) -> list[int | None]:
        """Return what a customer's payments up to now amount to; nothing if there were none."""
        if self._counts[customer] == 0:
            return [None] * 3
        return [int(column[customer]) for column in (self._counts, self._sums, self._largest)]


def create_tables(fs: FlussSpark) -> None:
    for database in ("shop", "ml"):
        fs.sql(f"CREATE DATABASE {database}")
    fs.sql(f"CREATE TABLE {PAYMENTS} (customer BIGINT, cents BIGINT)")
    fs.sql(f"""
        CREATE TABLE {FEATURES} (
            customer BIGINT, payments BIGINT, cents_in_all BIGINT, cents_at_most BIGINT, PRIMARY KEY (customer)
        ) TBLPROPERTIES ('bucket.num' = '2')""")
    fs.sql(f"""
        CREATE TABLE {SCORES} (
            customer BIGINT, scored_at TIMESTAMP, payments BIGINT, cents_in_all BIGINT, cents_at_most BIGINT
        )""")


def start_query(fs: FlussSpark, checkpoint: Path) -> StreamingQuery:
    """Keep the features up to date; a micro-batch writes those that have changed."""
    features = (
        fs.read_stream(PAYMENTS)
        .groupBy("customer")
        .agg(
            f.count("*").alias("payments"),
            f.sum("cents").alias("cents_in_all"),
            f.max("cents").alias("cents_at_most"),
        )
    )
    return fs.write_stream(features, FEATURES, checkpoint=str(checkpoint), output_mode="update")


class Service:
    """Scores customers by their features of this moment, and writes down what it saw."""

    def __init__(self, connection: blocking.FlussConnection) -> None:
        self._lookuper = connection.get_table(fluss.TablePath(*FEATURES.split("."))).new_lookup().create_lookuper()
        self._scores = connection.get_table(fluss.TablePath(*SCORES.split(".")))

    def score(self, customers: np.ndarray) -> pa.Table:
        """Look up the features of customers, and return what was served."""
        found = self._lookuper.lookup_many(pa.table({"customer": customers}))
        scored_at = pa.array([datetime.now(UTC)] * len(customers), pa.timestamp("us", "UTC"))
        served = pa.table(found).add_column(1, "scored_at", scored_at)
        with self._scores.new_append().create_writer() as writer:
            writer.write_arrow(served)
        return served


def training_rows(fs: FlussSpark) -> DataFrame:
    """Return every score with the features as they were then: those of the last change before it.

    All changes of a customer are in the log of one bucket, so their offsets are in order.
    """
    scores = fs.read(SCORES).select("customer", "scored_at")
    versions = fs.changelog(FEATURES).where("_change_type IN ('insert', 'update_after')")
    is_known = (scores.customer == versions.customer) & (f.col("_commit_timestamp") <= f.col("scored_at"))
    return (
        scores.join(versions, is_known, "left")
        .groupBy(scores.customer, "scored_at")
        .agg(f.max_by(f.struct(*FEATURE_NAMES), "_log_offset").alias("then"))
        .select("customer", "scored_at", "then.*")
    )


def say(text: str) -> None:
    print(f"{time.perf_counter() - BEGAN_AT:5.1f} s  {text}", flush=True)


def check(what: str, found: object, expected: object) -> None:
    if found != expected:
        sys.exit(f"WRONG: {what}\n  found    {str(found)[:300]}\n  expected {str(expected)[:300]}")
    say(f"right: {what}")


def by_score(rows: pa.Table) -> dict[tuple[int, datetime], list[int | None]]:
    return {(row["customer"], row["scored_at"]): [row[name] for name in FEATURE_NAMES] for row in rows.to_pylist()}


def check_training(fs: FlussSpark, served: dict[tuple[int, datetime], list[int | None]]) -> None:
    replayed = by_score(training_rows(fs).toArrow())
    check(f"{len(served):,} training rows have the features that were served", replayed, served)
    today = {row["customer"]: [row[name] for name in FEATURE_NAMES] for row in fs.read(FEATURES).toArrow().to_pylist()}
    leaked = sum(today.get(customer) != features for (customer, _), features in served.items())
    say(f"features of today would have been wrong for {leaked:,} of them")


def main() -> None:
    payments = Payments()
    served: dict[tuple[int, datetime], list[int | None]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        embedded.start(process=True) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        spark = session("features")
        say("Spark is up")
        fs = FlussSpark(spark, bootstrap_servers=server.bootstrap_servers)
        create_tables(fs)
        incoming = connection.get_table(fluss.TablePath(*PAYMENTS.split(".")))
        service = Service(connection)
        query = start_query(fs, Path(directory) / "checkpoint")
        for number in range(1, ROUNDS + 1):
            with incoming.new_append().create_writer() as writer:
                writer.write_arrow(payments.next_payments())
            query.processAllAvailable()
            time.sleep(CLOCK_GAP_S)
            customers = payments.rng.choice(CUSTOMERS, SCORED_PER_ROUND, replace=False)
            rows = by_score(service.score(customers))
            expected = [payments.features(customer) for customer in customers.tolist()]
            check(f"round {number} of {ROUNDS}: {len(rows)} customers scored", list(rows.values()), expected)
            served |= rows
            time.sleep(CLOCK_GAP_S)
        query.stop()
        check_training(fs, served)
        spark.stop()


if __name__ == "__main__":
    main()
