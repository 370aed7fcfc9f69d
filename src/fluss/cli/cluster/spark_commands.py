"""``fluss spark``: jobs on Spark, started on this machine or on a cluster of Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click

from fluss.amounts import format_count
from fluss.cli.kernel.commands import Command, Lazy, group
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.parameters import TABLE, names_of
from fluss.cli.kernel.session import SERVERS_KEY, Session, pass_session

if TYPE_CHECKING:
    from fluss.spark import FlussSpark

spark = group(
    "Run jobs on Spark: SQL, loads, exports, copies, tiering.",
    {
        "sql": Lazy("fluss.cli.cluster.spark_commands:sql", "Run a statement in Spark SQL."),
        "load": Lazy("fluss.cli.cluster.spark_commands:load", "Load files into a table, in parallel."),
        "export": Lazy("fluss.cli.cluster.spark_commands:export", "Write a table to Parquet files, in parallel."),
        "copy": Lazy("fluss.cli.cluster.spark_commands:copy", "Copy a table or a database, in parallel."),
        "tier": Lazy("fluss.cli.cluster.spark_commands:tier", "Bring tables to their lake, once or for good."),
    },
    examples=(
        'fluss spark sql "CREATE TABLE fluss.sales.ids AS SELECT DISTINCT id FROM fluss.sales.orders"',
        "fluss spark load 'orders/*.parquet' sales.orders",
    ),
)

# What is not there, and what to do next: Spark's own advice is about other tables than these.
_SPARK_STEPS: Final = {
    "TABLE_OR_VIEW_NOT_FOUND": "a table is named fluss.DATABASE.TABLE here, `fluss table ls` shows what there is",
    "SCHEMA_NOT_FOUND": "a database is named fluss.DATABASE here, `fluss db ls` shows what there is",
}

_master_option = click.option("--master", help="Where Spark runs.  [default: on this machine]")
_cores_option = click.option("--cores", type=click.IntRange(min=1), help="How many processors of this machine.")


def _fluss_spark(session: Session, master: str | None, cores: int | None) -> FlussSpark:
    if find_spec("pyspark") is None:
        raise CommandError("this needs Spark: pip install 'flussbett[spark]', and Java 17 or newer")
    from fluss.spark import FlussSpark
    from fluss.spark import session as spark_session

    _look_for_servers(session)
    options: dict[str, Any] = dict(session.client_options())
    servers = options.pop(SERVERS_KEY)
    with _waiting("Starting Spark"):
        return FlussSpark(spark_session("fluss", cores=cores, master=master), bootstrap_servers=servers, **options)


def _look_for_servers(session: Session) -> None:
    """Raise what is wrong with the address or the login. Jobs wait ten minutes for servers, and Spark for nothing."""
    session.connection.get_admin().get_server_nodes()


def _waiting(what: str) -> AbstractContextManager[Any]:
    """Show at a terminal what takes seconds in which nothing else is shown."""
    if not _is_shown():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(f"{what} ...")


@contextmanager
def _told_errors() -> Iterator[None]:
    """Run a block in which an error of Spark is told in its first sentence, without plans and frames of Java."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        lines = str(error).strip().splitlines()
        step = _SPARK_STEPS.get(error.getCondition() or "")
        raise CommandError(
            f"{lines[0].rstrip('.') if lines else type(error).__name__}{f'; {step}' if step else ''}",
            Exit.FAILED if step is None else Exit.NOT_FOUND,
        ) from error


def _is_shown() -> bool:
    return sys.stderr.isatty()


@click.command(
    cls=Command,
    examples=(
        'fluss spark sql "SELECT count(*) FROM fluss.sales.orders"',
        'fluss spark sql "INSERT INTO fluss.sales.orders VALUES (17, 9.5)"',
    ),
)
@click.argument("statement")
@_master_option
@_cores_option
@pass_session
def sql(session: Session, statement: str, master: str | None, cores: int | None) -> None:
    """Run a statement in Spark SQL.

    Tables are named fluss.DATABASE.TABLE. It takes every statement that Spark and Fluss know; `fluss sql` is quicker
    for queries.
    """
    fs = _fluss_spark(session, master, cores)
    with _told_errors():
        found = fs.sql(statement)
        if found.columns:
            rows = (tuple(row) for row in found.toLocalIterator())
            session.out.rows(found.columns, rows, empty="no rows")
        else:
            session.out.done("Done.", done=True)


@click.command(cls=Command, examples=("fluss spark load 'orders/*.parquet' sales.orders --resume-dir ./load-1",))
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.argument("table", type=TABLE)
@click.option("--file-format", type=click.Choice(("parquet", "csv", "json", "arrow")), help="If names do not say.")
@click.option("--ignore-extra", is_flag=True, help="Leave out columns that the table does not have.")
@click.option("--resume-dir", metavar="DIR", help="Keep account there, to go on after an interruption.")
@_master_option
@_cores_option
@pass_session
def load(
    session: Session,
    files: tuple[str, ...],
    table: str,
    file_format: str | None,
    ignore_extra: bool,
    resume_dir: str | None,
    master: str | None,
    cores: int | None,
) -> None:
    """Load files into a table, in parallel.

    Files, directories or patterns, that all executors can read; each row once, also when tasks fail.
    """
    fs = _fluss_spark(session, master, cores)
    with _told_errors():
        report = fs.bulk_load(
            list(files),
            table,
            format=file_format,
            ignore_extra=ignore_extra,
            resume_dir=resume_dir,
            progress=_is_shown(),
        )
    session.out.done(
        f"Loaded {format_count(report.rows, 'row')} of {format_count(report.files, 'file')} into {table} "
        f"in {report.seconds:.1f} s.",
        table=table,
        files=report.files,
        rows=report.rows,
        seconds=round(report.seconds, 3),
    )


@click.command(cls=Command, examples=("fluss spark export sales.orders ./exported --columns id,price",))
@click.argument("table", type=TABLE)
@click.argument("path")
@click.option("--columns", multiple=True, metavar="NAMES", help="Only these columns.")
@click.option("--filter", "condition", metavar="SQL", help="Only rows for which this holds.")
@_master_option
@_cores_option
@pass_session
def export(
    session: Session,
    table: str,
    path: str,
    columns: tuple[str, ...],
    condition: str | None,
    master: str | None,
    cores: int | None,
) -> None:
    """Write a table to Parquet files, in parallel."""
    options: dict[str, Any] = {"columns": names_of(columns) or None, "filter": condition}
    given = {name: value for name, value in options.items() if value is not None}
    fs = _fluss_spark(session, master, cores)
    with _told_errors():
        report = fs.export(table, path, progress=_is_shown(), **given)
    session.out.done(
        f"Wrote {format_count(report.rows, 'row')} of {table} to {path} in {report.seconds:.1f} s.",
        table=table,
        path=path,
        rows=report.rows,
        seconds=round(report.seconds, 3),
    )


@click.command(
    cls=Command, examples=("fluss spark copy sales sales_copy", "fluss spark copy sales sales --to prod:9123")
)
@click.argument("source")
@click.argument("target")
@click.option("--to", "to_cluster", metavar="CLUSTER", help="A profile, or HOST:PORT.  [default: the same cluster]")
@_master_option
@_cores_option
@pass_session
def copy(
    session: Session, source: str, target: str, to_cluster: str | None, master: str | None, cores: int | None
) -> None:
    """Copy a table or a database, in parallel.

    As `fluss copy`, with the executors of Spark.
    """
    from fluss.cli.rows.copying import cluster_settings

    fs = _fluss_spark(session, master, cores)
    with _told_errors():
        report = fs.copy(
            source,
            target,
            target_cluster=None if to_cluster is None else cluster_settings(session, to_cluster),
            progress=_is_shown(),
        )
    rows = [(each.source, each.target, each.partitions, each.rows, each.rows_found) for each in report.tables]
    session.out.rows(("source", "target", "partitions", "rows", "copied_before"), rows)


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    examples=("fluss spark tier --once", "fluss spark tier                       # until it is stopped"),
)
@click.argument("tier_options", nargs=-1, type=click.UNPROCESSED, metavar="[TIER_OPTIONS]...")
@pass_session
def tier(session: Session, tier_options: tuple[str, ...]) -> int:
    """Bring tables to their lake, once or for good.

    Every option of `python -m fluss.spark.tier` is taken: --once, --table, and the others that its --help lists.
    """
    if find_spec("pyspark") is None:
        raise CommandError("this needs Spark: pip install 'flussbett[spark,lake]', and Java 17 or newer")
    from fluss.spark.tier import run

    _look_for_servers(session)
    if _is_shown():
        session.out.note("Starting Spark ...")
    try:
        return run([*tier_arguments(session), *tier_options])
    except ImportError as error:
        raise CommandError(str(error)) from None


def tier_arguments(session: Session) -> list[str]:
    """Return address and login as the program of tiering takes them. Other processes do not see these arguments."""
    options = session.client_options()
    arguments = ["--bootstrap-servers", options.pop(SERVERS_KEY)]
    for key, value in options.items():
        arguments += ["-D", f"{key}={value}"]
    return [*arguments, "--json"] if session.output_format == "json" else arguments
