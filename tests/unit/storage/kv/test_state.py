"""A state comes back as it was written, and nothing else is taken for one.
Drawn states, the bytes of one of them, and every single damaged byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import KvDamagedError
from fluss.integers import INT32_MAX, INT64_MAX
from fluss.record.framing import crc32c
from fluss.storage.kv.state import IdBlock, KvState

OFFSETS = st.integers(0, INT64_MAX)
IDS = st.lists(OFFSETS, min_size=2, max_size=2).map(sorted)
ID_BLOCKS = st.builds(lambda column_id, ids: IdBlock(column_id, *ids), st.integers(0, INT32_MAX), IDS)
STATES = st.builds(KvState, OFFSETS, st.none() | OFFSETS, st.none() | ID_BLOCKS, OFFSETS)
STATE = KvState(258, 3, IdBlock(4, 5, 100_005), 772)


@given(STATES)
def test_a_state_is_read_as_it_was_written(state: KvState) -> None:
    decoded = KvState.decode(state.encode())
    assert decoded == state
    assert decoded.value_bytes_max == state.value_bytes_max


def test_the_bytes_are_the_documented_ones() -> None:
    body = bytes.fromhex(
        "464b5653 01 03 0201000000000000 0300000000000000 04000000 0500000000000000 a586010000000000 0403000000000000"
    )
    assert STATE.encode() == body + crc32c(body).to_bytes(4, "little")


def test_a_new_store_has_nothing_applied_and_counts_its_rows() -> None:
    assert KvState() == KvState(applied_offset=0, row_count=0, ids=None)


@pytest.mark.parametrize("position", range(len(STATE.encode())))
def test_a_flipped_bit_anywhere_is_damage(position: int) -> None:
    for bit in range(8):
        data = bytearray(STATE.encode())
        data[position] ^= 1 << bit
        with pytest.raises(KvDamagedError):
            KvState.decode(bytes(data))


def test_a_state_of_another_length_is_damage() -> None:
    data = STATE.encode()
    for wrong in [data[:length] for length in range(len(data))] + [data + b"\0"]:
        with pytest.raises(KvDamagedError):
            KvState.decode(wrong)


def test_a_state_of_a_later_release_says_what_to_do() -> None:
    data = bytearray(STATE.encode())
    data[4] = 9
    with pytest.raises(KvDamagedError, match=r"store here.*version is 9 .* start the release that wrote it"):
        KvState.decode(bytes(data) + b"whatever it has more", "here")
