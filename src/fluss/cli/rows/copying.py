"""``fluss copy``: tables of one cluster to another, done by this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.exits import Exit
from fluss.cli.kernel.parameters import KEY_VALUE, mapping_of, names_of
from fluss.cli.kernel.session import DEFAULT_SERVER, SERVERS_KEY, Session, pass_session

if TYPE_CHECKING:
    from fluss.spark.bulk.reports import CopyReport, Listener, Progress
    from fluss.spark.bulk.table_copy import ItemT, ResultT

# One reads while another writes; more would only compete for this machine.
_THREADS: Final = 2


@click.command(
    cls=Command,
    examples=(
        "fluss copy sales --from localhost:9123 --to streams.example.org:9123",
        "fluss copy sales.orders sales.orders_2025 --from dev --to prod        # profiles",
        "fluss copy sales --to prod --tables orders,items --format json",
    ),
)
@click.argument("source")
@click.argument("target", required=False)
@click.option(
    "--from", "from_cluster", metavar="CLUSTER", help="A profile, or HOST:PORT.  [default: as for all commands]"
)
@click.option("--to", "to_cluster", metavar="CLUSTER", help="A profile, or HOST:PORT.  [default: the same cluster]")
@click.option("--tables", multiple=True, metavar="NAMES", help="Only these tables of a database.")
@click.option("--set", "properties", type=KEY_VALUE, multiple=True, help="Another value of a property in the target.")
@click.option("--no-verify", is_flag=True, help="Do not read both sides to compare them in the end.")
@click.option("--offsets", is_flag=True, help="Show where the logs end on both sides, by bucket; JSON always does.")
@pass_session
def copy(
    session: Session,
    source: str,
    target: str | None,
    from_cluster: str | None,
    to_cluster: str | None,
    tables: tuple[str, ...],
    properties: tuple[tuple[str, str], ...],
    no_verify: bool,
    offsets: bool,
) -> int:
    """Copy a database or a table to another cluster, or to another name.

    The target gets columns, keys, buckets, partitions, comments and properties; of a log table all records in their
    order, each in the same bucket, of a primary-key table its rows of now. An interrupted copy goes on when it is
    called again, and no row is lost or doubled. In the end both sides are read and compared. --offsets shows where
    readers go on that move with the table. Both ways: to an Apache Fluss cluster, and back.

    A table of which something is only in its lake is refused; -o client.lake.read=off copies what Fluss has.
    """
    from fluss.spark.bulk.table_copy import copy_tables

    source_settings = cluster_settings(session, from_cluster)
    target_settings = source_settings if to_cluster is None else cluster_settings(session, to_cluster)
    with _Bar() as bar:
        report = copy_tables(
            LocalTasks(),
            source_settings,
            source,
            target_settings,
            target or source,
            tables=names_of(tables) or None,
            properties=dict(mapping_of(properties, "property")),
            verify=not no_verify,
            listener=bar,
        )
    _tell(session, report, source_settings, target_settings, has_offsets=offsets)
    return Exit.OK


def cluster_settings(session: Session, cluster: str | None) -> dict[str, str]:
    """Return the options that lead to a cluster: a profile's, those of an address, or those of this call."""
    if cluster is None:
        return dict(session.client_options())
    from fluss.cli.kernel.profiles import Profiles

    if ":" not in cluster or cluster in Profiles.load().options_by_name:
        return {SERVERS_KEY: DEFAULT_SERVER} | Profiles.load().options(cluster) | session.options
    return {SERVERS_KEY: cluster} | session.login_options({}) | session.options


def _tell(
    session: Session,
    report: CopyReport,
    source_settings: Mapping[str, str],
    target_settings: Mapping[str, str],
    *,
    has_offsets: bool,
) -> None:
    columns = ("source", "target", "partitions", "rows", "copied_before", "compared")
    rows = [
        (
            each.source,
            each.target,
            each.partitions,
            each.rows,
            each.rows_found,
            "no" if each.checks is None else f"{len(each.checks)} buckets are equal",
        )
        for each in report.tables
    ]
    if session.out.format == "json":
        for row in rows:
            offsets = [entry._asdict() for entry in _bucket_ends(source_settings, row[0], target_settings, row[1])]
            session.out.record({**dict(zip(columns, row, strict=True)), "offsets": offsets})
        return
    session.out.rows(columns, rows, empty="there is nothing to copy")
    if any(each.rows_found and each.checks is None and each.rows == each.rows_found for each in report.tables):
        session.out.note(
            "what was copied as a whole before is left as it is: rows that its source got since are not copied; "
            "drop the target to copy it anew"
        )
    if has_offsets:
        session.out.say("")
        ends = [
            (row[1], *entry) for row in rows for entry in _bucket_ends(source_settings, row[0], target_settings, row[1])
        ]
        session.out.rows(("table", *BucketEnds._fields), ends)


class BucketEnds(NamedTuple):
    """Where the log of a bucket ends on both sides: a reader that has come to the one goes on at the other."""

    partition: str | None
    bucket: int
    source_end: int | None
    target_end: int | None


def _bucket_ends(
    source_settings: Mapping[str, str], source: str, target_settings: Mapping[str, str], target: str
) -> list[BucketEnds]:
    from fluss.client.bulk import named_buckets_of, offsets_of
    from fluss.schema.offsets import OffsetSpec
    from fluss.schema.table import TablePath
    from fluss.spark.connections import open_table

    sides: list[dict[tuple[str | None, int], int]] = []
    for settings, path in ((source_settings, source), (target_settings, target)):
        table = open_table(settings, TablePath.of(path))
        buckets = named_buckets_of(table)
        ends = offsets_of(table, buckets, OffsetSpec.latest())
        sides.append({(buckets[bucket], bucket.bucket_id): end for bucket, end in ends.items()})
    keys = sorted({*sides[0], *sides[1]}, key=lambda key: (key[0] or "", key[1]))
    return [
        BucketEnds(name, bucket, sides[0].get((name, bucket)), sides[1].get((name, bucket))) for name, bucket in keys
    ]


class LocalTasks:
    """Runs tasks on threads of this process."""

    @property
    def parallelism(self) -> int:
        return _THREADS

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
        """Do something with every item. The first failure ends it; what others have begun is finished before.

        Who presses Ctrl-C does not wait for that: the next copy goes on from what is stored by then.
        """
        from fluss.spark.bulk.reports import Counted, ProgressWatch

        ended: list[int] = []
        weight = max(sum(weights), 1)

        def count() -> Counted:
            done = sum(weights[number] for number in ended) / weight
            if rows_done is None:
                return Counted(int(done * (rows_known or 0)), done)
            rows = rows_done()
            return Counted(rows, min(rows / rows_known, 1.0) if rows_known else done)

        def one(numbered: tuple[int, ItemT]) -> ResultT:
            result = work(numbered[1])
            ended.append(numbered[0])
            return result

        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fluss-copy")
        is_interrupted = False
        try:
            with ProgressWatch(what, count, listener, rows_known=rows_known, rows_before=rows_before):
                return list(threads.map(one, enumerate(items)))
        except KeyboardInterrupt:
            is_interrupted = True
            raise
        finally:
            threads.shutdown(wait=not is_interrupted, cancel_futures=True)


class _Bar:
    """Shows the progress of one table after the other, at a terminal."""

    def __init__(self) -> None:
        from fluss.cli.kernel.progress import WorkProgress

        self._make = WorkProgress
        self._shown: Any = None
        self._what = ""

    def __call__(self, progress: Progress) -> None:
        if progress.what != self._what:
            self.close()
            self._what = progress.what
            self._shown = self._make(progress.what, 1000).__enter__()
        self._shown.update(progress.rows_done, int(progress.fraction * 1000))

    def close(self) -> None:
        if self._shown is not None:
            self._shown.__exit__(None, None, None)
        self._shown, self._what = None, ""

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
