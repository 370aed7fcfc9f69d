"""Authentication says who a client is, tells unknown clients nothing, and never shows a secret.

Tokens are checked byte by byte against the layout; reprs, texts and tracebacks are searched for the password.
"""

from __future__ import annotations

import itertools
import random
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import AuthenticationError, FlussError
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, Principal, UserTable, check_plain_token, client_exchange, plain_token
from fluss.retry import LOGINS

USERS = UserTable({"bob": "pw", "eve": "s3cret-é"})


def test_a_token_is_nul_user_nul_password():
    assert plain_token(Credentials("bob", "pw")) == b"\0bob\0pw"
    assert plain_token(Credentials("eve", "s3cret-é")) == b"\0eve\0s3cret-\xc3\xa9"


@pytest.mark.parametrize("token", [b"\0bob\0pw", b"bob\0bob\0pw"])
def test_the_right_token_proves_the_user(token):
    principal = check_plain_token(token, USERS)
    assert principal == Principal("User", "bob")
    assert str(principal) == "User:bob"


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"", "1 parts"),
        (b"bob\0pw", "2 parts"),
        (b"\0bob\0pw\0", "4 parts"),
        (b"\0\0pw", "must not be empty"),
        (b"\0bob\0", "must not be empty"),
        (b"eve\0bob\0pw", "acting as another user"),
        (b"\0bob\0pwx", "wrong user name or password"),
        (b"\0bob\0p", "wrong user name or password"),
        (b"\0carl\0pw", "wrong user name or password"),
        (b"\0bob\0\xff", "UTF-8"),
        (b"\0bob\0" + b"x" * 70_000, "more than 65536"),
    ],
)
def test_everything_else_is_refused_with_code_46(token, text):
    with pytest.raises(AuthenticationError, match=text) as raised:
        check_plain_token(token, USERS)
    assert raised.value.error_code == 46


def test_an_unknown_user_and_a_wrong_password_cannot_be_told_apart():
    texts = set()
    for token in (b"\0nobody\0pw", b"\0bob\0wrong"):
        with pytest.raises(AuthenticationError) as raised:
            check_plain_token(token, USERS)
        texts.add(str(raised.value))
    assert len(texts) == 1


@given(st.binary(max_size=40))
def test_random_tokens_are_refused(token):
    with pytest.raises(AuthenticationError):
        check_plain_token(token, USERS)


def test_secrets_are_neither_in_reprs_nor_in_errors():
    assert "pw" not in repr(Credentials("bob", "pw"))
    assert "s3cret" not in repr(USERS)
    secret = "".join(("hunter", "2"))
    for token in (f"\0bob\0{secret}", f"\0bob\0{secret}\0", f"{secret}\0bob\0{secret}"):
        with pytest.raises(AuthenticationError) as refused:
            check_plain_token(token.encode() + b"\xff", USERS)
        with pytest.raises(AuthenticationError) as wrong:
            check_plain_token(token.encode(), USERS)
        with pytest.raises(FlussError) as unencodable:
            Credentials("bob", secret + "\ud800")
        for raised in (refused, wrong, unencodable):
            assert secret not in "".join(traceback.format_exception(raised.value))
            assert raised.value.__context__ is None


@pytest.mark.parametrize(("username", "password"), [("", "pw"), ("bob", ""), ("b\0b", "pw"), ("bob", "p\0w")])
def test_credentials_that_no_token_can_carry_are_refused_at_once(username, password):
    with pytest.raises(FlussError):
        Credentials(username, password)


def test_a_checker_may_say_that_it_does_not_know_right_now():
    def unavailable(username: str, password: str) -> bool:
        raise FlussError("the directory is down", 51)

    with pytest.raises(FlussError) as raised:
        check_plain_token(b"\0bob\0pw", unavailable)
    assert raised.value.error_code == 51


@pytest.mark.parametrize("answer", [pb.AuthenticateResponse(), pb.AuthenticateResponse(challenge=b"")])
def test_an_absent_or_empty_challenge_ends_the_exchange(answer):
    exchange = client_exchange(Credentials("bob", "pw"))
    assert next(exchange) == pb.AuthenticateRequest(protocol="PLAIN", token=b"\0bob\0pw")
    with pytest.raises(StopIteration):
        exchange.send(answer)


def test_another_challenge_is_answered_once():
    exchange = client_exchange(Credentials("bob", "pw"))
    next(exchange)
    challenge = pb.AuthenticateResponse(challenge=b"more?")
    assert exchange.send(challenge) == pb.AuthenticateRequest(protocol="PLAIN", token=b"more?")
    with pytest.raises(StopIteration):
        exchange.send(challenge)


def test_pauses_double_from_100_ms_to_5_s_with_some_jitter():
    delays = list(itertools.islice(LOGINS.pauses_s(random.Random(1)), 12))
    for delay, planned in zip(delays, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * 6], strict=True):
        assert planned * 0.8 <= delay <= planned * 1.2
    assert len(set(delays)) == len(delays)
