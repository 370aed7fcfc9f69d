"""Reads SST files of RocksDB from one end to the other and checks every block, without RocksDB.

RocksDB checks a block when a reader needs it. This finds damage before that, in files of stores that are open, closed
or copies, and takes no part of RocksDB's memory, locks or cache. A file is made of blocks, the footer last:

    [data blocks] [partitions of the filter, of the index] [other meta blocks] [metaindex] [footer]

| part    | content                                                                                              |
|---------|------------------------------------------------------------------------------------------------------|
| block   | its bytes, compressed or not; 1 byte: the compression; 4 bytes: the checksum of both                 |
| footer  | 53 bytes: ``_FOOTER`` of format version 6, ``_PORTABLE_FOOTER`` of format version 5                      |
| metaindex | entries: name of a meta block, its handle (varints: position, size without the last 5 bytes)       |
| index   | entries: key, handle of a partition; a partition has entries: key, handle of a data block            |

Entries of the index and of the filter's index have no length of their value and no shared keys, since every one is a
restart point; those of the metaindex have both. In format version 6 the checksum is half of XXH3 of the bytes, changed
by the kind of compression. To it a number is added that depends on the file and the position, so that a block of
another place is noticed, too. In format version 5 it is CRC-32C of bytes and compression, rotated and moved, and the
footer says where the index is; version 6 says it in the metaindex.

The blocks that the handles name must cover the file without a gap: then every byte has been checked. A file of another
format or checksum is not an error: nothing can be said about it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from fluss.errors import KvDamagedError
from fluss.record.framing import crc32c
from fluss.storage.kv.snapshots.xxh3 import xxh3_64

_FOOTER: Final = struct.Struct(
    "<B"  # checksum type
    "4s"  # extended magic
    "I"  # checksum of the footer, with zeros in this field
    "I"  # what the checksums of this file are mixed with
    "I"  # size of the metaindex, which ends where the footer begins
    "24x"
    "I"  # format version
    "8s"  # magic
)
_PORTABLE_FOOTER: Final = struct.Struct(
    "<B"  # checksum type
    "40s"  # handles of the metaindex and of the index, and zeros
    "I"  # format version
    "8s"  # magic
)
_EXTENDED_MAGIC: Final = bytes.fromhex("3e007a00")
_MAGIC: Final = bytes.fromhex("f7cff485b741e288")
_FORMAT_VERSION: Final = 6
_PORTABLE_FORMAT_VERSION: Final = 5
_CRC32C: Final = 1
_XXH3: Final = 4
# How RocksDB changes a CRC before it stores it.
_CRC_ROTATION: Final = 15
_CRC_DELTA: Final = 0xA282EAD8
_TRAILER: Final = struct.Struct("<BI")
_UINT32: Final = struct.Struct("<I")
# What a checksum is changed by, times the last byte.
_LAST_BYTE_PRIME: Final = 0x6B9083D9
_UINT32_MAX: Final = 0xFFFFFFFF
_NO_COMPRESSION: Final = 0
_LZ4: Final = 4
_INDEX: Final = b"rocksdb.index"
_PARTITIONED_FILTER: Final = b"partitionedfilter."
# A block that claims to be larger after decompression than this is not one.
_BLOCK_BYTES_MAX: Final = 256 * 1024 * 1024
# The highest bit of the number of restart points says that a hash index follows.
_HASH_INDEX_FLAG: Final = 1 << 31

# Reads so many bytes at a position of the file; the place where a caller limits the rate.
Read = Callable[[int, int], bytes]


class UnknownFormatError(Exception):
    """The file has a format or a checksum that cannot be checked here."""


class Handle(NamedTuple):
    """Where a block is, without the trailer behind it."""

    position: int
    size: int

    @property
    def end(self) -> int:
        return self.position + self.size + _TRAILER.size


class SstCheck:
    """The check of one file. Blocks the thread; ``read`` is called in the order of the file, in large pieces."""

    def __init__(self, path: Path, size: int, read: Read, *, chunk_bytes: int = 1024 * 1024) -> None:
        self._path = path
        self._size = size
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._base_context = 0
        self._is_portable = False
        # As the footer says; in format version 6 the metaindex does.
        self._index: Handle | None = None

    def run(self) -> None:
        """Check every block. Raises KvDamagedError with file and byte, or UnknownFormatError."""
        metaindex = self._read_footer()
        meta = dict(self._named_handles(self._checked_block(metaindex), metaindex.position))
        if self._index is not None:
            meta[_INDEX] = self._index
        handles = [*meta.values(), metaindex]
        for name, handle in meta.items():
            if name == _INDEX:
                partitions = list(self._handles(handle))
                handles += partitions
                for partition in partitions:
                    handles += self._handles(partition)
            elif name.startswith(_PARTITIONED_FILTER):
                handles += self._handles(handle)
        handles.sort()
        self._check_coverage(handles)
        self._check_blocks(handles)

    # Where the blocks are

    def _read_footer(self) -> Handle:
        if self._size < _FOOTER.size:
            raise self._damage(0, f"the file has {self._size} bytes, a footer alone has {_FOOTER.size}")
        position = self._size - _FOOTER.size
        footer = self._read(position, _FOOTER.size)
        checksum_type, extended, checksum, base_context, metaindex_bytes, version, magic = _FOOTER.unpack(footer)
        if magic != _MAGIC or len(footer) != _FOOTER.size:
            raise self._damage(position, "the file does not end with the footer of an SST file")
        if (version, checksum_type) == (_PORTABLE_FORMAT_VERSION, _CRC32C):
            return self._read_portable_footer(footer, position)
        if (version, checksum_type) != (_FORMAT_VERSION, _XXH3):
            raise UnknownFormatError
        self._base_context = base_context
        zeroed = bytearray(footer)
        zeroed[5:9] = bytes(4)
        (found,) = xxh3_64([bytes(zeroed[:-1])])
        expected = _mixed(found, zeroed[-1], base_context, position)
        if extended != _EXTENDED_MAGIC or checksum != expected:
            raise self._damage(position, "the footer does not match its checksum")
        metaindex = Handle(position - metaindex_bytes - _TRAILER.size, metaindex_bytes)
        if metaindex.position < 0:
            raise self._damage(position, "the footer speaks of more bytes than there are")
        return metaindex

    def _read_portable_footer(self, footer: bytes, position: int) -> Handle:
        _, handles, _, _ = _PORTABLE_FOOTER.unpack(footer)
        try:
            numbers, at = [], 0
            for _ in range(4):
                number, at = _varint(handles, at)
                numbers.append(number)
                if number and not handles[at - 1]:
                    raise self._damage(position, "a number of the footer is longer than it need be")
        except IndexError:
            raise self._damage(position, "the footer names no blocks") from None
        if any(handles[at:]):
            raise self._damage(position, "there is something in the footer behind the blocks that it names")
        self._is_portable = True
        metaindex, self._index = Handle(*numbers[:2]), Handle(*numbers[2:])
        if metaindex.end != position:
            raise self._damage(position, "the footer is not behind the metaindex that it names")
        return metaindex

    def _handles(self, handle: Handle) -> Iterator[Handle]:
        """Yield the handles in a block of an index."""
        data = self._checked_block(handle)
        try:
            for start in self._restarts(data):
                _, at = _varint(data, start)
                key_bytes, at = _varint(data, at)
                position, at = _varint(data, at + key_bytes)
                size, _ = _varint(data, at)
                yield Handle(position, size)
        except IndexError:
            raise self._damage(handle.position, "an entry of the index is not whole") from None

    def _named_handles(self, data: bytes, block_position: int) -> Iterator[tuple[bytes, Handle]]:
        """Yield names and handles of the metaindex; those that are no handles are left out."""
        try:
            for start in self._restarts(data):
                _, at = _varint(data, start)
                key_bytes, at = _varint(data, at)
                _, at = _varint(data, at)
                name = data[at : at + key_bytes]
                position, at = _varint(data, at + key_bytes)
                size, _ = _varint(data, at)
                yield name, Handle(position, size)
        except IndexError:
            raise self._damage(block_position, "an entry of the metaindex is not whole") from None

    def _restarts(self, data: bytes) -> tuple[int, ...]:
        """Return where the entries of a block begin. IndexError if there is no room for them."""
        count = _UINT32.unpack_from(data, len(data) - _UINT32.size)[0] & ~_HASH_INDEX_FLAG if len(data) > 3 else 0
        first = len(data) - _UINT32.size * (count + 1)
        if first < 0:
            raise IndexError
        return struct.unpack_from(f"<{count}I", data, first)

    def _check_coverage(self, handles: list[Handle]) -> None:
        end = 0
        for handle in handles:
            if handle.position != end:
                raise self._damage(end, f"no block begins here; the next one begins at byte {handle.position}")
            end = handle.end

    # What is in them

    def _check_blocks(self, handles: list[Handle]) -> None:
        """Read the file in order, a piece of whole blocks at a time."""
        first = 0
        while first < len(handles):
            start, last = handles[first].position, first
            while last + 1 < len(handles) and handles[last + 1].end - start <= self._chunk_bytes:
                last += 1
            piece = memoryview(self._read(start, handles[last].end - start))
            self._check_piece(piece, start, handles[first : last + 1])
            first = last + 1

    def _check_piece(self, piece: memoryview, start: int, handles: list[Handle]) -> None:
        """Check blocks that are in a piece of the file that begins at a byte."""
        if len(piece) < handles[-1].end - start:
            raise self._damage(start + len(piece), "the file ends in the middle of a block")
        blocks = [piece[handle.position - start :][: handle.size] for handle in handles]
        hashes = None if self._is_portable else xxh3_64(blocks)
        for index, handle in enumerate(handles):
            at = handle.position - start
            kind, stored = _TRAILER.unpack_from(piece, at + handle.size)
            if hashes is None:
                # With the kind of compression, which is the byte behind the block.
                found = _stored_crc(crc32c(piece[at : at + handle.size + 1]))
            else:
                found = _mixed(hashes[index], kind, self._base_context, handle.position)
            if stored != found:
                raise self._damage(
                    handle.position, f"the block has the checksum {stored:#010x}, its bytes give {found:#010x}"
                )

    def _checked_block(self, handle: Handle) -> bytes:
        """Return the content of a block that is needed to find others."""
        if handle.end > self._size:
            raise self._damage(handle.position, "a block is said to be behind the end of the file")
        block = self._read(handle.position, handle.size + _TRAILER.size)
        self._check_piece(memoryview(block), handle.position, [handle])
        kind = block[handle.size]
        if kind == _NO_COMPRESSION:
            return block[: handle.size]
        if kind != _LZ4:
            raise UnknownFormatError
        size, at = _varint(block, 0)
        if size > _BLOCK_BYTES_MAX:
            raise self._damage(handle.position, f"the block is said to have {size} bytes")
        content: bytes = pa.Codec("lz4_raw").decompress(block[at : handle.size], size, asbytes=True)
        return content

    def _damage(self, position: int, reason: str) -> KvDamagedError:
        return KvDamagedError(f"{self._path}, byte {position}: {reason}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, lowest first, and where it ends. IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _mixed(value: int, last_byte: int, base_context: int, position: int) -> int:
    """Return the checksum of bytes by their hash, a last byte, the file, and the position."""
    checksum = (value ^ last_byte * _LAST_BYTE_PRIME) & _UINT32_MAX
    if not base_context:
        return checksum
    return (checksum + (base_context ^ ((position & _UINT32_MAX) + (position >> 32)))) & _UINT32_MAX


def _stored_crc(crc: int) -> int:
    return (((crc >> _CRC_ROTATION) | (crc << (32 - _CRC_ROTATION))) + _CRC_DELTA) & _UINT32_MAX
