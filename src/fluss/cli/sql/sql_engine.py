"""SQL over tables of a cluster, by DuckDB: tables by name, columns and conditions of a query reach the scan.

``sales.orders`` is a table of the database ``sales``, ``orders`` one of the database ``fluss``. What is no table there
is DuckDB's: files (``'trips.parquet'``), functions, views of this session. A query by the whole primary key of one
table looks its rows up, and scans nothing.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import pyarrow as pa

from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.session import Session, full_name
from fluss.cli.sql.key_queries import SyntaxTree, keys_of, query_in, syntax_tree, tables_of
from fluss.cli.sql.show_statements import shown
from fluss.errors import ErrorCode, FlussError
from fluss.libraries import library_hint
from fluss.schema.table import PartitionSpec, TableInfo, partition_name
from fluss.schema.table_options import LAKE_ENABLED

if TYPE_CHECKING:
    import duckdb

# Statements that change nothing in a cluster.
_QUERIES: Final = ("SELECT", "EXPLAIN", "COPY", "SET", "VARIABLE_SET", "PRAGMA", "LOAD", "RELATION", "EXPORT")
_CREATE_TABLE: Final = re.compile(r"\s*CREATE\s+TABLE\b", re.IGNORECASE)
_CREATE_VIEW: Final = re.compile(
    r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:(?:TEMP|TEMPORARY)\s+)?(?:RECURSIVE\s+)?VIEW\b", re.IGNORECASE
)
_OWN_CATALOG: Final = "fluss"
_KEYED_ROWS: Final = "__fluss_rows_by_key"
# DuckDB looks for an interruption between two pieces of work; one that waits for a server may take longer than a user.
_INTERRUPTED_S: Final = 2.0
_INTERRUPT_AGAIN_S: Final = 0.05
ResultT = TypeVar("ResultT")


class SqlAnswer(NamedTuple):
    """What a statement returned: rows, or a sentence. ``way`` says how rows of a table were found."""

    rows: SqlRows | None
    sentence: str = ""
    way: str = ""


class SqlRows:
    """The rows that a query returns, batch by batch, as it finds them. A context manager that ends the query."""

    def __init__(self, engine: SqlEngine, reader: pa.RecordBatchReader) -> None:
        self.schema = reader.schema
        self._engine = engine
        self._reader = reader

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._engine.interruptibly(self._next)) is not None:
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close_rows()


class SqlEngine:
    """Runs statements in one session of DuckDB."""

    def __init__(self, session: Session) -> None:
        hint = library_hint("duckdb")
        if hint is not None:
            raise CommandError(f"SQL needs DuckDB: {hint}")
        import duckdb

        self._session = session
        self._duckdb: duckdb.DuckDBPyConnection = duckdb.connect(config={"python_enable_replacements": False})
        # Names that mean rows which were looked up for the last query.
        self._by_key: dict[tuple[str, ...], str] = {}
        # What DuckDB was last given to do in another thread, and the rows of the last query.
        self._last_work: Future[Any] = Future()
        self._last_work.cancel()
        self._reader: pa.RecordBatchReader | None = None

    def statements(self, text: str) -> list[str]:
        """Take a text apart into its statements."""
        self._end_last_query()
        with duckdb_errors():
            return [each.query.strip() for each in self._duckdb.extract_statements(text)]

    def run(self, statement: str) -> SqlAnswer:
        """Run one statement."""
        self._end_last_query()
        with duckdb_errors():
            return self._run(statement)

    def _run(self, statement: str) -> SqlAnswer:
        kind = self._duckdb.extract_statements(statement)[0].type.name
        if kind == "CREATE" and _CREATE_TABLE.match(statement):
            return self._create_table(statement)
        if kind not in _QUERIES and not (kind == "CREATE" and _CREATE_VIEW.match(statement)):
            raise CommandError(
                f"{kind} is not done here; `fluss put`, `load`, `delete` and `table` change tables, and "
                "`fluss spark sql` runs every statement",
                Exit.USAGE,
            )
        # Rows that were looked up are those of one query.
        while self._by_key:
            name, path = self._by_key.popitem()
            # One that was dropped meanwhile is missed by statements that ask for it.
            with suppress(FlussError):
                self._register_scan(list(name), path)
        tree = syntax_tree(self._duckdb, statement)
        answer = None if tree is None else shown(tree, self._session)
        if answer is not None:
            return SqlAnswer(SqlRows(self, answer.to_reader()))
        names = tables_of(tree or query_in(self._duckdb, statement))
        way = ""
        for parts in names:
            way = self._make_known(parts, tree if len(names) == 1 else None) or way
        reader = self.interruptibly(lambda: self._begin(statement))
        return SqlAnswer(None if reader is None else SqlRows(self, reader), way=way)

    def _begin(self, statement: str) -> pa.RecordBatchReader | None:
        found = self._duckdb.sql(statement)
        self._reader = None if found is None else found.to_arrow_reader()
        return self._reader

    def _create_table(self, statement: str) -> SqlAnswer:
        from fluss.cli.catalog.table_making import from_statement

        new = from_statement(statement)
        self._session.admin.create_table(new.path, new.descriptor, new.if_not_exists)
        return SqlAnswer(None, f"Created the table {new.path}.")

    def _make_known(self, parts: list[str], tree: SyntaxTree | None) -> str:
        """Let DuckDB know a table by its name; return how its rows are found. Names of others are left to it.

        ``tree`` is given if the query is about this table only.
        """
        named = parts[1:] if len(parts) == 3 and parts[0] == _OWN_CATALOG else parts
        if not 1 <= len(named) <= 2 or any("/" in part or "." in part for part in named):
            return ""
        path = full_name(".".join(named))
        try:
            table = self._session.table(path)
        except FlussError as error:
            if error.error_code not in (ErrorCode.TABLE_NOT_EXIST, ErrorCode.DATABASE_NOT_EXIST):
                raise
            if self._is_known(named):
                return ""
            raise
        info = table.get_table_info()
        keys = keys_of(tree, info) if tree is not None and info.has_primary_key() else None
        if keys is None:
            self._register_scan(named, path)
            return ""
        rows = table.new_lookup().create_lookuper().lookup_many(keys, missing="drop")
        if rows.num_rows < len(keys) and self._may_be_in_lake(keys, info):
            self._register_scan(named, path)
            return ""
        self._duckdb.register(_KEYED_ROWS, rows)
        self._name(named, _KEYED_ROWS)
        self._by_key[tuple(named)] = path
        return "by key"

    def _may_be_in_lake(self, keys: list[dict[str, Any]], info: TableInfo) -> bool:
        """Whether some of the keys are of partitions that Fluss does not have: lookups do not look into the lake."""
        if not info.is_partitioned() or not LAKE_ENABLED.of(info.properties):
            return False
        existing = {each.partition_name for each in self._session.admin.list_partition_infos(info.table_path)}
        specs = [PartitionSpec({name: str(key[name]) for name in info.partition_keys}) for key in keys]
        return any(partition_name(spec, info.partition_keys) not in existing for spec in specs)

    def _register_scan(self, parts: list[str], path: str) -> None:
        """Let a name mean a scan of a table, of what a query needs of it."""
        table = self._session.table(path)
        hidden = f"__fluss_{table.get_table_info().table_id}"
        table.to_duckdb(self._duckdb).create_view(hidden)
        self._name(parts, hidden)

    def _name(self, parts: list[str], hidden: str) -> None:
        if len(parts) == 2:
            self._duckdb.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(parts[0])}")
        shown = ".".join(map(_quoted, parts))
        self._duckdb.execute(f"CREATE OR REPLACE VIEW {shown} AS SELECT * FROM {_quoted(hidden)}")

    def _is_known(self, parts: list[str]) -> bool:
        """Whether DuckDB itself has something of this name, such as a view of this session."""
        found = self._duckdb.execute(
            "SELECT count(*) FROM information_schema.tables "
            "WHERE lower(table_name) = lower(?) AND lower(table_schema) = lower(?)",
            [parts[-1], parts[0] if len(parts) == 2 else "main"],
        ).fetchall()
        return bool(found[0][0])

    def interruptibly(self, work: Callable[[], ResultT]) -> ResultT:
        """Let DuckDB work in another thread: it would not notice Ctrl-C in this one before it is done."""
        outcome: Future[ResultT] = Future()
        self._last_work = outcome

        def run() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        try:
            threading.Thread(target=run, name="duckdb", daemon=True).start()
            return outcome.result()
        except KeyboardInterrupt:
            self._end_last_work(_INTERRUPTED_S)
            raise

    def _end_last_query(self) -> None:
        """Be ready for the next statement: a connection does one thing at a time, and has one result."""
        self._end_last_work()
        self.close_rows()

    def _end_last_work(self, timeout_s: float = math.inf) -> None:
        deadline_s = monotonic() + timeout_s
        work = self._last_work
        # Again and again: an interruption that comes before the query has begun is forgotten.
        while not (work.done() or work.cancel()) and monotonic() < deadline_s:
            self._duckdb.interrupt()
            wait([work], _INTERRUPT_AGAIN_S)

    def close_rows(self) -> None:
        """Give up the rest of the rows; while one is being read in another thread, that is left to the next query."""
        if self._reader is not None and self._last_work.done():
            self._reader.close()
            self._reader = None

    def close(self) -> None:
        self._duckdb.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def duckdb_errors() -> Iterator[None]:
    """Tell errors of DuckDB as those of the command; one of the client inside of them is told as itself."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise CommandError(_sentence(error)) from None
    except RuntimeError as error:
        # Ctrl-C while a statement is looked at, which this thread does, is for DuckDB.
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise


def _sentence(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return "\n".join(lines[:6]) if lines else type(error).__name__
