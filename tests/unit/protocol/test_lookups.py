"""Answers to lookups are written exactly as the official runtime would write them.

The runtime is the oracle over random answers; values of the sizes at which lengths grow by a byte are among them.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.protocol import api as apis
from fluss.protocol import lookups
from fluss.protocol.messages import fluss_pb2 as pb

SIZES = st.sampled_from([0, 1, 60, 123, 124, 125, 126, 127, 128, 4095, 4096, 16_377, 16_380, 16_384])
VALUES = st.binary(max_size=40) | SIZES.map(lambda size: b"v" * size)
HEADERS = {
    "bucket_id": st.integers(-(2**31), 2**31 - 1),
    "partition_id": st.none() | st.integers(-(2**63), 2**63 - 1),
    "error_code": st.none() | st.integers(-1, 73),
    "error_message": st.none() | st.text(max_size=20),
}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.fixed_dictionaries(HEADERS), st.lists(st.none() | VALUES, max_size=6)), max_size=4))
def test_values_are_encoded_as_by_the_runtime(buckets):
    expected = pb.LookupResponse()
    answers = []
    for header, values in buckets:
        entry = expected.buckets_resp.add(**header)
        for value in values:
            entry.values.add(values=value)
        answers.append(lookups.LookupAnswer(**header, encoded=lookups.encode_values(values)))
    encoded = b"".join(apis.LOOKUP.response.encode(lookups.lookup_response(answers)))
    assert encoded == expected.SerializeToString()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.fixed_dictionaries(HEADERS), st.lists(st.lists(VALUES, max_size=4))), max_size=4))
def test_lists_of_values_are_encoded_as_by_the_runtime(buckets):
    expected = pb.PrefixLookupResponse()
    answers = []
    for header, lists in buckets:
        entry = expected.buckets_resp.add(**header)
        for values in lists:
            entry.value_lists.add(values=values)
        answers.append(lookups.LookupAnswer(**header, encoded=lookups.encode_value_lists(lists)))
    encoded = b"".join(apis.PREFIX_LOOKUP.response.encode(lookups.prefix_lookup_response(answers)))
    assert encoded == expected.SerializeToString()


def test_an_encoded_message_is_sent_only_where_its_type_belongs():
    with pytest.raises(TypeError, match="PrefixLookupResponse"):
        apis.PREFIX_LOOKUP.response.encode(lookups.lookup_response([]))
