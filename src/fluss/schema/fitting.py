"""Data of callers brought into the columns of a table, by name, as long as no value changes.

Columns come in any order, columns that may be null can be missing, columns that the table does not have are refused.
Values are converted where the column holds exactly the same:

    column                 taken besides its own type and its spellings (``normalize``)
    integers               other widths, signed or not; floats and decimals without a fraction; texts
    FLOAT, DOUBLE          integers and decimals that are exact in it; other widths of floats; texts
    DECIMAL                other precisions and scales, integers; floats that are the nearest to their decimal; texts
    BOOLEAN                texts: true, false
    BINARY(n) / BYTES      bytes of that length / of any fixed length
    DATE                   date64; timestamps at midnight; texts
    TIME, TIMESTAMP        other units, where no digit is lost; dates for TIMESTAMP; texts
    TIMESTAMP_LTZ          the same with a zone, or without one, which is UTC as in rows; texts with a zone
    ARRAY, MAP, ROW        all kinds of lists; lists of keys and values; structs by the names of their fields
    all                    dictionaries, run-end encoding, extension types by their storage, columns that are all null

Texts are what CSV files have. Only a FLOAT column rounds: 64-bit floats become the nearest 32-bit ones, as in rows.

A refusal is a FlussError that names the column, the value and the row, counted from 0 over all the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.types as pat

import fluss.arrow_compute as pc
from fluss.errors import FlussError
from fluss.options import suggestion
from fluss.schema.arrow import MAP_KEY_NAME, MAP_VALUE_NAME, TIMESTAMP_LTZ_ZONE, arrow_type
from fluss.schema.normalize import is_spelling, list_array, list_parts, struct_array, with_valid_content
from fluss.schema.schema import Schema, shown_names
from fluss.schema.types import ArrayType, DataField, DataType, DecimalType, MapType, RowType, TypeRoot

_VALUE_CHARS_MAX: Final = 60
# 19 digits of a 64-bit integer, and so many behind the point, are what a decimal128 holds.
_INTEGER_DIGITS: Final = 19
_DECIMAL128_DIGITS: Final = 38
_LISTS: Final = (pat.is_list, pat.is_large_list, pat.is_list_view, pat.is_large_list_view, pat.is_fixed_size_list)
_TEXT_SCALARS: Final = (pa.StringScalar, pa.LargeStringScalar, pa.StringViewScalar)
_PAIR: Final = [MAP_KEY_NAME, MAP_VALUE_NAME]


class DataFitter:
    """Fits batches to the columns of a schema. May be shared by threads.

    ``holder`` is what has these columns, in error messages.
    """

    def __init__(self, schema: Schema, holder: str = "the table") -> None:
        self.column_names = schema.column_names
        self._columns = schema.columns
        self._arrow_schema = schema.to_arrow()
        self._holder = holder
        # The schema of the last batch, and where its columns are; None if the batch is as the table has it.
        self._last: tuple[pa.Schema, Sequence[int | None] | None] = (self._arrow_schema, None)

    def fit(self, batch: pa.RecordBatch, row_first: int = 0) -> pa.RecordBatch:
        """Return a batch that ``normalize_batch`` takes; one that it takes already is returned as it is.

        ``row_first`` is the number of its first row, for refusals.
        """
        sources = self._sources(batch.schema)
        return batch if sources is None else self._fitted(batch, sources, row_first)

    def explain(self, batch: pa.RecordBatch, row_first: int, error: FlussError) -> NoReturn:
        """Raise what is wrong with a batch that was returned as it is, and that something else has refused."""
        self._fitted(batch, range(batch.num_columns), row_first)
        raise error

    def _sources(self, schema: pa.Schema) -> Sequence[int | None] | None:
        last_schema, sources = self._last
        if not schema.equals(last_schema):
            sources = self._found(schema)
            self._last = schema, sources
        return sources

    def _found(self, schema: pa.Schema) -> Sequence[int | None] | None:
        """Find the columns of data by name; None if they are in order, and of the right types."""
        names = schema.names
        sources = _sources(names, [(column.name, column.data_type) for column in self._columns], self._holder)
        is_straight = names == self.column_names and all(
            is_spelling(field.type, column.data_type) for field, column in zip(schema, self._columns, strict=True)
        )
        return None if is_straight else sources

    def _fitted(self, batch: pa.RecordBatch, sources: Sequence[int | None], row_first: int) -> pa.RecordBatch:
        arrays = [
            pa.nulls(batch.num_rows, field.type)
            if source is None
            else fit_column(batch.column(source), column.data_type, column.name, row_first)
            for source, column, field in zip(sources, self._columns, self._arrow_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)


def refuse_columns(names: Sequence[str], schema: Schema, holder: str) -> None:
    """Refuse data that has a column twice, or one that the schema does not have."""
    _check_names(names, schema.column_names, holder)


def _check_names(names: Sequence[str], wanted: Sequence[str], holder: str) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FlussError(f"The data has two columns named '{twice}'; {holder} takes each once")
    for name in names:
        if name not in wanted:
            close = suggestion(name, wanted) or f"; columns are {shown_names(wanted)}."
            raise FlussError(
                f"The data has a column '{name}', which {holder} does not have{close} Rename it, or leave it out"
            )


def _sources(names: Sequence[str], wanted: Sequence[tuple[str, DataType]], holder: str) -> Sequence[int | None]:
    """Return where the wanted columns are among the names, None where they are missing and may be null."""
    _check_names(names, [name for name, _ in wanted], holder)
    sources: list[int | None] = []
    for name, data_type in wanted:
        if name not in names and not data_type.nullable:
            raise FlussError(f"The data has no column '{name}', which is {data_type}; it has {shown_names(names)}")
        sources.append(names.index(name) if name in names else None)
    return sources


def fit_column(array: pa.Array, data_type: DataType, name: str, row_first: int = 0) -> pa.Array:
    """Return a column with the Arrow type of its data type, or say which of its values does not fit."""
    try:
        return _fitted_values(array, data_type)
    except (pa.ArrowException, FlussError, _MisfitError) as error:
        _refuse(array, data_type, name, row_first, error)


def _refuse(array: pa.Array, data_type: DataType, name: str, row_first: int, error: Exception) -> NoReturn:
    if isinstance(error, _MisfitError) and error.is_for_type:
        example = f", such as {_shown(array[0])} in row {row_first}" if len(array) else ""
        raise FlussError(f"Column '{name}' is {data_type} and takes no {array.type}{example}: {error}") from None
    row = _first_failing(array, data_type)
    if not array[row].is_valid and not data_type.nullable:
        raise FlussError(
            f"Column '{name}' is non-nullable but contains null in row {row_first + row}; remove such rows, or declare "
            "it nullable"
        )
    try:
        _fitted_values(array.slice(row, 1), data_type)
    except (pa.ArrowException, FlussError, _MisfitError) as reason:
        # What pyarrow says may go over several lines.
        text = (reason.message if isinstance(reason, FlussError) else str(reason)).splitlines()[0]
        raise FlussError(
            f"Row {row_first + row} has {_shown(array[row])} in column '{name}', which does not fit {data_type}: {text}"
        ) from None
    # Only all rows together are too much.
    raise FlussError(f"Column '{name}' cannot be converted to {data_type}: {error}") from error


def _shown(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py())
    except UnicodeDecodeError:
        # Deeper inside there is no way to the bytes.
        text = repr(value.as_buffer().to_pybytes()) if isinstance(value, _TEXT_SCALARS) else str(value.type)
    except (ValueError, OverflowError, pa.ArrowException):
        # Years beyond Python's.
        text = str(getattr(value, "value", value.type))
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 3]}..."


def _first_failing(array: pa.Array, data_type: DataType) -> int:
    """Return the number of the first row that cannot be converted, given that there is one."""
    first, count = 0, len(array)
    while count > 1:
        half = count // 2
        try:
            _fitted_values(array.slice(first, half), data_type)
        except (pa.ArrowException, FlussError, _MisfitError):
            count = half
        else:
            first, count = first + half, count - half
    return first


class _MisfitError(Exception):
    """Why values do not fit a column; ``is_for_type`` if none of their type can."""

    def __init__(self, reason: str, *, is_for_type: bool = False) -> None:
        super().__init__(reason)
        self.is_for_type = is_for_type


def _fitted_values(array: pa.Array, data_type: DataType) -> pa.Array:
    fitted = with_valid_content(_converted(_plain(array), data_type))
    if fitted.null_count and not data_type.nullable:
        raise _MisfitError("it must not be null")
    return fitted


def _plain(array: pa.Array) -> pa.Array:
    """Return the values themselves, of whatever encoding."""
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pat.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif pat.is_dictionary(array.type):
            values = _plain(array.dictionary)
            if pat.is_string_view(values.type) or pat.is_binary_view(values.type):
                # Views cannot be decoded.
                values = values.cast(pa.string() if pat.is_string_view(values.type) else pa.binary())
            array = pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
        else:
            return array


def _converted(array: pa.Array, data_type: DataType) -> pa.Array:
    """Return values in the Arrow type of a data type; nulls of their own are not looked at."""
    if pat.is_null(array.type):
        return pa.nulls(len(array), arrow_type(data_type))
    match data_type:
        case ArrayType():
            return _converted_list(array, data_type)
        case MapType():
            return _converted_map(array, data_type)
        case RowType():
            return _converted_row(array, data_type)
    if is_spelling(array.type, data_type):
        return array.cast(arrow_type(data_type))
    convert = _CONVERSIONS.get(data_type.root)
    converted = None if convert is None else convert(array, data_type)
    if converted is None:
        raise _MisfitError("cast it, or build the data with the Arrow schema of the table", is_for_type=True)
    return converted


# Single values: each returns None if no value of that Arrow type can fit


def _is_text(pa_type: pa.DataType) -> bool:
    return any(is_text(pa_type) for is_text in (pat.is_string, pat.is_large_string, pat.is_string_view))


def _text(array: pa.Array) -> pa.Array:
    return array.cast(pa.string()) if pat.is_string_view(array.type) else array


def _to_integer(array: pa.Array, data_type: DataType) -> pa.Array | None:
    source = array.type
    if _is_text(source):
        return _text(array).cast(arrow_type(data_type))
    if pat.is_integer(source) or pat.is_floating(source):
        return _from_half(array).cast(arrow_type(data_type))
    return array.cast(arrow_type(data_type)) if pat.is_decimal(source) else None


def _to_float(array: pa.Array, data_type: DataType) -> pa.Array | None:
    source, target = array.type, arrow_type(data_type)
    if pat.is_integer(source):
        # pyarrow refuses all large numbers, also those that are exact.
        converted = array.cast(target, safe=False)
        _check_same(array, converted.cast(source, safe=False))
        return converted
    if pat.is_decimal(source):
        converted = decimals_to_floats(array, pa.float64())
        _check_same(array, floats_to_decimals(converted, source))
        return _rounded(converted, target)
    if pat.is_floating(source):
        return _rounded(_from_half(array), target)
    if not _is_text(source):
        return None
    text = _text(array)
    numbers = text.cast(pa.float64())
    is_lost = pc.and_(pc.is_inf(numbers), pc.invert(pc.match_substring(text, pattern="inf", ignore_case=True)))
    if pc.any(is_lost).as_py():
        raise _MisfitError("it is beyond the range of 64-bit floats")
    return _rounded(numbers, target)


def _from_half(array: pa.Array) -> pa.Array:
    return array.cast(pa.float32()) if pat.is_float16(array.type) else array


def _rounded(numbers: pa.Array, target: pa.DataType) -> pa.Array:
    if numbers.type == target:
        return numbers
    converted = numbers.cast(target)
    if pc.any(pc.and_(pc.is_inf(converted), pc.is_finite(numbers))).as_py():
        raise _MisfitError("it is beyond the range of 32-bit floats")
    return converted


def _to_decimal(array: pa.Array, data_type: DataType) -> pa.Array | None:
    assert isinstance(data_type, DecimalType)
    source, target = array.type, arrow_type(data_type)
    if pat.is_decimal(source):
        return array.cast(target)
    if pat.is_integer(source):
        # pyarrow wants room for all values of the type, also for those that are not there.
        is_large = data_type.scale + _INTEGER_DIGITS + 1 > _DECIMAL128_DIGITS
        wide = pa.decimal256(76, data_type.scale) if is_large else pa.decimal128(_DECIMAL128_DIGITS, data_type.scale)
        return array.cast(wide).cast(target)
    if pat.is_floating(source):
        return floats_to_decimals(_from_half(array), target)
    return _text(array).cast(target) if _is_text(source) else None


def decimals_to_floats(decimals: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the nearest float of each decimal. What pyarrow casts directly may be one that is only near."""
    return decimals.cast(pa.string()).cast(target)


def floats_to_decimals(floats: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the decimal with the fewest digits that each float is the nearest to, or fail where it has too many."""
    return floats.cast(pa.string()).cast(target)


def _to_boolean(array: pa.Array, data_type: DataType) -> pa.Array | None:
    return _text(array).cast(pa.bool_()) if _is_text(array.type) else None


def _to_bytes(array: pa.Array, data_type: DataType) -> pa.Array | None:
    source, target = array.type, arrow_type(data_type)
    if pat.is_fixed_size_binary(source) or pat.is_binary(source):
        return array.cast(target)
    if pat.is_large_binary(source) or pat.is_binary_view(source):
        return array.cast(pa.binary()).cast(target)
    return None


def _to_date(array: pa.Array, data_type: DataType) -> pa.Array | None:
    source, target = array.type, arrow_type(data_type)
    if pat.is_date(source):
        return array.cast(target)
    if pat.is_timestamp(source) and source.tz is None:
        converted = array.cast(target)
        _check_same(array, converted.cast(source))
        return converted
    return _text(array).cast(target) if _is_text(source) else None


def _to_time(array: pa.Array, data_type: DataType) -> pa.Array | None:
    source, target = array.type, arrow_type(data_type)
    if pat.is_time(source):
        return array.cast(target)
    if not _is_text(source):
        return None
    # Times of the day are read as those of some day.
    days = pc.if_else(pc.is_null(array), pa.scalar(None, pa.string()), pa.scalar("1970-01-01", pa.string()))
    moments = pc.binary_join_element_wise(days, _text(array).cast(pa.string()), " ")
    return _moments(moments, pa.timestamp(target.unit)).cast(target)


def _to_timestamp(array: pa.Array, data_type: DataType) -> pa.Array | None:
    source, target = array.type, arrow_type(data_type)
    if pat.is_timestamp(source):
        if source.tz is not None:
            raise _MisfitError(
                "a TIMESTAMP has no zone; use a TIMESTAMP_LTZ column, or remove the zone", is_for_type=True
            )
        return array.cast(target)
    if pat.is_date(source):
        return array.cast(target)
    return _moments(_text(array), target) if _is_text(source) else None


def _to_timestamp_ltz(array: pa.Array, data_type: DataType) -> pa.Array | None:
    source, target = array.type, arrow_type(data_type)
    if pat.is_timestamp(source):
        # Instants are the same in every zone; without one they are UTC, as in rows.
        return array.cast(pa.timestamp(source.unit, tz=TIMESTAMP_LTZ_ZONE)).cast(target)
    return _moments(_text(array), target) if _is_text(source) else None


def _moments(texts: pa.Array, target: pa.TimestampType) -> pa.Array:
    """Read moments. pyarrow takes no more digits than the type has, not even zeros, which are what others end with."""
    try:
        return texts.cast(target)
    except pa.ArrowInvalid:
        if target.unit not in ("s", "ms"):
            raise
        return texts.cast(pa.timestamp("us", tz=target.tz)).cast(target)


_CONVERSIONS: Final[dict[TypeRoot, Callable[[pa.Array, DataType], pa.Array | None]]] = {
    TypeRoot.BOOLEAN: _to_boolean,
    TypeRoot.TINYINT: _to_integer,
    TypeRoot.SMALLINT: _to_integer,
    TypeRoot.INTEGER: _to_integer,
    TypeRoot.BIGINT: _to_integer,
    TypeRoot.FLOAT: _to_float,
    TypeRoot.DOUBLE: _to_float,
    TypeRoot.DECIMAL: _to_decimal,
    TypeRoot.BINARY: _to_bytes,
    TypeRoot.BYTES: _to_bytes,
    TypeRoot.DATE: _to_date,
    TypeRoot.TIME: _to_time,
    TypeRoot.TIMESTAMP: _to_timestamp,
    TypeRoot.TIMESTAMP_LTZ: _to_timestamp_ltz,
}


def _check_same(array: pa.Array, back: pa.Array) -> None:
    """Refuse values that were not the same after a conversion and back."""
    if not pc.all(pc.equal(array, back), min_count=0).as_py():
        raise _MisfitError("its value would change")


# Lists, maps and rows


def _is_list(pa_type: pa.DataType) -> bool:
    return any(is_list(pa_type) for is_list in _LISTS)


def _converted_list(array: pa.Array, data_type: ArrayType) -> pa.Array:
    if not _is_list(array.type):
        raise _MisfitError("it takes lists", is_for_type=True)
    lists, elements = list_parts(array)
    return list_array(arrow_type(data_type), lists, _fitted_values(elements, data_type.element_type))


def _converted_map(array: pa.Array, data_type: MapType) -> pa.Array:
    if not (pat.is_map(array.type) or _is_list(array.type)):
        raise _MisfitError("it takes maps, or lists of keys and values", is_for_type=True)
    lists, entries = list_parts(array)
    # Libraries without maps have lists of structs instead.
    has_pairs = pat.is_struct(entries.type) and [child.name for child in entries.type] == _PAIR
    if not (has_pairs or pat.is_map(array.type)):
        raise _MisfitError(f"a list can stand for a map if it has structs of {shown_names(_PAIR)}", is_for_type=True)
    target = arrow_type(data_type)
    keys = _fitted_values(entries.field(0), data_type.key_type.not_null())
    values = _fitted_values(entries.field(1), data_type.value_type)
    children = pa.StructArray.from_arrays([keys, values], fields=[target.key_field, target.item_field])
    return list_array(target, lists, children)


def _converted_row(array: pa.Array, data_type: RowType) -> pa.Array:
    if not pat.is_struct(array.type):
        raise _MisfitError("it takes structs", is_for_type=True)
    names = [child.name for child in array.type]
    try:
        sources = _sources(names, [(f.name, f.data_type) for f in data_type.fields], "the row")
    except FlussError as error:
        raise _MisfitError(error.message, is_for_type=True) from None
    children = array.flatten()
    fitted = [
        pa.nulls(len(array), arrow_type(field.data_type))
        if source is None
        else _fitted_field(children[source], field, array)
        for source, field in zip(sources, data_type.fields, strict=True)
    ]
    return struct_array(arrow_type(data_type), array, fitted)


def _fitted_field(child: pa.Array, field: DataField, parent: pa.Array) -> pa.Array:
    """Fit a field of rows. It is null wherever its row is; those nulls are not its own."""
    fitted = _fitted_values(child, field.data_type.with_nullable(True))
    if not field.data_type.nullable and fitted.null_count > parent.null_count:
        raise _MisfitError(f"its field '{field.name}' must not be null")
    return fitted
