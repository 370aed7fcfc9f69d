"""Arguments that many commands take: tables, databases, keys with values, points in time."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from fluss.cli.kernel.session import DEFAULT_DATABASE, Session, full_name
from fluss.integers import INT64_MAX

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    TextType = click.ParamType[str]
    PairType = click.ParamType[tuple[str, str]]
else:
    # It takes no parameters in all versions.
    TextType = PairType = click.ParamType

_AGO: Final = re.compile(r"(?P<count>\d+)\s*(?P<unit>s|min|m|h|d)(?:\s*ago)?")
_SECONDS_BY_UNIT: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# Who presses the tabulator does not wait longer.
_COMPLETION_TIMEOUT_MS: Final = "2000"


class TableNameType(TextType):
    """The name of a table, with or without its database; a shell completes it from the cluster."""

    name = "table"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = full_name(str(value))
        if text.count(".") != 1 or text.startswith(".") or text.endswith("."):
            self.fail(f"'{value}' names no table: write DATABASE.TABLE, such as sales.orders", param, ctx)
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        with suppress(Exception):
            session = _quick(ctx)
            admin = session.admin
            database, dot, _ = incomplete.partition(".")
            if dot:
                names = [f"{database}.{table}" for table in admin.list_tables(database)]
            else:
                names = [f"{name}." for name in admin.list_databases()]
                if DEFAULT_DATABASE + "." in names:
                    names += admin.list_tables(DEFAULT_DATABASE)
            return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
        return []


class DatabaseName(TextType):
    """The name of a database; a shell completes it from the cluster."""

    name = "database"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        with suppress(Exception):
            names = _quick(ctx).admin.list_databases()
            return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
        return []


def _quick(ctx: click.Context) -> Session:
    session = ctx.ensure_object(Session)
    session.options |= {"connect-timeout": _COMPLETION_TIMEOUT_MS, "request-timeout": _COMPLETION_TIMEOUT_MS}
    return session


TABLE: Final = TableNameType()
DATABASE: Final = DatabaseName()


class KeyValue(PairType):
    """``KEY=VALUE``."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key.strip():
            self.fail(f"'{value}' is no KEY=VALUE", param, ctx)
        return key.strip(), text


KEY_VALUE: Final = KeyValue()


def mapping_of(pairs: Sequence[tuple[str, str]], what: str) -> dict[str, str]:
    """Return pairs as a dict; a key that is there twice is refused."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise click.UsageError(f"{what} '{key}' is given twice")
        found[key] = value
    return found


def names_of(texts: Sequence[str]) -> list[str]:
    """Return names that are given one by one, or separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def epoch_ms(text: str, *, now: dt.datetime | None = None) -> int:
    """Return a point in time: ``10min`` (ago), ``2026-01-31 12:30``, or epoch milliseconds. ValueError for others."""
    try:
        found = _epoch_ms(text, now)
    except OverflowError:
        raise ValueError from None
    if abs(found) > INT64_MAX:
        raise ValueError
    return found


def _epoch_ms(text: str, now: dt.datetime | None) -> int:
    ago = _AGO.fullmatch(text.strip().lower())
    if ago is not None:
        seconds = int(ago["count"]) * _SECONDS_BY_UNIT[ago["unit"]]
        return int(((now or dt.datetime.now(dt.UTC)) - dt.timedelta(seconds=seconds)).timestamp() * 1000)
    if text.strip().isdecimal():
        return int(text)
    # A time without a zone is one of this machine.
    return int(dt.datetime.fromisoformat(text.strip()).timestamp() * 1000)


def time_text(epoch_milliseconds: int) -> str:
    """Return a time for people and programs: in UTC, to the second."""
    if epoch_milliseconds < 0:
        return ""
    return dt.datetime.fromtimestamp(epoch_milliseconds / 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
