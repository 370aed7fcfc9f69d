"""SCRAM-SHA-256 speaks byte for byte as RFC 7677 does, and takes nothing that the RFC does not allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import AuthenticationError
from fluss.protocol.scram import ScramClient, ScramServer
from fluss.protocol.stored_password import StoredPassword, salted_password

from .test_stored_password import PENCIL, SALT

STORED = StoredPassword.parse(PENCIL)
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
# The messages of RFC 7677, section 3.
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _server() -> ScramServer:
    return ScramServer(lambda username: (SALT, 4096), nonce=SERVER_NONCE)


def test_the_client_says_what_the_rfc_says():
    client = ScramClient("user", nonce=CLIENT_NONCE)
    assert client.first() == CLIENT_FIRST
    assert client.salt(SERVER_FIRST) == (SALT, 4096)
    assert client.final(salted_password("pencil", SALT, 4096)) == CLIENT_FINAL
    client.check(SERVER_FINAL)


def test_the_server_says_what_the_rfc_says():
    server = _server()
    assert server.first(CLIENT_FIRST) == SERVER_FIRST
    assert server.username == "user"
    server.final(CLIENT_FINAL)
    assert server.signature(STORED) == SERVER_FINAL


def test_a_proof_of_another_password_is_wrong():
    client, server = ScramClient("user"), _server()
    salt, iterations = client.salt(server.first(client.first()))
    server.final(client.final(salted_password("pencils", salt, iterations)))
    assert server.signature(STORED) is None


def test_a_server_without_the_password_is_found_out():
    client, server = ScramClient("user"), _server()
    client.salt(server.first(client.first()))
    client.final(salted_password("pencil", SALT, 4096))
    for forged in (b"v=" + SERVER_FINAL[3:], SERVER_FINAL, b"", b"e=other-error", b"v=", b"\xff"):
        with pytest.raises(AuthenticationError):
            client.check(forged)


@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C", "ж", "a b"])
def test_any_name_arrives_as_it_is(name):
    server = _server()
    server.first(ScramClient(name).first())
    assert server.username == name


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (b"", "not one of"),
        (b"n,,n=,r=abc", "not one of"),
        (b"n,,n=user,r=", "not one of"),
        (b"n,n=user,r=abc", "not one of"),
        (b"n,,n=us=er,r=abc", "not one of"),
        (b"n,,n=us=2cer,r=abc", "not one of"),
        (b"n,,r=abc,n=user", "not one of"),
        (b"n,,n=user,r=a c", "not one of"),
        (b"n,,n=user,r=abc,", "not one of"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,,m=x,n=user,r=abc", "extension"),
        (b"n,a=other,n=user,r=abc", "acting as another user"),
        (b"n,,n=us\x07er,r=abc", "user name contains"),
        (b"n,,n=\xff,r=abc", "UTF-8"),
        (b"n,,n=" + b"x" * 3000 + b",r=abc", "more than 1024"),
    ],
)
def test_a_first_token_that_is_none_is_refused(token, expected):
    with pytest.raises(AuthenticationError, match=expected) as raised:
        _server().first(token)
    assert raised.value.error_code == 46


def test_what_the_rfc_leaves_to_clients_is_taken():
    for token in (b"y,,n=user,r=abc", b"n,a=user,n=user,r=abc", b"n,,n=user,r=abc,x=more"):
        assert _server().first(token).startswith(b"r=abc" + SERVER_NONCE.encode())


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (b"", "not one of"),
        (CLIENT_FINAL[:-2], "not one of"),
        (CLIENT_FINAL.replace(b",p=", b",q="), "not one of"),
        (CLIENT_FINAL.replace(b"p=dHzb", b"p="), "not one of"),
        (CLIENT_FINAL.replace(b"c=biws", b"c=eSws"), "another login"),
        (CLIENT_FINAL.replace(b"rOprN", b"rOprM"), "another login"),
        (CLIENT_FINAL.replace(b"$k0", b"$k"), "another login"),
    ],
)
def test_a_second_token_that_does_not_belong_to_the_first_is_refused(token, expected):
    server = _server()
    server.first(CLIENT_FIRST)
    with pytest.raises(AuthenticationError, match=expected):
        server.final(token)


@pytest.mark.parametrize(
    ("challenge", "expected"),
    [
        (b"", "not one of"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=QSXCR+Q6sek8bf92,i=4096", "another login"),
        (b"r=other,s=QSXCR+Q6sek8bf92,i=4096", "another login"),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "between 4096"),
        (SERVER_FIRST.replace(b"i=4096", b"i=999999999"), "between 4096"),
        (SERVER_FIRST.replace(b"gQ==", b"gQ="), "not one of"),
        (b"m=x," + SERVER_FIRST, "extension"),
    ],
)
def test_a_client_does_not_follow_every_challenge(challenge, expected):
    client = ScramClient("user", nonce=CLIENT_NONCE)
    with pytest.raises(AuthenticationError, match=expected):
        client.salt(challenge)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_nonsense_is_refused_and_nothing_else(first, second):
    server = _server()
    with pytest.raises(AuthenticationError):
        server.first(first)
    server = _server()
    server.first(CLIENT_FIRST)
    with pytest.raises(AuthenticationError):
        server.final(second)
