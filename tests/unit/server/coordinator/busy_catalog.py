"""A process that changes a catalog without end, and says which change it begins and when it is done.

Run by the crash test, which kills it: ``python busy_catalog.py <metadata file> <seed>``.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from fluss.net.transport import run
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, schema_from_columns
from fluss.schema.table import TablePath
from fluss.schema.types import IntType, StringType
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.metadata.metadata_store import MetadataStore
from fluss.server.coordinator.table_descriptors import changed
from fluss.server.model import Table

SCHEMA = schema_from_columns([Column("id", IntType()), Column("dt", StringType())])
DESCRIPTOR = TableDescriptor(SCHEMA, partition_keys=["dt"], bucket_count=1)
TABLES = [f"t{number}" for number in range(6)]
PARTITIONS = [f"p{number}" for number in range(6)]

# What is done, to which table, and with what.
Change: TypeAlias = tuple[str, str, Any]


class NoBuckets:
    """A bucket host that has nothing to do."""

    async def open_buckets(self, table: Table, partition: Any) -> None:
        await asyncio.sleep(0)

    async def know_log_ends(self, table: Table, partition: Any) -> None:
        await asyncio.sleep(0)

    async def drop_buckets(self, table: Table, partition: Any) -> tuple[int, ...]:
        await asyncio.sleep(0)
        return ()

    def table_altered(self, table: Table) -> None:
        pass


def next_change(catalog: Catalog, rng: random.Random, number: int) -> Change:
    name = rng.choice(TABLES)
    if catalog.table_by_path(TablePath("fluss", name)) is None:
        return ("create table", name, None)
    kind = rng.choices(["drop table", "add column", "set", "create partitions", "drop partition"], [1, 2, 2, 3, 2])[0]
    detail = {
        "set": str(number),
        "create partitions": rng.sample(PARTITIONS, k=rng.randint(1, 3)),
        "drop partition": rng.choice(PARTITIONS),
    }
    return (kind, name, detail.get(kind))


async def make(catalog: Catalog, change: Change) -> None:
    kind, name, detail = change
    path = TablePath("fluss", name)
    table = catalog.table_by_path(path)
    if table is None:
        await catalog.create_table(path, DESCRIPTOR, ignore_if_exists=False)
    elif kind == "drop table":
        await catalog.drop_table(path, ignore_if_not_exists=False)
    elif kind == "add column":
        await catalog.alter_table(path, _with_column, ignore_if_not_exists=False)
    elif kind == "set":
        await catalog.alter_table(path, lambda table: _with_property(table, detail), ignore_if_not_exists=False)
    elif kind == "create partitions":
        await catalog.create_partitions(table.table_id, detail, count_max=100)
    else:
        await catalog.drop_partitions(table.table_id, [detail])


def _with_property(table: Table, value: str) -> Table:
    return replace(table, descriptor=changed(table.descriptor, custom_properties={"n": value}))


def _with_column(table: Table) -> Table:
    schema = table.descriptor.schema.with_added_columns([Column(f"c{table.schema_id}", IntType())])
    schemas = {**table.schemas, table.schema_id + 1: schema}
    descriptor = changed(table.descriptor, schema=schema)
    return replace(table, descriptor=descriptor, schema_id=table.schema_id + 1, schemas=schemas)


async def main(metadata_file: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = await MetadataStore.open(metadata_file)
    catalog = await Catalog.open(store, clock=lambda: 0)
    catalog.attach(NoBuckets())
    number = 0
    while True:
        change = next_change(catalog, rng, number)
        print(repr(change), flush=True)
        await make(catalog, change)
        print("done", flush=True)
        number += 1


if __name__ == "__main__":
    run(main(Path(sys.argv[1]), int(sys.argv[2])))
