"""A fold knows the records of each key and their order.
Shown by small batches, and by comparing folds of random keys, whole and in part, with loops over the records."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fluss.row.encoded import EncodedRows
from fluss.server.kv.key_fold import NO_RECORD, KeyFold

KEYS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\0", b"a\0"]), max_size=12)


def fold_of(*keys: bytes) -> KeyFold:
    return KeyFold.of(EncodedRows.from_list(keys))


def test_keys_are_numbered_in_the_order_in_which_they_appear() -> None:
    fold = fold_of(b"x", b"y", b"x", b"z", b"x")
    assert fold.unique_keys == [b"x", b"y", b"z"]
    assert fold.slots.tolist() == [0, 1, 0, 2, 0]
    assert fold.previous.tolist() == [NO_RECORD, NO_RECORD, 0, NO_RECORD, 2]
    assert fold.is_last.tolist() == [False, True, False, True, True]
    assert not fold.is_unique


def test_a_batch_without_repeated_keys_and_one_without_records_are_unique() -> None:
    fold = fold_of(b"x", b"y")
    assert fold.is_unique
    assert fold.unique_keys == [b"x", b"y"]
    assert fold.previous.tolist() == [NO_RECORD, NO_RECORD]
    empty = fold_of()
    assert empty.is_unique
    assert (len(empty), empty.unique_keys, empty.runs().starts.tolist()) == (0, [], [0])


@given(KEYS, st.data())
def test_a_fold_says_what_a_loop_finds(keys: list[bytes], data: st.DataObject) -> None:
    fold = fold_of(*keys)
    kept = [i for i in range(len(keys)) if data.draw(st.booleans())]
    for part, part_keys in ((fold, keys), (fold.only(np.array(kept, np.int64)), [keys[i] for i in kept])):
        assert len(part) == len(part_keys)
        assert [part.unique_keys[slot] for slot in part.slots] == part_keys
        earlier = [[j for j in range(i) if part_keys[j] == key] for i, key in enumerate(part_keys)]
        assert part.previous.tolist() == [found[-1] if found else NO_RECORD for found in earlier]
        assert part.is_last.tolist() == [key not in part_keys[i + 1 :] for i, key in enumerate(part_keys)]
        assert part.is_unique == (len(set(part_keys)) == len(part_keys))
        order, starts = part.runs()
        runs = [order[start:end].tolist() for start, end in pairwise(starts)]
        keys_in_order = [key for key in part.unique_keys if key in part_keys]
        assert runs == [[i for i, other in enumerate(part_keys) if other == key] for key in keys_in_order]
