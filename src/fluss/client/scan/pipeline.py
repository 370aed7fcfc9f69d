"""A scan at work: everything between the servers and the consumer of one scanner, and how it is put together.

servers -> Fetcher -> ScanBuffer -> BatchReader (with a BatchDecoder) -> Poller -> consumer
           event loop               the consumer's thread, or a worker
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

from fluss.client.cluster import Cluster
from fluss.client.runtime import Runtime
from fluss.client.scan.buffer import ScanBuffer
from fluss.client.scan.decode import BatchDecoder, ScanColumns
from fluss.client.scan.fetch_messages import FetchRequests
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.polling import Poller
from fluss.client.scan.reader import BatchReader
from fluss.client.scan.remote import RemoteLog
from fluss.client.scan.subscription import Subscription, Subscriptions
from fluss.errors import FlussError
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo


class ScanPipeline:
    """The parts of one scanner. When it is dropped, everything stops: nothing in the background refers to it."""

    def __init__(
        self, cluster: Cluster, runtime: Runtime, info: TableInfo, columns: ScanColumns, requests: FetchRequests
    ) -> None:
        buffer = ScanBuffer(cluster.config.scanner_log_fetch_max_bytes, lambda: fetcher.make_use_of_room())
        fetcher = Fetcher(cluster, info, requests, buffer, RemoteLog(buffer, cluster.config), loop=runtime.loop)
        decoder = BatchDecoder(columns, info.log_format, _schema_loader(cluster, runtime, info))
        self.buffer = buffer
        self.fetcher = fetcher
        self.reader = BatchReader(buffer, decoder, on_damage=lambda damaged: fetcher.change((), [damaged]))
        self.subscriptions = Subscriptions(partial(_change_subscriptions, fetcher, buffer))
        self.poller = Poller(runtime, buffer, self.reader, fetcher, self.subscriptions)
        self._stop = weakref.finalize(self, _stop_fetching, runtime, fetcher)
        self._stop.atexit = False

    def close(self) -> None:
        """Stop fetching and let go of what was fetched. May be called again."""
        self.buffer.close()
        self._stop()


def _change_subscriptions(
    fetcher: Fetcher, buffer: ScanBuffer, begun: Sequence[Subscription], ended: Sequence[Subscription]
) -> None:
    fetcher.change(begun, ended)
    if ended:
        buffer.drop_ended()


def _schema_loader(cluster: Cluster, runtime: Runtime, info: TableInfo) -> Callable[[int], Schema]:
    """Return what loads another schema of the table, blocking the thread that decodes."""
    return lambda schema_id: runtime.run(cluster.schema(info.table_path, schema_id))


def _stop_fetching(runtime: Runtime, fetcher: Fetcher) -> None:
    try:
        runtime.submit(fetcher.close())
    except FlussError:
        # The loop has ended, and with it all fetching; or this is a forked process, whose loop never ran.
        return
