"""Files of all formats: what they have, and their rows in the form of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fluss.schema.schema import Schema
from fluss.spark.bulk import arrow_files, csv_files, json_files, parquet_files
from fluss.spark.bulk.csv_files import CsvFormat
from fluss.spark.bulk.files import DataFile, FileFormat
from fluss.spark.bulk.fitting import ColumnChoice, ColumnFit, RowFitter
from fluss.spark.bulk.pieces import FileFacts, FilePiece, PlacedBatch

# Footers are small and far away.
_EXAMINERS_MAX: Final = 16


@dataclass(frozen=True)
class FileReading:
    """How files are read into one table. It goes to the executors."""

    schema: Schema
    choice: ColumnChoice
    csv_format: CsvFormat

    def examine(self, files: Sequence[DataFile]) -> list[FileFacts]:
        """Look at every file, and refuse those whose columns can never fit. Files without any bytes are left out."""
        filled = [file for file in files if file.size_bytes]
        with ThreadPoolExecutor(_EXAMINERS_MAX, thread_name_prefix="fluss-bulk-files") as workers:
            return list(workers.map(self._examine, filled))

    def _examine(self, file: DataFile) -> FileFacts:
        match file.format:
            case FileFormat.PARQUET:
                facts = parquet_files.examine(file)
            case FileFormat.ARROW:
                facts = arrow_files.examine(file)
            case FileFormat.CSV:
                facts = csv_files.examine(file, self.csv_format, list(self._source_names().values()))
            case FileFormat.JSON:
                facts = json_files.examine(file, self._source_names())
        fit = self._fit(file, facts.names)
        if facts.schema is not None:
            fields = [facts.schema.field(source).with_name(name) for name, source in fit.sources.items()]
            RowFitter(self.schema, fit).check(file, pa.schema(fields))
        elif file.format is FileFormat.CSV:
            csv_files.check_types(self.schema, fit.targets)
        else:
            json_files.check_types(self.schema, fit.targets)
        return facts

    def read(self, piece: FilePiece) -> Iterator[pa.RecordBatch]:
        """Read a piece in the form of the table: the same batches each time. A row that does not fit ends it."""
        fit = self._fit(piece.file, piece.names)
        fitted = RowFitter(self.schema, fit)
        for placed in self._placed(piece, fit):
            yield fitted(placed)

    def _placed(self, piece: FilePiece, fit: ColumnFit) -> Iterator[PlacedBatch]:
        match piece.file.format:
            case FileFormat.PARQUET:
                return parquet_files.read(piece, fit)
            case FileFormat.ARROW:
                return arrow_files.read(piece, fit)
            case FileFormat.CSV:
                return csv_files.read(piece, fit, self.schema, self.csv_format)
            case FileFormat.JSON:
                return json_files.read(piece, fit, self.schema, ignore_extra=self.choice.is_extra_ignored)

    def _fit(self, file: DataFile, names: Sequence[str]) -> ColumnFit:
        return ColumnFit.of(file, names, self.schema, self.choice)

    def _source_names(self) -> dict[str, str]:
        return self.choice.source_names(self.schema)
