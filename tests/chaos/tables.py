"""The tables of a chaos run: how numbers of a history are spelled as rows, and read back.

Each number has a twin column, and a text whose length depends on it: a row that was mixed up or cut shows.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import fluss
from fluss.testing.history import ABSENT, DAMAGED, Change, Numbers, Write

BUCKETS: Final = 3
KEYS: Final = 120
_TWIN: Final = 0x5DEECE66D
_PAD_MAX: Final = 97
_CHANGES: Final = {
    "append_only": Change.APPEND,
    "insert": Change.INSERT,
    "update_before": Change.UPDATE_BEFORE,
    "update_after": Change.UPDATE_AFTER,
    "delete": Change.DELETE,
}


def log_descriptor() -> fluss.TableDescriptor:
    types = fluss.DataTypes
    builder = fluss.Schema.builder().column("n", types.bigint()).column("twin", types.bigint())
    return fluss.TableDescriptor(builder.column("pad", types.string()).build(), bucket_count=BUCKETS)


def key_descriptor() -> fluss.TableDescriptor:
    types = fluss.DataTypes
    builder = fluss.Schema.builder().column("k", types.int())
    for name in ("value", "other"):
        builder = builder.column(name, types.bigint()).column(f"{name}_twin", types.bigint())
        builder = builder.column(f"{name}_pad", types.string())
    return fluss.TableDescriptor(builder.primary_key(["k"]).build(), bucket_count=BUCKETS)


def log_row(number: int) -> dict[str, Any]:
    return {"n": number, "twin": number ^ _TWIN, "pad": _pad(number)}


def log_batch(numbers: list[int]) -> pa.RecordBatch:
    column = np.array(numbers, np.int64)
    return pa.record_batch({"n": column, "twin": column ^ _TWIN, "pad": pa.array([_pad(number) for number in numbers])})


WRITTEN_COLUMNS: Final = {
    Write.VALUE: ["k", "value", "value_twin", "value_pad"],
    Write.OTHER: ["k", "other", "other_twin", "other_pad"],
}


def key_row(kind: Write, key: int, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"k": key}
    for name, partial in (("value", Write.OTHER), ("other", Write.VALUE)):
        if kind is not partial:
            row |= {name: number, f"{name}_twin": number ^ _TWIN, f"{name}_pad": _pad(number)}
    return row


def key_batch(keys: list[int], numbers: list[int]) -> pa.RecordBatch:
    column = np.array(numbers, np.int64)
    columns: dict[str, Any] = {"k": pa.array(keys, pa.int32())}
    pads = pa.array([_pad(number) for number in numbers])
    for name in ("value", "other"):
        columns |= {name: column, f"{name}_twin": column ^ _TWIN, f"{name}_pad": pads}
    return pa.record_batch(columns)


def _pad(number: int) -> str:
    return "ab" * (number % _PAD_MAX)


def numbers_in(rows: pa.RecordBatch | pa.Table, name: str, twin: str, pad: str) -> Numbers:
    """Return the numbers of a column, ABSENT for null, DAMAGED where the row is not whole."""
    is_null = rows[name].is_null().to_numpy(zero_copy_only=False)
    found = _integers(rows[name])
    lengths = _integers(pc.binary_length(rows[pad]))
    is_whole = (_integers(rows[twin]) == (found ^ _TWIN)) & (lengths == 2 * (found % _PAD_MAX))
    are_null = np.logical_and.reduce(
        [is_null, *(rows[c].is_null().to_numpy(zero_copy_only=False) for c in (twin, pad))]
    )
    return np.where(are_null, ABSENT, np.where(is_whole & ~is_null, found, DAMAGED))


def _integers(column: Any) -> Numbers:
    found: Numbers = column.cast(pa.int64()).fill_null(ABSENT).to_numpy().astype(np.int64)
    return found


def log_numbers(rows: pa.RecordBatch) -> Numbers:
    return numbers_in(rows, "n", "twin", "pad")


def key_numbers(rows: pa.RecordBatch | pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    """Return key, value and other of rows by key."""
    value = numbers_in(rows, "value", "value_twin", "value_pad")
    return _integers(rows["k"]), value, numbers_in(rows, "other", "other_twin", "other_pad")


def row_numbers(row: dict[str, Any] | None) -> tuple[int, int]:
    """Return value and other of a row that was looked up."""
    if row is None:
        return ABSENT, ABSENT
    found = []
    for name in ("value", "other"):
        number, twin, pad = row[name], row[f"{name}_twin"], row[f"{name}_pad"]
        if number is None and twin is None and pad is None:
            found.append(ABSENT)
        elif number is not None and twin == number ^ _TWIN and pad == _pad(number):
            found.append(number)
        else:
            found.append(DAMAGED)
    return found[0], found[1]


def change_numbers(names: pa.Array) -> Numbers:
    return np.array([int(_CHANGES[name]) for name in names.to_pylist()], np.int64)
