"""A stored password is the standard one, can be read back, and is of no use to whoever sees it."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import FlussError
from fluss.protocol.stored_password import StoredPassword, is_stored_form, prepared

# The salt and the password of RFC 7677; the two keys follow from its messages, which are in test_scram.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)


def test_a_password_is_stored_in_the_standard_form():
    assert str(StoredPassword.of("pencil", iterations=4096, salt=SALT)) == PENCIL
    assert StoredPassword.parse(PENCIL) == StoredPassword.of("pencil", iterations=4096, salt=SALT)
    assert is_stored_form(PENCIL)
    assert not is_stored_form("pencil")


def test_the_right_password_matches_and_no_other_does():
    stored = StoredPassword.parse(PENCIL)
    assert stored.matches("pencil")
    assert stored.matches("pen\u00adcil"), "a soft hyphen does not count"
    for wrong in ("pencils", "Pencil", "penci", "pen\x07cil", "\u00ad"):
        assert not stored.matches(wrong)


def test_every_hash_of_a_password_is_another_one():
    first, second = (StoredPassword.of("pencil", iterations=4096) for _ in range(2))
    assert first != second
    assert first.matches("pencil")
    assert second.matches("pencil")


def test_nothing_of_it_is_shown():
    shown = repr(StoredPassword.parse(PENCIL))
    assert shown == "StoredPassword(iterations=4096)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SCRAM-SHA-256$", "hash-password"),
        ("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$short", "hash-password"),
        (PENCIL + ":", "hash-password"),
        (PENCIL.replace("4096", "4095"), "between 4096 and 10000000"),
        (PENCIL.replace("4096", "10000001"), "between 4096 and 10000000"),
        (PENCIL.replace("gQ==", "gQ="), "not base64"),
        (PENCIL.replace("qY=:", "q:"), "not base64"),
        (PENCIL.rpartition(":")[0] + ":AAAA", "32 bytes"),
    ],
)
def test_what_cannot_be_a_hash_is_refused_without_being_repeated(text, expected):
    with pytest.raises(FlussError, match=expected) as raised:
        StoredPassword.parse(text)
    assert "W22Za" not in str(raised.value)


@given(st.text())
@settings(max_examples=200)
def test_any_text_is_prepared_once_and_for_all_or_refused(text):
    try:
        once = prepared(text, "password")
    except FlussError:
        return
    assert prepared(once, "password") == once


@pytest.mark.parametrize(
    ("text", "expected"),
    # The examples of RFC 4013.
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX")],
)
def test_characters_that_mean_the_same_are_the_same(text, expected):
    assert prepared(text, "password") == expected


@pytest.mark.parametrize("text", ["\u0007", "\u06271", "", "\u00ad", "\ud800", "a\u0627b"])
def test_what_cannot_be_prepared_is_refused(text):
    with pytest.raises(FlussError, match="the password"):
        prepared(text, "password")
