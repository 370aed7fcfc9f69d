"""Joining texts: all values of a key with a delimiter between them.

The last state of a key begins with every earlier one. So the values are joined once, and each state is a piece of that.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fluss.row.arrow_arrays import mask_from_arrow, mask_to_arrow
from fluss.row.encoded import gather_ranges, join_rows, large_binary_array, offsets_of
from fluss.server.kv.aggregation.limits import check_states_size
from fluss.server.kv.aggregation.segments import Segments


def joined_texts(delimiter: str, column: pa.Array, segments: Segments) -> pa.Array:
    """Join the values of a STRING or CHAR column that are not null."""
    valid = mask_from_arrow(column)
    has_value = np.ones(len(column), np.bool_) if valid is None else valid
    # A delimiter comes before each value but the first.
    is_later = has_value & (segments.first_valid(has_value) < segments.numbers)
    delimiter_bytes = delimiter.encode()
    delimiters = large_binary_array(
        delimiter_bytes * int(np.count_nonzero(is_later)), offsets_of(is_later * len(delimiter_bytes))
    )
    joined = join_rows([delimiters, column.cast(pa.large_binary())])
    starts = joined.starts[segments.first_entries]
    lengths = joined.ends - starts
    check_states_size(int(lengths.sum()))
    content = gather_ranges(joined.data, starts, lengths)
    buffers = [
        mask_to_arrow(segments.any_valid(valid)),
        pa.py_buffer(offsets_of(lengths).astype(np.int32)),
        pa.py_buffer(content),
    ]
    return pa.Array.from_buffers(column.type, len(column), buffers)
