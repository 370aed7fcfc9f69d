"""The columns of a table, its primary key, its aggregate functions, and the ids of its columns.

Ids identify columns across schema changes. They number columns and the fields inside ROW types in one sequence, depth
first: a column takes the next id, then each field inside its type does, before the next column.
``id INT, nested ROW<x INT, label STRING>, last INT`` has column ids 0, 1 and 4 and field ids 2 and 3. Columns added
later continue after ``highest_field_id``.

Aggregate functions say how a table with the aggregation merge engine folds rows of one key together.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final, TypeVar

import pyarrow as pa

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.schema.arrow import arrow_field, data_type_from_arrow
from fluss.schema.types import (
    FIELD_ID_UNASSIGNED,
    DataField,
    DataType,
    RowType,
    TypeRoot,
    field_ids,
    nesting_depth,
    number_fields,
)
from fluss.schema.value_objects import html_table, string_list

_T = TypeVar("_T")

COMMENT_METADATA_KEY: Final = b"comment"
FIELD_ID_MAX: Final = INT32_MAX
_SHOWN_NAMES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Column:
    """A named type. ``column_id`` is -1 until a schema numbers it, and does not take part in equality."""

    name: str
    data_type: DataType
    comment: str | None = None
    aggregation: AggFunction | None = None
    column_id: int = field(default=FIELD_ID_UNASSIGNED, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a column name must be str, got {type(self.name).__name__}")
        if not isinstance(self.data_type, DataType):
            raise TypeError(f"the type of column '{self.name}' must be a DataType, got {type(self.data_type).__name__}")
        if not self.name.strip():
            raise FlussError("Column names must contain at least one non-blank character")


class Schema:
    """Columns in order, and optionally a primary key. A schema never changes; changes make a new one.

    ``aggregations`` names the functions of columns for the aggregation merge engine: ``{"total": "sum"}``.
    """

    def __init__(
        self,
        schema: pa.Schema,
        primary_keys: Sequence[str] | None = None,
        auto_increment_column: str | None = None,
        *,
        aggregations: Mapping[str, AggFunction | str] | None = None,
    ) -> None:
        if not isinstance(schema, pa.Schema):
            raise FlussError(
                f"Failed to convert PyArrow schema: expected a pyarrow.Schema, got {type(schema).__name__}"
            )
        columns = _with_aggregations([column_from_arrow(arrow) for arrow in schema], aggregations or {})
        auto_increment = () if auto_increment_column is None else (auto_increment_column,)
        self._init(
            columns,
            string_list("primary_keys", primary_keys),
            string_list("auto_increment_column", auto_increment),
            None,
        )
        self.check_aggregations()

    def _init(
        self,
        columns: list[Column],
        primary_keys: list[str],
        auto_increment_columns: list[str],
        highest_field_id: int | None,
    ) -> None:
        for column in columns:
            nesting_depth(column.data_type)
        self._index_by_name = {column.name: index for index, column in enumerate(columns)}
        if len(self._index_by_name) != len(columns):
            raise FlussError(f"Duplicate column names: {shown_names(_repeated(column.name for column in columns))}")
        for index in self._key_indexes(primary_keys):
            if columns[index].aggregation is not None:
                raise FlussError(f"Primary key column '{columns[index].name}' must not have an aggregate function")
            columns[index] = replace(columns[index], data_type=columns[index].data_type.not_null())
        numbered, self._highest_field_id = _with_ids(columns, highest_field_id)
        self._columns = tuple(numbered)
        self._primary_key = tuple(primary_keys)
        self._auto_increment_columns = tuple(auto_increment_columns)
        self._arrow: pa.Schema | None = None
        self._check_auto_increment()

    def _key_indexes(self, primary_keys: Sequence[str]) -> list[int]:
        for key in primary_keys:
            if key not in self._index_by_name:
                raise FlussError(
                    f"Primary key column '{key}' not found in schema; columns are {shown_names(self._index_by_name)}"
                )
        if len(set(primary_keys)) != len(primary_keys):
            raise FlussError(f"Primary key has duplicate columns: {shown_names(_repeated(primary_keys))}")
        return [self._index_by_name[key] for key in primary_keys]

    def _check_auto_increment(self) -> None:
        names = self._auto_increment_columns
        if len(names) > 1:
            raise FlussError(f"A table can have one auto increment column only, got {shown_names(names)}")
        for name in names:
            if name not in self._index_by_name:
                raise FlussError(f"Auto increment column '{name}' not found in schema")
            if not self._primary_key:
                raise FlussError(
                    f"Auto increment column '{name}' needs a table with a primary key; primary_keys=[...] makes it a "
                    "primary-key table"
                )
            if name in self._primary_key:
                raise FlussError(
                    f"Auto increment column '{name}' must not be part of the primary key; what the server numbers can "
                    "not be used as the primary key"
                )
            data_type = self.column(name).data_type
            if data_type.root not in (TypeRoot.INTEGER, TypeRoot.BIGINT):
                raise FlussError(f"Auto increment column '{name}' must be INT or BIGINT, not {data_type}")

    @staticmethod
    def builder() -> SchemaBuilder:
        """Begin a schema that is put together step by step."""
        return SchemaBuilder()

    @property
    def columns(self) -> list[Column]:
        """The columns in their order."""
        return list(self._columns)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns in their order."""
        return list(self._index_by_name)

    @property
    def primary_key(self) -> list[str] | None:
        """Key columns in key order, which may differ from column order; None for a log table."""
        return list(self._primary_key) or None

    @property
    def primary_key_indexes(self) -> list[int]:
        """The positions of the key columns, in key order."""
        return [self._index_by_name[key] for key in self._primary_key]

    @property
    def highest_field_id(self) -> int:
        """The highest id ever given out in this table; -1 without columns."""
        return self._highest_field_id

    @property
    def row_type(self) -> RowType:
        """The columns as the fields of one NOT NULL row."""
        fields = (DataField(c.name, c.data_type, c.comment, c.column_id) for c in self._columns)
        return RowType(tuple(fields), nullable=False)

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """The types of the columns in their order."""
        return tuple(column.data_type for column in self._columns)

    def column(self, name: str) -> Column:
        """Return a column by name; an unknown one is a FlussError."""
        return self._columns[self.index_of(name)]

    def index_of(self, name: str) -> int:
        """Return the position of a column; an unknown one is a FlussError."""
        index = self._index_by_name.get(name)
        if index is None:
            raise FlussError(f"Column '{name}' not found; columns are {shown_names(self._index_by_name)}")
        return index

    def get_column_names(self) -> list[str]:
        """Return the names of the columns in their order."""
        return self.column_names

    def get_column_types(self) -> list[str]:
        """Return the types of the columns as text, such as ``int NOT NULL``."""
        return [str(column.data_type) for column in self._columns]

    def get_columns(self) -> list[tuple[str, str]]:
        """Return name and type of each column as text."""
        return [(column.name, str(column.data_type)) for column in self._columns]

    def get_primary_keys(self) -> list[str]:
        """Return the key columns in key order; none for a log table."""
        return list(self._primary_key)

    def get_auto_increment_columns(self) -> list[str]:
        """Return the columns whose values the server makes up."""
        return list(self._auto_increment_columns)

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema that every batch of the table has."""
        if self._arrow is None:
            self._arrow = pa.schema([arrow_field(column.name, column.data_type) for column in self._columns])
        return self._arrow

    def check_aggregations(self) -> None:
        """Refuse aggregate functions that do not work on the type of their column (code 39)."""
        for column in self._columns:
            if column.aggregation is not None:
                column.aggregation.check_column(column.name, column.data_type)

    def with_added_columns(self, columns: Iterable[Column]) -> Schema:
        """Return the schema with new columns at the end, numbered after every id that was ever used.

        Rows written before know nothing of them, so they must be nullable.
        """
        added: list[Column] = []
        names = set(self._index_by_name)
        next_id = self._highest_field_id + 1
        for column in columns:
            if column.name in names:
                raise _invalid_change(f"Column '{column.name}' already exists")
            if not column.data_type.nullable:
                raise _invalid_change(f"Column '{column.name}' must be nullable: existing rows have no value for it")
            numbered, next_id = _numbered_column(column, next_id)
            added.append(numbered)
            names.add(column.name)
        return schema_from_columns(
            (*self._columns, *added), self._primary_key, self._auto_increment_columns, highest_field_id=next_id - 1
        )

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self._columns, self._primary_key, self._auto_increment_columns, self._highest_field_id)
        return schema_from_columns, parts

    def _key(self) -> tuple[Any, ...]:
        return self._columns, self._primary_key, self._auto_increment_columns

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return f"Schema: columns=[{self._columns_text()}]"

    def __repr__(self) -> str:
        key = f", primary_keys={list(self._primary_key)}" if self._primary_key else ""
        return f"Schema(columns=[{self._columns_text()}]{key})"

    def _repr_html_(self) -> str:
        return self._html("Schema")

    def _html(self, caption: str, partition_keys: Sequence[str] = ()) -> str:
        """Return a table of the columns, for notebooks."""
        keys = {name: f"partition {number}" for number, name in enumerate(partition_keys, start=1)}
        for number, name in enumerate(self._primary_key, start=1):
            keys[name] = f"primary {number}, {keys[name]}" if name in keys else f"primary {number}"
        rows = [(each.name, str(each.data_type), keys.get(each.name), each.comment) for each in self._columns]
        return html_table(("column", "type", "key", "comment"), rows, caption)

    def _columns_text(self) -> str:
        return ", ".join(f"({_quoted(name)}, {_quoted(type_text)})" for name, type_text in self.get_columns())


def schema_from_columns(
    columns: Iterable[Column],
    primary_keys: Sequence[str] = (),
    auto_increment_columns: Sequence[str] = (),
    highest_field_id: int | None = None,
) -> Schema:
    """Build a schema of columns. Their ids are kept when they have any; columns without ids are numbered."""
    schema = Schema.__new__(Schema)
    schema._init(list(columns), list(primary_keys), list(auto_increment_columns), highest_field_id)
    return schema


class SchemaBuilder:
    """Collects columns and keys; ``build`` checks them as ``Schema(...)`` does."""

    def __init__(self) -> None:
        self._columns: list[Column] = []
        self._primary_keys: list[str] = []
        self._auto_increment_columns: list[str] = []

    def column(
        self,
        name: str,
        data_type: DataType,
        comment: str | None = None,
        *,
        aggregation: AggFunction | str | None = None,
    ) -> SchemaBuilder:
        """Add a column after those that are there; an aggregate function without parameters may be given by name."""
        function = AggFunction.of(aggregation) if isinstance(aggregation, str) else aggregation
        self._columns.append(Column(name, data_type, comment, function))
        return self

    def primary_key(self, keys: Sequence[str]) -> SchemaBuilder:
        """Set the key columns, in key order."""
        self._primary_keys = string_list("primary_key", keys)
        return self

    def enable_auto_increment(self, name: str) -> SchemaBuilder:
        """Let the server number the rows in this column."""
        self._auto_increment_columns.append(name)
        return self

    def build(self) -> Schema:
        """Return the schema; one that cannot be is a FlussError."""
        schema = schema_from_columns(self._columns, self._primary_keys, self._auto_increment_columns)
        schema.check_aggregations()
        return schema


def _with_aggregations(columns: list[Column], aggregations: Mapping[str, AggFunction | str]) -> list[Column]:
    names = [column.name for column in columns]
    for name in aggregations:
        if name not in names:
            raise FlussError(f"Column '{name}' has an aggregate function but is not one of {shown_names(names)}")
    functions = {
        name: AggFunction.of(function) if isinstance(function, str) else function
        for name, function in aggregations.items()
    }
    return [replace(column, aggregation=functions.get(column.name)) for column in columns]


def shown_names(names: Iterable[str]) -> str:
    """Return the first names of a list, for messages."""
    shown = list(islice(names, _SHOWN_NAMES_MAX + 1))
    more = ", ..." if len(shown) > _SHOWN_NAMES_MAX else ""
    return ", ".join(repr(name) for name in shown[:_SHOWN_NAMES_MAX]) + more


def column_from_arrow(arrow: pa.Field) -> Column:
    """Return the column that an Arrow field describes, without an id; its metadata may hold a comment."""
    comment = (arrow.metadata or {}).get(COMMENT_METADATA_KEY)
    try:
        data_type = data_type_from_arrow(arrow.type, arrow.nullable)
        return Column(arrow.name, data_type, None if comment is None else comment.decode())
    except FlussError as error:
        raise FlussError(f"Column '{arrow.name}': {error.message}") from None
    except UnicodeDecodeError:
        raise FlussError(f"Column '{arrow.name}': the comment is not valid UTF-8") from None


def _with_ids(columns: list[Column], highest_field_id: int | None) -> tuple[list[Column], int]:
    """Number columns and nested fields that have no ids, or check the ids they came with."""
    column_ids = [column.column_id for column in columns]
    nested_ids = list(chain.from_iterable(field_ids(column.data_type) for column in columns))
    _check_all_or_none("columns", column_ids)
    _check_all_or_none("nested fields", nested_ids)
    has_column_ids = not column_ids or column_ids[0] != FIELD_ID_UNASSIGNED
    has_nested_ids = bool(nested_ids) and nested_ids[0] != FIELD_ID_UNASSIGNED
    if has_nested_ids and not has_column_ids:
        raise FlussError("Nested fields have ids but their columns have none; give ids to all or to none")
    if not has_column_ids:
        columns = _numbered_columns(columns)
        nested_ids = list(chain.from_iterable(field_ids(column.data_type) for column in columns))
        column_ids = [column.column_id for column in columns]
    elif nested_ids and not has_nested_ids:
        # Some writers number columns only. The fields then follow after all columns.
        columns = _with_nested_ids(columns, max(*column_ids, highest_field_id or 0) + 1)
        nested_ids = list(chain.from_iterable(field_ids(column.data_type) for column in columns))
        highest_field_id = None
    return columns, _checked_highest_id(column_ids + nested_ids, highest_field_id)


def _check_all_or_none(what: str, ids: list[int]) -> None:
    unassigned = ids.count(FIELD_ID_UNASSIGNED)
    if 0 < unassigned < len(ids):
        raise FlussError(f"{unassigned} of {len(ids)} {what} have no id; give ids to all or to none")


def _checked_highest_id(ids: list[int], highest_field_id: int | None) -> int:
    if len(set(ids)) != len(ids):
        raise FlussError(f"Field ids must be unique, but {_repeated(ids)[0]} is repeated")
    highest = max(ids, default=FIELD_ID_UNASSIGNED)
    if min(ids, default=0) < 0 or highest > FIELD_ID_MAX:
        raise FlussError(f"Field ids must be between 0 and {FIELD_ID_MAX}")
    if highest_field_id is None:
        return highest
    if not highest <= highest_field_id <= FIELD_ID_MAX:
        raise FlussError(f"highest_field_id is {highest_field_id}, but must be between {highest} and {FIELD_ID_MAX}")
    return highest_field_id


def _numbered_column(column: Column, column_id: int) -> tuple[Column, int]:
    data_type, next_id = number_fields(column.data_type, column_id + 1)
    return replace(column, data_type=data_type, column_id=column_id), next_id


def _numbered_columns(columns: list[Column]) -> list[Column]:
    numbered_columns = []
    next_id = 0
    for column in columns:
        numbered, next_id = _numbered_column(column, next_id)
        numbered_columns.append(numbered)
    return numbered_columns


def _with_nested_ids(columns: list[Column], first_id: int) -> list[Column]:
    numbered_columns = []
    next_id = first_id
    for column in columns:
        data_type, next_id = number_fields(column.data_type, next_id)
        numbered_columns.append(replace(column, data_type=data_type))
    return numbered_columns


def _repeated(values: Iterable[_T]) -> list[_T]:
    return [value for value, count in Counter(values).items() if count > 1]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _invalid_change(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)


# Aggregate functions

_NUMBERS: Final = frozenset(
    {
        TypeRoot.TINYINT,
        TypeRoot.SMALLINT,
        TypeRoot.INTEGER,
        TypeRoot.BIGINT,
        TypeRoot.FLOAT,
        TypeRoot.DOUBLE,
        TypeRoot.DECIMAL,
    }
)
_TEXTS: Final = frozenset({TypeRoot.CHAR, TypeRoot.STRING})
_TIMES: Final = frozenset({TypeRoot.DATE, TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ})
_BITMAPS: Final = frozenset({TypeRoot.BYTES})
_ALL: Final = frozenset(TypeRoot)

# Function -> the kinds of columns it works on.
_COLUMN_KINDS: Final[dict[str, frozenset[TypeRoot]]] = {
    "sum": _NUMBERS,
    "product": _NUMBERS,
    "max": _NUMBERS | _TEXTS | _TIMES,
    "min": _NUMBERS | _TEXTS | _TIMES,
    "last_value": _ALL,
    "last_value_ignore_nulls": _ALL,
    "first_value": _ALL,
    "first_value_ignore_nulls": _ALL,
    "listagg": _TEXTS,
    "string_agg": _TEXTS,
    "bool_and": frozenset({TypeRoot.BOOLEAN}),
    "bool_or": frozenset({TypeRoot.BOOLEAN}),
    "rbm32": _BITMAPS,
    "rbm64": _BITMAPS,
}
AGG_FUNCTION_NAMES: Final = tuple(_COLUMN_KINDS)

DELIMITER_PARAMETER: Final = "delimiter"
DELIMITER_DEFAULT: Final = ","
_PARAMETERS: Final = {"listagg": frozenset({DELIMITER_PARAMETER}), "string_agg": frozenset({DELIMITER_PARAMETER})}


def canonical_function_name(name: str) -> str | None:
    """Return the spelling used on the wire (``LAST-VALUE`` becomes ``last_value``), or None for an unknown name."""
    canonical = name.strip().lower().replace("-", "_")
    return canonical if canonical in _COLUMN_KINDS else None


@dataclass(frozen=True, slots=True)
class AggFunction:
    """A function by name, with its parameters as (name, value) pairs: ``AggFunction.of("listagg", delimiter=";")``."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        canonical = canonical_function_name(self.name)
        if canonical is None:
            raise _invalid_function(
                f"Unknown aggregate function '{self.name}'; known are {', '.join(AGG_FUNCTION_NAMES)}"
            )
        object.__setattr__(self, "name", canonical)

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, str] | None = None, **more: str) -> AggFunction:
        """Return a function by name, in any case and with ``-`` or ``_``; an unknown one is a FlussError."""
        return cls(name, tuple({**(parameters or {}), **more}.items()))

    @property
    def delimiter(self) -> str:
        """The text that ``listagg`` and ``string_agg`` put between values."""
        return dict(self.parameters).get(DELIMITER_PARAMETER, DELIMITER_DEFAULT)

    def check_column(self, column_name: str, data_type: DataType) -> None:
        """Refuse a column type or parameters that the function does not have (code 39)."""
        kinds = _COLUMN_KINDS[self.name]
        if data_type.root not in kinds:
            names = ", ".join(sorted(kinds))
            raise _invalid_function(
                f"Aggregate function '{self.name}' does not work on column '{column_name}' of type {data_type}; "
                f"it takes {names}"
            )
        known = _PARAMETERS.get(self.name, frozenset())
        for parameter, value in self.parameters:
            if parameter not in known:
                raise _invalid_function(
                    f"Aggregate function '{self.name}' of column '{column_name}' has no '{parameter}'"
                )
            if not value:
                raise _invalid_function(
                    f"'{parameter}' of the aggregate function of column '{column_name}' must not be empty"
                )


def _invalid_function(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
