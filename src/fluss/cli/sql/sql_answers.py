"""The answer of a statement of SQL: printed, or written to a file."""

from __future__ import annotations

import pyarrow as pa

from fluss.cli.kernel.session import Session
from fluss.cli.kernel.values import python_values
from fluss.cli.rows.row_files import format_of
from fluss.cli.rows.row_writing import row_writer
from fluss.cli.sql.sql_engine import SqlAnswer, SqlRows, duckdb_errors


def show(session: Session, answer: SqlAnswer, output: str | None) -> int | None:
    """Print an answer, or write it to a file; return how many rows it has, None if it is not made of rows."""
    if answer.rows is None:
        if answer.sentence:
            session.out.done(answer.sentence, done=answer.sentence)
        return None
    # DuckDB begins nothing else as long as an answer is open.
    with duckdb_errors(), answer.rows as found:
        if output is not None:
            return _write(session, found, output)
        names = _unique(found.schema.names)
        rows = (row for batch in found for row in zip(*map(python_values, batch.columns), strict=True))
        if names == ["explain_key", "explain_value"] and session.out.format == "table":
            # A plan is a drawing of many lines.
            session.out.raw_lines(f"{plan}\n" for _, plan in rows)
            return None
        return session.out.rows(names, rows, empty="no rows")


def _write(session: Session, found: SqlRows, output: str) -> int:
    count = 0
    schema = found.schema
    schema = pa.schema([each.with_name(name) for each, name in zip(schema, _unique(schema.names), strict=True)])
    with row_writer(output, format_of(output), schema, {}) as write:
        for batch in found:
            write(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            count += batch.num_rows
    session.out.done(f"Wrote {count:,} rows to {output}.", file=output, rows=count)
    return count


def _unique(names: list[str]) -> list[str]:
    """Return names of which none is there twice: a query may have two columns of one name, an object may not."""
    taken = set(names)
    seen: set[str] = set()
    unique = []
    for name in names:
        number, other = 0, name
        while other in seen or (number and other in taken):
            number += 1
            other = f"{name}:{number}"
        seen.add(other)
        unique.append(other)
    return unique
