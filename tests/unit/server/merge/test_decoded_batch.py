"""A row that could not be read back, or not under its key, is refused before anything is written.
Shown by damaged rows with a valid checksum, nulls and lengths that the table cannot have, wrong keys, large rows."""

from __future__ import annotations

import pytest

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.schema.schema import Schema
from fluss.schema.types import (
    ArrayType,
    BigIntType,
    BinaryType,
    DataField,
    DataType,
    DecimalType,
    IntType,
    RowType,
    StringType,
)
from fluss.server.merge import decoded_batch
from tests.damage import bit_flips
from tests.unit.server.merge.merging import Merging, encode_row, key_of, kv_batch, make_table, resealed

SCHEMA = Schema.builder().column("id", IntType()).column("name", StringType()).primary_key(["id"]).build()


def refusal(merging: Merging, batch: bytes) -> FlussError:
    """Return why a batch is refused; it must leave nothing behind."""
    store, log = dict(merging.store), list(merging.log)
    with pytest.raises(FlussError) as caught:
        merging.put_batch(batch)
    assert (merging.store, merging.log) == (store, log)
    return caught.value


@pytest.mark.parametrize("engine", [{}, {"merge-engine": "first_row"}, {"changelog.image": "WAL"}])
@pytest.mark.parametrize("kv_format", ["compacted", "indexed"])
def test_every_bit_flip_of_a_row_is_refused_with_code_15_or_changes_only_values(
    kv_format: str, engine: dict[str, str]
) -> None:
    table = make_table(SCHEMA, engine, kv_format=kv_format)
    batch = kv_batch(table, [(key_of(table, (10,)), (10, "abc"))])
    row = encode_row(table, (10, "abc"), 1)
    codes = [_code(Merging(table), resealed(batch.replace(row, damaged))) for damaged in bit_flips(row)]
    assert set(codes) == {ErrorCode.NONE, ErrorCode.INVALID_TABLE_EXCEPTION}


def _code(merging: Merging, batch: bytes) -> int:
    """Return what a writer is told. What is accepted must be a row of the key 10."""
    try:
        ((_, (key, _)),) = merging.put_batch(batch)
    except FlussError as error:
        return error.error_code
    assert key == 10
    return ErrorCode.NONE


@pytest.mark.parametrize(
    ("data_type", "value", "reason"),
    [
        (StringType(nullable=False), None, "is null"),
        (BinaryType(3), b"ab", "has 2 bytes"),
        (BinaryType(3), b"abcd", "has 4 bytes"),
    ],
)
def test_nulls_and_lengths_that_would_break_the_changelog_are_refused(
    data_type: DataType, value: object, reason: str
) -> None:
    schema = Schema.builder().column("id", IntType()).column("x", data_type).primary_key(["id"]).build()
    merging = Merging(make_table(schema))
    error = refusal(merging, kv_batch(merging.table, [(b"\1", (1, value))]))
    assert error.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert reason in error.message


LAKE_KEYS = {
    "none": {},
    "paimon": {"datalake.format": "paimon", "kv.format-version": "2"},
    "iceberg": {"datalake.format": "iceberg", "kv.format-version": "2"},
}


@pytest.mark.parametrize("properties", LAKE_KEYS.values(), ids=LAKE_KEYS)
def test_a_row_under_the_key_of_another_one_is_refused(properties: dict[str, str]) -> None:
    merging = Merging(make_table(SCHEMA, properties))
    one, other = key_of(merging.table, (1,)), key_of(merging.table, (300,))
    merging.put((1, "a"), (300, "b"))
    for key, row in ((one, (300, "x")), (one, (2, "x")), (other, (301, "x")), (one + b"\0", (1, "x"))):
        error = refusal(merging, kv_batch(merging.table, [(other, None), (one, (1, "fine")), (key, row)]))
        assert error.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
        assert f"row 1 came with the key {key.hex()}" in error.message


def test_keys_are_compared_byte_by_byte() -> None:
    merging = Merging(make_table(SCHEMA))
    # The same number in more bytes than it needs.
    error = refusal(merging, kv_batch(merging.table, [(b"\x81\0", (1, "x"))]))
    assert error.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_only_columns_that_are_no_partition_columns_make_the_key() -> None:
    builder = Schema.builder().column("day", StringType()).column("id", BigIntType()).column("x", IntType())
    table = make_table(builder.primary_key(["day", "id"]).build(), partition_keys=["day"])
    merging = Merging(table)
    assert merging.put(("today", 5, 1), ("today", 5, 2))[-1] == ("+U", ("today", 5, 2))
    assert list(merging.store) == [b"\5"]
    assert merging.replayed() == merging.rows()


@pytest.mark.parametrize("decodes_apart", [False, True])
def test_a_stored_value_that_cannot_be_read_is_damage_of_the_store(decodes_apart: bool) -> None:
    merging = Merging(make_table(SCHEMA), decodes_apart=decodes_apart)
    merging.put((1, "a"), (2, "b"))
    for damage in (b"\1\0", b"\1\0\0\1\5a", b"\7\0\0\1\1a"):
        merging.store[b"\1"] = damage
        with pytest.raises(KvDamagedError) as caught:
            merging.put((2, "c"), (1, "d"))
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
        # The row that was received is to blame, whatever is stored.
        bad_row = kv_batch(merging.table, [(b"\1", (1, "abc"))]).replace(b"\3abc", b"\4abc")
        assert refusal(merging, resealed(bad_row)).error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_more_rows_than_readers_of_the_changelog_take_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    merging = Merging(make_table(SCHEMA))
    merging.put((1, "x" * 100), (2, "y" * 100))
    deletes = kv_batch(merging.table, [(b"\1", None), (b"\2", None)])
    monkeypatch.setattr(decoded_batch, "DECOMPRESSED_BYTES_MAX", 225)
    error = refusal(merging, deletes)
    assert error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert "fewer rows at a time" in error.message
    monkeypatch.setattr(decoded_batch, "DECOMPRESSED_BYTES_MAX", 226)
    assert len(merging.put_batch(deletes)) == 2


def test_few_bytes_that_would_take_much_memory_are_refused_before_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_batch, "DECOMPRESSED_BYTES_MAX", 10 << 20)
    builder = Schema.builder().column("id", IntType())
    for number in range(900):
        builder.column(f"c{number}", DecimalType(38, 2))
    merging = Merging(make_table(builder.primary_key(["id"]).build()))
    rows = [(key_of(merging.table, (id,)), (id, *[None] * 900)) for id in range(1000)]
    batch = kv_batch(merging.table, rows)
    assert len(batch) < 200_000
    error = refusal(merging, batch)
    assert error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert "1000 rows take" in error.message
    merging.put_batch(kv_batch(merging.table, rows[:100]))


@pytest.mark.parametrize("decodes_apart", [False, True])
def test_stored_rows_of_several_places_may_not_take_more_memory_than_those_of_one(
    monkeypatch: pytest.MonkeyPatch, decodes_apart: bool
) -> None:
    fields = [DataField(f"f{number}", BigIntType()) for number in range(100)]
    schema = Schema.builder().column("id", IntType()).column("list", ArrayType(RowType(fields)))
    merging = Merging(make_table(schema.primary_key(["id"]).build()), decodes_apart=decodes_apart)
    # A few bytes each, but 80 kB as columns.
    rows = [(id, [None] * 100) for id in range(4)]
    merging.put(*rows)
    assert max(map(len, merging.store.values())) < 1000
    deletes = [(key_of(merging.table, row), None) for row in rows]
    monkeypatch.setattr(decoded_batch, "DECOMPRESSED_BYTES_MAX", 250_000)
    error = refusal(merging, kv_batch(merging.table, deletes))
    assert error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert "fewer rows at a time" in error.message
    assert len(merging.put_batch(kv_batch(merging.table, deletes[:2]))) == 2


def test_a_long_key_is_not_shown_as_a_whole() -> None:
    merging = Merging(make_table(Schema.builder().column("id", StringType()).primary_key(["id"]).build()))
    error = refusal(merging, kv_batch(merging.table, [(b"k" * 10_000, ("other",))]))
    assert error.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert "of 10000 bytes" in error.message
    assert len(error.message) < 500
