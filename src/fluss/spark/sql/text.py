"""The text of an SQL statement as words, names, strings and symbols, and the place of each in it.

Quotes and comments are those of Spark: names in backquotes, strings in either quotes with backslashes or doubled quotes
inside, ``r'...'`` without backslashes, ``-- ...`` and ``/* ... */``, the latter nested.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn

from fluss.errors import FlussError

_PLAIN: Final = re.compile(
    r"(?P<space>\s+|--[^\n]*)"
    r"|(?P<raw>[rR](?:'[^']*'|\"[^\"]*\"))"
    r"|(?P<string>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")"
    r"|(?P<quoted>`(?:[^`]|``)*`)"
    r"|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w]))"
    r"|(?P<word>\w+)"
    r"|(?P<open>['\"`])"
    r"|(?P<symbol>.)",
    re.DOTALL,
)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_LINE_CHARS_MAX: Final = 200


class Kind(Enum):
    """What a piece of a statement is."""

    WORD = "word"
    QUOTED = "name in backquotes"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of a statement, from ``start`` to before ``stop``. ``value`` is what it says, without its quotes."""

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


def tokens_of(text: str) -> list[Token]:
    """Take a statement apart; the last token is its end. What is opened and never closed is a FlussError."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        if text.startswith("/*", position):
            position = _comment_stop(text, position)
            continue
        piece = _PLAIN.match(text, position)
        assert piece is not None, "the last alternative is any character"
        if piece.lastgroup == "open":
            fail(text, position, f"what begins here with {piece[0]} has no end")
        token = _token(piece)
        if token is not None:
            tokens.append(token)
        position = piece.end()
    tokens.append(Token(Kind.END, "", len(text), len(text)))
    return tokens


def _token(piece: re.Match[str]) -> Token | None:
    text = piece[0]
    match piece.lastgroup:
        case "space":
            return None
        case "raw":
            kind, value = Kind.STRING, text[2:-1]
        case "string":
            kind, value = Kind.STRING, _unescaped(text)
        case "quoted":
            kind, value = Kind.QUOTED, text[1:-1].replace("``", "`")
        case "number":
            kind, value = Kind.NUMBER, text
        case "word":
            kind, value = Kind.WORD, text
        case _:
            kind, value = Kind.SYMBOL, text
    return Token(kind, value, piece.start(), piece.end())


def _unescaped(text: str) -> str:
    quote = text[0]
    # Doubled quotes first become escaped ones, so that a backslash before a quote is seen once.
    inner = re.sub(rf"\\.|{quote}{quote}", lambda found: found[0] if found[0][0] == "\\" else "\\" + quote, text[1:-1])
    return _ESCAPE.sub(_escaped_char, inner)


def _escaped_char(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "uU" and len(code) > 1:
        return chr(int(code[1:], 16)) if int(code[1:], 16) <= 0x10FFFF else code
    if len(code) == 3:
        return chr(int(code, 8))
    # A pattern keeps its backslashes: LIKE looks at them itself.
    return escape[0] if code in "%_" else _ESCAPED.get(code, code)


def _comment_stop(text: str, start: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    fail(text, start, "this comment has no end")


def fail(text: str, position: int, problem: str, example: str | None = None) -> NoReturn:
    """Raise a FlussError that shows the place in the statement, and the right form if there is one to show."""
    line_start = text.rfind("\n", 0, position) + 1
    line_stop = text.find("\n", position)
    line = text[line_start : line_stop if line_stop >= 0 else len(text)].rstrip()
    line_number, column = text.count("\n", 0, position) + 1, position - line_start
    shown_start = max(0, column - _LINE_CHARS_MAX // 2)
    shown = line[shown_start : shown_start + _LINE_CHARS_MAX]
    message = f"Line {line_number}, column {column + 1}: {problem}\n  {shown}\n  {' ' * (column - shown_start)}^"
    raise FlussError(message + (f"\nFor example: {example}" if example else ""))


def quoted_name(*parts: str) -> str:
    """Return a name of several parts as Spark reads it, each in backquotes."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def quoted_string(text: str) -> str:
    """Return text as a string of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
