"""ETL from files: three kinds of files become tables, cleaned and checked on the way, and a report becomes files.

A shop delivers files. Customers (Parquet) and products (JSON lines) are loaded as they are, by the path that moves no
row through Java. Orders (CSV) are as such files are: some are delivered twice, some cannot be read. Spark sorts them
out: good ones go into a log table with a partition for each day, bad ones into a table of their own. A second file of
customers changes only their countries. The report joins everything, is kept in a table, and exported to Parquet.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fluss import embedded
from fluss.spark import FlussSpark, session

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
COUNTRIES = ["Austria", "Brazil", "Canada", "Denmark"]
CATEGORIES = ["books", "garden", "toys"]
CUSTOMER_COUNT, PRODUCT_COUNT = 20_000, 300
MOVED_COUNT = 2_000
ORDERS_PER_DAY = 30_000
TWICE_PER_DAY, BROKEN_PER_DAY = 300, 100
BEGAN_AT = time.perf_counter()


class Delivery:
    """Writes the files, the same ones in every run, and knows what the report must say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._rng = np.random.default_rng(21)
        self._countries = self._rng.integers(0, len(COUNTRIES), CUSTOMER_COUNT)
        self.revenue: defaultdict[tuple[str, str, str], int] = defaultdict(int)

    def write_files(self) -> None:
        self._write_customers()
        moved = self._rng.choice(CUSTOMER_COUNT, MOVED_COUNT, replace=False)
        self._countries[moved] = self._rng.integers(0, len(COUNTRIES), MOVED_COUNT)
        changes = pa.table({"customer": moved, "country": self._country_names()[moved]})
        pq.write_table(changes, self.directory / "moved.parquet")
        self._write_products()
        for day in DAYS:
            self._write_orders(day)

    def _country_names(self) -> np.ndarray:
        return np.array(COUNTRIES, object)[self._countries]

    def _write_customers(self) -> None:
        numbers = np.arange(CUSTOMER_COUNT)
        names = [f"customer {number}" for number in numbers.tolist()]
        table = pa.table({"customer": numbers, "name": names, "country": self._country_names()})
        (self.directory / "customers").mkdir()
        for part in range(2):
            half = table.slice(part * CUSTOMER_COUNT // 2, CUSTOMER_COUNT // 2)
            pq.write_table(half, self.directory / "customers" / f"part-{part}.parquet")

    def _write_products(self) -> None:
        with open(self.directory / "products.jsonl", "w", encoding="utf-8") as file:
            for product in range(PRODUCT_COUNT):
                row = {"product": product, "category": CATEGORIES[product % len(CATEGORIES)], "tags": ["new", "blue"]}
                file.write(json.dumps(row) + "\n")

    def _write_orders(self, day: str) -> None:
        first = DAYS.index(day) * ORDERS_PER_DAY
        customers = self._rng.integers(0, CUSTOMER_COUNT, ORDERS_PER_DAY).tolist()
        products = self._rng.integers(0, PRODUCT_COUNT, ORDERS_PER_DAY).tolist()
        cents = self._rng.integers(100, 50_000, ORDERS_PER_DAY).tolist()
        rows: list[list[object]] = []
        for number, (customer, product, amount) in enumerate(zip(customers, products, cents, strict=True)):
            rows.append([first + number, customer, product, f"{amount / 100:.2f}", day])
            country = COUNTRIES[self._countries[customer]]
            self.revenue[day, country, CATEGORIES[product % len(CATEGORIES)]] += amount
        rows += [list(row) for row in rows[:TWICE_PER_DAY]]
        rows += [[first + number, "", number, "n/a", day] for number in range(BROKEN_PER_DAY)]
        order = self._rng.permutation(len(rows)).tolist()
        (self.directory / "orders").mkdir(exist_ok=True)
        with open(self.directory / "orders" / f"{day}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["order", "customer", "product", "amount", "day"])
            writer.writerows(rows[number] for number in order)


def create_tables(fs: FlussSpark) -> None:
    fs.sql("CREATE DATABASE shop")
    fs.sql("CREATE TABLE shop.customers (customer BIGINT, name STRING, country STRING, PRIMARY KEY (customer))")
    fs.sql("CREATE TABLE shop.products (product BIGINT, category STRING, tags ARRAY<STRING>, PRIMARY KEY (product))")
    fs.sql("""
        CREATE TABLE shop.orders (order BIGINT, customer BIGINT, product BIGINT, amount DECIMAL(12, 2), day STRING)
        PARTITIONED BY (day) TBLPROPERTIES ('bucket.num' = '2')""")
    for day in DAYS:
        fs.sql(f"ALTER TABLE shop.orders ADD PARTITION (day = '{day}')")
    fs.sql("CREATE TABLE shop.rejected_orders (line STRING, day STRING)")
    fs.sql("""
        CREATE TABLE shop.revenue (
            day STRING, country STRING, category STRING, amount DECIMAL(22, 2), PRIMARY KEY (day, country, category)
        )""")


def cleaned(raw: DataFrame) -> DataFrame:
    """Return every order that can be read, once, with the types of the table."""
    return raw.where("amount IS NOT NULL AND customer IS NOT NULL").dropDuplicates(["order"])


def read_orders(spark: SparkSession, directory: Path) -> DataFrame:
    """Read the CSV files; what is no number becomes null."""
    texts = spark.read.option("header", True).csv(str(directory / "orders"))
    numbers = {"order": "bigint", "customer": "bigint", "product": "bigint", "amount": "decimal(12, 2)"}
    columns = [f.col(name).try_cast(kind).alias(name) for name, kind in numbers.items()]
    line = f.to_csv(f.struct("*")).alias("line")
    return texts.select(*columns, "day", line)


def load(spark: SparkSession, fs: FlussSpark, directory: Path) -> None:
    loaded = fs.bulk_load(str(directory / "customers"), "shop.customers")
    check(f"{CUSTOMER_COUNT:,} customers from Parquet", loaded.rows, CUSTOMER_COUNT)
    loaded = fs.bulk_load(str(directory / "products.jsonl"), "shop.products")
    check(f"{PRODUCT_COUNT:,} products from JSON", loaded.rows, PRODUCT_COUNT)

    moved = spark.read.parquet(str(directory / "moved.parquet"))
    fs.upsert(moved, "shop.customers", target_columns=["customer", "country"])

    raw = read_orders(spark, directory)
    fs.write(cleaned(raw).drop("line"), "shop.orders")
    fs.write(raw.where("amount IS NULL OR customer IS NULL").select("line", "day"), "shop.rejected_orders")


def report(fs: FlussSpark, path: Path) -> None:
    fs.attach("shop")
    fs.sql("""
        INSERT INTO shop.revenue
        SELECT day, country, category, sum(amount)
        FROM shop.orders JOIN shop.customers USING (customer) JOIN shop.products USING (product)
        GROUP BY day, country, category""")
    fs.export("shop.revenue", str(path))


def say(text: str) -> None:
    print(f"{time.perf_counter() - BEGAN_AT:5.1f} s  {text}", flush=True)


def check(what: str, found: object, expected: object) -> None:
    if found != expected:
        sys.exit(f"WRONG: {what}\n  found    {str(found)[:300]}\n  expected {str(expected)[:300]}")
    say(f"right: {what}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name, embedded.start(process=True) as server:
        delivery = Delivery(Path(name))
        delivery.write_files()
        say(f"files: {len(DAYS)} of orders with {len(DAYS) * ORDERS_PER_DAY:,} rows, customers, products")
        spark = session("ETL")
        say("Spark is up")
        fs = FlussSpark(spark, bootstrap_servers=server.bootstrap_servers)
        create_tables(fs)
        load(spark, fs, delivery.directory)

        orders = fs.read("shop.orders", columns=["order"])
        check(f"{len(DAYS) * ORDERS_PER_DAY:,} orders, each one once", orders.count(), len(DAYS) * ORDERS_PER_DAY)
        rejected = fs.read("shop.rejected_orders").count()
        check(f"{rejected} that could not be read are kept apart", rejected, len(DAYS) * BROKEN_PER_DAY)
        one_day = fs.read("shop.orders", partitions=f"day={DAYS[1]}").count()
        check("one day alone, from its partition", one_day, ORDERS_PER_DAY)

        report(fs, delivery.directory / "report")
        rows = pq.read_table(delivery.directory / "report").to_pylist()
        found = {(row["day"], row["country"], row["category"]): int(row["amount"] * 100) for row in rows}
        check(f"the report in Parquet: {len(rows)} sums, to the cent", found, delivery.revenue)
        spark.stop()


if __name__ == "__main__":
    main()
