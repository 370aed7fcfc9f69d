"""``fluss db``: the databases of a cluster."""

from __future__ import annotations

import click

from fluss.cli.kernel.commands import Command, Lazy, group
from fluss.cli.kernel.parameters import DATABASE, KEY_VALUE, mapping_of, time_text
from fluss.cli.kernel.session import Session, pass_session

databases = group(
    "List, create, drop and show databases.",
    {
        "ls": Lazy("fluss.cli.catalog.databases:ls", "List the databases."),
        "create": Lazy("fluss.cli.catalog.databases:create", "Create a database."),
        "show": Lazy("fluss.cli.catalog.databases:show", "Show a database."),
        "drop": Lazy("fluss.cli.catalog.databases:drop", "Drop a database."),
    },
    examples=("fluss db ls", "fluss db create sales --comment 'all orders'"),
)


@click.command(cls=Command, examples=("fluss db ls", "fluss db ls --format json | jq -r .database"))
@pass_session
def ls(session: Session) -> None:
    """List the databases."""
    from fluss.errors import ErrorCode, FlussError

    admin = session.admin
    try:
        summaries = {each.database_name: each for each in admin.list_database_summaries()}
    except FlussError as error:
        if error.error_code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNKNOWN_SERVER_ERROR):
            raise
        summaries = {}
    if not summaries:
        # Servers of older releases list names only.
        session.out.rows(("database",), [(name,) for name in sorted(admin.list_databases())], empty="no databases yet")
        return
    rows = [(name, summaries[name].table_count, time_text(summaries[name].created_time)) for name in sorted(summaries)]
    session.out.rows(("database", "tables", "created"), rows)


@click.command(cls=Command, examples=("fluss db create sales", "fluss db create sales --comment 'all orders'"))
@click.argument("database")
@click.option("--comment", help="What it is about.")
@click.option("--property", "properties", type=KEY_VALUE, multiple=True, help="A property of your own; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Take one that is there.")
@pass_session
def create(
    session: Session, database: str, comment: str | None, properties: tuple[tuple[str, str], ...], if_not_exists: bool
) -> None:
    """Create a database."""
    from fluss.schema.descriptor import DatabaseDescriptor

    descriptor = DatabaseDescriptor(comment, mapping_of(properties, "property"))
    session.admin.create_database(database, descriptor, if_not_exists)
    session.out.done(f"Created the database {database}.", created=database)


@click.command(cls=Command, examples=("fluss db show sales",))
@click.argument("database", type=DATABASE)
@pass_session
def show(session: Session, database: str) -> None:
    """Show a database."""
    info = session.admin.get_database_info(database)
    descriptor = info.database_descriptor
    session.out.record(
        {
            "database": database,
            "comment": descriptor.comment,
            "properties": descriptor.custom_properties,
            "tables": len(session.admin.list_tables(database)),
            "created": time_text(info.created_time),
            "modified": time_text(info.modified_time),
        }
    )


@click.command(cls=Command, examples=("fluss db drop sales --cascade --yes",))
@click.argument("database", type=DATABASE)
@click.option("--cascade", is_flag=True, help="Drop its tables, too, with all their rows.")
@click.option("--if-exists", is_flag=True, help="Do nothing if it is not there.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_session
def drop(session: Session, database: str, cascade: bool, if_exists: bool, yes: bool) -> None:
    """Drop a database.

    One that has tables is dropped with --cascade only.
    """
    from fluss.cli.kernel.asking import confirm

    confirm(f"Drop the database {database}{' and all its tables' if cascade else ''}?", yes)
    session.admin.drop_database(database, if_exists, cascade)
    session.out.done(f"Dropped the database {database}.", dropped=database)
