"""The message definitions are complete and exact, and decoding never lets a bad message pass.

Every field is compared with the table of wire facts; truncated, flipped and random bytes must give a typed error.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptMessageError
from fluss.protocol.api import APIS, ApiKey
from fluss.protocol.codec import ENTRIES_MAX, MESSAGE_BYTES_MAX, MessageCodec
from fluss.protocol.messages import fluss_pb2 as pb
from tests.damage import bit_flips, truncations

FACTS = Path(__file__).parents[2] / "golden" / "messages.csv"

_Field = descriptor_pb2.FieldDescriptorProto
_LABELS = {
    _Field.LABEL_REQUIRED: "required",
    _Field.LABEL_OPTIONAL: "optional",
    _Field.LABEL_REPEATED: "repeated",
}
_TYPES = {
    _Field.TYPE_INT32: "int32",
    _Field.TYPE_INT64: "int64",
    _Field.TYPE_BOOL: "bool",
    _Field.TYPE_FLOAT: "float",
    _Field.TYPE_DOUBLE: "double",
    _Field.TYPE_STRING: "string",
    _Field.TYPE_BYTES: "bytes",
}


def _facts() -> list[dict[str, str]]:
    with FACTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _described() -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(proto)
    return proto


def test_every_field_has_the_number_label_type_and_packing_of_the_wire():
    expected = {
        (row["message"], row["field"], int(row["number"]), row["label"], row["type"], row["packed"] == "1")
        for row in _facts()
        if row["field"]
    }
    defined = {
        (
            message.name,
            item.name,
            item.number,
            _LABELS[item.label],
            _TYPES.get(item.type) or item.type_name.rpartition(".")[2],
            item.options.packed,
        )
        for message in _described().message_type
        for item in message.field
    }
    # A filter is left encoded, which is the same on the wire.
    expected = {(*fact[:4], "bytes", fact[5]) if fact[1] == "filter_predicate" else fact for fact in expected}
    assert len(expected) > 500
    assert defined == expected


def test_there_are_no_other_messages_and_none_is_missing():
    assert {message.name for message in _described().message_type} == {row["message"] for row in _facts()}
    assert not _described().enum_type
    assert not _described().service


def test_every_request_and_response_belongs_to_an_api():
    used = {codec.message_name for api in APIS.values() for codec in (api.request, api.response)}
    named = {m.name for m in _described().message_type if m.name.endswith(("Request", "Response"))}
    assert named - used == {"ErrorResponse"}


def test_negative_int32_takes_ten_bytes():
    request = pb.ProduceLogRequest(acks=-1)
    assert request.SerializePartialToString() == bytes.fromhex("08ffffffffffffffffff01")


def test_a_message_comes_back_equal():
    request = pb.MetadataRequest(partitions_id=[1, -2])
    request.table_path.add(database_name="d", table_name="tête")
    codec = MessageCodec(pb.MetadataRequest)
    assert codec.decode(b"".join(codec.encode(request))) == request


def test_encoding_the_wrong_message_is_a_type_error():
    with pytest.raises(TypeError, match="expected a MetadataRequest"):
        MessageCodec(pb.MetadataRequest).encode(pb.ApiVersionsRequest())


def test_a_missing_required_field_is_named():
    with pytest.raises(CorruptMessageError, match=r"table_path\.table_name"):
        MessageCodec(pb.TableExistsRequest).decode(bytes.fromhex("0a030a0164"))


def test_a_long_list_of_incomplete_entries_is_refused_without_listing_them():
    body = b"\x0a\x00" * 100_000
    with pytest.raises(CorruptMessageError, match="lacks required fields"):
        MessageCodec(pb.MetadataRequest).decode(body)


def test_a_request_above_the_limit_is_refused_before_parsing():
    codec = MessageCodec(pb.CreateDatabaseRequest, bytes_max=MESSAGE_BYTES_MAX)
    with pytest.raises(CorruptMessageError, match="exceeds the limit"):
        codec.decode(bytes(MESSAGE_BYTES_MAX + 1))


def _fetch_of(table_count: int, bucket_count: int) -> pb.FetchLogRequest:
    bucket = pb.PbFetchLogReqForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=1)
    table = pb.PbFetchLogReqForTable(table_id=1, projection_pushdown_enabled=False, buckets_req=[bucket] * bucket_count)
    return pb.FetchLogRequest(follower_server_id=-1, max_bytes=1, tables_req=[table] * table_count)


@pytest.mark.parametrize(
    ("within", "above"),
    [
        (pb.MetadataRequest(partitions_id=range(100)), pb.MetadataRequest(partitions_id=range(101))),
        (_fetch_of(2, 49), _fetch_of(2, 50)),
        (_fetch_of(100, 0), _fetch_of(101, 0)),
    ],
    ids=["numbers", "entries of entries", "entries"],
)
def test_a_request_of_too_many_entries_is_refused(within, above):
    codec = MessageCodec(type(within), entries_max=100)
    assert codec.decode(within.SerializeToString()) == within
    with pytest.raises(CorruptMessageError, match="more than 100 entries; send it in several pieces"):
        codec.decode(above.SerializeToString())


def test_entries_inside_a_recursive_message_are_counted():
    leaf = pb.PbPredicate()
    leaf.type = 0
    leaf.compound.function = 0
    predicate = leaf
    for _ in range(10):
        outer = pb.PbPredicate()
        outer.type = 1
        outer.compound.function = 0
        outer.compound.children.extend([predicate, leaf])
        predicate = outer
    body = predicate.SerializeToString()
    assert MessageCodec(pb.PbPredicate, entries_max=20).decode(body) == predicate
    with pytest.raises(CorruptMessageError, match="more than 19 entries"):
        MessageCodec(pb.PbPredicate, entries_max=19).decode(body)


def test_a_filter_is_the_same_on_the_wire_as_its_bytes():
    request = _fetch_of(1, 1)
    request.tables_req[0].filter_predicate = pb.PbPredicate(type=7).SerializeToString()
    # Field 5 of the table, two bytes: field 1 is 7.
    assert bytes([5 << 3 | 2, 2, 1 << 3, 7]) in request.SerializeToString()


def test_every_request_is_limited_and_the_largest_are_allowed():
    request = _fetch_of(1, 65_536)
    assert APIS[ApiKey.FETCH_LOG].request.decode(request.SerializeToString()) == request
    body = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=0, table_id=1, bucket_id=range(ENTRIES_MAX + 1))
    with pytest.raises(CorruptMessageError, match="entries"):
        APIS[ApiKey.LIST_OFFSETS].request.decode(body.SerializeToString())


@pytest.mark.parametrize(
    ("message_type", "body"),
    [
        (pb.ListTablesRequest, "0a01ff"),  # a field of the message itself
        (pb.ListTablesResponse, "0a01610a01ff"),  # an element of a list
        (pb.TableExistsRequest, "0a060a01641201ff"),  # inside a required message
        (pb.MetadataRequest, "0a060a016412017412090a01641201741a01ff"),  # inside the second kind of entry
    ],
)
def test_text_that_is_not_utf8_is_refused_wherever_it_stands(message_type, body):
    with pytest.raises(CorruptMessageError, match="UTF-8"):
        MessageCodec(message_type).decode(bytes.fromhex(body))


def test_text_deep_inside_a_recursive_message_is_checked():
    literal = pb.PbLiteralValue(literal_type=8, is_null=False).SerializeToString() + b"\x42\x01\xff"
    leaf = b"\x08\x00\x10\x01\x1a" + bytes([len(literal)]) + literal
    predicate = b"\x08\x00\x12" + bytes([len(leaf)]) + leaf
    for _ in range(3):
        compound = b"\x08\x00\x12" + bytes([len(predicate)]) + predicate
        predicate = b"\x08\x01\x1a" + bytes([len(compound)]) + compound
    with pytest.raises(CorruptMessageError, match="not valid UTF-8"):
        MessageCodec(pb.PbPredicate).decode(predicate)


def test_endless_nesting_is_refused():
    predicate = b"\x08\x00"
    for _ in range(400):
        compound = b"\x08\x00" + _length_delimited(2, predicate)
        predicate = b"\x08\x01" + _length_delimited(3, compound)
    with pytest.raises(CorruptMessageError):
        MessageCodec(pb.PbPredicate).decode(predicate)


def _length_delimited(number: int, content: bytes) -> bytes:
    size = len(content)
    prefix = bytearray()
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes((number << 3 | 2,)) + bytes(prefix) + content


def _metadata_bytes() -> bytes:
    response = pb.MetadataResponse()
    response.coordinator_server.MergeFrom(pb.PbServerNode(node_id=0, host="c", port=9123))
    response.tablet_servers.add(node_id=1, host="t", port=9124, rack="r")
    table = response.table_metadata.add(table_id=5, schema_id=1, table_json=b"{}", created_time=1, modified_time=2)
    table.table_path.MergeFrom(pb.PbTablePath(database_name="d", table_name="t"))
    table.bucket_metadata.add(bucket_id=0, leader_id=1, replica_id=[1, 2, 3])
    return response.SerializeToString()


def test_every_truncation_and_every_flipped_bit_gives_a_message_or_the_right_error():
    codec = MessageCodec(pb.MetadataResponse)
    body = _metadata_bytes()
    outcomes = {_outcome(codec, candidate) for candidate in (*truncations(body), *bit_flips(body))}
    assert outcomes == {"message", "error"}


@given(st.sampled_from(sorted(APIS)), st.booleans(), st.binary(max_size=200))
def test_random_bytes_give_a_message_or_the_right_error(key, is_request, body):
    api = APIS[key]
    assert _outcome(api.request if is_request else api.response, body) in ("message", "error")


def _outcome(codec, body: bytes) -> str:
    try:
        codec.decode(body)
    except CorruptMessageError:
        return "error"
    return "message"
