"""A statement taken apart: quotes, comments and places, and the texts that are put into statements.

Small statements by hand, and random texts that must come back as they were.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FlussError
from fluss.filter.lexer import Kind, quoted_name, quoted_string
from fluss.spark.sql.runner import with_spark_names
from fluss.spark.sql.tokens import statement_tokens


def pieces(text: str) -> list[tuple[Kind, str]]:
    tokens = statement_tokens(text)
    assert tokens[-1].kind is Kind.END
    return [(token.kind, token.value) for token in tokens[:-1]]


def test_words_names_strings_numbers_and_symbols() -> None:
    assert pieces("SELECT `a b`, 'x', 1.5e3 FROM t1") == [
        (Kind.WORD, "SELECT"),
        (Kind.QUOTED, "a b"),
        (Kind.SYMBOL, ","),
        (Kind.STRING, "x"),
        (Kind.SYMBOL, ","),
        (Kind.NUMBER, "1.5e3"),
        (Kind.WORD, "FROM"),
        (Kind.WORD, "t1"),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it''s'", "it's"),
        (r"'it\'s'", "it's"),
        (r"'a\\'", "a\\"),
        ('"say ""x"""', 'say "x"'),
        (r"'\n\t\0'", "\n\t\0"),
        (r"'é\U0001F600'", "é😀"),
        (r"'\101'", "A"),
        (r"'50\%'", r"50\%"),
        (r"r'a\n'", r"a\n"),
        ("''", ""),
    ],
)
def test_strings_say_what_spark_reads_in_them(text: str, value: str) -> None:
    assert pieces(text) == [(Kind.STRING, value)]


def test_comments_are_left_out_also_inside_each_other() -> None:
    assert pieces("a -- 'x\n /* b /* c */ '*/ d") == [(Kind.WORD, "a"), (Kind.WORD, "d")]


def test_a_name_may_hold_backquotes() -> None:
    assert pieces("`a``b`") == [(Kind.QUOTED, "a`b")]


@pytest.mark.parametrize("text", ["SELECT 'x", 'SELECT "x', "SELECT `x", "/* /* */"])
def test_what_is_never_closed_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(FlussError, match=r"Line 1, column \d+: .* no end") as refused:
        statement_tokens(text)
    assert refused.value.message.endswith("^")


@given(st.text())
def test_any_text_can_be_written_as_a_string_and_read_again(text: str) -> None:
    assert pieces(quoted_string(text)) == [(Kind.STRING, text)]


@given(st.text(min_size=1))
def test_any_text_can_be_written_as_a_name_and_read_again(text: str) -> None:
    assert pieces(quoted_name(text)) == [(Kind.QUOTED, text)]


@given(st.text(alphabet=st.sampled_from("a1.`'\"-/*\n \\(),rf")))
def test_taking_apart_loses_nothing_but_spaces_and_comments(text: str) -> None:
    try:
        tokens = statement_tokens(text)
    except FlussError:
        return
    assert [token.start for token in tokens] == sorted(token.start for token in tokens)
    assert with_spark_names(text, tokens, lambda parts: None) == text


def renamed(text: str) -> tuple[str, list[tuple[str, ...]]]:
    asked: list[tuple[str, ...]] = []

    def name_of(parts: tuple[str, ...]) -> str | None:
        asked.append(parts)
        return "`s`.`t`" if parts[-1] == "t" else None

    return with_spark_names(text, statement_tokens(text), name_of), asked


def test_only_names_of_tables_are_replaced() -> None:
    text = "SELECT 'fluss.d.t', x.y -- fluss.d.t\nFROM fluss.d.t JOIN d . `t` /* d.t */ ON fluss.d.t.id = t.id"
    replaced, asked = renamed(text)
    assert replaced == "SELECT 'fluss.d.t', x.y -- fluss.d.t\nFROM `s`.`t` JOIN `s`.`t` /* d.t */ ON `s`.`t`.id = t.id"
    assert asked == [("x", "y"), ("fluss", "d", "t"), ("d", "t"), ("fluss", "d", "t"), ("t", "id")]


def test_what_has_no_database_is_not_asked_about() -> None:
    assert renamed("SELECT a FROM t WHERE x = 1.5") == ("SELECT a FROM t WHERE x = 1.5", [])


def test_the_catalog_may_be_a_database_as_well() -> None:
    replaced, asked = renamed("SELECT fluss.t.a FROM fluss.t")
    assert replaced == "SELECT `s`.`t`.a FROM `s`.`t`"
    assert asked == [("fluss", "t", "a"), ("fluss", "t"), ("fluss", "t")]
