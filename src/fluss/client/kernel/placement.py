"""Where rows belong: their partitions, their buckets, and the keys under which a primary-key table stores them.

Arrow batches are taken apart column by column, without a step per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

import fluss.arrow_compute as pc
from fluss.buffers import Int64Array
from fluss.errors import FlussError
from fluss.row.arrow_arrays import number_array, take_rows
from fluss.row.bucketing import HashVariant, Int32Array, bucket_for, buckets_for, split_by_bucket
from fluss.row.encoded import EncodedRows
from fluss.row.key import bucket_key_encoder, encode_key_columns, primary_key_encoder
from fluss.row.partition_names import row_partition_name
from fluss.row.values import internal_from_arrow
from fluss.schema.schema import Schema
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


# Lakes whose bucket keys may be null.
_NULL_KEY_LAKES = ("paimon", "hudi")


class PartitionSplitter:
    """Finds the rows of each partition."""

    def __init__(self, schema: Schema, partition_keys: Sequence[str]) -> None:
        self._names = partition_keys
        self._types = [schema.column(name).data_type for name in partition_keys]

    @classmethod
    def of(cls, info: TableInfo) -> PartitionSplitter | None:
        """Return the splitter of a table, or None if it has no partitions."""
        return cls(info.schema, info.partition_keys) if info.is_partitioned() else None

    def check_keys(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that belong to no partition."""
        for name in self._names:
            if batch.column(name).null_count:
                raise FlussError("Partition value shouldn't be null: a row needs a value in every partition column")

    def split(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        """Return the rows of each partition in their order, the partitions in the order of their first rows.

        A batch of one partition comes back as it is, one that is sorted by partition in slices.
        """
        return [(name, take_rows(batch, rows)) for name, rows in self.groups(batch)]

    def groups(self, batch: pa.RecordBatch) -> list[tuple[str, Int64Array]]:
        """Return the numbers of the rows of each partition, in the same order."""
        columns = [batch.column(name) for name in self._names]
        codes = _value_codes(columns[0])
        for column in columns[1:]:
            others = _value_codes(column)
            codes = _value_codes(number_array(codes * (int(others.max(initial=0)) + 1) + others))
        groups = split_by_bucket(codes.astype(np.int32), int(codes.max(initial=0)) + 1)
        return [(self._name(columns, int(rows[0])), rows) for _, rows in groups]

    def _name(self, columns: Sequence[pa.Array], row: int) -> str:
        values = [
            internal_from_arrow(column.slice(row, 1), data_type)[0]
            for column, data_type in zip(columns, self._types, strict=True)
        ]
        return row_partition_name(self._types, values)


class BucketSplitter:
    """Finds the rows of each bucket by their bucket key."""

    def __init__(
        self,
        schema: Schema,
        bucket_keys: Sequence[str],
        bucket_count: int,
        lake_format: str | None,
        hash_variant: HashVariant,
    ) -> None:
        self._names = bucket_keys
        self._encoder = bucket_key_encoder([schema.column(name).data_type for name in bucket_keys], lake_format)
        self._bucket_count = bucket_count
        self._lake_format = lake_format
        self._hash_variant = hash_variant

    @classmethod
    def of(cls, info: TableInfo, hash_variant: HashVariant) -> BucketSplitter | None:
        """Return the splitter of a log table, or None if it has no bucket key."""
        if not info.bucket_keys:
            return None
        return cls(info.schema, info.bucket_keys, info.num_buckets, lake_format(info), hash_variant)

    @property
    def required_keys(self) -> list[str]:
        """The columns that must not be null, because a null has no hash."""
        return [] if self._lake_format in _NULL_KEY_LAKES else list(self._names)

    def check_keys(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that belong to no bucket."""
        for name in self.required_keys:
            null_count = batch.column(name).null_count
            if null_count:
                raise FlussError(
                    f"Bucket key column '{name}' contains null ({null_count} of them); bucket keys need a value"
                )

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows of each bucket in their order. A batch of one bucket comes back as it is."""
        groups = split_by_bucket(self.buckets(batch), self._bucket_count)
        return [(bucket_id, take_rows(batch, rows)) for bucket_id, rows in groups]

    def buckets(self, batch: pa.RecordBatch) -> Int32Array:
        """Return the bucket of every row."""
        keys = encode_key_columns(self._encoder, [batch.column(name) for name in self._names])
        return buckets_for(keys, self._bucket_count, self._lake_format, self._hash_variant)


def _value_codes(column: pa.Array) -> Int64Array:
    """Number the different values of a column in the order in which they first appear."""
    if pat.is_floating(column.type):
        # Zeros of different signs are equal as numbers, but have different texts.
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    codes: Int64Array = pc.dictionary_encode(column).indices.to_numpy().astype(np.int64)
    return codes
