"""The lexer of SQL: of statements, and of the conditions of ``scan.filter``.

A text becomes words, names in backquotes, strings, numbers and symbols, each with its place. What a string looks like,
and what is allowed besides, is the matter of a ``Dialect``; parsers go through the tokens with a ``TokenCursor``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, NoReturn

_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


class Kind(Enum):
    """What a token is. The values are the names of groups in the pattern of a dialect."""

    WORD = "word"
    QUOTED = "quoted"
    STRING = "string"
    BYTES = "bytes"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


_KINDS: Final = {kind.value: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a text, from ``start`` to before ``stop``. ``value`` is what it says, without its quotes."""

    kind: Kind
    value: str
    start: int
    stop: int

    def is_word(self, *words: str) -> bool:
        """Whether this is one of some words that mean something in SQL, in any case."""
        return self.kind is Kind.WORD and self.value.upper() in words

    def is_symbol(self, symbol: str) -> bool:
        return self.kind is Kind.SYMBOL and self.value == symbol

    @property
    def is_name(self) -> bool:
        return self.kind in (Kind.WORD, Kind.QUOTED)


class Dialect(NamedTuple):
    """What the tokens of a language look like.

    ``pattern`` matches at every position. Its groups are those of ``Kind``, and ``space`` for what is left out,
    ``comment`` for the beginning of a comment that may contain others, ``raw`` for strings without escapes such as
    ``r'...'``, and ``refused`` for a character with which nothing begins.
    """

    pattern: re.Pattern[str]
    # The text that a string in quotes stands for.
    unquoted: Callable[[str], str]
    # What is wrong with a refused character.
    refusal: Callable[[str], str]
    # Raises an error about a position in a text.
    fail: Callable[[str, int, str], NoReturn]


def tokens_of(text: str, dialect: Dialect) -> list[Token]:
    """Take a text apart; the last token is its end. What cannot be, or has no end, fails as the dialect says."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        piece = dialect.pattern.match(text, position)
        assert piece is not None, "the last alternative is any character"
        position = piece.end()
        match piece.lastgroup:
            case "space":
                pass
            case "comment":
                position = _comment_stop(text, piece.start(), dialect)
            case "refused":
                dialect.fail(text, piece.start(), dialect.refusal(piece[0]))
            case group:
                tokens.append(_token(str(group), piece, dialect))
    tokens.append(Token(Kind.END, "", len(text), len(text)))
    return tokens


def _token(group: str, piece: re.Match[str], dialect: Dialect) -> Token:
    value = piece[0]
    match group:
        case "raw" | "bytes":
            value = value[2:-1]
        case "string":
            value = dialect.unquoted(value)
        case "quoted":
            value = value[1:-1].replace("``", "`")
    return Token(_KINDS.get(group, Kind.STRING), value, piece.start(), piece.end())


def _comment_stop(text: str, start: int, dialect: Dialect) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    dialect.fail(text, start, "this comment has no end")


class TokenCursor:
    """Goes through the tokens of a text. ``take_...`` goes on if the next token fits, and says whether it did."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self._tokens = tokens
        self._index = 0

    def peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self.peek()
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def skip(self, count: int) -> None:
        """Go past tokens that are known to be there."""
        self._index += count

    def at_end(self) -> bool:
        return self.peek().kind is Kind.END

    def take_word(self, *words: str) -> str | None:
        """Return which of these words is next, if one is."""
        return self.take().value.upper() if self.peek().is_word(*words) else None

    def take_words(self, *words: str) -> bool:
        """Go past several words if they are next, all of them."""
        if not all(self.peek(index).is_word(word) for index, word in enumerate(words)):
            return False
        self._index += len(words)
        return True

    def take_symbol(self, symbol: str) -> bool:
        if not self.peek().is_symbol(symbol):
            return False
        self._index += 1
        return True

    def source(self, token: Token) -> str:
        """Return a token as it is written."""
        return self.text[token.start : token.stop]


def quoted_name(*parts: str) -> str:
    """Return a name of several parts as Spark reads it, each in backquotes."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def quoted_string(text: str) -> str:
    """Return text as a string of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
