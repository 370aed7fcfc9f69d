"""How ``fluss.aio`` and ``fluss.blocking`` are made of the classes of ``fluss``: wrappers that list their methods.

Each line of a wrapper names a method of the wrapped class, which stays the only implementation, and says what is
different about it. Signature, types and docstring are those of the method.

    same        nothing is different
    blocking    the calling thread waits for the coroutine
    wrapping    what is returned is wrapped, too; ``wrapping_async`` awaits it first
    chained     the object that is returned is of the same class, often the same one; so is its wrapper

Errors are raised as if the wrapper had found them: what is below it means nothing to users.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import pyarrow as pa

from fluss.client.fluss_table import FlussTable
from fluss.client.kernel import runtime
from fluss.client.scan.table_scan import TableScan
from fluss.schema.table import TablePath

InnerT = TypeVar("InnerT")
WrapperT = TypeVar("WrapperT", bound="Wrapper[Any]")
T = TypeVar("T")
P = ParamSpec("P")


class Wrapper(Generic[InnerT]):
    """Stands before an object of the client."""

    _inner: InnerT

    def __init__(self, *_args: object, **_fields: object) -> None:
        raise TypeError(f"{type(self).__name__} objects cannot be constructed; the client returns them")

    @classmethod
    def _of(cls, inner: InnerT) -> Self:
        wrapper = object.__new__(cls)
        wrapper._inner = inner
        return wrapper

    def __repr__(self) -> str:
        return repr(self._inner)


class ContextWrapper(Wrapper[InnerT]):
    """A wrapper for ``with`` blocks. Its classes say what happens at the end of one."""

    def __enter__(self) -> Self:
        return self


def same(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a wrapper that calls the one of the object."""

    @wraps(method)
    def call(wrapper: Wrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return method(wrapper._inner, *args, **kwargs)
        except runtime.CALLERS_ERRORS as error:
            raise runtime.as_from_here(error) from runtime.cause_of(error)

    return call


def blocking(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a wrapper that blocks the calling thread until the one of the object is done."""

    @wraps(method)
    def call(wrapper: Wrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return runtime.wait_for(method(wrapper._inner, *args, **kwargs))
        except runtime.CALLERS_ERRORS as error:
            raise runtime.as_from_here(error) from runtime.cause_of(error)

    return call


def wrapping(
    method: Callable[Concatenate[Any, P], InnerT], wrap: Callable[[InnerT], WrapperT]
) -> Callable[Concatenate[Any, P], WrapperT]:
    """Make a method of a wrapper that wraps what the one of the object returns."""

    @wraps(method)
    def call(wrapper: Wrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> WrapperT:
        __tracebackhide__ = True
        try:
            return wrap(method(wrapper._inner, *args, **kwargs))
        except runtime.CALLERS_ERRORS as error:
            raise runtime.as_from_here(error) from runtime.cause_of(error)

    return call


def wrapping_async(
    method: Callable[Concatenate[Any, P], Awaitable[InnerT]], wrap: Callable[[InnerT], WrapperT]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, WrapperT]]:
    """Make a coroutine method of a wrapper that wraps what the one of the object returns."""

    @wraps(method)
    async def call(wrapper: Wrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> WrapperT:
        __tracebackhide__ = True
        try:
            return wrap(await method(wrapper._inner, *args, **kwargs))
        except runtime.CALLERS_ERRORS as error:
            raise runtime.as_from_here(error) from runtime.cause_of(error)

    return call


def chained(method: Callable[Concatenate[Any, P], Any]) -> Callable[Concatenate[WrapperT, P], WrapperT]:
    """Make a method of a wrapper for one that returns the object, or another one of its class."""

    @wraps(method)
    def call(wrapper: WrapperT, /, *args: P.args, **kwargs: P.kwargs) -> WrapperT:
        __tracebackhide__ = True
        try:
            returned = method(wrapper._inner, *args, **kwargs)
        except runtime.CALLERS_ERRORS as error:
            raise runtime.as_from_here(error) from runtime.cause_of(error)
        return wrapper if returned is wrapper._inner else type(wrapper)._of(returned)

    return call


class ScanWrapper(Wrapper[TableScan]):
    """What is the same in all wrappers of a scan."""

    project = chained(TableScan.project)
    project_by_name = chained(TableScan.project_by_name)
    filter = chained(TableScan.filter)
    limit = chained(TableScan.limit)
    with_fixed_schema = chained(TableScan.with_fixed_schema)
    to_arrow_async = same(TableScan.to_arrow_async)
    to_pandas_async = same(TableScan.to_pandas_async)
    to_polars_async = same(TableScan.to_polars_async)
    to_arrow_batch_reader = same(TableScan.to_arrow_batch_reader)
    __arrow_c_stream__ = same(TableScan.__arrow_c_stream__)


class TableWrapper(Wrapper[FlussTable]):
    """What is the same in all wrappers of a table."""

    get_table_info = same(FlussTable.get_table_info)
    get_table_path = same(FlussTable.get_table_path)
    has_primary_key = same(FlussTable.has_primary_key)
    to_arrow_async = same(FlussTable.to_arrow_async)
    to_pandas_async = same(FlussTable.to_pandas_async)
    to_polars_async = same(FlussTable.to_polars_async)
    to_arrow_batch_reader = same(FlussTable.to_arrow_batch_reader)
    scan_polars = same(FlussTable.scan_polars)
    to_duckdb = same(FlussTable.to_duckdb)
    __arrow_c_stream__ = same(FlussTable.__arrow_c_stream__)
    _repr_html_ = same(FlussTable._repr_html_)

    @property
    def table_path(self) -> TablePath:
        return self._inner.table_path

    @property
    def arrow_schema(self) -> pa.Schema:
        return self._inner.arrow_schema
