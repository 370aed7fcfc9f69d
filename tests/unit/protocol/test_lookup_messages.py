"""Messages of lookups say the same as those of the protobuf runtime, with keys and values one by one or all at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptMessageError
from fluss.protocol import api as apis
from fluss.protocol import lookup_messages
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.row.encoded import EncodedRows

SIZES = st.sampled_from([0, 1, 60, 123, 124, 125, 126, 127, 128, 4095, 4096, 16_377, 16_380, 16_384])
VALUES = st.binary(max_size=40) | SIZES.map(lambda size: b"v" * size)
HEADERS = {
    "bucket_id": st.integers(-(2**31), 2**31 - 1),
    "partition_id": st.none() | st.integers(-(2**63), 2**63 - 1),
    "error_code": st.none() | st.integers(-1, 73),
    "error_message": st.none() | st.text(max_size=20),
}


@given(st.lists(st.tuples(st.fixed_dictionaries(HEADERS), st.lists(st.none() | VALUES, max_size=6)), max_size=4))
def test_values_are_encoded_as_by_the_runtime(buckets):
    expected = pb.LookupResponse()
    answers = []
    for header, values in buckets:
        entry = expected.buckets_resp.add(**header)
        for value in values:
            entry.values.add(values=value)
        answers.append(lookup_messages.LookupAnswer(**header, encoded=lookup_messages.encode_values(values)))
    encoded = b"".join(apis.LOOKUP.response.encode(lookup_messages.lookup_response(answers)))
    assert encoded == expected.SerializeToString()


@given(st.lists(st.tuples(st.fixed_dictionaries(HEADERS), st.lists(st.lists(VALUES, max_size=4))), max_size=4))
def test_lists_of_values_are_encoded_as_by_the_runtime(buckets):
    expected = pb.PrefixLookupResponse()
    answers = []
    for header, lists in buckets:
        entry = expected.buckets_resp.add(**header)
        for values in lists:
            entry.value_lists.add(values=values)
        answers.append(lookup_messages.LookupAnswer(**header, encoded=lookup_messages.encode_value_lists(lists)))
    encoded = b"".join(apis.PREFIX_LOOKUP.response.encode(lookup_messages.prefix_lookup_response(answers)))
    assert encoded == expected.SerializeToString()


def test_an_encoded_message_is_sent_only_where_its_type_belongs():
    with pytest.raises(TypeError, match="PrefixLookupResponse"):
        apis.PREFIX_LOOKUP.response.encode(lookup_messages.lookup_response([]))


@given(st.lists(st.none() | st.tuples(st.binary(max_size=3), VALUES), max_size=20))
def test_many_values_are_encoded_like_few(values):
    joined = [None if value is None or not b"".join(value) else b"".join(value) for value in values]
    parts = [EncodedRows.from_list([b"" if value is None else value[index] for value in values]) for index in (0, 1)]
    assert lookup_messages.encode_value_columns(*parts).data.tobytes() == lookup_messages.encode_values(joined)


# Whether the runtime is asked to encode and decode a few, or none.
FEW_MAX = pytest.mark.parametrize("few_max", [-1, 64])
BUCKETS = st.tuples(st.none() | st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))


@FEW_MAX
@given(table_id=st.integers(0, 2**63 - 1), keys=st.dictionaries(BUCKETS, st.lists(VALUES, max_size=6), max_size=4))
def test_requests_are_encoded_as_by_the_runtime(few_max, table_id, keys):
    entries = [
        pb.PbLookupReqForBucket(partition_id=partition_id, bucket_id=bucket_id, keys=wanted)
        for (partition_id, bucket_id), wanted in keys.items()
    ]
    expected = pb.LookupRequest(table_id=table_id, buckets_req=entries)
    made = lookup_messages.lookup_request(
        table_id, {bucket: EncodedRows.from_list(wanted) for bucket, wanted in keys.items()}, few_max=few_max
    )
    assert b"".join(apis.LOOKUP_MANY.request.encode(made)) == expected.SerializeToString()


@FEW_MAX
def test_keys_may_lie_anywhere(few_max):
    rows = EncodedRows(np.frombuffer(b"-two--one---", np.uint8), np.array([6, 1, 0]), np.array([9, 4, 0]))
    expected = pb.LookupRequest(table_id=1, buckets_req=[pb.PbLookupReqForBucket(bucket_id=0)])
    expected.buckets_req[0].keys.extend([b"one", b"two", b""])
    made = lookup_messages.lookup_request(1, {(None, 0): rows}, few_max=few_max)
    assert b"".join(made.parts) == expected.SerializeToString()


@FEW_MAX
@given(values=st.lists(st.none() | VALUES, max_size=20), code=st.integers(-1, 73))
def test_values_of_an_answer_are_found_all_at_once(few_max, values, code):
    answer = pb.LookupResponse()
    entry = answer.buckets_resp.add(bucket_id=3, error_code=code, error_message="why")
    for value in values:
        entry.values.add(values=value)
    (found,) = apis.LOOKUP_MANY.response.decode(answer.SerializeToString()).buckets_resp
    assert (found.bucket_id, found.error_code, found.error_message) == (3, code, "why")
    assert lookup_messages.values_of([found], few_max=few_max)[0].to_list() == [value or b"" for value in values]


@FEW_MAX
@given(lists=st.lists(st.lists(st.none() | VALUES, max_size=5), max_size=5))
def test_values_of_many_buckets_are_found_all_at_once(few_max, lists):
    answer = pb.LookupResponse()
    for number, values in enumerate(lists):
        entry = answer.buckets_resp.add(bucket_id=number)
        for value in values:
            entry.values.add(values=value)
    entries = apis.LOOKUP_MANY.response.decode(answer.SerializeToString()).buckets_resp
    found = lookup_messages.values_of(entries, few_max=few_max)
    assert [rows.to_list() for rows in found] == [[value or b"" for value in values] for values in lists]


# Field 1 with "a", then with "bc", of which the last one counts; and field 2, which is not known, before field 1.
@FEW_MAX
@pytest.mark.parametrize(
    ("message", "value"), [(b"\n\1a\n\2bc", b"bc"), (b"\x12\1z\n\1a", b"a"), (b"\n\x81\0a", b"a"), (b"\n\0", b"")]
)
def test_values_that_are_written_in_other_ways(few_max, message, value):
    encoded = b"\x10\3" + b"*\4\n\2xy" + b"*" + bytes([len(message)]) + message
    body = b"\n" + bytes([len(encoded)]) + encoded
    (found,) = apis.LOOKUP_MANY.response.decode(body).buckets_resp
    assert lookup_messages.values_of([found], few_max=few_max)[0].to_list() == [b"xy", value]
    assert [item.values for item in pb.LookupResponse.FromString(body).buckets_resp[0].values] == [b"xy", value]


@FEW_MAX
@pytest.mark.parametrize("message", [b"\n", b"\n\5ab", b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"])
def test_values_that_are_none_are_corrupt(few_max, message):
    encoded = b"\x10\3" + b"*" + bytes([len(message)]) + message
    body = b"\n" + bytes([len(encoded)]) + encoded
    (found,) = apis.LOOKUP_MANY.response.decode(body).buckets_resp
    with pytest.raises(CorruptMessageError, match="PbValue"):
        lookup_messages.values_of([found], few_max=few_max)
