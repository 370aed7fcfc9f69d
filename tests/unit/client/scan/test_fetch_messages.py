"""Requests put together from remembered parts are those that the official runtime would write, and silence is cheap.
The runtime is the oracle for requests; responses are decoded in full, then again with most entries known as silent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.buffers import byte_view
from fluss.client.scan.fetch.buffer import FetchGroup, Subscription
from fluss.client.scan.fetch.fetch_messages import FetchRequests, FetchResponses
from fluss.config import Config
from fluss.errors import CorruptMessageError
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import FETCH_LOG_RESPONSE, FetchedBucket, FetchedTable, FetchLogResponse
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.predicates import predicate_to_pb
from fluss.schema.predicate import col
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket
from fluss.schema.types import DataTypes

SCHEMA = Schema.builder().column("id", DataTypes.int()).build()
PREDICATE = (col("id") > 5).bind(SCHEMA)
KEYS = st.tuples(st.none() | st.integers(0, 2**40), st.integers(0, 2**31 - 1))


def decoded(parts: list[Any]) -> pb.FetchLogRequest:
    return apis.FETCH_LOG.request.decode(b"".join(parts))


@given(
    offsets=st.dictionaries(KEYS, st.integers(-2, 2**62), max_size=6),
    pushdown=st.sets(st.integers(0, 300), max_size=4),
    has_filter=st.booleans(),
)
def test_requests_say_everything(
    offsets: dict[tuple[int | None, int], int], pushdown: set[int], has_filter: bool
) -> None:
    config = Config(
        {
            "scanner.log.fetch.max-bytes": 1000,
            "scanner.log.fetch.min-bytes": 2,
            "scanner.log.fetch.wait-max-time-ms": 3,
            "scanner.log.fetch.max-bytes-for-bucket": 4,
            "client.scanner.log.read-preference": "REMOTE_FIRST",
        }
    )
    positions = tuple(sorted(pushdown))
    predicate = PREDICATE if has_filter else None
    requests = FetchRequests(config, 2**40, pushdown=positions, predicate=predicate, schema_id=5)
    group = FetchGroup()
    group.add(Subscription(TableBucket.new_with_partition(2**40, *key), offset) for key, offset in offsets.items())
    table = pb.PbFetchLogReqForTable(
        table_id=2**40,
        projection_pushdown_enabled=bool(positions),
        projected_fields=positions,
        buckets_req=[
            pb.PbFetchLogReqForBucket(partition_id=key[0], bucket_id=key[1], fetch_offset=offset, max_fetch_bytes=4)
            for key, offset in offsets.items()
        ],
    )
    if has_filter:
        table.filter_predicate = predicate_to_pb(PREDICATE).SerializeToString()
        table.filter_schema_id = 5
    expected = pb.FetchLogRequest(
        follower_server_id=-1, max_bytes=1000, min_bytes=2, max_wait_ms=3, tables_req=[table], read_preference=1
    )
    # The second time, all parts are remembered.
    first = decoded(group.request(requests))
    group.forget_request()
    assert first == decoded(group.request(requests)) == expected


def test_an_offset_that_moved_is_encoded_anew_and_pushdown_can_be_given_up() -> None:
    requests = FetchRequests(Config(), 1, pushdown=(0, 3))
    subscription = Subscription(TableBucket(1, 0), -2)
    group = FetchGroup()
    group.add([subscription])
    (table,) = decoded(group.request(requests)).tables_req
    assert (table.buckets_req[0].fetch_offset, list(table.projected_fields)) == (-2, [0, 3])
    assert requests.form.is_projected
    group.move_on(subscription, 17)
    requests.stop_projecting()
    (table,) = decoded(group.request(requests)).tables_req
    assert (table.buckets_req[0].fetch_offset, table.projection_pushdown_enabled) == (17, False)
    assert not requests.form.is_projected


def response(*buckets: FetchedBucket) -> memoryview:
    return byte_view(b"".join(FETCH_LOG_RESPONSE.encode(FetchLogResponse([FetchedTable(1, buckets)]))))


def silent(bucket_id: int, high_watermark: int = 5) -> FetchedBucket:
    return FetchedBucket(bucket_id, high_watermark=high_watermark, log_start_offset=0, records=b"")


def bucket_ids(responses: FetchResponses, body: memoryview) -> list[int]:
    return [bucket.bucket_id for bucket, _ in responses.decode(body)]


def test_entries_that_said_nothing_are_not_decoded_again() -> None:
    responses = FetchResponses()
    quiet = response(*(silent(number) for number in range(100)))
    found = responses.decode(quiet)
    assert [bucket.bucket_id for bucket, _ in found] == list(range(100))
    responses.remember_silent([entry for _, entry in found], quiet, is_all=True)
    assert responses.decode(quiet) == []
    # One bucket has something new, one has another high watermark.
    records = bytes(range(200))
    news = [silent(number) for number in range(98)] + [silent(98, 6), FetchedBucket(99, records=records)]
    found = responses.decode(response(*news))
    assert [bucket.bucket_id for bucket, _ in found] == [98, 99]
    assert found[1][0].records == records
    responses.forget()
    assert len(responses.decode(quiet)) == 100


def test_only_small_entries_are_remembered() -> None:
    responses = FetchResponses()
    body = response(FetchedBucket(0, records=bytes(500)), silent(1))
    responses.remember_silent([entry for _, entry in responses.decode(body)], body, is_all=False)
    assert bucket_ids(responses, body) == [0]


def test_a_response_that_is_no_message_is_refused() -> None:
    body = response(silent(1))
    for damaged in (body[:-1], bytes([0xFF]) * 20, bytes([0x0A, 0x04, 0x12, 0x7F, 0, 0])):
        with pytest.raises(CorruptMessageError):
            FetchResponses().decode(byte_view(damaged))
