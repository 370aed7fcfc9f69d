"""One option of a server, and families of them.

A family is a class whose body is a table of options. ``ServerOptions`` is made of all families and holds the values.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar, cast, overload

from fluss.errors import ErrorCode, FlussError
from fluss.options import HIDDEN, Option, without_passwords
from fluss.server.options.option_sources import Setting

T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "FLUSS_"


class ServerOption(Option[T]):
    """An option of servers, whose default is a text. On ``ServerOptions`` it is the property with the value."""

    @overload
    def __get__(self, options: None, owner: type) -> ServerOption[T]: ...
    @overload
    def __get__(self, options: OptionFamily, owner: type) -> T: ...
    def __get__(self, options: OptionFamily | None, owner: type) -> ServerOption[T] | T:
        return self if options is None else cast(T, options._values[self.key])

    @property
    def environment_variable(self) -> str:
        return variable_name(self.key)

    def value_of(self, setting: Setting) -> T:
        """Read the value; a text that is none is a FlussError that says where the text stands."""
        try:
            return self.read(setting.text)
        except FlussError as error:
            raise invalid_config(f"'{self.key}' ({setting.origin}): {error.message}") from None
        except ValueError as error:
            shown = HIDDEN if self.secret else without_passwords(setting.text)
            raise invalid_config(f"'{self.key}' is '{shown}' ({setting.origin}): {error}") from None

    def _below_lowest(self) -> str:
        return f"expected {self.value_type.expected}, not below {self.lowest}{self.value_type.unit}"

    def _above_highest(self) -> str:
        return f"expected {self.value_type.expected}, not above {self.highest}{self.value_type.unit}"


class OptionFamily:
    """Options that belong together. Their order in the class body is the one in which they are documented."""

    __slots__ = ()

    _values: dict[str, Any]

    @classmethod
    def members(cls) -> tuple[ServerOption[Any], ...]:
        """Return the options of this family alone."""
        return tuple(option for option in vars(cls).values() if isinstance(option, ServerOption))


def variable_name(key: str) -> str:
    """Return the environment variable for a key, or for a part of one."""
    return ENVIRONMENT_PREFIX + re.sub("[.-]", "_", key).upper()


def invalid_config(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
