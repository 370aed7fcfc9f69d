"""A server's session whose tokens are checked at once, as a connection does when nobody has to wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluss.buffers import BytesLike
from fluss.errors import FlussError
from fluss.protocol.api import Api
from fluss.protocol.sasl import CredentialsChecker, Principal, parse_plain_token, wrong_login
from fluss.protocol.session import ServerEvent, ServerSession, TokenReceived


class CheckingSession(ServerSession):
    """Events of ``feed`` are what a connection would make of them: no tokens, only their outcomes."""

    def __init__(
        self,
        served: Mapping[int, Api[Any, Any]],
        *,
        check_credentials: CredentialsChecker | None = None,
        **options: Any,
    ) -> None:
        super().__init__(served, needs_login=check_credentials is not None, **options)
        self._check_credentials = check_credentials

    def feed(self, data: BytesLike) -> list[ServerEvent]:
        events = super().feed(data)
        while events and isinstance(events[-1], TokenReceived):
            events += self._outcome(events.pop())
        return events

    def _outcome(self, token: Any) -> list[ServerEvent]:
        assert self._check_credentials is not None
        try:
            username, password = parse_plain_token(token.token)
            if token.mechanism != "PLAIN" or not self._check_credentials(username, password):
                raise wrong_login()
        except FlussError as error:
            return self.authentication_failed(token.request_id, error)
        return self.authenticated(token.request_id, Principal("User", username))
