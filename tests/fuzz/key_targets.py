"""The decoders of primary-key tables, with valid inputs to damage.

A KV batch whose checksum was made right again goes the whole way: what is accepted must lead to a store that its
changelog leads to as well, and that readers can read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fluss.client.lookup.keys_and_rows import ValueReader
from fluss.errors import FlussError
from fluss.record.kv_batch import HEADER_BYTES
from fluss.row.encoded import EncodedRows
from fluss.row.values import Timestamp
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo, TablePath
from fluss.schema.type_parser import parse_type
from fluss.server.merge.changelog import decode_changelog, store_entries
from fluss.server.model import Table
from fluss.storage.kv.state import IdBlock, KvState
from tests.fuzz.engine import Target
from tests.unit.server.merge.merging import Merging, key_of, kv_batch, make_table, parsed, resealed

# Types that hold as much in a changelog as in a row.
_COLUMNS: dict[str, str] = {
    "id": "INT NOT NULL",
    "name": "STRING NOT NULL",
    "number": "BIGINT",
    "price": "DECIMAL(10, 2)",
    "at": "TIMESTAMP_LTZ(9)",
    "clock": "TIME(3)",
    "raw": "BINARY(2)",
    "tags": "ARRAY<STRING>",
    "pair": "ROW<a INT, b STRING>",
}
_ROWS: list[tuple[Any, ...]] = [
    (1, "a", 5, 100, Timestamp(1, 5), 7, b"ab", ["x", None, "a longer text"], (1, "b")),
    (2, "", None, None, None, None, None, None, None),
    (300, "ü", -1, -100, Timestamp(-1, 0), 0, b"\0\0", [], (None, None)),
]
_PARTIAL = [0, 2, 7]


def key_targets() -> Iterator[Target]:
    """Yield everything about rows by key that meets bytes of strangers, or of a disk."""
    tables = {
        "last-row": ({}, {}),
        "last-row-indexed": ({}, {"kv_format": "indexed", "log_format": "indexed"}),
        "wal": ({"changelog.image": "WAL"}, {"log_format": "compacted"}),
        "first-row": ({"merge-engine": "first_row"}, {}),
        "versioned": ({"merge-engine": "versioned", "merge-engine.versioned.ver-column": "number"}, {}),
        "aggregation": ({"merge-engine": "aggregation"}, {}),
        "no-deletes": ({"delete.behavior": "disable"}, {}),
    }
    for name, (properties, formats) in tables.items():
        yield from _table_targets(name, properties, formats)
    states = [KvState(258, 3, IdBlock(4, 5, 100_005), 772), KvState(0, None)]
    yield Target("kv-state", [state.encode() for state in states], KvState.decode)


def _table_targets(name: str, properties: Mapping[str, str], formats: Mapping[str, Any]) -> Iterator[Target]:
    table = make_table(_schema(), properties, **formats)
    good = [(key_of(table, row), row) for row in _ROWS]
    # Some keys twice, and a delete where the table takes deletes.
    seeds = [kv_batch(table, [*good, *good[:2]])]
    if name != "no-deletes":
        seeds.append(kv_batch(table, [*good[:1], (good[1][0], None), *good[1:]]))
    yield Target(f"kv-put-{name}", seeds, _putter(table, []))
    if name.startswith("last-row"):
        nullable = make_table(_schema(nullable=True), properties, **formats)
        yield Target(f"kv-put-partial-{name}", seeds, _putter(nullable, _PARTIAL))
    written = Merging(table)
    written.put(*_ROWS)
    yield Target(
        f"changelog-{name}", written.log, lambda data: store_entries(table, decode_changelog(table, parsed(data)))
    )
    info = TableInfo._create(TablePath("fluss", "t"), 1, 1, TableDescriptor(_schema(), bucket_count=1, **formats), 0, 0)
    yield Target(f"stored-row-{name}", list(written.store.values()), _row_reader(info))


def _schema(*, nullable: bool = False) -> Schema:
    builder = Schema.builder()
    for name, text in _COLUMNS.items():
        data_type = parse_type(text)
        builder.column(name, data_type.with_nullable(True) if nullable and name != "id" else data_type)
    return builder.primary_key(["id"]).build()


def _putter(table: Table, targets: list[int]) -> Callable[[bytes], object]:
    """Write a batch twice, onto rows that are there; what is left of it must be what its changelog says."""

    def put(data: bytes) -> object:
        merging = Merging(table)
        merging.put(*_ROWS[:2])
        if len(data) >= HEADER_BYTES:
            data = resealed(struct.pack("<ib", len(data) - 4, 0) + data[5:])
        for _ in range(2):
            store, log = dict(merging.store), list(merging.log)
            try:
                merging.put_batch(data, targets=targets)
            except FlussError:
                assert (merging.store, merging.log) == (store, log), "it was refused and has changed something"
                raise
            assert merging.rows() == merging.replayed()
            assert merging.row_count in (None, len(merging.store))
        merging.put(*_ROWS)
        return merging.store

    return put


def _row_reader(info: TableInfo) -> Callable[[bytes], object]:
    """Read a stored row as clients do, for itself and together with others."""

    def read(data: bytes) -> object:
        rows = ValueReader(info)
        if rows.unknown_schemas([data]):
            raise FlussError("its schema would have to be loaded first")
        return rows.rows([data]), rows.arrow(EncodedRows.from_list([data, data]))

    return read
