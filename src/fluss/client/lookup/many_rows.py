"""The rows of many keys as one Arrow table, in the order of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from fluss.client.lookup.bulk_fetch import Answers, BulkFetch
from fluss.client.lookup.key_batches import KeyBatches
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.pending import LookupTable
from fluss.client.lookup.stored_rows import StoredRows
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import bool_array, number_array
from fluss.schema.schema import shown_names, string_list
from fluss.schema.table import TableInfo

# What becomes of keys that have no row.
Missing: TypeAlias = Literal["null", "drop", "error"]

# The answer for a key that was not found.
_NOTHING: Final = b""
# Keys are looked up in batches of so many, so that memory is needed for the result and a few of them only.
_BATCH_ROWS_MAX: Final = 65_536


class ManyRows:
    """What one call of ``lookup_many`` is to return. Has no state that changes: it may be shared by threads."""

    def __init__(
        self, info: TableInfo, columns: Sequence[str] | None, missing: Missing, found_column: str | None
    ) -> None:
        self._info = info
        self._names = info.schema.column_names if columns is None else _known_columns(info, columns)
        self._missing = missing
        self._found_column = found_column
        if missing not in get_args(Missing):
            raise FlussError(f"missing must be 'null', 'drop' or 'error', got {missing!r}")
        if found_column is not None and found_column in self._names:
            raise FlussError(
                f"found_column is {found_column!r}, which is a column of {info.table_path}; choose another"
            )
        self._positions = [info.schema.index_of(name) for name in self._names]
        self.arrow_schema = self._schema()

    def _schema(self) -> pa.Schema:
        full = self._info.schema.to_arrow()
        fields = [full.field(position) for position in self._positions]
        if self._missing == "null":
            # Keys are there in any case; all else may be missing, whatever the table says.
            keys = self._info.primary_keys
            fields = [field if field.name in keys else field.with_nullable(True) for field in fields]
        if self._found_column is not None:
            fields.append(pa.field(self._found_column, pa.bool_(), nullable=False))
        return pa.schema(fields)

    async def fetch(self, client: LookupClient, table: LookupTable, key_batches: KeyBatches, keys: Any) -> pa.Table:
        """Look up the keys of a caller. Runs on the event loop; workers do everything that takes a while."""
        offload = client.runtime.offload
        bulk = BulkFetch(client, table)
        stored_rows = StoredRows(self._info, self._positions)
        made: list[pa.RecordBatch] = []
        for batch in await offload(key_batches.batches, keys, _BATCH_ROWS_MAX):
            answers: Answers = np.full(batch.num_rows, _NOTHING, dtype=np.object_)
            await bulk.fetch(await offload(key_batches.runs, batch), answers)
            for schema_id in await offload(_unknown_schemas, stored_rows, answers):
                stored_rows.add_schema(schema_id, await client.cluster.schema(self._info.table_path, schema_id))
            made.append(await offload(self._rows, stored_rows, batch, answers))
        return pa.Table.from_batches(made, schema=self.arrow_schema)

    def _rows(self, stored_rows: StoredRows, keys: pa.RecordBatch, answers: Answers) -> pa.RecordBatch:
        """Make the part of the result that belongs to some keys."""
        is_found = answers.astype(np.bool_)
        found_count = int(is_found.sum())
        if found_count < len(answers) and self._missing == "error":
            first = keys.slice(int(is_found.argmin()), 1).to_pylist()[0]
            raise FlussError(
                f"{len(answers) - found_count} of {len(answers)} keys were not found in {self._info.table_path}; the "
                f"first of them is {first}"
            )
        rows = stored_rows.arrow(answers[is_found].tolist())
        self._check_keys(rows, keys if found_count == len(answers) else keys.filter(bool_array(is_found)))
        columns = rows.columns
        if found_count < len(answers) and self._missing == "null":
            places = number_array(np.cumsum(is_found) - 1, ~is_found)
            columns = [
                keys.column(name) if name in keys.schema.names else column.take(places)
                for name, column in zip(self._names, columns, strict=True)
            ]
        if self._found_column is not None:
            columns = [*columns, bool_array(is_found if self._missing == "null" else is_found[is_found])]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _check_keys(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> None:
        """Refuse rows of other keys than those that were asked for, as far as the columns tell."""
        for name, column in zip(self._names, rows.columns, strict=True):
            if name not in keys.schema.names or pat.is_floating(column.type):
                continue
            if not column.equals(keys.column(name)):
                raise FlussError(
                    f"the server answered a lookup in {self._info.table_path} with rows of other keys",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )


def _unknown_schemas(stored_rows: StoredRows, answers: Answers) -> list[int]:
    return stored_rows.unknown_schemas(list(filter(None, answers.tolist())))


def _known_columns(info: TableInfo, columns: Sequence[str]) -> list[str]:
    names = string_list("columns", columns)
    if not names:
        raise FlussError("Column names cannot be empty; leave columns out to get all of them")
    for name in names:
        if name not in info.schema.column_names:
            raise FlussError(f"Column '{name}' not found; columns are {shown_names(info.schema.column_names)}")
    return names
