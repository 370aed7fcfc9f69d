"""Draws the picture of ``fluss top`` in the documentation: a server under load, seen by the code of the command.

python tools/draw_top.py [--looks 60] [--picture docs/pictures/top.svg]
"""

from __future__ import annotations

import argparse
import io
import math
import re
import socket
import threading
import time
from pathlib import Path

import pyarrow as pa
from rich.console import Console

import fluss
from fluss import blocking, embedded
from fluss.cli.cluster.live import Activity, ClusterWatch, Screen
from fluss.cli.kernel.session import Session

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "top.svg"
WIDTH, HEIGHT = 92, 19
EVERY_S = 0.5


def _write(servers: str, stop: threading.Event) -> None:
    """Write in waves, so that there is something to see, with a consumer that does not keep up."""
    with blocking.connect(servers) as connection:
        views = connection.get_table("shop.page_views").new_append_writer()
        orders = connection.get_table("shop.orders").new_upsert().create_writer()
        lookups = connection.get_table("shop.orders").new_lookup().create_lookuper()
        with connection.get_table("shop.page_views").consumer("billing") as billing:
            number = 0
            while not stop.is_set():
                count = int(1200 + 1000 * math.sin(number / 9))
                views.write_arrow(pa.table({"page": ["/shop"] * count, "user": range(count)}))
                views.flush()
                for key in range(20 + count // 100):
                    orders.upsert({"id": number * 7 + key, "amount": float(key)})
                orders.flush()
                lookups.lookup({"id": number})
                if number % 5 == 0:
                    billing.poll(0)
                    billing.commit()
                number += 1


def _tables(servers: str) -> None:
    with blocking.connect(servers) as connection:
        admin = connection.get_admin()
        admin.create_database("shop")
        views = fluss.Schema(pa.schema([("page", pa.string()), ("user", pa.int64())]))
        orders = fluss.Schema(pa.schema([("id", pa.int64()), ("amount", pa.float64())]), primary_keys=["id"])
        admin.create_table("shop.page_views", blocking.TableDescriptor(views, bucket_count=2))
        admin.create_table("shop.orders", blocking.TableDescriptor(orders, bucket_count=2))
        admin.create_table("shop.returns", blocking.TableDescriptor(orders, bucket_count=2))


def draw(looks: int) -> str:
    """Return the picture as SVG."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    session = Session()
    stop = threading.Event()
    with embedded.start({"http.listener": port}, process=True) as server:
        _tables(server.bootstrap_servers)
        session.server = server.bootstrap_servers
        writing = threading.Thread(target=_write, args=(server.bootstrap_servers, stop))
        writing.start()
        try:
            watch = ClusterWatch(session, ["shop"], None, time.monotonic)
            # The address that everybody has, not the free port of this run.
            screen = Screen("localhost:9123", watch.metrics_url)
            before: Activity | None = None
            drawn: object = ""
            for _ in range(looks):
                now = watch.look()
                drawn = screen.drawn(before, now, HEIGHT)
                before = now
                time.sleep(EVERY_S)
        finally:
            stop.set()
            writing.join()
            session.close()
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
    console.print(drawn)
    svg = console.export_svg(title="fluss top")
    # Fonts are those of the reader's machine: nothing is loaded from elsewhere.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "monospace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--looks", type=int, default=60)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    given = parser.parse_args()
    given.picture.write_text(draw(given.looks), encoding="utf-8")


if __name__ == "__main__":
    main()
