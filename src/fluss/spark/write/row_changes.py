"""Updates and merges of tables with a primary key, made of reads and upserts.

Both read the table as it is, find out what its rows become, and write those that change. There is no lock: what others
write between the read and the write to the same rows is written over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, expr, lit, when
from pyspark.sql.types import StructType

from fluss.errors import FlussError
from fluss.filter.lexer import quoted_name
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo, matching_name
from fluss.schema.types import ArrayType, DataType, MapType, RowType, TimestampLtzType, TimestampType
from fluss.spark.type_mapping import CHANGE_TYPE, SPARK_DIGITS_MAX, spark_schema

# A condition or a value: a column of Spark, or SQL.
ExpressionLike: TypeAlias = Column | str
_Matching: TypeAlias = Literal["matched", "not matched", "not matched by source"]

TARGET: Final = "target"
SOURCE: Final = "source"
_PRESENT: Final = "__present"
_CLAUSE: Final = "__clause"
_DELETE: Final = "-D"
_UPSERT: Final = "+U"
# Engines that make something else of a row than what is written.
_UNFIT_ENGINES: Final = ("aggregation", "first_row")
_MERGE_ENGINE: Final = "table.merge-engine"


def updated_rows(
    rows: DataFrame, info: TableInfo, set_values: Mapping[str, ExpressionLike], *, is_case_sensitive: bool
) -> DataFrame:
    """Return rows of a table with some columns set; those that are not named stay as they are."""
    check_changeable(info)
    check_keys(info)
    schema = spark_schema(info.schema)
    changes = _checked_set(info, schema, set_values, is_case_sensitive=is_case_sensitive)
    _check_kept(info, changes)
    return rows.select(
        *(
            (_column(changes[name]) if name in changes else col(quoted_name(name)))
            .cast(schema[name].dataType)
            .alias(name)
            for name in schema.names
        )
    )


def check_changeable(info: TableInfo) -> None:
    """Refuse a table in which a row that is written does not become what was written."""
    engine = info.properties.get(_MERGE_ENGINE, "").lower()
    if engine in _UNFIT_ENGINES:
        raise FlussError(
            f"{info.table_path} has the merge engine '{engine}', which does not replace rows by those that are "
            "written; write the rows themselves"
        )


def check_keys(info: TableInfo) -> None:
    """Refuse a table whose rows are written back under other keys than they were read with."""
    for name in info.primary_keys:
        data_type = info.schema.column(name).data_type
        if _is_cut(data_type):
            raise FlussError(
                f"'{name}' of {info.table_path} is {data_type.text}, and Spark sees it in microseconds: other keys "
                "would be written than were read. Change these rows with the client, by upsert_arrow and delete_arrow"
            )


def _check_kept(info: TableInfo, changes: Iterable[str]) -> None:
    """Refuse an update that would cut columns which it does not set."""
    changed = {*changes}
    for column in info.schema.columns:
        if column.name not in changed and _is_cut(column.data_type):
            raise FlussError(
                f"'{column.name}' of {info.table_path} is {column.data_type.text}, and Spark sees it in microseconds: "
                "it would be cut in all rows that are written back. Set it, too, or write the key and the columns that "
                "change only, with write(..., target_columns=[...])"
            )


def _is_cut(data_type: DataType) -> bool:
    """Whether values lose digits of a second in Spark."""
    match data_type:
        case TimestampType() | TimestampLtzType():
            return data_type.precision > SPARK_DIGITS_MAX
        case ArrayType():
            return _is_cut(data_type.element_type)
        case MapType():
            return _is_cut(data_type.key_type) or _is_cut(data_type.value_type)
        case RowType():
            return any(map(_is_cut, data_type.field_types))
    return False


def _checked_set(
    info: TableInfo, schema: StructType, changes: Mapping[str, ExpressionLike], *, is_case_sensitive: bool
) -> dict[str, ExpressionLike]:
    """Return the values of columns by the names that these have in the table."""
    if not changes:
        raise FlussError("Nothing is set; say which columns get which values, such as set={'price': 'price * 2'}")
    named = _by_columns(info, schema, changes, is_case_sensitive=is_case_sensitive)
    for name in named:
        if name in info.primary_keys:
            raise FlussError(f"'{name}' is in the primary key, which stays; delete the row and write another one")
    return named


def _by_columns(
    info: TableInfo, schema: StructType, values: Mapping[str, ExpressionLike], *, is_case_sensitive: bool
) -> dict[str, ExpressionLike]:
    named: dict[str, ExpressionLike] = {}
    for given, value in values.items():
        name = matching_name(given, schema.names, is_case_sensitive=is_case_sensitive)
        if name is None:
            raise FlussError(f"{info.table_path} has no column '{given}'; columns are {shown_names(schema.names)}")
        if name in named:
            raise FlussError(f"'{name}' is set twice")
        named[name] = value
    return named


def _column(expression: ExpressionLike) -> Column:
    return expr(expression) if isinstance(expression, str) else expression


@dataclass(frozen=True, slots=True)
class _Clause:
    """What is done with some of the rows; None for a delete."""

    matching: _Matching
    condition: ExpressionLike | None
    values: Mapping[str, ExpressionLike] | None

    def holds(self) -> Column:
        is_target = col(f"{TARGET}.{_PRESENT}").isNotNull()
        is_source = col(f"{SOURCE}.{_PRESENT}").isNotNull()
        where = {
            "matched": is_target & is_source,
            "not matched": ~is_target,
            "not matched by source": ~is_source,
        }[self.matching]
        return where if self.condition is None else where & _column(self.condition)


class Merge:
    """A merge of a DataFrame into a table with a primary key, as MERGE INTO has it.

    Conditions and values name the columns of the table as ``target.price`` and those of the DataFrame as
    ``source.price``. Of the clauses that fit a row the first one is done, at ``execute()``.
    """

    def __init__(
        self,
        info: TableInfo,
        target: DataFrame,
        source: DataFrame,
        on: ExpressionLike,
        write: Callable[[DataFrame], None],
        check: Callable[[Callable[[DataFrame], DataFrame]], None],
        *,
        is_case_sensitive: bool,
    ) -> None:
        """``write`` writes rows of the table with a column that says what each of them means.

        ``check`` is called before: with what returns the changes of rows of the table, given some of these rows.
        """
        check_changeable(info)
        check_keys(info)
        self._info = info
        self._schema = spark_schema(info.schema)
        self._target = target
        self._source = source
        self._on = _column(on)
        self._write = write
        self._check = check
        self._is_case_sensitive = is_case_sensitive
        self._clauses: list[_Clause] = []

    # Clauses

    def when_matched_update(self, set: Mapping[str, ExpressionLike], condition: ExpressionLike | None = None) -> Merge:
        """Set columns of rows of the table that a row of the source matches."""
        return self._with("matched", condition, self._checked_set(set))

    def when_matched_update_all(self, condition: ExpressionLike | None = None) -> Merge:
        """Set all columns to those of the source with the same names."""
        values = {name: value for name, value in self._all_of_source().items() if name not in self._info.primary_keys}
        return self._with("matched", condition, values)

    def when_matched_delete(self, condition: ExpressionLike | None = None) -> Merge:
        """Delete rows of the table that a row of the source matches."""
        return self._with("matched", condition, None)

    def when_not_matched_insert(
        self, values: Mapping[str, ExpressionLike], condition: ExpressionLike | None = None
    ) -> Merge:
        """Insert a row for a row of the source that matches none; columns that are not named are null."""
        named = _by_columns(self._info, self._schema, values, is_case_sensitive=self._is_case_sensitive)
        for key in self._info.primary_keys:
            if key not in named:
                raise FlussError(f"An inserted row needs a value of '{key}', which is in the primary key")
        return self._with("not matched", condition, named)

    def when_not_matched_insert_all(self, condition: ExpressionLike | None = None) -> Merge:
        """Insert rows of the source that match none, by the names of their columns."""
        return self._with("not matched", condition, self._all_of_source())

    def when_not_matched_by_source_update(
        self, set: Mapping[str, ExpressionLike], condition: ExpressionLike | None = None
    ) -> Merge:
        """Set columns of rows of the table that no row of the source matches."""
        return self._with("not matched by source", condition, self._checked_set(set))

    def when_not_matched_by_source_delete(self, condition: ExpressionLike | None = None) -> Merge:
        """Delete rows of the table that no row of the source matches."""
        return self._with("not matched by source", condition, None)

    def _with(
        self, matching: _Matching, condition: ExpressionLike | None, values: Mapping[str, ExpressionLike] | None
    ) -> Merge:
        if values is not None and matching != "not matched":
            _check_kept(self._info, values)
        self._clauses.append(_Clause(matching, condition, values))
        return self

    def _checked_set(self, values: Mapping[str, ExpressionLike]) -> dict[str, ExpressionLike]:
        return _checked_set(self._info, self._schema, values, is_case_sensitive=self._is_case_sensitive)

    def _all_of_source(self) -> dict[str, ExpressionLike]:
        # Spark finds a column of the source by a name in another case by itself.
        columns, is_exact = self._source.columns, self._is_case_sensitive
        missing = [
            name for name in self._schema.names if matching_name(name, columns, is_case_sensitive=is_exact) is None
        ]
        if missing:
            raise FlussError(f"The source has no column {shown_names(missing)}; say which columns get which values")
        return {name: col(f"{SOURCE}.{quoted_name(name)}") for name in self._schema.names}

    # Doing it

    def execute(self) -> None:
        """Do the merge. A row of the table that two rows of the source would change is a FlussError."""
        if not self._clauses:
            raise FlussError("A merge needs to know what to do: when_matched_update(...), when_not_matched_insert(...)")
        changes = self._changes().persist()
        try:
            self._check_once(changes)
            if any(clause.matching != "not matched" for clause in self._clauses):
                self._check(self._changes_of)
            self._write(changes)
        finally:
            changes.unpersist()

    def _changes_of(self, target: DataFrame) -> DataFrame:
        """Return what becomes of some rows of the table, without rows that are inserted."""
        part = copy(self)
        part._target = target
        part._clauses = [clause for clause in self._clauses if clause.matching != "not matched"]
        return part._changes()

    def _changes(self) -> DataFrame:
        """Return the rows that are written: all columns of the table, and what each row means."""
        target = self._target.withColumn(_PRESENT, lit(True)).alias(TARGET)
        source = self._source.withColumn(_PRESENT, lit(True)).alias(SOURCE)
        kinds = {clause.matching for clause in self._clauses}
        how = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "full"}[
            "not matched" in kinds, "not matched by source" in kinds
        ]
        clause = _first([(each.holds(), lit(number)) for number, each in enumerate(self._clauses)])
        rows = source.join(target, self._on, how).withColumn(_CLAUSE, clause).where(col(_CLAUSE).isNotNull())
        meaning = [lit(_DELETE if each.values is None else _UPSERT) for each in self._clauses]
        return rows.select(*map(self._value, self._schema.names), _chosen(meaning).alias(CHANGE_TYPE))

    def _value(self, name: str) -> Column:
        old, data_type = col(f"{TARGET}.{quoted_name(name)}"), self._schema[name].dataType
        values = []
        for clause in self._clauses:
            if clause.values is not None and name in clause.values:
                values.append(_column(clause.values[name]).cast(data_type))
            else:
                values.append(lit(None).cast(data_type) if clause.matching == "not matched" else old)
        return _chosen(values).alias(name)

    def _check_once(self, changes: DataFrame) -> None:
        # To delete a row twice is to delete it.
        if all(clause.values is None for clause in self._clauses):
            return
        keys = [col(quoted_name(key)) for key in self._info.primary_keys]
        twice = changes.groupBy(*keys).count().where("count > 1").take(1)
        if twice:
            shown = ", ".join(f"{key} = {twice[0][key]!r}" for key in self._info.primary_keys)
            raise FlussError(
                f"Several rows of the source are for one row of {self._info.table_path} ({shown}), and only one of "
                "them can be right; nothing was written"
            )


def _first(cases: Sequence[tuple[Column, Column]]) -> Column:
    """Return the value of the first condition that holds."""
    (condition, value), *others = cases
    return reduce(lambda chain, case: chain.when(*case), others, when(condition, value))


def _chosen(values: Sequence[Column]) -> Column:
    """Return the value of the clause that a row has."""
    return _first([(col(_CLAUSE) == lit(number), value) for number, value in enumerate(values)])
