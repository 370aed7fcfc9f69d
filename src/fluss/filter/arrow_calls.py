"""What an expression of pyarrow is made of, so that batches can be asked one function after the other.

pyarrow evaluates an expression by a plan of its query engine, made anew for every batch, which takes longer than most
comparisons do. An expression does not show its parts, but its pickled form has them: a file of Arrow whose metadata
lists calls, columns and literals in the order of a walk through the tree, and whose columns have the values.

    call: 'less_equal', field_ref: 'amount', literal: '0', end: 'less_equal'            amount <= <value of column 0>

That form is nowhere promised. So what was read is put together again, and counts only if pyarrow finds it equal to the
expression. Whatever is not understood, or would need a cast that is not exact, is left to pyarrow.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

# A part of an expression: a column by name, a literal, or a call of others.
_Node: TypeAlias = "str | pa.Scalar | _Call"
_Arrays: TypeAlias = Mapping[str, pa.Array]
# Returns a part of an expression for the columns of a batch.
Evaluate: TypeAlias = Callable[[_Arrays], pa.Array]

_ENTRY: Final = re.compile(r"(call|end|field_ref|literal|options): '(.*)'")
# By function: how it is called on columns, and how it is written as an expression.
_COMPARISONS: Final[dict[str, tuple[Callable[..., pa.Array], Callable[..., pc.Expression]]]] = {
    "equal": (pc.equal, operator.eq),
    "not_equal": (pc.not_equal, operator.ne),
    "less": (pc.less, operator.lt),
    "less_equal": (pc.less_equal, operator.le),
    "greater": (pc.greater, operator.gt),
    "greater_equal": (pc.greater_equal, operator.ge),
}
_OF_TRUTHS: Final[dict[str, tuple[Callable[..., pa.Array], Callable[..., pc.Expression]]]] = {
    "and_kleene": (pc.and_kleene, operator.and_),
    "or_kleene": (pc.or_kleene, operator.or_),
    "invert": (pc.invert, operator.invert),
}
_OF_COLUMNS: Final[dict[str, tuple[Callable[..., pa.Array], Callable[..., pc.Expression]]]] = {
    "is_null": (pc.is_null, pc.Expression.is_null),
    "is_valid": (pc.is_valid, pc.Expression.is_valid),
}
_FUNCTIONS: Final = _COMPARISONS | _OF_TRUTHS | _OF_COLUMNS


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    arguments: tuple[_Node, ...]


def evaluation(expression: pc.Expression, schema: pa.Schema) -> Evaluate | None:
    """Return what evaluates a condition on columns of a schema, None if only pyarrow itself can.

    The result has nulls where the condition is unknown.
    """
    root = _parsed(expression)
    return None if root is None else _truth(root, schema)


def _parsed(expression: pc.Expression) -> _Node | None:
    try:
        (pickled,) = expression.__reduce__()[1]
        file = pa.ipc.open_file(pickled)
        literals = file.get_batch(0).columns if file.num_record_batches else []
        text = file.schema.to_string(show_field_metadata=False, truncate_metadata=False)
        root = _tree(text.partition("-- schema metadata --\n")[2].splitlines(), literals)
        return root if root is not None and _written(root).equals(expression) else None
    except (ValueError, TypeError, LookupError, AttributeError, NotImplementedError, pa.ArrowException):
        # Another version of pyarrow may have another form.
        return None


def _tree(lines: list[str], literals: list[pa.Array]) -> _Node | None:
    """Put the parts together that a walk through an expression has met; None if there are others than known ones."""
    open_calls: list[tuple[str, list[_Node]]] = [("", [])]
    for line in lines:
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            return None
        kind, value = entry.groups()
        match kind:
            case "call":
                open_calls.append((value, []))
            case "end":
                function, arguments = open_calls.pop()
                open_calls[-1][1].append(_Call(function, tuple(arguments)))
            case "field_ref":
                open_calls[-1][1].append(value)
            case "literal":
                open_calls[-1][1].append(literals[int(value)][0])
            # Options other than those that a function has anyway make another expression: the comparison shows them.
    ((_, (root,)),) = open_calls
    return root


def _written(node: _Node) -> pc.Expression:
    if isinstance(node, str):
        return pc.field(node)
    if isinstance(node, _Call):
        return _FUNCTIONS[node.function][1](*map(_written, node.arguments))
    return pc.scalar(node)


def _truth(node: _Node, schema: pa.Schema) -> Evaluate | None:
    """Return what evaluates a part that is true, false or unknown."""
    if isinstance(node, str):
        return operator.itemgetter(node) if pa.types.is_boolean(schema.field(node).type) else None
    if not isinstance(node, _Call):
        return None
    if node.function in _OF_TRUTHS:
        truths = [_truth(argument, schema) for argument in node.arguments]
        known = [truth for truth in truths if truth is not None]
        return _applied(_OF_TRUTHS[node.function][0], known) if len(known) == len(truths) else None
    match node.function, node.arguments:
        case ("is_null" | "is_valid") as function, (str(name),):
            return _applied(_OF_COLUMNS[function][0], [operator.itemgetter(name)])
        case function, (str(name), pa.Scalar() as literal) if function in _COMPARISONS:
            value = _fitted(literal, schema.field(name).type)
            return None if value is None else _compared(_COMPARISONS[function][0], name, value)
    return None


def _fitted(literal: pa.Scalar, column_type: pa.DataType) -> pa.Scalar | None:
    """Return a literal in the type of the column that it is compared with, None if that would not be exact."""
    if literal.type.equals(column_type):
        return literal
    is_number = pa.types.is_integer(column_type) or pa.types.is_float64(column_type)
    if not pa.types.is_integer(literal.type) or not is_number:
        return None
    try:
        return literal.cast(column_type)
    except pa.ArrowException:
        return None


def _compared(function: Callable[..., pa.Array], name: str, value: pa.Scalar) -> Evaluate:
    return lambda arrays: function(arrays[name], value)


def _applied(function: Callable[..., pa.Array], parts: list[Any]) -> Evaluate:
    return lambda arrays: function(*[part(arrays) for part in parts])
