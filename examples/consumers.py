"""Two processes share the work of one consumer, one of them is killed, and the other one finishes it."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection, wait

import pyarrow as pa

import fluss
from fluss import blocking, embedded

PATH = fluss.TablePath("fluss", "orders")
ORDERS = 200
# A second, instead of 15, until others take over from a member that was killed.
OPTIONS = {"consumer.lease-ms": 1000, "consumer.commit-interval-ms": 100, "scanner.log.max-poll-records": 10}


def work(address: str, name: str, done: Connection) -> None:
    """What a worker does for ever: take orders, ship them."""
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format=f"{name} says: %(message)s")
    config = fluss.Config({"bootstrap.servers": address, **OPTIONS})
    with blocking.FlussConnection.create(config) as connection:
        consumer = connection.get_table(PATH).consumer("shipping")
        while True:
            try:
                for record in consumer.poll(timeout_ms=500):
                    time.sleep(0.005)
                    done.send(record.row["id"])
            except fluss.ConsumerFencedError as error:
                # It was not heard of for a lease. What it had not committed is shipped by others; the next poll joins.
                print(f"{name}: {error.message}")


def main() -> None:
    with embedded.start({"durability": "os"}) as server, blocking.FlussConnection.create(server.config()) as connection:
        schema = fluss.Schema(pa.schema([("id", pa.int64()), ("customer", pa.string())]))
        descriptor = fluss.TableDescriptor(schema, bucket_count=4, bucket_keys=["customer"])
        connection.get_admin().create_table(PATH, descriptor)
        table = connection.get_table(PATH)
        with table.new_append().create_writer() as writer:
            for number in range(ORDERS):
                writer.append([number, f"customer {number % 20}"])

        processes = multiprocessing.get_context("spawn")
        workers: dict[str, multiprocessing.process.BaseProcess] = {}
        # One pipe each: a queue that both share would be blocked if one is killed while it writes to it.
        pipes: dict[Connection, str] = {}
        for name in ("anna", "bert"):
            reader, writing = processes.Pipe(duplex=False)
            workers[name] = processes.Process(target=work, args=(server.bootstrap_servers, name, writing), daemon=True)
            workers[name].start()
            writing.close()
            pipes[reader] = name
        shipped: dict[int, list[str]] = {}
        while len(shipped) < ORDERS:
            ready = wait(list(pipes), timeout=120)
            assert ready, "both workers have been silent for two minutes"
            for reader in ready:
                assert isinstance(reader, Connection)
                try:
                    shipped.setdefault(reader.recv(), []).append(pipes[reader])
                except (EOFError, OSError):
                    # The worker was killed, perhaps in the middle of a message.
                    del pipes[reader]
            if len(shipped) >= ORDERS // 4 and workers["anna"].is_alive():
                workers["anna"].kill()
                workers["anna"].join()
        while sum(info.lag for info in table.consumers()):
            time.sleep(0.1)
        workers["bert"].kill()
        workers["bert"].join()

    # At least once: what anna had shipped and not committed, bert has shipped again.
    assert sorted(shipped) == list(range(ORDERS))
    print(f"{ORDERS} orders are shipped, although one of two workers was killed on the way")


if __name__ == "__main__":
    main()
