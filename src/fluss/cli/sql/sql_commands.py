"""``fluss sql``: queries over tables, one by one or in a shell."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.session import Session, pass_session

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.cli.sql.sql_engine import Answer


@click.command(
    cls=Command,
    examples=(
        'fluss sql "SELECT city, sum(km) FROM trips GROUP BY city"',
        'fluss sql "SELECT * FROM sales.orders WHERE id = 17"            # by key: nothing is scanned',
        "fluss sql \"SELECT * FROM trips JOIN 'cities.parquet' USING (city)\" --output joined.parquet",
        "fluss sql                                                       # a shell; \\? shows its commands",
    ),
)
@click.argument("query", required=False)
@click.option("--output", metavar="FILE", help="Write the rows to a Parquet, CSV, JSON or Arrow file.")
@pass_session
def sql(session: Session, query: str | None, output: str | None) -> None:
    """Run SQL over tables, one query or in a shell.

    The SQL is DuckDB's. Tables have their names, files are named in quotes. Only columns and rows that a query needs
    are read, and rows by their whole primary key are looked up. CREATE TABLE creates a table in the cluster; other
    changes are made by other commands. Without a query there is a shell, or standard input is run as a script.
    """
    from fluss.cli.sql.sql_engine import SqlEngine

    engine = SqlEngine(session)
    try:
        if query is None and sys.stdin.isatty():
            if output is not None:
                raise click.UsageError("--output goes with a query; the shell has \\o FILE")
            from fluss.cli.sql.sql_shell import SqlShell

            SqlShell(session, engine).run()
            return
        statements = engine.statements(sys.stdin.read() if query is None else query)
        if not statements:
            raise click.UsageError("there is no statement")
        for statement in statements[:-1]:
            show(session, engine.run(statement), None)
        show(session, engine.run(statements[-1]), output)
    finally:
        engine.close()


def show(session: Session, answer: Answer, output: str | None) -> int | None:
    """Print an answer, or write it to a file; return how many rows it has, None if it is not made of rows."""
    from fluss.cli.sql.sql_engine import duckdb_errors, python_rows

    if answer.reader is None:
        if answer.sentence:
            session.out.done(answer.sentence, done=answer.sentence)
        return None
    # DuckDB begins nothing else as long as an answer is open.
    with answer.reader as reader:
        if output is not None:
            return _write(session, reader, output)
        names = _unique(reader.schema.names)
        with duckdb_errors():
            rows = (row for batch in reader for row in python_rows(batch))
            if names == ["explain_key", "explain_value"] and session.out.format == "table":
                # A plan is a drawing of many lines.
                session.out.raw_lines(f"{plan}\n" for _, plan in rows)
                return None
            return session.out.rows(names, rows, empty="no rows")


def _write(session: Session, reader: pa.RecordBatchReader, output: str) -> int:
    from fluss.cli.rows.row_files import format_of
    from fluss.cli.rows.row_writing import row_writer
    from fluss.cli.sql.sql_engine import duckdb_errors

    count = 0
    with duckdb_errors(), row_writer(output, format_of(output), reader.schema, {}) as write:
        for batch in reader:
            write(batch)
            count += batch.num_rows
    session.out.done(f"Wrote {count:,} rows to {output}.", file=output, rows=count)
    return count


def _unique(names: list[str]) -> list[str]:
    """Return names of which none is there twice: a query may have two columns of one name, an object may not."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}:{seen[name] - 1}")
    return unique
