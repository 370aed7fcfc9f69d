"""The beginning of lookups: makes lookupers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.lookuper import Lookuper
from fluss.client.lookup.many_rows import Missing
from fluss.client.lookup.prefix_lookuper import PrefixLookuper
from fluss.errors import FlussError
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo
from fluss.schema.value_objects import string_list


class TableLookup:
    """Makes lookupers for one table with a primary key; see ``FlussTable.new_lookup``.

    It may also be used as a lookuper itself, as in older programs.
    """

    def __init__(self, lookup_client: Callable[[], LookupClient], table_info: TableInfo) -> None:
        self._lookup_client = lookup_client
        self._info = table_info

    def create_lookuper(self) -> Lookuper:
        """Return a new lookuper for whole keys."""
        return Lookuper(self._lookup_client(), self._info)

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        """Look up rows by the beginning of their keys: all partition columns, and all bucket-key columns in order.

        The bucket key must be the beginning of the primary key, and not all of it.
        """
        names = string_list("column_names", column_names)
        _check_prefix(self._info, names)
        return TablePrefixLookup(self._lookup_client, self._info, names)

    # The older form

    @cached_property
    def _lookuper(self) -> Lookuper:
        return self.create_lookuper()

    async def lookup(self, pk: Any) -> dict[str, Any] | None:
        """Return the row with a key, see ``Lookuper.lookup``."""
        return await self._lookuper.lookup(pk)

    async def lookup_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        missing: Missing = "null",
        found_column: str | None = None,
    ) -> pa.Table:
        """Return the rows of many keys as one Arrow table, see ``Lookuper.lookup_many``."""
        return await self._lookuper.lookup_many(keys, columns=columns, missing=missing, found_column=found_column)

    def __repr__(self) -> str:
        return "TableLookup()"


class TablePrefixLookup:
    """Makes lookupers for the beginning of keys; see ``TableLookup.lookup_by``."""

    def __init__(
        self, lookup_client: Callable[[], LookupClient], table_info: TableInfo, column_names: Sequence[str]
    ) -> None:
        self._lookup_client = lookup_client
        self._info = table_info
        self._names = column_names

    def create_lookuper(self) -> PrefixLookuper:
        """Return a new lookuper."""
        return PrefixLookuper(self._lookup_client(), self._info, self._names)

    def __repr__(self) -> str:
        return "TablePrefixLookup()"


def _check_prefix(info: TableInfo, names: Sequence[str]) -> None:
    """Refuse columns by which no prefix lookup is possible."""
    table, key, bucket_key = info.table_path, info.physical_primary_keys, info.bucket_keys
    for name in names:
        if name not in info.schema.column_names:
            raise FlussError(
                f"Unknown column name '{name}' for a prefix lookup in {table}; columns are "
                f"{shown_names(info.schema.column_names)}"
            )
    if len(set(names)) < len(names):
        raise FlussError(f"A prefix lookup in {table} takes each column once, got {shown_names(names)}")
    missing = [name for name in info.partition_keys if name not in names]
    if missing:
        raise FlussError(
            f"A prefix lookup in {table} needs all partition fields {shown_names(info.partition_keys)}; "
            f"{shown_names(missing)} is missing"
        )
    wanted = [name for name in names if name not in info.partition_keys]
    if wanted != bucket_key:
        raise FlussError(
            f"A prefix lookup in {table} takes the bucket keys {shown_names(bucket_key)} in this order besides the "
            f"partition fields, got {shown_names(wanted)}"
        )
    if bucket_key == key:
        raise FlussError(
            f"A prefix lookup in {table} is not possible: its bucket keys {shown_names(bucket_key)} are the whole "
            "primary key; use create_lookuper()"
        )
    if bucket_key != key[: len(bucket_key)]:
        raise FlussError(
            f"A prefix lookup in {table} is not possible: its bucket keys {shown_names(bucket_key)} are not the "
            f"beginning of the primary key {shown_names(key)}"
        )
