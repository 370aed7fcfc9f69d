"""Shows that partition values have the texts other clients give them, in both styles in use.
The corners of every type, and what cannot be a partition value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fluss.errors import FlussError
from fluss.row.partition_names import PartitionStyle, format_partition_value, parse_partition_value, row_partition_name
from fluss.row.values import Timestamp
from fluss.schema.type_parser import parse_type
from fluss.schema.types import TypeRoot
from fluss.testing.strategies import internal_values, scalar_types


@pytest.mark.parametrize(
    ("text", "value", "java", "rust"),
    [
        ("BOOLEAN", False, "false", "false"),
        ("BIGINT", -(2**63), "-9223372036854775808", "-9223372036854775808"),
        ("BYTES", b"", "", ""),
        ("DATE", -719162, "0001-01-01", "0001-01-01"),
        ("DATE", 2932897, "10000-01-01", "10000-01-01"),
        ("TIME", 0, "00-00-00_000", "00-00-00_000"),
        ("TIME", 86_399_999, "23-59-59_999", "23-59-59_999"),
        ("DOUBLE", 0.0, "0_0", "0"),
        ("DOUBLE", -0.5, "-0_5", "-0_5"),
        ("DOUBLE", 1e22, "1_0E22", "10000000000000000000000"),
        ("FLOAT", 0.1, "0_1", "0_1"),
        ("DOUBLE", float("-inf"), "-Inf", "-Inf"),
        ("TIMESTAMP(6)", Timestamp(0, 1000), "1970-01-01-00-00-00_000001", "1970-01-01-00-00-00_000001000"),
        ("TIMESTAMP(3)", Timestamp(100), "1970-01-01-00-00-00_1", "1970-01-01-00-00-00_100"),
        ("TIMESTAMP(3)", Timestamp(-1), "1969-12-31-23-59-59_999", "1969-12-31-23-59-59_999"),
    ],
)
def test_values_at_the_corners(text: str, value: Any, java: str, rust: str) -> None:
    data_type = parse_type(text)
    assert format_partition_value(value, data_type) == java
    assert format_partition_value(value, data_type, style="rust") == rust
    if text != "FLOAT":
        assert {parse_partition_value(written, data_type) for written in (java, rust)} == {value}


def test_the_partition_of_a_row_joins_its_values_in_order() -> None:
    types = [parse_type("DATE"), parse_type("STRING"), parse_type("DOUBLE")]
    assert row_partition_name(types, [19737, "US", 1.0]) == "2024-01-15$US$1_0"
    assert row_partition_name(types, [19737, "US", 1.0], style="rust") == "2024-01-15$US$1"


def test_null_is_no_partition_value() -> None:
    with pytest.raises(FlussError, match="Partition value shouldn't be null") as caught:
        format_partition_value(None, parse_type("INT"))
    assert caught.value.error_code == -2


@pytest.mark.parametrize("text", ["DECIMAL(5,2)", "ARRAY<INT>", "MAP<INT,INT>", "ROW<a INT>"])
def test_other_types_are_no_partition_columns(text: str) -> None:
    with pytest.raises(FlussError, match="cannot be a partition column"):
        format_partition_value(0, parse_type(text))


def test_timestamps_outside_four_digit_years_are_refused() -> None:
    for millis in (253_402_300_800_000, -62_135_596_800_001, -(2**63)):
        with pytest.raises(FlussError, match="years 1 to 9999"):
            format_partition_value(Timestamp(millis), parse_type("TIMESTAMP(3)"))


@pytest.mark.parametrize("style", ["java", "rust"])
@given(st.data())
def test_the_text_of_a_value_is_read_back_in_both_styles(style: PartitionStyle, data: st.DataObject) -> None:
    data_type = data.draw(scalar_types(nullable=False).filter(lambda data_type: data_type.root != TypeRoot.DECIMAL))
    value = data.draw(internal_values(data_type))
    try:
        text = format_partition_value(value, data_type, style=style)
    except FlussError:
        assume(False)
    read = parse_partition_value(text, data_type)
    assert read == value or (value != value and read != read), "NaN is not equal to itself"


def test_floats_are_read_as_the_nearest_of_their_kind() -> None:
    assert parse_partition_value("0_1", parse_type("FLOAT")) == float(np.float32(0.1))
    assert parse_partition_value("0_1", parse_type("DOUBLE")) == 0.1


@pytest.mark.parametrize(
    ("data_type", "text"),
    [
        ("INT", "seven"),
        ("INT", "07"),
        ("BOOLEAN", "yes"),
        ("BYTES", "xyz"),
        ("DATE", "20240115"),
        ("DATE", "2024-02-30"),
        ("TIME", "10-00-00"),
        ("TIMESTAMP(3)", "2024-01-15"),
        ("TIMESTAMP(3)", "2024-01-15-25-00-00_"),
        ("DOUBLE", "1_5_0"),
        ("DECIMAL(5, 2)", "1_25"),
    ],
)
def test_texts_that_no_value_has_are_refused(data_type: str, text: str) -> None:
    with pytest.raises(FlussError):
        parse_partition_value(text, parse_type(data_type))
