"""Expressions of pyarrow as filters. pyarrow evaluates them, by its own rules: a comparison with NaN is false.

Servers learn nothing of them. Which columns an expression needs is found out by trying, and which partitions it leaves
out by asking the datasets of pyarrow, which simplify expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.errors import FlussError
from fluss.filter.arrow_calls import Evaluate, evaluation
from fluss.filter.conditions import ANY_OUTCOME, BoundCondition, Columns, Outcomes
from fluss.row.arrow_arrays import bool_array, buffer_numbers, empty_batch, number_array
from fluss.schema.predicate import Predicate
from fluss.schema.schema import Schema, shown_names

_NEVER_TRUE: Final[Outcomes] = frozenset({False, None})


@dataclass(frozen=True, slots=True)
class ArrowExpression(BoundCondition):
    """An expression, and the columns that it needs."""

    expression: pc.Expression
    names: frozenset[str]
    table_schema: pa.Schema
    # Evaluates it without a plan, if it is as simple as most are.
    evaluate: Evaluate | None

    @classmethod
    def of(cls, expression: pc.Expression, schema: Schema) -> ArrowExpression:
        """Find out which columns of a table an expression needs; a FlussError if it cannot be evaluated on them."""
        nothing = empty_batch(schema.to_arrow())
        try:
            nothing.filter(expression)
        except (pa.ArrowException, TypeError, KeyError) as error:
            raise FlussError(
                f"The filter {expression} does not fit the columns {shown_names(schema.column_names)}: {error}"
            ) from error
        names = frozenset(name for name in schema.column_names if _needs(expression, nothing, name))
        return cls(expression, names, nothing.schema, evaluation(expression, nothing.schema))

    def columns(self) -> frozenset[str]:
        return self.names

    def truth(self, columns: Columns) -> pa.Array:
        return self._planned(columns) if self.evaluate is None else self.evaluate(columns.arrays)

    def _planned(self, columns: Columns) -> pa.Array:
        """Have a plan of pyarrow's query engine return the numbers of the rows for which the expression holds."""
        numbers = np.arange(columns.row_count, dtype=np.int64)
        # A name that no column has, being longer than all of them.
        row_name = "row" + max(self.names, key=len, default="")
        arrays = [columns.arrays[name] for name in self.names]
        batch = pa.RecordBatch.from_arrays([*arrays, number_array(numbers)], names=[*self.names, row_name])
        kept = np.zeros(columns.row_count, np.bool_)
        kept[buffer_numbers(batch.filter(self.expression).column(row_name), np.int64)] = True
        return bool_array(kept)

    def outcomes(self, known: Mapping[str, pa.Array]) -> Outcomes:
        # Not by floats: what equals NaN is another question for pyarrow than for names of partitions.
        exact = [name for name in self.names & known.keys() if not pa.types.is_floating(known[name].type)]
        if not exact or _may_hold(self.expression, self.table_schema, {name: known[name][0] for name in exact}):
            return ANY_OUTCOME
        return _NEVER_TRUE

    def predicate(self, is_negated: bool) -> Predicate | None:
        return None


def _may_hold(expression: pc.Expression, schema: pa.Schema, known: Mapping[str, pa.Scalar]) -> bool:
    """Whether an expression can hold in a row that has these values in some columns."""
    # Takes its time to load, and is rarely needed.
    import pyarrow.dataset as ds
    import pyarrow.fs

    guarantee = pc.scalar(True)
    for name, value in known.items():
        guarantee &= pc.field(name) == value
    file_format, file_system = ds.IpcFileFormat(), pyarrow.fs.LocalFileSystem()
    # There is no such file, and nothing looks for it.
    fragment = file_format.make_fragment("partition", file_system, partition_expression=guarantee)
    dataset = ds.FileSystemDataset([fragment], schema, file_format, file_system)
    try:
        return any(True for _ in dataset.get_fragments(expression))
    except (pa.ArrowException, NotImplementedError):
        return True


def _needs(expression: pc.Expression, nothing: pa.RecordBatch, name: str) -> bool:
    others = [other for other in nothing.schema.names if other != name]
    try:
        nothing.select(others).filter(expression)
    except (pa.ArrowException, KeyError):
        return True
    return False
