"""What it costs to fit data: data that fits already, against no fitting at all; and data that has to be converted.

The time that `write_arrow` takes until it has taken the data, in processor time of the calling thread, which checks and
copies; sending happens elsewhere and is not counted. In turns, each with the same rows.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import blocking, embedded

TURNS = 60
SMALL_ROWS = 100
SMALL_WRITES = 50
STRICT = "as it is (strict=True)"


def _forms(batch: pa.RecordBatch) -> dict[str, tuple[pa.RecordBatch, bool]]:
    """Return the same rows in several forms, and whether nothing is to be fitted."""
    other = {"id": pa.int32(), "quantity": pa.int64(), "customer": pa.large_string()}
    types = [pa.field(field.name, other.get(field.name, field.type)) for field in SCHEMA]
    return {
        STRICT: (batch, True),
        "that fits": (batch, False),
        "that fits, with columns in another order": (batch.select(SCHEMA.names[::-1]), False),
        "with integers of other widths and large strings": (batch.cast(pa.schema(types)), False),
    }


def measure() -> Iterator[tuple[str, float, str, str]]:
    options = {"durability": "os"}
    with (
        embedded.start(options, process=True) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        path = blocking.TablePath("fluss", "fitting")
        properties = {"table.log.arrow.compression.type": "NONE"}
        schema = blocking.Schema(SCHEMA)
        connection.get_admin().create_table(path, blocking.TableDescriptor(schema, properties=properties))
        with connection.get_table(path).new_append().create_writer() as writer:
            yield from _rows(writer, "a large batch", order_batch(BATCH_ROWS), writes=1)
            yield from _rows(writer, "a small batch", order_batch(SMALL_ROWS), writes=SMALL_WRITES)


def _rows(
    writer: blocking.AppendWriter, what: str, batch: pa.RecordBatch, writes: int
) -> Iterator[tuple[str, float, str, str]]:
    forms = _forms(batch)
    times = defaultdict(list)
    order = deque(forms)
    for _ in range(TURNS):
        # What comes first after a flush pays for it.
        order.rotate()
        for form in order:
            data, strict = forms[form]
            times[form].append(_seconds(partial(writer.write_arrow, data, strict=strict), writes))
            writer.flush()
    base = statistics.median(times[STRICT])
    for form in forms:
        seconds = statistics.median(times[form])
        yield (
            f"write_arrow of {what} {form}",
            seconds / writes * 1e6,
            "us",
            f"{base / seconds:.2f} of the speed without fitting",
        )


def _seconds(write: Callable[[], None], writes: int) -> float:
    started = time.thread_time()
    for _ in range(writes):
        write()
    return time.thread_time() - started
