"""Both ends of a connection without a socket: worked examples byte by byte, any cut, any answer order, any nonsense.

Everything here is bytes in and events out; the two sessions also talk to each other through random cuts.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import AuthenticationError, CorruptMessageError, ErrorCode, FlussError, UnsupportedVersionError
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol import frame as frames
from fluss.protocol.api import APIS, ApiKey, ServerRole
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import ANONYMOUS, Credentials, Principal, UserTable, plain_token
from fluss.protocol.session import (
    AnswerReady,
    ClientSession,
    ConnectionFailed,
    ErrorReceived,
    RequestReceived,
    ResponseReceived,
    ServerFailureReceived,
    ServerSession,
    StrayResponse,
    TokenReceived,
)
from tests.damage import bit_flips
from tests.fakes.checking_session import CheckingSession

API_VERSIONS_REQUEST = "0000001b 03e8 0000 00000000 0a0a666c7573732d727573741205312e302e30"
API_VERSIONS_SUCCESS = "00000019 00 00000000 0a0708e807100018000a0708f80710001802 1002"
METADATA_REQUEST_EMPTY = "00000008 03f4 0000 00000001"
METADATA_REQUEST_TABLE = "00000010 03f4 0000 00000002 0a060a0164120174"
AUTHENTICATE_REQUEST = "00000018 040e 0000 00000000 0a05504c41494e120700626f62007077"
AUTHENTICATE_SUCCESS = "00000007 00 00000000 0a00"
ERROR_WITH_TEXT = "0000000b 01 00000005 080712026e6f"
ERROR_WITHOUT_TEXT = "00000010 01 00000005 08ffffffffffffffffff01"
SERVER_FAILURE = "00000008 02 082e1203626164"

METADATA = apis.GET_METADATA


def _joined(parts) -> bytes:
    return b"".join(parts)


def _table_request() -> pb.MetadataRequest:
    request = pb.MetadataRequest()
    request.table_path.add(database_name="d", table_name="t")
    return request


def _metadata_server(**options) -> ServerSession:
    return CheckingSession({ApiKey.GET_METADATA: METADATA}, **options)


def _sasl_server() -> ServerSession:
    return _metadata_server(check_credentials=UserTable({"bob": "pw"}))


def _request_bytes(api, message, *, request_id: int = 0) -> bytes:
    return _joined(frames.request_frame(api.key, 0, request_id, api.request.encode(message)))


def _authenticate(protocol: str, token: bytes) -> bytes:
    return _request_bytes(apis.AUTHENTICATE, pb.AuthenticateRequest(protocol=protocol, token=token))


def _error_of(parts) -> tuple[int, str]:
    """Return code and text of an ERROR frame."""
    response_type, _, body = frames.parse_response(memoryview(_joined(parts))[4:])
    assert response_type is frames.ResponseType.ERROR
    error = pb.ErrorResponse.FromString(bytes(body))
    return error.error_code, error.error_message


# Worked examples


def test_requests_are_the_worked_examples():
    client = ClientSession()
    hello = pb.ApiVersionsRequest(client_software_name="fluss-rust", client_software_version="1.0.0")
    sent = [
        client.request(apis.API_VERSIONS, hello),
        client.request(METADATA, pb.MetadataRequest()),
        client.request(METADATA, _table_request()),
    ]
    expected = [API_VERSIONS_REQUEST, METADATA_REQUEST_EMPTY, METADATA_REQUEST_TABLE]
    assert [(number, _joined(parts)) for number, parts in sent] == [
        (number, bytes.fromhex(data)) for number, data in enumerate(expected)
    ]
    token = plain_token(Credentials("bob", "pw"))
    _, parts = ClientSession().request(apis.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=token))
    assert _joined(parts) == bytes.fromhex(AUTHENTICATE_REQUEST)


def test_the_server_reads_the_worked_examples():
    server = _metadata_server()
    events = server.feed(bytes.fromhex(API_VERSIONS_REQUEST + METADATA_REQUEST_EMPTY + METADATA_REQUEST_TABLE))
    assert [type(event) for event in events] == [AnswerReady, RequestReceived, RequestReceived]
    empty, table = events[1:]
    assert (empty.request_id, empty.decode()) == (1, pb.MetadataRequest())
    assert (table.request_id, table.api_version, table.decode()) == (2, 0, _table_request())


def test_the_server_announces_what_it_serves():
    (answer,) = _metadata_server(server_type=ServerRole.TABLET_SERVER).feed(bytes.fromhex(API_VERSIONS_REQUEST))
    response = pb.ApiVersionsResponse.FromString(_joined(answer.parts)[9:])
    assert response.server_type == 2
    assert [entry.api_key for entry in response.api_versions] == [1000, 1012, 1038]
    (answer,) = ServerSession(APIS).feed(bytes.fromhex(API_VERSIONS_REQUEST))
    response = pb.ApiVersionsResponse.FromString(_joined(answer.parts)[9:])
    assert not response.HasField("server_type"), "a port for both roles does not say what it is"
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_versions}
    assert len(ranges) == 65
    assert (ranges[1016], ranges[1017], ranges[1034], ranges[1014]) == ((0, 2), (0, 1), (0, 1), (0, 0))


def test_the_client_reads_the_worked_examples():
    client = ClientSession()
    client.request(apis.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="a", client_software_version="b"))
    (event,) = client.feed(bytes.fromhex(API_VERSIONS_SUCCESS))
    assert isinstance(event, ResponseReceived)
    response = event.api.response.decode(event.body)
    assert client.accept_api_versions(response) is ServerRole.TABLET_SERVER
    assert client.version_of(apis.PUT_KV) == 2
    client = ClientSession()
    client.request(apis.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=b""))
    (event,) = client.feed(bytes.fromhex(AUTHENTICATE_SUCCESS))
    assert event.api.response.decode(event.body) == pb.AuthenticateResponse(challenge=b"")


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [(ERROR_WITH_TEXT, 7, "no"), (ERROR_WITHOUT_TEXT, -1, "unknown server error")],
)
def test_an_error_answers_one_request(data, code, text):
    client = ClientSession()
    for _ in range(6):
        client.request(METADATA, pb.MetadataRequest())
    (event,) = client.feed(bytes.fromhex(data))
    assert isinstance(event, ErrorReceived)
    assert (event.api, event.request_id) == (METADATA, 5)
    assert (event.error.error_code, event.error.message) == (code, text)
    assert client.pending_count == 5


def test_a_server_failure_is_the_last_event():
    client = ClientSession()
    client.request(METADATA, pb.MetadataRequest())
    events = client.feed(bytes.fromhex(SERVER_FAILURE + ERROR_WITH_TEXT))
    assert [type(event) for event in events] == [ServerFailureReceived]
    assert isinstance(events[0].error, AuthenticationError)
    assert events[0].error.message == "bad"
    assert client.feed(bytes.fromhex(ERROR_WITH_TEXT)) == []


def test_the_server_writes_the_worked_examples():
    server = _metadata_server()
    assert _joined(server.error(5, FlussError("no", 7))) == bytes.fromhex(ERROR_WITH_TEXT)
    assert _joined(server.failure(FlussError("bad", 46))) == bytes.fromhex(SERVER_FAILURE)


# The client's end


def test_ids_count_up_within_31_bits_and_skip_those_still_pending():
    client = ClientSession()
    assert [client.request(METADATA, pb.MetadataRequest())[0] for _ in range(3)] == [0, 1, 2]
    client.forget(1)
    client._request_id_next = 0x7FFF_FFFF
    assert [client.request(METADATA, pb.MetadataRequest())[0] for _ in range(3)] == [0x7FFF_FFFF, 1, 3]


def test_answers_may_come_in_any_order():
    client, server = ClientSession(), _metadata_server()
    requests = [server.feed(_joined(client.request(METADATA, pb.MetadataRequest())[1]))[0] for _ in range(5)]
    order = [3, 0, 4, 2, 1]
    answers = b"".join(_joined(server.response(requests[index], pb.MetadataResponse())) for index in order)
    assert [event.request_id for event in client.feed(answers)] == order
    assert client.pending_count == 0


def test_an_answer_that_is_not_expected_is_reported_and_harmless():
    client = ClientSession()
    number, _ = client.request(METADATA, pb.MetadataRequest())
    client.forget(number)
    client.forget(number)
    answer = _joined(frames.success_frame(number, [])) + _joined(frames.success_frame(99, []))
    assert client.feed(answer) == [StrayResponse(number), StrayResponse(99)]


def test_without_a_handshake_every_request_has_its_lowest_version():
    _, parts = ClientSession().request(apis.PUT_KV, bulk_messages.PutKvRequest(-1, 1, 1))
    assert _joined(parts)[6:8] == b"\0\0"


def test_with_a_handshake_requests_have_the_best_common_version_or_are_not_sent():
    client = ClientSession()
    response = pb.ApiVersionsResponse()
    response.api_versions.add(api_key=1016, min_version=0, max_version=1)
    response.api_versions.add(api_key=4711, min_version=0, max_version=9)
    assert client.accept_api_versions(response) is None
    _, parts = client.request(apis.PUT_KV, bulk_messages.PutKvRequest(-1, 1, 1))
    assert _joined(parts)[6:8] == b"\0\1"
    with pytest.raises(UnsupportedVersionError):
        client.request(apis.SCAN_KV, pb.ScanKvRequest())
    assert client.pending_count == 1
    response.server_type = 9
    assert client.accept_api_versions(response) is None


@pytest.mark.parametrize(
    "data",
    ["ffffffff", "00000000", "00000005 07 00000000", "00000003 00 0000"],
)
def test_a_response_that_breaks_the_rules_ends_the_client_session(data):
    client = ClientSession()
    number, _ = client.request(METADATA, pb.MetadataRequest())
    good = _joined(frames.success_frame(number, []))
    events = client.feed(good + bytes.fromhex(data))
    assert [type(event) for event in events] == [ResponseReceived, ConnectionFailed]
    assert isinstance(events[1].error, CorruptMessageError)
    assert client.feed(good) == []


def test_an_undecodable_error_is_still_an_error():
    client = ClientSession()
    client.request(METADATA, pb.MetadataRequest())
    (event,) = client.feed(_joined(frames.error_frame(0, b"\xff")))
    assert isinstance(event, ErrorReceived)
    assert isinstance(event.error, CorruptMessageError)


def test_a_response_above_the_limit_ends_the_session():
    client = ClientSession(frame_bytes_max=100)
    client.request(METADATA, pb.MetadataRequest())
    (event,) = client.feed(_joined(frames.success_frame(0, [bytes(100)])))
    assert isinstance(event, ConnectionFailed)


# The server's end


def test_an_api_that_is_not_served_is_refused_with_code_2():
    server = _metadata_server()
    for key in (1014, 999, -1, 1065, 0):
        (event,) = server.feed(_joined(frames.request_frame(key, 0, 3, [])))
        assert isinstance(event, AnswerReady)
        code, text = _error_of(event.parts)
        assert code == 2
        assert str(key) in text
    assert isinstance(server.feed(bytes.fromhex(METADATA_REQUEST_EMPTY))[0], RequestReceived)


def test_a_body_that_cannot_be_decoded_is_code_3_and_the_session_goes_on():
    server = _metadata_server()
    (event,) = server.feed(_joined(frames.request_frame(ApiKey.GET_METADATA, 0, 3, [b"\xff"])))
    with pytest.raises(CorruptMessageError) as raised:
        event.decode()
    assert _error_of(server.error(3, raised.value))[0] == 3
    for key in (ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE):
        (event,) = server.feed(_joined(frames.request_frame(key, 0, 4, [])))
        assert _error_of(event.parts)[0] == 3
    assert isinstance(server.feed(bytes.fromhex(METADATA_REQUEST_EMPTY))[0], RequestReceived)


@pytest.mark.parametrize("data", ["ffffffff", "80000000", "00000007 03f4 0000 000000", "7fffffff", "06400000"])
def test_a_bad_length_is_answered_with_a_server_failure(data):
    server = _metadata_server()
    events = server.feed(bytes.fromhex(METADATA_REQUEST_EMPTY + data + METADATA_REQUEST_EMPTY))
    assert [type(event) for event in events] == [RequestReceived, ConnectionFailed]
    response_type, request_id, body = frames.parse_response(memoryview(_joined(events[1].parts))[4:])
    assert (response_type, request_id) == (frames.ResponseType.SERVER_FAILURE, None)
    error = pb.ErrorResponse.FromString(bytes(body))
    assert error.error_code == -1
    assert len(error.error_message) > 10
    assert server.feed(bytes.fromhex(METADATA_REQUEST_EMPTY)) == []


def test_the_version_of_a_request_is_not_checked():
    server = ServerSession(APIS)
    (event,) = server.feed(_joined(frames.request_frame(ApiKey.PUT_KV, 77, 0, [])))
    assert isinstance(event, RequestReceived)
    assert event.api_version == 77


def test_codes_of_this_side_alone_are_not_sent():
    assert _error_of(_metadata_server().error(0, FlussError("local")))[0] == ErrorCode.UNKNOWN_SERVER_ERROR


def test_error_texts_are_cut_and_always_encodable():
    _, text = _error_of(_metadata_server().error(0, FlussError("x" * 100_000)))
    assert len(text) == 4096
    _, text = _error_of(_metadata_server().error(0, FlussError("a\ud800b")))
    assert text == "a?b"


# Authentication


def test_on_a_plaintext_listener_everybody_is_anonymous():
    server = _metadata_server()
    assert server.principal == ANONYMOUS
    (event,) = server.feed(_authenticate("PlainText", b""))
    assert event.error is None
    (event,) = server.feed(_authenticate("PLAIN", b"\0bob\0pw"))
    assert _error_of(event.parts)[0] == 46
    assert isinstance(server.feed(bytes.fromhex(METADATA_REQUEST_EMPTY))[0], RequestReceived)


def test_before_authentication_only_the_handshake_is_answered():
    server = _sasl_server()
    assert server.principal is None
    events = server.feed(
        bytes.fromhex(API_VERSIONS_REQUEST + METADATA_REQUEST_EMPTY) + _joined(frames.request_frame(4711, 0, 9, []))
    )
    assert all(isinstance(event, AnswerReady) for event in events)
    assert events[0].error is None
    assert [_error_of(event.parts)[0] for event in events[1:]] == [46, 46]


def test_after_authentication_everything_is_answered_even_in_the_same_packet():
    server = _sasl_server()
    events = server.feed(bytes.fromhex(AUTHENTICATE_REQUEST + METADATA_REQUEST_EMPTY))
    assert [type(event) for event in events] == [AnswerReady, RequestReceived]
    assert _joined(events[0].parts) == bytes.fromhex("00000005 00 00000000")
    assert server.principal == Principal("User", "bob")


def test_before_authentication_frames_are_small_and_afterwards_as_large_as_allowed():
    large = _joined(frames.request_frame(ApiKey.GET_METADATA, 0, 1, [bytes(1_000_000)]))
    server = _sasl_server()
    (event,) = server.feed(large[:100])
    assert isinstance(event, ConnectionFailed)
    assert "more than the limit of 131072" in event.error.message
    server = _sasl_server()
    server.feed(bytes.fromhex(AUTHENTICATE_REQUEST))
    assert server.feed(large[:500_000]) == []
    assert server.partial_frame_bytes == 500_000 - frames.LENGTH_BYTES
    (event,) = server.feed(large[500_000:])
    assert isinstance(event, RequestReceived)
    assert server.partial_frame_bytes == 0


def test_logging_in_again_is_checked_like_the_first_time():
    server = _sasl_server()
    server.feed(bytes.fromhex(AUTHENTICATE_REQUEST))
    (event,) = server.feed(bytes.fromhex(AUTHENTICATE_REQUEST))
    assert event.error is None
    for token in (b"", b"\0eve\0x", b"\0bob\0wrong"):
        (event,) = server.feed(_authenticate("PLAIN", token))
        assert _error_of(event.parts)[0] == 46
    assert server.principal == Principal("User", "bob")


def test_nothing_behind_a_token_is_looked_at_before_its_outcome_is_known():
    server = ServerSession({ApiKey.GET_METADATA: METADATA}, needs_login=True)
    # Two guesses, a request, and what is no frame at all: one packet.
    stream = bytes.fromhex(AUTHENTICATE_REQUEST * 2 + METADATA_REQUEST_EMPTY) + bytes(100)
    (first,) = server.feed(stream)
    assert isinstance(first, TokenReceived)
    assert (first.mechanism, first.token) == ("PLAIN", b"\0bob\0pw")
    assert "pw" not in repr(first)
    assert server.feed(bytes.fromhex(METADATA_REQUEST_EMPTY)) == []
    answer, second = server.authentication_failed(first.request_id, AuthenticationError("no"))
    assert _error_of(answer.parts)[0] == 46
    assert isinstance(second, TokenReceived)
    answer, request, failure = server.authenticated(second.request_id, Principal("User", "bob"))
    assert answer.error is None
    assert isinstance(request, RequestReceived)
    assert isinstance(failure, ConnectionFailed)


def test_a_challenge_is_answered_and_the_attempt_goes_on():
    server = ServerSession({ApiKey.GET_METADATA: METADATA}, needs_login=True)
    (token,) = server.feed(_authenticate("SCRAM-SHA-256", b"first"))
    (answer,) = server.challenge(token.request_id, b"salt")
    body = frames.parse_response(memoryview(_joined(answer.parts))[4:]).body
    assert apis.AUTHENTICATE.response.decode(body) == pb.AuthenticateResponse(challenge=b"salt")
    assert server.principal is None
    (token,) = server.feed(_authenticate("SCRAM-SHA-256", b"final"))
    assert token.token == b"final"
    (answer,) = server.authenticated(token.request_id, Principal("User", "bob"), b"signature")
    assert server.principal == Principal("User", "bob")


@pytest.mark.parametrize(
    ("protocol", "token"),
    [("PLAIN", b"\0bob\0wrong"), ("PLAIN", b""), ("plain", b"\0bob\0pw"), ("SCRAM", b"x"), ("PLAINTEXT", b"")],
)
def test_a_failed_attempt_is_code_46_and_may_be_repeated(protocol, token):
    server = _sasl_server()
    (event,) = server.feed(_authenticate(protocol, token))
    code, text = _error_of(event.parts)
    assert code == 46
    assert "wrong\0" not in text
    assert server.principal is None
    (event,) = server.feed(bytes.fromhex(METADATA_REQUEST_EMPTY))
    assert _error_of(event.parts)[0] == 46
    server.feed(bytes.fromhex(AUTHENTICATE_REQUEST))
    assert server.principal is not None


def test_a_temporary_failure_keeps_its_code():
    def unavailable(username: str, password: str) -> bool:
        raise FlussError("try later", ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION)

    (event,) = _metadata_server(check_credentials=unavailable).feed(bytes.fromhex(AUTHENTICATE_REQUEST))
    assert _error_of(event.parts) == (51, "try later")


# Any cut, any nonsense


def _conversation() -> bytes:
    return bytes.fromhex(
        API_VERSIONS_REQUEST + AUTHENTICATE_REQUEST + METADATA_REQUEST_EMPTY + METADATA_REQUEST_TABLE
    ) + (_joined(frames.request_frame(999, 0, 7, [b"abc"])))


def _summary(events) -> list[tuple]:
    return [
        (type(event).__name__, _joined(event.parts) if isinstance(event, AnswerReady) else bytes(event.body))
        for event in events
    ]


def test_a_conversation_one_byte_at_a_time_is_the_same_conversation():
    whole = _summary(_sasl_server().feed(_conversation()))
    server = _sasl_server()
    assert _summary(event for byte in _conversation() for event in server.feed(bytes([byte]))) == whole
    assert len(whole) == 5


@given(st.lists(st.integers(0, len(_conversation())), max_size=8))
def test_a_conversation_cut_anywhere_is_the_same_conversation(places):
    cuts = [0, *sorted(places), len(_conversation())]
    server = _sasl_server()
    events = [event for start, end in itertools.pairwise(cuts) for event in server.feed(_conversation()[start:end])]
    assert _summary(events) == _summary(_sasl_server().feed(_conversation()))


@given(st.lists(st.binary(max_size=3000), max_size=4), st.data())
def test_two_sessions_understand_each_other_through_any_cut(payloads, data):
    client, server = ClientSession(), ServerSession(APIS)
    stream = b"".join(
        _joined(
            client.request(
                apis.PRODUCE_LOG, bulk_messages.ProduceLogRequest(1, 2, 3, [bulk_messages.BucketRecords(0, p)])
            )[1]
        )
        for p in payloads
    )
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5))), len(stream)]
    requests = [event for a, b in itertools.pairwise(cuts) for event in server.feed(stream[a:b])]
    assert [bytes(request.decode().buckets[0].records_view) for request in requests] == payloads
    answers = b"".join(_joined(server.response(request, pb.ProduceLogResponse())) for request in reversed(requests))
    cut = data.draw(st.integers(0, len(answers)))
    received = client.feed(answers[:cut]) + client.feed(answers[cut:])
    assert [event.request_id for event in received] == [request.request_id for request in reversed(requests)]


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_make_a_session_raise(chunks):
    for session in (ClientSession(), ServerSession(APIS), _sasl_server()):
        for chunk in chunks:
            for event in session.feed(chunk):
                if isinstance(event, RequestReceived):
                    try:
                        event.decode()
                    except CorruptMessageError as error:
                        session.error(event.request_id, error)


def test_every_flipped_bit_of_a_conversation_gives_events_and_no_exception():
    conversation = _conversation()
    for damaged in bit_flips(conversation):
        _sasl_server().feed(damaged)
