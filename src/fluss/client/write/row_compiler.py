"""Makes, for the schema of a table, the Python function that takes its ordinary rows.

A row costs well below a microsecond only if nothing is decided per row that could be decided per table, and nothing is
called that could be written out. So what happens to a row until it is in a block is spelled out as source text, and
compiled once, like ``dataclasses`` does it. For ``id BIGINT NOT NULL, name STRING`` the text is

    def append(row):
        try:
            if type(row) is dict:
                if len(row) != 2: return append_any(row)
                v0 = row['id']
                v1 = row['name']
            elif type(row) is list or type(row) is tuple:
                v0, v1, = row
            else:
                return append_any(row)
            nulls = 0
            if not (type(v0) is int): return append_any(row)
            if v1 is None:
                nulls |= 2
                b1 = b''
            else:
                b1 = encode(v1)
            packed_row = pack(nulls, v0, len(b1)) + b1
        except NOT_ORDINARY:
            return append_any(row)
        block = destination.block
        size_bytes = block.size_bytes + len(packed_row) + 48
        if size_bytes > block.limit_bytes: return append_packed(destination, packed_row, block)
        block.size_bytes = size_bytes
        block.rows.append(packed_row)
        if block.limit_bytes < 0: return append_late(destination, packed_row, block)
        handle = RowHandle()
        handle._write = block
        return handle

An ordinary row has its values in their usual Python classes, or None. ``struct`` checks the ranges of numbers, and
``str.encode`` checks texts. Whatever is not ordinary takes the slow path (``RowLayout.pack_any``), which knows every
class, and says what is wrong with values that nothing takes. ``fluss.client.write.blocks`` says why no lock is needed.

Deletes of a table with a primary key are rows, too: only the key is given, all other columns are null, and a bit behind
those of the columns says that it is a delete.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from types import CodeType
from typing import Any, Final

from fluss.client.write.result import RowHandle, WriteResultHandle
from fluss.client.write.row_layout import NULLS_INTEGER_BITS_MAX, PACKED_ROW_OVERHEAD_BYTES, PackedForm, RowLayout, Slot
from fluss.errors import FlussError
from fluss.row.python_values import to_internal
from fluss.schema.arrow import time_unit
from fluss.schema.types import (
    BinaryType,
    DataType,
    TimestampLtzType,
    TimestampType,
    TypeRoot,
)

# A wide row joins its bodies in one step; for the few bodies of most rows additions are faster.
_ADDED_BODIES_MAX: Final = 4

_SLOW_PATH: Final = "return append_any(row)"
_NOT_ORDINARY: Final = (KeyError, TypeError, ValueError, OverflowError, struct.error, FlussError)
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = _EPOCH.toordinal()
_DAY_S: Final = 86_400
# The days since 1970 of the years 1 to 9999.
_DAY_LOWEST: Final = (datetime.min - _EPOCH).days
_DAY_HIGHEST: Final = (datetime.max - _EPOCH).days


@dataclass(frozen=True, slots=True)
class RowSink:
    """Where an append function leads. A destination has a ``block``, which may be another one each time.

    A table without partitions has one destination. Rows of other tables find theirs by the values of their partition
    columns: in ``destinations``, or else by ``find_destination``.
    """

    destination: Any
    destinations: dict[Any, Any]
    find_destination: Callable[[Any], Any]
    # Rows that are not ordinary; rows for which the block of their destination has no room; and rows that were added
    # to a block while it was closed.
    append_any: Callable[[Any], WriteResultHandle]
    append_packed: Callable[[Any, bytes, Any], WriteResultHandle]
    append_late: Callable[[Any, bytes, Any], WriteResultHandle]


def append_function(layout: RowLayout, sink: RowSink) -> Callable[[Any], WriteResultHandle]:
    """Return the function that packs ordinary rows of a table and adds them to blocks; the others it hands on."""
    return _append_code(layout).function(sink)


def delete_function(layout: RowLayout, sink: RowSink) -> Callable[[Any], WriteResultHandle]:
    """Return the function that does the same with the keys of rows that are to be deleted."""
    return _delete_code(layout).function(sink)


# Layouts are few and shared by all writers of a schema, and compiling takes longer than anything else about them.


@lru_cache(maxsize=256)
def _append_code(layout: RowLayout) -> _RowCode:
    return _RowCode(
        layout, range(len(layout.form.slots)), name="upsert" if layout.delete_indexes else "append", parameter="row"
    )


@lru_cache(maxsize=256)
def _delete_code(layout: RowLayout) -> _RowCode:
    assert layout.delete_indexes, "only tables with a primary key can delete rows"
    return _RowCode(layout, layout.delete_indexes, name="delete", parameter="pk")


class _RowCode:
    """The compiled text of a schema, of which any number of functions can be made."""

    def __init__(self, layout: RowLayout, given_indexes: Sequence[int], *, name: str, parameter: str) -> None:
        """Rows give the columns ``given_indexes``, in this order. Of a delete, these are the key.

        Users may call the function with its ``parameter`` as a keyword, and meet its ``name`` if they call it wrongly.
        """
        form = layout.form
        null_bits = 0
        if name == "delete":
            # The bits of all columns but the key, and the one behind them, which marks a delete.
            null_bits = (1 << form.null_bit_count) - 1 - sum(1 << index for index in given_indexes)
        self._name = name
        self._namespace: dict[str, Any] = {
            "pack": form.head.pack,
            "encode": str.encode,
            "date": date,
            "datetime": datetime,
            "EPOCH": _EPOCH,
            "EPOCH_UTC": _EPOCH_UTC,
            "RowHandle": RowHandle,
            "NOT_ORDINARY": _NOT_ORDINARY,
            **{f"convert{index}": _converter(form.names[index], form.slots[index]) for index in given_indexes},
        }
        partition_indexes = layout.partition_indexes
        lines = [
            f"def {name}({parameter}):",
            *([] if parameter == "row" else [f"    row = {parameter}"]),
            *("    " + line for line in _packing_source(form, partition_indexes, given_indexes, null_bits)),
            *("    " + line for line in _adding_source(bool(partition_indexes), layout.has_rows_by_key)),
        ]
        code = "\n".join(lines)
        self._code: CodeType = compile(code, f"<{name} of {len(given_indexes)} columns>", "exec")

    def function(self, sink: RowSink) -> Callable[[Any], WriteResultHandle]:
        """Return the function that appends rows on these sink."""
        namespace = {
            **self._namespace,
            "destination": sink.destination,
            "destinations": sink.destinations,
            "find_destination": sink.find_destination,
            "append_any": sink.append_any,
            "append_packed": sink.append_packed,
            "append_late": sink.append_late,
        }
        exec(self._code, namespace)
        append: Callable[[Any], WriteResultHandle] = namespace[self._name]
        return append


def _converter(name: str, slot: Slot) -> Callable[[Any], Any]:
    """Return the slow path for a single column."""

    def convert(value: Any) -> Any:
        internal = to_internal(value, slot.data_type, name)
        if internal is None:
            raise ValueError("a null in disguise, such as pandas' NaT")
        return slot.from_internal(internal)

    return convert


def _packing_source(
    form: PackedForm, partition_indexes: Sequence[int], given_indexes: Sequence[int], null_bits: int
) -> Iterator[str]:
    """From ``row`` to ``packed_row``, and to ``key``: the values of the partition columns as they were in the row."""
    yield "try:"
    yield "    if type(row) is dict:"
    yield f"        if len(row) != {len(given_indexes)}: {_SLOW_PATH}"
    for index in given_indexes:
        yield f"        v{index} = row[{form.names[index]!r}]"
    yield "    elif type(row) is list or type(row) is tuple:"
    yield f"        {''.join(f'v{index}, ' for index in given_indexes)}= row"
    yield "    else:"
    yield f"        {_SLOW_PATH}"
    if partition_indexes:
        yield f"    key = {', '.join(f'v{index}' for index in partition_indexes)}"
    yield f"    nulls = {null_bits}"
    for index in given_indexes:
        yield from (f"    {line}" for line in _column_source(index, form.slots[index]))
        if index in form.filled_indexes:
            yield f"    if not b{index}: {_SLOW_PATH}"
    yield f"    packed_row = {_packed_source(form, frozenset(given_indexes))}"
    yield "except NOT_ORDINARY:"
    yield f"    {_SLOW_PATH}"


def _column_source(index: int, slot: Slot) -> Iterator[str]:
    """Turn ``v<index>`` into what is packed, or into the body ``b<index>``."""
    value = f"v{index}"
    test, conversion = _test(value, slot.data_type), _conversion(value, index, slot.data_type)
    when_null = [f"nulls |= {1 << index}", f"b{index} = b''" if slot.has_body else f"{value} = {slot.null!r}"]
    if not slot.data_type.nullable:
        if test is not None:
            yield f"if not ({test}): {_SLOW_PATH}"
        if conversion is not None:
            yield from conversion.splitlines()
    elif conversion is None:
        # The common case, a value of the right class, costs a single test.
        yield f"if not ({test}):"
        yield f"    if {value} is not None: {_SLOW_PATH}"
        yield from (f"    {line}" for line in when_null)
    else:
        yield f"if {value} is None:"
        yield from (f"    {line}" for line in when_null)
        yield "else:"
        if test is not None:
            yield f"    if not ({test}): {_SLOW_PATH}"
        yield from (f"    {line}" for line in conversion.splitlines())


def _test(value: str, data_type: DataType) -> str | None:
    """What an ordinary value fulfils, unless its conversion finds that out."""
    match data_type.root:
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INTEGER | TypeRoot.BIGINT:
            return f"type({value}) is int"
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            return f"type({value}) is float or type({value}) is int"
        case TypeRoot.BOOLEAN:
            return f"type({value}) is bool"
        case TypeRoot.BYTES:
            return f"type({value}) is bytes"
        case TypeRoot.BINARY:
            assert isinstance(data_type, BinaryType)
            return f"type({value}) is bytes and len({value}) == {data_type.length}"
        case TypeRoot.DATE:
            return f"type({value}) is date"
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return f"type({value}) is datetime"
    return None


def _conversion(value: str, index: int, data_type: DataType) -> str | None:
    """The statements that make of an ordinary value what is packed, unless that is the value itself."""
    match data_type.root:
        case TypeRoot.CHAR | TypeRoot.STRING:
            return f"b{index} = encode({value})"
        case TypeRoot.BYTES:
            return f"b{index} = {value}"
        case TypeRoot.DATE:
            return f"{value} = {value}.toordinal() - {_EPOCH_ORDINAL}"
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            assert isinstance(data_type, TimestampType | TimestampLtzType)
            return _timestamp_conversion(value, index, data_type)
        case TypeRoot.TIME | TypeRoot.DECIMAL:
            return f"{value} = convert{index}({value})"
        case TypeRoot.ARRAY | TypeRoot.MAP | TypeRoot.ROW:
            return f"b{index} = convert{index}({value})"
    return None


def _timestamp_conversion(value: str, index: int, data_type: TimestampType | TimestampLtzType) -> str:
    """Bring an exact ``datetime`` into the unit of the Arrow type, finer digits cut off."""
    span = f"d{index}"
    if isinstance(data_type, TimestampLtzType):
        since_epoch = (
            f"{span} = {value} - (EPOCH if {value}.tzinfo is None else EPOCH_UTC)\n"
            # A time of another zone can lie in a year that UTC does not have.
            f"if not {_DAY_LOWEST} <= {span}.days <= {_DAY_HIGHEST}: {_SLOW_PATH}"
        )
    else:
        # A time with a zone cannot be subtracted.
        since_epoch = f"{span} = {value} - EPOCH"
    seconds = f"{span}.days * {_DAY_S} + {span}.seconds"
    units = {
        "s": seconds,
        "ms": f"({seconds}) * 1000 + {span}.microseconds // 1000",
        "us": f"({seconds}) * 1000000 + {span}.microseconds",
        "ns": f"(({seconds}) * 1000000 + {span}.microseconds) * 1000",
    }
    return f"{since_epoch}\n{value} = {units[time_unit(data_type.precision)]}"


def _packed_source(form: PackedForm, given_indexes: Set[int]) -> str:
    bit_count = form.null_bit_count
    nulls = "nulls" if bit_count <= NULLS_INTEGER_BITS_MAX else f"nulls.to_bytes({-(-bit_count // 8)}, 'little')"
    packed = [nulls]
    bodies = []
    for index, slot in enumerate(form.slots):
        if index not in given_indexes:
            packed.append(repr(slot.null))
        elif slot.has_body:
            packed.append(f"len(b{index})")
            bodies.append(f"b{index}")
        else:
            packed.append(f"v{index}")
    parts = [f"pack({', '.join(packed)})", *bodies]
    return " + ".join(parts) if len(bodies) <= _ADDED_BODIES_MAX else f"b''.join(({', '.join(parts)}))"


def _adding_source(is_partitioned: bool, has_rows_by_key: bool) -> Iterator[str]:
    """From ``packed_row`` into a block, and to the handle."""
    name = "destination"
    if is_partitioned:
        name = "row_destination"
        yield "row_destination = destinations.get(key)"
        yield "if row_destination is None: row_destination = find_destination(key)"
    yield f"block = {name}.block"
    yield f"size_bytes = block.size_bytes + len(packed_row) + {PACKED_ROW_OVERHEAD_BYTES}"
    yield f"if size_bytes > block.limit_bytes: return append_packed({name}, packed_row, block)"
    yield "block.size_bytes = size_bytes"
    yield "block.rows.append(packed_row)"
    yield f"if block.limit_bytes < 0: return append_late({name}, packed_row, block)"
    yield "handle = RowHandle()"
    yield "handle._write = block"
    if has_rows_by_key:
        # The block has rows of several buckets, and each of them can fail alone.
        yield "handle._packed_row = packed_row"
    yield "return handle"
