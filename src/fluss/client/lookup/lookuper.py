"""Looks up rows of a primary-key table by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pyarrow as pa

from fluss.client.lookup.key_batches import KeyBatches
from fluss.client.lookup.key_rows import KeyRows
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.many_rows import ManyRows, Missing
from fluss.client.lookup.messages import BY_KEY
from fluss.client.table_keys import TableKeys
from fluss.row.bucketing import HashVariant
from fluss.schema.table import TableInfo


class Lookuper:
    """Looks up rows of one table, as they are now. May be shared by threads and event loops; needs no closing.

    Any number of lookups may be under way: those that are made at the same time share requests. Rows come with the
    columns the table had when it was obtained: columns that are newer are left out, and rows that are older than a
    column have None in it.
    """

    def __init__(self, client: LookupClient, table_info: TableInfo) -> None:
        self._client = client
        self._info = table_info
        hash_variant = cast("HashVariant", client.cluster.config.client_bucket_hash)
        self._key_rows = KeyRows(table_info, table_info.primary_keys, TableKeys(table_info, hash_variant))
        self._table = client.table(table_info, BY_KEY)

    async def lookup(self, pk: Any) -> dict[str, Any] | None:
        """Return the row with a key, or None if there is none, also if its partition does not exist.

        The key is a dict of the primary-key columns, or a list or tuple in the order of the primary key. One that does
        not fit is a FlussError. Whatever may pass is tried again for ``request-timeout``.
        """
        row: dict[str, Any] | None = await self._client.look_up(self._table, self._key_rows.locate(pk))
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
        key_batches = KeyBatches(self._info, self._key_rows)
        return await self._client.call(partial(wanted.fetch, self._client, self._table, key_batches, keys))

    def __repr__(self) -> str:
        return "Lookuper()"
