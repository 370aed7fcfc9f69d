"""Sequence numbers are given, kept, taken back and forgotten so that a server can tell what is stored from what is
missing. Shown on the bookkeeping alone: what each error means in each situation."""

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


def refused(idempotence: Idempotence, batch: Batch, code: int) -> Verdict:
    """A batch that was sent is refused, and waits to be sent again if that can succeed."""
    verdict = idempotence.judge(batch, code)
    if verdict is Verdict.RETRY:
        idempotence.put_back(batch)
    return verdict


def failed(idempotence: Idempotence, batch: Batch, code: int) -> None:
    assert idempotence.judge(batch, code) is Verdict.FINAL
    idempotence.failed(batch, code)


def sent_again(idempotence: Idempotence, *batches: Batch, bucket: TableBucket = BUCKET) -> list[tuple[int, int]]:
    """Return the writer ids and numbers with which batches are sent, one behind the other."""
    for batch in batches:
        assert idempotence.may_send(batch, bucket)
        idempotence.begin(batch, bucket)
    return [(batch.writer_id, batch.sequence) for batch in batches]


def test_after_a_final_failure_the_later_ones_are_numbered_anew(idempotence: Idempotence) -> None:
    first, second, third = sent(idempotence, 3)
    failed(idempotence, first, 13)
    # Both are out with numbers that the server will not take.
    assert refused(idempotence, third, 31) is Verdict.RETRY
    assert not idempotence.may_send(third, BUCKET), "the one before it is not back"
    assert refused(idempotence, second, 33) is Verdict.RETRY
    assert not idempotence.needs_writer_id(BUCKET)
    assert sent_again(idempotence, second, third, new_batch()) == [(7, 0), (7, 1), (7, 2)]


def test_the_last_number_is_given_again_at_once(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2)
    failed(idempotence, second, 13)
    assert sent_again(idempotence, new_batch()) == [(7, 1)]
    failed(idempotence, first, 13)
    assert not idempotence.may_send(new_batch(), BUCKET)


@pytest.mark.parametrize("has_waited", [True, False])
def test_a_number_that_a_late_request_may_bring_is_not_given_again(idempotence: Idempotence, has_waited: bool) -> None:
    first, second = sent(idempotence, 2)
    assert idempotence.judge(second, 25) is Verdict.FINAL
    if has_waited:
        idempotence.put_back(second)
        failed(idempotence, first, 13)
    else:
        failed(idempotence, first, 13)
        idempotence.put_back(second)
    assert idempotence.needs_writer_id(BUCKET)
    idempotence.writer_id = 8
    assert sent_again(idempotence, second, new_batch()) == [(8, 0), (8, 1)]


@pytest.mark.parametrize("code", [1, 25, -1, -2, 12, 28, 999])
def test_after_a_failure_that_may_have_been_stored_the_bucket_begins_anew(idempotence: Idempotence, code: int) -> None:
    (other,) = sent(idempotence, 1, OTHER)
    (first,) = sent(idempotence, 1)
    failed(idempotence, first, code)
    assert idempotence.needs_writer_id(BUCKET)
    assert not idempotence.needs_writer_id(OTHER)
    idempotence.writer_id = 8
    assert sent_again(idempotence, new_batch()) == [(8, 0)], "0 of the old one would be taken for a duplicate"
    # Others go on as before.
    assert [(batch.writer_id, batch.sequence) for batch in [other, *sent(idempotence, 1, OTHER)]] == [(7, 0), (7, 1)]


def test_an_earlier_attempt_may_have_been_stored_whatever_the_last_one_says(idempotence: Idempotence) -> None:
    (first,) = sent(idempotence, 1)
    assert idempotence.judge(first, 25) is Verdict.FINAL
    idempotence.put_back(first)
    assert sent_again(idempotence, first) == [(7, 0)]
    failed(idempotence, first, 48)
    assert idempotence.needs_writer_id(BUCKET)


def test_batches_behind_one_that_may_have_been_stored_end_under_the_old_id(idempotence: Idempotence) -> None:
    first, second, third = sent(idempotence, 3)
    failed(idempotence, first, -1)
    idempotence.writer_id = 8
    assert idempotence.judge(third, 25) is Verdict.FINAL
    idempotence.put_back(third)
    assert not idempotence.may_send(third, BUCKET), "the one before it is not answered"
    idempotence.acknowledged(second)
    assert not idempotence.may_send(new_batch(), BUCKET), "the one before it is not stored"
    assert sent_again(idempotence, third) == [(7, 2)]
    idempotence.acknowledged(third)
    assert sent_again(idempotence, new_batch()) == [(8, 0)]


def test_batches_behind_one_that_was_not_stored_get_another_number(idempotence: Idempotence) -> None:
    first, second, third = sent(idempotence, 3)
    failed(idempotence, first, -1)
    idempotence.writer_id = 8
    assert refused(idempotence, third, 31) is Verdict.RETRY
    assert refused(idempotence, second, 31) is Verdict.RETRY
    assert sent_again(idempotence, second, third, new_batch()) == [(8, 0), (8, 1), (8, 2)]


def test_behind_a_gap_nothing_can_have_been_stored(idempotence: Idempotence) -> None:
    first, second, third = sent(idempotence, 3)
    failed(idempotence, first, -1)
    idempotence.writer_id = 8
    # The answer for the third one was lost, but that for the second one says enough.
    assert idempotence.judge(third, 1) is Verdict.FINAL
    idempotence.put_back(third)
    assert refused(idempotence, second, 31) is Verdict.RETRY
    assert sent_again(idempotence, second, third) == [(8, 0), (8, 1)]


def test_a_batch_that_may_come_late_is_not_sent_under_another_id(idempotence: Idempotence) -> None:
    first, second, third = sent(idempotence, 3)
    failed(idempotence, first, -1)
    idempotence.writer_id = 8
    assert idempotence.judge(second, 25) is Verdict.FINAL
    idempotence.put_back(second)
    assert sent_again(idempotence, second) == [(7, 1)]
    # The first one has not been stored yet. If it comes late, so may an attempt of the second one.
    assert refused(idempotence, second, 31) is Verdict.UNKNOWN
    idempotence.failed(second, 33)
    assert idempotence.writer_id == 8
    assert refused(idempotence, third, 31) is Verdict.RETRY
    assert sent_again(idempotence, third) == [(8, 0)]


def test_a_batch_before_the_failed_one_is_sent_again_under_the_old_id(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2)
    failed(idempotence, second, -1)
    assert idempotence.judge(first, 1) is Verdict.FINAL
    idempotence.put_back(first)
    assert sent_again(idempotence, first) == [(7, 0)]
    idempotence.acknowledged(first)
    assert idempotence.needs_writer_id(BUCKET)


def test_a_server_that_stores_what_it_has_refused_gets_other_numbers(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2)
    failed(idempotence, first, 13)
    idempotence.acknowledged(second)
    assert idempotence.needs_writer_id(BUCKET)


@pytest.mark.parametrize("code", [31, 33])
def test_a_server_that_lost_track_makes_the_writer_begin_anew(idempotence: Idempotence, code: int) -> None:
    first, second = sent(idempotence, 2)
    other, another = sent(idempotence, 2, OTHER)
    failed(idempotence, first, code)
    assert idempotence.writer_id == NO_WRITER_ID
    idempotence.writer_id = 8
    assert refused(idempotence, second, 31) is Verdict.RETRY
    assert sent_again(idempotence, second) == [(8, 0)]
    # What is out for another bucket is known there, or is not.
    idempotence.acknowledged(other)
    assert refused(idempotence, another, code) is Verdict.RETRY
    assert sent_again(idempotence, another, bucket=OTHER) == [(8, 0)]
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
    assert not plain.needs_writer_id(BUCKET)
    first, second = sent(plain, 2)
    assert [first.sequence, first.writer_id] == [-1, NO_WRITER_ID]
    assert not plain.may_send(new_batch(), BUCKET)
    plain.put_back(first)
    assert plain.may_send(first, BUCKET)
    assert plain.judge(second, 32) is Verdict.FINAL
    plain.failed(second, 13)
    plain.failed(first, 1)
    assert len(sent(plain, 2)) == 2


def test_a_changed_number_reaches_the_header_and_its_checksum(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2)
    second.seal()
    before = second.parts
    second.seal()
    assert second.parts is before
    failed(idempotence, first, 13)
    refused(idempotence, second, 31)
    assert sent_again(idempotence, second) == [(7, 0)]
    second.seal()
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
