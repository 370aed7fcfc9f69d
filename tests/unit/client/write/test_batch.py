"""Sequence numbers are given, kept, shifted and forgotten so that a server can tell stored batches from missing ones.
Shown on the bookkeeping alone: what each error means in each situation."""

from __future__ import annotations

from typing import Any

import pytest

from fluss.client.write.batch import Batch, BucketQueue, Idempotence, Verdict
from fluss.client.write.encoders import EncodedBatch, EncodedKvBatch, EncodedLogBatch
from fluss.errors import FlussError
from fluss.record.kv_batch import HEADER_BYTES, RECORDS_MAX, KvBatch
from fluss.record.log_batch import NO_WRITER_ID, read_batch, verify_crc
from fluss.retry import WRITES
from fluss.schema.table import TableBucket

BUCKET = TableBucket(1, 0)
OTHER = TableBucket(1, 1)


def new_batch() -> Batch:
    return Batch(EncodedLogBatch(1, 1, 0, b"", b"body"), 0, lambda batch, error: None)


def sent(idempotence: Idempotence, count: int, bucket: TableBucket = BUCKET) -> list[Batch]:
    batches = [new_batch() for _ in range(count)]
    for batch in batches:
        assert idempotence.may_send(batch, bucket)
        idempotence.begin(batch, bucket)
    return batches


@pytest.fixture
def idempotence() -> Idempotence:
    made = Idempotence(is_enabled=True, in_flight_max=5)
    made.writer_id = 7
    return made


def test_batches_are_numbered_per_bucket_and_keep_their_number(idempotence: Idempotence) -> None:
    batches = sent(idempotence, 3)
    others = sent(idempotence, 2, OTHER)
    assert [batch.sequence for batch in batches] == [0, 1, 2]
    assert [batch.sequence for batch in others] == [0, 1]
    assert {batch.writer_id for batch in batches} == {7}
    idempotence.put_back(batches[1])
    idempotence.begin(batches[1], BUCKET)
    assert batches[1].sequence == 1


def test_no_more_batches_are_in_flight_than_allowed(idempotence: Idempotence) -> None:
    batches = sent(idempotence, 5)
    assert not idempotence.may_send(new_batch(), BUCKET)
    assert idempotence.may_send(new_batch(), OTHER)
    idempotence.acknowledged(batches[2])
    assert idempotence.may_send(new_batch(), BUCKET)


def test_after_a_failure_only_the_oldest_is_sent_again(idempotence: Idempotence) -> None:
    first, second, third = sent(idempotence, 3)
    for batch in (second, third):
        idempotence.put_back(batch)
    assert not idempotence.may_send(second, BUCKET)
    idempotence.acknowledged(first)
    assert idempotence.may_send(second, BUCKET)
    assert not idempotence.may_send(third, BUCKET)
    idempotence.acknowledged(second)
    assert idempotence.may_send(third, BUCKET)


def test_a_duplicate_is_a_success(idempotence: Idempotence) -> None:
    (batch,) = sent(idempotence, 1)
    assert idempotence.judge(batch, 32) is Verdict.STORED


def test_out_of_order_below_the_acknowledged_is_a_lost_answer(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2)
    idempotence.acknowledged(second)
    assert idempotence.judge(first, 31) is Verdict.STORED


def test_out_of_order_means_wait_unless_it_is_the_next_one(idempotence: Idempotence) -> None:
    first, second, third = sent(idempotence, 3)
    assert idempotence.judge(first, 31) is Verdict.FINAL
    assert idempotence.judge(second, 31) is Verdict.RETRY
    idempotence.acknowledged(first)
    assert idempotence.judge(second, 31) is Verdict.FINAL
    assert idempotence.judge(third, 31) is Verdict.RETRY


def test_a_final_failure_moves_the_later_numbers_down(idempotence: Idempotence) -> None:
    first, second, third = sent(idempotence, 3)
    idempotence.failed(first, 13, is_certain=True)
    assert [second.sequence, third.sequence] == [0, 1]
    assert second.is_reset
    assert third.is_reset
    assert sent(idempotence, 1)[0].sequence == 2
    # The server has seen the old numbers.
    assert idempotence.judge(second, 31) is Verdict.RETRY
    assert idempotence.judge(second, 33) is Verdict.RETRY


def test_a_failure_that_may_have_been_stored_leaves_the_numbers_alone(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2)
    idempotence.failed(first, 25, is_certain=False)
    assert second.sequence == 1
    assert sent(idempotence, 1)[0].sequence == 2


@pytest.mark.parametrize("code", [31, 33])
def test_a_server_that_lost_track_makes_the_writer_begin_anew(idempotence: Idempotence, code: int) -> None:
    first, second = sent(idempotence, 2)
    (other,) = sent(idempotence, 1, OTHER)
    assert idempotence.judge(first, code) is Verdict.FINAL
    idempotence.failed(first, code, is_certain=True)
    assert idempotence.needs_writer_id
    idempotence.writer_id = 8
    assert idempotence.is_outdated(second)
    assert idempotence.is_outdated(other)
    assert [batch.sequence for batch in sent(idempotence, 2)] == [0, 1]
    assert sent(idempotence, 1)[0].writer_id == 8
    # What the old ones do no longer matters.
    idempotence.acknowledged(second)
    idempotence.failed(other, 31, is_certain=True)
    assert idempotence.writer_id == 8


def test_a_bucket_that_became_another_one_has_numbers_of_its_own(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2)
    recreated = TableBucket.with_partition(1, 9, 0)
    for batch in (first, second):
        idempotence.put_back(batch)
        assert idempotence.may_send(batch, recreated)
        idempotence.begin(batch, recreated)
    assert [first.sequence, second.sequence] == [0, 1]
    assert idempotence.may_send(new_batch(), BUCKET)


def test_without_idempotence_batches_have_no_numbers_but_a_limit() -> None:
    plain = Idempotence(is_enabled=False, in_flight_max=2)
    assert not plain.needs_writer_id
    first, second = sent(plain, 2)
    assert [first.sequence, first.writer_id] == [-1, NO_WRITER_ID]
    assert not plain.may_send(new_batch(), BUCKET)
    plain.put_back(first)
    assert plain.may_send(first, BUCKET)
    assert plain.judge(second, 32) is Verdict.FINAL
    plain.failed(second, 13, is_certain=True)
    plain.failed(first, 1, is_certain=False)
    assert len(sent(plain, 2)) == 2


def test_a_changed_number_reaches_the_header_and_its_checksum(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2)
    second.seal()
    before = second.parts
    second.seal()
    assert second.parts is before
    idempotence.failed(first, 13, is_certain=True)
    second.seal()
    assert not second.is_reset
    batch = read_batch(b"".join(second.parts))
    verify_crc(batch)
    assert (batch.header.writer_id, batch.header.batch_sequence, bytes(batch.records)) == (7, 0, b"body")
    assert read_batch(b"".join(before)).header.batch_sequence == 1, "bytes on their way never change"


# Batches that are sent as one


def kv_batch(body: bytes = b"records!", *, targets: tuple[int, ...] = (), record_count: int = 2) -> EncodedKvBatch:
    return EncodedKvBatch(1, record_count, targets, memoryview(body))


def queue_of(*records: EncodedBatch) -> BucketQueue:
    queue = BucketQueue(Any, 0, WRITES)  # type: ignore[arg-type]  # A queue only carries its table.
    for each in records:
        queue.add(Batch(each, 0, lambda batch, error: None), 0.0)
    return queue


def test_small_batches_with_keys_are_taken_as_one_in_their_order() -> None:
    ended: list[tuple[Batch, FlussError | None]] = []
    queue = queue_of()
    for body in (b"first", b"second", b"third"):
        queue.add(Batch(kv_batch(body), 0, lambda batch, error: ended.append((batch, error))), 1.0)
    members = list(queue.waiting)
    taken = queue.take(1000)
    assert not queue.waiting
    assert [batch.records for batch in members] == [taken.records] * 3, "nothing is in memory twice"
    taken.writer_id, taken.sequence = 7, 3
    taken.seal()
    sealed = KvBatch.parse(memoryview(b"".join(taken.parts)))
    sealed.verify_crc()
    assert (sealed.writer_id, sealed.batch_sequence, sealed.record_count) == (7, 3, 6)
    assert bytes(sealed.data[HEADER_BYTES:]) == b"firstsecondthird"
    assert taken.size_bytes == len(sealed.data)
    taken.end(error := FlussError("refused"))
    assert ended == [(batch, error) for batch in members]
    assert [batch.size_bytes - HEADER_BYTES for batch in members] == [5, 6, 5], "as much memory as each had is free now"


@pytest.mark.parametrize(
    ("second", "bytes_max"),
    [
        (kv_batch(targets=(0, 1)), 1000),
        (kv_batch(record_count=RECORDS_MAX), 1000),
        (kv_batch(), 2 * (HEADER_BYTES + 8) - 1),
        (kv_batch(), 0),
        (EncodedLogBatch(1, 1, 0, b"", b"body"), 1000),
    ],
    ids=["other columns", "too many records", "too many bytes", "none at all", "of another table"],
)
def test_what_does_not_fit_one_batch_stays_apart(second: EncodedBatch, bytes_max: int) -> None:
    queue = queue_of(kv_batch(), second)
    assert queue.take(bytes_max).size_bytes == HEADER_BYTES + 8
    assert [batch.records for batch in queue.waiting] == [second]


def test_log_batches_and_those_that_were_sent_before_are_taken_alone(idempotence: Idempotence) -> None:
    log_queue = queue_of(*[EncodedLogBatch(1, 1, 0, b"", b"body")] * 2)
    assert not log_queue.is_worth_waiting(1000)
    assert log_queue.take(1000).records.record_count == 1
    assert len(log_queue.waiting) == 1
    for position in (0, 1):
        queue = queue_of(kv_batch(), kv_batch(), kv_batch())
        idempotence.begin(queue.waiting[position], BUCKET)
        sent_before = queue.waiting[position]
        taken = [queue.take(1000) for _ in range(2)]
        assert taken[position] is sent_before


def test_a_little_is_worth_waiting_for_more() -> None:
    queue = queue_of(kv_batch(), kv_batch())
    assert queue.is_worth_waiting(2 * (HEADER_BYTES + 8) + 1)
    assert not queue.is_worth_waiting(2 * (HEADER_BYTES + 8))
    assert not queue.is_worth_waiting(0)


def test_a_bucket_may_have_to_be_quiet_before_its_next_batch(idempotence: Idempotence) -> None:
    assert idempotence.may_send(new_batch(), BUCKET, alone=True)
    (batch,) = sent(idempotence, 1)
    assert not idempotence.may_send(new_batch(), BUCKET, alone=True)
    idempotence.put_back(batch)
    assert idempotence.may_send(batch, BUCKET, alone=True), "it is the one that the bucket waits for"
