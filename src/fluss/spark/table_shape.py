"""A new table beside its columns: keys, buckets, options; and how a list of properties says all that, as in SQL.

| property | meaning |
|---|---|
| ``primary.key`` | the columns of the primary key, where it is not written as PRIMARY KEY |
| ``bucket.key``, ``bucket.num`` | the columns that decide about the bucket of a row, and how many buckets there are |
| ``fields.<column>.agg`` | the aggregate function of a column, for ``table.merge-engine = aggregation`` |
| ``fields.<column>.<function>.<parameter>`` | a parameter of that function, such as the delimiter of ``listagg`` |
| ``auto-increment.fields`` | the column whose values the server makes up |
| ``varchar.<column>`` | how many characters the texts of a column have at most; VARCHAR(n) sets it |
| ``table.*`` | the options of the table |
| anything else | kept with the table, without a meaning |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from fluss.errors import FlussError
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import AggFunction, Schema, schema_from_columns
from fluss.schema.table import TableInfo
from fluss.schema.table_options import TABLE_PREFIX

# The property that Spark takes for the comment of a table.
COMMENT: Final = "comment"
COMMENT_STAYS: Final = (
    "the comment of a table is set when it is created, by CREATE TABLE ... COMMENT '...', and cannot be changed in "
    "Fluss; ALTER TABLE ... SET TBLPROPERTIES ('note' = '...') keeps any other text with a table"
)

ChoiceT = TypeVar("ChoiceT", tuple[str, ...], int | None)

_PRIMARY_KEY: Final = "primary.key"
_BUCKET_KEY: Final = "bucket.key"
_BUCKET_NUM: Final = "bucket.num"
_AUTO_INCREMENT: Final = "auto-increment.fields"
_OWN_PREFIXES: Final = ("primary.", "bucket.", "auto-increment.")
_AGGREGATION: Final = re.compile(r"fields\.(?P<column>.+)\.agg")
_PARAMETER: Final = re.compile(r"fields\.(?P<column>.+)\.(?P<function>[A-Za-z_-]+)\.(?P<parameter>[A-Za-z_-]+)")


@dataclass(frozen=True)
class TableShape:
    """Everything about a new table beside its columns."""

    primary_keys: tuple[str, ...] = ()
    partition_keys: tuple[str, ...] = ()
    bucket_keys: tuple[str, ...] = ()
    bucket_count: int | None = None
    aggregations: Mapping[str, AggFunction] = field(default_factory=dict)
    auto_increment_columns: tuple[str, ...] = ()
    comment: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    custom_properties: Mapping[str, str] = field(default_factory=dict)

    def with_properties(self, properties: Mapping[str, str]) -> TableShape:
        """Add what a list of properties says. What is said a second time, and differently, is a FlussError."""
        rest = dict(properties)
        functions = _functions(rest)
        bucket_count = _bucket_count(rest.pop(_BUCKET_NUM, None))
        shape = replace(
            self,
            primary_keys=_either("primary key", self.primary_keys, _names(rest.pop(_PRIMARY_KEY, ""))),
            bucket_keys=_either("bucket key", self.bucket_keys, _names(rest.pop(_BUCKET_KEY, ""))),
            bucket_count=_either("number of buckets", self.bucket_count, bucket_count),
            aggregations={**self.aggregations, **functions},
            auto_increment_columns=_either(
                "auto-increment column", self.auto_increment_columns, _names(rest.pop(_AUTO_INCREMENT, ""))
            ),
        )
        for key in rest:
            if key.startswith(_OWN_PREFIXES):
                known = ", ".join((_PRIMARY_KEY, _BUCKET_KEY, _BUCKET_NUM, _AUTO_INCREMENT))
                raise FlussError(f"Unknown property '{key}'; did you mean one of {known}?")
        options, custom = split_properties(rest)
        return replace(shape, options={**self.options, **options}, custom_properties=custom)

    def descriptor(self, schema: Schema) -> TableDescriptor:
        """Return the description of a new table with these columns; one that cannot be is a FlussError."""
        for name in self.aggregations:
            schema.column(name)
        columns = [replace(column, aggregation=self.aggregations.get(column.name)) for column in schema.columns]
        shaped = schema_from_columns(columns, self.primary_keys, self.auto_increment_columns)
        shaped.check_aggregations()
        return TableDescriptor(
            shaped,
            partition_keys=self.partition_keys,
            bucket_count=self.bucket_count,
            bucket_keys=self.bucket_keys,
            comment=self.comment,
            properties=self.options,
            custom_properties=self.custom_properties,
        )


def split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide properties into options of the table and those that mean something to users only."""
    options = {key: value for key, value in properties.items() if key.startswith(TABLE_PREFIX)}
    return options, {key: value for key, value in properties.items() if key not in options}


def shown_properties(info: TableInfo) -> dict[str, str]:
    """Return the properties of a table in the one list that SQL shows, without the primary key."""
    properties = {_BUCKET_NUM: str(info.num_buckets)}
    if info.bucket_keys:
        properties[_BUCKET_KEY] = ",".join(info.bucket_keys)
    for column in info.schema.columns:
        if column.aggregation is not None:
            function = column.aggregation
            properties[f"fields.{column.name}.agg"] = function.name
            for parameter, value in function.parameters:
                properties[f"fields.{column.name}.{function.name}.{parameter}"] = value
    if info.schema.get_auto_increment_columns():
        properties[_AUTO_INCREMENT] = ",".join(info.schema.get_auto_increment_columns())
    return {**properties, **dict(sorted({**info.properties, **info.custom_properties}.items()))}


def _functions(properties: dict[str, str]) -> dict[str, AggFunction]:
    """Take the aggregate functions of columns out of a list of properties."""
    functions = {}
    for key in list(properties):
        chosen = _AGGREGATION.fullmatch(key)
        if chosen is not None:
            functions[chosen["column"]] = AggFunction.of(properties.pop(key))
    for key in list(properties):
        found = _PARAMETER.fullmatch(key)
        if found is None:
            continue
        function = functions.get(found["column"])
        if function is None or AggFunction.of(found["function"]).name != function.name:
            raise FlussError(f"'{key}' needs 'fields.{found['column']}.agg' = '{found['function']}'")
        parameters = {**dict(function.parameters), found["parameter"]: properties.pop(key)}
        functions[found["column"]] = AggFunction.of(function.name, parameters)
    return functions


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _bucket_count(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise FlussError(f"Invalid value '{text}' for '{_BUCKET_NUM}': expected the number of buckets, such as 4")
    return int(text)


def _either(what: str, first: ChoiceT, second: ChoiceT) -> ChoiceT:
    """Return what was said in one way or the other."""
    if first and second and first != second:
        raise FlussError(f"The {what} is given twice, as {first} and as {second}; keep one")
    return first or second
