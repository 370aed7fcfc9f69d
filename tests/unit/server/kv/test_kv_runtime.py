"""What writes hold in memory is counted to a limit, and the nearer the limit the more urgently they are asked to wait.
The counter alone, with small numbers."""

from __future__ import annotations

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.server.kv.kv_runtime import WriteMemory


def test_writes_are_counted_to_a_limit():
    memory = WriteMemory(100)
    memory.take(60)
    memory.take(40)
    with pytest.raises(FlussError, match=r"hold 100 bytes.*may hold 100") as error:
        memory.take(1)
    assert error.value.error_code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION
    assert memory.held_bytes == 100
    memory.change(-60)
    memory.take(60)


def test_a_single_large_write_fits_when_there_is_no_other():
    memory = WriteMemory(100)
    memory.take(1000)
    assert memory.pressure == 1.0
    memory.change(-1000)
    assert memory.pressure == 0.0


def test_pressure_begins_at_three_quarters():
    memory = WriteMemory(100)
    found = []
    for _ in range(10):
        memory.take(10)
        found.append(round(memory.pressure, 2))
    assert found == [0.0] * 7 + [0.2, 0.6, 1.0]
