"""The beginning of an append: makes writers."""

from __future__ import annotations

from collections.abc import Callable

from fluss.client.write.append_writer import AppendWriter
from fluss.client.write.writer_client import WriterClient
from fluss.schema.table import TableInfo


class TableAppend:
    """Makes writers for one log table; see ``FlussTable.new_append``."""

    def __init__(self, writer_client: Callable[[], WriterClient], table_info: TableInfo) -> None:
        self._writer_client = writer_client
        self._info = table_info

    def create_writer(self) -> AppendWriter:
        """Return a new writer. It needs no closing: closing the connection sends what was written."""
        return AppendWriter(self._writer_client(), self._info)

    def __repr__(self) -> str:
        return "TableAppend()"
