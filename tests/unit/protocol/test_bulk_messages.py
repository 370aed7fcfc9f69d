"""Messages with record batches, and answers to lookups, are the same bytes that the official runtime writes and reads.
Shown with the runtime as the oracle over random messages, shuffled and unknown fields, and values of the sizes at which
lengths grow by a byte; identity and tracemalloc show that payloads are not copied; damage ends in a typed error."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptMessageError
from fluss.protocol import bulk_messages, protowire
from fluss.protocol.messages import fluss_pb2 as pb
from tests.damage import bit_flips, is_refused, truncations

INT32 = st.one_of(st.integers(-3, 300), st.integers(-(2**31), 2**31 - 1))
INT64 = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
PAYLOADS = st.binary(max_size=300)


def _maybe(strategy):
    return st.none() | strategy


BUCKETS = st.builds(bulk_messages.BucketRecords, INT32, PAYLOADS, _maybe(INT64))
REMOTE_INFOS = st.builds(
    lambda directory, position: pb.PbRemoteLogFetchInfo(remote_log_tablet_dir=directory, first_start_pos=position),
    st.text(max_size=10),
    INT32,
)
FETCHED_BUCKETS = st.builds(
    bulk_messages.FetchedBucket,
    bucket_id=INT32,
    partition_id=_maybe(INT64),
    error_code=_maybe(INT32),
    error_message=_maybe(st.text(max_size=20)),
    high_watermark=_maybe(INT64),
    log_start_offset=_maybe(INT64),
    remote_log_fetch_info=_maybe(REMOTE_INFOS),
    records=_maybe(PAYLOADS),
    filtered_end_offset=_maybe(INT64),
)
CASES: dict[str, tuple[Any, Any, Any]] = {
    "ProduceLogRequest": (
        bulk_messages.PRODUCE_LOG_REQUEST,
        pb.ProduceLogRequest,
        st.builds(bulk_messages.ProduceLogRequest, INT32, INT64, INT32, st.lists(BUCKETS, max_size=4)),
    ),
    "PutKvRequest": (
        bulk_messages.PUT_KV_REQUEST,
        pb.PutKvRequest,
        st.builds(
            bulk_messages.PutKvRequest,
            INT32,
            INT64,
            INT32,
            st.lists(INT32, max_size=4),
            st.lists(BUCKETS, max_size=4),
            _maybe(INT32),
        ),
    ),
    "FetchLogResponse": (
        bulk_messages.FETCH_LOG_RESPONSE,
        pb.FetchLogResponse,
        st.builds(
            bulk_messages.FetchLogResponse,
            st.lists(st.builds(bulk_messages.FetchedTable, INT64, st.lists(FETCHED_BUCKETS, max_size=3)), max_size=3),
        ),
    ),
    "LimitScanResponse": (
        bulk_messages.LIMIT_SCAN_RESPONSE,
        pb.LimitScanResponse,
        st.builds(
            bulk_messages.LimitScanResponse,
            _maybe(INT32),
            _maybe(st.text(max_size=20)),
            _maybe(st.booleans()),
            _maybe(PAYLOADS),
        ),
    ),
    "ScanKvResponse": (
        bulk_messages.SCAN_KV_RESPONSE,
        pb.ScanKvResponse,
        st.builds(
            bulk_messages.ScanKvResponse,
            _maybe(INT32),
            _maybe(st.text(max_size=20)),
            _maybe(st.binary(max_size=20)),
            _maybe(st.booleans()),
            _maybe(PAYLOADS),
            _maybe(INT64),
        ),
    ),
}
# Our short names for the lists of the messages.
LIST_NAMES = {"buckets_req": "buckets", "buckets_resp": "buckets", "tables_resp": "tables"}

EVERY_MESSAGE = pytest.mark.parametrize("name", CASES)


def _in_pieces(body: bytes, sizes: list[int]) -> tuple[memoryview, ...]:
    pieces, start = [], 0
    for size in [*sizes, len(body)]:
        pieces.append(memoryview(body)[start : start + size])
        start += size
    return tuple(pieces)


def _assert_equal(ours, theirs) -> None:
    """Compare field by field, presence included."""
    for field in theirs.DESCRIPTOR.fields:
        mine = getattr(ours, LIST_NAMES.get(field.name, field.name))
        other = getattr(theirs, field.name)
        if field.name in LIST_NAMES:
            assert len(mine) == len(other)
            for my_entry, other_entry in zip(mine, other, strict=True):
                _assert_equal(my_entry, other_entry)
        elif field.name == "target_columns":
            assert list(mine) == list(other)
        else:
            assert (mine is not None) == theirs.HasField(field.name), field.name
            if mine is not None:
                assert mine == other, field.name


@EVERY_MESSAGE
@given(data=st.data())
def test_the_runtime_reads_what_we_write(name, data):
    codec, message_type, strategy = CASES[name]
    message = data.draw(strategy)
    body = b"".join(codec.encode(message))
    parsed = message_type.FromString(body)
    assert parsed.IsInitialized()
    _assert_equal(message, parsed)
    assert body == parsed.SerializeToString()
    assert codec.decode(body) == message


def _shuffled(message, rng: random.Random) -> bytes:
    """Serialise every field on its own, put unknown ones between them, and shuffle; list order is kept."""
    pieces: list[tuple[float, bytes]] = []
    for field, value in message.ListFields():
        values = list(value) if field.name in (*LIST_NAMES, "target_columns") else [value]
        places = sorted(rng.random() for _ in values)
        for place, item in zip(places, values, strict=True):
            single = type(message)()
            if field.name in (*LIST_NAMES, "target_columns"):
                getattr(single, field.name).append(item)
            elif field.message_type is not None:
                getattr(single, field.name).MergeFrom(item)
            else:
                setattr(single, field.name, item)
            pieces.append((place, single.SerializePartialToString()))
    unknown = (b"\xf8\x07\x05", b"\xfa\x07\x02hi", b"\xfd\x07abcd", b"\xf9\x07abcdefgh")
    pieces += [(rng.random(), piece) for piece in rng.sample(unknown, rng.randrange(len(unknown) + 1))]
    return b"".join(piece for _, piece in sorted(pieces))


@EVERY_MESSAGE
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_we_read_what_the_runtime_writes_in_any_order_and_with_unknown_fields(name, data, seed):
    codec, message_type, strategy = CASES[name]
    message = message_type.FromString(b"".join(codec.encode(data.draw(strategy))))
    body = _shuffled(message, random.Random(seed))
    _assert_equal(codec.decode(body), message_type.FromString(body))


@EVERY_MESSAGE
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_whatever_damage_we_accept_the_runtime_reads_the_same(name, data, seed):
    codec, message_type, strategy = CASES[name]
    rng = random.Random(seed)
    body = bytearray(b"".join(codec.encode(data.draw(strategy))))
    for _ in range(rng.randrange(1, 4)):
        if body:
            body[rng.randrange(len(body))] = rng.randrange(256)
    body = body[: rng.randrange(len(body) + 1)] if rng.random() < 0.3 else body
    try:
        ours = codec.decode(body)
    except CorruptMessageError:
        return
    theirs = message_type.FromString(bytes(body))
    assert theirs.IsInitialized()
    _assert_equal(ours, theirs)


@given(st.sampled_from(sorted(CASES)), st.binary(max_size=100))
def test_random_bytes_give_a_message_or_the_right_error(name, body):
    codec, message_type, _ = CASES[name]
    try:
        ours = codec.decode(body)
    except CorruptMessageError:
        return
    _assert_equal(ours, message_type.FromString(body))


def _small_fetch_response() -> bytes:
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir="dir", first_start_pos=0)
    info.remote_log_segments.add(
        remote_log_segment_id="s", remote_log_start_offset=0, remote_log_end_offset=9, segment_size_in_bytes=5
    )
    local = bulk_messages.FetchedBucket(0, high_watermark=7, log_start_offset=0, records=b"abc")
    remote = bulk_messages.FetchedBucket(1, partition_id=4, high_watermark=7, remote_log_fetch_info=info)
    failed = bulk_messages.FetchedBucket(2, error_code=12, error_message="no")
    response = bulk_messages.FetchLogResponse([bulk_messages.FetchedTable(1, [local, remote, failed])])
    return b"".join(bulk_messages.FETCH_LOG_RESPONSE.encode(response))


def test_every_truncation_and_every_flipped_bit_gives_a_message_or_the_right_error():
    body = _small_fetch_response()
    decode = bulk_messages.FETCH_LOG_RESPONSE.decode
    damaged = (*truncations(body), *bit_flips(body))
    refused = {is_refused(decode, candidate, CorruptMessageError) for candidate in damaged}
    assert refused == {False, True}


def test_payloads_are_referenced_while_encoding_and_sliced_while_decoding():
    payload = bytes(1_000_000)
    request = bulk_messages.ProduceLogRequest(
        -1, 7, 30_000, [bulk_messages.BucketRecords(0, payload), bulk_messages.BucketRecords(1, payload)]
    )
    tracemalloc.start()
    parts = bulk_messages.PRODUCE_LOG_REQUEST.encode(request)
    _, encode_peak = tracemalloc.get_traced_memory()
    body = b"".join(parts)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    decoded = bulk_messages.PRODUCE_LOG_REQUEST.decode(body)
    _, decode_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(isinstance(part, memoryview) and part.obj is payload for part in parts) == 2
    assert all(bucket.records_view.obj is body for bucket in decoded.buckets)
    assert encode_peak < 100_000
    assert decode_peak - before < 100_000


@given(PAYLOADS, st.lists(st.integers(0, 50), max_size=5))
def test_a_payload_in_pieces_is_the_same_as_in_one(payload, sizes):
    whole = bulk_messages.LimitScanResponse(is_log_table=True, records=payload)
    pieces = bulk_messages.LimitScanResponse(is_log_table=True, records=_in_pieces(payload, sizes))
    assert b"".join(bulk_messages.LIMIT_SCAN_RESPONSE.encode(pieces)) == b"".join(
        bulk_messages.LIMIT_SCAN_RESPONSE.encode(whole)
    )
    assert pieces.records_view == payload


def test_an_empty_payload_is_present_and_no_payload_is_absent():
    empty = bulk_messages.FETCH_LOG_RESPONSE.encode(
        bulk_messages.FetchLogResponse([bulk_messages.FetchedTable(1, [bulk_messages.FetchedBucket(0, records=b"")])])
    )
    absent = bulk_messages.FETCH_LOG_RESPONSE.encode(
        bulk_messages.FetchLogResponse([bulk_messages.FetchedTable(1, [bulk_messages.FetchedBucket(0)])])
    )
    assert pb.FetchLogResponse.FromString(b"".join(empty)).tables_resp[0].buckets_resp[0].HasField("records")
    assert not pb.FetchLogResponse.FromString(b"".join(absent)).tables_resp[0].buckets_resp[0].HasField("records")
    decoded = bulk_messages.FETCH_LOG_RESPONSE.decode(b"".join(absent))
    assert decoded.tables[0].buckets[0].records is None
    assert decoded.tables[0].buckets[0].records_view == b""


def test_the_last_of_several_values_wins_and_messages_are_merged():
    bucket = pb.PbFetchLogRespForBucket(bucket_id=1, records=b"old").SerializeToString()
    bucket += pb.PbFetchLogRespForBucket(bucket_id=2, records=b"new").SerializeToString()
    first = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir="dir").SerializeToString()
    second = pb.PbRemoteLogFetchInfo(partition_name="p").SerializePartialToString()
    for part in (first, second):
        bucket += protowire.length_prefix(7, len(part)) + part
    table = protowire.tag(1, protowire.VARINT) + b"\x05" + protowire.length_prefix(2, len(bucket)) + bucket
    body = protowire.length_prefix(1, len(table)) + table
    (entry,) = bulk_messages.FETCH_LOG_RESPONSE.decode(body).tables[0].buckets
    assert (entry.bucket_id, bytes(entry.records_view)) == (2, b"new")
    info = entry.remote_log_fetch_info
    assert info is not None
    assert (info.remote_log_tablet_dir, info.partition_name) == ("dir", "p")


def test_target_columns_are_read_packed_unpacked_and_mixed():
    head = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=5).SerializeToString()
    decoded = bulk_messages.PUT_KV_REQUEST.decode(head + b"\x20\x01" + b"\x22\x02\x02\x03" + b"\x20\x04" + b"\x22\x00")
    assert decoded.target_columns == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "required field acks"),
        ("08011001", "required field timeout_ms"),
        ("0801100118012200", "required field bucket_id"),
        ("08011001180122021001", "required field records"),
        ("0801100118012205", "announces 5 bytes, but only 0 are left"),
        ("08011001180122ffffffff0f", "announces 4294967295 bytes"),
        ("08", "ends inside the varint"),
        ("08ffffffffffffffffffff01", "longer than 10 bytes"),
        ("0001", "no valid tag"),
        ("ffffffff7f01", "no valid tag"),
        ("2b2c", "is a group"),
        ("2e", "unknown wire type 6"),
    ],
)
def test_each_kind_of_damage_has_its_own_sentence(body, text):
    with pytest.raises(CorruptMessageError, match=text):
        bulk_messages.PRODUCE_LOG_REQUEST.decode(bytes.fromhex(body))


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(CorruptMessageError, match=r"LimitScanResponse\.error_message is not valid UTF-8"):
        bulk_messages.LIMIT_SCAN_RESPONSE.decode(b"\x12\x01\xff")


@pytest.mark.parametrize("filler", [b"\x28\x00", b"\x22\x00", b"\x22\x02\x10\x00", b"\xa8\x06\x00"])
def test_a_flood_of_tiny_fields_is_refused(filler):
    with pytest.raises(CorruptMessageError):
        bulk_messages.PRODUCE_LOG_REQUEST.decode(filler * (bulk_messages.FIELDS_MAX + 1))
    with pytest.raises(CorruptMessageError, match=f"above {bulk_messages.FIELDS_MAX} fields"):
        bulk_messages.PUT_KV_REQUEST.decode(protowire.length_prefix(4, 300_000) + b"\x01" * 300_000)


def test_a_request_for_very_many_buckets_is_accepted():
    request = bulk_messages.ProduceLogRequest(
        -1, 7, 1, [bulk_messages.BucketRecords(i, b"", partition_id=1) for i in range(60_000)]
    )
    decoded = bulk_messages.PRODUCE_LOG_REQUEST.decode(b"".join(bulk_messages.PRODUCE_LOG_REQUEST.encode(request)))
    assert len(decoded.buckets) == 60_000


def test_payloads_do_not_appear_in_a_repr():
    assert "secret" not in repr(bulk_messages.ProduceLogRequest(-1, 7, 1, [bulk_messages.BucketRecords(0, b"secret")]))


def test_encoding_the_wrong_message_is_a_type_error():
    with pytest.raises(TypeError, match="expected a ProduceLogRequest with records"):
        bulk_messages.PRODUCE_LOG_REQUEST.encode(pb.ProduceLogRequest())


@given(buckets=st.lists(FETCHED_BUCKETS, max_size=4), encoded=st.lists(FETCHED_BUCKETS, max_size=4))
def test_buckets_that_were_encoded_before_arrive_like_all_others(buckets, encoded):
    ready = b"".join(map(bulk_messages.encode_fetched_bucket, encoded))
    some = bulk_messages.FetchLogResponse(
        [bulk_messages.FetchedTable(1, buckets, ready), bulk_messages.FetchedTable(2, [], ready)]
    )
    all_at_once = bulk_messages.FetchLogResponse(
        [bulk_messages.FetchedTable(1, buckets + encoded), bulk_messages.FetchedTable(2, encoded)]
    )
    codec = bulk_messages.FETCH_LOG_RESPONSE
    assert b"".join(codec.encode(some)) == b"".join(codec.encode(all_at_once))
