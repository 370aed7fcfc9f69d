"""What a server finds when it starts: leftovers go, torn tails are cut, damage is refused, writers are known again.
A disk in memory that is stopped at every single operation, and log directories made by hand."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from fluss.errors import CorruptRecordError
from fluss.net.transport import run
from fluss.record.log_batch import assign_offset
from fluss.storage.log.loader import RecoveryReport
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.tablet import LogTablet
from fluss.storage.log.writer_state import WriterEntry, decode_writer_snapshot, encode_writer_snapshot
from fluss.testing.faultfs import FaultFiles
from tests.unit.storage.log.support import (
    DATA_DIRECTORY,
    DIRECTORY,
    NOW_MS,
    Clock,
    SteppedCommitter,
    bodies,
    contents,
    drive,
    make_batch,
    open_log,
    quiet_logs,
    read_batches,
)

BATCH_BYTES = len(make_batch())
SETTINGS = LogSettings(segment_bytes_max=3 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)


class Disk:
    """A disk in memory, and the servers that use it one after the other."""

    def __init__(self, *, seed: int = 0, is_synced: bool = True, settings: LogSettings = SETTINGS) -> None:
        self.files = FaultFiles(seed)
        self.files.make_directory(DATA_DIRECTORY)
        self.settings = settings
        self.clock = Clock()
        self.is_synced = is_synced
        self.committer = SteppedCommitter(self.files, is_synced=is_synced)

    def open(self, *, recovery_offset: int = 0, was_clean: bool = False) -> LogTablet:
        self.log, self.result = open_log(
            self.files,
            self.committer,
            settings=self.settings,
            clock=self.clock,
            recovery_offset=recovery_offset,
            was_clean=was_clean,
        )
        return self.log

    def append(self, *texts: str) -> None:
        """Append batches durably, one round each. ``w1`` is the batch with sequence 1 of writer ord("w")."""
        for text in texts:
            writer, sequence = (ord(text[0]), int(text[1:])) if text[1:].isdigit() else (-1, -1)
            result = self.log.append(make_batch(text.encode(), writer=writer, sequence=sequence))
            self.committer.step()
            assert self.log.is_durable(result)

    def close(self) -> int:
        run(drive(self.committer, self.log.close()))
        return self.log.offset_next

    def path(self, offset: int, suffix: str = ".log") -> Path:
        return DIRECTORY / f"{offset:020d}{suffix}"

    def content(self, path: Path) -> bytes:
        return self.files.read(path, 0, self.files.size(path))

    def names(self, suffix: str) -> list[int]:
        return sorted(int(name[:20]) for name in self.files.names(DIRECTORY) if name.endswith(suffix))


def with_rows(count: int, **options: object) -> Disk:
    """Return a disk with a log of that many batches, three per segment."""
    disk = Disk(**options)  # type: ignore[arg-type]  # Passed on as they are.
    disk.open()
    disk.append(*(f"w{index}" for index in range(count)))
    return disk


# Names


def test_a_directory_that_is_missing_or_empty_is_an_empty_log() -> None:
    disk = Disk()
    disk.open()
    assert disk.result == RecoveryReport(0, 0, 0, 0, 0, None)
    assert not disk.files.exists(DIRECTORY)
    disk.files.make_directory(DIRECTORY)
    assert disk.open().offset_next == 0


def test_leftovers_of_interrupted_work_are_removed() -> None:
    disk = with_rows(7)
    leftovers = [
        disk.path(3, ".index.tmp"),
        disk.path(0, ".log.deleted"),
        disk.path(99, ".index"),
        disk.path(99, ".timeindex"),
        disk.path(99, ".writer_snapshot"),
    ]
    for path in leftovers:
        disk.files.replace(path, b"rest")
    disk.files.replace(DIRECTORY / "notes.txt", b"not ours")
    assert len(bodies(disk.open())) == 7
    assert not [path for path in leftovers if disk.files.exists(path)]
    assert disk.files.exists(DIRECTORY / "notes.txt")


def test_snapshots_without_a_log_are_removed_before_a_new_log_grows_past_them() -> None:
    disk = Disk()
    disk.files.make_directory(DIRECTORY)
    stale = [WriterEntry(ord("w"), 0, 0, 0, NOW_MS)]
    disk.files.replace(disk.path(1, ".writer_snapshot"), encode_writer_snapshot(stale))
    disk.open()
    assert disk.names(".writer_snapshot") == []
    disk.append("a0", "w0")
    assert bodies(disk.open()) == [b"a0", b"w0"]


def test_a_log_that_is_gone_is_refused_if_it_had_rows() -> None:
    disk = Disk()
    with pytest.raises(CorruptRecordError, match=f"{DIRECTORY} holds no log, though 7 offsets"):
        disk.open(recovery_offset=7)


# After a clean shutdown


def test_after_a_clean_shutdown_no_segment_is_read_but_the_end_of_the_last() -> None:
    disk = with_rows(8)
    disk.close()
    disk.files.change(disk.path(0), b"\xff" * disk.files.size(disk.path(0)))
    disk.open(was_clean=True, recovery_offset=8)
    assert (disk.result.segments_scanned, disk.result.bytes_dropped) == (0, 0)
    assert len(list(read_batches(disk.log, offset=3))) == 5
    with pytest.raises(CorruptRecordError, match=rf"{disk.path(0)}, byte 0"):
        disk.log.read(0, 100, at_least_one_batch=True)


def test_a_small_last_segment_goes_on_after_a_clean_shutdown_and_a_large_one_does_not() -> None:
    for body_bytes, segment_count in ((10, 1), (70_000, 2)):
        disk = Disk(settings=LogSettings())
        disk.open()
        disk.log.append(make_batch(b"x" * body_bytes))
        disk.committer.step()
        disk.close()
        disk.open(was_clean=True, recovery_offset=1)
        disk.append("w0")
        assert disk.log.segment_count == segment_count
        assert [len(body) for body in bodies(disk.log)] == [body_bytes, 2]
        assert [len(body) for body in bodies(disk.open())] == [body_bytes, 2]


def test_the_end_of_a_large_segment_is_found_without_its_index_too() -> None:
    disk = Disk(settings=LogSettings())
    disk.open()
    for index in range(20):
        disk.clock.now_ms += 10
        disk.append(f"w{index}" + "x" * 10_000)
    disk.close()
    for content in (None, b"", b"\x00\x00\x00\x05\x00\x00\x27\x10", disk.content(disk.path(0, ".index"))[:16]):
        if content is None:
            disk.files.remove(disk.path(0, ".index"))
        else:
            disk.files.replace(disk.path(0, ".index"), content)
        disk.open(was_clean=True, recovery_offset=20)
        assert disk.log.offset_next == 20
        assert disk.log.timestamp_max_ms == NOW_MS + 200
        assert len(bodies(disk.log)) == 20


def test_a_log_that_became_shorter_after_a_clean_shutdown_is_refused() -> None:
    disk = with_rows(8)
    disk.close()
    disk.files.truncate(disk.path(6), BATCH_BYTES - 1)
    place = rf"{disk.path(6)}, byte {BATCH_BYTES - 1}, offset 7: .*before offset 8"
    with pytest.raises(CorruptRecordError, match=place):
        disk.open(was_clean=True, recovery_offset=8)
    # The checkpoint may be older than the marker; the snapshot of the writers tells as well.
    with pytest.raises(CorruptRecordError, match=place):
        disk.open(was_clean=True, recovery_offset=3)


def test_an_old_checkpoint_beside_the_marker_of_a_clean_shutdown_does_no_harm() -> None:
    disk = with_rows(8)
    disk.close()
    assert len(bodies(disk.open(was_clean=True, recovery_offset=2))) == 8
    assert disk.log.append(make_batch(b"w7", writer=ord("w"), sequence=7)).is_duplicate


# After a crash


def test_segments_before_the_recovery_offset_are_left_alone_and_later_ones_read() -> None:
    disk = with_rows(8)
    for recovery_offset, scanned in ((0, 3), (2, 3), (3, 2), (5, 2), (6, 1), (8, 1)):
        assert len(bodies(disk.open(recovery_offset=recovery_offset))) == 8
        assert disk.result.segments_scanned == scanned


def test_a_log_shorter_than_its_recovery_offset_is_refused() -> None:
    disk = with_rows(8)
    disk.files.truncate(disk.path(6), 10)
    with pytest.raises(CorruptRecordError, match=rf"{disk.path(6)}, byte 0, offset 6: "):
        disk.open(recovery_offset=7)
    with pytest.raises(CorruptRecordError, match="though everything before offset 9 was written"):
        with_rows(8).open(recovery_offset=9)


def test_a_torn_tail_is_cut_off_and_the_log_goes_on() -> None:
    disk = with_rows(7)
    disk.files.write(disk.path(6), [make_batch(b"torn")[:-1]], BATCH_BYTES - 1)
    disk.open(recovery_offset=7)
    assert (disk.result.bytes_dropped, disk.result.first_bad_position) == (
        len(make_batch(b"torn")) - 1,
        BATCH_BYTES - 1,
    )
    assert disk.files.size(disk.path(6)) == BATCH_BYTES - 1
    disk.append("w7")
    assert bodies(disk.open()) == [f"w{index}".encode() for index in range(8)]
    assert disk.result.bytes_dropped == 0


def test_an_empty_last_segment_is_no_damage_and_time_does_not_go_back() -> None:
    disk = with_rows(3)
    disk.files.write(disk.path(3), [b""], 0)
    disk.clock.now_ms -= 5000
    disk.open()
    assert (disk.log.offset_next, disk.log.segment_count, disk.log.timestamp_max_ms) == (3, 2, NOW_MS)
    disk.append("w3")
    assert [batch.header.commit_timestamp for batch in read_batches(disk.log)] == [NOW_MS] * 4
    disk = Disk()
    disk.files.make_directory(DIRECTORY)
    disk.files.write(disk.path(5), [b""], 0)
    assert (disk.open().offset_start, disk.log.offset_next, disk.log.timestamp_max_ms) == (5, 5, -1)


def test_a_segment_that_does_not_lead_to_the_next_one_is_refused() -> None:
    disk = with_rows(8)
    disk.files.remove(disk.path(3))
    with pytest.raises(CorruptRecordError, match=rf"{disk.path(0)}, byte \d+, offset 3: .*a segment is missing"):
        disk.open()
    disk = with_rows(8)
    disk.files.truncate(disk.path(3), BATCH_BYTES - 1)
    with pytest.raises(CorruptRecordError, match=rf"{disk.path(3)}, byte {BATCH_BYTES - 1}, offset 4: .*durability=os"):
        disk.open()


def test_without_syncs_the_log_ends_where_power_took_something_after_the_recovery_offset() -> None:
    disk = with_rows(11, is_synced=False)
    disk.files.truncate(disk.path(3), BATCH_BYTES + 10)
    dropped = 11 + disk.files.size(disk.path(6)) + disk.files.size(disk.path(9))
    twin = disk.files.copy(0)
    with quiet_logs():
        disk.open(recovery_offset=4)
    assert bodies(disk.log) == [b"w0", b"w1", b"w2", b"w3"]
    assert (disk.result.segments_dropped, disk.result.first_bad_position) == (2, BATCH_BYTES - 1)
    assert disk.result.bytes_dropped == dropped
    assert disk.names(".log") == [0, 3]
    assert [offset for offset in disk.names(".writer_snapshot") if offset > 4] == []
    disk.append("w4", "w5", "w6")
    disk.files.crash(is_power_lost=False)
    assert bodies(disk.open(recovery_offset=4)) == [f"w{index}".encode() for index in range(7)]
    disk.files = twin
    with pytest.raises(CorruptRecordError, match=rf"{disk.path(3)}, byte {BATCH_BYTES - 1}, offset 4: "):
        disk.open(recovery_offset=5)


def test_without_syncs_a_changed_byte_with_good_batches_behind_it_is_still_damage() -> None:
    disk = with_rows(11, is_synced=False)
    content = bytearray(disk.content(disk.path(3)))
    content[BATCH_BYTES - 2] ^= 1
    disk.files.change(disk.path(3), bytes(content))
    with pytest.raises(CorruptRecordError, match=rf"{disk.path(3)}, byte 0, offset 3: "):
        disk.open()


def test_what_was_found_is_durable_before_it_is_called_so() -> None:
    for is_synced in (True, False):
        disk = Disk(is_synced=is_synced)
        disk.open()
        for index in range(7):
            disk.log.append(make_batch(b"%d" % index))
        # Killed after the last byte was written and before anything was synced, directories included.
        disk.files.fail_next("sync", "log-0/00000000000000000006")
        disk.log.write_pending()
        disk.files.crash(is_power_lost=False)
        found = contents(disk.open())
        assert disk.log.recovery_offset == len(found) == 7
        disk.files.crash()
        assert contents(disk.open(recovery_offset=7)) == found


def test_a_full_disk_does_not_keep_a_log_from_being_opened() -> None:
    disk = with_rows(8)
    for name in (*disk.files.names(DIRECTORY),):
        if not name.endswith(".log"):
            disk.files.remove(DIRECTORY / name)
    disk.files.space_bytes_max = 1
    disk.open()
    assert len(bodies(disk.log)) == 8
    assert disk.names(".index") == []
    assert disk.log.append(make_batch(b"w7", writer=ord("w"), sequence=7)).is_duplicate


# Writers


def test_writers_are_known_after_a_crash_from_the_log_alone() -> None:
    disk = with_rows(11)
    disk.append("a0", "b0", "a1")
    for offset in disk.names(".writer_snapshot"):
        disk.files.remove(disk.path(offset, ".writer_snapshot"))
    for recovery_offset in (0, 14):
        log = disk.open(recovery_offset=recovery_offset)
        for text in ("w6", "w10", "a0", "a1", "b0"):
            batch = make_batch(text.encode(), writer=ord(text[0]), sequence=int(text[1:]))
            assert log.append(batch).is_duplicate, text
        assert not log.append(make_batch(writer=ord("b"), sequence=1)).is_duplicate
        assert log.writer_count == 3


def test_a_snapshot_counts_up_to_its_offset_and_the_log_from_there_on() -> None:
    disk = with_rows(8)
    assert disk.names(".writer_snapshot") == [3, 6]
    entries = decode_writer_snapshot(disk.content(disk.path(6, ".writer_snapshot")))
    assert [entry.batch_sequence for entry in entries] == [1, 2, 3, 4, 5]
    foreign = WriterEntry(77, 4, 5, 0, NOW_MS)
    disk.files.replace(disk.path(6, ".writer_snapshot"), encode_writer_snapshot([*entries, foreign]))
    log = disk.open(recovery_offset=6)
    assert log.append(make_batch(writer=77, sequence=4)).is_duplicate, "the snapshot is believed"
    assert log.append(make_batch(writer=ord("w"), sequence=7)).is_duplicate, "the log goes on after it"


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 200, b'{"version":2,"writer_id_entries":[]}'])
def test_a_snapshot_that_cannot_be_read_is_removed_and_the_one_before_it_used(content: bytes) -> None:
    disk = with_rows(8)
    disk.files.replace(disk.path(6, ".writer_snapshot"), content)
    log = disk.open(recovery_offset=8)
    assert log.append(make_batch(writer=ord("w"), sequence=3)).is_duplicate
    assert log.append(make_batch(writer=ord("w"), sequence=8)).offset_base == 8
    snapshots = disk.names(".writer_snapshot")
    assert snapshots == [3, 8], "a new one takes its place, or nothing would tell once the segments have expired"


def test_a_snapshot_that_cannot_be_read_does_not_pass_for_one_when_rows_expire() -> None:
    disk = with_rows(8)
    disk.append("a0")
    disk.files.replace(disk.path(6, ".writer_snapshot"), b"")
    disk.open()
    assert run(drive(disk.committer, disk.log.expire_segments(NOW_MS + 1))) == 2
    log = disk.open(recovery_offset=9)
    assert log.offset_start == 6
    for sequence in range(3, 8):
        assert log.append(make_batch(writer=ord("w"), sequence=sequence)).offset_base == sequence


def test_a_snapshot_from_the_future_is_not_believed() -> None:
    disk = with_rows(2)
    disk.files.replace(
        disk.path(5, ".writer_snapshot"), encode_writer_snapshot([WriterEntry(ord("w"), 4, 4, 0, NOW_MS)])
    )
    log = disk.open()
    assert disk.names(".writer_snapshot") == []
    assert log.append(make_batch(writer=ord("w"), sequence=2)).offset_base == 2


def test_damage_found_while_looking_for_writers_is_refused_by_name() -> None:
    disk = with_rows(8)
    disk.close()
    for offset in disk.names(".writer_snapshot"):
        disk.files.remove(disk.path(offset, ".writer_snapshot"))
    content = bytearray(disk.content(disk.path(3)))
    content[40] ^= 1
    disk.files.change(disk.path(3), bytes(content))
    with pytest.raises(CorruptRecordError, match=rf"{disk.path(3)}, byte 0, offset 3: "):
        disk.open(was_clean=True, recovery_offset=8)


def test_after_a_gap_in_the_sequences_of_a_log_the_last_one_counts() -> None:
    disk = Disk()
    disk.files.make_directory(DIRECTORY)
    data = b""
    for offset, sequence in enumerate((7, 3, 100)):
        batch = make_batch(writer=5, sequence=sequence)
        assign_offset(batch, offset, NOW_MS)
        data += batch
    disk.files.write(disk.path(0), [data], 0)
    log = disk.open()
    assert log.append(make_batch(writer=5, sequence=100)).offset_base == 2
    assert log.append(make_batch(writer=5, sequence=101)).offset_base == 3


def test_a_writer_that_began_anew_is_not_taken_for_what_it_was() -> None:
    disk = with_rows(4)
    disk.clock.now_ms += SETTINGS.writer_expiration_ms + 1
    assert disk.log.expire_writers() == 1
    disk.append("w0", "w1")
    log = disk.open()
    assert log.append(make_batch(b"w1", writer=ord("w"), sequence=1)).offset_base == 5
    fresh = log.append(make_batch(b"new", writer=ord("w"), sequence=2))
    assert (fresh.offset_base, fresh.is_duplicate) == (6, False), "another batch had this number once"


def test_writers_that_were_silent_for_too_long_are_not_loaded() -> None:
    disk = with_rows(2)
    disk.clock.now_ms += SETTINGS.writer_expiration_ms + 1
    assert disk.open().writer_count == 0


def test_five_batches_of_each_writer_survive_any_number_of_restarts() -> None:
    disk = with_rows(8)
    for _ in range(3):
        offset_next = disk.close()
        disk.open(was_clean=True, recovery_offset=offset_next)
        for sequence in range(3, 8):
            assert disk.log.append(make_batch(writer=ord("w"), sequence=sequence)).offset_base == sequence
        assert disk.names(".writer_snapshot") == [6, 8]


# Every moment at which a machine may stop


def run_until(disk: Disk, operation_count: int) -> list[bytes]:
    """Append batches in rounds of several, with many rolls, until the machine stops; return what became durable."""
    disk.open()
    disk.files.stop_after(operation_count)
    results = []
    for first in range(0, 12, 4):
        for index in range(first, first + 4):
            if disk.log.failure is not None or disk.files.is_stopped:
                break
            body = b"w%d" % index
            results.append((disk.log.append(make_batch(body, writer=ord("w"), sequence=index)), body))
        disk.committer.step()
    return [body for result, body in results if disk.log.is_durable(result)]


@pytest.mark.parametrize("is_synced", [True, False])
@pytest.mark.parametrize("is_power_lost", [True, False])
def test_a_machine_may_stop_at_any_operation(is_synced: bool, is_power_lost: bool) -> None:
    everything = [b"w%d" % index for index in range(12)]
    settings = LogSettings(segment_bytes_max=2 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)
    dropped = 0
    with quiet_logs():
        for operation_count in range(200):
            for seed in range(4 if is_power_lost else 1):
                disk = Disk(seed=1000 * seed + operation_count, is_synced=is_synced, settings=settings)
                durable = run_until(disk, operation_count)
                is_complete = not disk.files.is_stopped
                disk.files.crash(is_power_lost=is_power_lost)
                found = bodies(disk.open())
                dropped += disk.result.bytes_dropped > 0
                assert found == everything[: len(found)]
                assert len(found) >= len(durable) or (is_power_lost and not is_synced)
                # The writer goes on where it was, by sending what it has no answer for.
                for index in range(max(len(found) - 5, 0), 12):
                    result = disk.log.append(make_batch(b"w%d" % index, writer=ord("w"), sequence=index))
                    assert result.is_duplicate == (index < len(found))
                disk.committer.step()
                disk.files.crash(is_power_lost=is_power_lost and is_synced)
                assert bodies(disk.open()) == everything
            if is_complete:
                break
    assert is_complete, "the loop must have come to the end of the work"
    assert operation_count > 20
    assert dropped or not is_power_lost, "some tail must have been torn"


def test_a_machine_may_stop_at_any_operation_of_its_recovery() -> None:
    for operation_count in range(60):
        disk = with_rows(11, is_synced=False)
        run(drive(disk.committer, disk.log.flush()))
        disk.files.change(disk.path(6), disk.content(disk.path(6))[: BATCH_BYTES + 5])
        disk.files.stop_after(operation_count)
        try:
            disk.open(recovery_offset=7)
            is_complete = not disk.files.is_stopped
        except OSError:
            is_complete = False
        disk.files.crash()
        assert bodies(disk.open(recovery_offset=7)) == [f"w{index}".encode() for index in range(7)]
        if is_complete:
            break
    assert is_complete
    assert operation_count > 5


def test_a_machine_may_stop_at_any_operation_of_an_expiry() -> None:
    starts = set()
    for operation_count in range(60):
        for seed in range(6):
            disk = with_rows(14, seed=100 * seed + operation_count)
            disk.files.stop_after(operation_count)
            with suppress(OSError):
                run(drive(disk.committer, disk.log.expire_segments(NOW_MS + 1)))
            is_complete = not disk.files.is_stopped
            disk.files.crash()
            log = disk.open(recovery_offset=14)
            starts.add(log.offset_start)
            assert bodies(log) == [f"w{index}".encode() for index in range(log.offset_start, 14)]
            assert log.append(make_batch(writer=ord("w"), sequence=9)).is_duplicate
        if is_complete:
            break
    assert is_complete
    assert starts == {0, 3, 6, 9, 12}


@pytest.mark.parametrize("seed", range(10))
def test_a_writer_whose_rows_have_expired_is_known_whatever_comes_after(seed: int) -> None:
    disk = Disk(seed=seed)
    disk.open()
    disk.append("w0", "a0", "a1", "a2")
    assert run(drive(disk.committer, disk.log.expire_segments(NOW_MS + 1))) == 1
    disk.append(*(f"a{index}" for index in range(3, 20)))
    disk.files.crash()
    log = disk.open(recovery_offset=4)
    assert log.append(make_batch(writer=ord("w"), sequence=0)).offset_base == 0
    assert log.append(make_batch(writer=ord("w"), sequence=1)).offset_base == 21


def test_a_refusal_names_the_file_and_the_byte_only_once() -> None:
    disk = with_rows(8)
    disk.files.truncate(disk.path(3), 10)
    with pytest.raises(CorruptRecordError) as caught:
        disk.open()
    assert len(re.findall(r"\.log, byte \d+", caught.value.message)) == 1
