"""A data pipeline on Spark, from the first order to the checked result, in about a minute: `make run`.

A shop writes orders into a log table. Spark Structured Streaming reads them as they come, adds the country of each
customer, and keeps the revenue per country and product in a primary-key table, exactly once. Then a batch query in SQL
joins the tables and computes the same anew, and lookups read the result by key. Everything is compared with what the
shop has sent.

    python examples/pipeline.py --orders 1000000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from fluss import blocking, embedded
from fluss.spark import FlussSpark, session

ORDERS, CUSTOMERS, REVENUE = "shop.orders", "shop.customers", "shop.revenue"
COUNTRIES = ["Austria", "Brazil", "Canada", "Denmark", "Egypt", "France", "Ghana", "India"]
PRODUCTS = [f"product-{number:02d}" for number in range(25)]
CUSTOMER_COUNT = 20_000
BATCH_ROWS = 10_000
ORDERS_PER_SECOND = 60_000
MICRO_BATCH_ROWS_MAX = 75_000
BUCKETS = 2
ONE_CENT = pa.scalar(Decimal("0.01"))


class Shop:
    """Makes orders, reproducibly, and remembers what they add up to."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.order_count = 0
        self.counts = np.zeros((len(COUNTRIES), len(PRODUCTS)), np.int64)
        self.cents = np.zeros_like(self.counts)

    def customers(self) -> pa.Table:
        numbers = np.arange(CUSTOMER_COUNT)
        countries = pa.array(COUNTRIES).take(pa.array(numbers % len(COUNTRIES)))
        return pa.table({"customer": numbers, "country": countries})

    def next_orders(self, row_count: int) -> pa.RecordBatch:
        customers = self._rng.integers(0, CUSTOMER_COUNT, row_count)
        products = self._rng.integers(0, len(PRODUCTS), row_count)
        cents = self._rng.integers(99, 50_000, row_count)
        cell = customers % len(COUNTRIES), products
        np.add.at(self.counts, cell, 1)
        np.add.at(self.cents, cell, cents)
        ids = np.arange(self.order_count, self.order_count + row_count)
        self.order_count += row_count
        return pa.record_batch(
            {
                "order_id": ids,
                "customer": customers,
                "product": pa.array(PRODUCTS).take(pa.array(products)),
                "amount": pc.multiply(pa.array(cents).cast(pa.decimal128(19, 0)), ONE_CENT).cast(pa.decimal128(12, 2)),
            }
        )

    def expected(self) -> dict[tuple[str, str], tuple[int, Decimal]]:
        """Return orders and revenue by country and product."""
        return {
            (country, product): (int(self.counts[i, j]), Decimal(int(self.cents[i, j])))
            for i, country in enumerate(COUNTRIES)
            for j, product in enumerate(PRODUCTS)
            if self.counts[i, j]
        }


def say(text: str = "") -> None:
    print(text, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Say what is done, and how long it took."""
    say(f"\n{title}")
    started = time.perf_counter()
    yield
    say(f"  {time.perf_counter() - started:.1f} s")


def check(what: str, is_right: bool) -> None:
    if not is_right:
        raise SystemExit(f"  WRONG: {what}")
    say(f"  right: {what}")


def create_tables(fs: FlussSpark) -> None:
    fs.sql("CREATE DATABASE IF NOT EXISTS fluss.shop")
    fs.sql(f"""
        CREATE TABLE fluss.{ORDERS} (
            order_id BIGINT, customer BIGINT, product STRING, amount DECIMAL(12, 2)
        ) TBLPROPERTIES ('bucket.num' = '{BUCKETS}')""")
    fs.sql(f"""
        CREATE TABLE fluss.{CUSTOMERS} (
            customer BIGINT NOT NULL, country STRING, PRIMARY KEY (customer) NOT ENFORCED
        ) TBLPROPERTIES ('bucket.num' = '1')""")
    fs.sql(f"""
        CREATE TABLE fluss.{REVENUE} (
            country STRING NOT NULL, product STRING NOT NULL, orders BIGINT, amount DECIMAL(22, 2),
            PRIMARY KEY (country, product) NOT ENFORCED
        ) TBLPROPERTIES ('bucket.num' = '1')""")


def start_query(fs: FlussSpark, checkpoint: Path) -> StreamingQuery:
    """Enrich the orders as they come, and keep the sums in the primary-key table."""
    orders = fs.read_stream(ORDERS, startup="earliest", max_rows=MICRO_BATCH_ROWS_MAX)
    customers = f.broadcast(fs.read(CUSTOMERS))
    revenue = (
        orders.join(customers, "customer")
        .groupBy("country", "product")
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
    )
    return fs.write_stream(revenue, REVENUE, checkpoint=str(checkpoint), output_mode="update", query_name="revenue")


def send_orders(shop: Shop, table: blocking.FlussTable, order_count: int) -> None:
    """Write orders at a steady pace, in this thread."""
    started, sent_before = time.perf_counter(), shop.order_count
    with table.new_append().create_writer() as writer:
        while shop.order_count < order_count:
            writer.write_arrow_batch(shop.next_orders(min(BATCH_ROWS, order_count - shop.order_count)))
            ahead_s = (shop.order_count - sent_before) / ORDERS_PER_SECOND - (time.perf_counter() - started)
            time.sleep(max(ahead_s, 0))


def watch(query: StreamingQuery, shop: Shop, sender: threading.Thread, order_count: int) -> None:
    """Show how far everything is, until the query has read all orders."""
    read_by_batch: dict[int, int] = {}
    shown_at = 0.0
    while True:
        if (error := query.exception()) is not None:
            raise error
        for progress in query.recentProgress:
            read_by_batch[progress.batchId] = progress.numInputRows
        read = sum(read_by_batch.values())
        is_done = read >= order_count and not sender.is_alive()
        on_terminal = sys.stdout.isatty()
        if is_done or time.monotonic() - shown_at >= (0.2 if on_terminal else 3.0):
            shown_at = time.monotonic()
            share = read / order_count
            bar = "#" * int(share * 30)
            line = f"  [{bar:<30}] {share:4.0%}   sent {shop.order_count:>9,}   processed {read:>9,}"
            line += f"   micro-batches {len(read_by_batch):>3}"
            print(f"\r{line}" if on_terminal else line, end="" if on_terminal and not is_done else "\n", flush=True)
        if is_done:
            return
        time.sleep(0.1)


def sums(rows: list[dict[str, object]]) -> dict[object, object]:
    return {(row["country"], row["product"]): (row["orders"], row["amount"]) for row in rows}


def in_cents(found: dict[object, object]) -> dict[object, object]:
    return {key: (orders, amount * 100) for key, (orders, amount) in found.items()}  # type: ignore[misc]


def batch_query(fs: FlussSpark) -> DataFrame:
    fs.attach("shop")
    return fs.sql(f"""
        SELECT country, product, count(*) AS orders, sum(amount) AS amount
        FROM {ORDERS} JOIN {CUSTOMERS} USING (customer)
        GROUP BY country, product""")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=600_000, help="how many orders the shop sends (default: 600,000)")
    order_count = parser.parse_args().orders
    began_at = time.perf_counter()
    shop = Shop(seed=7)
    with tempfile.TemporaryDirectory() as directory, embedded.start(process=True) as server:
        say(f"A Fluss server listens on {server.bootstrap_servers}")
        with step("Starting Spark"):
            spark = session("orders pipeline")
            fs = FlussSpark(spark, bootstrap_servers=server.bootstrap_servers)
        with blocking.FlussConnection.create(server.config()) as connection:
            with step(f"Creating three tables, and {CUSTOMER_COUNT:,} customers"):
                create_tables(fs)
                customers = connection.get_table(blocking.TablePath(*CUSTOMERS.split(".")))
                with customers.new_upsert().create_writer() as writer:
                    writer.upsert_arrow(shop.customers())
            orders = connection.get_table(blocking.TablePath(*ORDERS.split(".")))
            with step("Starting the query; for its first orders Spark has to get everything ready"):
                query = start_query(fs, Path(directory) / "checkpoint")
                send_orders(shop, orders, min(BATCH_ROWS, order_count))
                query.processAllAvailable()
            with step(f"Streaming: {order_count:,} orders, enriched and summed up while they come"):
                streamed_count = order_count - shop.order_count
                sender = threading.Thread(target=send_orders, args=(shop, orders, order_count), daemon=True)
                sender.start()
                streamed_from = time.perf_counter()
                watch(query, shop, sender, order_count)
                query.processAllAvailable()
                streamed_s = time.perf_counter() - streamed_from
                durations = [progress.durationMs["triggerExecution"] for progress in query.recentProgress]
                query.stop()
            expected = shop.expected()
            with step("The result by client: every row of the primary-key table, and some by key"):
                revenue = connection.get_table(blocking.TablePath(*REVENUE.split(".")))
                found = in_cents(sums(revenue.to_arrow().to_pylist()))
                check(f"{len(found)} rows, {sum(shop.counts.flat):,} orders, every sum to the cent", found == expected)
                lookuper = revenue.new_lookup().create_lookuper()
                keys = [key for number, key in enumerate(expected) if number % 3 == 0]
                by_key = [lookuper.lookup({"country": country, "product": product}) for country, product in keys]
                is_same = in_cents(sums([row for row in by_key if row is not None]))
                check(f"{len(keys)} lookups", is_same == {key: expected[key] for key in keys})
            with step("The same as a batch query: SQL over the log table and the customers"):
                answer = in_cents(sums(batch_query(fs).toArrow().to_pylist()))
                check("the join of all orders gives the same sums", answer == expected)
        spark.stop()
    total_s = time.perf_counter() - began_at
    amount = Decimal(int(shop.cents.sum())) / 100
    say(f"""
Report
  orders                 {order_count:>14,}
  revenue                {amount:>14,.2f}
  rows of the result     {len(expected):>14,}
  micro-batches          {len(durations):>14,}   median {np.median(durations):,.0f} ms
  streamed               {streamed_count / streamed_s:>14,.0f}   orders per second, from sending to the sums
  everything             {total_s:>14.0f}   seconds""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
