"""Looks up rows of a primary-key table by the beginning of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa

from fluss.client.lookup.bulk_fetch import Answers, BulkFetch
from fluss.client.lookup.key_batches import KeyRun
from fluss.client.lookup.key_rows import KeyRows, Located
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.messages import BY_PREFIX
from fluss.client.lookup.stored_rows import StoredRows
from fluss.client.table_keys import TableKeys
from fluss.row.bucketing import HashVariant
from fluss.schema.table import TableInfo


class PrefixLookuper:
    """Looks up all rows whose keys begin with some values. May be shared by threads and event loops.

    It differs from ``Lookuper`` in what it finds only.
    """

    def __init__(self, client: LookupClient, table_info: TableInfo, column_names: Sequence[str]) -> None:
        self._client = client
        self._info = table_info
        hash_variant = cast("HashVariant", client.cluster.config.client_bucket_hash)
        self._key_rows = KeyRows(table_info, column_names, TableKeys(table_info, hash_variant, is_prefix=True))
        self._table = client.table(table_info, BY_PREFIX)

    async def lookup(self, prefix: Any) -> list[dict[str, Any]]:
        """Return the rows, in the order in which the server keeps them; none if the partition does not exist.

        The prefix is a dict of the columns given to ``lookup_by``, or a list or tuple in their order.
        """
        rows: list[dict[str, Any]] = await self._client.look_up(self._table, self._key_rows.locate(prefix))
        return rows

    async def lookup_arrow(self, prefix: Any) -> pa.Table:
        """Return the same rows as an Arrow table, which is faster if there are many."""
        return await self._client.call(partial(self._fetch, self._key_rows.locate(prefix)))

    async def _fetch(self, located: Located) -> pa.Table:
        stored_rows = StoredRows(self._info)
        run = KeyRun(located.partition_name, located.bucket_id, [located.key], np.zeros(1, np.int64))
        answers: Answers = np.empty(1, dtype=np.object_)
        await BulkFetch(self._client, self._table).fetch([run], answers)
        values: list[bytes] = answers[0] or []
        for schema_id in stored_rows.unknown_schemas(values):
            stored_rows.add_schema(schema_id, await self._client.cluster.schema(self._info.table_path, schema_id))
        batch = await self._client.runtime.offload(stored_rows.arrow, values)
        return pa.Table.from_batches([batch] if values else [], schema=stored_rows.arrow_schema)

    def __repr__(self) -> str:
        return "PrefixLookuper()"
