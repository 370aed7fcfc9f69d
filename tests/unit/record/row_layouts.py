"""A strategy for rows that lie in their buffer in any of the ways that the record codecs must read."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from fluss.row.encoded import EncodedRows


def encoded_rows(rows: st.SearchStrategy[list[bytes]]) -> st.SearchStrategy[EncodedRows]:
    """Draw rows that lie back to back, with gaps, or in another order in their buffer."""

    def lay_out(drawn: tuple[list[bytes], bytes, int | None]) -> EncodedRows:
        pieces, gap, seed = drawn
        places = list(range(len(pieces)))
        if seed is not None:
            random.Random(seed).shuffle(places)
        spread = EncodedRows.from_list([piece for index in places for piece in (gap, pieces[index])])
        order = [2 * places.index(index) + 1 for index in range(len(pieces))]
        return EncodedRows(spread.data, spread.starts[order], spread.ends[order])

    return st.tuples(rows, st.binary(max_size=3), st.none() | st.integers(0, 99)).map(lay_out)
