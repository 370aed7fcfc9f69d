"""``import fluss`` offers exactly the documented names, each under the name ``fluss``, and loads them when needed.
Shown by comparing with a list kept here, so that a name neither leaks nor gets lost unnoticed."""

import ast
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import fluss

PUBLIC = {
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclResource",
    "AclResourceType",
    "AggFunction",
    "AppendWriter",
    "BatchScanner",
    "ChangeType",
    "ClusterConfigEntry",
    "ClusterHealth",
    "Column",
    "ColumnRef",
    "Config",
    "Consumer",
    "ConsumerBucket",
    "ConsumerFencedError",
    "ConsumerInfo",
    "DataField",
    "DataType",
    "DataTypes",
    "DatabaseDescriptor",
    "DatabaseInfo",
    "DatabaseSummary",
    "EARLIEST_OFFSET",
    "ErrorCode",
    "FlussAdmin",
    "FlussConnection",
    "FlussError",
    "FlussTable",
    "GenericRow",
    "HealthStatus",
    "InternalRow",
    "KvFormat",
    "LATEST_OFFSET",
    "NO_COMMIT_TIMESTAMP",
    "LakeSnapshot",
    "LogFormat",
    "LogScanner",
    "Lookuper",
    "OffsetSpec",
    "OffsetType",
    "PartitionInfo",
    "PartitionSpec",
    "Predicate",
    "PrefixLookuper",
    "ProducerOffsets",
    "RecordBatch",
    "RecordBatchLogScanner",
    "ScanBatch",
    "ScanRecord",
    "ScanRecords",
    "Schema",
    "SchemaInfo",
    "ServerNode",
    "ServerTag",
    "ServerType",
    "TableAppend",
    "TableBucket",
    "TableDescriptor",
    "TableInfo",
    "TableLookup",
    "TablePath",
    "TablePrefixLookup",
    "TableScan",
    "TableStats",
    "TableUpsert",
    "UpsertWriter",
    "WriteResultHandle",
    "__version__",
    "col",
    "connect",
}
# The same thing under the name it has in another language.
ALIASES = {"RecordBatchLogScanner": "LogScanner", "ScanBatch": "RecordBatch"}


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
    assert (cls.__module__, cls.__qualname__) == ("fluss", ALIASES.get(name, name))
    assert pickle.loads(pickle.dumps(cls)) is cls


def test_every_public_class_function_and_method_says_what_it_is_for() -> None:
    undocumented = [name for name in PUBLIC if callable(getattr(fluss, name)) and not getattr(fluss, name).__doc__]
    builders = [type(cls.builder()) for cls in (fluss.Schema, fluss.TableDescriptor, fluss.DatabaseDescriptor)]
    classes = [getattr(fluss, name) for name in PUBLIC if isinstance(getattr(fluss, name), type)]
    for cls in (*classes, *builders):
        undocumented += [
            f"{cls.__name__}.{name}" for name in _own_members(cls) if not inspect.getdoc(getattr(cls, name))
        ]
    assert undocumented == []


def _own_members(cls: type) -> set[str]:
    """Return the names of the public methods and properties that a class has from this package."""
    return {
        name
        for base in cls.__mro__
        if base.__module__.partition(".")[0] == "fluss"
        for name, member in vars(base).items()
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property))
    }


def test_the_package_is_typed_and_accepts_no_name_that_it_does_not_have() -> None:
    assert fluss.__file__ is not None
    assert (Path(fluss.__file__).parent / "py.typed").exists()
    assert set(dir(fluss)) >= PUBLIC
    with pytest.raises(AttributeError, match="module 'fluss' has no attribute 'FlussTabel'"):
        _ = fluss.FlussTabel  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'connect_to'"):
        exec("from fluss import connect_to")


def test_values_from_before_the_client_was_loaded_are_those_of_after() -> None:
    code = (
        "import pickle, sys; from fluss.schema.table import TablePath; early = pickle.dumps(TablePath('d', 't'));"
        "assert 'fluss.names' not in sys.modules;"
        "import fluss; print(pickle.loads(early) == fluss.TablePath('d', 't'), fluss.TablePath is TablePath)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "True True\n"


def test_a_server_does_not_load_the_client() -> None:
    code = "import sys, fluss.server.__main__; print([n for n in sys.modules if n.startswith('fluss.client')])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_importing_the_client_does_not_import_the_server_or_pandas() -> None:
    others = ("fluss.server", "pandas", "uvloop")
    code = f"import sys, fluss; fluss.Schema; print([n for n in sys.modules if n.startswith({others})])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
