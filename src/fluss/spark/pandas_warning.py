"""What PySpark says about pandas whenever it meets a newer one than it knows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignored_pandas_warning() -> Iterator[None]:
    """Run a block in which PySpark looks for pandas and complains about its version, though nothing here uses it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
