"""What exactly-once writes are made of: hashes of rows, rows counted by them, records in the order of keys, spools.
Shown against plain Python that does the same row by row, with memory limits that force everything into files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.row.encoded import EncodedRows
from fluss.schema.table import TableBucket
from fluss.spark.write import keyed_write
from fluss.spark.write.keyed_write import KeyedRecords, Records
from fluss.spark.write.log_write import Spool
from fluss.spark.write.row_hashes import RowCounts, row_hashes

ROWS = st.lists(st.binary(max_size=40), max_size=60)
FEW_ROWS = st.lists(st.sampled_from([b"", b"a", b"b", b"\0", b"longer than a word"]), max_size=40)


def plain_hash(row: bytes, seed: int) -> int:
    padded = row + bytes(8 - len(row) % 8)
    words = [int.from_bytes(padded[place : place + 8], "little") for place in range(0, len(padded), 8)]
    places = (word + (number + 1) * 0x9E3779B97F4A7C15 + seed for number, word in enumerate(words))
    return plain_mixed(sum(map(plain_mixed, places)) + len(row) * 0xD6E8FEB86659FD93)


def plain_mixed(word: int) -> int:
    word &= 2**64 - 1
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    word = (word ^ word >> 27) * 0x94D049BB133111EB & 2**64 - 1
    return word ^ word >> 31


@given(ROWS, st.integers(0, 2**63 - 1))
def test_all_rows_at_once_have_the_hashes_of_one_row_at_a_time(rows: list[bytes], seed: int) -> None:
    assert row_hashes(EncodedRows.from_list(rows), seed).tolist() == [plain_hash(row, seed) for row in rows]


@given(ROWS, st.integers(0, 2**63 - 1))
def test_equal_rows_have_equal_hashes_and_others_do_not(rows: list[bytes], seed: int) -> None:
    hashes = row_hashes(EncodedRows.from_list([*rows, *reversed(rows)]), seed).tolist()
    assert hashes == [*hashes[: len(rows)], *reversed(hashes[: len(rows)])]
    assert len(set(hashes)) == len(set(rows))


def test_hashes_tell_lengths_places_and_seeds_apart() -> None:
    zeros = EncodedRows.from_list([bytes(length) for length in range(50)])
    assert len(set(row_hashes(zeros, 0).tolist())) == 50
    swapped = EncodedRows.from_list([b"AAAAAAAABBBBBBBB", b"BBBBBBBBAAAAAAAA"])
    assert len({*row_hashes(swapped, 0).tolist(), *row_hashes(swapped, 1).tolist()}) == 4


def test_hashes_do_not_depend_on_what_lies_between_rows() -> None:
    data = np.frombuffer(b"xxabcyyyabcz", np.uint8)
    rows = EncodedRows(data, np.array([2, 8]), np.array([5, 11]))
    assert row_hashes(rows, 7).tolist() == row_hashes(EncodedRows.from_list([b"abc"] * 2), 7).tolist()


@given(FEW_ROWS, st.lists(FEW_ROWS, max_size=4))
def test_rows_are_counted_out_as_often_as_they_were_counted_in(added: list[bytes], taken: list[list[bytes]]) -> None:
    counts, left = RowCounts(5), Counter(added)
    counts.add(EncodedRows.from_list(added[:7]))
    counts.add(EncodedRows.from_list(added[7:]))
    for rows in taken:
        expected = []
        for row in rows:
            expected.append(left[row] > 0)
            left[row] -= left[row] > 0
        assert counts.subtract(EncodedRows.from_list(rows)).tolist() == expected
        assert counts.count == left.total()


def records_of(rows: list[tuple[bytes, bytes]]) -> Records:
    records = EncodedRows.from_list([key + value for key, value in rows])
    hashes = row_hashes(EncodedRows.from_list([key for key, _ in rows]), 0)
    return Records(hashes, records.lengths, records.data)


def batches_of(
    rows: list[tuple[bytes, bytes]], memory_bytes_max: int, rows_per_batch: int, given_at_once: int = 10
) -> list[list[bytes]]:
    """Put rows in order, and return the records of each batch."""
    bucket = TableBucket(1, 0)
    with KeyedRecords(memory_bytes_max=memory_bytes_max) as records:
        for start in range(0, len(rows), given_at_once):
            records.add(bucket, records_of(rows[start : start + given_at_once]))
        assert records.record_count == len(rows)
        first = [list(_split(batch)) for batch in records.batches(bucket, rows_per_batch)]
        assert [list(_split(batch)) for batch in records.batches(bucket, rows_per_batch)] == first
        return first


def _split(batch: Records) -> Iterator[bytes]:
    position = 0
    for length in batch.lengths.tolist():
        yield batch.data[position : position + length].tobytes()
        position += length


KEYED = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"cc", b"d", b"e" * 9]), st.binary(max_size=3)), max_size=120)


@given(KEYED, st.integers(1, 20), st.randoms(use_true_random=False))
def test_batches_depend_on_keys_and_neither_on_their_order_nor_on_memory(
    rows: list[tuple[bytes, bytes]], rows_per_batch: int, rng: Random
) -> None:
    expected = batches_of(rows, 10**9, rows_per_batch)
    assert sorted(record for batch in expected for record in batch) == sorted(key + value for key, value in rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_write, "_MERGE_BYTES", 300)
        assert batches_of(rows, 200, rows_per_batch) == expected
        assert batches_of(rows, 500, rows_per_batch, given_at_once=7) == expected
    # Keys in another order, each with its rows in their order.
    order = [key for key, _ in rows]
    rng.shuffle(order)
    left = {key: [row for row in rows if row[0] == key] for key in set(order)}
    assert batches_of([left[key].pop(0) for key in order], 400, rows_per_batch) == expected


@given(KEYED, st.integers(1, 20))
def test_a_batch_ends_between_keys_unless_one_key_fills_several(
    rows: list[tuple[bytes, bytes]], rows_per_batch: int
) -> None:
    batches = batches_of(rows, 10**9, rows_per_batch)
    keys = {key + value: key for key, value in rows}
    for batch, following in pairwise(batches):
        assert len(batch) >= rows_per_batch
        if keys[batch[-1]] == keys[following[0]]:
            assert len(batch) == 4 * rows_per_batch


@pytest.mark.parametrize("memory_bytes_max", [0, 500, 10**9])
def test_a_spool_returns_what_was_put_aside(memory_bytes_max: int) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    given_batches = [
        pa.RecordBatch.from_pydict({"n": list(range(n)), "s": ["x" * n] * n}, schema=schema) for n in range(20)
    ]
    with Spool(schema, memory_bytes_max=memory_bytes_max) as spool:
        for batch in given_batches:
            spool.add(batch)
        assert list(spool.batches()) == given_batches
    with Spool(schema, memory_bytes_max=memory_bytes_max) as spool:
        spool.add(given_batches[3])
