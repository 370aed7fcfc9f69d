"""What SHOW and DESCRIBE answer: tables of text, with the columns that Spark's own answers have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from fluss.schema.database import DatabaseInfo
from fluss.schema.table import PartitionInfo, TableInfo, qualified_partition_name
from fluss.spark.fluss_catalog import shown_properties
from fluss.spark.lexer import quoted_name, quoted_string
from fluss.spark.type_mapping import spark_schema

_DescribeRow: TypeAlias = tuple[str, str, str | None]


def databases(names: Iterable[str], pattern: str | None) -> pa.Table:
    return _table(namespace=_matching(names, pattern))


def tables(database: str, names: Iterable[str], pattern: str | None) -> pa.Table:
    found = _matching(names, pattern)
    return pa.table(
        {
            "namespace": pa.array([database] * len(found), pa.string()),
            "tableName": pa.array(found, pa.string()),
            "isTemporary": pa.array([False] * len(found), pa.bool_()),
        }
    )


def partitions(found: Sequence[PartitionInfo], partition_keys: Sequence[str]) -> pa.Table:
    return _table(partition=[qualified_partition_name(info.get_partition_spec(), partition_keys) for info in found])


def properties(info: TableInfo, key: str | None) -> pa.Table:
    shown = shown_properties(info)
    if key is not None:
        shown = {key: shown.get(key, f"Table {info.table_path} does not have property: {key}")}
    return _table(key=list(shown), value=list(shown.values()))


def description_of_database(info: DatabaseInfo) -> pa.Table:
    descriptor = info.database_descriptor
    facts = {
        "Catalog Name": "fluss",
        "Namespace Name": info.database_name,
        "Comment": descriptor.comment or "",
        "Properties": _shown_map(descriptor.custom_properties),
        "Created": _shown_time(info.created_time),
    }
    return _table(info_name=list(facts), info_value=list(facts.values()))


def description_of_table(info: TableInfo, *, is_extended: bool) -> pa.Table:
    """Return columns and keys, and if asked everything else that is known of a table."""
    columns = {
        field.name: (field.name, field.dataType.simpleString(), _comment(field.metadata)) for field in _struct(info)
    }
    rows: list[_DescribeRow] = list(columns.values())
    for title, names in (("# Primary Key", info.primary_keys), ("# Partition Information", info.partition_keys)):
        if names:
            rows += [(title, "", ""), ("# col_name", "data_type", "comment"), *(columns[name] for name in names)]
    if is_extended:
        rows += [("", "", ""), ("# Detailed Table Information", "", ""), *_facts(info)]
    names_, types, comments = zip(*rows, strict=True)
    return _table(col_name=names_, data_type=types, comment=comments)


def _facts(info: TableInfo) -> Iterable[_DescribeRow]:
    facts = {
        "Catalog": "fluss",
        "Database": info.table_path.database_name,
        "Table": info.table_path.table_name,
        "Type": "primary-key table" if info.has_primary_key() else "log table",
        "Table Id": str(info.table_id),
        "Schema Id": str(info.schema_id),
        "Buckets": str(info.num_buckets),
        "Bucket Key": ", ".join(info.bucket_keys),
        "Log Format": info.log_format.value,
        "Created": _shown_time(info.created_time),
        "Modified": _shown_time(info.modified_time),
        "Comment": info.comment or "",
        "Table Properties": _shown_map({**info.properties, **info.custom_properties}),
    }
    return [(name, value, "") for name, value in facts.items() if value]


def create_statement(info: TableInfo) -> pa.Table:
    """Return the statement that creates such a table again; types are as exact as Spark can say them."""
    path = info.table_path
    lines = [StructType([field]).toDDL() for field in _struct(info)]
    if info.primary_keys:
        lines.append(f"PRIMARY KEY ({_shown_names(info.primary_keys)})")
    statement = (
        f"CREATE TABLE fluss.{quoted_name(path.database_name, path.table_name)} (\n  " + ",\n  ".join(lines) + ")"
    )
    if info.partition_keys:
        statement += f"\nPARTITIONED BY ({_shown_names(info.partition_keys)})"
    if info.comment is not None:
        statement += f"\nCOMMENT {quoted_string(info.comment)}"
    entries = (f"{quoted_string(key)} = {quoted_string(value)}" for key, value in shown_properties(info).items())
    statement += "\nTBLPROPERTIES (\n  " + ",\n  ".join(entries) + ")"
    return _table(createtab_stmt=[statement])


def _struct(info: TableInfo) -> StructType:
    return spark_schema(info.schema)


def _comment(metadata: Mapping[str, object] | None) -> str | None:
    comment = (metadata or {}).get("comment")
    return None if comment is None else str(comment)


def _matching(names: Iterable[str], pattern: str | None) -> list[str]:
    """Return the names that match a pattern as Spark has it: ``*`` is any text, ``|`` separates alternatives."""
    if pattern is None:
        return sorted(names)
    alternatives = (".*".join(map(re.escape, part.strip().split("*"))) for part in pattern.split("|"))
    matches = re.compile("|".join(alternatives), re.IGNORECASE).fullmatch
    return sorted(name for name in names if matches(name))


def _shown_names(names: Sequence[str]) -> str:
    return ", ".join(map(quoted_name, names))


def _shown_map(values: Mapping[str, str]) -> str:
    return f"[{','.join(f'{key}={value}' for key, value in sorted(values.items()))}]" if values else ""


def _shown_time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _table(**columns: Sequence[str | None]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
