"""How far a store has come: the record that is written together with the rows it speaks of.

| field          | bytes | meaning                                                                             |
|----------------|-------|-------------------------------------------------------------------------------------|
| magic          | 4     | ``FKVS``                                                                            |
| version        | 1     | 1                                                                                   |
| flags          | 1     | bit 0: rows are counted; bit 1: a block of ids is kept                              |
| applied offset | 8     | the changelog before this offset is in the store                                    |
| row count      | 8     | 0 unless counted                                                                    |
| column id      | 4     | the auto-increment column of the block; this and the next two are 0 without a block |
| next id        | 8     | first id of the block that was not handed out                                       |
| end id         | 8     | first id behind the block                                                           |
| largest value  | 8     | bytes of the largest value that was ever written                                    |
| crc32c         | 4     | over everything before it                                                           |

Little endian; the integers are signed, the checksum is not.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

# What a flush needs and clients load late. A store that has no descriptor left could not load it any more.
import pyarrow.compute  # noqa: F401

from fluss.errors import KvDamagedError
from fluss.record.framing import crc32c, load_crc32c

load_crc32c()

VERSION = 1
_MAGIC = b"FKVS"
_HEAD = struct.Struct("<4sB")
_BODY = struct.Struct("<4sBBqqiqqq")
_CRC = struct.Struct("<I")
_WRITTEN = struct.Struct("<q")
_COUNTED = 1
_HAS_IDS = 2


@dataclass(frozen=True, slots=True)
class IdBlock:
    """What is left of the ids that a bucket reserved for its auto-increment column: ``id_next`` to ``id_end - 1``."""

    column_id: int
    id_next: int
    id_end: int

    def __post_init__(self) -> None:
        assert self.id_next <= self.id_end, f"a block of ids from {self.id_next} to {self.id_end}"


_NO_IDS: Final = IdBlock(0, 0, 0)


@dataclass(slots=True)
class KvState:
    """What the rows of a store amount to."""

    # Every change of the changelog before this offset is in the store; some of the later ones may be, too.
    applied_offset: int = 0
    # None: rows are not counted, because the changelog does not tell new rows from old ones.
    row_count: int | None = 0
    ids: IdBlock | None = None
    # No value of the store has more bytes. The store itself keeps it; it is no part of what was asked for.
    value_bytes_max: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        assert self.applied_offset >= 0, f"{self.applied_offset} is not an offset"
        assert self.row_count is None or self.row_count >= 0, f"{self.row_count} rows cannot be"

    def encode(self) -> bytes:
        flags = (0 if self.row_count is None else _COUNTED) | (0 if self.ids is None else _HAS_IDS)
        ids = self.ids or _NO_IDS
        body = _BODY.pack(
            *(_MAGIC, VERSION, flags, self.applied_offset, self.row_count or 0),
            *(ids.column_id, ids.id_next, ids.id_end, self.value_bytes_max),
        )
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, data: bytes, store_name: str | None = None) -> KvState:
        """Read a state back. Anything that ``encode`` did not write is a KvDamagedError, which names the store."""
        if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
            raise _damaged(f"it does not begin with {_MAGIC!r}", store_name)
        version = data[len(_MAGIC)]
        if version != VERSION:
            raise _damaged(
                f"its version is {version} and this release reads only {VERSION}; "
                "start the release that wrote it, or let the store be built again from its changelog",
                store_name,
            )
        if len(data) != _BODY.size + _CRC.size:
            raise _damaged(f"it has {len(data)} bytes instead of {_BODY.size + _CRC.size}", store_name)
        body = data[: _BODY.size]
        if _CRC.unpack_from(data, _BODY.size)[0] != crc32c(body):
            raise _damaged("its checksum does not match", store_name)
        _, _, flags, applied_offset, row_count, column_id, id_next, id_end, value_bytes_max = _BODY.unpack(body)
        return cls(
            applied_offset,
            row_count if flags & _COUNTED else None,
            IdBlock(column_id, id_next, id_end) if flags & _HAS_IDS else None,
            value_bytes_max,
        )


@dataclass(slots=True)
class SharedState:
    """What a store in a shared database keeps of itself: its state, and how many bytes were written to it so far.

    The bytes, 8 of them and little endian, are behind the state. They tell when it is worth to look how large the store
    has become.
    """

    state: KvState
    written_bytes: int = 0

    def encode(self) -> bytes:
        return self.state.encode() + _WRITTEN.pack(self.written_bytes)

    @classmethod
    def decode(cls, data: bytes, store_name: str | None = None) -> SharedState:
        """Read it back, as ``KvState.decode`` does."""
        if len(data) < _WRITTEN.size:
            raise _damaged(f"it has {len(data)} bytes", store_name)
        state = KvState.decode(data[: -_WRITTEN.size], store_name)
        return cls(state, _WRITTEN.unpack_from(data, len(data) - _WRITTEN.size)[0])


def _damaged(reason: str, store_name: str | None) -> KvDamagedError:
    which = f"the key-value store {store_name}" if store_name else "a key-value store"
    return KvDamagedError(f"The state record of {which} is damaged: {reason}")
