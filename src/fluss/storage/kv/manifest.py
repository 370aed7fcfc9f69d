"""A look at the files that RocksDB reads when it opens a database, before it does.

A damaged record in its list of tables can send RocksDB into an endless loop, with the GIL held. The list, named by the
file ``CURRENT``, is a sequence of blocks of 32 KiB with records in them:

| field    | bytes | meaning                                                                    |
|----------|-------|----------------------------------------------------------------------------|
| checksum | 4     | crc32c over type and data, masked                                          |
| length   | 2     | of the data                                                                |
| type     | 1     | 1 to 4: a whole, or the first, a middle or the last piece                  |
| data     |       |                                                                            |

Little endian. A block ends with zeros where no header fits in any more. A crash leaves a record that is cut off by the
end of the file, and RocksDB takes it for one that was never written.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Final

from fluss.errors import KvDamagedError
from fluss.record.framing import crc32c
from fluss.storage.vfs import Files

_CURRENT: Final = "CURRENT"
_MANIFEST: Final = re.compile(rb"MANIFEST-[0-9]+\n")
_HEADER: Final = struct.Struct("<IHB")
_TYPE_BYTE: Final = 6
_BLOCK_BYTES: Final = 32 * 1024
_TYPES: Final = range(1, 5)


def check_files(files: Files, directory: Path) -> None:
    """Raise KvDamagedError for what RocksDB must not see. A directory without a database is fine."""
    names = set(files.names(directory))
    if _CURRENT not in names:
        if any(name.endswith(".sst") for name in names):
            # RocksDB would begin a new database and remove the tables.
            raise _damaged(directory, f"it has tables and no file {_CURRENT}")
        return
    for name in names:
        if name.endswith(".log") and files.size(directory / name):
            raise _damaged(directory, f"there is something in {name}, a write-ahead log, which no store ever writes")
    current = _content(files, directory / _CURRENT)
    if not _MANIFEST.fullmatch(current):
        raise _damaged(directory, f"its file {_CURRENT} does not name a list of tables")
    name = current.decode("ascii").rstrip()
    if name not in names:
        raise _damaged(directory, f"its list of tables, {name}, is missing")
    position = _first_bad_record(_content(files, directory / name))
    if position is not None:
        raise _damaged(directory, f"the record at byte {position} of {name} does not match its checksum")


def _content(files: Files, path: Path) -> bytes:
    data = bytes(files.read(path, 0, files.size(path)))
    # RocksDB replaces and removes these files itself.
    files.forget(path)
    return data


def _first_bad_record(data: bytes) -> int | None:
    position = 0
    while position + _HEADER.size <= len(data):
        block_end = position - position % _BLOCK_BYTES + _BLOCK_BYTES
        if block_end - position < _HEADER.size:
            position = block_end
            continue
        checksum, length, kind = _HEADER.unpack_from(data, position)
        end = position + _HEADER.size + length
        if end > len(data):
            return None
        if kind not in _TYPES or end > block_end or checksum != _masked(crc32c(data[position + _TYPE_BYTE : end])):
            return position
        position = end
    return None


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(directory: Path, reason: str) -> KvDamagedError:
    return KvDamagedError(f"The key-value store {directory} is damaged: {reason}")
