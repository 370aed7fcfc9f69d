"""Where logs begin and end, and how far consumers are: ``offsets``, ``lag``, ``consumers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fluss.cli.kernel.asking import confirm
from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.parameters import TABLE, epoch_ms
from fluss.cli.kernel.session import Session, pass_session

if TYPE_CHECKING:
    from fluss import ConsumerInfo
    from fluss.schema.offsets import OffsetSpec


@click.command(cls=Command, examples=("fluss offsets trips", "fluss offsets trips --at 1h --format json"))
@click.argument("table", type=TABLE)
@click.option(
    "--at", "time", metavar="TIME", help="Where the first record at or after a time is: 10min (ago), 2026-01-31T12:30."
)
@pass_session
def offsets(session: Session, table: str, time: str | None) -> None:
    """Show where the logs of a table begin and end, by bucket."""
    from fluss.schema.offsets import OffsetSpec

    specs = {"earliest": OffsetSpec.earliest(), "latest": OffsetSpec.latest()}
    if time is not None:
        try:
            specs["at"] = OffsetSpec.timestamp(epoch_ms(time))
        except ValueError:
            raise click.UsageError(f"--at {time}: write a time such as 2026-01-31T12:30, or 10min") from None
    info = session.admin.get_table_info(table)
    rows = []
    if info.is_partitioned():
        for partition in sorted(each.partition_name for each in session.admin.list_partition_infos(table)):
            rows += [(partition, *row) for row in _offsets(session, table, partition, info.num_buckets, specs)]
        columns: tuple[str, ...] = ("partition", "bucket", *specs, "records")
    else:
        rows = _offsets(session, table, None, info.num_buckets, specs)
        columns = ("bucket", *specs, "records")
    session.out.rows(columns, rows, empty=f"{table} has no partitions yet")


def _offsets(
    session: Session, table: str, partition: str | None, bucket_count: int, specs: dict[str, OffsetSpec]
) -> list[tuple[int | str, ...]]:
    admin, ids = session.admin, list(range(bucket_count))
    answers = [
        admin.list_offsets(table, ids, spec)
        if partition is None
        else admin.list_partition_offsets(table, partition, ids, spec)
        for spec in specs.values()
    ]
    return [
        (number, *(answer[number] for answer in answers), answers[1][number] - answers[0][number]) for number in ids
    ]


@click.command(
    cls=Command,
    examples=("fluss consumers trips", "fluss consumers trips --drop billing --yes"),
)
@click.argument("table", type=TABLE)
@click.option("--drop", "dropped", metavar="NAME", help="Forget the positions of a consumer.")
@click.option("--force", is_flag=True, help="Drop one that has members, too.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_session
def consumers(session: Session, table: str, dropped: str | None, force: bool, yes: bool) -> None:
    """List the consumers of a table: who reads it by name, and how far behind they are."""
    found = session.table(table)
    if dropped is not None:
        _named(found.consumers(), table, dropped)
        confirm(f"Forget where the consumer {dropped} of {table} is?", yes)
        found.drop_consumer(dropped, force=force)
        session.out.done(f"Dropped the consumer {dropped} of {table}.", table=table, dropped=dropped)
        return
    rows = [(each.name, len(each.members), len(each.buckets), each.lag) for each in found.consumers()]
    session.out.rows(("consumer", "members", "buckets", "lag"), rows, empty=f"{table} has no consumers")


@click.command(cls=Command, examples=("fluss lag trips", "fluss lag trips billing --format json"))
@click.argument("table", type=TABLE)
@click.argument("consumer", required=False)
@pass_session
def lag(session: Session, table: str, consumer: str | None) -> None:
    """Show how far consumers are behind, by bucket."""
    found = session.table(table).consumers()
    if consumer is not None:
        found = [_named(found, table, consumer)]
    names: dict[int | None, str] = {}
    if session.admin.get_table_info(table).is_partitioned():
        names = {each.partition_id: each.partition_name for each in session.admin.list_partition_infos(table)}
    rows = [
        (
            each.name,
            names.get(bucket.bucket.partition_id),
            bucket.bucket.bucket_id,
            bucket.member,
            bucket.position,
            bucket.end,
            bucket.lag,
        )
        for each in found
        for bucket in each.buckets
    ]
    columns = ("consumer", "partition", "bucket", "member", "position", "end", "lag")
    session.out.rows(columns, rows, empty=f"{table} has no consumers")


def _named(found: list[ConsumerInfo], table: str, name: str) -> ConsumerInfo:
    for each in found:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in found) or "none"
    raise CommandError(f"{table} has no consumer '{name}' (there is: {known})", Exit.NOT_FOUND)
