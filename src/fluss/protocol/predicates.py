"""Row filters as messages: bound predicates to ``PbPredicate`` and back.

    column type                  literal type         field of the value
    BOOLEAN                      0                    boolean_value
    TINYINT, SMALLINT, INT       1, 2, 3              int_value
    BIGINT                       4                    bigint_value
    FLOAT, DOUBLE                5, 6                 float_value, double_value
    CHAR, STRING                 7, 8                 string_value
    DECIMAL                      9                    decimal_value, the unscaled value of up to 18 digits; else
                                                      decimal_bytes, big-endian two's complement
    DATE                         10                   bigint_value, epoch days
    TIME                         11                   int_value, milliseconds of the day
    TIMESTAMP, TIMESTAMP_LTZ     12, 13               timestamp_millis_value, timestamp_nano_of_millis_value
    BINARY, BYTES                14, 15               binary_value

A literal may also have another type that means the same: another width of integer, CHAR for STRING, BINARY for BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from fluss.errors import CorruptMessageError, ErrorCode, FlussError
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.row.scalars import UNSCALED_BYTES_MAX, encode_unscaled
from fluss.row.values import DAY_MS, NANOS_PER_MILLI
from fluss.schema.predicate import (
    PREDICATE_DEPTH_MAX,
    SET_FUNCTIONS,
    TEXT_FUNCTIONS,
    TEXT_ROOTS,
    BoundCompound,
    BoundLeaf,
    BoundLiteral,
    BoundPredicate,
    CompoundFunction,
    FilterLimits,
    LeafFunction,
)
from fluss.schema.schema import Schema
from fluss.schema.types import DataType, DecimalType, TypeRoot

_TYPE_LEAF: Final = 0
_TYPE_COMPOUND: Final = 1

# The literal type is the position; each type is named with the field its value lies in.
_LITERAL_TYPES: Final[tuple[tuple[TypeRoot, str], ...]] = (
    (TypeRoot.BOOLEAN, "boolean_value"),
    (TypeRoot.TINYINT, "int_value"),
    (TypeRoot.SMALLINT, "int_value"),
    (TypeRoot.INTEGER, "int_value"),
    (TypeRoot.BIGINT, "bigint_value"),
    (TypeRoot.FLOAT, "float_value"),
    (TypeRoot.DOUBLE, "double_value"),
    (TypeRoot.CHAR, "string_value"),
    (TypeRoot.STRING, "string_value"),
    (TypeRoot.DECIMAL, "decimal_value"),
    (TypeRoot.DATE, "bigint_value"),
    (TypeRoot.TIME, "int_value"),
    (TypeRoot.TIMESTAMP, "timestamp_millis_value"),
    (TypeRoot.TIMESTAMP_LTZ, "timestamp_millis_value"),
    (TypeRoot.BINARY, "binary_value"),
    (TypeRoot.BYTES, "binary_value"),
)
_LITERAL_TYPE_BY_ROOT: Final = {root: number for number, (root, _) in enumerate(_LITERAL_TYPES)}

_INTEGER_BITS: Final = {
    TypeRoot.TINYINT: 8,
    TypeRoot.SMALLINT: 16,
    TypeRoot.INTEGER: 32,
    TypeRoot.BIGINT: 64,
    TypeRoot.DATE: 32,
}
_BYTES_ROOTS: Final = frozenset({TypeRoot.BINARY, TypeRoot.BYTES})
_WHOLE_NUMBER_ROOTS: Final = frozenset({TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT})
# Types whose literals may stand for each other.
_SAME_MEANING: Final = (_WHOLE_NUMBER_ROOTS, TEXT_ROOTS, _BYTES_ROOTS)

_LEAF_FUNCTIONS: Final = {int(function): function for function in LeafFunction}
_COMPOUND_FUNCTIONS: Final = {int(function): function for function in CompoundFunction}
_NULL_FUNCTIONS: Final = frozenset({LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL})


def predicate_to_pb(predicate: BoundPredicate) -> pb.PbPredicate:
    """Return the message of a bound predicate. Columns are named by their ids, so positions do not matter."""
    if isinstance(predicate, BoundLeaf):
        literals = [_literal_to_pb(value, predicate.data_type) for value in predicate.literals]
        leaf = pb.PbLeafPredicate(function=predicate.function, field_id=predicate.field_id, literals=literals)
        return pb.PbPredicate(type=_TYPE_LEAF, leaf=leaf)
    children = [predicate_to_pb(child) for child in predicate.children]
    compound = pb.PbCompoundPredicate(function=predicate.function, children=children)
    return pb.PbPredicate(type=_TYPE_COMPOUND, compound=compound)


def encoded_within_limits(predicate: BoundPredicate) -> bytes | None:
    """Return the encoded message of a predicate; None if it is larger than servers take unless told otherwise."""
    limits = FilterLimits()
    condition_count, literal_count = _size(predicate)
    if condition_count > limits.conditions_max or literal_count > limits.literals_max:
        return None
    encoded: bytes = predicate_to_pb(predicate).SerializeToString()
    return encoded if len(encoded) <= limits.bytes_max else None


def _size(predicate: BoundPredicate) -> tuple[int, int]:
    """Count the conditions of a predicate, with the ANDs and ORs that join them, and its literals."""
    if isinstance(predicate, BoundLeaf):
        return 1, len(predicate.literals)
    sizes = [_size(child) for child in predicate.children]
    return 1 + sum(size[0] for size in sizes), sum(size[1] for size in sizes)


class FilterAllowance:
    """What the filters of one request may still have; each takes its part. What exceeds it is refused with code 13."""

    __slots__ = ("_bytes", "_limits", "condition_count", "literal_count")

    def __init__(self, limits: FilterLimits | None = None) -> None:
        self._limits = limits or FilterLimits()
        # What they have taken so far.
        self._bytes = self.condition_count = self.literal_count = 0

    def take_bytes(self, count: int) -> None:
        self._bytes += count
        _check("bytes", self._bytes, self._limits.bytes_max, "ask for fewer or shorter values")

    def take_conditions(self, count: int) -> None:
        self.condition_count += count
        _check("conditions", self.condition_count, self._limits.conditions_max, "ask for a list of values with IN")

    def take_literals(self, count: int) -> None:
        self.literal_count += count
        _check("values", self.literal_count, self._limits.literals_max, "ask for a range instead of single values")


def _check(what: str, count: int, count_max: int, advice: str) -> None:
    if count > count_max:
        raise _limit_error(
            f"The filter of a fetch has {count} {what} or more, this server takes {count_max}: {advice}, or filter the "
            "rows after reading them"
        )


def _limit_error(message: str) -> FlussError:
    # A code that every client knows. Released ones take those that they do not know for reasons to try again.
    return FlussError(message, ErrorCode.RECORD_TOO_LARGE_EXCEPTION)


def decode_predicate(data: bytes, schema: Schema, allowance: FilterAllowance) -> BoundPredicate:
    """Return the predicate of an encoded message, bound to the schema whose id came with it.

    CorruptMessageError says what is wrong: an unknown function, column or literal type, a literal that its column
    cannot hold, or bytes that are no such message. More than the allowance is refused with another error, before more
    of the message is looked at; so is a predicate of more than PREDICATE_DEPTH_MAX levels.
    """
    try:
        message = pb.PbPredicate.FromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptMessageError(
            f"a filter of {len(data)} bytes is no message, or is nested more than {PREDICATE_DEPTH_MAX} levels deep"
        ) from error
    if not message.IsInitialized():
        raise CorruptMessageError("a filter lacks required fields")
    return predicate_from_pb(message, schema, allowance)


def predicate_from_pb(
    message: pb.PbPredicate, schema: Schema, allowance: FilterAllowance | None = None
) -> BoundPredicate:
    """Return the predicate of a message. Raises what ``decode_predicate`` raises."""
    return _Binder(schema, allowance or FilterAllowance()).bind(message)


class _Binder:
    """Turns messages into predicates on the columns of a schema, as long as the allowance lasts."""

    def __init__(self, schema: Schema, allowance: FilterAllowance) -> None:
        self._schema = schema
        self._positions = {column.column_id: position for position, column in enumerate(schema.columns)}
        self._allowance = allowance

    def bind(self, message: pb.PbPredicate) -> BoundPredicate:
        self._allowance.take_conditions(1)
        return self._bind(message, 1)

    def _bind(self, message: pb.PbPredicate, depth: int) -> BoundPredicate:
        if depth > PREDICATE_DEPTH_MAX:
            raise _limit_error(f"A filter can be nested at most {PREDICATE_DEPTH_MAX} levels deep; write it flatter")
        if message.type == _TYPE_LEAF and message.HasField("leaf"):
            self._allowance.take_literals(len(message.leaf.literals))
            return _leaf_from_pb(message.leaf, self._schema, self._positions)
        if message.type == _TYPE_COMPOUND and message.HasField("compound"):
            return self._bind_compound(message.compound, depth)
        raise CorruptMessageError(f"a filter of type {message.type} lacks its content, or the type is unknown")

    def _bind_compound(self, compound: pb.PbCompoundPredicate, depth: int) -> BoundCompound:
        function = _COMPOUND_FUNCTIONS.get(compound.function)
        if function is None:
            raise CorruptMessageError(f"a filter combines conditions with the unknown function {compound.function}")
        if not compound.children:
            raise CorruptMessageError("a filter combines no conditions at all")
        self._allowance.take_conditions(len(compound.children))
        return BoundCompound(function, tuple(self._bind(child, depth + 1) for child in compound.children))


def _leaf_from_pb(leaf: pb.PbLeafPredicate, schema: Schema, positions: Mapping[int, int]) -> BoundLeaf:
    position = positions.get(leaf.field_id)
    if position is None:
        raise CorruptMessageError(f"a filter asks for the column with the id {leaf.field_id}, which the schema lacks")
    column = schema.columns[position]
    function = _LEAF_FUNCTIONS.get(leaf.function)
    if function is None:
        raise CorruptMessageError(f"a filter on column '{column.name}' has the unknown function {leaf.function}")
    if column.data_type.is_nested:
        raise CorruptMessageError(f"a filter on column '{column.name}' of type {column.data_type} is not supported")
    if function in TEXT_FUNCTIONS and column.data_type.root not in TEXT_ROOTS:
        raise CorruptMessageError(
            f"the filter function {function.name} requires a character string column, "
            f"but '{column.name}' is {column.data_type}"
        )
    if function not in SET_FUNCTIONS and len(leaf.literals) != int(function not in _NULL_FUNCTIONS):
        raise CorruptMessageError(f"the filter function {function.name} has {len(leaf.literals)} literals")
    try:
        literals = tuple(_literal_from_pb(literal, column.data_type) for literal in leaf.literals)
    except _MisfitError as reason:
        raise CorruptMessageError(
            f"a filter literal does not fit column '{column.name}' of type {column.data_type}: {reason}"
        ) from None
    if None in literals and function not in SET_FUNCTIONS:
        raise CorruptMessageError(f"the filter function {function.name} cannot take a null literal")
    return BoundLeaf(function, column.column_id, position, column.data_type, literals)


def _literal_to_pb(value: BoundLiteral, data_type: DataType) -> pb.PbLiteralValue:
    literal_type = _LITERAL_TYPE_BY_ROOT[data_type.root]
    message = pb.PbLiteralValue(literal_type=literal_type, is_null=value is None)
    if value is None:
        return message
    if isinstance(value, tuple):
        message.timestamp_millis_value, message.timestamp_nano_of_millis_value = value
    elif isinstance(data_type, DecimalType) and not data_type.is_compact:
        assert isinstance(value, int)
        message.decimal_bytes = encode_unscaled(value, data_type)
    else:
        setattr(message, _LITERAL_TYPES[literal_type][1], value)
    return message


class _MisfitError(Exception):
    """Why a literal cannot be compared with a column."""


def _literal_from_pb(message: pb.PbLiteralValue, data_type: DataType) -> BoundLiteral:
    if not 0 <= message.literal_type < len(_LITERAL_TYPES):
        raise _MisfitError(f"its type {message.literal_type} is unknown")
    root, field_name = _LITERAL_TYPES[message.literal_type]
    if root is not data_type.root and not any({root, data_type.root} <= same for same in _SAME_MEANING):
        raise _MisfitError(f"it is of type {root}")
    if message.is_null:
        return None
    if isinstance(data_type, DecimalType) and message.HasField("decimal_bytes"):
        return _unscaled(message.decimal_bytes, data_type)
    if not message.HasField(field_name):  # type: ignore[arg-type]  # The names above are those of the message.
        raise _MisfitError("it has no value")
    check = _CHECKS.get(data_type.root)
    value: BoundLiteral = getattr(message, field_name)
    if field_name == "string_value" and not isinstance(value, str):
        # Parsers of proto2 let text pass that is not UTF-8.
        raise _MisfitError("it is not valid UTF-8")
    return value if check is None else check(value, message, data_type)


def _unscaled(data: bytes, data_type: DecimalType) -> int:
    if len(data) > UNSCALED_BYTES_MAX:
        raise _MisfitError(f"it has {len(data)} bytes")
    return _checked_decimal(int.from_bytes(data, "big", signed=True), None, data_type)


def _checked_integer(value: Any, message: object, data_type: DataType) -> int:
    bits = _INTEGER_BITS[data_type.root]
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise _MisfitError(f"{value} has more than {bits} bits")
    return int(value)


def _checked_decimal(value: Any, message: object, data_type: Any) -> int:
    if abs(value) >= 10**data_type.precision:
        raise _MisfitError(f"the unscaled value {value} has more than {data_type.precision} digits")
    return int(value)


def _checked_time(value: Any, message: object, data_type: DataType) -> int:
    if not 0 <= value < DAY_MS:
        raise _MisfitError(f"{value} ms is outside the day")
    return int(value)


def _checked_timestamp(value: Any, message: pb.PbLiteralValue, data_type: DataType) -> tuple[int, int]:
    nanos = message.timestamp_nano_of_millis_value
    if not 0 <= nanos < NANOS_PER_MILLI:
        raise _MisfitError(f"{nanos} nanoseconds are more than a millisecond")
    return int(value), nanos


# Types that are not listed take every value that the field can hold.
_CHECKS: Final[dict[TypeRoot, Callable[[Any, Any, Any], BoundLiteral]]] = {
    TypeRoot.TINYINT: _checked_integer,
    TypeRoot.SMALLINT: _checked_integer,
    TypeRoot.INTEGER: _checked_integer,
    TypeRoot.BIGINT: _checked_integer,
    TypeRoot.DATE: _checked_integer,
    TypeRoot.DECIMAL: _checked_decimal,
    TypeRoot.TIME: _checked_time,
    TypeRoot.TIMESTAMP: _checked_timestamp,
    TypeRoot.TIMESTAMP_LTZ: _checked_timestamp,
}
