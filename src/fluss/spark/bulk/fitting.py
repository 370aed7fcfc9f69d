"""How the columns of a file become the columns of a table, and which row does not fit.

Names are found as they are written, then without regard to case. A column that the file does not have gets the value
that the directories of its path state (``day=2026-01-01/orders.parquet``), else it is null, if it may be. Values are
converted as long as they stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from fluss.errors import FlussError
from fluss.options import suggestion
from fluss.row.arrow_arrays import empty_batch
from fluss.row.partition_names import parse_partition_value
from fluss.row.values import arrow_from_internal
from fluss.schema.arrow import arrow_type
from fluss.schema.fitting import fit_column
from fluss.schema.schema import Schema, shown_names
from fluss.schema.types import DataType
from fluss.spark.bulk.files import DataFile, PlacedBatch
from fluss.spark.bulk.task_results import UnfitInputError
from fluss.spark.conversion import FromSpark

_TIME_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


@dataclass(frozen=True)
class ColumnChoice:
    """What the caller says about columns. It goes to the executors."""

    targets: tuple[str, ...] | None = None
    """The columns of the table that are written, in this order; None for all that the files have."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Columns of the table by the names that files have for them."""
    ignore_extra: bool = False
    """Whether columns that the table does not have are left out."""

    def wanted(self, schema: Schema) -> Sequence[str]:
        """Return the columns of the table that files may have."""
        return schema.column_names if self.targets is None else self.targets

    def source_names(self, schema: Schema) -> dict[str, str]:
        """Return the names that columns have in files, as far as the caller says; else those of the table."""
        given = {target: source for source, target in self.renames.items()}
        return {name: given.get(name, name) for name in self.wanted(schema)}

    @property
    def is_extra_ignored(self) -> bool:
        """Whether a file may have columns that are not wanted."""
        return self.ignore_extra or self.targets is not None

    @classmethod
    def of(
        cls, columns: Sequence[str] | Mapping[str, str] | None, schema: Schema, *, ignore_extra: bool
    ) -> ColumnChoice:
        """Take what users give: a list of columns, or a dict from the names in files to the columns."""
        if columns is None:
            return cls(ignore_extra=ignore_extra)
        if isinstance(columns, str):
            raise TypeError("columns must be a list of names or a dict, got str")
        renames = dict(columns) if isinstance(columns, Mapping) else {}
        targets = tuple(renames.values() if isinstance(columns, Mapping) else columns)
        for name in targets:
            if name not in schema.column_names:
                close = suggestion(name, schema.column_names) or f"; columns are {shown_names(schema.column_names)}"
                raise FlussError(f"The table has no column '{name}' to load{close}")
        if len(set(targets)) != len(targets):
            raise FlussError(f"A column is named twice: {shown_names(targets)}")
        return cls(targets, renames, ignore_extra)


@dataclass(frozen=True)
class ColumnFit:
    """The columns of one file: those that are read, by their names in the table, and those that its path states."""

    sources: Mapping[str, str]
    path_values: Mapping[str, str | None]

    @classmethod
    def of(cls, file: DataFile, names: Sequence[str], schema: Schema, choice: ColumnChoice) -> ColumnFit:
        """Find the columns of a file with these names; UnfitInputError if there is one too many or too few."""
        if len(set(names)) != len(names):
            raise UnfitInputError(f"{file.path} has two columns of one name: {shown_names(names)}")
        wanted = choice.wanted(schema)
        sources: dict[str, str] = {}
        for name in names:
            target = _target_of(name, wanted, choice, names)
            if target is None and choice.is_extra_ignored:
                continue
            if target is None:
                close = suggestion(name, wanted) or f"; columns are {shown_names(wanted)}"
                raise UnfitInputError(
                    f"{file.path} has a column '{name}', which the table does not have{close}; rename it with "
                    f"columns={{...}}, or leave out such columns with ignore_extra=True"
                )
            if target in sources:
                raise UnfitInputError(
                    f"{file.path} has two columns for '{target}': '{sources[target]}' and '{name}'; choose one with "
                    "columns={...}"
                )
            sources[target] = name
        path_values = {name: value for name, value in file.path_values.items() if name in wanted}
        fit = cls(sources, {name: value for name, value in path_values.items() if name not in sources})
        fit._check_missing(file, schema, choice)
        return fit

    def _check_missing(self, file: DataFile, schema: Schema, choice: ColumnChoice) -> None:
        for column in schema.columns:
            name = column.name
            if name in self.sources or name in self.path_values:
                continue
            if choice.targets is not None and name in choice.targets:
                raise UnfitInputError(f"{file.path} has no column for '{name}'; it has {shown_names(self.sources)}")
            if not column.data_type.nullable:
                raise UnfitInputError(f"{file.path} has no column '{name}', which is NOT NULL")

    @property
    def targets(self) -> list[str]:
        """The columns of the table that are read from the file."""
        return list(self.sources)


def _target_of(name: str, wanted: Sequence[str], choice: ColumnChoice, names: Sequence[str]) -> str | None:
    """Return the column of the table that a column of a file is for."""
    if name in choice.renames:
        return choice.renames[name]
    if name in wanted:
        # Unless another column of the file was renamed to it.
        return None if name in choice.renames.values() else name
    folded = [target for target in wanted if target.casefold() == name.casefold() and target not in names]
    return folded[0] if len(folded) == 1 and folded[0] not in choice.renames.values() else None


class RowFitter:
    """Brings the rows of one file into the form of a table. A row that does not fit is named in the error."""

    def __init__(self, schema: Schema, fit: ColumnFit, text_limits: Mapping[str, int] | None = None) -> None:
        """``text_limits`` are the lengths of columns that take no longer texts."""
        self._convert = FromSpark(schema, text_limits=text_limits, is_case_sensitive=False)
        self._stated = [
            (name, _stated_value(text, schema.column(name).data_type, name)[0])
            for name, text in fit.path_values.items()
        ]
        self._data_types = {column.name: column.data_type for column in schema.columns}
        self._types = {name: arrow_type(data_type) for name, data_type in self._data_types.items()}

    def check(self, file: DataFile, source: pa.Schema) -> None:
        """Refuse columns whose types can never become those of the table; ``source`` has the table's names."""
        try:
            self._fitted(empty_batch(source))
        except FlussError as error:
            raise UnfitInputError(f"{file.path}: {error.message}", error.error_code) from None

    def __call__(self, placed: PlacedBatch) -> pa.RecordBatch:
        """Return rows in the form of the table."""
        try:
            return self._fitted(placed.rows)
        except FlussError:
            number = _first_failing(placed.rows, self._fitted)
            try:
                self._fitted(placed.rows.slice(number, 1))
            except FlussError as error:
                raise UnfitInputError(f"{placed.place(number)}: {error.message}", error.error_code) from None
            raise

    def _fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [self._plain(name, array) for name, array in zip(rows.schema.names, rows.columns, strict=True)]
        names = list(rows.schema.names)
        for name, value in self._stated:
            arrays.append(pa.repeat(value, rows.num_rows))
            names.append(name)
        return self._convert(pa.RecordBatch.from_arrays(arrays, names=names))

    def _plain(self, name: str, array: pa.Array) -> pa.Array:
        """Decode dictionaries, and let no digits of a second get lost, nor any of a number."""
        if pat.is_dictionary(array.type):
            array = array.dictionary_decode()
        source, target = array.type, self._types[name]
        if pat.is_floating(target) and (pat.is_integer(source) or pat.is_decimal(source)):
            # What Spark writes may be rounded here; a file is loaded as it is.
            return fit_column(array, self._data_types[name], name)
        is_time = (pat.is_timestamp(source) and pat.is_timestamp(target)) or (
            pat.is_time(source) and pat.is_time(target)
        )
        if is_time and _TIME_DIGITS[source.unit] > _TIME_DIGITS[target.unit]:
            unit = pa.timestamp(target.unit, tz=source.tz) if pat.is_timestamp(source) else target
            try:
                return array.cast(unit)
            except pa.ArrowException as error:
                raise FlussError(f"Column '{name}' has a time that does not fit {target}: {error}") from None
        return array


def _stated_value(text: str | None, data_type: DataType, name: str) -> pa.Array:
    """Return an array of the one value that a path states for a column."""
    target = arrow_type(data_type)
    if text is None:
        return pa.nulls(1, target)
    try:
        return arrow_from_internal([parse_partition_value(text, data_type)], data_type)
    except FlussError:
        pass
    try:
        return pa.array([text], pa.string()).cast(target)
    except pa.ArrowException as error:
        raise UnfitInputError(f"The path states '{name}={text}', which is no {data_type}: {error}") from None


def _first_failing(rows: pa.RecordBatch, convert: Callable[[pa.RecordBatch], object]) -> int:
    """Return the number of the first row that cannot be converted, given that there is one."""
    first, count = 0, rows.num_rows
    while count > 1:
        half = count // 2
        try:
            convert(rows.slice(first, half))
        except FlussError:
            count = half
        else:
            first, count = first + half, count - half
    return first
