"""A batch has so many records, keys are so long, and the rows it concerns have so many bytes; more is refused at once.
A tablet server without a network, with lower limits; after each refusal it goes on as if nothing had been sent."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import Schema
from fluss.server.kv import preparer
from tests.unit.server.kv.bucket_support import Bucket, hosting
from tests.unit.server.merge.merging import Delete, Row, make_table

TEXTS = make_table(Schema(pa.schema([("id", pa.string()), ("name", pa.string())]), primary_keys=["id"]))


async def refusal(bucket: Bucket, *rows: Row | Delete) -> FlussError:
    offset_before, rows_before = bucket.log.offset_next, await bucket.rows()
    with pytest.raises(FlussError) as caught:
        await bucket.put(*rows)
    assert (bucket.log.offset_next, await bucket.rows()) == (offset_before, rows_before)
    assert bucket.manager.kv_runtime.memory.held_bytes == 0
    return caught.value


async def test_a_batch_of_too_many_records_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparer, "RECORDS_MAX", 3)
    async with hosting(tmp_path) as bucket:
        assert await bucket.put((1, "a"), (2, "b"), (3, "c")) == 3
        error = await refusal(bucket, (1, "a"), (2, "b"), (1, "c"), Delete((1,)))
        assert error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "has 4 records, it may have 3; write fewer rows" in error.message


async def test_a_key_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with hosting(tmp_path, TEXTS) as bucket:
        # Its length stands in front of the text.
        longest = "k" * (65_535 - 3)
        assert await bucket.put(("short", "a"), (longest, "b")) == 2
        for row in ((longest + "k", "c"), Delete((longest + "k",))):
            error = await refusal(bucket, ("short", "x"), row)
            assert error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
            assert "a key of 65536 bytes" in error.message
        assert sorted(await bucket.rows()) == [(longest, "b"), ("short", "a")]


async def test_rows_that_are_too_large_to_be_replaced_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparer, "DECOMPRESSED_BYTES_MAX", 10_000)
    async with hosting(tmp_path) as bucket:
        for id in range(300):
            await bucket.put((id, "x" * 100))
        everything = [Delete((id,)) for id in range(300)]
        error = await refusal(bucket, *everything)
        assert error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "write fewer keys at once" in error.message
        for first in range(0, 300, 50):
            await bucket.put(*everything[first : first + 50])
        assert await bucket.rows() == []
