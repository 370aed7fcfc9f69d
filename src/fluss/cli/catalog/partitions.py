"""``fluss partition``: the partitions of a table."""

from __future__ import annotations

import click

from fluss.cli.kernel.asking import confirm
from fluss.cli.kernel.commands import Command, Lazy, group
from fluss.cli.kernel.parameters import KEY_VALUE, TABLE, mapping_of
from fluss.cli.kernel.session import Session, pass_session

partitions = group(
    "List, add and drop partitions of a table.",
    {
        "ls": Lazy("fluss.cli.catalog.partitions:ls", "List the partitions of a table."),
        "add": Lazy("fluss.cli.catalog.partitions:add", "Add a partition."),
        "drop": Lazy("fluss.cli.catalog.partitions:drop", "Drop a partition with its rows."),
    },
    examples=("fluss partition ls sales.orders", "fluss partition add sales.orders day=2026-01-31"),
)


@click.command(cls=Command, examples=("fluss partition ls sales.orders", "fluss partition ls sales.orders region=EU"))
@click.argument("table", type=TABLE)
@click.argument("values", type=KEY_VALUE, nargs=-1, metavar="[COLUMN=VALUE]...")
@pass_session
def ls(session: Session, table: str, values: tuple[tuple[str, str], ...]) -> None:
    """List the partitions of a table.

    Values of partition columns choose some of them.
    """
    found = session.admin.list_partition_infos(table, mapping_of(values, "column") or None)
    keys = session.admin.get_table_info(table).partition_keys
    rows = [
        (each.partition_name, each.partition_id, *(each.get_partition_spec().spec_map[key] for key in keys))
        for each in sorted(found, key=lambda each: each.partition_name)
    ]
    session.out.rows(("partition", "id", *keys), rows, empty=f"{table} has no such partitions")


@click.command(cls=Command, examples=("fluss partition add sales.orders day=2026-01-31 region=EU",))
@click.argument("table", type=TABLE)
@click.argument("values", type=KEY_VALUE, nargs=-1, required=True, metavar="COLUMN=VALUE...")
@click.option("--if-not-exists", is_flag=True, help="Take one that is there.")
@pass_session
def add(session: Session, table: str, values: tuple[tuple[str, str], ...], if_not_exists: bool) -> None:
    """Add a partition."""
    spec = mapping_of(values, "column")
    session.admin.create_partition(table, spec, if_not_exists)
    session.out.done(f"Added the partition {_shown(spec)} to {table}.", table=table, added=spec)


@click.command(cls=Command, examples=("fluss partition drop sales.orders day=2026-01-31 --yes",))
@click.argument("table", type=TABLE)
@click.argument("values", type=KEY_VALUE, nargs=-1, required=True, metavar="COLUMN=VALUE...")
@click.option("--if-exists", is_flag=True, help="Do nothing if it is not there.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_session
def drop(session: Session, table: str, values: tuple[tuple[str, str], ...], if_exists: bool, yes: bool) -> None:
    """Drop a partition with its rows."""
    spec = mapping_of(values, "column")
    confirm(f"Drop the partition {_shown(spec)} of {table} with its rows?", yes)
    session.admin.drop_partition(table, spec, if_exists)
    session.out.done(f"Dropped the partition {_shown(spec)} of {table}.", table=table, dropped=spec)


def _shown(spec: dict[str, str]) -> str:
    return "/".join(f"{key}={value}" for key, value in spec.items())
