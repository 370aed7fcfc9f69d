"""The keys of a primary-key table: the bytes its rows are stored under, and the buckets they are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fluss.errors import FlussError
from fluss.row.bucketing import HashVariant, Int32Array, bucket_for, buckets_for
from fluss.row.encoded import EncodedRows
from fluss.row.key import bucket_key_encoder, encode_key_columns, primary_key_encoder
from fluss.schema.table import TableInfo
from fluss.schema.table_options import KV_FORMAT_VERSION, LAKE_FORMAT
from fluss.schema.types import DataType


class TableKeys:
    """Encodes the keys of one primary-key table. Has no state: it may be shared by threads.

    A key has the values of ``key_names``: the primary key without the partition columns, in the order of the primary
    key. With ``is_prefix`` it is the beginning of such keys, the bucket key.
    """

    def __init__(self, info: TableInfo, hash_variant: HashVariant, *, is_prefix: bool = False) -> None:
        assert info.has_primary_key(), "log tables have no keys"
        full_key, bucket_key = info.physical_primary_keys, info.bucket_keys
        self.key_names: list[str] = bucket_key if is_prefix else full_key
        self.key_types: list[DataType] = [info.schema.column(name).data_type for name in self.key_names]
        self._bucket_count = info.num_buckets
        self._lake_format = lake_format(info)
        self._hash_variant = hash_variant
        self._encoder = primary_key_encoder(
            self.key_types,
            self._lake_format,
            _kv_format_version(info),
            default_bucket_key=not is_prefix and bucket_key == full_key,
        )
        self._bucket_indexes = [self.key_names.index(name) for name in bucket_key]
        self._bucket_encoder = bucket_key_encoder(
            [self.key_types[index] for index in self._bucket_indexes], self._lake_format
        )
        # Usually the bucket is chosen by the bytes of the key itself.
        self._has_own_bucket_bytes = bucket_key != self.key_names or self._bucket_encoder != self._encoder

    def encode(self, columns: Sequence[pa.Array]) -> EncodedRows:
        """Encode the keys of a batch: the columns of ``key_names``, of exactly their Arrow types. Null is an error."""
        return encode_key_columns(self._encoder, columns)

    def encode_row(self, values: Sequence[Any]) -> bytes:
        """Encode the key of one row: the internal values of ``key_names``. Null is an error."""
        return self._encoder.encode(values)

    def buckets(self, columns: Sequence[pa.Array], keys: EncodedRows) -> Int32Array:
        """Return the bucket of every row of a batch; ``keys`` is what ``encode`` made of the same columns."""
        if self._has_own_bucket_bytes:
            keys = encode_key_columns(self._bucket_encoder, [columns[index] for index in self._bucket_indexes])
        return buckets_for(keys, self._bucket_count, self._lake_format, self._hash_variant)

    def bucket(self, values: Sequence[Any], key: bytes) -> int:
        """Return the bucket of one row; ``key`` is what ``encode_row`` made of the same values."""
        if self._bucket_count == 1:
            return 0
        if self._has_own_bucket_bytes:
            key = self._bucket_encoder.encode([values[index] for index in self._bucket_indexes])
        return bucket_for(key, self._bucket_count, self._lake_format, self._hash_variant)


def lake_format(info: TableInfo) -> str | None:
    """Return the lake whose bucketing a table follows."""
    text = info.properties.get(LAKE_FORMAT.key)
    return None if text is None else text.lower()


def _kv_format_version(info: TableInfo) -> int | None:
    text = info.properties.get(KV_FORMAT_VERSION.key)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise FlussError(f"'{KV_FORMAT_VERSION.key}' of {info.table_path} is {text!r}, which is not a number") from None
