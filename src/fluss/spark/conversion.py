"""Arrow batches on their way from Fluss to Spark, and back.

Spark takes a batch only if its Arrow schema is the very one it expects, and sends what its plan happens to make:
another zone, other nullability. Fluss has one Arrow type for each of its types. So batches are converted, column by
column. A column that fits already is not copied.

    values                            to Spark                            from Spark
    fractions of a second             cut to the digits of the type,      cut to the digits of the column,
                                      towards the past                    towards the past
    instants                          zone UTC                            zone UTC, from any
    bytes of a fixed length           bytes                               as many as the column has, or an error
    numbers                           as they are                         into any number type that holds the value;
                                                                          the nearest one of FLOAT and DOUBLE
    columns and fields of structs     found by name                       found by name; a missing one becomes null;
                                                                          fields in any case if the session is so
    texts of CHAR(n), VARCHAR(n)      as they are                         at most n characters, or an error
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyspark.sql import types as spark

from fluss.errors import FlussError
from fluss.options import suggestion
from fluss.row.arrow_arrays import number_array
from fluss.schema.arrow import TIMESTAMP_LTZ_ZONE, arrow_type
from fluss.schema.fitting import decimals_to_floats, floats_to_decimals
from fluss.schema.normalize import list_array, list_parts, normalize_batch, struct_array
from fluss.schema.schema import Schema, schema_from_columns, shown_names
from fluss.schema.table import matching_name
from fluss.schema.types import ArrayType, DataType, MapType, RowType, TimestampLtzType, TimestampType, TimeType
from fluss.spark.text_limits import char_limits, within_limit
from fluss.spark.type_mapping import SPARK_DIGITS_MAX

# Makes an array of a type out of one of another; None where nothing is to be done.
Conversion: TypeAlias = Callable[[pa.Array], pa.Array] | None

_DIGITS_BY_UNIT: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_LIST_CHILD: Final = "element"
# What a decimal256 holds.
_WIDE_DIGITS: Final = 76

_SPARK_ARROW_TYPES: Final[dict[type[spark.DataType], pa.DataType]] = {
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.StringType: pa.string(),
    spark.CharType: pa.string(),
    spark.VarcharType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.DateType: pa.date32(),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.TimestampType: pa.timestamp("us", tz=TIMESTAMP_LTZ_ZONE),
    spark.TimeType: pa.time64("ns"),
    spark.NullType: pa.null(),
}


@dataclass(frozen=True, slots=True)
class Form:
    """The form that values are brought into: an Arrow type, and how many digits of a second count.

    ``children`` are the forms of what is inside: of elements, of key and value, of the fields of a struct, which are
    found in any upper and lower case unless ``is_case_sensitive``.
    """

    type: pa.DataType
    digits: int = 9
    children: tuple[Form, ...] = ()
    is_case_sensitive: bool = True


def spark_form(data_type: spark.DataType) -> Form:
    """Return the form in which Spark takes and hands over values; a type that it cannot exchange is a FlussError."""
    plain = _SPARK_ARROW_TYPES.get(type(data_type))
    if plain is not None:
        return Form(plain, data_type.precision if isinstance(data_type, spark.TimeType) else SPARK_DIGITS_MAX)
    match data_type:
        case spark.DecimalType():
            return Form(pa.decimal128(data_type.precision, data_type.scale))
        case spark.ArrayType():
            element = spark_form(data_type.elementType)
            child = pa.field(_LIST_CHILD, element.type, nullable=data_type.containsNull)
            return Form(pa.list_(child), children=(element,))
        case spark.MapType():
            key, value = spark_form(data_type.keyType), spark_form(data_type.valueType)
            value_field = pa.field("value", value.type, nullable=data_type.valueContainsNull)
            return Form(pa.map_(pa.field("key", key.type, nullable=False), value_field), children=(key, value))
        case spark.StructType():
            children = tuple(spark_form(field.dataType) for field in data_type)
            fields = [
                pa.field(field.name, form.type, nullable=field.nullable)
                for field, form in zip(data_type, children, strict=True)
            ]
            return Form(pa.struct(fields), children=children)
    raise FlussError(f"Values of the Spark type {data_type.simpleString()} cannot be exchanged with Fluss")


def spark_arrow_schema(struct: spark.StructType) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark takes for a schema."""
    return pa.schema(list(spark_form(struct).type))


def _fluss_form(data_type: DataType, is_case_sensitive: bool) -> Form:
    inner: Sequence[DataType] = ()
    match data_type:
        case TimeType() | TimestampType() | TimestampLtzType():
            return Form(arrow_type(data_type), data_type.precision)
        case ArrayType():
            inner = [data_type.element_type]
        case MapType():
            inner = [data_type.key_type, data_type.value_type]
        case RowType():
            inner = data_type.field_types
    children = tuple(_fluss_form(each, is_case_sensitive) for each in inner)
    return Form(arrow_type(data_type), children=children, is_case_sensitive=is_case_sensitive)


class ToSpark:
    """Brings batches into the form of a Spark schema. Columns are found by name; others are left out."""

    def __init__(self, struct: spark.StructType) -> None:
        form = spark_form(struct)
        self._schema = pa.schema(list(form.type))
        self._forms = form.children
        self._parts: Sequence[_Part] = ()
        self._source: pa.Schema | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch as Spark takes it; values that Spark cannot have are a FlussError."""
        if self._source is None or not self._source.equals(batch.schema):
            self._parts = _parts(batch.schema, self._schema, self._forms)
            self._source = batch.schema
        arrays = [part.converted(batch.columns, batch.num_rows) for part in self._parts]
        for field, array in zip(self._schema, arrays, strict=True):
            if array.null_count and not field.nullable:
                raise FlussError(f"Column '{field.name}' is NOT NULL, but there are rows in which it is null")
        if not arrays:
            # A batch without columns still has a number of rows.
            return batch.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class FromSpark:
    """Brings batches of Spark into the form of a table, or of some of its columns in this order.

    Columns are found by name. Those that are missing become null; a NOT NULL one must be there, and have no nulls.
    ``text_limits`` are the lengths of columns that take no longer texts; by default those of CHAR columns. Fields
    inside structs are found in any upper and lower case unless ``is_case_sensitive``.
    """

    def __init__(
        self,
        schema: Schema,
        columns: Sequence[str] | None = None,
        text_limits: Mapping[str, int] | None = None,
        *,
        is_case_sensitive: bool = True,
    ) -> None:
        limits = char_limits(schema) if text_limits is None else text_limits
        chosen = schema.columns if columns is None else [schema.column(name) for name in columns]
        self._target = schema_from_columns(chosen)
        self._arrow = self._target.to_arrow()
        self._limits = [(index, limits[c.name], c.name) for index, c in enumerate(chosen) if c.name in limits]
        self._forms = [_fluss_form(column.data_type, is_case_sensitive) for column in chosen]
        self._parts: Sequence[_Part] = ()
        self._source: pa.Schema | None = None

    def check(self, struct: spark.StructType) -> None:
        """Make sure that rows with this schema can be written; a column that cannot is a FlussError that names it."""
        for field in struct:
            _checked_form(field)
        self._prepare(spark_arrow_schema(struct))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in the form of the table; a value that does not fit is a FlussError that names a column."""
        if self._source is None or not self._source.equals(batch.schema):
            self._prepare(batch.schema)
        arrays = [part.converted(batch.columns, batch.num_rows) for part in self._parts]
        for index, length, name in self._limits:
            arrays[index] = within_limit(arrays[index], length, name)
        return normalize_batch(pa.RecordBatch.from_arrays(arrays, names=self._arrow.names), self._target)

    def _prepare(self, source: pa.Schema) -> None:
        known = self._arrow.names
        for name in source.names:
            if name not in known:
                close = suggestion(name, known) or f"; columns are {shown_names(known)}"
                raise FlussError(f"The table has no column '{name}' to write to{close}")
        if len(set(source.names)) != len(source.names):
            raise FlussError(f"Two of the columns {shown_names(source.names)} have the same name")
        self._parts = _parts(source, self._arrow, self._forms)
        self._source = source


def _checked_form(field: spark.StructField) -> None:
    try:
        spark_form(field.dataType)
    except FlussError as error:
        raise FlussError(f"Column '{field.name}': {error.message}") from None


@dataclass(frozen=True, slots=True)
class _Part:
    """A column of a batch, or a field of a struct: where it is in the source, if it is, and what is done with it."""

    path: str
    type: pa.DataType
    index: int | None
    conversion: Conversion

    @classmethod
    def of(cls, source: pa.Schema, field: pa.Field, form: Form, path: str) -> _Part:
        index = source.get_field_index(field.name)
        if index >= 0:
            return cls(path, form.type, index, _conversion(source.field(index).type, form, path))
        if not field.nullable:
            raise FlussError(f"Column '{path}' is NOT NULL, so it must be among {shown_names(source.names)}")
        return cls(path, form.type, None, None)

    def converted(self, arrays: Sequence[pa.Array], row_count: int) -> pa.Array:
        if self.index is None:
            return pa.nulls(row_count, self.type)
        try:
            return _applied(self.conversion, arrays[self.index])
        except pa.ArrowException as error:
            raise FlussError(f"Column '{self.path}' has a value that does not fit {self.type}: {error}") from None


def _parts(source: pa.Schema, fields: Iterable[pa.Field], forms: Iterable[Form], path: str = "") -> list[_Part]:
    return [_Part.of(source, field, form, path + field.name) for field, form in zip(fields, forms, strict=True)]


def _applied(conversion: Conversion, array: pa.Array) -> pa.Array:
    return array if conversion is None else conversion(array)


# Conversions


def _conversion(source: pa.DataType, form: Form, path: str) -> Conversion:
    """Return how to bring arrays of a type into a form; FlussError if no values of it can be."""
    target = form.type
    if pat.is_null(source) and not pat.is_null(target):
        return lambda array: pa.nulls(len(array), target)
    if pat.is_list(target):
        return _list_conversion(source, form, path)
    if pat.is_map(target):
        return _map_conversion(source, form, path)
    if pat.is_struct(target):
        return _struct_conversion(source, form, path)
    if _is_time(source) and _is_time(target) and _has_zone(source) == _has_zone(target):
        return _time_conversion(source, form)
    if source.equals(target):
        return None
    if pat.is_integer(source) and pat.is_decimal(target):
        return _integer_to_decimal(target)
    if pat.is_floating(source) and pat.is_decimal(target):
        return lambda array: floats_to_decimals(array, target)
    if pat.is_decimal(source) and pat.is_floating(target):
        return lambda array: decimals_to_floats(array, target)
    if pat.is_integer(source) and pat.is_floating(target):
        # pyarrow refuses large integers unless told that the nearest number will do, as it does in Spark.
        return lambda array: array.cast(target, safe=False)
    if not any(is_source(source) and is_target(target) for is_source, is_target in _CASTS):
        raise _misfit(source, target, path)
    return lambda array: array.cast(target)


def _misfit(source: pa.DataType, target: pa.DataType, path: str) -> FlussError:
    return FlussError(f"Column '{path}' holds {source}, which cannot become {target}; cast it in Spark")


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pat.is_string(data_type) or pat.is_large_string(data_type) or pat.is_string_view(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(
        pat.is_binary(data_type)
        or pat.is_large_binary(data_type)
        or pat.is_binary_view(data_type)
        or pat.is_fixed_size_binary(data_type)
    )


# What pyarrow casts value by value, and refuses to where a value would become another.
_CASTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...]] = (
    (_is_text, _is_text),
    (_is_bytes, _is_bytes),
    (pat.is_integer, pat.is_integer),
    (pat.is_floating, pat.is_floating),
    (pat.is_floating, pat.is_integer),
    (pat.is_decimal, pat.is_decimal),
    (pat.is_decimal, pat.is_integer),
    (pat.is_date, pat.is_date),
)


def _integer_to_decimal(target: pa.DataType) -> Conversion:
    # pyarrow refuses the cast unless the decimal has room for every integer of the type.
    roomy = pa.decimal256(_WIDE_DIGITS, target.scale)
    return lambda array: array.cast(roomy).cast(target)


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pat.is_time(data_type) or pat.is_timestamp(data_type))


def _has_zone(data_type: pa.DataType) -> tuple[bool, bool]:
    """Tell times of day, dates with a time, and instants apart."""
    is_timestamp = bool(pat.is_timestamp(data_type))
    return is_timestamp, is_timestamp and data_type.tz is not None


def _time_conversion(source: pa.DataType, form: Form) -> Conversion:
    target = form.type
    digits = min(form.digits, _DIGITS_BY_UNIT[target.unit])
    is_cut = digits < _DIGITS_BY_UNIT[source.unit]
    if not is_cut and source.equals(target):
        return None
    if not is_cut:
        # An instant is the same number in every zone; a cast between zones would look them up.
        relabelled = pa.timestamp(source.unit, tz=target.tz) if pat.is_timestamp(source) else source
        return lambda array: array.view(relabelled).cast(target)
    step = _int64(10 ** (_DIGITS_BY_UNIT[source.unit] - digits))
    units_per_step = _int64(10 ** (_DIGITS_BY_UNIT[target.unit] - digits))
    source_number, target_number = _number_type(source), _number_type(target)

    def convert(array: pa.Array) -> pa.Array:
        steps = _floor_divided(array.view(source_number).cast(pa.int64()), step)
        return pc.multiply_checked(steps, units_per_step).cast(target_number).view(target)

    return convert


def _int64(number: int) -> pa.Scalar:
    """Return a number as pyarrow has it; given a plain one, it would import pandas."""
    return number_array(np.array([number], np.int64))[0]


def _number_type(data_type: pa.DataType) -> pa.DataType:
    return pa.int32() if data_type.bit_width == 32 else pa.int64()


def _floor_divided(numbers: pa.Array, divisor: pa.Scalar) -> pa.Array:
    """Divide 64-bit integers, towards minus infinity; pyarrow itself divides towards zero."""
    quotients = pc.divide(numbers, divisor)
    is_above = pc.greater(pc.multiply(quotients, divisor), numbers)
    return pc.subtract(quotients, is_above.cast(pa.int64()))


def _list_conversion(source: pa.DataType, form: Form, path: str) -> Conversion:
    if not (pat.is_list(source) or pat.is_large_list(source)):
        raise _misfit(source, form.type, path)
    element = _conversion(source.value_type, form.children[0], f"{path}[]")
    if element is None and source.equals(form.type):
        return None

    def convert(array: pa.Array) -> pa.Array:
        lists, elements = list_parts(array)
        return list_array(form.type, lists, _applied(element, elements))

    return convert


def _map_conversion(source: pa.DataType, form: Form, path: str) -> Conversion:
    if not pat.is_map(source):
        raise _misfit(source, form.type, path)
    key = _conversion(source.key_type, form.children[0], f"{path}.key")
    value = _conversion(source.item_type, form.children[1], f"{path}.value")
    if key is None and value is None and source.equals(form.type):
        return None

    def convert(array: pa.Array) -> pa.Array:
        lists, entries = list_parts(array)
        pairs = [_applied(key, entries.field(0)), _applied(value, entries.field(1))]
        fields = [form.type.key_field, form.type.item_field]
        return list_array(form.type, lists, pa.StructArray.from_arrays(pairs, fields=fields))

    return convert


def _struct_conversion(source: pa.DataType, form: Form, path: str) -> Conversion:
    if not pat.is_struct(source):
        raise _misfit(source, form.type, path)
    names = [field.name for field in form.type]
    found: dict[str, pa.Field] = {}
    for field in source:
        name = matching_name(field.name, names, is_case_sensitive=form.is_case_sensitive)
        if name is None:
            raise FlussError(f"Column '{path}' has no field '{field.name}'; fields are {shown_names(names)}")
        if name in found:
            given = shown_names([each.name for each in source])
            raise FlussError(f"Two of the fields {given} of column '{path}' are for its field '{name}'")
        found[name] = field.with_name(name)
    parts = _parts(pa.schema(list(found.values())), form.type, form.children, f"{path}.")
    if source.equals(form.type) and all(part.conversion is None for part in parts):
        return None

    def convert(array: pa.Array) -> pa.Array:
        # Flattened fields are null where their struct is; nothing behind a null can fail to be converted.
        children = array.flatten()
        return struct_array(form.type, array, [part.converted(children, len(array)) for part in parts])

    return convert
