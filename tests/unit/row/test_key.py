"""Shows that each kind of table gets the right key encoder and what the keys of each encoding can be made of.
The whole table of encoder choices, the prefix property on random keys, the corners of every encoding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.row.key import (
    CompactedKeyEncoder,
    HudiKeyEncoder,
    IcebergKeyEncoder,
    PaimonKeyEncoder,
    bucket_key_encoder,
    hudi_hash,
    primary_key_encoder,
)
from fluss.row.values import Timestamp
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType
from fluss.testing.strategies import internal_rows, row_types


def types_of(*texts: str) -> tuple[DataType, ...]:
    return tuple(parse_type(text) for text in texts)


@given(row_types(columns_min=2, columns_max=4, nested=False, nullable=False), st.data())
def test_the_key_of_leading_columns_is_a_prefix_and_of_no_other_row(types: list[DataType], data: st.DataObject) -> None:
    left, right = data.draw(internal_rows(types)), data.draw(internal_rows(types))
    count = data.draw(st.integers(1, len(types)))
    key = CompactedKeyEncoder(tuple(types)).encode(left)
    prefix = CompactedKeyEncoder(tuple(types[:count]))
    assert key.startswith(prefix.encode(left[:count]))
    # Equal values may differ in bytes (0.0 and -0.0), so the bytes decide.
    same = prefix.encode(right[:count]) == prefix.encode(left[:count])
    assert key.startswith(prefix.encode(right[:count])) == same


@pytest.mark.parametrize(
    ("lake", "version", "default_bucket_key", "primary", "bucket"),
    [
        (None, None, True, CompactedKeyEncoder, CompactedKeyEncoder),
        (None, 1, False, CompactedKeyEncoder, CompactedKeyEncoder),
        (None, 2, True, CompactedKeyEncoder, CompactedKeyEncoder),
        ("lance", None, False, CompactedKeyEncoder, CompactedKeyEncoder),
        ("lance", 2, True, CompactedKeyEncoder, CompactedKeyEncoder),
        ("paimon", None, True, PaimonKeyEncoder, PaimonKeyEncoder),
        ("paimon", 1, False, PaimonKeyEncoder, PaimonKeyEncoder),
        ("paimon", 2, True, PaimonKeyEncoder, PaimonKeyEncoder),
        ("paimon", 2, False, CompactedKeyEncoder, PaimonKeyEncoder),
        ("iceberg", None, False, IcebergKeyEncoder, IcebergKeyEncoder),
        ("iceberg", 1, True, IcebergKeyEncoder, IcebergKeyEncoder),
        ("iceberg", 2, True, IcebergKeyEncoder, IcebergKeyEncoder),
        ("iceberg", 2, False, CompactedKeyEncoder, IcebergKeyEncoder),
        ("hudi", 1, True, CompactedKeyEncoder, HudiKeyEncoder),
        ("hudi", 2, False, CompactedKeyEncoder, HudiKeyEncoder),
    ],
)
def test_each_kind_of_table_gets_its_encoders(
    lake: str | None, version: int | None, default_bucket_key: bool, primary: type, bucket: type
) -> None:
    types = types_of("INT")
    assert type(primary_key_encoder(types, lake, version, default_bucket_key)) is primary
    assert type(bucket_key_encoder(types, lake)) is bucket


def test_unknown_lake_formats_and_versions_are_refused() -> None:
    with pytest.raises(FlussError, match="Lake format 'delta' is not known; it is one of lance, paimon"):
        bucket_key_encoder(types_of("INT"), "delta")
    with pytest.raises(FlussError, match="Lake format 'delta'"):
        primary_key_encoder(types_of("INT"), "delta", 2, default_bucket_key=True)
    for version in (0, 3):
        with pytest.raises(FlussError, match=f"KV format version {version} is not supported"):
            primary_key_encoder(types_of("INT"), None, version, default_bucket_key=True)


@pytest.mark.parametrize("lake", [None, "lance", "paimon", "iceberg", "hudi"])
@pytest.mark.parametrize("text", ["ARRAY<INT>", "MAP<INT,INT>", "ROW<a INT>"])
def test_nested_columns_are_no_keys(lake: str | None, text: str) -> None:
    with pytest.raises(FlussError, match="cannot be part of a key"):
        bucket_key_encoder(types_of(text), lake)


@pytest.mark.parametrize("lake", [None, "paimon", "iceberg", "hudi"])
def test_a_key_has_columns(lake: str | None) -> None:
    with pytest.raises(FlussError, match="at least one column"):
        bucket_key_encoder([], lake)


def test_iceberg_takes_one_column_of_few_types() -> None:
    with pytest.raises(FlussError, match="exactly one column, this one has 2"):
        primary_key_encoder(types_of("INT", "INT"), "iceberg", 1, default_bucket_key=True)
    for text in ("BOOLEAN", "TINYINT", "SMALLINT", "TIMESTAMP_LTZ(3)"):
        with pytest.raises(FlussError, match="Iceberg tables cannot have a key column of type"):
            bucket_key_encoder(types_of(text), "iceberg")


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("FLOAT", 1.5, "0000c03f"),
        ("DOUBLE", -2.25, "00000000000002c0"),
        ("BIGINT", -1, "ffffffffffffffff"),
        ("TIMESTAMP(6)", Timestamp(-1, 999_999), "ffffffffffffffff"),
        ("CHAR(3)", "é", "c3a9"),
        ("BYTES", b"", ""),
    ],
)
def test_iceberg_keys_of_other_types(text: str, value: Any, expected: str) -> None:
    assert IcebergKeyEncoder(types_of(text)).encode([value]).hex() == expected


def test_nulls_are_refused_where_a_key_has_no_room_for_them() -> None:
    with pytest.raises(FlussError, match="is null"):
        CompactedKeyEncoder(types_of("INT")).encode([None])
    with pytest.raises(FlussError, match="is null"):
        IcebergKeyEncoder(types_of("INT")).encode([None])
    assert PaimonKeyEncoder(types_of("INT")).encode([None]).hex() == "0001000000000000" + "00" * 8


def test_timestamps_beyond_iceberg_microseconds_are_refused() -> None:
    with pytest.raises(FlussError, match="does not fit the type timestamp"):
        IcebergKeyEncoder(types_of("TIMESTAMP(6)")).encode([Timestamp(2**62)])


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("BOOLEAN", True, "true"),
        ("DATE", 19655, "19655"),
        ("TIME", 34200000, "34200000"),
        ("DECIMAL(5,2)", 9, "0.09"),
        ("DECIMAL(20,10)", -1, "-0.0000000001"),
        ("FLOAT", 0.1, "0.1"),
        ("DOUBLE", 1e10, "1.0E10"),
        ("TIMESTAMP(3)", Timestamp(0), "1970-01-01T00:00"),
        ("TIMESTAMP_LTZ(3)", Timestamp(0), "1970-01-01T00:00:00Z"),
        ("STRING", None, "__null__"),
        ("STRING", "a,b", "a,b"),
    ],
)
def test_hudi_keys_hash_the_text_of_a_value(text: str, value: Any, shown: str) -> None:
    assert HudiKeyEncoder(types_of(text)).encode([value]) == hudi_hash([shown])


def test_hudi_hashes_utf_16_units() -> None:
    # U+1D11E is the pair d834 dd1e in UTF-16.
    assert hudi_hash(["\U0001d11e"]) == (31 * 1 + 31 * 0xD834 + 0xDD1E).to_bytes(4, "big")


@pytest.mark.parametrize("text", ["a,b", "__null__", "__empty__"])
def test_hudi_keys_of_several_columns_refuse_ambiguous_texts(text: str) -> None:
    with pytest.raises(FlussError, match="cannot be told apart"):
        HudiKeyEncoder(types_of("STRING", "INT")).encode([text, 1])


@pytest.mark.parametrize("text", ["BINARY(2)", "BYTES"])
def test_hudi_takes_no_bytes(text: str) -> None:
    with pytest.raises(FlussError, match="cannot have a bucket key column"):
        bucket_key_encoder(types_of(text), "hudi")


def test_damaged_compacted_keys_are_refused() -> None:
    encoder = CompactedKeyEncoder(types_of("INT", "STRING"))
    for data in ("", "01", "010261", "0102616263"):
        with pytest.raises(CorruptRecordError):
            encoder.decode(bytes.fromhex(data))
