"""Single rows: ``head``, ``get``, ``put``, ``append``, ``delete``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from fluss.amounts import format_count
from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.exits import CommandError, Exit, exit_code_of
from fluss.cli.kernel.parameters import KEY_VALUE, TABLE, mapping_of, names_of
from fluss.cli.kernel.session import Session, pass_session

if TYPE_CHECKING:
    from fluss.schema.table import TableInfo

columns_option = click.option("--columns", multiple=True, metavar="NAMES", help="Only these columns.")
filter_option = click.option(
    "--filter", "condition", metavar="SQL", help="Only rows for which this holds, such as 'km > 5'."
)


@click.command(
    cls=Command, examples=("fluss head trips", "fluss head trips -n 3 --filter \"city = 'Bonn'\" --format json")
)
@click.argument("table", type=TABLE)
@click.option("-n", "count", type=click.IntRange(min=1), default=10, show_default=True, help="How many rows.")
@columns_option
@filter_option
@click.option("--partition", "partitions", multiple=True, metavar="NAME", help="Only this partition; repeatable.")
@pass_session
def head(
    session: Session,
    table: str,
    count: int,
    columns: tuple[str, ...],
    condition: str | None,
    partitions: tuple[str, ...],
) -> None:
    """Show some rows of a table.

    They may be any of its rows, since tables have no order. `fluss tail` shows the newest.
    """
    from fluss.cli.kernel.values import complete_values
    from fluss.row.python_values import python_column

    found = session.table(table)
    types = {column.name: column.data_type for column in found.get_table_info().schema.columns}
    rows = found.to_arrow(names_of(columns) or None, filter=condition, partitions=list(partitions) or None, limit=count)
    names = rows.schema.names
    columns_shown = [rows[name].combine_chunks() for name in names]
    values = [
        complete_values(python_column(each, types[name]), each) for name, each in zip(names, columns_shown, strict=True)
    ]
    session.out.rows(names, zip(*values, strict=True), empty=f"no rows of {table}")


# By key


def key_of(text: str, info: TableInfo, names: Sequence[str]) -> dict[str, Any]:
    """Read a key: its value, its values separated by commas, a list or an object of JSON."""
    from fluss.cli.kernel.values import value_from_json, value_from_text

    types = {name: info.schema.column(name).data_type for name in names}
    if text.lstrip()[:1] in ("{", "["):
        found = _json(text)
        if isinstance(found, dict):
            missing = [name for name in names if name not in found]
            if missing or len(found) != len(names):
                raise CommandError(f"a key of {info.table_path} is {_shape(names)}, got {text}", Exit.USAGE)
            return {name: value_from_json(found[name], types[name], name) for name in names}
        values = found
    else:
        values = text.split(",") if len(names) > 1 else [text]
    if len(values) != len(names):
        raise CommandError(f"a key of {info.table_path} is {_shape(names)}, got {text}", Exit.USAGE)
    return {
        name: value_from_text(value, types[name], name)
        if isinstance(value, str)
        else value_from_json(value, types[name], name)
        for name, value in zip(names, values, strict=True)
    }


def _shape(names: Sequence[str]) -> str:
    return ",".join(name.upper() for name in names)


def _require_key(info: TableInfo) -> None:
    if not info.has_primary_key():
        raise CommandError(
            f"{info.table_path} is a log table, whose rows have no key; `fluss head --filter` and `fluss tail` read it"
        )


@click.command(
    cls=Command,
    examples=(
        "fluss get users 17",
        "fluss get sales.orders 17,2026-01-31 18,2026-01-31      # a key of two columns",
        'fluss get sales.orders \'{"id": 17, "day": "2026-01-31"}\' --format json',
        "fluss get sales.items 17 --prefix order_id              # all rows whose key begins so",
    ),
)
@click.argument("table", type=TABLE)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@columns_option
@click.option("--prefix", multiple=True, metavar="COLUMNS", help="KEY has only these columns, the beginning of keys.")
@pass_session
def get(session: Session, table: str, keys: tuple[str, ...], columns: tuple[str, ...], prefix: tuple[str, ...]) -> int:
    """Look rows up by their keys.

    The exit code is 3 if a key has no row.
    """
    found = session.table(table)
    info = found.get_table_info()
    _require_key(info)
    names = names_of(columns) or info.schema.column_names
    for name in names:
        info.schema.index_of(name)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    if prefix:
        prefix_names = names_of(prefix)
        by_prefix = found.new_lookup().lookup_by(prefix_names).create_lookuper()
        for key in keys:
            matching = by_prefix.lookup(key_of(key, info, prefix_names))
            rows += matching
            missing += [] if matching else [key]
    else:
        lookuper = found.new_lookup().create_lookuper()
        for key in keys:
            row = lookuper.lookup(key_of(key, info, info.primary_keys))
            if row is None:
                missing.append(key)
            else:
                rows.append(row)
    if rows:
        session.out.rows(names, [[row[name] for name in names] for row in rows])
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise CommandError(f"{table} has no row with the key {shown}", Exit.NOT_FOUND)
    return Exit.OK


# Writing


def _given_rows(rows: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Return rows with their places: arguments, or lines of standard input."""
    if rows:
        for number, text in enumerate(rows, start=1):
            yield f"row {number}", text
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if line.strip():
            # What is not UTF-8 is refused where it is a value, and its line is told.
            yield f"line {number}", line.decode(errors="surrogateescape")


def _json(text: str) -> Any:
    from fluss.errors import FlussError

    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise FlussError(f"this is no JSON: {error}") from None


def _write_rows(
    session: Session, table: str, rows: Sequence[str], rejects: str | None, *, partial: Sequence[str] = ()
) -> tuple[int, int]:
    """Write JSON objects, each as soon as it is there, and return how many were written and rejected."""
    from fluss.blocking import UpsertWriter
    from fluss.cli.rows.row_fitting import PartitionCheck, RejectFile
    from fluss.cli.rows.row_reading import FileReader, Rejected, row_from_json
    from fluss.errors import FlussError

    found = session.table(table)
    info = found.get_table_info()
    reader = FileReader(info.schema)
    has_key = info.has_primary_key()
    writer = found.new_upsert(list(partial) or None).create_writer() if has_key else found.new_append().create_writer()
    write = writer.upsert if isinstance(writer, UpsertWriter) else writer.append
    names = list(partial) or info.schema.column_names
    partitions = PartitionCheck(info)
    written = 0
    with RejectFile(rejects) as reject:
        for place, text in _given_rows(rows):
            try:
                row = row_from_json(_json(text), reader)
                if partial and set(row) != set(partial):
                    raise FlussError(f"exactly these columns are wanted: {', '.join(partial)}")
                partitions.check_row(row)
                write({name: row.get(name) for name in names})
            except (FlussError, TypeError) as error:
                if isinstance(error, FlussError) and error.error_code >= 0:
                    # The server has refused something earlier.
                    raise
                reason = error.message if isinstance(error, FlussError) else str(error)
                reject(Rejected(place, reason, text.strip()))
                continue
            written += 1
        session.finish(writer)
        return written, reject.count


rejects_option = click.option(
    "--rejects", metavar="FILE", help="Write rows that do not fit to this file, as JSON lines, and go on."
)


def _tell_written(session: Session, verb: str, table: str, written: int, rejected: int, rejects: str | None) -> int:
    told = f"{verb} {written:,} row{'' if written == 1 else 's'} to {table}"
    session.out.done(
        f"{told}; {rejected:,} did not fit, see {rejects}." if rejected else f"{told}.",
        table=table,
        rows=written,
        rejected=rejected,
    )
    return Exit.DATA if rejected else Exit.OK


@click.command(
    cls=Command,
    examples=(
        'echo \'{"id": 1, "city": "Bonn", "km": 3.5}\' | fluss append trips',
        "tail -f events.jsonl | fluss append events --rejects bad.jsonl",
    ),
)
@click.argument("table", type=TABLE)
@rejects_option
@pass_session
def append(session: Session, table: str, rejects: str | None) -> int:
    """Append rows to a log table: JSON lines from standard input.

    Each is sent within a fraction of a second. Columns that are not given are null.
    """
    session.creates_partitions()
    if session.table(table).has_primary_key():
        raise CommandError(f"{table} has a primary key; `fluss put` inserts and replaces rows of it")
    written, rejected = _write_rows(session, table, (), rejects)
    return _tell_written(session, "Appended", table, written, rejected, rejects)


@click.command(
    cls=Command,
    examples=(
        "fluss put users id=17 name=Ada",
        'fluss put users \'{"id": 17, "name": "Ada"}\' \'{"id": 18, "name": "Bob"}\'',
        "fluss put users --partial id=17 name=Grace              # other columns stay as they are",
        "fluss put users < users.jsonl",
    ),
)
@click.argument("table", type=TABLE)
@click.argument("values", nargs=-1, metavar="[COLUMN=VALUE... | JSON...]")
@click.option("--partial", is_flag=True, help="Change only the columns that are given; the others stay.")
@rejects_option
@pass_session
def put(session: Session, table: str, values: tuple[str, ...], partial: bool, rejects: str | None) -> int:
    """Insert or replace rows of a primary-key table.

    A row is given as COLUMN=VALUE, rows as JSON, or as JSON lines from standard input. Columns that are not given are
    null, unless --partial.
    """
    from fluss.cli.kernel.values import json_text, value_from_text

    session.creates_partitions()
    info = session.table(table).get_table_info()
    if not info.has_primary_key():
        raise CommandError(f"{table} is a log table; `fluss append` appends rows to it")
    rows: Sequence[str] = values
    columns: list[str] = []
    if values and not values[0].lstrip().startswith("{"):
        pairs = mapping_of([KEY_VALUE.convert(value, None, None) for value in values], "column")
        for name in pairs:
            info.schema.index_of(name)
        row = {name: value_from_text(text, info.schema.column(name).data_type, name) for name, text in pairs.items()}
        rows, columns = [json_text(row)], list(pairs)
    if partial and not columns:
        if not values:
            raise click.UsageError("--partial takes rows as arguments, from which the columns are known")
        columns = list(_json(values[0]))
    written, rejected = _write_rows(session, table, rows, rejects, partial=columns if partial else ())
    return _tell_written(session, "Put", table, written, rejected, rejects)


@click.command(
    cls=Command,
    examples=("fluss delete users 17 18", "fluss delete sales.orders 17,2026-01-31", "fluss delete users < keys.txt"),
)
@click.argument("table", type=TABLE)
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@pass_session
def delete(session: Session, table: str, keys: tuple[str, ...]) -> None:
    """Delete rows of a primary-key table by their keys.

    Without keys they are read from standard input, one in a line. A key that has no row is no error.
    """
    from fluss.errors import FlussError

    found = session.table(table)
    info = found.get_table_info()
    _require_key(info)
    writer = found.new_upsert().create_writer()
    count = 0
    for place, text in _given_rows(keys):
        try:
            writer.delete(key_of(text.rstrip("\r\n"), info, info.primary_keys))
        except (FlussError, CommandError) as error:
            if isinstance(error, FlussError) and error.error_code >= 0:
                # The server has refused something earlier.
                raise
            code = error.code if isinstance(error, CommandError) else exit_code_of(error)
            raise CommandError(f"{place}: {error.message}; {_before(count)}", code) from None
        count += 1
    session.finish(writer)
    session.out.done(f"Deleted {count:,} key{'' if count == 1 else 's'} of {table}.", table=table, keys=count)


def _before(count: int) -> str:
    return (
        f"{format_count(count, 'key')} before it {'is' if count == 1 else 'are'} deleted"
        if count
        else "none is deleted"
    )
