"""A batch on its way through a bucket, and the answer to whoever sent it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fluss.errors import FlussError
from fluss.record.kv_batch import KvBatch
from fluss.server.kv.kv_put import KvPut, KvPutResult
from fluss.server.kv.table_writer import TableWriter
from fluss.storage.log.append_result import AppendResult, copied


@dataclass(slots=True, eq=False)
class Job:
    """A batch that waits to be prepared, or is."""

    put: KvPut
    writer: TableWriter
    batch: KvBatch
    memory_bytes: int
    answer: asyncio.Future[KvPutResult]
    # Whether it may be prepared together with others.
    is_social: bool

    def goes_with(self, first: Job) -> bool:
        """Whether it may be prepared together with another one."""
        return (
            self.is_social
            and self.writer is first.writer
            and self.batch.schema_id == first.batch.schema_id
            and self.put.targets == first.put.targets
            and self.put.is_overwrite == first.put.is_overwrite
        )


def set_result(answer: asyncio.Future[KvPutResult], append: AppendResult) -> None:
    """Say where a batch is, unless nobody listens any more."""
    if not answer.done():
        answer.set_result(KvPutResult(append.offset_next))


def set_failure(answer: asyncio.Future[KvPutResult], error: FlussError) -> None:
    """Say why a batch was not written, unless nobody listens any more."""
    if not answer.done():
        answer.set_exception(copied(error))


def look_at(answer: asyncio.Future[KvPutResult]) -> None:
    """Keep asyncio from complaining about an error that nobody has asked for."""
    if not answer.cancelled():
        answer.exception()
