"""Whatever fails while several writers write at once: each batch counts once, in order, in the log and in the store.
Writers that behave like clients, on a disk that fails at random and a store that is lost at random, by seeds."""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.server.kv.kv_runtime import KvSettings
from fluss.testing.faultfs import FaultFiles
from tests.unit.server.kv.bucket_support import Bucket, hosting
from tests.unit.server.merge.merging import Delete

WRITERS = 3
BATCHES = 40
IN_FLIGHT = 5


class Writer:
    """An idempotent writer of some keys of its own: up to five batches on the way, sent again in order if they fail."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.number = number
        self.rows: dict[int, str] = {}
        self.batches = [self._batch(rng, sequence) for sequence in range(BATCHES)]

    def _batch(self, rng: random.Random, sequence: int) -> list[tuple | Delete]:
        changes: list[tuple | Delete] = []
        for _ in range(rng.randint(1, 4)):
            key = self.number * 100 + rng.randrange(6)
            if rng.random() < 0.3:
                changes.append(Delete((key, None)))
                self.rows.pop(key, None)
            else:
                self.rows[key] = f"{sequence}.{rng.randrange(100)}"
                changes.append((key, self.rows[key]))
        return changes

    async def run(self, bucket: Bucket) -> None:
        waiting = deque(range(BATCHES))
        ends: list[int] = []
        while waiting:
            sent = [waiting.popleft() for _ in range(min(IN_FLIGHT, len(waiting)))]
            outcomes = await asyncio.gather(*(self._send(bucket, sequence) for sequence in sent))
            failed = [sequence for sequence, end in zip(sent, outcomes, strict=True) if end is None]
            ends += [end for end in outcomes if end is not None]
            waiting.extendleft(reversed(failed))
        assert sorted(ends) == list(dict.fromkeys(sorted(ends))), "no two batches end at the same offset"

    async def _send(self, bucket: Bucket, sequence: int) -> int | None:
        """Send one batch; return where it ends, None if it has to be sent again."""
        try:
            return await bucket.put(*self.batches[sequence], writer=self.number, sequence=sequence)
        except FlussError as error:
            # Behind a batch that failed all others of the writer are out of order, or were refused with it.
            if not error.is_retriable and error.error_code != ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION:
                raise
            await asyncio.sleep(0.002)
            return None


async def break_things(bucket: Bucket, disk: FaultFiles, rng: random.Random) -> None:
    for _ in range(25):
        await asyncio.sleep(rng.random() * 0.03)
        if rng.random() < 0.7:
            disk.fail_next("write", "log-0", number=errno.ENOSPC)
        else:
            store = bucket.kv.open_store()
            if store is not None:
                kind = rng.choice((KvDamagedError, FlussError))
                bucket.kv.store_failed(store, kind("the test says so", ErrorCode.KV_STORAGE_EXCEPTION))


def replayed(bucket: Bucket) -> dict[int, str]:
    rows: dict[int, str] = {}
    for kind, (key, text) in bucket.changelog():
        if kind == "+I":
            assert key not in rows
        elif kind != "+U":
            assert rows[key] == text, f"{kind} must show what was there"
        if kind in ("+I", "+U"):
            rows[key] = text
        elif kind == "-D":
            del rows[key]
    return rows


@pytest.mark.parametrize("seed", range(4))
async def test_a_storm_loses_nothing_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    disk = FaultFiles(seed)
    disk.make_directory(tmp_path)
    async with hosting(tmp_path, kv=KvSettings(open_retry_ms=0), files=disk) as bucket:
        writers = [Writer(number, rng) for number in range(WRITERS)]
        storm = asyncio.create_task(break_things(bucket, disk, rng))
        await asyncio.gather(*(writer.run(bucket) for writer in writers))
        storm.cancel()
        expected = {key: text for writer in writers for key, text in writer.rows.items()}
        assert dict(await bucket.rows()) == expected
        assert replayed(bucket) == expected
        assert await bucket.kv.row_count() == len(expected)
        assert bucket.manager.kv_runtime.memory.held_bytes == 0
