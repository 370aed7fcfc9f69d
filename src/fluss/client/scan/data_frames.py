"""Data frames are for those who have pandas; the others are told what to install, before anything is read."""

from __future__ import annotations

from importlib.util import find_spec

from fluss.errors import FlussError


def require_pandas() -> None:
    if find_spec("pandas") is None:
        raise FlussError("A data frame needs pandas: pip install pandas. Or read with to_arrow, which needs nothing")
