"""A scan at work: everything between the servers and the consumer of one scanner, and how it is put together.

servers -> Fetcher -> ScanBuffer -> BatchReader (with decoders) -> Poller -> consumer
           event loop               the consumer's thread, or a worker
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import BatchDecoder, ScanColumns, ValueDecoder
from fluss.client.kernel.runtime import Runtime
from fluss.client.scan.bounded_read import BoundedRead
from fluss.client.scan.buffer import ScanBuffer
from fluss.client.scan.fetch_messages import FetchRequests
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.polling import Poller
from fluss.client.scan.reader import BatchReader
from fluss.client.scan.remote import RemoteLog
from fluss.client.scan.subscription import FROM_SNAPSHOT, Subscription, Subscriptions
from fluss.errors import FlussError
from fluss.schema.formats import LogFormat
from fluss.schema.predicate import BoundPredicate
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket, TableInfo


class ScanPipeline:
    """The parts of one scanner. When it is dropped, everything stops: nothing in the background refers to it."""

    def __init__(
        self,
        cluster: Cluster,
        runtime: Runtime,
        info: TableInfo,
        columns: ScanColumns,
        *,
        predicate: BoundPredicate | None = None,
        rows_only: bool = False,
        row_limit: int | None = None,
    ) -> None:
        requests = FetchRequests(
            cluster.config,
            info.table_id,
            # Only batches of columns can be cut.
            pushdown=columns.pushdown if info.log_format is LogFormat.ARROW else (),
            predicate=predicate,
            schema_id=info.schema_id,
        )
        buffer = ScanBuffer(cluster.config.scanner_log_fetch_max_bytes, lambda: fetcher.make_use_of_room())
        fetcher = Fetcher(
            cluster,
            info,
            requests,
            buffer,
            RemoteLog(buffer, cluster.config),
            loop=runtime.loop,
            rows_only=rows_only,
            row_limit=row_limit,
        )
        load_schema = _schema_loader(cluster, runtime, info)
        self._patience_s = cluster.config.request_timeout_ms / 1000
        self.buffer = buffer
        self.fetcher = fetcher
        self.reader = BatchReader(
            buffer,
            BatchDecoder(columns, info.log_format, load_schema),
            ValueDecoder(columns, info.kv_format, load_schema),
            on_damage=lambda damaged: fetcher.change((), [damaged]),
        )
        self.subscriptions = Subscriptions(partial(_change_subscriptions, fetcher, buffer))
        self.poller = Poller(runtime, buffer, self.reader, fetcher, self.subscriptions)
        self._stop = weakref.finalize(self, _stop_fetching, runtime, fetcher)
        self._stop.atexit = False

    def begin_bounded(
        self,
        found: Mapping[TableBucket, tuple[int, int]],
        on_done: Callable[[list[Subscription]], None] | None = None,
        *,
        patience_s: float | None = None,
    ) -> BoundedRead:
        """Subscribe to buckets from where to where they are to be read, and return the read.

        Without ``on_done`` the subscription of a bucket ends when it is done. The read fails when nothing has come for
        ``patience_s``, by default ``request-timeout``.
        """
        begun = self.subscriptions.begin(
            {bucket: start for bucket, (start, _) in found.items()},
            {bucket: stop for bucket, (start, stop) in found.items() if start != FROM_SNAPSHOT},
        )
        stops = {subscription: found[subscription.bucket][1] for subscription in begun}
        end = on_done or partial(_end_subscriptions, self.subscriptions)
        patience = self._patience_s if patience_s is None else patience_s
        return BoundedRead(self.poller, self.reader, stops, end, patience_s=patience)

    def close(self) -> None:
        """Stop fetching and let go of what was fetched. May be called again."""
        self.buffer.close()
        self._stop()


def _end_subscriptions(subscriptions: Subscriptions, done: list[Subscription]) -> None:
    subscriptions.end([subscription.bucket for subscription in done])


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
