"""New rows by key: how large they are, measured piece by piece or all pieces at once."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.record.mutations import FoundRows, Mutations, StoredValues, copied_entries
from fluss.record.value_batch import encode_value
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys

SCHEMA_ID = 3


def mutations_of(pairs: list[tuple[bytes, bytes]]) -> Mutations:
    keys = HashedKeys.from_list([key for key, _ in pairs])
    return Mutations(keys, EncodedRows.from_list([row for _, row in pairs]), SCHEMA_ID)


@given(st.lists(st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=9)), max_size=5), min_size=1, max_size=6))
def test_pieces_have_the_rows_and_sizes_that_they_would_have_alone(pieces: list[list[tuple[bytes, bytes]]]) -> None:
    together = mutations_of([pair for piece in pieces for pair in piece])
    split = together.split(np.cumsum([len(piece) for piece in pieces]))
    assert len(split) == len(pieces)
    for some, piece in zip(split, pieces, strict=True):
        alone = mutations_of(piece)
        assert some.sizes == alone.sizes
        assert some.keys.keys.to_list() == [key for key, _ in piece]
        assert copied_entries([some]) == copied_entries([alone])
        assert some.keys.hashes.tolist() == alone.keys.hashes.tolist()
        assert alone.sizes == (
            sum(len(key) + len(row) for key, row in piece),
            max((len(row) for _, row in piece), default=0),
            min((len(key) for key, _ in piece), default=None),
        )


@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_rows_are_copied_out_as_they_lie_however_many_they_are(count: int) -> None:
    rows = [bytes([number % 251]) * (number % 7) for number in range(count)]
    encoded = EncodedRows.from_list([b"before", *rows, b"behind"]).some(slice(1, count + 1))
    assert encoded.to_list() == rows
    backwards = np.arange(count)[::-1]
    assert encoded.some(backwards).to_list() == rows[::-1]


@given(
    st.lists(st.none() | st.tuples(st.integers(0, 2), st.integers(0, 300), st.binary(max_size=9)), max_size=30),
    st.randoms(use_true_random=False),
)
def test_rows_from_several_sources_are_put_in_the_order_of_their_keys(
    keys: list[tuple[int, int, bytes] | None], random: Random
) -> None:
    groups = []
    for source in range(3):
        numbers = [number for number, key in enumerate(keys) if key is not None and key[0] == source]
        random.shuffle(numbers)
        values = [encode_value(key[1], key[2]) for number in numbers if (key := keys[number]) is not None]
        if numbers:
            groups.append((np.array(numbers), StoredValues.from_list(values)))
    schema_ids, rows = FoundRows(groups).by_key(len(keys))
    found = [b"".join(parts) for parts in zip(schema_ids.to_list(), rows.to_list(), strict=True)]
    assert found == [b"" if key is None else encode_value(key[1], key[2]) for key in keys]
