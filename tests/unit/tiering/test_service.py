"""The service: tables that the coordinator hands out, rounds that are taken away, failures, stopping."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fluss.client.bulk import TieringAssignment, tiering_calls_of
from fluss.errors import ErrorCode, FlussError
from fluss.retry import RetryPolicy
from fluss.schema.table import TablePath
from fluss.tiering import service as service_module
from fluss.tiering.progress import RoundProgress
from fluss.tiering.rounds import RoundReport, tier
from fluss.tiering.schedules import CoordinatorSchedule, NamedSchedule
from fluss.tiering.service import RunRound, StillOurs, TieringService
from fluss.tiering.tiering_metrics import TieringMetrics
from tests.unit.tiering.lakes import LakeCluster, lake_rows, ordered
from tests.unit.tiering.test_log_rounds import EVENTS, append, events


class Told:
    """Collects progress, and waits for what a test expects."""

    def __init__(self) -> None:
        self.rounds: list[RoundProgress] = []
        self._changed = threading.Condition()

    def __call__(self, progress: RoundProgress) -> None:
        with self._changed:
            self.rounds.append(progress)
            self._changed.notify_all()

    def wait(self, is_there: Callable[[list[RoundProgress]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_there(self.rounds), timeout=100)


class Running:
    def __init__(self, service: TieringService) -> None:
        self._service = service
        self._thread = threading.Thread(target=service.run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._service.stop()
        self._thread.join(timeout=100)
        assert not self._thread.is_alive()


def rounds_of(cluster: LakeCluster) -> RunRound:
    def run(assignment: TieringAssignment, still_ours: StillOurs) -> RoundReport:
        return tier(cluster.table(str(assignment.table_path)), still_ours=still_ours)

    return run


def rows_of(rounds: list[RoundProgress], name: str) -> int:
    return sum(each.report.rows for each in rounds if each.table == name and each.report is not None)


@pytest.fixture
def schedule(lake_cluster: LakeCluster) -> CoordinatorSchedule:
    return CoordinatorSchedule(tiering_calls_of(lake_cluster.admin), 0.05)


def test_tables_are_kept_fresh(lake_cluster: LakeCluster, name: str, schedule: CoordinatorSchedule) -> None:
    table = lake_cluster.create(name, EVENTS, properties={"table.datalake.freshness": "10 ms"})
    append(lake_cluster, name, 0, 100)
    told = Told()
    with Running(TieringService(schedule, rounds_of(lake_cluster), on_progress=told)):
        told.wait(lambda rounds: rows_of(rounds, name) == 100)
        append(lake_cluster, name, 100, 50)
        told.wait(lambda rounds: rows_of(rounds, name) == 150)
    assert lake_rows(table) == ordered(events(0, 150))
    metrics = TieringMetrics()
    for each in told.rounds:
        metrics.add(each)
    assert f'fluss_tiering_rows_total{{table="{name}"}} 150' in metrics.text()
    assert f'fluss_tiering_lag_records{{table="{name}"}} 0' in metrics.text()


def test_a_round_that_was_given_to_another_service_is_not_committed(
    lake_cluster: LakeCluster, name: str, schedule: CoordinatorSchedule
) -> None:
    table = lake_cluster.create(name, EVENTS, properties={"table.datalake.freshness": "10 ms"})
    append(lake_cluster, name, 0, 100)
    calls = tiering_calls_of(lake_cluster.admin)
    taken: list[TieringAssignment] = []
    lost: list[TieringAssignment] = []

    def run(assignment: TieringAssignment, still_ours: StillOurs) -> RoundReport:
        if assignment.table_path == table.table_path and not taken:
            # What a silence of two minutes does: the table is pending again, with the next epoch.
            taken.append(assignment)
            calls.heartbeat(failed=[assignment])
        return tier(lake_cluster.table(str(assignment.table_path)), still_ours=still_ours)

    told = Told()
    with Running(TieringService(schedule, run, on_progress=told, on_lost=lost.append)):
        told.wait(lambda rounds: rows_of(rounds, name) == 100)
    first = next(each for each in told.rounds if each.table == name)
    assert first.state == "lost"
    assert lake_rows(table) == ordered(events(0, 100))


def test_a_table_that_fails_is_tried_again_and_does_not_stop_others(
    lake_cluster: LakeCluster, name: str, schedule: CoordinatorSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "TIERING_ROUNDS", RetryPolicy(0.01, 0.1))
    lake_cluster.create(name, EVENTS, properties={"table.datalake.freshness": "10 ms"})
    append(lake_cluster, name, 0, 10)
    failures = []

    def run(assignment: TieringAssignment, still_ours: StillOurs) -> RoundReport:
        if str(assignment.table_path) == name and len(failures) < 3:
            failures.append(assignment.tiering_epoch)
            raise FlussError("the lake is away", ErrorCode.NETWORK_EXCEPTION) if len(failures) < 3 else OSError("full")
        return rounds_of(lake_cluster)(assignment, still_ours)

    told = Told()
    with Running(TieringService(schedule, run, on_progress=told)):
        told.wait(lambda rounds: rows_of(rounds, name) == 10)
    mine = [each for each in told.rounds if each.table == name]
    assert [each.error for each in mine[:3]] == ["the lake is away", "the lake is away", "OSError: full"]
    assert len(set(failures)) == 3, "each try has an epoch of its own"


def test_tables_by_name_have_a_clock_of_their_own() -> None:
    first, second = TablePath("d", "first"), TablePath("d", "second")
    now = [0.0]
    schedule = NamedSchedule([first, second], lambda path: (hash(path), 10.0), 30.0, clock=lambda: now[0])

    def beat(*tiering: TieringAssignment, **ended: list[TieringAssignment]) -> TieringAssignment | None:
        from fluss.client.bulk import FinishedRound

        finished = [FinishedRound(each) for each in ended.get("finished", [])]
        return schedule.beat(tiering, finished, ended.get("failed", []), wants_table=True).assignment

    one = beat()
    assert one is not None
    two = beat(one)
    assert two is not None
    assert {one.table_path, two.table_path} == {first, second}
    assert beat(one, two) is None
    assert beat(two, finished=[one]) is None, "it is fresh"
    now[0] = 9.0
    assert beat(two) is None
    assert 0 < schedule.wait_s() <= 30
    now[0] = 10.0
    again = beat(two)
    assert again is not None
    assert (again.table_path, again.tiering_epoch) == (one.table_path, 2)


def test_a_table_that_was_dropped_does_not_keep_others_from_theirs() -> None:
    first, second = TablePath("d", "first"), TablePath("d", "second")
    now, gone = [0.0], set[TablePath]()

    def facts(path: TablePath) -> tuple[int, float]:
        if path in gone:
            raise FlussError(f"Table {path} does not exist", ErrorCode.TABLE_NOT_EXIST)
        return hash(path), 10.0

    def due(schedule: NamedSchedule, *tiering: TieringAssignment) -> TieringAssignment | None:
        return schedule.beat(tiering, (), (), wants_table=True).assignment

    schedule = NamedSchedule([first, second], facts, 30.0, clock=lambda: now[0])
    one = due(schedule)
    assert one is not None
    gone.add(one.table_path)
    other = due(schedule)
    assert other is not None
    assert other.table_path not in gone
    now[0] = 30.0
    gone.clear()
    again = due(schedule, other)
    assert again is not None
    assert again.table_path == one.table_path, "it may be created again"
    # A name that was never that of a table is a mistake.
    gone.add(first)
    with pytest.raises(FlussError, match="does not exist"):
        due(NamedSchedule([first], facts, 30.0, clock=lambda: now[0]))
