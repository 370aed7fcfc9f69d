"""``import fluss`` offers exactly the documented names, each under the name ``fluss``, and defines nothing itself.
Shown by comparing with a list kept here, so that a name neither leaks nor gets lost unnoticed."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import fluss

PUBLIC = {
    "AggFunction",
    "ChangeType",
    "Column",
    "ColumnRef",
    "Config",
    "DataField",
    "DataType",
    "DataTypes",
    "DatabaseDescriptor",
    "DatabaseInfo",
    "EARLIEST_OFFSET",
    "ErrorCode",
    "FlussError",
    "KvFormat",
    "LATEST_OFFSET",
    "LakeSnapshot",
    "LogFormat",
    "OffsetSpec",
    "OffsetType",
    "PartitionInfo",
    "PartitionSpec",
    "Predicate",
    "Schema",
    "ServerNode",
    "ServerType",
    "TableBucket",
    "TableDescriptor",
    "TableInfo",
    "TablePath",
    "__version__",
    "col",
}


def test_the_public_names_are_the_documented_ones() -> None:
    assert set(fluss.__all__) == PUBLIC
    assert len(fluss.__all__) == len(PUBLIC)


def test_nothing_else_is_reachable_except_submodules() -> None:
    visible = {name for name in vars(fluss) if not name.startswith("_")}
    modules = {name for name in visible if isinstance(vars(fluss)[name], type(ast))}
    assert visible - modules == PUBLIC - {"__version__"}


@pytest.mark.parametrize("name", sorted(name for name in PUBLIC if isinstance(getattr(fluss, name), type)))
def test_public_classes_live_in_fluss_and_are_found_there_by_pickle(name: str) -> None:
    cls = getattr(fluss, name)
    assert (cls.__module__, cls.__qualname__) == ("fluss", name)
    assert pickle.loads(pickle.dumps(cls)) is cls


def test_every_public_class_and_function_says_what_it_is_for() -> None:
    undocumented = [name for name in PUBLIC if callable(getattr(fluss, name)) and not getattr(fluss, name).__doc__]
    assert undocumented == []


def test_the_package_defines_nothing_itself_and_is_typed() -> None:
    assert fluss.__file__ is not None
    package = Path(fluss.__file__).parent
    tree = ast.parse((package / "__init__.py").read_text())
    definitions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    assert definitions == []
    assert (package / "py.typed").exists()


def test_a_submodule_imported_first_still_has_public_classes() -> None:
    code = "from fluss.schema.table import TablePath; print(TablePath.__module__)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "fluss\n"
