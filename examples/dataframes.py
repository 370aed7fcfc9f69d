"""pandas, polars and duckdb: whatever speaks Arrow can be written, and what is read is Arrow for all of them."""

from __future__ import annotations

import asyncio

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

import fluss
from fluss import embedded

PATH = fluss.TablePath("fluss", "trips")


async def main() -> None:
    async with embedded.EmbeddedServer() as server, await fluss.FlussConnection.create(server.config()) as connection:
        schema = fluss.Schema(pa.schema([("city", pa.string()), ("km", pa.float64()), ("riders", pa.int64())]))
        await connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema))
        table = await connection.get_table(PATH)

        writer = table.new_append().create_writer()
        writer.write_pandas(pd.DataFrame({"city": ["Bonn", "Kiel"], "km": [3.5, 12.0], "riders": [1, 2]}))
        writer.write_arrow(pl.DataFrame({"city": ["Trier"], "km": [7.25], "riders": [4]}))
        writer.write_arrow(duckdb.sql("SELECT 'Jena' AS city, 1.5::DOUBLE AS km, 3::BIGINT AS riders"))
        await writer.flush()

        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        trips = scanner.to_arrow()

        print("pandas:", trips.to_pandas()["km"].sum())
        print("polars:", pl.from_arrow(trips).filter(pl.col("riders") > 2)["city"].to_list())
        print("duckdb:", duckdb.sql("SELECT city FROM trips ORDER BY km DESC LIMIT 1").fetchall())


if __name__ == "__main__":
    asyncio.run(main())
