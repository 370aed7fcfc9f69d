"""The language of ``scan.filter``: from a text to a tree of conditions whose names and values are not looked at yet.

    condition   := term {OR term}
    term        := factor {AND factor}
    factor      := NOT factor | ( condition ) | TRUE | FALSE | NULL | test
    test        := column | column comparison value | value comparison column
                 | column [NOT] IN ( value {, value} ) | column [NOT] BETWEEN value AND value
                 | column IS [NOT] NULL | column [NOT] LIKE text
    comparison  := = | == | <> | != | < | <= | > | >=
    value       := 1 | -2.50 | 1e3 | 'it''s' | X'0aff' | TRUE | FALSE | NULL
                 | DATE '2026-01-01' | TIME '12:30:00' | TIMESTAMP '2026-01-01 12:30:00'

Words may be in any case, names are taken as they are. A name that is not a plain word stands in backquotes; one inside
it is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final, Literal, NamedTuple, NoReturn, TypeAlias

from fluss.errors import FlussError
from fluss.filter.lexer import Dialect, Kind, Token, TokenCursor, tokens_of

# Conditions nested deeper would exhaust the stack of the functions that walk them.
DEPTH_MAX: Final = 64
TEXT_CHARS_MAX: Final = 1_000_000
_SHOWN_CHARS: Final = 30
# The position of names and values that were not read from a text.
NOWHERE: Final = -1

ValueKind: TypeAlias = Literal["number", "text", "bytes", "boolean", "null", "date", "time", "timestamp"]


class Operator(StrEnum):
    """A comparison."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="

    @property
    def mirrored(self) -> Operator:
        """The comparison that says the same with the sides exchanged."""
        return _MIRRORED.get(self, self)

    @property
    def opposite(self) -> Operator:
        """The comparison that holds where this one does not, of values that are not null."""
        return _OPPOSITES[self]


_MIRRORED: Final = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
}
_OPPOSITES: Final = {
    Operator.EQUAL: Operator.NOT_EQUAL,
    Operator.NOT_EQUAL: Operator.EQUAL,
    Operator.LESS: Operator.GREATER_OR_EQUAL,
    Operator.LESS_OR_EQUAL: Operator.GREATER,
    Operator.GREATER: Operator.LESS_OR_EQUAL,
    Operator.GREATER_OR_EQUAL: Operator.LESS,
}


class ColumnName(NamedTuple):
    """A name, and where it stands in the text."""

    name: str
    position: int


class Value(NamedTuple):
    """A literal. Dates and times are texts still; what they mean depends on the column."""

    kind: ValueKind
    value: Decimal | str | bytes | bool | None
    position: int


@dataclass(frozen=True, slots=True)
class Constant:
    truth: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    column: ColumnName
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class InList:
    """``column IN (values)``."""

    column: ColumnName
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class NullTest:
    """``column IS NULL``."""

    column: ColumnName


@dataclass(frozen=True, slots=True)
class PatternTest:
    """``column LIKE pattern``."""

    column: ColumnName
    pattern: Value


@dataclass(frozen=True, slots=True)
class Negation:
    condition: Condition


@dataclass(frozen=True, slots=True)
class Junction:
    """Several conditions, of which all hold, or with ``is_any`` at least one."""

    conditions: tuple[Condition, ...]
    is_any: bool


Condition: TypeAlias = Constant | Comparison | InList | NullTest | PatternTest | Negation | Junction


_PATTERN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_]))
      | (?P<bytes>[xX]'[^']*')
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<word>[^\W\d]\w*)
      | (?P<symbol><>|<=|>=|==|!=|[=<>(),+-])
      | (?P<refused>.)""",
    re.VERBOSE,
)
_OPERATORS: Final = {operator.value: operator for operator in Operator} | {
    "==": Operator.EQUAL,
    "!=": Operator.NOT_EQUAL,
}
_TYPED: Final[dict[str, ValueKind]] = {
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_NTZ": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
}
_WORD_VALUES: Final = {"TRUE": True, "FALSE": False, "NULL": None}
# Words that are no names unless they are quoted.
_RESERVED: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "LIKE", *_WORD_VALUES})
_LITERALS: Final = (Kind.NUMBER, Kind.STRING, Kind.BYTES)
# More digits than any column type has; a number of a million zeros is a mistake, or an attack.
_NUMBER_CHARS_MAX: Final = 500
_EXPONENT_MAX: Final = 500


def parse_condition(text: str) -> Condition:
    """Read a condition; a FlussError says where it cannot be read any further, and what could stand there."""
    if len(text) > TEXT_CHARS_MAX:
        raise FlussError(f"A filter may have {TEXT_CHARS_MAX} characters, not {len(text)}")
    return _Parser(text).whole_condition()


def fail_at(text: str, position: int, problem: str) -> NoReturn:
    """Raise a FlussError about a place in a filter."""
    before = text[max(0, position - _SHOWN_CHARS) : position].strip()
    place = f"after {before!r}" if before else "at its beginning"
    raise FlussError(f"The filter is wrong at character {position + 1}, {place}: {problem}")


def _refusal(character: str) -> str:
    if character == '"':
        return "texts stand in single quotes, names in backquotes"
    if character in "'`":
        return f"the closing {character} is missing"
    return f"{character!r} means nothing here"


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


_FILTERS: Final = Dialect(_PATTERN, _unquoted, _refusal, fail_at)


class _Parser(TokenCursor):
    """Reads the tokens of one text from front to back, looking two ahead."""

    def __init__(self, text: str) -> None:
        super().__init__(text, tokens_of(text, _FILTERS))
        self._depth = 0

    def _expect_word(self, word: str) -> None:
        if not self.take_word(word):
            self._fail(f"expected {word}")

    def _expect_symbol(self, symbol: str) -> None:
        if not self.take_symbol(symbol):
            self._fail(f"expected {symbol}")

    def _fail(self, problem: str) -> NoReturn:
        found = "the end of the filter" if self.at_end() else self.source(self.peek())[:_SHOWN_CHARS]
        fail_at(self.text, self.peek().start, f"{problem}, found {found}")

    # Conditions

    def whole_condition(self) -> Condition:
        condition = self._condition()
        if not self.at_end():
            self._fail("expected AND, OR, or the end")
        return condition

    def _condition(self) -> Condition:
        return self._junction(self._term, "OR")

    def _term(self) -> Condition:
        return self._junction(self._factor, "AND")

    def _junction(self, part: Callable[[], Condition], word: str) -> Condition:
        conditions = [part()]
        while self.take_word(word):
            conditions.append(part())
        return conditions[0] if len(conditions) == 1 else Junction(tuple(conditions), word == "OR")

    def _factor(self) -> Condition:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"conditions can be nested at most {DEPTH_MAX} levels deep")
        try:
            if self.take_word("NOT"):
                return Negation(self._factor())
            if self.take_symbol("("):
                condition = self._condition()
                self._expect_symbol(")")
                return condition
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Condition:
        if self._is_value():
            return self._test_of_value()
        column = self._column()
        is_negated = self.take_word("NOT") is not None
        if self.take_word("IN"):
            return _negated_if(is_negated, InList(column, self._values()))
        if self.take_word("BETWEEN"):
            return _negated_if(is_negated, self._between(column))
        if self.take_word("LIKE"):
            return _negated_if(is_negated, PatternTest(column, self._pattern()))
        if is_negated:
            self._fail("expected IN, BETWEEN or LIKE after NOT")
        if self.take_word("IS"):
            is_negated = self.take_word("NOT") is not None
            self._expect_word("NULL")
            return _negated_if(is_negated, NullTest(column))
        operator = self._operator()
        if operator is None:
            # A boolean column is a condition by itself.
            return Comparison(column, Operator.EQUAL, Value("boolean", True, column.position))
        return Comparison(column, operator, self._value())

    def _test_of_value(self) -> Condition:
        value = self._value()
        operator = self._operator()
        if operator is not None:
            return Comparison(self._column(), operator.mirrored, value)
        if value.kind not in ("boolean", "null"):
            self._fail("expected a comparison")
        assert value.value is None or isinstance(value.value, bool)
        return Constant(value.value)

    def _between(self, column: ColumnName) -> Condition:
        lowest = self._value()
        self._expect_word("AND")
        highest = self._value()
        bounds = (
            Comparison(column, Operator.GREATER_OR_EQUAL, lowest),
            Comparison(column, Operator.LESS_OR_EQUAL, highest),
        )
        return Junction(bounds, is_any=False)

    def _operator(self) -> Operator | None:
        token = self.peek()
        if token.kind is not Kind.SYMBOL or token.value not in _OPERATORS:
            return None
        return _OPERATORS[self.take().value]

    # Names and values

    def _column(self) -> ColumnName:
        token = self.peek()
        if not token.is_name or token.is_word(*_RESERVED):
            self._fail("expected the name of a column")
        return ColumnName(self.take().value, token.start)

    def _is_value(self) -> bool:
        token = self.peek()
        if token.kind is Kind.WORD:
            # A column may be called date, too.
            is_typed = token.is_word(*_TYPED) and self.peek(1).kind is Kind.STRING
            return is_typed or token.is_word(*_WORD_VALUES)
        return token.kind in _LITERALS or token.is_symbol("+") or token.is_symbol("-")

    def _values(self) -> tuple[Value, ...]:
        self._expect_symbol("(")
        values = [self._value()]
        while self.take_symbol(","):
            values.append(self._value())
        self._expect_symbol(")")
        return tuple(values)

    def _pattern(self) -> Value:
        if self.peek().kind is not Kind.STRING:
            self._fail("expected a pattern in single quotes")
        return self._value()

    def _value(self) -> Value:
        if not self._is_value():
            self._fail("expected a value, such as 1 or 'text'")
        token = self.take()
        match token.kind:
            case Kind.WORD if token.is_word(*_TYPED):
                return Value(_TYPED[token.value.upper()], self.take().value, token.start)
            case Kind.WORD:
                truth = _WORD_VALUES[token.value.upper()]
                return Value("null" if truth is None else "boolean", truth, token.start)
            case Kind.STRING:
                return Value("text", token.value, token.start)
            case Kind.BYTES:
                return Value("bytes", self._bytes(token), token.start)
        return self._number(token)

    def _number(self, token: Token) -> Value:
        sign = ""
        if token.kind is Kind.SYMBOL:
            sign = token.value
            if self.peek().kind is not Kind.NUMBER:
                self._fail(f"expected a number after {sign}")
        digits = self.take().value if sign else token.value
        _, _, exponent = digits.lower().partition("e")
        if len(digits) > _NUMBER_CHARS_MAX or abs(int(exponent or "0")) > _EXPONENT_MAX:
            fail_at(self.text, token.start, "no column holds numbers with so many digits")
        return Value("number", Decimal(sign + digits), token.start)

    def _bytes(self, token: Token) -> bytes:
        try:
            return bytes.fromhex(token.value)
        except ValueError:
            fail_at(self.text, token.start, "expected pairs of hexadecimal digits")


def _negated_if(is_negated: bool, condition: Condition) -> Condition:
    return Negation(condition) if is_negated else condition
