"""Wrappers have the signatures, types and docstrings of what they wrap.
Types are shown to the type checker, which fails if one of them is inexact; the rest by looking at the classes."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any, assert_type

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking
from fluss.client.wrappers import Wrapper

if TYPE_CHECKING:
    # Nothing here is run.
    async def types_of_aio(scan: aio.TableScan, scanner: aio.LogScanner, table: aio.FlussTable) -> None:
        assert_type(scan.project([0]).limit(3), aio.TableScan)
        assert_type(await scan.create_log_scanner(), aio.LogScanner[fluss.ScanRecord])
        assert_type(await scanner.poll(timeout_ms=10), fluss.ScanRecords)
        assert_type(scanner.subscribe(bucket_id=0, start_offset=1), None)
        assert_type(table.new_scan(), aio.TableScan)
        assert_type(table.new_append().create_writer(), fluss.AppendWriter)
        await scanner.poll("soon")  # type: ignore[arg-type]
        scanner.subscribe(bucket=0)  # type: ignore[call-arg]

    def types_of_blocking(
        connection: blocking.FlussConnection, upsert: blocking.TableUpsert, lookuper: blocking.Lookuper
    ) -> None:
        table = connection.get_table(fluss.TablePath("fluss", "t"))
        assert_type(connection.get_admin().list_databases(), list[str])
        assert_type(connection.get_admin().table_exists(table_path=table.table_path), bool)
        assert_type(table.new_append_writer().append({}), blocking.WriteResultHandle)
        assert_type(table.new_upsert(columns=["a"]).partial_update([0]), blocking.TableUpsert)
        assert_type(upsert.create_writer().delete_arrow_batch(pa.record_batch({})), blocking.WriteResultHandle)
        assert_type(lookuper.lookup({}), dict[str, Any] | None)
        with upsert as entered:
            assert_type(entered, blocking.TableUpsert)
        table.new_upsert(column=["a"])  # type: ignore[call-arg]


@pytest.mark.parametrize("module", [aio, blocking], ids=["aio", "blocking"])
def test_wrapped_methods_have_the_parameters_of_the_original_and_a_docstring(module: ModuleType) -> None:
    seen = 0
    for wrapper in vars(module).values():
        if not (isinstance(wrapper, type) and issubclass(wrapper, Wrapper) and wrapper.__module__ == module.__name__):
            continue
        for name in [name for name in dir(wrapper) if not name.startswith("_")]:
            ours, theirs = getattr(wrapper, name), getattr(getattr(fluss, wrapper.__name__), name)
            if hasattr(ours, "__wrapped__"):
                assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
                assert ours.__doc__
                seen += 1
    assert seen > 30
