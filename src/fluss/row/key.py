"""Key columns to bytes: the keys of stored rows, and the bytes from which buckets are chosen.

A lake that takes over a table's data brings its own bucketing, and with it its own key bytes.

    compacted   the fields of a compacted row without null bits; it decodes back, and the key of the first columns is
                a prefix of the key of all columns
    paimon      an aligned row of the key columns; nulls are allowed
    iceberg     exactly one column, without a length:
                INT, DATE, BIGINT              int64
                TIME, TIMESTAMP                int64 microseconds, of the day or since 1970
                FLOAT, DOUBLE                  4 or 8 bytes
                DECIMAL                        big-endian unscaled bytes
                CHAR, STRING, BINARY, BYTES    UTF-8, or the bytes
    hudi        int32, big-endian: 31 * h + hash(text) over the columns, from h = 1; the hash of a text is the same sum
                over its UTF-16 units, from 0; a null counts 0 in a key of several columns and is the text "__null__"
                in a key of one

Which one encodes the primary key depends on the lake format, the KV format version of the table (1 when absent) and
whether the bucket key is the default one (all primary-key columns that are not partition columns, in their order):

| lake format | version | default bucket key | primary key | bucket key |
|---|---|---|---|---|
| none, lance | any | any | compacted | compacted |
| paimon, iceberg | 1 | any | as the lake | as the lake |
| paimon, iceberg | 2 | yes | as the lake | as the lake |
| paimon, iceberg | 2 | no | compacted | as the lake |
| hudi | any | any | compacted | hudi |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike
from fluss.errors import FlussError
from fluss.row.compacted import decode_fields, encode_fields
from fluss.row.compacted_columns import encode_keys
from fluss.row.encoded import EncodedRows
from fluss.row.python_values import from_internal
from fluss.row.scalars import INT64, encode_fixed, encode_text, encode_unscaled, fixed_struct
from fluss.row.slots import encode_aligned_row
from fluss.row.values import format_date_time, format_float, format_instant, internal_from_arrow
from fluss.schema.types import DataType, DecimalType, TypeRoot

KV_FORMAT_VERSION_DEFAULT: Final = 1
_KV_FORMAT_VERSIONS: Final = (1, 2)

_HUDI_NULL: Final = "__null__"
_HUDI_EMPTY: Final = "__empty__"
_HUDI_SEPARATOR: Final = ","
_UINT32_BIG_ENDIAN: Final = struct.Struct(">I")


class KeyEncoder(Protocol):
    """Turns the internal values of key columns into bytes. Encoders have no state and may be shared."""

    @property
    def types(self) -> tuple[DataType, ...]: ...

    def encode(self, values: Sequence[Any]) -> bytes:
        """Encode the values of all key columns, in the order of ``types``."""
        ...


def primary_key_encoder(
    types: Sequence[DataType], lake_format: str | None, kv_format_version: int | None, default_bucket_key: bool
) -> KeyEncoder:
    """Return the encoder of the primary-key columns that are not partition columns.

    For a prefix lookup, ``types`` are the leading columns, and ``default_bucket_key`` is False.
    """
    version = KV_FORMAT_VERSION_DEFAULT if kv_format_version is None else kv_format_version
    if version not in _KV_FORMAT_VERSIONS:
        raise FlussError(f"KV format version {version} is not supported; this release knows versions 1 and 2")
    _check_lake_format(lake_format)
    if lake_format in ("paimon", "iceberg") and (version == 1 or default_bucket_key):
        return bucket_key_encoder(types, lake_format)
    return CompactedKeyEncoder(tuple(types))


def bucket_key_encoder(types: Sequence[DataType], lake_format: str | None) -> KeyEncoder:
    """Return the encoder of the bucket-key columns, of log tables, too."""
    _check_lake_format(lake_format)
    return _ENCODERS[lake_format](tuple(types))


def encode_key_columns(
    encoder: KeyEncoder, columns: Sequence[pa.Array], *, one_by_one_rows_max: int = 0
) -> EncodedRows:
    """Encode the key columns of a batch, in the order of ``encoder.types`` and with exactly their Arrow types.

    Compacted keys, the default, are encoded a column at a time. The keys of lakes go through their encoders one by one,
    and so do the keys of up to ``one_by_one_rows_max`` rows, for which setting up columns would take longer.
    """
    if isinstance(encoder, CompactedKeyEncoder) and len(columns[0]) > one_by_one_rows_max:
        return encode_keys(columns, encoder.types)
    values = [internal_from_arrow(column, data_type) for column, data_type in zip(columns, encoder.types, strict=True)]
    return EncodedRows.from_list([encoder.encode(row) for row in zip(*values, strict=True)])


@dataclass(frozen=True, slots=True)
class CompactedKeyEncoder:
    """The default. No column may be null."""

    types: tuple[DataType, ...]

    def __post_init__(self) -> None:
        _check_types(self.types)

    def encode(self, values: Sequence[Any]) -> bytes:
        return encode_fields(self.types, values)

    def decode(self, data: BytesLike) -> tuple[Any, ...]:
        """Return the values of the key columns."""
        return decode_fields(self.types, data)


@dataclass(frozen=True, slots=True)
class PaimonKeyEncoder:
    types: tuple[DataType, ...]

    def __post_init__(self) -> None:
        _check_types(self.types)

    def encode(self, values: Sequence[Any]) -> bytes:
        return encode_aligned_row(self.types, values)


@dataclass(frozen=True, slots=True)
class IcebergKeyEncoder:
    """Exactly one column, which may not be null."""

    types: tuple[DataType, ...]

    def __post_init__(self) -> None:
        _check_types(self.types)
        if len(self.types) != 1:
            raise FlussError(f"Iceberg tables need a key of exactly one column, this one has {len(self.types)}")
        if self.types[0].root in _ICEBERG_UNSUPPORTED:
            raise FlussError(f"Iceberg tables cannot have a key column of type {self.types[0]}")

    def encode(self, values: Sequence[Any]) -> bytes:
        ((data_type, value),) = zip(self.types, values, strict=True)
        if value is None:
            raise FlussError(f"The key column of type {data_type} is null; key columns need a value")
        match data_type.root:
            case TypeRoot.INTEGER | TypeRoot.DATE | TypeRoot.BIGINT:
                return encode_fixed(INT64, value, data_type)
            case TypeRoot.TIME:
                return encode_fixed(INT64, value * 1000, data_type)
            case TypeRoot.TIMESTAMP:
                return encode_fixed(INT64, value.millis * 1000 + value.nanos // 1000, data_type)
            case TypeRoot.DECIMAL:
                assert isinstance(data_type, DecimalType)
                return encode_unscaled(value, data_type)
            case TypeRoot.CHAR | TypeRoot.STRING:
                return encode_text(value)
            case TypeRoot.BINARY | TypeRoot.BYTES:
                return bytes(value)
        layout = fixed_struct(data_type)
        assert layout is not None
        return encode_fixed(layout, value, data_type)


@dataclass(frozen=True, slots=True)
class HudiKeyEncoder:
    """A hash of formatted values, so it only chooses buckets: rows are never stored under such a key."""

    types: tuple[DataType, ...]

    def __post_init__(self) -> None:
        _check_types(self.types)
        for data_type in self.types:
            if data_type.root in (TypeRoot.BINARY, TypeRoot.BYTES):
                raise FlussError(f"Hudi tables cannot have a bucket key column of type {data_type}")

    def encode(self, values: Sequence[Any]) -> bytes:
        formatted = [
            None if value is None else _hudi_format(value, data_type)
            for data_type, value in zip(self.types, values, strict=True)
        ]
        return hudi_hash(formatted)


def hudi_hash(formatted: Sequence[str | None]) -> bytes:
    """Return the four key bytes of the formatted values of all bucket-key columns."""
    if len(formatted) == 1:
        formatted = [_HUDI_NULL if text is None else text for text in formatted]
    else:
        for text in formatted:
            _check_hudi_part(text)
    key_hash = 1
    for text in formatted:
        key_hash = (31 * key_hash + _java_hash(text or "")) & 0xFFFF_FFFF
    return _UINT32_BIG_ENDIAN.pack(key_hash)


def _check_hudi_part(text: str | None) -> None:
    if text is not None and (_HUDI_SEPARATOR in text or text in (_HUDI_NULL, _HUDI_EMPTY)):
        raise FlussError(
            f"The bucket key value {text!r} cannot be told apart in a Hudi record key of several columns: "
            f"no value may contain {_HUDI_SEPARATOR!r} or be {_HUDI_NULL!r} or {_HUDI_EMPTY!r}"
        )


def _java_hash(text: str) -> int:
    text_hash = 0
    for unit in np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").tolist():
        text_hash = (31 * text_hash + unit) & 0xFFFF_FFFF
    return text_hash


def _hudi_format(value: Any, data_type: DataType) -> str:
    match data_type.root:
        case TypeRoot.BOOLEAN:
            return "true" if value else "false"
        case TypeRoot.FLOAT:
            return format_float(value, bits=32)
        case TypeRoot.DOUBLE:
            return format_float(value, bits=64)
        case TypeRoot.DECIMAL:
            return f"{from_internal(value, data_type):f}"
        case TypeRoot.TIMESTAMP:
            return format_date_time(value)
        case TypeRoot.TIMESTAMP_LTZ:
            return format_instant(value)
    return str(value)


_ICEBERG_UNSUPPORTED: Final = (TypeRoot.BOOLEAN, TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.TIMESTAMP_LTZ)

_ENCODERS: Final[dict[str | None, Callable[[tuple[DataType, ...]], KeyEncoder]]] = {
    None: CompactedKeyEncoder,
    "lance": CompactedKeyEncoder,
    "paimon": PaimonKeyEncoder,
    "iceberg": IcebergKeyEncoder,
    "hudi": HudiKeyEncoder,
}


def _check_lake_format(lake_format: str | None) -> None:
    if lake_format not in _ENCODERS:
        known = ", ".join(filter(None, _ENCODERS))
        raise FlussError(f"Lake format {lake_format!r} is not known; it is one of {known}, or not set")


def _check_types(types: tuple[DataType, ...]) -> None:
    if not types:
        raise FlussError("A key has at least one column")
    for data_type in types:
        if data_type.is_nested:
            raise FlussError(f"A column of type {data_type} cannot be part of a key")
