"""One connection as a state machine without I/O: bytes go in, events and bytes come out.

    ClientSession                                     ServerSession
      request(api, message)  -> id, parts     ==>       RequestReceived      to be decoded, carried out and answered
      ResponseReceived    the body of an answer  <==    response(...)        -> parts
      ErrorReceived       one request failed     <==    error(...)           -> parts
      ServerFailureReceived  the last word       <==    ConnectionFailed     parts to send before closing
      StrayResponse       its request is forgotten      AnswerReady          the session answered by itself
      ConnectionFailed    the server broke the rules    TokenReceived        to be checked

Nothing a peer sends raises an exception. What happens depends on the state:

    state            ApiVersions    Authenticate              any other request       bytes that are no frame
    AUTHENTICATING   answered       TokenReceived, CHECKING   refused (code 46)       last word, then FINISHED
    CHECKING         bytes are kept, and not looked at before the token was checked
    OPEN             answered       TokenReceived, CHECKING   RequestReceived, or     last word, then FINISHED
                                    where users log in        refused (code 2)
    FINISHED         bytes are ignored

A server's session starts in AUTHENTICATING where the listener asks for credentials, and takes only small frames until
it is OPEN. All others start in OPEN. In CHECKING the session waits to be told the outcome (``challenge``,
``authenticated``, ``authentication_failed``), and then goes on with what has arrived meanwhile: so nothing that a
client sends behind a guess tells anything about it, and a guess is checked when the connection wants to.

A client's session is FINISHED by a ServerFailureReceived, too. Both take bytes like asyncio's BufferedProtocol:
``get_buffer()``, then ``buffer_updated(n)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from fluss.buffers import BytesLike, byte_view
from fluss.errors import (
    AuthenticationError,
    CorruptMessageError,
    ErrorCode,
    FlussError,
    HttpReceivedError,
    UnsupportedVersionError,
    error_for_code,
)
from fluss.protocol import api as apis
from fluss.protocol import frame as frames
from fluss.protocol import sasl
from fluss.protocol.api import Api, ApiKey, ServerRole, VersionRange
from fluss.protocol.codec import MESSAGE_BYTES_MAX, MessageCodec, Parts
from fluss.protocol.http_answer import http_answer
from fluss.protocol.messages import fluss_pb2 as pb

RequestT = TypeVar("RequestT")

_REQUEST_ID_MASK = 0x7FFF_FFFF
# What a client may send before it has authenticated; twice the largest token.
_UNAUTHENTICATED_FRAME_BYTES_MAX = 128 * 1024
_ERROR_TEXT_CHARS_MAX = 4096
_ERROR_RESPONSE = MessageCodec(pb.ErrorResponse, bytes_max=MESSAGE_BYTES_MAX)


class SessionState(Enum):
    """What a session takes next; the table is in the docstring of this module."""

    AUTHENTICATING = auto()
    CHECKING = auto()
    OPEN = auto()
    FINISHED = auto()


@dataclass(slots=True)
class RequestReceived:
    """A request to be carried out. Its body is still encoded: see ``decode``."""

    api: Api[Any, Any]
    api_version: int
    request_id: int
    body: memoryview
    # When it arrived, and how large it was then: the connection sets them.
    received_at: float = 0.0
    received_bytes: int = 0

    def decode(self) -> Any:
        """Return the request message, or raise CorruptMessageError."""
        return self.api.request.decode(self.body)


@dataclass(slots=True)
class AnswerReady:
    """The session has answered a request itself; ``error`` says why it was refused, if it was."""

    parts: Parts
    error: FlussError | None = None


@dataclass(slots=True)
class TokenReceived:
    """A step of logging in; the session waits for its outcome."""

    request_id: int
    mechanism: str
    token: bytes = field(repr=False)


@dataclass(slots=True)
class ConnectionFailed:
    """The byte stream cannot be understood any further: send ``parts``, if any, and close."""

    error: CorruptMessageError
    parts: Parts


@dataclass(slots=True)
class ResponseReceived:
    """The answer to a request, still encoded."""

    api: Api[Any, Any]
    request_id: int
    body: memoryview


@dataclass(slots=True)
class ErrorReceived:
    """The server refused one request."""

    api: Api[Any, Any]
    request_id: int
    error: FlussError


@dataclass(slots=True)
class ServerFailureReceived:
    """The server gave up the connection; every request without an answer has failed with this error."""

    error: FlussError


@dataclass(slots=True)
class StrayResponse:
    """An answer that is not expected: its request was given up, or never sent."""

    request_id: int


ClientEvent: TypeAlias = ResponseReceived | ErrorReceived | ServerFailureReceived | StrayResponse | ConnectionFailed
ServerEvent: TypeAlias = RequestReceived | AnswerReady | TokenReceived | ConnectionFailed


class ClientSession:
    """The client's end: numbers requests, picks their versions, and matches answers by number.

    Without ``accept_api_versions`` every request is sent in its lowest version, as clients without a handshake do.
    """

    def __init__(
        self, *, frame_bytes_max: int = frames.FRAME_BYTES_MAX, first_frame_bytes_max: int | None = None
    ) -> None:
        """Before versions are agreed on, frames have at most ``first_frame_bytes_max`` bytes, if it is given."""
        self._frame_bytes_max = frame_bytes_max
        self._reader = frames.FrameReader(
            frame_bytes_max=frame_bytes_max if first_frame_bytes_max is None else first_frame_bytes_max,
            fields_bytes_min=frames.RESPONSE_FIELDS_BYTES_MIN,
        )
        self._pending: dict[int, Api[Any, Any]] = {}
        self._request_id_next = 0
        self._server_versions: dict[int, VersionRange] | None = None
        self._state = SessionState.OPEN

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def accept_api_versions(self, response: pb.ApiVersionsResponse) -> ServerRole | None:
        """Remember what the server speaks; return what it says to be, or None if it does not say."""
        self._reader.frame_bytes_max = self._frame_bytes_max
        self._server_versions = {
            entry.api_key: VersionRange(entry.min_version, entry.max_version) for entry in response.api_versions
        }
        if not response.HasField("server_type"):
            return None
        try:
            return ServerRole(response.server_type)
        except ValueError:
            return None

    def version_of(self, api: Api[Any, Any]) -> int:
        """Return the version in which requests of this API are sent, or raise UnsupportedVersionError."""
        if self._server_versions is None:
            return api.versions.lowest
        return apis.negotiate(api, self._server_versions.get(api.key))

    def request(self, api: Api[RequestT, Any], message: RequestT) -> tuple[int, Parts]:
        """Number and encode a request; from now on its answer is expected."""
        parts = api.request.encode(message)
        version = self.version_of(api)
        request_id = self._request_id_next
        while request_id in self._pending:
            request_id = request_id + 1 & _REQUEST_ID_MASK
        framed = frames.request_frame(api.key, version, request_id, parts)
        self._request_id_next = request_id + 1 & _REQUEST_ID_MASK
        self._pending[request_id] = api
        return request_id, framed

    def forget(self, request_id: int) -> None:
        """Stop expecting an answer; a late one becomes a StrayResponse."""
        self._pending.pop(request_id, None)

    def get_buffer(self) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, byte_count: int) -> list[ClientEvent]:
        return self._events(self._reader.iter_updated(byte_count))

    def feed(self, data: BytesLike) -> list[ClientEvent]:
        return self._events(self._reader.iter_fed(data))

    def _events(self, received: Iterable[memoryview]) -> list[ClientEvent]:
        events: list[ClientEvent] = []
        if self._state is SessionState.FINISHED:
            return events
        for content in received:
            event = self._event(content)
            events.append(event)
            if isinstance(event, ConnectionFailed | ServerFailureReceived):
                self._state = SessionState.FINISHED
                return events
        if self._reader.failure is not None:
            events.append(ConnectionFailed(self._reader.failure, []))
            self._state = SessionState.FINISHED
        return events

    def _event(self, content: memoryview) -> ClientEvent:
        try:
            response_type, request_id, body = frames.parse_response(content)
        except CorruptMessageError as error:
            return ConnectionFailed(error, [])
        if request_id is None:
            return ServerFailureReceived(_received_error(body))
        api = self._pending.pop(request_id, None)
        if api is None:
            return StrayResponse(request_id)
        if response_type is frames.ResponseType.ERROR:
            return ErrorReceived(api, request_id, _received_error(body))
        return ResponseReceived(api, request_id, body)


class ServerSession:
    """The server's end: checks what arrives before a handler sees it, and answers ApiVersions and Authenticate itself.

    ``served`` are the APIs that have handlers; ApiVersions and Authenticate need not be among them.
    ``server_type`` is None on an endpoint that serves both roles. Where users have to log in, the connection has to
    authenticate, and may send only small frames until then; elsewhere it is anonymous. ``http_page`` is told to a
    client that speaks HTTP.
    """

    def __init__(
        self,
        served: Mapping[int, Api[Any, Any]],
        *,
        server_type: ServerRole | None = None,
        needs_login: bool = False,
        frame_bytes_max: int = frames.REQUEST_FRAME_BYTES_MAX,
        http_page: str = "",
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._http_page = http_page
        first_bytes_max = frame_bytes_max
        self._state = SessionState.OPEN
        if needs_login:
            first_bytes_max = min(frame_bytes_max, _UNAUTHENTICATED_FRAME_BYTES_MAX)
            self._state = SessionState.AUTHENTICATING
        self._reader = frames.FrameReader(
            frame_bytes_max=first_bytes_max,
            fields_bytes_min=frames.REQUEST_FIELDS_BYTES,
            is_writable=True,
            is_trusted=False,
        )
        self._served = served
        self._server_type = server_type
        self._needs_login = needs_login
        self._principal = None if needs_login else sasl.ANONYMOUS

    @property
    def principal(self) -> sasl.Principal | None:
        """Who the client is, or None as long as it has not authenticated."""
        return self._principal

    def identify(self, principal: sasl.Principal) -> None:
        """Say who the client is, before it has sent anything, where it is known without credentials."""
        assert not self._needs_login, "where there are users, clients log in"
        self._principal = principal

    @property
    def partial_frame_bytes(self) -> int:
        """What is held of a large request that is not whole yet."""
        return self._reader.partial_bytes

    @property
    def is_between_frames(self) -> bool:
        """Whether no request has arrived in part."""
        return self._reader.is_between_frames

    def release(self) -> None:
        """Give the memory for received bytes back: the connection is gone, or nothing is arriving on it."""
        self._reader.release()

    def response(self, request: RequestReceived, message: Any) -> Parts:
        """Encode the answer to a request."""
        return frames.success_frame(request.request_id, request.api.response.encode(message))

    def error(self, request_id: int, error: FlussError) -> Parts:
        """Encode the refusal of a request."""
        return error_parts(request_id, error)

    def failure(self, error: FlussError) -> Parts:
        """Encode the last word on this connection."""
        return failure_parts(error)

    def get_buffer(self) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, byte_count: int) -> list[ServerEvent]:
        if self._state is SessionState.CHECKING:
            self._reader.keep(byte_count)
            return []
        return self._events(self._reader.iter_updated(byte_count))

    def feed(self, data: BytesLike) -> list[ServerEvent]:
        """Take bytes that already lie elsewhere, at the price of a copy; no more than fit while a token is checked."""
        events: list[ServerEvent] = []
        view = byte_view(data)
        while len(view) > 0 and self._state is not SessionState.FINISHED:
            buffer = self.get_buffer()
            assert len(buffer) > 0, "no room for more before the token was checked"
            byte_count = min(len(buffer), len(view))
            buffer[:byte_count] = view[:byte_count]
            events += self.buffer_updated(byte_count)
            view = view[byte_count:]
        return events

    # The outcome of a token. Each returns the answer, and what follows from the bytes that came behind the token.

    def challenge(self, request_id: int, challenge: bytes) -> list[ServerEvent]:
        """The attempt goes on with the client's next token."""
        return self._checked(AnswerReady(_authenticate_answer(request_id, challenge)))

    def authenticated(self, request_id: int, principal: sasl.Principal, challenge: bytes = b"") -> list[ServerEvent]:
        """The client is who it says."""
        assert self._principal in (None, principal), "a session has one user"
        self._principal = principal
        self._reader.frame_bytes_max = self._frame_bytes_max
        return self._checked(AnswerReady(_authenticate_answer(request_id, challenge)))

    def authentication_failed(self, request_id: int, error: FlussError) -> list[ServerEvent]:
        """The attempt has failed. Who the client was before, it still is."""
        return self._checked(AnswerReady(self.error(request_id, error), error))

    def _checked(self, answer: AnswerReady) -> list[ServerEvent]:
        assert self._state is SessionState.CHECKING, "a token has one outcome"
        self._state = SessionState.AUTHENTICATING if self._principal is None else SessionState.OPEN
        return [answer, *self._events(self._reader.iter_updated(0))]

    def _events(self, received: Iterable[memoryview]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        if self._state is SessionState.FINISHED:
            return events
        for content in received:
            events.append(self._event(frames.parse_request(content)))
            if self._state is SessionState.CHECKING:
                # What comes behind the token is not even cut into frames.
                return events
        if self._reader.failure is not None:
            # Not the code of a corrupt message: clients repeat such requests, and this one would fail forever.
            last_word = FlussError(self._reader.failure.message, ErrorCode.UNKNOWN_SERVER_ERROR)
            is_http = isinstance(self._reader.failure, HttpReceivedError)
            parts = http_answer(self._http_page) if is_http else self.failure(last_word)
            events.append(ConnectionFailed(self._reader.failure, parts))
            self._state = SessionState.FINISHED
        return events

    def _event(self, request: frames.RequestFrame) -> ServerEvent:
        api_key, api_version, request_id, body = request
        try:
            if api_key == ApiKey.API_VERSIONS:
                apis.API_VERSIONS.request.decode(body)
                return AnswerReady(frames.success_frame(request_id, self._api_versions))
            if api_key == ApiKey.AUTHENTICATE:
                return self._authenticate(request_id, body)
            if self._state is SessionState.AUTHENTICATING:
                raise AuthenticationError("this listener requires authentication; connect with SASL credentials")
            api = self._served.get(api_key)
            if api is None:
                raise UnsupportedVersionError(f"the API key {api_key} is not served here")
        except FlussError as error:
            return AnswerReady(self.error(request_id, error), error)
        return RequestReceived(api, api_version, request_id, body)

    @cached_property
    def _api_versions(self) -> Parts:
        """The answer to ApiVersions, encoded once: it is long, and asked for in a few bytes."""
        response = pb.ApiVersionsResponse()
        if self._server_type is not None:
            response.server_type = self._server_type
        for key in sorted(self._served.keys() | apis.UNAUTHENTICATED_APIS):
            versions = apis.APIS[key].versions
            response.api_versions.add(api_key=key, min_version=versions.lowest, max_version=versions.highest)
        return apis.API_VERSIONS.response.encode(response)

    def _authenticate(self, request_id: int, body: memoryview) -> ServerEvent:
        request = apis.AUTHENTICATE.request.decode(body)
        if self._needs_login:
            self._state = SessionState.CHECKING
            return TokenReceived(request_id, request.protocol, bytes(request.token))
        if request.protocol.upper() != sasl.PLAINTEXT_PROTOCOL:
            raise AuthenticationError(
                f"this listener takes no credentials; connect with the security protocol {sasl.PLAINTEXT_PROTOCOL}"
            )
        return AnswerReady(_authenticate_answer(request_id))


def _authenticate_answer(request_id: int, challenge: bytes = b"") -> Parts:
    # Clients of PLAIN take any challenge that is there for a question.
    response = pb.AuthenticateResponse(challenge=challenge) if challenge else pb.AuthenticateResponse()
    return frames.success_frame(request_id, apis.AUTHENTICATE.response.encode(response))


def error_parts(request_id: int, error: FlussError) -> Parts:
    """Encode the refusal of a request, also on a connection that never had a session."""
    return frames.error_frame(request_id, _error_response(error))


def failure_parts(error: FlussError) -> Parts:
    """Encode the last word on a connection, also on one that never had a session."""
    return frames.failure_frame(_error_response(error))


def _received_error(body: memoryview) -> FlussError:
    try:
        response = _ERROR_RESPONSE.decode(body)
    except CorruptMessageError as error:
        return error
    return error_for_code(response.error_code, response.error_message)


def _error_response(error: FlussError) -> bytes:
    # The code for errors that were found on this side has no meaning on the other.
    is_local = error.error_code == ErrorCode.CLIENT_ERROR
    code = ErrorCode.UNKNOWN_SERVER_ERROR if is_local else error.error_code
    text = error.public_message[:_ERROR_TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
    return pb.ErrorResponse(error_code=code, error_message=text).SerializeToString()
