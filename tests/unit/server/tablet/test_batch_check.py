"""Whatever bytes a client sends, the check says yes or says no; and what it lets in can be cut into columns.

Small valid batches with every bit flipped, resealed as a hostile client would, and as they are after a bad line.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.record.arrow_batch import ColumnProjection, project_batch
from fluss.record.compression import ArrowCompression
from fluss.record.framing import crc32c
from fluss.record.log_batch import HEADER_LAYOUTS, MAGIC_V0, build_batch, encode_row_body, iter_batches
from fluss.row.encoded import EncodedRows
from fluss.schema.schema import Schema
from fluss.schema.table_options import CompressionType
from fluss.server.tablet.batch_check import BatchCheck
from tests.damage import bit_flips, truncations
from tests.unit.server.tablet.support import arrow_batch, make_table

V0 = HEADER_LAYOUTS[MAGIC_V0].offsets
NESTED = Schema(
    pa.schema([("n", pa.int32()), ("list", pa.list_(pa.string())), ("row", pa.struct([("x", pa.int64())]))])
)
ROWS = pa.record_batch(
    [
        pa.array([1, None, 3], pa.int32()),
        pa.array([["a", None], [], None], pa.list_(pa.string())),
        pa.array([{"x": 1}, None, {"x": None}], pa.struct([("x", pa.int64())])),
    ],
    schema=NESTED.to_arrow(),
)


def _resealed(batch: bytes) -> bytes:
    """Give a damaged batch the checksum of its bytes."""
    sealed = bytearray(batch)
    struct.pack_into("<I", sealed, V0["crc"], crc32c(memoryview(sealed)[V0["schema_id"] :]))
    return bytes(sealed)


def _code(check: BatchCheck, batch: bytes) -> int:
    """Return what a client is told, 0 if the batch is accepted."""
    try:
        check.check(memoryview(batch))
    except FlussError as error:
        return error.error_code
    return 0


def _is_accepted(check: BatchCheck, batch: bytes) -> bool:
    code = _code(check, batch)
    # Code 14 is for headers that make no sense.
    assert code in (0, ErrorCode.INVALID_TABLE_EXCEPTION, ErrorCode.CORRUPT_RECORD_EXCEPTION)
    return code == 0


@pytest.mark.parametrize("compression", list(CompressionType))
def test_a_hostile_batch_is_refused_or_can_be_cut_into_columns(compression):
    check = BatchCheck(make_table(schema=NESTED))
    batch = bytes(arrow_batch(ROWS, compression=ArrowCompression(compression)))
    assert _is_accepted(check, batch)
    projections = [ColumnProjection.of(NESTED.to_arrow(), columns) for columns in ([0], [1, 2])]
    refused = accepted = 0
    for damaged in map(_resealed, bit_flips(batch)):
        if _is_accepted(check, damaged):
            accepted += 1
            for stored in iter_batches(damaged):
                for projection in projections:
                    project_batch(stored, projection)
        else:
            refused += 1
    assert refused > 500
    assert accepted > 500


@pytest.mark.parametrize("compression", list(CompressionType))
def test_a_batch_like_one_before_is_judged_as_the_first_one_is(compression):
    """What is remembered of good batches lets no bad one in."""
    table = make_table(schema=NESTED)
    check = BatchCheck(table)
    batch = bytes(arrow_batch(ROWS, compression=ArrowCompression(compression)))
    assert _code(check, batch) == 0
    for damaged in map(_resealed, bit_flips(batch)):
        assert _code(check, damaged) == _code(BatchCheck(table), damaged)
    assert check._shapes


def test_a_batch_damaged_on_its_way_is_never_blamed_on_its_writer():
    check = BatchCheck(make_table(schema=NESTED))
    batch = bytes(arrow_batch(ROWS))
    assert {_code(check, damaged) for damaged in bit_flips(batch)} == {0, ErrorCode.CORRUPT_RECORD_EXCEPTION}


def test_a_batch_that_is_cut_off_is_left_to_the_log():
    check = BatchCheck(make_table(schema=NESTED))
    for piece in truncations(bytes(arrow_batch(ROWS))):
        check.check(memoryview(piece))


def test_row_formats_never_fail_in_another_way():
    encoded = EncodedRows.from_offsets(np.arange(12, dtype=np.uint8), np.array([0, 5, 12]))
    body = encode_row_body(encoded, np.zeros(2, np.uint8))
    batch = bytes(build_batch([body], schema_id=1, record_count=2, append_only=True))
    check = BatchCheck(make_table(log_format="INDEXED"))
    outcomes = [_is_accepted(check, _resealed(damaged)) for damaged in bit_flips(batch)]
    assert outcomes.count(True) > 50
    assert outcomes.count(False) > 50
