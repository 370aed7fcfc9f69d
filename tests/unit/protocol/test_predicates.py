"""Filters travel as messages and arrive as the same conditions; anything a server cannot mean to obey is refused.
Shown with drawn trees over every scalar type, through the bytes of a request, and with a table of broken messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptMessageError, ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.predicates import FilterAllowance, decode_predicate, predicate_from_pb, predicate_to_pb
from fluss.schema.predicate import (
    PREDICATE_DEPTH_MAX,
    BoundCompound,
    BoundLeaf,
    BoundPredicate,
    CompoundFunction,
    FilterLimits,
    LeafFunction,
    col,
)
from fluss.schema.schema import Schema
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType, StringType
from fluss.testing.strategies import internal_values, scalar_types

TEXT_FUNCTIONS = [LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH]
SET_FUNCTIONS = [LeafFunction.IN, LeafFunction.NOT_IN]
NULL_FUNCTIONS = [LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL]


def schema_of(types: list[DataType]) -> Schema:
    """Columns behind a ROW, so that ids are not positions."""
    builder = Schema.builder().column("r", parse_type("row<x int, y int>"))
    for index, data_type in enumerate(types):
        builder.column(f"c{index}", data_type)
    return builder.build()


@st.composite
def leaves(draw: st.DrawFn, schema: Schema) -> BoundLeaf:
    index = draw(st.integers(1, len(schema.columns) - 1))
    column = schema.columns[index]
    values = internal_values(column.data_type.not_null()).map(lambda v: tuple(v) if isinstance(v, tuple) else v)
    function = draw(st.sampled_from(LeafFunction))
    if function in TEXT_FUNCTIONS and not isinstance(column.data_type, StringType):
        function = LeafFunction.EQUAL
    if function in NULL_FUNCTIONS:
        literals: tuple[Any, ...] = ()
    elif function in SET_FUNCTIONS:
        literals = tuple(draw(st.lists(st.none() | values, max_size=3)))
    else:
        literals = (draw(values),)
    return BoundLeaf(function, column.column_id, index, column.data_type, literals)


@st.composite
def schemas_with_predicates(draw: st.DrawFn) -> tuple[Schema, BoundPredicate]:
    schema = schema_of(draw(st.lists(scalar_types(), min_size=1, max_size=4)))
    trees = st.recursive(
        leaves(schema),
        lambda inner: st.builds(
            lambda function, children: BoundCompound(function, tuple(children)),
            st.sampled_from(CompoundFunction),
            st.lists(inner, min_size=1, max_size=3),
        ),
        max_leaves=6,
    )
    return schema, draw(trees)


def through_a_request(message: pb.PbPredicate) -> bytes:
    table = pb.PbFetchLogReqForTable(
        table_id=1,
        projection_pushdown_enabled=False,
        filter_predicate=message.SerializeToString(),
        filter_schema_id=1,
    )
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1, tables_req=[table])
    body = b"".join(apis.FETCH_LOG.request.encode(request))
    return apis.FETCH_LOG.request.decode(body).tables_req[0].filter_predicate


@given(schemas_with_predicates())
def test_a_filter_arrives_as_it_was_sent(drawn: tuple[Schema, BoundPredicate]) -> None:
    schema, predicate = drawn
    assert decode_predicate(through_a_request(predicate_to_pb(predicate)), schema, FilterAllowance()) == predicate


def test_the_deepest_filter_that_can_be_written_fits_a_request() -> None:
    schema = schema_of([parse_type("int")])
    deep = col("c0") == 0
    for level in range(PREDICATE_DEPTH_MAX - 1):
        deep = deep & (col("c0") > level) if level % 2 else deep | (col("c0") > level)
    bound = deep.bind(schema)
    message = predicate_to_pb(bound)
    assert decode_predicate(through_a_request(message), schema, FilterAllowance()) == bound
    deeper = pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=0, children=[message]))
    with pytest.raises(FlussError, match=f"at most {PREDICATE_DEPTH_MAX} levels") as refusal:
        predicate_from_pb(deeper, schema)
    assert refusal.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


def test_filters_of_one_request_have_limits_together() -> None:
    schema = schema_of([parse_type("int")])
    two = predicate_to_pb((col("c0") == 1).or_(col("c0") == 2).bind(schema)).SerializeToString()
    listed = predicate_to_pb(col("c0").is_in([1, 2, 3]).bind(schema)).SerializeToString()
    allowance = FilterAllowance(FilterLimits(conditions_max=6, literals_max=6, bytes_max=1000))
    decode_predicate(two, schema, allowance)
    decode_predicate(two, schema, allowance)
    with pytest.raises(FlussError, match="has 7 conditions or more, this server takes 6: ask for a list of values"):
        decode_predicate(listed, schema, allowance)
    allowance = FilterAllowance(FilterLimits(literals_max=5))
    decode_predicate(listed, schema, allowance)
    with pytest.raises(FlussError, match="has 6 values or more, this server takes 5: ask for a range"):
        decode_predicate(listed, schema, allowance)
    allowance.take_bytes(600_000)
    with pytest.raises(FlussError, match="has 1200000 bytes or more, this server takes 1048576"):
        allowance.take_bytes(600_000)


def nested(levels: int) -> bytes:
    """Return so many ANDs inside each other, encoded by hand: the library would not write them."""
    message = b"\x08\x00"
    for _ in range(levels):
        compound = b"\x08\x00\x12" + _varint(len(message)) + message
        message = b"\x08\x01\x1a" + _varint(len(compound)) + compound
    return message


def wide(*, children: int = 0, literals: int = 0) -> bytes:
    """Return a filter with a very long list, whose entries are as short as can be."""
    if children:
        compound = pb.PbCompoundPredicate(function=1, children=[pb.PbPredicate(type=0)] * children)
        return pb.PbPredicate(type=1, compound=compound).SerializeToString()
    values = [pb.PbLiteralValue(literal_type=3, is_null=True)] * literals
    leaf = pb.PbLeafPredicate(function=11, field_id=0, literals=values)
    return pb.PbPredicate(type=0, leaf=leaf).SerializeToString()


def _varint(number: int) -> bytes:
    groups = []
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (nested(40), ErrorCode.RECORD_TOO_LARGE_EXCEPTION, "nested at most 32 levels"),
        (nested(10_000), ErrorCode.CORRUPT_MESSAGE, "is no message, or is nested more than 32 levels"),
        (wide(children=65_535), ErrorCode.RECORD_TOO_LARGE_EXCEPTION, "65536 conditions or more"),
        (wide(literals=65_535), ErrorCode.RECORD_TOO_LARGE_EXCEPTION, "65535 values or more"),
        (b"\x08", ErrorCode.CORRUPT_MESSAGE, "is no message"),
        (b"", ErrorCode.CORRUPT_MESSAGE, "lacks required fields"),
    ],
    ids=["deep", "very deep", "many conditions", "many literals", "cut off", "empty"],
)
def test_hostile_filters_are_refused(data: bytes, code: int, message: str) -> None:
    with pytest.raises(FlussError, match=message) as refusal:
        decode_predicate(data, schema_of([parse_type("int")]), FilterAllowance())
    assert refusal.value.error_code == code


def test_the_message_names_columns_by_id_and_literals_by_type() -> None:
    schema = schema_of([parse_type("decimal(20,2)"), parse_type("timestamp_ltz(9)")])
    leaf = BoundLeaf(LeafFunction.EQUAL, schema.columns[1].column_id, 1, schema.columns[1].data_type, (-129,))
    message = predicate_to_pb(leaf)
    assert message.leaf.field_id == 3
    (literal,) = message.leaf.literals
    assert (literal.literal_type, literal.decimal_bytes) == (9, bytes.fromhex("ff7f"))
    leaf = BoundLeaf(
        LeafFunction.IN, schema.columns[2].column_id, 2, schema.columns[2].data_type, ((-1, 999_999), None)
    )
    moment, null = predicate_to_pb(leaf).leaf.literals
    assert (moment.literal_type, moment.timestamp_millis_value, moment.timestamp_nano_of_millis_value) == (
        13,
        -1,
        999_999,
    )
    assert null.is_null


def test_literals_of_types_that_mean_the_same_are_taken() -> None:
    schema = schema_of(
        [parse_type("tinyint"), parse_type("string"), parse_type("binary(2)"), parse_type("decimal(5,2)")]
    )
    same: list[tuple[int, pb.PbLiteralValue, object]] = [
        (1, pb.PbLiteralValue(literal_type=4, is_null=False, bigint_value=-128), -128),
        (2, pb.PbLiteralValue(literal_type=7, is_null=False, string_value="x"), "x"),
        (3, pb.PbLiteralValue(literal_type=15, is_null=False, binary_value=b"xy"), b"xy"),
        (4, pb.PbLiteralValue(literal_type=9, is_null=False, decimal_bytes=b"\x01\x00"), 256),
    ]
    for index, literal, expected in same:
        leaf = pb.PbLeafPredicate(function=0, field_id=schema.columns[index].column_id, literals=[literal])
        bound = predicate_from_pb(pb.PbPredicate(type=0, leaf=leaf), schema)
        assert isinstance(bound, BoundLeaf)
        assert bound.literals == (expected,)


def leaf_of(function: int = 0, field_id: int = 3, *literals: pb.PbLiteralValue) -> pb.PbPredicate:
    return pb.PbPredicate(
        type=0, leaf=pb.PbLeafPredicate(function=function, field_id=field_id, literals=list(literals))
    )


def literal(literal_type: int, **values: Any) -> pb.PbLiteralValue:
    return pb.PbLiteralValue(literal_type=literal_type, is_null=False, **values)


NULL = pb.PbLiteralValue(literal_type=1, is_null=True)
ONE = literal(1, int_value=1)
# Column ids: 0 row, 3 tinyint, 4 decimal(5,2), 5 time, 6 timestamp, 7 date.
BROKEN = [
    (pb.PbPredicate(type=2), "unknown"),
    (pb.PbPredicate(type=0), "lacks its content"),
    (pb.PbPredicate(type=1), "lacks its content"),
    (pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=0)), "no conditions"),
    (pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=2, children=[leaf_of(6)])), "unknown function 2"),
    (leaf_of(13), "unknown function 13"),
    (leaf_of(-1), "unknown function -1"),
    (leaf_of(0, 1, ONE), "id 1, which the schema lacks"),
    (leaf_of(6, 0), "row.* is not supported"),
    (leaf_of(8, 3, ONE), "requires a character string column"),
    (leaf_of(0, 3), "EQUAL has 0 literals"),
    (leaf_of(0, 3, ONE, ONE), "EQUAL has 2 literals"),
    (leaf_of(6, 3, ONE), "IS_NULL has 1 literals"),
    (leaf_of(0, 3, NULL), "cannot take a null literal"),
    (leaf_of(0, 3, literal(16)), "its type 16 is unknown"),
    (leaf_of(0, 3, literal(-1)), "its type -1 is unknown"),
    (leaf_of(0, 3, literal(8, string_value="1")), "it is of type STRING"),
    (leaf_of(0, 3, literal(1)), "it has no value"),
    (leaf_of(0, 3, literal(1, int_value=128)), "more than 8 bits"),
    (leaf_of(0, 4, literal(9, decimal_value=100_000)), "more than 5 digits"),
    (leaf_of(0, 4, literal(9, decimal_bytes=bytes(17))), "17 bytes"),
    (leaf_of(0, 5, literal(11, int_value=86_400_000)), "outside the day"),
    (leaf_of(0, 6, literal(12, timestamp_millis_value=0, timestamp_nano_of_millis_value=1_000_000)), "nanoseconds"),
    (leaf_of(0, 7, literal(10, bigint_value=2**31)), "more than 32 bits"),
]


@pytest.mark.parametrize(("message", "reason"), BROKEN)
def test_broken_filters_are_refused_with_a_reason(message: pb.PbPredicate, reason: str) -> None:
    types = ["tinyint", "decimal(5,2)", "time", "timestamp", "date"]
    schema = schema_of([parse_type(text) for text in types])
    with pytest.raises(CorruptMessageError, match=reason):
        predicate_from_pb(message, schema)
