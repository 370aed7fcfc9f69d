"""Read the text form of data types, as people write it in SQL and as ``str(type)`` prints it.

    type   = base [ "NOT" "NULL" | "NULL" ]
    base   = NAME [ "(" number { "," number } ")" ] [ "WITH" "LOCAL" "TIME" "ZONE" | "WITHOUT" "TIME" "ZONE" ]
           | "ARRAY" "<" type ">"
           | "MAP" "<" type "," type ">"
           | "ROW" "<" [ field { "," field } ] ">"          parentheses instead of angle brackets are fine, too
    field  = name type | name ":" type

Words are read in any case. A field name is anything between backquotes (a doubled backquote stands for one), or any
text without ``,:<>()``; it may hold blanks only in the form with the colon, where its end is plain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn

from fluss.errors import FlussError
from fluss.schema.types import (
    NESTING_DEPTH_MAX,
    ArrayType,
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataField,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    MapType,
    RowType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)

# Name -> (constructor, number of parameters it takes at most).
_SCALARS: Final[dict[str, tuple[Callable[..., DataType], int]]] = {
    "BOOLEAN": (BooleanType, 0),
    "BOOL": (BooleanType, 0),
    "TINYINT": (TinyIntType, 0),
    "SMALLINT": (SmallIntType, 0),
    "INT": (IntType, 0),
    "INTEGER": (IntType, 0),
    "BIGINT": (BigIntType, 0),
    "FLOAT": (FloatType, 0),
    "DOUBLE": (DoubleType, 0),
    "CHAR": (CharType, 1),
    "STRING": (StringType, 0),
    "BINARY": (BinaryType, 1),
    "BYTES": (BytesType, 0),
    "DECIMAL": (DecimalType, 2),
    "DEC": (DecimalType, 2),
    "NUMERIC": (DecimalType, 2),
    "DATE": (DateType, 0),
    "TIME": (TimeType, 1),
    "TIMESTAMP": (TimestampType, 1),
    "TIMESTAMP_LTZ": (TimestampLtzType, 1),
}

_BLANKS = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Ten digits hold every length that exists; more are a mistake, and Python refuses to convert thousands.
_NUMBER = re.compile(r"[0-9]{1,10}(?![0-9])")
_NAME_BEFORE_COLON = re.compile(r"([^,:<>()]*):")
_NAME_BEFORE_BLANK = re.compile(r"[^\s,:<>()`]+")
_QUOTED_NAME = re.compile(r"`((?:[^`]|``)*)`")
_CLOSING = {"<": ">", "(": ")"}
_SHOWN_CHARS_MAX = 60


def parse_type(text: str) -> DataType:
    """Read one type, such as ``DECIMAL(10, 2) NOT NULL`` or ``row<a: int, b: array<string>>``."""
    if not isinstance(text, str):
        raise TypeError(f"the type must be given as str, got {type(text).__name__}")
    reader = _Reader(text)
    data_type = reader.data_type(1)
    reader.expect_end()
    return data_type


class _Reader:
    """A position in the text. Every method reads one thing and leaves the position behind it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._skip_blanks()

    def data_type(self, depth: int) -> DataType:
        if depth > NESTING_DEPTH_MAX:
            self._fail(f"a type nested at most {NESTING_DEPTH_MAX} levels deep")
        start = self._position
        name = self._word()
        if name is None:
            self._fail("a type name")
        data_type: DataType
        match name.upper():
            case "ARRAY":
                closing = self._open()
                data_type = ArrayType(self.data_type(depth + 1))
                self._expect(closing)
            case "MAP":
                closing = self._open()
                key_type = self.data_type(depth + 1)
                self._expect(",")
                data_type = MapType(key_type, self.data_type(depth + 1))
                self._expect(closing)
            case "ROW":
                data_type = self._row(depth)
            case _:
                data_type = self._scalar(name, start)
        return data_type.with_nullable(self._nullable())

    def expect_end(self) -> None:
        if self._position < len(self._text):
            self._fail("the end of the text")

    def _scalar(self, name: str, start: int) -> DataType:
        constructor, parameters_max = _SCALARS.get(name.upper(), (None, 0))
        if constructor is None:
            self._position = start
            self._fail("the name of a data type")
        parameters = self._parameters() if parameters_max else []
        if len(parameters) > parameters_max:
            self._position = start
            self._fail(f"at most {parameters_max} parameter(s) for {name.upper()}")
        if constructor is DoubleType:
            self._take_words("PRECISION")
        if constructor is TimestampType and self._take_words("WITH"):
            self._expect_words("LOCAL", "TIME", "ZONE")
            constructor = TimestampLtzType
        elif constructor in (TimestampType, TimeType) and self._take_words("WITHOUT"):
            self._expect_words("TIME", "ZONE")
        try:
            return constructor(*parameters)
        except FlussError as error:
            raise FlussError(f"{error.message}, at position {start} of {self._shown_text()}") from None

    def _parameters(self) -> list[int]:
        numbers: list[int] = []
        if not self._take("("):
            return numbers
        while True:
            match = _NUMBER.match(self._text, self._position)
            if match is None:
                self._fail("a number of at most ten digits")
            numbers.append(int(match[0]))
            self._advance(match.end())
            if self._take(")"):
                return numbers
            self._expect(",")

    def _row(self, depth: int) -> RowType:
        start = self._position
        closing = self._open()
        fields: list[DataField] = []
        if not self._take(closing):
            fields.append(self._field(depth))
            while self._take(","):
                fields.append(self._field(depth))
            self._expect(closing)
        try:
            return RowType(tuple(fields))
        except FlussError as error:
            raise FlussError(f"{error.message}, at position {start} of {self._shown_text()}") from None

    def _field(self, depth: int) -> DataField:
        name = self._field_name()
        if not name.strip():
            self._fail("a field name with at least one non-blank character")
        return DataField(name, self.data_type(depth + 1))

    def _field_name(self) -> str:
        quoted = _QUOTED_NAME.match(self._text, self._position)
        if quoted is not None:
            self._advance(quoted.end())
            self._take(":")
            return quoted[1].replace("``", "`")
        plain = _NAME_BEFORE_COLON.match(self._text, self._position)
        if plain is not None:
            # The position moves only when there is a name, so that the error points at the place where it is missing.
            if plain[1].strip():
                self._advance(plain.end())
            return plain[1].rstrip()
        bare = _NAME_BEFORE_BLANK.match(self._text, self._position)
        if bare is None:
            self._fail("a field name")
        self._advance(bare.end())
        return bare[0]

    def _nullable(self) -> bool:
        if self._take_words("NOT"):
            self._expect_words("NULL")
            return False
        self._take_words("NULL")
        return True

    def _open(self) -> str:
        """Read an opening bracket; return the closing one that must follow."""
        for opening, closing in _CLOSING.items():
            if self._take(opening):
                return closing
        self._fail("'<'")

    def _word(self) -> str | None:
        match = _WORD.match(self._text, self._position)
        if match is None:
            return None
        self._advance(match.end())
        return match[0]

    def _take_words(self, wanted: str) -> bool:
        start = self._position
        word = self._word()
        if word is not None and word.upper() == wanted:
            return True
        self._position = start
        return False

    def _expect_words(self, *wanted: str) -> None:
        for word in wanted:
            if not self._take_words(word):
                self._fail(word)

    def _take(self, symbol: str) -> bool:
        if not self._text.startswith(symbol, self._position):
            return False
        self._advance(self._position + len(symbol))
        return True

    def _expect(self, symbol: str) -> None:
        if not self._take(symbol):
            self._fail(f"'{symbol}'")

    def _advance(self, position: int) -> None:
        self._position = position
        self._skip_blanks()

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._text, self._position)
        assert blanks is not None, "a pattern that may be empty always matches"
        self._position = blanks.end()

    def _fail(self, expected: str) -> NoReturn:
        found = self._text[self._position : self._position + _SHOWN_CHARS_MAX]
        shown = repr(found) if found else "the end"
        raise FlussError(
            f"Cannot read the data type {self._shown_text()}: "
            f"expected {expected} at position {self._position}, found {shown}"
        )

    def _shown_text(self) -> str:
        if len(self._text) <= _SHOWN_CHARS_MAX:
            return repr(self._text)
        return repr(self._text[:_SHOWN_CHARS_MAX]) + "..."
