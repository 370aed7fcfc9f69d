"""Other faces of the client's objects: the same methods, with another way to wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import pyarrow as pa

from fluss.client.kernel.runtime import runtime
from fluss.client.scan.table_scan import TableScan
from fluss.client.table import FlussTable
from fluss.schema.predicate import Predicate
from fluss.schema.table import TablePath

InnerT = TypeVar("InnerT")
T = TypeVar("T")
P = ParamSpec("P")


class Face(Generic[InnerT]):
    """Stands before an object of the client. The classes made of it list its methods, with ``same`` or ``blocking``."""

    _inner: InnerT

    def __init__(self, *_args: object, **_fields: object) -> None:
        raise TypeError(f"{type(self).__name__} objects cannot be constructed; the client returns them")

    @classmethod
    def _of(cls, inner: InnerT) -> Self:
        face = object.__new__(cls)
        face._inner = inner
        return face

    def __repr__(self) -> str:
        return repr(self._inner)


def same(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a face that calls the one of the object behind it."""

    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(face._inner, *args, **kwargs)

    return call


def blocking(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a face that blocks the calling thread until the one of the object behind it is done."""

    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wait_for(method(face._inner, *args, **kwargs))

    return call


def wait_for(awaitable: Awaitable[T]) -> T:
    """Block the calling thread until something of the library is done. Ctrl-C ends the wait."""
    return runtime().run(_awaited(awaitable))


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


class ScanFace(Face[TableScan]):
    """The part of a scan that all faces share."""

    to_arrow_async = same(TableScan.to_arrow_async)
    to_pandas_async = same(TableScan.to_pandas_async)
    to_arrow_batch_reader = same(TableScan.to_arrow_batch_reader)

    def project(self, indices: Sequence[int]) -> Self:
        self._inner.project(indices)
        return self

    def project_by_name(self, names: Sequence[str]) -> Self:
        self._inner.project_by_name(names)
        return self

    def filter(self, predicate: Predicate) -> Self:
        self._inner.filter(predicate)
        return self

    def limit(self, n: int) -> Self:
        self._inner.limit(n)
        return self

    def with_fixed_schema(self, fixed_schema: bool) -> Self:
        self._inner.with_fixed_schema(fixed_schema)
        return self


class TableFace(Face[FlussTable]):
    """The part of a table that all faces share."""

    get_table_info = same(FlussTable.get_table_info)
    get_table_path = same(FlussTable.get_table_path)
    has_primary_key = same(FlussTable.has_primary_key)
    to_arrow_async = same(FlussTable.to_arrow_async)
    to_pandas_async = same(FlussTable.to_pandas_async)

    @property
    def table_path(self) -> TablePath:
        return self._inner.table_path

    @property
    def arrow_schema(self) -> pa.Schema:
        return self._inner.arrow_schema
