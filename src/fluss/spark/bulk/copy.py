"""Tables from one place to another: within a cluster, or to another one; one table, or all of a database.

The work is ``table_copy``'s; here it is given to tasks of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fluss.config import Config
from fluss.errors import FlussError
from fluss.spark.bulk.jobs import BulkJob, FlussOnSpark, context_of, refuse_speculation
from fluss.spark.bulk.reports import CopyReport, Listener, listener_of
from fluss.spark.bulk.table_copy import ItemT, ResultT, copy_tables
from fluss.spark.query_options import client_settings, format_options


def copy(
    fs: FlussOnSpark,
    source: str,
    target: str,
    *,
    target_cluster: str | Mapping[str, str] | None = None,
    tables: Sequence[str] | None = None,
    properties: Mapping[str, str | None] | None = None,
    verify: bool = True,
    progress: bool | Listener | None = None,
) -> CopyReport:
    """Copy a table (``sales.orders``) or all tables of a database (``sales``), or those that ``tables`` names.

    The target is in the same cluster, or in ``target_cluster``: its ``bootstrap.servers``, or all options that it takes
    to reach it. The targets are created with the columns, keys, buckets, partitions, comments and properties of their
    sources, except for the number of replicas; ``properties`` changes some of them, and None leaves one out.

    What is copied is fixed at the beginning: of a log table all records in their order, each into the same bucket; of
    a primary-key table its rows, without the changes that led to them. A copy that was interrupted goes on where it
    was when ``copy`` is called again, and no row is lost or doubled; a table that is complete is not copied again. What
    it takes to know that is kept with the target, in the custom property ``bulk.copy.state``. Until a copy is complete
    no other program may write to the target. In the end both are read and compared, bucket by bucket, unless ``verify``
    is False. A difference is a FlussError. So is a table of which only the lake has something, before its target is
    made: rows are copied from Fluss. With ``client.lake.read`` = off what Fluss has is copied, whatever the lake has.
    """
    refuse_speculation(fs.spark)
    source_settings = client_settings(fs.options)
    return copy_tables(
        _SparkTasks(fs),
        source_settings,
        source,
        _settings(target_cluster) if target_cluster is not None else source_settings,
        target,
        tables=tables,
        properties=properties or {},
        verify=verify,
        listener=listener_of(progress),
    )


def _settings(target_cluster: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(target_cluster, str):
        return {Config.bootstrap_servers.key: target_cluster}
    settings = client_settings(format_options(target_cluster))
    if Config.bootstrap_servers.key not in settings:
        raise FlussError(f"Which cluster is the target? Give '{Config.bootstrap_servers.key}' in target_cluster")
    return settings


@dataclass(frozen=True)
class _SparkTasks:
    """Tasks on executors."""

    fs: FlussOnSpark

    @property
    def parallelism(self) -> int:
        return context_of(self.fs.spark).defaultParallelism

    def run(
        self,
        what: str,
        work: Callable[[ItemT], ResultT],
        items: Sequence[ItemT],
        weights: Sequence[int],
        *,
        rows_known: int | None,
        rows_before: int = 0,
        listener: Listener,
        rows_done: Callable[[], int] | None = None,
    ) -> list[ResultT]:
        job = BulkJob(what, work, items, weights, rows_known=rows_known, rows_before=rows_before)
        return job.run(self.fs.spark, listener=listener, rows_done=rows_done)
