"""Rows by position: what is set is read back as the type the reader names, and nothing else is.
Shown with one value of every type, and with readers that ask for the wrong thing."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest

from fluss.client.kernel.input_rows import GenericRow, InternalRow
from fluss.errors import FlussError


def test_a_new_row_is_all_null_and_takes_values_by_position() -> None:
    row = GenericRow(3)
    row.set_field(1, "Alice")
    assert row.values == [None, "Alice", None]
    assert [row.is_null_at(pos) for pos in range(3)] == [True, False, True]
    assert row == GenericRow.from_data((None, "Alice", None))
    assert (len(row), row.get_field_count(), repr(row)) == (3, 3, "GenericRow([None, 'Alice', None])")
    assert isinstance(row, InternalRow)


def test_every_type_has_its_reader() -> None:
    moment = datetime(2024, 1, 15, 10, 30, 0, 123456)
    row = GenericRow.from_data(
        [True, 1, 2, 3, 4, 1.5, 2.5, "s", "c", b"b", b"xy", Decimal("1.5"), date(2024, 1, 15), time(10, 30), moment]
    )
    assert row.get_boolean(0) is True
    assert (row.get_byte(1), row.get_short(2), row.get_int(3), row.get_long(4)) == (1, 2, 3, 4)
    assert (row.get_float(5), row.get_double(6)) == (1.5, 2.5)
    assert (row.get_string(7), row.get_char(8, 5)) == ("s", "c")
    assert (row.get_bytes(9), row.get_binary(10, 2)) == (b"b", b"xy")
    assert str(row.get_decimal(11, 10, 2)) == "1.50"
    assert (row.get_date(12), row.get_time(13)) == (date(2024, 1, 15), time(10, 30))
    assert row.get_timestamp_ntz(14, 3) == datetime(2024, 1, 15, 10, 30, 0, 123000)
    assert row.get_timestamp_ltz(14, 6) == moment.replace(tzinfo=UTC)


def test_a_value_of_another_type_or_null_is_refused_with_its_position() -> None:
    row = GenericRow.from_data(["text", None, 300])
    with pytest.raises(FlussError, match="Field '0': expected int, got str"):
        row.get_int(0)
    with pytest.raises(FlussError, match="Field '1': null is not allowed"):
        row.get_string(1)
    with pytest.raises(FlussError, match="300 is out of range"):
        row.get_byte(2)


@pytest.mark.parametrize("pos", [-1, 2])
def test_a_position_that_does_not_exist_is_refused(pos: int) -> None:
    row = GenericRow(2)
    for read in (row.is_null_at, row.get_int, lambda pos: row.set_field(pos, 1)):
        with pytest.raises(FlussError, match="2 fields"):
            read(pos)
    with pytest.raises(OverflowError):
        GenericRow(-1)
