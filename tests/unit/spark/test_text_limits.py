"""Shows how long texts may be, and what becomes of those that are longer."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FlussError
from fluss.schema.schema import Column, schema_from_columns
from fluss.schema.types import CharType, IntType, StringType
from fluss.spark.conversion import FromSpark
from fluss.spark.text_limits import char_limits, varchar_limits, within_limit

_SCHEMA = schema_from_columns([Column("n", IntType()), Column("s", StringType()), Column("c", CharType(2))])


@given(texts=st.lists(st.none() | st.text(alphabet="aß🙂 ", max_size=6), max_size=8), length=st.integers(1, 6))
def test_texts_are_cut_by_spaces_only(texts: list[str | None], length: int) -> None:
    array = pa.array(texts, pa.string())
    if any(text is not None and len(text.rstrip(" ")) > length for text in texts):
        with pytest.raises(FlussError, match=f"at most {length} characters"):
            within_limit(array, length, "s")
    else:
        assert within_limit(array, length, "s").to_pylist() == [None if t is None else t[:length] for t in texts]


def test_limits_are_those_of_char_columns_and_of_properties() -> None:
    assert char_limits(_SCHEMA) == {"c": 2}
    properties = {"varchar.s": "5", "varchar.n": "3", "varchar.c": "9", "varchar.gone": "1", "other": "x"}
    assert varchar_limits(_SCHEMA, properties) == {"s": 5}
    assert varchar_limits(_SCHEMA, {"varchar.s": "five"}) == {}


def test_rows_are_held_to_the_limits_of_their_table() -> None:
    rows = pa.record_batch({"n": [1], "s": ["abc"], "c": ["xy "]})
    assert FromSpark(_SCHEMA)(rows).column("c").to_pylist() == ["xy"]
    with pytest.raises(FlussError, match="Column 's' takes texts of at most 2 characters, and there is one of 3"):
        FromSpark(_SCHEMA, text_limits={"s": 2})(rows)
    # A column that is missing is null.
    assert FromSpark(_SCHEMA, text_limits={"s": 2})(rows.select(["n"])).column("s").to_pylist() == [None]
