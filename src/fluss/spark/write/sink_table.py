"""Which table a stream writes to, noted below its checkpoint.

A stream goes on where its checkpoint says. If its table was dropped and created again meanwhile, or another one is
named now, the rows that it wrote before are not there, and would never be: that is refused, unless it is accepted with
``sink.on-table-change``.

    <checkpoint>/fluss-sink/table.json    {"version": 1, "table": "sales.orders", "table_id": 7}
    <checkpoint>/fluss-sink/table-1.json  the table that was accepted in its place, and so on: the last one counts

Checkpoints of earlier releases have no such file. They get one when the stream is started again.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final, NamedTuple

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableInfo
from fluss.spark.query_options import WriteOptions
from fluss.spark.write.exactly_once import SINK_DIRECTORY, StateFiles, state_files

_VERSION: Final = 1
# Tables of one checkpoint. Each of them was accepted by the user.
_TABLES_MAX: Final = 10_000

logger = logging.getLogger(__name__)


class SinkTable(NamedTuple):
    """A table, as a checkpoint knows it."""

    table: str
    table_id: int

    @classmethod
    def of(cls, info: TableInfo) -> SinkTable:
        return cls(str(info.table_path), info.table_id)

    def to_json(self) -> bytes:
        return json.dumps({"version": _VERSION, **self._asdict()}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes) -> SinkTable:
        try:
            found: dict[str, Any] = json.loads(content)
            if found["version"] != _VERSION:
                raise ValueError
            return cls(str(found["table"]), int(found["table_id"]))
        except (ValueError, TypeError, KeyError):
            raise FlussError(
                "The note of the table that a stream writes to, below its checkpoint, is damaged or of a version that "
                "is not known; begin with a new checkpoint"
            ) from None


def check_sink_table(options: WriteOptions, now: SinkTable, *, is_noted: bool = True) -> None:
    """Make sure that a stream with a checkpoint writes to the table that it wrote to before.

    The first one is noted, unless it is not certain yet that the stream begins. Without a checkpoint, or with one that
    only Spark can read, there is nothing to compare with.
    """
    if options.checkpoint_location is None:
        return
    try:
        files = state_files(options.checkpoint_location)
    except FlussError as error:
        # Exactly-once writes refuse such a checkpoint.
        logger.debug("the table of a sink is not noted: %s", error.message)
        return
    before, count = _last_noted(files)
    if before == now:
        return
    if before is not None and options.on_table_change == "fail":
        raise FlussError(_complaint(before, now), ErrorCode.TABLE_NOT_EXIST)
    if is_noted:
        # If another process has noted something at the same time, the next micro-batch sees it.
        files.create(_name(count), now.to_json())


def _last_noted(files: StateFiles) -> tuple[SinkTable | None, int]:
    """Return the table that was noted last, and how many there are."""
    last = None
    for number in range(_TABLES_MAX):
        content = files.read(_name(number))
        if content is None:
            return last, number
        last = SinkTable.from_json(content)
    raise FlussError("The checkpoint has had too many tables; begin with a new checkpoint")


def _name(number: int) -> str:
    return f"{SINK_DIRECTORY}/table{f'-{number}' if number else ''}.json"


def _complaint(before: SinkTable, now: SinkTable) -> str:
    if before.table == now.table:
        what = (
            f"{now.table} was dropped and created again since a stream with this checkpoint wrote to it (its id was "
            f"{before.table_id} and is {now.table_id})"
        )
    else:
        what = f"The checkpoint is that of a stream into {before.table}, and this one writes to {now.table}"
    return (
        f"{what}; the rows written before would be missing. Begin with a new checkpoint to write all of them, or set "
        "'sink.on-table-change'=accept to go on with new rows only"
    )
