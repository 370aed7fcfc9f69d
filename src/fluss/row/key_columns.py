"""The keys of a whole batch at once, whatever encodes them: the columnar side of ``fluss.row.key``."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.row.compacted_columns import encode_keys
from fluss.row.encoded import EncodedRows
from fluss.row.key import CompactedKeyEncoder, KeyEncoder
from fluss.row.values import internal_from_arrow


def encode_key_columns(
    encoder: KeyEncoder, columns: Sequence[pa.Array], *, one_by_one_rows_max: int = 0
) -> EncodedRows:
    """Encode the key columns of a batch, in the order of ``encoder.types`` and with exactly their Arrow types.

    Compacted keys, the default, are encoded a column at a time. The keys of lakes go through their encoders one by one,
    and so do those of so few rows that it takes longer to begin with columns.
    """
    if isinstance(encoder, CompactedKeyEncoder) and len(columns[0]) > one_by_one_rows_max:
        return encode_keys(columns, encoder.types)
    values = [internal_from_arrow(column, data_type) for column, data_type in zip(columns, encoder.types, strict=True)]
    return EncodedRows.from_list([encoder.encode(row) for row in zip(*values, strict=True)])
