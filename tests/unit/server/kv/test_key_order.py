"""Keys are brought into the order of the store, equal ones stay in theirs, and the way back leads to where they were.
Random keys, many of them alike, compared with a sort of their first bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.server.kv.key_order import in_key_order, key_order, ordered, reordered

KEYS = st.lists(
    st.one_of(st.binary(min_size=1, max_size=3), st.binary(min_size=1, max_size=20), st.sampled_from([b"\0", b"\0\0"])),
    min_size=100,
    max_size=300,
)


@settings(max_examples=60)
@given(KEYS)
def test_keys_are_ordered_by_their_first_bytes_and_equal_ones_keep_their_order(keys):
    order = key_order(keys)
    assert order is not None
    expected = sorted(range(len(keys)), key=lambda place: keys[place][:8].ljust(8, b"\0"))
    assert order.tolist() == expected


@settings(max_examples=30)
@given(KEYS)
def test_the_way_back_leads_to_where_things_were(keys):
    order = key_order(keys)
    assert order is not None
    assert reordered(ordered(keys, order), order) == keys


def test_values_go_with_their_keys():
    keys = [bytes([number * 7 % 256, number % 256]) for number in range(200)]
    values = [None if number % 3 else b"%d" % number for number in range(200)]
    ordered_keys, ordered_values = in_key_order(keys, values)
    assert ordered_keys == sorted(keys)
    assert dict(zip(ordered_keys, ordered_values, strict=True)) == dict(zip(keys, values, strict=True))


def test_a_few_keys_are_left_as_they_are():
    keys, values = [b"b", b"a"], [b"1", None]
    assert key_order(keys) is None
    assert in_key_order(keys, values) == (keys, values)
