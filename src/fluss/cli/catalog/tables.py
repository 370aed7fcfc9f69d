"""``fluss table``: the tables of a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from fluss.amounts import format_count
from fluss.cli.kernel.asking import confirm
from fluss.cli.kernel.commands import Command, Lazy, group
from fluss.cli.kernel.parameters import DATABASE, KEY_VALUE, TABLE, mapping_of, names_of, time_text
from fluss.cli.kernel.session import Session, pass_session

if TYPE_CHECKING:
    from fluss.schema.table import TableInfo

tables = group(
    "List, create, show, alter and drop tables.",
    {
        "ls": Lazy("fluss.cli.catalog.tables:ls", "List tables."),
        "create": Lazy("fluss.cli.catalog.tables:create", "Create a table."),
        "show": Lazy("fluss.cli.catalog.tables:show", "Show columns, keys and properties of a table."),
        "alter": Lazy("fluss.cli.catalog.tables:alter", "Add columns, or change properties."),
        "drop": Lazy("fluss.cli.catalog.tables:drop", "Drop a table with all its rows."),
        "stats": Lazy("fluss.cli.catalog.tables:stats", "Count the rows of a table, by bucket."),
    },
    examples=(
        "fluss table ls",
        "fluss table create orders -c 'id BIGINT' -c 'price DECIMAL(10, 2)' --primary-key id",
        "fluss table show orders",
    ),
)


@click.command(cls=Command, examples=("fluss table ls", "fluss table ls sales --format json"))
@click.argument("database", type=DATABASE, required=False)
@click.option("--long", "-l", "is_long", is_flag=True, help="Show kind, buckets, partitions and rows, too.")
@pass_session
def ls(session: Session, database: str | None, is_long: bool) -> None:
    """List tables.

    Those of one database, or of all of them.
    """
    admin = session.admin
    names = [
        f"{each}.{table}"
        for each in ([database] if database is not None else sorted(admin.list_databases()))
        for table in sorted(admin.list_tables(each))
    ]
    empty = "no tables yet; `fluss table create --help` shows how to make one"
    if not is_long:
        session.out.rows(("table",), [(name,) for name in names], empty=empty)
        return
    rows = ((name, *_facts(session, admin.get_table_info(name))) for name in names)
    session.out.rows(("table", "kind", "columns", "buckets", "partitions", "rows", "created"), rows, empty=empty)


def _facts(session: Session, info: TableInfo) -> tuple[Any, ...]:
    from fluss.errors import FlussError

    path = str(info.table_path)
    try:
        row_count: int | str = session.admin.get_table_stats(path).row_count
    except FlussError:
        # Not every server can count, and not every table at every moment.
        row_count = "?"
    return (
        "primary key" if info.has_primary_key() else "log",
        len(info.schema.columns),
        info.num_buckets,
        len(session.admin.list_partition_infos(path)) if info.is_partitioned() else "",
        row_count,
        time_text(info.created_time),
    )


@click.command(
    cls=Command,
    examples=(
        "fluss table create trips -c 'id BIGINT' -c 'city STRING' -c 'km DOUBLE'",
        "fluss table create sales.orders -c 'id BIGINT' -c 'day STRING' --primary-key id,day --partition-by day",
        "fluss table create trips --from trips.parquet --primary-key id --buckets 4",
        'fluss table create --sql "CREATE TABLE sales.orders (id BIGINT, note STRING, PRIMARY KEY (id))"',
        "fluss table create --sql - < orders.sql",
    ),
)
@click.argument("table", type=TABLE, required=False)
@click.option("--column", "-c", "columns", multiple=True, metavar="'NAME TYPE'", help="A column; repeatable.")
@click.option("--from", "file", metavar="FILE", help="Take the columns of a Parquet, Arrow, CSV or JSON file.")
@click.option("--sql", "statement", metavar="TEXT", help="A CREATE TABLE statement; - reads it from standard input.")
@click.option("--primary-key", "-k", multiple=True, metavar="COLUMNS", help="The columns of the primary key.")
@click.option("--partition-by", multiple=True, metavar="COLUMNS", help="The columns whose values make up partitions.")
@click.option("--bucket-key", multiple=True, metavar="COLUMNS", help="The columns that decide about the bucket.")
@click.option("--buckets", type=click.IntRange(min=1), help="How many buckets.  [default: the server decides]")
@click.option("--comment", help="What it is about.")
@click.option(
    "--property", "properties", type=KEY_VALUE, multiple=True, help="A property, such as table.log.ttl=7d; repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="Take one that is there.")
@pass_session
def create(
    session: Session,
    table: str | None,
    columns: tuple[str, ...],
    file: str | None,
    statement: str | None,
    primary_key: tuple[str, ...],
    partition_by: tuple[str, ...],
    bucket_key: tuple[str, ...],
    buckets: int | None,
    comment: str | None,
    properties: tuple[tuple[str, str], ...],
    if_not_exists: bool,
) -> None:
    """Create a table.

    Its columns are given one by one, by a file, or by a statement of SQL. With --from, --column changes the type of a
    column or adds one. Types are those of Fluss: BOOLEAN, INT, BIGINT, DOUBLE, STRING, BYTES, DECIMAL(10, 2), DATE,
    TIMESTAMP(6), TIMESTAMP_LTZ(6), ARRAY<INT>, MAP<STRING, INT>, ROW<x INT, y INT>.
    """
    from fluss.cli.catalog.table_making import TableFlags, from_columns, from_file, from_statement

    flags = TableFlags(primary_key, partition_by, bucket_key, buckets, comment, properties)
    if statement is not None:
        if table is not None or columns or file is not None or not flags.is_empty:
            raise click.UsageError("--sql says everything about the table; leave out the other options")
        new = from_statement(sys.stdin.read() if statement == "-" else statement)
    elif table is None:
        raise click.UsageError("name the table: fluss table create TABLE")
    elif file is not None:
        new = from_file(table, file, flags, overrides=columns)
    elif columns:
        new = from_columns(table, columns, flags)
    else:
        raise click.UsageError("which columns? Give them with --column, --from FILE or --sql")
    session.admin.create_table(new.path, new.descriptor, if_not_exists or new.if_not_exists)
    session.out.done(f"Created the table {new.path}.", created=new.path)


@click.command(
    cls=Command, examples=("fluss table show sales.orders", "fluss table show sales.orders --sql > orders.sql")
)
@click.argument("table", type=TABLE)
@click.option("--sql", "as_sql", is_flag=True, help="As the statement that creates such a table.")
@pass_session
def show(session: Session, table: str, as_sql: bool) -> None:
    """Show columns, keys and properties of a table."""
    info = session.admin.get_table_info(table)
    if as_sql:
        session.out.raw(create_statement(info))
        return
    schema = info.schema
    columns = [
        {"name": each.name, "type": str(each.data_type), "key": _key(each.name, info), "comment": each.comment}
        for each in schema.columns
    ]
    facts: dict[str, Any] = {
        "table": table,
        "kind": "primary-key table" if info.has_primary_key() else "log table",
        "id": info.table_id,
        "schema": info.schema_id,
        "buckets": info.num_buckets,
        "bucket_key": info.bucket_keys,
        "partitioned_by": info.partition_keys,
        "primary_key": info.primary_keys,
        "comment": info.comment,
        "properties": {**info.properties, **info.custom_properties},
        "created": time_text(info.created_time),
        "modified": time_text(info.modified_time),
    }
    if session.out.format != "table":
        session.out.record({**facts, "columns": columns})
        return
    properties = facts.pop("properties")
    shown = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    session.out.record({name: value for name, value in shown.items() if value not in (None, "")})
    if properties:
        session.out.say("")
        session.out.rows(("property", "value"), sorted(properties.items()))
    session.out.say("")
    session.out.rows(("column", "type", "key", "comment"), [tuple(each.values()) for each in columns])


def _key(name: str, info: TableInfo) -> str:
    roles = [
        role
        for role, names in (
            ("primary", info.primary_keys),
            ("partition", info.partition_keys),
            ("bucket", info.bucket_keys),
        )
        if name in names
    ]
    return ", ".join(roles)


def create_statement(info: TableInfo) -> str:
    """Return the statement that creates such a table again, in the types of Fluss."""
    from fluss.filter.lexer import quoted_name, quoted_string
    from fluss.spark.table_shape import shown_properties

    path = info.table_path
    lines = []
    for column in info.schema.columns:
        comment = "" if column.comment is None else f" COMMENT {quoted_string(column.comment)}"
        lines.append(f"{quoted_name(column.name)} {column.data_type}{comment}")
    if info.primary_keys:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted_name, info.primary_keys))})")
    text = f"CREATE TABLE {quoted_name(path.database_name, path.table_name)} (\n  " + ",\n  ".join(lines) + ")"
    if info.partition_keys:
        text += f"\nPARTITIONED BY ({', '.join(map(quoted_name, info.partition_keys))})"
    if info.comment is not None:
        text += f"\nCOMMENT {quoted_string(info.comment)}"
    entries = (f"{quoted_string(key)} = {quoted_string(value)}" for key, value in shown_properties(info).items())
    return text + "\nTBLPROPERTIES (\n  " + ",\n  ".join(entries) + ");\n"


@click.command(
    cls=Command,
    examples=(
        "fluss table alter orders --add 'note STRING'",
        "fluss table alter orders --set table.log.ttl=7d --reset owner",
    ),
)
@click.argument("table", type=TABLE)
@click.option("--add", "added", multiple=True, metavar="'NAME TYPE'", help="Add a column at the end; repeatable.")
@click.option("--set", "properties", type=KEY_VALUE, multiple=True, help="Set a property; repeatable.")
@click.option("--reset", multiple=True, metavar="KEYS", help="Remove properties.")
@pass_session
def alter(
    session: Session,
    table: str,
    added: tuple[str, ...],
    properties: tuple[tuple[str, str], ...],
    reset: tuple[str, ...],
) -> None:
    """Add columns, or change properties."""
    from fluss.cli.catalog.table_making import column_of

    if not (added or properties or reset):
        raise click.UsageError("what is to be changed? Give --add, --set or --reset")
    admin = session.admin
    if added:
        # Columns and properties cannot be changed in one request.
        admin.alter_table(table, add_columns=[column_of(text) for text in added])
    if properties or reset:
        admin.alter_table(table, set_properties=mapping_of(properties, "property"), reset_properties=names_of(reset))
    session.out.done(f"Changed the table {table}.", altered=table)


@click.command(cls=Command, examples=("fluss table drop sales.orders --yes",))
@click.argument("table", type=TABLE)
@click.option("--if-exists", is_flag=True, help="Do nothing if it is not there.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_session
def drop(session: Session, table: str, if_exists: bool, yes: bool) -> None:
    """Drop a table with all its rows."""
    confirm(f"Drop the table {table} with all its rows?", yes)
    session.admin.drop_table(table, if_exists)
    session.out.done(f"Dropped the table {table}.", dropped=table)


@click.command(cls=Command, examples=("fluss table stats sales.orders", "fluss table stats sales.orders --format json"))
@click.argument("table", type=TABLE)
@pass_session
def stats(session: Session, table: str) -> None:
    """Count the rows of a table, by bucket.

    Without reading them. With partitions there is a line for each bucket of each. Of a log table servers count offsets,
    of which a few have no row: those that repeated exactly-once writes leave.
    """
    info = session.admin.get_table_info(table)
    names: dict[int | None, str] = {}
    if info.is_partitioned():
        names = {each.partition_id: each.partition_name for each in session.admin.list_partition_infos(table)}
    counts = session.admin.get_table_stats(table).row_count_by_bucket
    rows = sorted((names.get(bucket.partition_id, ""), bucket.bucket_id, count) for bucket, count in counts.items())
    if info.is_partitioned():
        session.out.rows(("partition", "bucket", "rows"), rows)
    else:
        session.out.rows(("bucket", "rows"), [row[1:] for row in rows])
    if session.out.format == "table":
        session.out.note(f"{format_count(sum(counts.values()), 'row')} in {format_count(len(counts), 'bucket')}")
