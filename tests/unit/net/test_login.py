"""Logging in by either mechanism, with passwords stored either way, and without telling who exists."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fluss.errors import AuthenticationError, FlussError
from fluss.net.login import Guess, Login, PasswordHashing, Success
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, Principal, UserTable, client_exchange, next_request
from fluss.protocol.stored_password import StoredPassword

HASHED = str(StoredPassword.of("pencil", iterations=4096))
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
BOTH = pytest.mark.parametrize("mechanism", MECHANISMS)


class Users:
    """Users that can change between two steps of a login."""

    def __init__(self, passwords: dict[str, str]) -> None:
        self.table = UserTable(passwords, salt_key=b"key")


class CountingHashing(PasswordHashing):
    def __init__(self, *, waiting_max: int = 64) -> None:
        super().__init__(waiting_max=waiting_max)
        self.count = 0

    async def run(self, function):
        self.count += 1
        return await super().run(function)


@pytest.fixture
def hashing():
    hashing = CountingHashing()
    yield hashing
    hashing.close()


async def _log_in(login: Login, credentials: Credentials) -> Success:
    """Have a client and the server's side talk to the end."""
    exchange = client_exchange(credentials)
    request = next(exchange)
    success = None
    while True:
        outcome = login.take(request.protocol, request.token)
        if isinstance(outcome, Guess):
            assert outcome.username == credentials.username
            success = await outcome.check()
            outcome = success.challenge
        request = next_request(exchange, pb.AuthenticateResponse(challenge=outcome))
        if request is None:
            assert success is not None
            return success


@BOTH
@pytest.mark.parametrize("stored", ["pencil", HASHED])
async def test_one_stored_form_serves_both_mechanisms(mechanism, stored, hashing):
    users = Users({"bob": stored})
    login = Login(users, MECHANISMS, hashing)
    success = await _log_in(login, Credentials("bob", "pencil", mechanism))
    assert success.principal == Principal("User", "bob")
    assert success.version == users.table.version_of("bob")
    assert success.version is not None
    for name, password in (("bob", "pencils"), ("carl", "pencil")):
        with pytest.raises(AuthenticationError, match="wrong user name or password") as raised:
            await _log_in(login, Credentials(name, password, mechanism))
        assert raised.value.error_code == 46
    # A failure ends an attempt, not the login.
    await _log_in(login, Credentials("bob", "pencil", mechanism))


@BOTH
@pytest.mark.parametrize("passwords", [{"bob": "pencil"}, {"bob": HASHED}, {"bob": HASHED, "eve": "clear"}])
async def test_a_failure_costs_the_same_for_users_who_exist_and_others(mechanism, passwords, hashing):
    login = Login(Users(passwords), MECHANISMS, hashing)
    costs = set()
    for name in ("bob", "eve", "nobody", "bob", "nobody"):
        before = hashing.count
        with pytest.raises(AuthenticationError):
            await _log_in(login, Credentials(name, "wrong", mechanism))
        costs.add(hashing.count - before)
    assert len(costs) == 1


async def test_a_password_that_was_right_is_not_hashed_again(hashing):
    login = Login(Users({"bob": HASHED}), MECHANISMS, hashing)
    for _ in range(3):
        await _log_in(login, Credentials("bob", "pencil"))
    assert hashing.count == 1


async def test_a_client_hashes_its_password_once(hashing, monkeypatch):
    login = Login(Users({"bob": HASHED}), MECHANISMS, hashing)
    credentials = Credentials("bob", "pencil", "SCRAM-SHA-256")
    await _log_in(login, credentials)
    monkeypatch.setattr("fluss.protocol.sasl.salted_password", lambda *_: pytest.fail("it is known"))
    await _log_in(login, credentials)


async def test_users_that_do_not_exist_have_a_salt_that_stays():
    def salt(users: Users, name: str) -> str:
        challenge = Login(users, MECHANISMS, PasswordHashing()).take("SCRAM-SHA-256", f"n,,n={name},r=abc".encode())
        return challenge.decode().partition(",")[2]

    passwords = {"bob": HASHED, "eve": "clear"}
    before, after = Users(passwords), Users({"bob": HASHED})
    for name in ("bob", "nobody", "eve"):
        assert salt(before, name) == salt(after, name)
        assert salt(before, name).endswith(",i=4096")
    assert salt(before, "nobody") != salt(before, "nobody2")


@BOTH
async def test_a_password_that_changes_during_the_login_is_not_enough(mechanism, hashing):
    users = Users({"bob": "pencil"})
    login = Login(users, MECHANISMS, hashing)
    exchange = client_exchange(Credentials("bob", "pencil", mechanism))
    request = next(exchange)
    outcome = login.take(request.protocol, request.token)
    if isinstance(outcome, bytes):
        request = next_request(exchange, pb.AuthenticateResponse(challenge=outcome))
        outcome = login.take(request.protocol, request.token)
    users.table = UserTable({"bob": "other"})
    with pytest.raises(AuthenticationError):
        await outcome.check()


async def test_only_so_many_wait_for_hashing():
    hashing = PasswordHashing(waiting_max=1)
    release = threading.Event()
    login = Login(Users({"bob": HASHED}), MECHANISMS, hashing)
    guess = login.take("PLAIN", b"\0bob\0pencil")
    try:
        first = asyncio.create_task(hashing.run(release.wait))
        await asyncio.sleep(0)
        with pytest.raises(FlussError, match="try again") as raised:
            await guess.check()
        assert raised.value.error_code == 51
    finally:
        release.set()
        await first
    assert (await guess.check()).principal.name == "bob"
    hashing.close()


def test_a_mechanism_that_is_not_enabled_is_refused():
    login = Login(Users({"bob": HASHED}), ("SCRAM-SHA-256",), PasswordHashing())
    for mechanism in ("PLAIN", "scram-sha-256", "SCRAM-SHA-1", ""):
        with pytest.raises(AuthenticationError, match="SCRAM-SHA-256; log in with that"):
            login.take(mechanism, b"\0bob\0pencil")


def test_a_second_token_without_a_first_one_is_refused():
    login = Login(Users({"bob": HASHED}), MECHANISMS, PasswordHashing())
    with pytest.raises(AuthenticationError):
        login.take("SCRAM-SHA-256", b"c=biws,r=abc,p=" + b"A" * 43 + b"=")
    assert isinstance(login.take("SCRAM-SHA-256", b"n,,n=bob,r=abc"), bytes)
    assert isinstance(login.take("PLAIN", b"\0bob\0pencil"), Guess)
    with pytest.raises(AuthenticationError, match="first token"):
        login.take("SCRAM-SHA-256", b"c=biws,r=abc,p=" + b"A" * 43 + b"=")


def test_nothing_secret_is_shown():
    login = Login(Users({"bob": HASHED, "eve": "s3cret"}), MECHANISMS, PasswordHashing())
    shown = repr([login, login.take("PLAIN", b"\0bob\0pencil"), Success(Principal("User", "bob"), b"v", b"w")])
    shown += repr(UserTable({"bob": HASHED, "eve": "s3cret"}))
    for secret in ("pencil", "s3cret", HASHED[20:30]):
        assert secret not in shown
