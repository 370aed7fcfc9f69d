"""Sequence numbers are given, kept, shifted and forgotten so that a server can tell stored batches from missing ones.
Shown on the bookkeeping alone: what each error means in each situation."""

from __future__ import annotations

import pytest

from fluss.client.write.batch import Batch, Idempotence, Verdict
from fluss.client.write.encoders import EncodedLogBatch
from fluss.record.log_batch import NO_WRITER_ID, read_batch, verify_crc
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
