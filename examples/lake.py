"""A table that forgets nothing: orders stream in, go to a lake in a directory, and old days are dropped from Fluss.

Every question is answered over everything: days that only the lake has, and orders of the last second. With
``--picture FILE`` the run is drawn as an SVG: how far the lake was behind, and how many files it had (``make lake``).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import fluss
from fluss import embedded
from fluss.tiering.rounds import tier

ORDERS = fluss.TablePath("fluss", "orders")
COLUMNS = pa.schema([("day", pa.string()), ("order_id", pa.int64()), ("amount", pa.int64())])
DAYS_KEPT = 2
BATCH_ROWS = 2_000


class Moment(NamedTuple):
    """What is seen at one time: rows that were written, rows that the lake has, and its files."""

    seconds: float
    written: int
    in_lake: int
    files: int


async def make_table(connection: fluss.FlussConnection) -> fluss.FlussTable:
    descriptor = fluss.TableDescriptor(
        fluss.Schema(COLUMNS),
        partition_keys=["day"],
        bucket_count=2,
        properties={"table.datalake.enabled": "true"},
    )
    await connection.get_admin().create_table(ORDERS, descriptor)
    return await connection.get_table(ORDERS)


def orders(day: str, first: int) -> pa.Table:
    ids = np.arange(first, first + BATCH_ROWS)
    return pa.table({"day": [day] * BATCH_ROWS, "order_id": ids, "amount": ids % 100}, COLUMNS)


async def run(connection: fluss.FlussConnection, days: int, day_s: float) -> list[Moment]:
    """Let days pass: write all the time, tier now and then, and drop the day before the day before yesterday."""
    admin = connection.get_admin()
    table = await make_table(connection)
    written = in_lake = files = 0
    begun_s = time.monotonic()
    seen = [Moment(0, 0, 0, 0)]
    for number in range(days):
        day = f"2026-03-{number + 1:02}"
        await admin.create_partition(ORDERS, {"day": day})
        end_s = time.monotonic() + day_s
        rounds = 0
        async with table.new_append().create_writer() as writer:
            while rounds < 2 or time.monotonic() < end_s:
                for _ in range(5):
                    writer.write_arrow(orders(day, written))
                    written += BATCH_ROWS
                await writer.flush()
                seen.append(Moment(time.monotonic() - begun_s, written, in_lake, files))
                # One round brings to the lake what has come since the last one. In production that is a service:
                # python -m fluss.spark.tier
                report = await asyncio.to_thread(tier, table)
                in_lake += report.rows
                files += report.data_files
                rounds += 1
                seen.append(Moment(time.monotonic() - begun_s, written, in_lake, files))
        if number >= DAYS_KEPT:
            await admin.drop_partition(ORDERS, {"day": f"2026-03-{number + 1 - DAYS_KEPT:02}"})
    # Some orders that no round has brought to the lake yet.
    async with table.new_append().create_writer() as writer:
        writer.write_arrow(orders(day, written))
    seen.append(Moment(time.monotonic() - begun_s, written + BATCH_ROWS, in_lake, files))
    return seen


async def check(connection: fluss.FlussConnection, alone: fluss.FlussConnection, written: int) -> None:
    """Ask about everything, and compare with what was written."""
    table = await connection.get_table(ORDERS)
    everything = await table.to_arrow_async()
    ids = np.sort(everything["order_id"].to_numpy())
    assert (ids == np.arange(written)).all(), "every order once"
    in_fluss = (await (await alone.get_table(ORDERS)).to_arrow_async(["order_id"])).num_rows
    assert in_fluss < written, "old days are not in Fluss any more"
    first = await table.to_arrow_async(["amount"], filter="day = '2026-03-01' AND amount >= 50")
    days = sorted(set(everything["day"].to_pylist()))
    print(f"{written:,} orders of {len(days)} days, each of them once; Fluss itself has {in_fluss:,} of them")
    print(f"the first day, which only the lake has: {first.num_rows:,} orders of 50 and more")


def svg(seen: list[Moment]) -> str:
    """Draw two curves over time: rows that the lake does not have yet, and files of the lake."""
    width, height, left, top, gap = 760, 150, 70, 40, 70
    end_s = max(seen[-1].seconds, 1e-9)

    def curve(values: list[int], y: int, color: str, title: str) -> str:
        most = max([*values, 1])
        points = " ".join(
            f"{left + moment.seconds / end_s * width:.1f},{y + height - value / most * height:.1f}"
            for moment, value in zip(seen, values, strict=True)
        )
        return (
            f'<text x="{left}" y="{y - 10}" font-size="14" font-weight="bold">{title}</text>'
            f'<rect x="{left}" y="{y}" width="{width}" height="{height}" fill="none" stroke="#ccc"/>'
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{left - 8}" y="{y + 12}" font-size="11" text-anchor="end">{most:,}</text>'
            f'<text x="{left - 8}" y="{y + height}" font-size="11" text-anchor="end">0</text>'
        )

    lag = [moment.written - moment.in_lake for moment in seen]
    second = top + height + gap
    bottom = second + height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 30}" height="{bottom + 50}" '
        'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        + curve(lag, top, "#c0392b", "rows that the lake does not have yet")
        + curve([moment.files for moment in seen], second, "#2471a3", "data files of the lake")
        + f'<text x="{left}" y="{bottom + 25}" font-size="11">0 s</text>'
        f'<text x="{left + width}" y="{bottom + 25}" font-size="11" text-anchor="end">{end_s:.0f} s, '
        f"{seen[-1].written:,} rows</text></svg>\n"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=4, help="how many days pass")
    parser.add_argument("--day-seconds", type=float, default=0.2, help="how long a day takes")
    parser.add_argument("--picture", type=Path, help="where to draw the run, an SVG file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = {"datalake.format": "iceberg", "datalake.iceberg.warehouse": f"{directory}/lake"}
        with embedded.start(settings) as server:
            async with (
                await fluss.connect(server.bootstrap_servers) as connection,
                await fluss.connect(
                    {"bootstrap.servers": server.bootstrap_servers, "client.lake.read": "off"}
                ) as alone,
            ):
                seen = await run(connection, options.days, options.day_seconds)
                await check(connection, alone, seen[-1].written)
                lags = [moment.written - moment.in_lake for moment in seen]
                print(f"the lake was at most {max(lags):,} rows behind, and has {seen[-1].files} data files")
    if options.picture is not None:
        options.picture.write_text(svg(seen), encoding="utf-8")
        print(f"drawn in {options.picture}")


if __name__ == "__main__":
    asyncio.run(main())
