"""A writer that lies with a right checksum is refused, or harms nobody: readers get a typed error and can go on behind.
Shown with a batch for each lie between two good ones, read in every way by a process that would not survive a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fluss.errors import ErrorCode
from fluss.net.transport import run
from fluss.testing.cluster import ServerProcess
from tests.integration.lying_batches import (
    ROW_COUNT,
    harmless_lies,
    hidden_lies,
    refused_lies,
    tell_lies,
)

# Enough for readers to take the quick way through a batch.
LARGE_ROW_COUNT = 20_000
REFUSALS = {
    ErrorCode.CORRUPT_RECORD_EXCEPTION,
    ErrorCode.INVALID_TABLE_EXCEPTION,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("lies") / "data", "--durability", "os") as running:
        yield running
        assert running.stop() == 0
        # What was stored can be recovered, and nothing was found that has no type.
        running.start()
        assert "Traceback" not in running.log_text


def tell(server: ServerProcess, prefix: str, lies: Mapping[str, bytes]) -> dict[str, tuple[str, list[Any]]]:
    return run(tell_lies(server.port, prefix, lies))


def read(server: ServerProcess, tables: list[tuple[str, int, int]]) -> Any:
    """Have tables read by a process; one that does not end by itself and in order fails the test."""
    order = {"bootstrap_servers": server.bootstrap_servers, "tables": tables}
    victim = subprocess.run(
        [sys.executable, "-m", "tests.integration.reading_victim"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )
    assert victim.returncode == 0, victim.stderr
    return json.loads(victim.stdout)


def test_lies_that_can_be_seen_are_refused_and_change_nothing(server: ServerProcess) -> None:
    told = tell(server, "refused", refused_lies())
    for name, (_, (first, lie, last)) in told.items():
        assert lie.error_code in REFUSALS, name
        assert len(lie.error_message) > 20
        assert (first.error_code, last.error_code) == (0, 0), name
        assert (first.base_offset, last.base_offset) == (0, ROW_COUNT), name
    (table, _), *_ = told.values()
    (outcomes,) = read(server, [(table, 2 * ROW_COUNT, ROW_COUNT)]).values()
    assert outcomes.pop("behind") == ROW_COUNT
    assert set(outcomes.values()) == {2 * ROW_COUNT}


def test_lies_that_make_no_difference_are_taken_and_read(server: ServerProcess) -> None:
    told = tell(server, "harmless", harmless_lies())
    for name, (_, answers) in told.items():
        assert [answer.error_code for answer in answers] == [0, 0, 0], name
    outcomes = read(server, [(table, 3 * ROW_COUNT, 2 * ROW_COUNT) for table, _ in told.values()])
    for name, (table, _) in told.items():
        assert outcomes[table].pop("behind") == ROW_COUNT, name
        assert set(outcomes[table].values()) == {3 * ROW_COUNT}, name


@pytest.mark.parametrize("row_count", [ROW_COUNT, LARGE_ROW_COUNT])
def test_lies_that_only_readers_find_end_in_a_typed_error_and_the_rest_can_be_read(
    server: ServerProcess, row_count: int
) -> None:
    told = tell(server, f"hidden_{row_count}", hidden_lies(row_count))
    tables = []
    for name, (table, answers) in told.items():
        assert [answer.error_code for answer in answers] == [0, 0, 0], name
        behind = answers[2].base_offset
        tables.append((table, behind + ROW_COUNT, behind))
    outcomes = read(server, tables)
    for name, (table, answers) in told.items():
        check_outcomes(name, outcomes[table], answers[2].base_offset)


def check_outcomes(name: str, outcomes: dict[str, Any], offset_behind: int) -> None:
    assert outcomes["behind"] == ROW_COUNT, name
    row_count = offset_behind + ROW_COUNT
    # No lie is about this column.
    assert outcomes["one column"] == row_count, name
    for way in ("arrow", "rows", "filtered", "newest"):
        found = outcomes[way]
        if isinstance(found, int):
            # Values can be out of range in a way that only their own readers notice.
            assert found == row_count, (name, way)
        else:
            code, text = found
            assert code in (ErrorCode.CLIENT_ERROR, ErrorCode.CORRUPT_RECORD_EXCEPTION), (name, way, found)
            assert len(text) > 20, (name, way)
