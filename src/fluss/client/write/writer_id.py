"""The id under which a writer numbers its batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from fluss.client.cluster import Cluster
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import TablePath

_PAUSES_S: Final = (0.2, 0.4, 0.8)

logger = logging.getLogger(__name__)


async def allocate_writer_id(
    cluster: Cluster,
    paths: Collection[TablePath],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> int:
    """Ask any tablet server for a writer id; it checks whether these tables may be written.

    Tried a few times. Then, and at once if access is denied, a FlussError says why.
    """
    request = pb.InitWriterRequest(
        table_path=[pb.PbTablePath(database_name=path.database_name, table_name=path.table_name) for path in paths]
    )
    for pause_s in (*_PAUSES_S, None):
        try:
            return (await cluster.request_any_tablet(apis.INIT_WRITER, request)).writer_id
        except FlussError as error:
            text = f"Writer ID allocation failed: {error.message}"
            if error.error_code == ErrorCode.AUTHORIZATION_EXCEPTION:
                raise FlussError(text, error.error_code) from error
            if pause_s is None:
                raise FlussError(text) from error
            logger.info("a writer id cannot be allocated, trying again in %g s: %s", pause_s, error.message)
        await sleep(pause_s)
    raise AssertionError("the last try returns or raises")
