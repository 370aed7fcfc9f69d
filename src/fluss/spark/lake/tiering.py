"""Tables brought to the lake by a Spark session: on demand, whatever the schedule of the coordinator says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from fluss.errors import FlussError
from fluss.schema.table import TablePath
from fluss.schema.table_options import LAKE_ENABLED
from fluss.spark.bulk.jobs import FlussOnSpark
from fluss.spark.connections import await_table
from fluss.spark.lake.spark_tasks import SparkTasks
from fluss.spark.naming import table_path
from fluss.spark.query_options import client_settings
from fluss.tiering.progress import RoundProgress, TieringReport
from fluss.tiering.rounds import TASK_ROWS
from fluss.tiering.rounds import tier as tier_table

if TYPE_CHECKING:
    from fluss.spark.fluss_catalog import FlussCatalog

MAX_CONCURRENT_TABLES: Final = 4

logger = logging.getLogger(__name__)


def tier(
    fs: FlussOnSpark,
    catalog: FlussCatalog,
    tables: str | TablePath | Sequence[str | TablePath] | None = None,
    *,
    lake_properties: Mapping[str, str] | None = None,
    max_concurrent_tables: int = MAX_CONCURRENT_TABLES,
    task_rows: int = TASK_ROWS,
    progress: bool | Callable[[RoundProgress], None] = False,
) -> TieringReport:
    """Bring to the lake what tables have got since their last round, now, and return when it is there.

    Without ``tables`` these are all that have a lake. It is safe beside a tiering service: a round that another was
    faster with is planned again. ``lake_properties`` are credentials of the lake's catalog and files, named as
    pyiceberg names them, which servers do not tell. ``progress`` is called with every round that has ended, or True to
    print a line for it. If rounds have failed, the report is made all the same; of a single table the error is raised.
    """
    if max_concurrent_tables < 1:
        raise ValueError(f"max_concurrent_tables must be at least 1, got {max_concurrent_tables}")
    is_single = isinstance(tables, str | TablePath)
    paths = lake_tables(catalog) if tables is None else _paths(tables)
    tell = (print if progress else _quiet) if isinstance(progress, bool) else progress
    run_tasks = SparkTasks(fs)
    settings = client_settings(fs.options)
    started_s = time.monotonic()

    def rounds(path: TablePath) -> list[RoundProgress]:
        ended: list[RoundProgress] = []
        while not ended or (ended[-1].report is not None and not ended[-1].report.is_complete):
            try:
                report = tier_table(
                    await_table(settings, path),
                    lake_properties=lake_properties,
                    run_tasks=run_tasks,
                    parallelism=run_tasks.cores,
                    task_rows=task_rows,
                )
                ended.append(RoundProgress.of(report))
            except FlussError as error:
                if is_single:
                    raise
                ended.append(RoundProgress.of_error(str(path), error))
            tell(ended[-1])
        return ended

    with ThreadPoolExecutor(min(max_concurrent_tables, max(len(paths), 1)), "fluss-tiering") as slots:
        ended = [each for of_table in slots.map(rounds, paths) for each in of_table]
    return TieringReport.of(ended, time.monotonic() - started_s)


def lake_tables(catalog: FlussCatalog) -> list[TablePath]:
    """Return all tables of a cluster that have a lake."""
    found = []
    for database in catalog.list_databases():
        for name in catalog.list_tables(database):
            path = TablePath(database, name)
            if LAKE_ENABLED.of(catalog.table_info(path).properties):
                found.append(path)
    return found


def _paths(tables: str | TablePath | Sequence[str | TablePath]) -> list[TablePath]:
    named = [tables] if isinstance(tables, str | TablePath) else list(tables)
    return list(dict.fromkeys(table_path(each) for each in named))


def _quiet(_progress: RoundProgress) -> None:
    """Listen, and say nothing."""
