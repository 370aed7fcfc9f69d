"""Parquet files of a lake table, written from Arrow where the rows are: in a task, without the catalog.

A ``FileLayout`` says everything that a writer needs to know of a table; it is small and can be pickled. What writers
return are pyiceberg's ``DataFile``s, which can be pickled, too, and belong to the table when they are committed.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as LakeSchema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType

from fluss.errors import FlussError
from fluss.lake.arrow_conversion import arrow_schema

_TARGET_SIZE_KEY: Final = "write.target-file-size-bytes"
_TARGET_SIZE: Final = 512 << 20
_CODEC_KEY: Final = "write.parquet.compression-codec"
_CODEC: Final = "zstd"
_CODEC_LEVEL_KEY: Final = "write.parquet.compression-level"
_FORMAT_KEY: Final = "write.format.default"
# Rows are collected up to one of these limits, then written as a row group: a batch of the log is far too small to be
# one. This is what a writer holds in memory.
_ROW_GROUP_BYTES: Final = 64 << 20
_ROW_GROUP_ROWS: Final = 1 << 20
# By so many rows it is decided how a file is written.
_SAMPLE_ROWS: Final = 8192
# Ids that the format reserves for the columns of position deletes.
_PATH_ID: Final = 2147483546
_POSITION_ID: Final = 2147483545
_FIELD_ID: Final = b"PARQUET:field_id"
# With deletes in more data files than this there is one delete file for all of them.
_SCOPED_DELETES_MAX: Final = 16
_POSITION_DELETES_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={_FIELD_ID: str(_PATH_ID).encode()}),
        pa.field("pos", pa.int64(), nullable=False, metadata={_FIELD_ID: str(_POSITION_ID).encode()}),
    ]
)


def _pickled(file: DataFile) -> tuple[Any, ...]:
    return _unpickled, (file._data, file.spec_id)


def _unpickled(values: Sequence[Any], spec_id: int) -> DataFile:
    file = DataFile(*values)
    file.spec_id = spec_id
    return file


# Files go from tasks to drivers and back. By itself pyiceberg forgets which partition spec they belong to.
copyreg.pickle(DataFile, _pickled)


@dataclass(frozen=True)
class FileLayout:
    """What writers of files know of a lake table. It is that of one state: columns added later are not in its files."""

    io: FileIO
    schema: LakeSchema
    spec: PartitionSpec
    location: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, table: IcebergTable) -> FileLayout:
        """Return the layout of a table as it is now. Raises FlussError if its files cannot be written here."""
        file_format = table.properties.get(_FORMAT_KEY, "parquet").lower()
        if file_format != "parquet":
            raise FlussError(f"The lake table writes {file_format} files; set its '{_FORMAT_KEY}' to parquet")
        if table.metadata.format_version != 2:
            raise FlussError(
                f"The lake table has format version {table.metadata.format_version}; only version 2 can be written"
            )
        return cls(table.io, table.schema(), table.spec(), table.location(), dict(table.properties))

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of batches that are written."""
        return arrow_schema(self.schema)

    @property
    def target_bytes(self) -> int:
        """How large data files are meant to become."""
        return int(self.properties.get(_TARGET_SIZE_KEY, _TARGET_SIZE))

    def partition(self, partition_values: Sequence[str], bucket_id: int) -> Record:
        """Return the partition of the lake that a bucket of a Fluss partition is."""
        assert len(partition_values) + 1 == len(self.spec.fields), "one value for each partition key"
        return Record(*partition_values, bucket_id)

    def new_location(self, partition: Record, name: str) -> str:
        """Return where a new file of a partition belongs."""
        directory = self.spec.partition_to_path(partition, self.schema)
        provider = load_location_provider(self.location, dict(self.properties))
        location: str = provider.new_data_location(f"{directory}/{name}-{uuid4().hex}.parquet")
        return location

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class _ParquetFile:
    """One file that is being written."""

    def __init__(
        self, layout: FileLayout, schema: pa.Schema, location: str, dictionaries: bool | list[str] = True
    ) -> None:
        self.location = location
        self._stream = layout.io.new_output(location).create(overwrite=False)
        level = layout.properties.get(_CODEC_LEVEL_KEY)
        codec = layout.properties.get(_CODEC_KEY, _CODEC).lower()
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="none" if codec == "uncompressed" else codec,
            compression_level=None if level is None else int(level),
            use_dictionary=dictionaries,
            store_decimal_as_integer=True,
            store_schema=False,
        )
        self.metadata: pq.FileMetaData | None = None

    @property
    def byte_count(self) -> int:
        position: int = self._stream.tell()
        return position

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)

    def close(self) -> int:
        """Finish the file and return its size."""
        self._writer.close()
        self.metadata = self._writer.writer.metadata
        size = self.byte_count
        self._stream.close()
        return size

    def abandon(self, io: FileIO) -> None:
        try:
            self._stream.close()
        finally:
            io.delete(self.location)


class DataFileWriter:
    """Writes rows of one bucket to data files, beginning a new one when one is large enough.

    Use it with ``with``, or call ``close``: then ``files`` has what was written. Leaving by an exception deletes it.
    """

    def __init__(self, layout: FileLayout, partition: Record, *, name: str = "data") -> None:
        self.files: list[DataFile] = []
        self.row_count = 0
        self._layout = layout
        self._partition = partition
        self._name = name
        self._schema = layout.arrow_schema
        self._file: _ParquetFile | None = None
        self._waiting: list[pa.RecordBatch] = []
        # Rows that are in memory, because a row group is not complete.
        self.waiting_bytes = 0
        self._waiting_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch in the schema of the layout (``arrow_conversion.lake_batch`` makes such batches)."""
        if batch.num_rows == 0:
            return
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        self.row_count += batch.num_rows
        if self.waiting_bytes >= _ROW_GROUP_BYTES or self._waiting_rows >= _ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as a row group, also a small one."""
        self._write_row_group()
        if self._file is not None and self._file.byte_count >= self._layout.target_bytes:
            self._finish_file()

    def _write_row_group(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting, self._schema)
        if self._file is None:
            location = self._layout.new_location(self._partition, self._name)
            self._file = _ParquetFile(self._layout, self._schema, location, self._dictionaries(rows))
        self._file.write(rows)
        self._waiting, self.waiting_bytes, self._waiting_rows = [], 0, 0

    def _dictionaries(self, rows: pa.Table) -> bool | list[str]:
        """Return the columns whose values are worth a dictionary: all but numbers that are nearly all different.

        A dictionary of those is built, found to be too large, and thrown away, which takes longer than to write them.
        """
        sample = rows.slice(0, _SAMPLE_ROWS)
        unique = {
            field.name
            for field, column in zip(sample.schema, sample.columns, strict=True)
            if _is_number(field.type) and pc.count_distinct(column).as_py() > sample.num_rows // 2
        }
        if not unique or rows.num_rows < _SAMPLE_ROWS:
            return True
        return [path for path in parquet_path_to_id_mapping(self._layout.schema) if path not in unique]

    def _finish_file(self) -> None:
        file = self._file
        if file is None:
            return
        size = file.close()
        self._file = None
        schema = self._layout.schema
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=file.metadata,
            stats_columns=compute_statistics_plan(schema, dict(self._layout.properties)),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        self.files.append(
            _data_file(
                self._layout,
                content=DataFileContent.DATA,
                file_path=file.location,
                file_format=FileFormat.PARQUET,
                partition=self._partition,
                file_size_in_bytes=size,
                sort_order_id=None,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )

    def close(self) -> list[DataFile]:
        """Write what is left, and return all files."""
        self._write_row_group()
        self._finish_file()
        return self.files

    def abandon(self) -> None:
        """Delete everything that was written."""
        file, self._file = self._file, None
        if file is not None:
            file.abandon(self._layout.io)
        delete_files(self._layout.io, self.files)
        self.files = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _is_number(arrow_type: pa.DataType) -> bool:
    return bool(pat.is_integer(arrow_type) or pat.is_floating(arrow_type) or pat.is_temporal(arrow_type)) or bool(
        pat.is_decimal(arrow_type)
    )


def write_position_deletes(
    layout: FileLayout, partition: Record, positions: pa.Table, *, name: str = "deletes"
) -> list[DataFile]:
    """Write which rows of data files of a partition are gone, and return the files; none for no rows.

    ``positions`` has the columns ``file_path`` and ``pos``, as ``key_positions`` returns them, in any order. A few data
    files have a delete file each, so that readers of the others need not look at any; many have one together.
    """
    if positions.num_rows == 0:
        return []
    rows = positions.select(["file_path", "pos"]).cast(_POSITION_DELETES_SCHEMA)
    rows = rows.sort_by([("file_path", "ascending"), ("pos", "ascending")]).combine_chunks()
    ends = pc.run_end_encode(rows["file_path"].combine_chunks()).run_ends.to_pylist()
    if len(ends) > _SCOPED_DELETES_MAX:
        ends = [rows.num_rows]
    starts = [0, *ends[:-1]]
    parts = [rows.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
    return [_write_position_deletes(layout, partition, part, name) for part in parts]


def _write_position_deletes(layout: FileLayout, partition: Record, rows: pa.Table, name: str) -> DataFile:
    file = _ParquetFile(layout, _POSITION_DELETES_SCHEMA, layout.new_location(partition, name))
    file.write(rows)
    size = file.close()
    lower, upper = _position_bounds(rows)
    return _delete_file(DataFileContent.POSITION_DELETES, layout, partition, file.location, rows, size, lower, upper)


def write_equality_deletes(
    layout: FileLayout, partition: Record, keys: pa.Table, *, name: str = "eq-deletes"
) -> list[DataFile]:
    """Write which keys of a partition are gone from all rows that were committed before; nothing for no keys.

    Tables that this library tiers have deletes by position, which every engine reads; this is what Apache Fluss's own
    service writes, for tools and tests.
    """
    if keys.num_rows == 0:
        return []
    fields = [layout.schema.find_field(column) for column in keys.schema.names]
    by_name = {field.name: field for field in layout.arrow_schema}
    schema = pa.schema([by_name[column] for column in keys.schema.names])
    file = _ParquetFile(layout, schema, layout.new_location(partition, name))
    file.write(keys.cast(schema))
    ids = [field.field_id for field in fields]
    return [
        _delete_file(
            DataFileContent.EQUALITY_DELETES, layout, partition, file.location, keys, file.close(), {}, {}, ids
        )
    ]


def _position_bounds(rows: pa.Table) -> tuple[dict[int, bytes], dict[int, bytes]]:
    paths, positions = pc.min_max(rows["file_path"]).as_py(), pc.min_max(rows["pos"]).as_py()
    return tuple(
        {_PATH_ID: to_bytes(StringType(), paths[end]), _POSITION_ID: to_bytes(LongType(), positions[end])}
        for end in ("min", "max")
    )  # type: ignore[return-value]


def _delete_file(
    content: DataFileContent,
    layout: FileLayout,
    partition: Record,
    location: str,
    rows: pa.Table,
    size: int,
    lower: Mapping[int, bytes],
    upper: Mapping[int, bytes],
    equality_ids: Sequence[int] | None = None,
) -> DataFile:
    return _data_file(
        layout,
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds=dict(lower),
        upper_bounds=dict(upper),
        key_metadata=None,
        split_offsets=[],
        equality_ids=None if equality_ids is None else list(equality_ids),
        sort_order_id=None,
    )


def _data_file(layout: FileLayout, **values: Any) -> DataFile:
    file = DataFile.from_args(**values)
    file.spec_id = layout.spec.spec_id
    return file


def delete_files(io: FileIO, files: Sequence[DataFile]) -> None:
    """Delete files that were written and will not be committed. One that is gone already is none to delete."""
    for file in files:
        try:
            io.delete(file.file_path)
        except FileNotFoundError:
            continue


def positions_table(location: str, positions: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
    """Return positions in one data file in the form of ``write_position_deletes``."""
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), [location]).cast(pa.string())
    return pa.Table.from_arrays([paths, pa.array(positions, pa.int64())], schema=_POSITION_DELETES_SCHEMA)
