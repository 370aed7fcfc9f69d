"""Whatever happens to a log, what it called durable is there exactly once, in order, at its offset.
A state machine over a disk with faults: appends, resends, rolls, expiry, restarts, full disks and crashes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluss.errors import ErrorCode, FlussError
from fluss.storage.log.append_result import AppendResult
from fluss.storage.log.log_settings import LogSettings
from fluss.testing.faultfs import FaultFiles
from tests.unit.storage.log.support import (
    DATA_DIRECTORY,
    Clock,
    SteppedCommitter,
    drive,
    make_batch,
    open_log,
    quiet_logs,
    read_batches,
    row_bytes,
)

WRITERS = (-1, 3, 4)
REMEMBERED = 5
# Index of the writer, rows, bytes.
BATCHES = st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from((0, 10, 400, 1500)))


@dataclass(frozen=True)
class Append:
    """A batch that the log has taken."""

    result: AppendResult
    rows: bytes
    batch: bytes
    writer: int
    sequence: int


class LogMachine(RuleBasedStateMachine):
    """The model is the list of appends that the log has taken, in order. Some of them may be lost by a crash."""

    @initialize(
        seed=st.integers(0, 2**32), is_synced=st.booleans(), sector_bytes=st.sampled_from((512, 4096)), data=st.data()
    )
    def begin(self, seed: int, is_synced: bool, sector_bytes: int, data: st.DataObject) -> None:
        self.loop = asyncio.new_event_loop()
        self.quiet = quiet_logs()
        self.quiet.__enter__()
        self.files = FaultFiles(seed, sector_bytes=sector_bytes)
        self.files.make_directory(DATA_DIRECTORY)
        self.is_synced = is_synced
        self.clock = Clock()
        self.settings = LogSettings(
            segment_bytes_max=data.draw(st.sampled_from((120, 700, 3000, 100_000))),
            index_interval_bytes=data.draw(st.sampled_from((0, 100, 4096))),
        )
        self.appends: list[Append] = []
        # Everything before it survives whatever comes, and the checkpoint file knows this much of it.
        self.offset_safe = 0
        self.offset_checkpointed = 0
        self.body_count = 0
        self.writers = list(WRITERS)
        self.writer_id_next = max(WRITERS) + 1
        self.offset_writers_known = 0
        self._open(was_clean=False)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self.quiet.__exit__(None, None, None)

    # Helpers

    def _open(self, *, was_clean: bool) -> None:
        self.committer = SteppedCommitter(self.files, is_synced=self.is_synced)
        self.log, self.load_result = open_log(
            self.files,
            self.committer,
            settings=self.settings,
            clock=self.clock,
            recovery_offset=self.offset_checkpointed,
            was_clean=was_clean,
        )

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(drive(self.committer, coroutine))

    def _next_sequence(self, writer: int) -> int:
        sequences = [append.sequence for append in self.appends if append.writer == writer]
        return sequences[-1] + 1 if sequences else 0

    def _settle(self) -> None:
        """Drop what the log has told to be lost: it must be the end."""
        if self.log.failure is None:
            dropped = [append for append in self.appends if self._is_lost(append)]
            taken = self.appends[: len(self.appends) - len(dropped)]
            assert not any(self._is_lost(append) for append in taken)
            self.appends = taken
        self.offset_safe = max(self.offset_safe, self.log.recovery_offset)

    def _is_lost(self, append: Append) -> bool:
        return append.result.history.failure is not None and not self.log.is_durable(append.result)

    @property
    def _durable(self) -> list[Append]:
        return [append for append in self.appends if self.log.is_durable(append.result)]

    # What clients do

    @precondition(lambda self: self.log.failure is None)
    @rule(batches=st.lists(BATCHES, min_size=1, max_size=8))
    def append_some(self, batches: list[tuple[int, int, int]]) -> None:
        self._append_all(batches)

    def _append_all(self, batches: list[tuple[int, int, int]]) -> None:
        for index, rows, byte_count in batches:
            self._append(index, rows, byte_count)

    def _append(self, index: int, rows: int, byte_count: int) -> None:
        writer = self.writers[index]
        sequence = self._next_sequence(writer) if writer >= 0 else -1
        self.body_count += 1
        body = self.body_count.to_bytes(4, "little").ljust(byte_count, b"\xab") if rows else b""
        batch = make_batch(body, rows=rows, writer=writer, sequence=sequence)
        offset = self.log.offset_next
        result = self.log.append(bytearray(batch))
        assert not result.is_duplicate
        assert (result.offset_base, result.offset_next) == (offset, offset + max(rows, 1))
        self.appends.append(Append(result, row_bytes(batch), bytes(batch), writer, sequence))

    @precondition(lambda self: self.log.failure is None)
    @rule(index=st.integers(1, 2), back=st.integers(1, REMEMBERED))
    def resend(self, index: int, back: int) -> None:
        own = [append for append in self.appends if append.writer == self.writers[index]]
        own = [append for append in own if append.result.offset_base >= self.offset_writers_known]
        if len(own) >= back:
            first = own[-back]
            result = self.log.append(first.batch)
            assert result.is_duplicate
            assert (result.offset_base, result.offset_next) == (first.result.offset_base, first.result.offset_next)
            assert self.log.is_durable(result) == self.log.is_durable(first.result)

    @precondition(lambda self: self.log.failure is None)
    @rule(index=st.integers(1, 2))
    def skip_a_sequence(self, index: int) -> None:
        writer = self.writers[index]
        batch = make_batch(writer=writer, sequence=self._next_sequence(writer) + 1)
        with pytest.raises(FlussError) as caught:
            self.log.append(batch)
        assert caught.value.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION

    # What the server does

    @rule()
    def commit(self) -> None:
        self.committer.step()
        self._settle()

    @precondition(lambda self: self.log.failure is None)
    @rule()
    def checkpoint(self) -> None:
        self._run(self.log.flush())
        self._settle()
        assert self.log.recovery_offset == self.log.offset_next == self.log.offset_high_watermark
        self.offset_checkpointed = self.log.recovery_offset

    @rule(delta_ms=st.integers(-2000, 5000))
    def pass_time(self, delta_ms: int) -> None:
        self.clock.now_ms += delta_ms

    @precondition(lambda self: self.log.failure is None)
    @rule(age_ms=st.integers(-1000, 3000), roll_active=st.booleans())
    def expire(self, age_ms: int, roll_active: bool) -> None:
        offset_start, count = self.log.offset_start, 0
        try:
            count = self._run(self.log.expire_segments(self.clock.now_ms - age_ms, roll_active=roll_active))
        except FlussError as error:
            # The new segment could not be written.
            if not roll_active or error.error_code != ErrorCode.LOG_STORAGE_EXCEPTION:
                raise
        assert (self.log.offset_start > offset_start) == (count > 0)
        self._settle()

    @precondition(lambda self: self.log.failure is None)
    @rule()
    def restart(self) -> None:
        self._run(self.log.close())
        self._settle()
        offset_start = self.log.offset_start
        self.offset_checkpointed = self.log.recovery_offset
        # The marker of a clean shutdown is durable; a loss of power after it must not matter.
        self.files.crash()
        self._open(was_clean=True)
        assert self.load_result.bytes_dropped == 0
        self._check_found(offset_start, offset_min=self.offset_checkpointed)

    # What the world does

    @rule(is_power_lost=st.booleans(), operation_count=st.integers(0, 20), batches=st.lists(BATCHES, max_size=8))
    def crash(self, is_power_lost: bool, operation_count: int, batches: list[tuple[int, int, int]]) -> None:
        if self.log.failure is None:
            self._append_all(batches)
        self.files.stop_after(operation_count)
        durable_before = self._durable
        self.committer.step()
        # What was told before the end counts.
        self.offset_safe = max(self.offset_safe, self.log.recovery_offset)
        durable = self._durable
        assert durable[: len(durable_before)] == durable_before
        self._find_after_crash(is_power_lost, durable)

    @precondition(lambda self: self.log.failure is None)
    @rule(is_power_lost=st.booleans(), operation_count=st.integers(0, 10), roll_active=st.booleans())
    def crash_while_expiring(self, is_power_lost: bool, operation_count: int, roll_active: bool) -> None:
        self.committer.step()
        self._settle()
        durable = self._durable
        if self.log.failure is None:
            self.files.stop_after(operation_count)
            with suppress(FlussError, OSError):
                self._run(self.log.expire_segments(self.clock.now_ms, roll_active=roll_active))
        self._find_after_crash(is_power_lost, durable)

    def _find_after_crash(self, is_power_lost: bool, durable: list[Append]) -> None:
        offset_start = self.log.offset_start
        self.files.crash(is_power_lost=is_power_lost)
        self._open(was_clean=False)
        offset_min = self.offset_safe
        if durable and not is_power_lost:
            offset_min = max(offset_min, durable[-1].result.offset_next)
        self._check_found(offset_start, offset_min=offset_min)
        if is_power_lost and not self.is_synced:
            self._forget_writers()

    def _forget_writers(self) -> None:
        """Without syncs, a loss of power may take what was known about writers whose rows have expired."""
        self.offset_writers_known = self.log.offset_start
        for index, writer in enumerate(self.writers):
            own = [append for append in self.appends if append.writer == writer]
            if writer >= 0 and own and own[-1].result.offset_base < self.log.offset_start:
                self.writers[index] = self.writer_id_next
                self.writer_id_next += 1

    @precondition(lambda self: self.log.failure is None)
    @rule(operation=st.sampled_from(("write", "make_directory", "replace")))
    def let_a_write_fail(self, operation: str) -> None:
        name = "index" if operation == "replace" else ""
        self.files.fail_next(operation, name, number=errno.ENOSPC)

    @precondition(lambda self: self.log.failure is None)
    @rule(operation=st.sampled_from(("sync", "sync_directory", "truncate", "remove")))
    def let_the_disk_fail(self, operation: str) -> None:
        self.files.fail_next(operation)
        self.committer.step()
        self._settle()
        self.files._failures.clear()

    # What must hold

    def _check_found(self, offset_start: int, *, offset_min: int) -> None:
        """After a start: the log is a beginning of what was taken, and no shorter than it may be."""
        log = self.log
        assert log.offset_next >= offset_min
        assert log.offset_start <= offset_start, "nothing expires by itself"
        assert log.offset_next == log.offset_high_watermark == log.recovery_offset
        found = [append for append in self.appends if append.result.offset_next <= log.offset_next]
        assert log.offset_next == (found[-1].result.offset_next if found else 0)
        # The objects of the process before say nothing about this one.
        self.appends = [
            Append(
                AppendResult(
                    append.result.offset_base,
                    append.result.offset_next,
                    append.result.commit_timestamp_ms,
                    False,
                    log._history,
                ),
                append.rows,
                append.batch,
                append.writer,
                append.sequence,
            )
            for append in found
        ]
        self.offset_safe = log.offset_next

    @invariant()
    def everything_visible_is_right(self) -> None:
        if not hasattr(self, "log"):
            return
        expected = {
            append.result.offset_base: append.rows
            for append in self._durable
            if append.result.offset_base >= self.log.offset_start
        }
        found, time_ms = {}, 0
        for batch in read_batches(self.log):
            found[batch.header.base_offset] = row_bytes(batch.data)
            assert batch.header.commit_timestamp >= time_ms
            time_ms = batch.header.commit_timestamp
        assert found == expected
        assert sum(1 for append in self.appends if append.result.offset_next > self.log.offset_next) == 0


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(stateful_step_count=40)
