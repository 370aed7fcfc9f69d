"""Which lines of a CSV file are rows: what a reader of rows must find, as long as no value has a line end in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def csv_row_lines(data: bytes) -> npt.NDArray[np.int64]:
    """Return which lines are rows, of data that ends where a line does: those with anything in them."""
    values = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(values == ord("\n"))
    sizes = np.diff(ends, prepend=-1) - 1
    return np.flatnonzero((sizes > 1) | ((sizes == 1) & (values[ends - 1] != ord("\r"))))
