"""How the rows of one table become batches: what log tables and tables with a primary key have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fluss.buffers import BytesLike
from fluss.client.table_keys import lake_format
from fluss.client.write.rows import RowLayout
from fluss.client.write.splitter import PartitionSplitter
from fluss.errors import FlussError
from fluss.schema.table import TableInfo
from fluss.schema.types import TypeRoot

# Instead of a bucket: the rows are put into buckets by their keys, later.
BY_KEY: Final = None

_MAYBE_EMPTY_ROOTS: Final = (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES)


class EncodedRecords(Protocol):
    """A batch but for its header, which says who wrote it and when among its batches."""

    @property
    def record_count(self) -> int:
        """The rows of the batch."""
        ...

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole batch, header included."""
        ...

    @property
    def targets(self) -> tuple[int, ...] | None:
        """For a table with a primary key: the columns that are written, or none for all of them. Else None."""
        ...

    def sealed(self, writer_id: int, batch_sequence: int) -> list[BytesLike]:
        """Return the bytes of the batch, in parts. They are made anew each time; the records are not copied."""
        ...


# The batches that rows have become, by bucket. A bucket may have several, which are to be sent in this order.
Encoded: TypeAlias = list[tuple[int, EncodedRecords]]


class TableEncoder(ABC):
    """Encodes rows of one table in one of its schemas. Has no state: threads may share it.

    All rows of a block have the same encoder, so whatever must not be mixed in a batch has encoders of its own.
    """

    def __init__(
        self,
        info: TableInfo,
        layout: RowLayout,
        *,
        has_rows_by_key: bool,
        is_slow: bool,
        is_stepwise: bool = False,
    ) -> None:
        self.info = info
        self.layout = layout
        self.partitions = PartitionSplitter(info.schema, info.partition_keys) if info.is_partitioned() else None
        # Whether the bucket of a row depends on its key.
        self.has_rows_by_key = has_rows_by_key
        # Whether encoding takes much longer than copying the rows, and whether it does so in many short steps.
        self.is_slow = is_slow
        self.is_stepwise = is_stepwise

    def check_keys(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that belong to no partition or to no bucket."""
        if self.partitions is not None:
            self.partitions.check_keys(batch)
        for name in filled_keys(self.info):
            if pc.binary_length(batch.column(name)).to_numpy(zero_copy_only=False).min(initial=1) == 0:
                raise FlussError(f"Column '{name}' has an empty value; a key that is empty belongs to no bucket")

    @abstractmethod
    def bucket_of(self, packed_row: bytes) -> int:
        """Return the bucket of a row by its key."""

    @abstractmethod
    def encode(self, batch: pa.RecordBatch, bucket_id: int | None) -> Encoded:
        """Encode rows that were checked, for one bucket or ``BY_KEY``. Takes a while: not for event loops."""


def filled_keys(info: TableInfo) -> list[str]:
    """Return the key columns that must not be empty, because their bytes alone choose the bucket."""
    if lake_format(info) != "iceberg":
        return []
    return [name for name in info.bucket_keys if info.schema.column(name).data_type.root in _MAYBE_EMPTY_ROOTS]
