"""Where the tails of all buckets are: what the next backup point says of them, and what of their objects is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from fluss.schema.table import TableBucket
from fluss.storage.backup.points import INDEX_COUNT, Chains, TailChain, encode_index, index_of
from fluss.storage.backup.tails import PlannedTail

# Objects are written again when less than half of them is needed, and it is worth it; so much at a time.
_WASTE_BYTES_MIN: Final = 64 * 1024 * 1024


class TailIndex:
    """The chains of all buckets that have a tail. Belongs to one thread."""

    def __init__(self) -> None:
        self._chains: list[dict[TableBucket, TailChain]] = [{} for _ in range(INDEX_COUNT)]
        # Those that differ from what was written last.
        self.changed: set[int] = set()
        # What is needed of each object, and how large it is as far as that is known.
        self._live_bytes: Counter[str] = Counter()
        self._object_bytes: dict[str, int] = {}

    def load(self, chains: Chains) -> None:
        """Begin with the chains of a point."""
        for bucket, chain in chains.items():
            self._chains[index_of(bucket)][bucket] = chain
            self._count(chain, +1)

    def get(self, bucket: TableBucket) -> TailChain | None:
        return self._chains[index_of(bucket)].get(bucket)

    def all(self) -> dict[TableBucket, TailChain]:
        return {bucket: chain for chains in self._chains for bucket, chain in chains.items()}

    def encoded(self, index: int) -> bytes | None:
        """Return one of the parts that it is written in; None if that is empty."""
        return encode_index(self._chains[index]) if self._chains[index] else None

    @property
    def objects(self) -> Collection[str]:
        """The objects of which something is needed."""
        return self._live_bytes.keys()

    @property
    def byte_count(self) -> int:
        """How many bytes are needed."""
        return self._live_bytes.total()

    def replace(self, bucket: TableBucket, chain: TailChain | None) -> None:
        """Make a chain that of a bucket; None if it has no tail any more."""
        chains = self._chains[index_of(bucket)]
        before = chains.get(bucket)
        if before is chain:
            return
        if before is not None:
            self._count(before, -1)
        if chain is None:
            del chains[bucket]
        else:
            chains[bucket] = chain
            self._count(chain, +1)
        self.changed.add(index_of(bucket))

    def _count(self, chain: TailChain, sign: int) -> None:
        for piece in chain.all_pieces():
            self._live_bytes[piece.path] += sign * piece.size_bytes
            if not self._live_bytes[piece.path]:
                del self._live_bytes[piece.path]
                self._object_bytes.pop(piece.path, None)
            else:
                known = self._object_bytes.get(piece.path, 0)
                self._object_bytes[piece.path] = max(known, piece.position + piece.size_bytes)

    def wasteful(self) -> list[PlannedTail]:
        """Return what is to be written again so that objects can go of which little is needed; mostly nothing."""
        waste = sum(self._object_bytes.values()) - self.byte_count
        if waste < max(_WASTE_BYTES_MIN, self.byte_count):
            return []
        chains = self.all()
        # A writer snapshot is small, and comes again with the next segment.
        fixed = {chain.writers.path for chain in chains.values() if chain.writers is not None}
        victims: set[str] = set()
        moved = 0
        for path in sorted(self._live_bytes, key=lambda path: self._live_bytes[path] / self._object_bytes[path]):
            moved += self._live_bytes[path]
            if victims and moved > _WASTE_BYTES_MIN:
                break
            victims.add(path)
        victims -= fixed
        return [plan for bucket, chain in chains.items() if (plan := _moved(bucket, chain, victims)) is not None]


def _moved(bucket: TableBucket, chain: TailChain, victims: Collection[str]) -> PlannedTail | None:
    """Return how the first pieces that are in some objects are written to another one; None if there are none."""
    first = next((index for index, piece in enumerate(chain.pieces) if piece.path in victims), None)
    if first is None:
        return None
    end = first
    while end < len(chain.pieces) and chain.pieces[end].path in victims:
        end += 1
    moved = chain.pieces[first:end]
    return PlannedTail(
        *(bucket, chain.pieces[:first], moved[0].start_offset, moved[-1].end_offset, moved),
        writers=chain.writers,
        behind=chain.pieces[end:],
    )
