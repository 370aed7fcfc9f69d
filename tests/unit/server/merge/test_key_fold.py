"""A fold knows the records of each key and their order, also where different keys share a hash.
Shown by small batches, and by comparing folds of random keys, whole and in part, with loops over the records."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys
from fluss.server.merge.key_fold import NO_RECORD, KeyFold

KEYS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\0", b"a\0", b"a longer key", b"a longer kez"]), max_size=12)


def fold_of(*keys: bytes, hash_count: int | None = None) -> KeyFold:
    """Fold keys, by their own hashes or by forged ones, of which there are so many."""
    rows = EncodedRows.from_list(keys)
    if hash_count is None:
        return KeyFold.of(rows)
    hashes = np.array([sum(key) % hash_count for key in keys], np.uint64)
    return KeyFold.of_hashed(HashedKeys(rows, hashes))


def unique_keys(fold: KeyFold) -> list[bytes]:
    return fold.unique_keys.keys.to_list()


@pytest.mark.parametrize("hash_count", [None, 1])
def test_keys_are_numbered_in_the_order_in_which_they_appear(hash_count: int | None) -> None:
    fold = fold_of(b"x", b"y", b"x", b"z", b"x", hash_count=hash_count)
    assert unique_keys(fold) == [b"x", b"y", b"z"]
    assert fold.slots.tolist() == [0, 1, 0, 2, 0]
    assert fold.previous.tolist() == [NO_RECORD, NO_RECORD, 0, NO_RECORD, 2]
    assert fold.is_last.tolist() == [False, True, False, True, True]
    assert not fold.is_unique


@pytest.mark.parametrize("hash_count", [None, 1])
def test_a_batch_without_repeated_keys_and_one_without_records_are_unique(hash_count: int | None) -> None:
    fold = fold_of(b"x", b"y", hash_count=hash_count)
    assert fold.is_unique
    assert unique_keys(fold) == [b"x", b"y"]
    assert fold.slots.tolist() == [0, 1]
    assert fold.previous.tolist() == [NO_RECORD, NO_RECORD]
    assert fold.is_last.tolist() == [True, True]
    empty = fold_of(hash_count=hash_count)
    assert empty.is_unique
    assert (len(empty), unique_keys(empty), empty.runs().starts.tolist()) == (0, [], [0])


def test_unique_keys_have_the_hashes_of_their_records() -> None:
    keys = HashedKeys.from_list([b"x", b"y", b"x", b"z"])
    assert KeyFold.of_hashed(keys).unique_keys.hashes.tolist() == keys.hashes[[0, 1, 3]].tolist()


@given(KEYS, st.sampled_from([None, 1, 2, 3]), st.data())
def test_a_fold_says_what_a_loop_finds(keys: list[bytes], hash_count: int | None, data: st.DataObject) -> None:
    fold = fold_of(*keys, hash_count=hash_count)
    assert unique_keys(fold) == list(dict.fromkeys(keys))
    kept = [i for i in range(len(keys)) if data.draw(st.booleans())]
    for part, part_keys in ((fold, keys), (fold.only(np.array(kept, np.int64)), [keys[i] for i in kept])):
        assert len(part) == len(part_keys)
        assert [unique_keys(part)[slot] for slot in part.slots] == part_keys
        earlier = [[j for j in range(i) if part_keys[j] == key] for i, key in enumerate(part_keys)]
        assert part.previous.tolist() == [found[-1] if found else NO_RECORD for found in earlier]
        assert part.is_last.tolist() == [key not in part_keys[i + 1 :] for i, key in enumerate(part_keys)]
        assert part.is_unique == (len(set(part_keys)) == len(part_keys))
        order, starts = part.runs()
        runs = [order[start:end].tolist() for start, end in pairwise(starts)]
        keys_in_order = [key for key in unique_keys(part) if key in part_keys]
        assert runs == [[i for i, other in enumerate(part_keys) if other == key] for key in keys_in_order]


@given(KEYS, st.sampled_from([None, 1, 2, 3]), st.data())
def test_equal_keys_of_different_spaces_are_different(
    keys: list[bytes], hash_count: int | None, data: st.DataObject
) -> None:
    spaces = [data.draw(st.integers(0, 2)) for _ in keys]
    rows = EncodedRows.from_list(keys)
    hashed = HashedKeys.of(rows)
    if hash_count is not None:
        hashed = HashedKeys(rows, np.array([sum(key) % hash_count for key in keys], np.uint64))
    fold = KeyFold.of_hashed(hashed, np.array(spaces, np.int64))
    spaced = [b"%d" % space + key for space, key in zip(spaces, keys, strict=True)]
    expected = fold_of(*spaced)
    assert fold.slots.tolist() == expected.slots.tolist()
    assert fold.previous.tolist() == expected.previous.tolist()
    assert unique_keys(fold) == [key[1:] for key in unique_keys(expected)]


def test_many_records_of_many_keys_are_folded_like_a_few() -> None:
    rng = np.random.default_rng(7)
    keys = [b"key %d" % number for number in rng.integers(0, 5000, 20_000)]
    fold = fold_of(*keys)
    slot_by_key = {key: slot for slot, key in enumerate(dict.fromkeys(keys))}
    assert unique_keys(fold) == list(slot_by_key)
    assert fold.slots.tolist() == [slot_by_key[key] for key in keys]
    last_records = {key: number for number, key in enumerate(keys)}
    assert np.flatnonzero(fold.is_last).tolist() == sorted(last_records.values())
