"""Tables brought to their lake by a Spark session: on demand, or as a service that goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fluss.client.bulk import TieringAssignment, tiering_calls_of
from fluss.errors import FlussError
from fluss.schema.table import TablePath
from fluss.schema.table_options import LAKE_ENABLED, LAKE_FRESHNESS
from fluss.spark.bulk.jobs import FlussOnSpark, context_of
from fluss.spark.connections import await_table, open_connection
from fluss.spark.lake.spark_tasks import SparkTasks
from fluss.spark.lake.tiering_query import TieringQuery
from fluss.spark.naming import table_path
from fluss.spark.query_options import client_settings
from fluss.tiering.progress import RoundProgress, TieringReport
from fluss.tiering.rounds import TASK_ROWS, RoundReport
from fluss.tiering.rounds import tier as tier_table
from fluss.tiering.schedules import CoordinatorSchedule, NamedSchedule, Schedule
from fluss.tiering.service import StillOurs, TieringService
from fluss.tiering.upkeep import MIN_AGE_S, UpkeepOptions, after_round

if TYPE_CHECKING:
    from fluss.spark.fluss_catalog import FlussCatalog

MAX_CONCURRENT_TABLES: Final = 4
POLL_INTERVAL_S: Final = 30.0
# Other services may have the tables of one that is silent for two minutes.
_POLL_INTERVAL_S_MAX: Final = 60.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TieringOptions:
    """How tables are brought to the lake.

    ``lake_properties`` are credentials of the lake's catalog and files, named as pyiceberg names them, which servers do
    not tell. ``max_concurrent_tables`` rounds run at a time; a task brings about ``task_rows`` rows to the lake. With
    ``expire_snapshots`` old snapshots are removed after rounds, also where ``table.datalake.auto-expire-snapshot`` is
    off; ``snapshot_min_age_s`` is how old they are then at least.
    """

    lake_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_concurrent_tables: int = MAX_CONCURRENT_TABLES
    task_rows: int = TASK_ROWS
    poll_interval_s: float = POLL_INTERVAL_S
    expire_snapshots: bool = False
    snapshot_min_age_s: float = MIN_AGE_S

    def __post_init__(self) -> None:
        if self.max_concurrent_tables < 1:
            raise FlussError(f"max_concurrent_tables must be at least 1, got {self.max_concurrent_tables}")
        if self.task_rows < 1:
            raise FlussError(f"task_rows must be at least 1, got {self.task_rows}")
        if not 0 < self.poll_interval_s <= _POLL_INTERVAL_S_MAX:
            raise FlussError(
                f"poll_interval_s must be between 0 and {_POLL_INTERVAL_S_MAX:g}, got {self.poll_interval_s:g}: a "
                "service that is silent for two minutes loses its tables"
            )


TableNames = str | TablePath | Sequence[str | TablePath] | None
Listener = Callable[[RoundProgress], None]


def tier(
    fs: FlussOnSpark,
    catalog: FlussCatalog,
    tables: TableNames = None,
    *,
    progress: bool | Listener = False,
    **options: object,
) -> TieringReport:
    """Bring to the lake what tables have got since their last round, now, and return when it is there.

    Without ``tables`` these are all that have a lake. It is safe beside a tiering service: a round that another was
    faster with is planned again. ``progress`` is called with every round that has ended, or True to print a line for
    it. Further options are those of ``TieringOptions``. If rounds have failed, the report is made all the same; of a
    single table the error is raised.
    """
    settings = TieringOptions(**options)  # type: ignore[arg-type]
    rounds = _Rounds(fs, settings)
    paths = lake_tables(catalog) if tables is None else _paths(tables)
    tell = _listener(progress)
    is_single = isinstance(tables, str | TablePath)
    started_s = time.monotonic()

    def all_rounds(path: TablePath) -> list[RoundProgress]:
        ended: list[RoundProgress] = []
        # Of many changes a round takes a part.
        while not ended or (ended[-1].report is not None and not ended[-1].report.is_complete):
            try:
                ended.append(RoundProgress.of(rounds.run(path)))
            except FlussError as error:
                if is_single:
                    raise
                ended.append(RoundProgress.of_error(str(path), error))
            except Exception as error:
                # What has gone wrong with one table is no reason to say nothing about the others.
                if is_single:
                    raise
                logger.exception("a round of %s failed", path)
                ended.append(RoundProgress.of_exception(str(path), error))
            tell(ended[-1])
        return ended

    with ThreadPoolExecutor(min(settings.max_concurrent_tables, max(len(paths), 1)), "fluss-tiering") as slots:
        ended = [each for of_table in slots.map(all_rounds, paths) for each in of_table]
    return TieringReport.of(ended, time.monotonic() - started_s)


def start_tiering(
    fs: FlussOnSpark,
    tables: TableNames = None,
    *,
    progress: bool | Listener = False,
    name: str = "tiering",
    **options: object,
) -> TieringQuery:
    """Keep lakes fresh in the background, until the query that is returned is stopped.

    Without ``tables`` the coordinator says which table is due, and several services share the work. Tables by name are
    tiered each time their ``table.datalake.freshness`` is over, whatever other services do. A round takes no longer
    than that: then it commits what it has. Arguments are those of ``tier``.
    """
    settings = TieringOptions(**options)  # type: ignore[arg-type]
    rounds = _Rounds(fs, settings)
    query = TieringQuery(name, _listener(progress))
    if tables is None:
        admin = open_connection(rounds.settings).get_admin()
        schedule: Schedule = CoordinatorSchedule(tiering_calls_of(admin), settings.poll_interval_s)
    else:
        schedule = NamedSchedule(_paths(tables), rounds.facts, settings.poll_interval_s)
    service = TieringService(
        schedule,
        rounds.run_assigned,
        max_tables=settings.max_concurrent_tables,
        on_progress=query.add,
        on_lost=lambda assignment: rounds.tasks.cancel(assignment.table_path),
    )
    return query.start(service)


class _Rounds:
    """Rounds whose tasks run on a session."""

    def __init__(self, fs: FlussOnSpark, options: TieringOptions) -> None:
        self.settings = client_settings(fs.options)
        self.tasks = SparkTasks(fs)
        self._options = options

    def run(self, path: TablePath, still_ours: StillOurs | None = None, limit_s: float | None = None) -> RoundReport:
        """Run one round of a table."""
        options = self._options
        still_ours = still_ours or (lambda: None)
        report = tier_table(
            await_table(self.settings, path),
            lake_properties=options.lake_properties,
            run_tasks=self.tasks,
            task_rows=options.task_rows,
            limit_s=limit_s,
            still_ours=still_ours,
        )
        if report.snapshot_id is not None:
            # In the time of the round, so that nothing else of this service commits to the table meanwhile.
            after_round(
                await_table(self.settings, path),
                UpkeepOptions(options.expire_snapshots, options.snapshot_min_age_s),
                lake_properties=options.lake_properties,
                run_tasks=self.tasks,
                still_ours=still_ours,
            )
        return report

    def run_assigned(self, assignment: TieringAssignment, still_ours: StillOurs) -> RoundReport:
        """Run a round that a schedule has asked for, no longer than the freshness of the table."""
        table_id, freshness_s = self.facts(assignment.table_path)
        if table_id != assignment.table_id:
            raise FlussError(f"{assignment.table_path} was dropped and created again; its new table is due by itself")
        return self.run(assignment.table_path, still_ours, freshness_s)

    def facts(self, path: TablePath) -> tuple[int, float]:
        """Return the id and the freshness of a table."""
        info = await_table(self.settings, path).get_table_info()
        return info.table_id, LAKE_FRESHNESS.of(info.properties) / 1000


def lake_tables(catalog: FlussCatalog) -> list[TablePath]:
    """Return all tables of a cluster that have a lake."""
    paths = [
        TablePath(database, name) for database in catalog.list_databases() for name in catalog.list_tables(database)
    ]
    return [path for path in paths if LAKE_ENABLED.of(catalog.table_info(path).properties)]


def warn_unless_fair(fs: FlussOnSpark) -> None:
    """Say so if the session gives all cores to the table that was first."""
    mode = context_of(fs.spark).getConf().get("spark.scheduler.mode") or "FIFO"
    if mode.upper() != "FAIR":
        logger.warning(
            "the session has spark.scheduler.mode=%s: a table with many tasks keeps the others waiting; FAIR divides "
            "the cores among tables",
            mode,
        )


def _paths(tables: str | TablePath | Sequence[str | TablePath]) -> list[TablePath]:
    named = [tables] if isinstance(tables, str | TablePath) else list(tables)
    return list(dict.fromkeys(table_path(each) for each in named))


def _listener(progress: bool | Listener) -> Listener:
    if callable(progress):
        return progress
    return print if progress else _quiet


def _quiet(_progress: RoundProgress) -> None:
    """Listen, and say nothing."""
