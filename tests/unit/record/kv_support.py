"""What the tests of KV batches, values, statistics and log files share: golden vectors, and systematic damage."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fluss.errors import FlussError
from fluss.row.encoded import EncodedRows

_VECTORS_FILE = Path(__file__).parents[2] / "golden" / "vectors.json"


@cache
def _vectors() -> dict[str, dict[str, Any]]:
    return {vector["id"]: vector for vector in json.loads(_VECTORS_FILE.read_text())["vectors"]}


def vector(vector_id: str) -> dict[str, Any]:
    return _vectors()[vector_id]


def vector_ids(group: str, prefix: str = "") -> list[str]:
    return [v["id"] for v in _vectors().values() if v["group"] == group and v["id"].startswith(prefix)]


def injuries(valid: bytes) -> Iterator[bytes]:
    """Yield every truncation, every single bit flip, one byte too many, and some noise of the same length."""
    for end in range(len(valid)):
        yield valid[:end]
    for index in range(len(valid)):
        for bit in range(8):
            yield valid[:index] + bytes([valid[index] ^ 1 << bit]) + valid[index + 1 :]
    yield valid + b"\0"
    rng = random.Random(len(valid))
    for _ in range(50):
        yield rng.randbytes(rng.randrange(2 * len(valid) + 8))


def assert_refused_or_read(decode: Callable[[bytes], object], valid: bytes, error: type[FlussError]) -> int:
    """Feed every injury to a decoder: it may return or raise ``error``, nothing else. Returns the refusals."""
    decode(valid)
    refusals: list[FlussError] = []
    for damaged in injuries(valid):
        try:
            decode(damaged)
        except error as refusal:
            refusals.append(refusal)
    assert all(refusal.message for refusal in refusals)
    return len(refusals)


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
