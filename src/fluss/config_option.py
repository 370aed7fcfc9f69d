"""The option of a client: on a ``Config`` it is the property that reads and sets the value."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from operator import index
from typing import ClassVar, Final, Generic, Protocol, TypeVar, cast, overload

from fluss.integers import INT32_MAX, INT64_MAX, UINT64_MAX
from fluss.options import Option, ValueType, format_value, integer_between

T = TypeVar("T", bound=str | int)


class HasValues(Protocol):
    """What an option is a property of: values by key."""

    @property
    def _values(self) -> dict[str, str | int | bool]: ...


def _read_boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


BOOLEAN: Final = ValueType("true or false", _read_boolean)


def _read_properties(text: str) -> str:
    parsed_properties(text)
    return text


def parsed_properties(text: str) -> dict[str, str]:
    """Return properties that are written as key=value, several separated by commas; ValueError for others."""
    properties: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, separator, value = part.partition("=")
        if not separator or not key.strip():
            raise ValueError
        properties[key.strip()] = value.strip()
    return properties


PROPERTIES: Final = ValueType("key=value, several separated by commas", _read_properties)


INT32: Final = integer_between(-INT32_MAX - 1, INT32_MAX)


INT64: Final = integer_between(-INT64_MAX - 1, INT64_MAX)


UNSIGNED: Final = integer_between(0, UINT64_MAX)


class ConfigOption(Option[T]):
    """An option of clients. On a ``Config`` it is the property that reads and sets the value.

    ``aliases`` are keys of older releases that mean the same.
    """

    shown_chars_max: ClassVar[int] = sys.maxsize

    def __init__(
        self,
        key: str,
        value_type: ValueType[T],
        default: T,
        doc: str,
        *,
        aliases: tuple[str, ...] = (),
        secret: bool = False,
    ) -> None:
        super().__init__(key, value_type, default, doc, secret=secret)
        self.aliases = aliases
        self.property_name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.property_name = name

    @overload
    def __get__(self, config: None, owner: type) -> ConfigOption[T]: ...
    @overload
    def __get__(self, config: HasValues, owner: type) -> T: ...
    def __get__(self, config: HasValues | None, owner: type) -> ConfigOption[T] | T:
        if config is None:
            return self
        return cast(T, config._values.get(self.key, self.default))

    def __set__(self, config: HasValues, value: T) -> None:
        config._values[self.key] = self._checked(value)

    def _checked(self, value: object) -> T:
        """Check a Python value; a wrong class is a TypeError, a number out of range an OverflowError."""
        expected = type(self.default)
        if expected is not int:
            if not isinstance(value, expected):
                raise TypeError(f"{self.property_name} must be {expected.__name__}, got {type(value).__name__}")
            return self.parse(format_value(value))
        try:
            number = index(cast(int, value))
        except TypeError:
            raise TypeError(f"{self.property_name} must be int, got {type(value).__name__}") from None
        try:
            return self.read(format_value(number))
        except ValueError:
            raise OverflowError(f"{self.property_name} must be {self.value_type.expected}, got {number}") from None


@dataclass(frozen=True, slots=True)
class OlderName(Generic[T]):
    """A property under the name it had in an older release."""

    option: ConfigOption[T]

    @overload
    def __get__(self, config: None, owner: type) -> ConfigOption[T]: ...
    @overload
    def __get__(self, config: HasValues, owner: type) -> T: ...
    def __get__(self, config: HasValues | None, owner: type) -> ConfigOption[T] | T:
        return self.option.__get__(config, owner)

    def __set__(self, config: HasValues, value: T) -> None:
        self.option.__set__(config, value)
