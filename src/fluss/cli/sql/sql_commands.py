"""``fluss sql``: queries over tables, one by one or in a shell."""

from __future__ import annotations

import sys

import click

from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.session import Session, pass_session


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
    from fluss.cli.sql.sql_answers import show
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
