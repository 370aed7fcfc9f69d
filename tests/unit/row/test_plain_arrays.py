"""numpy numbers and booleans as Arrow arrays: what pyarrow itself would make of them, without pandas.
Compared with pyarrow.array, and in a process in which nobody else has imported pandas."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from fluss.row.arrow_arrays import bool_array, empty_batch, number_array, string_array


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("step", [1, -3])
def test_numbers_are_those_of_pyarrow(dtype: type[np.generic], step: int) -> None:
    numbers = np.arange(20).astype(dtype)[::step]
    is_null = np.arange(len(numbers)) % 3 == 0
    assert number_array(numbers).equals(pa.array(numbers))
    assert number_array(numbers, is_null).equals(pa.array(numbers, mask=is_null))


@pytest.mark.parametrize("count", [0, 1, 8, 19])
def test_booleans_are_those_of_pyarrow(count: int) -> None:
    values = np.arange(count) % 3 == 0
    assert bool_array(values).equals(pa.array(values, pa.bool_()))


def test_texts_are_those_of_pyarrow() -> None:
    for texts in ([], ["", "grüße", "x"]):
        assert string_array(texts).equals(pa.array(texts, pa.string()))


def test_an_empty_batch_has_its_schema() -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.list_(pa.string()))])
    assert empty_batch(schema).equals(pa.RecordBatch.from_pylist([], schema=schema))


def test_nobody_imports_pandas() -> None:
    program = """
import sys
import numpy as np
import pyarrow as pa
from fluss.row.arrow_arrays import bool_array, empty_batch, number_array, string_array
number_array(np.arange(3)), bool_array(np.arange(3) > 1), string_array(["a"])
empty_batch(pa.schema([("a", pa.int8())]))
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
