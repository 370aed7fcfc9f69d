"""KV batches, stored values, row bodies and memtables: 100,000 records of a small table, built and taken apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.micro.timing import best_seconds
from fluss.buffers import UInt8Array
from fluss.record.framing import join_length_prefixed, split_length_prefixed
from fluss.record.kv_batch import KvBatch, encode_kv_batch
from fluss.record.log_batch import decode_row_body, encode_row_body
from fluss.record.mutations import Mutations
from fluss.record.value_batch import decode_value_batch, encode_value_batch, prefix_schema_id, split_values
from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys
from fluss.storage.kv.memtable import Memtable

RECORD_COUNT = 100_000
KEY_BYTES = (1, 9)
ROW_BYTES = (20, 60)
RATE = "records/s"
TARGET_BULK = "> 5,000,000"


def measure() -> list[tuple[str, float, str, str]]:
    """Return (what, value, unit, target) per path."""
    rng = np.random.default_rng(1)
    keys, rows = _random_rows(rng, *KEY_BYTES), _random_rows(rng, *ROW_BYTES)
    deletes = rng.random(RECORD_COUNT) < 0.1
    change_types = rng.integers(0, 5, RECORD_COUNT).astype(np.uint8)
    fixed_width = EncodedRows.from_offsets(rows.data, np.arange(RECORD_COUNT + 1) * ROW_BYTES[0])
    batch = bytes(encode_kv_batch(keys, rows, deletes, schema_id=1))
    framed, framed_fixed = join_length_prefixed(rows).data, join_length_prefixed(fixed_width).data
    values = encode_value_batch(prefix_schema_id(rows, 1))
    body = encode_row_body(rows, change_types)

    different = EncodedRows.from_list([number.to_bytes(4, "little") for number in range(RECORD_COUNT)])
    changes = Mutations(HashedKeys.of(different), rows, 1)
    memtable = Memtable()
    memtable.add(changes)

    def split(data: UInt8Array) -> None:
        split_length_prefixed(data, RECORD_COUNT, what="record")

    def read_batch() -> None:
        parsed = KvBatch.parse(batch)
        parsed.verify_crc()
        parsed.records()

    return [
        _rate("encode a KV batch from columns", lambda: encode_kv_batch(keys, rows, deletes, schema_id=1)),
        _rate("verify a KV batch and split it into keys and rows", read_batch),
        _rate("split length-prefixed records, 20 to 60 bytes", lambda: split(framed)),
        _rate("split length-prefixed records, all of 20 bytes", lambda: split(framed_fixed)),
        _rate("encode a value batch", lambda: encode_value_batch(prefix_schema_id(rows, 1))),
        _rate("split a value batch into schema ids and rows", lambda: split_values(decode_value_batch(values))),
        _rate("hash keys", lambda: HashedKeys.of(different)),
        _rate("add to the memtable of a store", lambda: Memtable().add(changes)),
        _rate("find all of them in the memtable, with their rows", lambda: memtable.find(changes.keys)),
        _rate("encode a body of INDEXED or COMPACTED log rows", lambda: encode_row_body(rows, change_types)),
        _rate("split a body of INDEXED or COMPACTED log rows", lambda: decode_row_body(body, RECORD_COUNT)),
    ]


def _rate(name: str, work: Callable[[], object]) -> tuple[str, float, str, str]:
    return name, RECORD_COUNT / best_seconds(work), RATE, TARGET_BULK


def _random_rows(rng: np.random.Generator, bytes_min: int, bytes_max: int) -> EncodedRows:
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(rng.integers(bytes_min, bytes_max + 1, RECORD_COUNT))))
    return EncodedRows.from_offsets(rng.integers(0, 256, int(offsets[-1])).astype(np.uint8), offsets)
