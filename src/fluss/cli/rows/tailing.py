"""``fluss tail``: the newest records of a table, and those that come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.parameters import TABLE, epoch_ms, names_of, time_text
from fluss.cli.kernel.session import Session, pass_session
from fluss.cli.rows.row_commands import columns_option, filter_option
from fluss.integers import INT64_MAX

if TYPE_CHECKING:
    from fluss import LogScanner, ScanRecord
    from fluss.schema.table import TableBucket

_POLL_MS: Final = 500
# Of a table with many buckets as many records are looked at, at most, to find the newest ones.
_LAST_MAX: Final = 100_000
_POSITION_COLUMNS: Final = ("_partition", "_bucket", "_offset", "_timestamp")
_CHANGE_COLUMN: Final = "_change"


class _Bounds(NamedTuple):
    """The buckets of a table by name of their partitions, and where their logs begin and end now."""

    partitions: dict[TableBucket, str]
    starts: dict[TableBucket, int]
    ends: dict[TableBucket, int]


@click.command(
    cls=Command,
    examples=(
        "fluss tail trips",
        "fluss tail -f trips --filter 'km > 5' --columns city,km",
        "fluss tail trips --from earliest -n 1000 --format json",
        "fluss tail -f trips --from 10min --positions",
    ),
)
@click.argument("table", type=TABLE)
@click.option("-f", "--follow", is_flag=True, help="Go on with records that come, until Ctrl-C.")
@click.option(
    "-n", "count", type=click.IntRange(min=0), help="How many records.  [default: 10; with --from, all up to now]"
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="earliest, latest, an offset, or a time: 10min (ago), 2026-01-31T12:30, or epoch milliseconds after @.",
)
@columns_option
@filter_option
@click.option(
    "--partition", "wanted_partitions", multiple=True, metavar="NAME", help="Only this partition; repeatable."
)
@click.option("--bucket", "buckets", type=int, multiple=True, help="Only this bucket; repeatable.")
@click.option("--positions", is_flag=True, help="Show bucket, offset and time of each record, too.")
@pass_session
def tail(
    session: Session,
    table: str,
    follow: bool,
    count: int | None,
    start: str | None,
    columns: tuple[str, ...],
    condition: str | None,
    wanted_partitions: tuple[str, ...],
    buckets: tuple[int, ...],
    positions: bool,
) -> None:
    """Show the newest records of a table, and those that come.

    Of a primary-key table these are its changes: +I inserted, -U before an update, +U after it, -D deleted.
    """
    found = session.table(table)
    info = found.get_table_info()
    bounds = _bounds(session, table, wanted_partitions, buckets)
    names = names_of(columns) or info.schema.column_names
    scan = found.new_scan().project_by_name(names)
    if condition is not None:
        scan = scan.filter(condition)
    heads = [*(_POSITION_COLUMNS if positions else ()), *((_CHANGE_COLUMN,) if info.has_primary_key() else ()), *names]

    def cells(record: ScanRecord) -> list[Any]:
        leading: list[Any] = []
        if positions:
            bucket = record.bucket
            partition = bounds.partitions.get(bucket) or None
            leading += [partition, bucket.bucket_id, record.offset, time_text(record.timestamp)]
        if info.has_primary_key():
            leading.append(str(record.change_type))
        return [*leading, *(record.row[name] for name in names)]

    scanner = session.keep(scan.create_log_scanner())
    stream = session.out.stream(heads)
    if start is None:
        wanted = 10 if count is None else count
        last = _last(scanner, bounds, wanted, is_filtered=condition is not None) if wanted else []
        stream.write(map(cells, last))
        if follow:
            _subscribe(scanner, bounds.ends)
    else:
        offsets = _offsets(session, table, start, bounds)
        _subscribe(scanner, offsets)
        limit = count if not follow or count is not None else None
        for records in _up_to(scanner, offsets, bounds.ends, limit):
            stream.write(map(cells, records))
        if follow and count is None:
            _subscribe(scanner, {bucket: max(offsets[bucket], bounds.ends[bucket]) for bucket in bounds.ends})
    while follow and (start is None or count is None):
        stream.write(map(cells, scanner.poll(_POLL_MS)))


def _bounds(session: Session, table: str, wanted: Sequence[str], buckets: Sequence[int]) -> _Bounds:
    from fluss.schema.table import TableBucket

    admin = session.admin
    info = admin.get_table_info(table)
    ids = list(buckets) or list(range(info.num_buckets))
    found = _Bounds({}, {}, {})
    if not info.is_partitioned():
        if wanted:
            raise CommandError(f"{table} has no partitions; leave out --partition")
        for limits, name in ((found.starts, "earliest"), (found.ends, "latest")):
            limits.update(
                (TableBucket(info.table_id, number), offset)
                for number, offset in admin.list_offsets(table, ids, name).items()
            )
        found.partitions.update(dict.fromkeys(found.ends, ""))
        return found
    existing = {each.partition_name: each.partition_id for each in admin.list_partition_infos(table)}
    for name in wanted:
        if name not in existing:
            raise CommandError(
                f"{table} has no partition '{name}'; `fluss partition ls {table}` shows them", Exit.NOT_FOUND
            )
    for name in wanted or sorted(existing):
        for limits, spec in ((found.starts, "earliest"), (found.ends, "latest")):
            for number, offset in admin.list_partition_offsets(table, name, ids, spec).items():
                bucket = TableBucket.with_partition(info.table_id, existing[name], number)
                limits[bucket] = offset
                found.partitions[bucket] = name
    return found


def _offsets(session: Session, table: str, start: str, bounds: _Bounds) -> dict[TableBucket, int]:
    """Return where each bucket is read from."""
    word = start.strip().lower()
    if word == "earliest":
        return dict(bounds.starts)
    if word == "latest":
        return dict(bounds.ends)
    if word.isdecimal():
        return {bucket: max(min(int(word), INT64_MAX), bounds.starts[bucket]) for bucket in bounds.ends}
    try:
        time_ms = epoch_ms(word.removeprefix("@"))
    except ValueError:
        raise click.UsageError(
            f"--from {start}: write earliest, latest, an offset, a time such as 2026-01-31T12:30, or 10min"
        ) from None
    from fluss.schema.offsets import OffsetSpec

    spec = OffsetSpec.timestamp(time_ms)
    offsets: dict[TableBucket, int] = {}
    by_partition: dict[str, list[TableBucket]] = {}
    for bucket, name in bounds.partitions.items():
        by_partition.setdefault(name, []).append(bucket)
    for name, buckets in by_partition.items():
        ids = [bucket.bucket_id for bucket in buckets]
        if name:
            answer = session.admin.list_partition_offsets(table, name, ids, spec)
        else:
            answer = session.admin.list_offsets(table, ids, spec)
        offsets.update((bucket, answer[bucket.bucket_id]) for bucket in buckets)
    return offsets


def _subscribe(scanner: LogScanner[ScanRecord], offsets: dict[TableBucket, int]) -> None:
    if scanner.is_partitioned():
        scanner.subscribe_partition_buckets(
            {(bucket.partition_id or 0, bucket.bucket_id): offset for bucket, offset in offsets.items()}
        )
    elif offsets:
        scanner.subscribe_buckets({bucket.bucket_id: offset for bucket, offset in offsets.items()})


def _up_to(
    scanner: LogScanner[ScanRecord],
    starts: dict[TableBucket, int],
    ends: dict[TableBucket, int],
    limit: int | None,
) -> Iterator[list[ScanRecord]]:
    """Read what there was when the ends were asked for, at most so many records."""
    left = limit
    open_buckets = {bucket for bucket in ends if starts[bucket] < ends[bucket]}
    while open_buckets and (left is None or left > 0):
        records = [record for record in scanner.poll(_POLL_MS) if record.offset < ends[record.bucket]]
        if left is not None:
            records = records[:left]
            left -= len(records)
        yield records
        # Also behind records that a filter has left out.
        open_buckets = {
            bucket for bucket, position in scanner.position().items() if position < ends.get(bucket, 0)
        } & open_buckets


def _last(scanner: LogScanner[ScanRecord], bounds: _Bounds, count: int, *, is_filtered: bool) -> Sequence[ScanRecord]:
    """Return the newest records, the oldest first."""
    found: list[ScanRecord] = []
    reach = count
    while True:
        starts = {bucket: max(bounds.starts[bucket], end - reach) for bucket, end in bounds.ends.items()}
        _subscribe(scanner, starts)
        found = [record for records in _up_to(scanner, starts, bounds.ends, None) for record in records]
        is_all = all(starts[bucket] <= bounds.starts[bucket] for bucket in starts)
        if len(found) >= count or is_all or not is_filtered or reach >= _LAST_MAX:
            break
        # A filter leaves out most: look further back.
        reach *= 10
    found.sort(key=_age)
    return found[-count:]


def _age(record: ScanRecord) -> tuple[int, int, int]:
    return record.timestamp, record.bucket.bucket_id, record.offset
