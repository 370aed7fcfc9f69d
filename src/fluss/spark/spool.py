"""Arrow batches put aside: in memory up to a limit, beyond it in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pyarrow as pa

MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024


class Spool:
    """Batches of one schema, read in the order in which they were added. A context manager that deletes its file."""

    def __init__(self, schema: pa.Schema, *, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._schema = schema
        self._bytes_left = memory_bytes_max
        self._in_memory: list[pa.RecordBatch] = []
        self._cleanup = ExitStack()
        self._path: str | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._bytes_left -= batch.nbytes
        if self._bytes_left >= 0:
            self._in_memory.append(batch)
            return
        if self._writer is None:
            self._path = self._cleanup.enter_context(_temporary_path())
            self._writer = self._cleanup.enter_context(pa.ipc.new_stream(self._path, self._schema))
        self._writer.write_batch(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches, and keep them no longer: this can be done once, when no more are added."""
        self._in_memory.reverse()
        while self._in_memory:
            yield self._in_memory.pop()
        if self._writer is not None and self._path is not None:
            self._writer.close()
            self._writer = None
            with pa.ipc.open_stream(self._path) as reader:
                yield from reader

    def close(self) -> None:
        self._in_memory.clear()
        self._cleanup.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def _temporary_path() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="fluss-sink-") as file:
        yield file.name
