"""Change data capture: every change of a table, deletes included, to a copy in another cluster and to Parquet files.

Accounts are opened, changed and closed in a primary-key table. One streaming query applies its changelog to a table in
another cluster. Another one keeps the history: every change as a row of Parquet files, with its kind, its place in the
changelog and its time. Half way both are stopped while changes go on, and continue later where they were.

In the end the copy must be the table; the history, replayed, must give the table, too, and have every delete.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import fluss
from fluss import blocking, embedded
from fluss.spark import FlussSpark, session

ACCOUNTS = "bank.accounts"
ROUNDS = 8
OPENED, CHANGED, CLOSED = 3_000, 2_000, 500  # in each round
BEGAN_AT = time.perf_counter()


class Bank:
    """Opens, changes and closes accounts, the same in every run, and knows what there is."""

    def __init__(self, table: blocking.FlussTable) -> None:
        self._table = table
        self._rng = np.random.default_rng(5)
        self.cents: dict[int, int] = {}
        self.closed_count = 0
        self.changed_count = 0

    def work(self) -> None:
        """Do the business of one round."""
        with self._table.new_upsert().create_writer() as writer:
            first = len(self.cents) + self.closed_count
            opened = np.arange(first, first + OPENED)
            writer.upsert_arrow(self._set_balances(opened))
            changed = self._rng.choice(list(self.cents), CHANGED, replace=False)
            writer.upsert_arrow(self._set_balances(changed))
            closed = self._rng.choice(list(self.cents), CLOSED, replace=False)
            writer.delete_arrow(pa.table({"account": closed}))
        self.changed_count += CHANGED
        self.closed_count += CLOSED
        for account in closed.tolist():
            del self.cents[account]

    def _set_balances(self, accounts: np.ndarray) -> pa.Table:
        cents = self._rng.integers(0, 1_000_000, len(accounts))
        self.cents.update(zip(accounts.tolist(), cents.tolist(), strict=True))
        owners = pa.array([f"owner {account % 1000}" for account in accounts.tolist()])
        return pa.table({"account": accounts, "owner": owners, "cents": cents})


def create_table(fs: FlussSpark) -> None:
    fs.sql("CREATE DATABASE bank")
    fs.sql(f"""
        CREATE TABLE {ACCOUNTS} (account BIGINT, owner STRING, cents BIGINT, PRIMARY KEY (account))
        TBLPROPERTIES ('bucket.num' = '2')""")


def start_queries(source: FlussSpark, target: FlussSpark, directory: Path) -> list[StreamingQuery]:
    """Start both queries, or let them go on where their checkpoints say.

    A copy may begin with the rows there are, as inserts; the history has to begin with the first change.
    """
    rows_and_changes = source.read_stream(ACCOUNTS, changelog=True)
    all_changes = source.read_stream(ACCOUNTS, changelog=True, startup="earliest")
    copy = target.write_stream(
        rows_and_changes.drop("_log_offset", "_commit_timestamp"),
        ACCOUNTS,
        change_type_column="_change_type",
        checkpoint=str(directory / "copy-checkpoint"),
    )
    history = (
        all_changes.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "history-checkpoint"))
        .start(str(directory / "history"))
    )
    return [copy, history]


def stop(queries: list[StreamingQuery]) -> None:
    """Stop queries when they have read what there is."""
    for query in queries:
        query.processAllAvailable()
        query.stop()


def replayed(history: DataFrame) -> DataFrame:
    """Return the table as it was after the last change in its history.

    All changes of an account are in the log of one bucket, so their offsets are in order.
    """
    last = f.max_by(f.struct("_change_type", "cents"), "_log_offset").alias("last")
    return (
        history.where("_change_type != 'update_before'")
        .groupBy("account")
        .agg(last)
        .where("last._change_type != 'delete'")
        .select("account", "last.cents")
    )


def as_dict(table: pa.Table) -> dict[int, int]:
    return dict(zip(table["account"].to_pylist(), table["cents"].to_pylist(), strict=True))


def say(text: str) -> None:
    print(f"{time.perf_counter() - BEGAN_AT:5.1f} s  {text}", flush=True)


def check(what: str, found: object, expected: object) -> None:
    if found != expected:
        sys.exit(f"WRONG: {what}\n  found    {str(found)[:300]}\n  expected {str(expected)[:300]}")
    say(f"right: {what}")


def check_results(spark: SparkSession, target: FlussSpark, bank: Bank, directory: Path) -> None:
    check(f"the copy has the {len(bank.cents):,} accounts", as_dict(target.read(ACCOUNTS).toArrow()), bank.cents)
    history = spark.read.parquet(str(directory / "history"))
    counted = {row["_change_type"]: row["count"] for row in history.groupBy("_change_type").count().collect()}
    expected = {
        "insert": ROUNDS * OPENED,
        "update_before": bank.changed_count,
        "update_after": bank.changed_count,
        "delete": bank.closed_count,
    }
    check(f"the history has {sum(expected.values()):,} changes, {bank.closed_count:,} deletes", counted, expected)
    check("the history, replayed, is the table", as_dict(replayed(history).toArrow()), bank.cents)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        embedded.start(process=True) as here,
        embedded.start(process=True) as there,
        blocking.FlussConnection.create(here.config()) as connection,
    ):
        directory = Path(name)
        spark = session("change data capture")
        say("Spark is up")
        source = FlussSpark(spark, bootstrap_servers=here.bootstrap_servers)
        target = FlussSpark(spark, bootstrap_servers=there.bootstrap_servers)
        for cluster in (source, target):
            create_table(cluster)
        bank = Bank(connection.get_table(fluss.TablePath(*ACCOUNTS.split("."))))
        queries = start_queries(source, target, directory)
        for number in range(1, ROUNDS + 1):
            if number == ROUNDS // 2:
                stop(queries)
                say("both queries are stopped; changes go on")
            bank.work()
            say(f"{number} of {ROUNDS}: {OPENED:,} accounts opened, {CHANGED:,} changed, {CLOSED:,} closed")
            if number == ROUNDS // 2 + 1:
                queries = start_queries(source, target, directory)
                say("both queries go on where they were")
        stop(queries)
        check_results(spark, target, bank, directory)
        spark.stop()


if __name__ == "__main__":
    main()
