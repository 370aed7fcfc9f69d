"""New partitions of a table, found while it is read."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime
from fluss.client.kernel.table_calls import partitions_of
from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableInfo

logger = logging.getLogger(__name__)


class PartitionDiscovery:
    """Looks for partitions again and again, and tells their ids to ``on_partitions``, a method of the reader.

    If the table was dropped, or another one has its name, ``on_gone`` is told so, once: a table without partitions has
    no bucket whose fetches would fail. It keeps neither the reader nor itself alive, and stops when the reader is
    dropped. Both methods are called on the event loop of the runtime and must not block.
    """

    def __init__(
        self,
        cluster: Cluster,
        runtime: Runtime,
        info: TableInfo,
        interval_s: float,
        on_partitions: Callable[[Collection[int]], None],
        on_gone: Callable[[FlussError], None],
    ) -> None:
        wanted = asyncio.Event()
        tell, tell_gone = weakref.WeakMethod(on_partitions), weakref.WeakMethod(on_gone)
        look = partial(_look_again_and_again, cluster, info, interval_s, wanted, tell, tell_gone)
        # Has it look at once. To be called on the event loop of the runtime.
        self.look_now: Callable[[], None] = wanted.set
        self._stop = weakref.finalize(self, _cancel, runtime.submit(look()))
        self._stop.atexit = False

    def stop(self) -> None:
        """Look no more. May be called again."""
        self._stop()


def _cancel(looking: Future[None]) -> None:
    looking.cancel()


async def _look_again_and_again(
    cluster: Cluster,
    info: TableInfo,
    interval_s: float,
    wanted: asyncio.Event,
    tell: weakref.WeakMethod[Callable[[Collection[int]], None]],
    tell_gone: weakref.WeakMethod[Callable[[FlussError], None]],
) -> None:
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await wanted.wait()
        wanted.clear()
        try:
            found = {partition.partition_id for partition in await partitions_of(cluster, info)}
        except FlussError as error:
            if error.error_code == ErrorCode.TABLE_NOT_EXIST:
                on_gone = tell_gone()
                if on_gone is not None:
                    on_gone(error)
                return
            # The next look may succeed; polls say what is wrong if nothing does.
            logger.debug("the partitions of %s could not be listed: %s", info.table_path, error.message)
            continue
        on_partitions = tell()
        if on_partitions is None:
            return
        on_partitions(found)
        del on_partitions
