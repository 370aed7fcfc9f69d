"""What a second row of a key does: deduplicate, keep the newest version, or add up. The server does the work."""

from __future__ import annotations

import pyarrow as pa

import fluss
from fluss import blocking, embedded


def create(
    connection: blocking.FlussConnection, name: str, schema: fluss.Schema, properties: dict[str, str]
) -> blocking.FlussTable:
    path = fluss.TablePath("fluss", name)
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1, properties=properties))
    return connection.get_table(path)


def deduplicate(connection: blocking.FlussConnection) -> None:
    schema = fluss.Schema(pa.schema([("event", pa.string()), ("page", pa.string())]), primary_keys=["event"])
    table = create(connection, "clicks", schema, {"table.merge-engine": "first_row"})
    with table.new_upsert().create_writer() as writer:
        for event in ("e1", "e2", "e1", "e1"):
            writer.upsert([event, "/start"])
    print("clicks, each once:", table.to_arrow().num_rows)


def keep_the_newest_version(connection: blocking.FlussConnection) -> None:
    schema = fluss.Schema(
        pa.schema([("item", pa.string()), ("price", pa.float64()), ("version", pa.int64())]), primary_keys=["item"]
    )
    properties = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "version"}
    table = create(connection, "prices", schema, properties)
    with table.new_upsert().create_writer() as writer:
        writer.upsert(["tea", 3.5, 2])
        writer.upsert(["tea", 3.0, 1])  # late, and too old
    print("price of tea:", table.new_lookup().create_lookuper().lookup(["tea"]))


def add_up(connection: blocking.FlussConnection) -> None:
    schema = fluss.Schema(
        pa.schema([("shop", pa.string()), ("revenue", pa.decimal128(12, 2)), ("orders", pa.int64())]),
        primary_keys=["shop"],
        aggregations={"revenue": "sum", "orders": "sum"},
    )
    table = create(connection, "totals", schema, {"table.merge-engine": "aggregation"})
    sales = pa.table(
        {
            "shop": ["Berlin", "Paris", "Berlin", "Berlin"],
            "revenue": pa.array(["10.00", "7.50", "2.25", "0.75"]).cast(pa.decimal128(12, 2)),
            "orders": [1, 1, 1, 1],
        },
        schema=table.arrow_schema,
    )
    with table.new_upsert().create_writer() as writer:
        writer.upsert_arrow(sales)
    print("totals:", table.to_arrow().sort_by("shop").to_pylist())


def main() -> None:
    with embedded.start() as server, blocking.FlussConnection.create(server.config()) as connection:
        deduplicate(connection)
        keep_the_newest_version(connection)
        add_up(connection)


if __name__ == "__main__":
    main()
