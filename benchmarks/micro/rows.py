"""Compacted rows and bucketing: 100,000 rows of five columns, a batch at a time and row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.micro.timing import best_seconds
from fluss.row.bucketing import bucket_for, buckets_for
from fluss.row.compacted import decode_row, encode_row
from fluss.row.compacted_columns import decode_keys, decode_rows, encode_keys, encode_rows
from fluss.row.values import internal_from_arrow
from fluss.schema.types import BigIntType, DataType, DoubleType, IntType, StringType, TimestampType

ROW_COUNT = 100_000
# The scalar codec is timed on fewer rows: a run must be short to find a quiet moment.
SCALAR_ROW_COUNT = 5_000
BUCKET_COUNT = 16
STRING_BYTES = (4, 20)
TYPES: list[DataType] = [IntType(), StringType(), BigIntType(), DoubleType(), TimestampType(6)]
KEY_COLUMNS = 2
BULK_TARGET = "> 1,000,000"
RATIO_TARGET = "> 15"


def measure() -> list[tuple[str, float, str, str]]:
    """Return (what, value, unit, target) per path."""
    columns = _random_columns()
    key_columns, key_types = columns[:KEY_COLUMNS], TYPES[:KEY_COLUMNS]
    encoded, keys = encode_rows(columns, TYPES), encode_keys(key_columns, key_types)
    few = [
        internal_from_arrow(column.slice(0, SCALAR_ROW_COUNT), data_type)
        for column, data_type in zip(columns, TYPES, strict=True)
    ]
    few_rows = list(zip(*few, strict=True))
    few_encoded = [encode_row(TYPES, row) for row in few_rows]
    few_keys = [keys.row(index) for index in range(SCALAR_ROW_COUNT)]

    encode = ROW_COUNT / best_seconds(lambda: encode_rows(columns, TYPES))
    decode = ROW_COUNT / best_seconds(lambda: decode_rows(encoded, TYPES))
    encode_one = SCALAR_ROW_COUNT / best_seconds(lambda: [encode_row(TYPES, row) for row in few_rows])
    decode_one = SCALAR_ROW_COUNT / best_seconds(lambda: [decode_row(TYPES, row) for row in few_encoded])
    key_encode = ROW_COUNT / best_seconds(lambda: encode_keys(key_columns, key_types))
    key_decode = ROW_COUNT / best_seconds(lambda: decode_keys(keys, key_types))
    bucket = ROW_COUNT / best_seconds(lambda: buckets_for(keys, BUCKET_COUNT))
    bucket_one = SCALAR_ROW_COUNT / best_seconds(lambda: [bucket_for(key, BUCKET_COUNT) for key in few_keys])
    return [
        ("encode rows (int, string, bigint, double, timestamp), columnar", encode, "rows/s", BULK_TARGET),
        ("decode the same rows, columnar", decode, "rows/s", BULK_TARGET),
        ("encode the same rows, one by one", encode_one, "rows/s", ""),
        ("decode the same rows, one by one", decode_one, "rows/s", ""),
        ("encode: columnar in ratio to one by one", encode / encode_one, "times", RATIO_TARGET),
        ("decode: columnar in ratio to one by one", decode / decode_one, "times", RATIO_TARGET),
        ("encode keys (int, string), columnar", key_encode, "keys/s", BULK_TARGET),
        ("decode keys (int, string), columnar", key_decode, "keys/s", BULK_TARGET),
        ("choose the buckets of these keys, columnar", bucket, "keys/s", BULK_TARGET),
        ("choose the bucket of one key after the other", bucket_one, "keys/s", ""),
    ]


def _random_columns() -> list[pa.Array]:
    rng = np.random.default_rng(7)
    shortest, longest = STRING_BYTES
    offsets = np.zeros(ROW_COUNT + 1, dtype=np.int32)
    np.cumsum(rng.integers(shortest, longest + 1, ROW_COUNT), out=offsets[1:])
    letters = rng.integers(ord("a"), ord("z") + 1, int(offsets[-1])).astype(np.uint8)
    micros = 1_700_000_000_000_000 + rng.integers(0, 10**13, ROW_COUNT)
    return [
        pa.array(rng.integers(0, 2**31 - 1, ROW_COUNT).astype(np.int32)),
        pa.Array.from_buffers(pa.string(), ROW_COUNT, [None, pa.py_buffer(offsets), pa.py_buffer(letters)]),
        pa.array(rng.integers(0, 2**62, ROW_COUNT)),
        pa.array(rng.random(ROW_COUNT)),
        pa.array(micros).cast(pa.timestamp("us")),
    ]
