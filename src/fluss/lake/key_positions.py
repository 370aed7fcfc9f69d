"""Where rows with certain keys are in data files: what a row delta deletes when it brings newer rows of these keys.

Or where all rows are, for one that brings all rows of a bucket anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table import Table as IcebergTable

from fluss.lake.data_files import positions_table
from fluss.lake.key_set import KeySet
from fluss.lake.scans import LakeFile, LakeScan, deleted_positions


def key_positions(table: IcebergTable, files: Iterable[LakeFile], keys: KeySet) -> pa.Table:
    """Return the positions of rows with these keys that are not deleted, for ``data_files.write_position_deletes``.

    Only the key columns of the files are read. ``files`` are those of the bucket, as ``LakeScan.files`` returns them.
    """
    scan = LakeScan(table, columns=list(keys.names))
    found = [positions_table("", np.zeros(0, np.int64))]
    for file in files:
        found_before = [np.zeros(0, np.int64)]
        row_count = 0
        # Positions count all rows of a file, so that nothing may be left out while it is read.
        for batch in scan.read_file(replace(file, position_deletes=(), equality_deletes=())):
            found_before.append(np.flatnonzero(keys.contains(batch)) + row_count)
            row_count += batch.num_rows
        found.append(_left(table, file, np.concatenate(found_before)))
    return pa.concat_tables(found)


def row_positions(table: IcebergTable, files: Iterable[LakeFile]) -> pa.Table:
    """Return the positions of all rows of files that are not deleted, as ``key_positions`` does. No row is read."""
    found = [positions_table("", np.zeros(0, np.int64))]
    found += [_left(table, file, np.arange(file.data.record_count)) for file in files]
    return pa.concat_tables(found)


def _left(table: IcebergTable, file: LakeFile, positions: npt.NDArray[np.int64]) -> pa.Table:
    """Return those of some positions of a file that are not deleted yet."""
    for gone in deleted_positions(table.io, file):
        positions = np.setdiff1d(positions, gone.to_numpy(), assume_unique=True)
    return positions_table(file.data.file_path, positions)
