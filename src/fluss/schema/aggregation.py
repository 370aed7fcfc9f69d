"""Aggregate functions of columns: how a table with the aggregation merge engine folds rows of one key together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.types import DataType, TypeRoot

_NUMBERS: Final = frozenset(
    {
        TypeRoot.TINYINT,
        TypeRoot.SMALLINT,
        TypeRoot.INTEGER,
        TypeRoot.BIGINT,
        TypeRoot.FLOAT,
        TypeRoot.DOUBLE,
        TypeRoot.DECIMAL,
    }
)
_TEXTS: Final = frozenset({TypeRoot.CHAR, TypeRoot.STRING})
_TIMES: Final = frozenset({TypeRoot.DATE, TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ})
_BITMAPS: Final = frozenset({TypeRoot.BYTES})
_ALL: Final = frozenset(TypeRoot)

# Function -> the kinds of columns it works on.
_COLUMN_KINDS: Final[dict[str, frozenset[TypeRoot]]] = {
    "sum": _NUMBERS,
    "product": _NUMBERS,
    "max": _NUMBERS | _TEXTS | _TIMES,
    "min": _NUMBERS | _TEXTS | _TIMES,
    "last_value": _ALL,
    "last_value_ignore_nulls": _ALL,
    "first_value": _ALL,
    "first_value_ignore_nulls": _ALL,
    "listagg": _TEXTS,
    "string_agg": _TEXTS,
    "bool_and": frozenset({TypeRoot.BOOLEAN}),
    "bool_or": frozenset({TypeRoot.BOOLEAN}),
    "rbm32": _BITMAPS,
    "rbm64": _BITMAPS,
}
AGG_FUNCTION_NAMES: Final = tuple(_COLUMN_KINDS)

DELIMITER_PARAMETER: Final = "delimiter"
DELIMITER_DEFAULT: Final = ","
_PARAMETERS: Final = {"listagg": frozenset({DELIMITER_PARAMETER}), "string_agg": frozenset({DELIMITER_PARAMETER})}


def canonical_function_name(name: str) -> str | None:
    """Return the spelling used on the wire (``LAST-VALUE`` becomes ``last_value``), or None for an unknown name."""
    canonical = name.strip().lower().replace("-", "_")
    return canonical if canonical in _COLUMN_KINDS else None


@dataclass(frozen=True, slots=True)
class AggFunction:
    """A function by name, with its parameters as (name, value) pairs: ``AggFunction.of("listagg", delimiter=";")``."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        canonical = canonical_function_name(self.name)
        if canonical is None:
            raise _invalid(f"Unknown aggregate function '{self.name}'; known are {', '.join(AGG_FUNCTION_NAMES)}")
        object.__setattr__(self, "name", canonical)

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, str] | None = None, **more: str) -> AggFunction:
        """Return a function by name, in any case and with ``-`` or ``_``; an unknown one is a FlussError."""
        return cls(name, tuple({**(parameters or {}), **more}.items()))

    @property
    def delimiter(self) -> str:
        """The text that ``listagg`` and ``string_agg`` put between values."""
        return dict(self.parameters).get(DELIMITER_PARAMETER, DELIMITER_DEFAULT)

    def check_column(self, column_name: str, data_type: DataType) -> None:
        """Refuse a column type or parameters that the function does not have (code 39)."""
        kinds = _COLUMN_KINDS[self.name]
        if data_type.root not in kinds:
            names = ", ".join(sorted(kinds))
            raise _invalid(
                f"Aggregate function '{self.name}' does not work on column '{column_name}' of type {data_type}; "
                f"it takes {names}"
            )
        known = _PARAMETERS.get(self.name, frozenset())
        for parameter, value in self.parameters:
            if parameter not in known:
                raise _invalid(f"Aggregate function '{self.name}' of column '{column_name}' has no '{parameter}'")
            if not value:
                raise _invalid(f"'{parameter}' of the aggregate function of column '{column_name}' must not be empty")


def _invalid(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
