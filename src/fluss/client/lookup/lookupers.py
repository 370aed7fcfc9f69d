"""The lookupers that users hold: they look up rows of a primary-key table as they are now.

TableLookup        -> Lookuper         by whole keys, one or many
TablePrefixLookup  -> PrefixLookuper   by the beginning of keys
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.client.lookup.keys_and_rows import KeyRun, Located, LookupKeys, ValueReader
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.lookup_many import MANY_BY_KEY, MANY_BY_PREFIX, BulkFetch, BulkLimits, ManyRows, Missing
from fluss.client.lookup.pending import BY_KEY, BY_PREFIX
from fluss.errors import FlussError
from fluss.row.encoded import EncodedRows
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


class Lookuper:
    """Looks up rows of one table, as they are now. May be shared by threads and event loops; needs no closing.

    Any number of lookups may be under way: those that are made at the same time share requests. Rows come with the
    columns the table had when it was obtained: columns that are newer are left out, and rows that are older than a
    column have None in it.
    """

    def __init__(self, client: LookupClient, table_info: TableInfo, limits: BulkLimits | None = None) -> None:
        self._client = client
        self._info = table_info
        self._keys = LookupKeys(table_info, table_info.primary_keys, client.hash_variant)
        self._table = client.table(table_info, BY_KEY)
        self._limits = limits or BulkLimits()

    async def lookup(self, pk: Any) -> dict[str, Any] | None:
        """Return the row with a key, or None if there is none, also if its partition does not exist.

        The key is a dict of the primary-key columns, or a list or tuple in the order of the primary key. One that does
        not fit is a FlussError. Whatever may pass is tried again for ``request-timeout``.
        """
        row: dict[str, Any] | None = await self._client.look_up(self._table, self._keys.locate(pk))
        return row

    async def lookup_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        missing: Missing = "null",
        found_column: str | None = None,
    ) -> pa.Table:
        """Return the rows of many keys as one Arrow table, in the order of the keys.

        The keys are Arrow data of any kind (a pyarrow Table, a polars frame, ...) or a pandas DataFrame, of which only
        the primary-key columns are looked at; or a list of keys as ``lookup`` takes them. Keys may occur twice.

        By default the table has one row per key: a key that is not there gives a row with null in all columns that do
        not belong to the key. ``found_column`` adds a column of that name with true for keys that are there. With
        ``missing="drop"`` there are only rows that were found, with ``missing="error"`` a key that is not there is a
        FlussError. ``columns`` are the columns to return, by default all.
        """
        wanted = ManyRows(self._info, columns, missing, found_column)
        fetch = BulkFetch(self._client, self._table, MANY_BY_KEY, self._limits)
        return await self._client.call(partial(wanted.fetch, fetch, self._keys, keys))

    def __repr__(self) -> str:
        return "Lookuper()"


class PrefixLookuper:
    """Looks up all rows whose keys begin with some values. May be shared by threads and event loops.

    It differs from ``Lookuper`` in what it finds only.
    """

    def __init__(self, client: LookupClient, table_info: TableInfo, column_names: Sequence[str]) -> None:
        self._client = client
        self._info = table_info
        self._keys = LookupKeys(table_info, column_names, client.hash_variant, is_prefix=True)
        self._table = client.table(table_info, BY_PREFIX)

    async def lookup(self, prefix: Any) -> list[dict[str, Any]]:
        """Return the rows, in the order in which the server keeps them; none if the partition does not exist.

        The prefix is a dict of the columns given to ``lookup_by``, or a list or tuple in their order.
        """
        rows: list[dict[str, Any]] = await self._client.look_up(self._table, self._keys.locate(prefix))
        return rows

    async def lookup_arrow(self, prefix: Any) -> pa.Table:
        """Return the same rows as an Arrow table, which is faster if there are many."""
        return await self._client.call(partial(self._fetch, self._keys.locate(prefix)))

    async def _fetch(self, located: Located) -> pa.Table:
        reader = ValueReader(self._info)
        keys = EncodedRows.from_list([located.key])
        run = KeyRun(located.partition_name, located.bucket_id, keys, np.zeros(1, np.int64))
        values: list[bytes] = []
        fetch = BulkFetch(self._client, self._table, MANY_BY_PREFIX, BulkLimits())
        await fetch.fetch([run], lambda _, answers: values.extend(answers[0][0]))
        for schema_id in reader.unknown_schemas(values):
            reader.add_schema(schema_id, await self._client.cluster.schema(self._info.table_path, schema_id))
        batch = await self._client.runtime.offload(reader.arrow, EncodedRows.from_list(values))
        return pa.Table.from_batches([batch] if values else [], schema=reader.arrow_schema)

    def __repr__(self) -> str:
        return "PrefixLookuper()"
