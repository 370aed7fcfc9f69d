"""Find the Fluss tables in a statement that goes to Spark, and write the names that Spark knows them by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluss.spark.sql.statements import FLUSS_CATALOG
from fluss.spark.sql.text import Token


def with_spark_names(text: str, tokens: list[Token], spark_name_of: Callable[[tuple[str, ...]], str | None]) -> str:
    """Replace names of tables. ``spark_name_of`` gets the parts of a name, and returns what to write, if anything.

    It is asked about ``fluss.sales.orders`` and about ``sales.orders``, also where they are only the beginning of the
    name of a column. Everything else, comments and spaces too, stays as it is.
    """
    pieces: list[str] = []
    position = 0
    for parts in _dotted_names(tokens):
        for length in (3, 2) if parts[0].value.lower() == FLUSS_CATALOG else (2,):
            named = parts[:length]
            replacement = spark_name_of(tuple(token.value for token in named)) if len(named) == length else None
            if replacement is not None:
                pieces += [text[position : named[0].start], replacement]
                position = named[-1].stop
                break
    return "".join([*pieces, text[position:]])


def _dotted_names(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yield the parts of every name that has dots in it."""
    index = 0
    while index < len(tokens):
        parts: list[Token] = []
        while tokens[index].is_name:
            parts.append(tokens[index])
            if not (tokens[index + 1].is_symbol(".") and tokens[index + 2].is_name):
                break
            index += 2
        index += 1
        if len(parts) > 1:
            yield parts
