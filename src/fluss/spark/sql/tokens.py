"""The tokens of SQL statements, and the parts that several statements have: names, columns, properties.

Quotes and comments are those of Spark: names in backquotes, strings in either quotes with backslashes or doubled quotes
inside, ``r'...'`` without backslashes, ``-- ...`` and ``/* ... */``, the latter nested.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn

from fluss.errors import FlussError
from fluss.filter.lexer import Dialect, Kind, Token, TokenCursor, tokens_of
from fluss.spark.sql.statements import ColumnText, Name

_PATTERN: Final = re.compile(
    r"(?P<comment>/\*)"
    r"|(?P<space>\s+|--[^\n]*)"
    r"|(?P<raw>[rR](?:'[^']*'|\"[^\"]*\"))"
    r"|(?P<string>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")"
    r"|(?P<quoted>`(?:[^`]|``)*`)"
    r"|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w]))"
    r"|(?P<word>\w+)"
    r"|(?P<refused>['\"`])"
    r"|(?P<symbol>.)",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_LINE_CHARS_MAX: Final = 200
# What ends the type of a column.
_AFTER_TYPE: Final = ("NOT", "NULL", "COMMENT", "PRIMARY", "DEFAULT", "GENERATED", "CHECK", "FIRST", "AFTER")


def statement_tokens(text: str) -> list[Token]:
    """Take a statement apart; the last token is its end. What is opened and never closed is a FlussError."""
    return tokens_of(text, _STATEMENTS)


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


_STATEMENTS: Final = Dialect(_PATTERN, _unescaped, "what begins here with {} has no end".format, fail)


class StatementCursor(TokenCursor):
    """Goes through a statement. What is expected and not there is a FlussError, with ``example`` as the right form."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        super().__init__(text, tokens)
        self.example: str | None = None

    def fail(self, problem: str) -> NoReturn:
        self.fail_at(self.peek(), problem)

    def fail_at(self, token: Token, problem: str) -> NoReturn:
        fail(self.text, token.start, problem, self.example)

    def shown(self) -> str:
        return "the end of the statement" if self.at_end() else repr(self.source(self.peek()))

    def expect_words(self, *words: str) -> None:
        if not self.take_words(*words):
            self.fail(f"expected {' '.join(words)}, found {self.shown()}")

    def expect_symbol(self, symbol: str) -> None:
        if not self.take_symbol(symbol):
            self.fail(f"expected '{symbol}', found {self.shown()}")

    def listed(self, item: Callable[[], None]) -> None:
        """Read items separated by commas, in parentheses."""
        self.expect_symbol("(")
        item()
        while self.take_symbol(","):
            item()
        if not self.take_symbol(")"):
            self.fail(f"expected ',' or ')', found {self.shown()}")

    # Names and strings

    def identifier(self, what: str) -> str:
        if not self.peek().is_name:
            self.fail(f"expected {what}, found {self.shown()}")
        return self.take().value

    def names(self, what: str) -> tuple[str, ...]:
        names: list[str] = []
        self.listed(lambda: names.append(self.identifier(what)))
        return tuple(names)

    def name(self, what: str) -> Name:
        position = self.peek().start
        parts = [self.identifier(what)]
        while self.take_symbol("."):
            parts.append(self.identifier(what))
        return Name(tuple(parts), position)

    def peek_name(self) -> Name | None:
        """Return the name that is next, if there is one, and stay before it."""
        index = self._index
        parts: list[str] = []
        while self._tokens[index].is_name:
            parts.append(self._tokens[index].value)
            if not self._tokens[index + 1].is_symbol("."):
                break
            index += 2
        return Name(tuple(parts), self.peek().start) if parts else None

    def string(self, what: str) -> str:
        if self.peek().kind is not Kind.STRING:
            self.fail(f"expected {what} in quotes, found {self.shown()}")
        return self.take().value

    # Columns

    def column(self) -> tuple[ColumnText, bool]:
        """Read a column, and whether it says that it is the primary key."""
        position = self.peek().start
        name = self.identifier("the name of a column")
        type_text = self._type_text(name)
        nullable, is_key, comment = True, False, None
        while True:
            if self.take_words("NOT", "NULL"):
                nullable = False
            elif self.take_words("PRIMARY", "KEY"):
                is_key = True
                self.skip_not_enforced()
            elif self.take_word("COMMENT"):
                comment = self.string("a comment")
            elif self.peek().is_word("DEFAULT", "GENERATED", "CHECK", "FIRST", "AFTER"):
                self.fail(f"columns have no {self.peek().value.upper()}")
            elif not self.take_word("NULL"):
                return ColumnText(name, type_text, nullable, comment, position), is_key

    def _type_text(self, column: str) -> str:
        """Return the text of a type: all up to the next comma, parenthesis or word that belongs to the column."""
        first = self.peek()
        last = None
        depth = 0
        while True:
            token = self.peek()
            if depth == 0 and (token.is_symbol(",") or token.is_symbol(")") or token.is_word(*_AFTER_TYPE)):
                break
            if token.kind is Kind.END or token.is_symbol(";"):
                break
            depth += (token.is_symbol("(") or token.is_symbol("<")) - (token.is_symbol(")") or token.is_symbol(">"))
            last = self.take()
        if last is None:
            self.fail(f"expected the type of column '{column}', found {self.shown()}")
        return self.text[first.start : last.stop]

    def skip_not_enforced(self) -> None:
        # Keys are enforced in any case. People write this because other engines want it.
        self.take_words("NOT", "ENFORCED")

    # Properties

    def properties(self) -> dict[str, str]:
        properties: dict[str, str] = {}

        def entry() -> None:
            position = self.peek()
            key = self.property_key()
            if key in properties:
                self.fail_at(position, f"'{key}' is there twice")
            self.take_symbol("=")
            properties[key] = self.value(key)

        self.listed(entry)
        return properties

    def property_key(self) -> str:
        """Read a key in quotes, or as a name with dots: ``'bucket.num'``, ``bucket.num``."""
        if self.peek().kind is Kind.STRING:
            return self.take().value
        return str(self.name("the name of a property, such as 'bucket.num'"))

    def value(self, of: str) -> str:
        """Read the value of a property or of a partition column: a string, a number, TRUE or FALSE."""
        token = self.peek()
        if token.kind not in (Kind.STRING, Kind.NUMBER) and not token.is_word("TRUE", "FALSE"):
            self.fail(f"expected the value of '{of}', found {self.shown()}")
        return self.take().value
