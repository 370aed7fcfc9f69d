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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final, Literal, NamedTuple, NoReturn, TypeAlias

from fluss.errors import FlussError

# Conditions nested deeper would exhaust the stack of whoever walks them.
DEPTH_MAX: Final = 64
TEXT_CHARS_MAX: Final = 1_000_000
_SHOWN_CHARS: Final = 30

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
class Membership:
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


Condition: TypeAlias = Constant | Comparison | Membership | NullTest | PatternTest | Negation | Junction


_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_]))
      | (?P<bytes>[xX]'[^']*')
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<word>[^\W\d]\w*)
      | (?P<symbol><>|<=|>=|==|!=|[=<>(),+-])
      | (?P<end>\Z)
    )""",
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
# More digits than any column type has; a number of a million zeros is a mistake, or an attack.
_NUMBER_CHARS_MAX: Final = 500
_EXPONENT_MAX: Final = 500


class _Token(NamedTuple):
    kind: str
    text: str
    position: int

    @property
    def keyword(self) -> str:
        """The word in capitals; nothing for names in quotes, texts and symbols."""
        return self.text.upper() if self.kind == "word" else ""


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


class _Parser:
    """Reads the tokens of one text from front to back, looking two ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan())
        self._index = 0
        self._depth = 0

    def _scan(self) -> Iterator[_Token]:
        position = 0
        while True:
            match = _TOKEN.match(self._text, position)
            if match is None:
                start = position + len(self._text[position:]) - len(self._text[position:].lstrip())
                fail_at(self._text, start, _unreadable(self._text[start]))
            kind = match.lastgroup
            assert kind is not None, "every branch of the pattern has a name"
            yield _Token(kind, match[kind], match.start(kind))
            if kind == "end":
                return
            position = match.end()

    # Tokens

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take(self) -> _Token:
        token = self._next
        self._index += token.kind != "end"
        return token

    def _take_if(self, *wanted: str) -> bool:
        """Take the next token if it is this keyword or symbol."""
        is_wanted = (self._next.keyword or self._next.text) in wanted and self._next.kind in ("word", "symbol")
        self._index += is_wanted
        return is_wanted

    def _expect(self, wanted: str) -> None:
        if not self._take_if(wanted):
            self._fail(f"expected {wanted}")

    def _fail(self, problem: str) -> NoReturn:
        token = self._next
        found = "the end of the filter" if token.kind == "end" else token.text[:_SHOWN_CHARS]
        fail_at(self._text, token.position, f"{problem}, found {found}")

    # Conditions

    def whole_condition(self) -> Condition:
        condition = self._condition()
        if self._next.kind != "end":
            self._fail("expected AND, OR, or the end")
        return condition

    def _condition(self) -> Condition:
        return self._junction(self._term, "OR")

    def _term(self) -> Condition:
        return self._junction(self._factor, "AND")

    def _junction(self, part: Callable[[], Condition], word: str) -> Condition:
        conditions = [part()]
        while self._take_if(word):
            conditions.append(part())
        return conditions[0] if len(conditions) == 1 else Junction(tuple(conditions), word == "OR")

    def _factor(self) -> Condition:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"conditions can be nested at most {DEPTH_MAX} levels deep")
        try:
            if self._take_if("NOT"):
                return Negation(self._factor())
            if self._take_if("("):
                condition = self._condition()
                self._expect(")")
                return condition
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Condition:
        if self._is_value():
            return self._test_of_value()
        column = self._column()
        is_negated = self._take_if("NOT")
        if self._take_if("IN"):
            return _negated_if(is_negated, Membership(column, self._values()))
        if self._take_if("BETWEEN"):
            return _negated_if(is_negated, self._between(column))
        if self._take_if("LIKE"):
            return _negated_if(is_negated, PatternTest(column, self._pattern()))
        if is_negated:
            self._fail("expected IN, BETWEEN or LIKE after NOT")
        if self._take_if("IS"):
            is_negated = self._take_if("NOT")
            self._expect("NULL")
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
        self._expect("AND")
        highest = self._value()
        bounds = (
            Comparison(column, Operator.GREATER_OR_EQUAL, lowest),
            Comparison(column, Operator.LESS_OR_EQUAL, highest),
        )
        return Junction(bounds, is_any=False)

    def _operator(self) -> Operator | None:
        operator = _OPERATORS.get(self._next.text) if self._next.kind == "symbol" else None
        self._index += operator is not None
        return operator

    # Names and values

    def _column(self) -> ColumnName:
        token = self._next
        if token.kind == "quoted":
            return ColumnName(self._take().text[1:-1].replace("``", "`"), token.position)
        if token.kind != "word" or token.keyword in _RESERVED:
            self._fail("expected the name of a column")
        return ColumnName(self._take().text, token.position)

    def _is_value(self) -> bool:
        token = self._next
        if token.kind == "word":
            # A column may be called date, too.
            is_typed = token.keyword in _TYPED and self._tokens[self._index + 1].kind == "text"
            return is_typed or token.keyword in _WORD_VALUES
        return token.kind in ("number", "text", "bytes") or (token.kind == "symbol" and token.text in "+-")

    def _values(self) -> tuple[Value, ...]:
        self._expect("(")
        values = [self._value()]
        while self._take_if(","):
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _pattern(self) -> Value:
        if self._next.kind != "text":
            self._fail("expected a pattern in single quotes")
        return self._value()

    def _value(self) -> Value:
        if not self._is_value():
            self._fail("expected a value, such as 1 or 'text'")
        token = self._take()
        if token.kind == "word" and token.keyword in _TYPED:
            return Value(_TYPED[token.keyword], _unquoted(self._take().text), token.position)
        if token.kind == "word":
            truth = _WORD_VALUES[token.keyword]
            return Value("null" if truth is None else "boolean", truth, token.position)
        if token.kind == "text":
            return Value("text", _unquoted(token.text), token.position)
        if token.kind == "bytes":
            return Value("bytes", self._bytes(token), token.position)
        return self._number(token)

    def _number(self, token: _Token) -> Value:
        sign = ""
        if token.kind == "symbol":
            sign = token.text
            if self._next.kind != "number":
                self._fail(f"expected a number after {sign}")
        digits = self._take().text if sign else token.text
        _, _, exponent = digits.lower().partition("e")
        if len(digits) > _NUMBER_CHARS_MAX or abs(int(exponent or "0")) > _EXPONENT_MAX:
            fail_at(self._text, token.position, "no column holds numbers with so many digits")
        return Value("number", Decimal(sign + digits), token.position)

    def _bytes(self, token: _Token) -> bytes:
        try:
            return bytes.fromhex(token.text[2:-1])
        except ValueError:
            fail_at(self._text, token.position, "expected pairs of hexadecimal digits")


def _negated_if(is_negated: bool, condition: Condition) -> Condition:
    return Negation(condition) if is_negated else condition


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _unreadable(character: str) -> str:
    if character == '"':
        return "texts stand in single quotes, names in backquotes"
    if character in "'`":
        return f"the closing {character} is missing"
    return f"{character!r} means nothing here"
