"""Files of remote storage, which clients read themselves: in directories of the machine, and in object stores.

A server names a file by its location. For an object store it also gives credentials that are good for a while, or says
that it has none: then those of the machine count (the environment, a profile, its role).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from fluss.client.kernel.shared_calls import SharedCalls
from fluss.errors import ErrorCode, FlussError
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.storage.remote import file_systems

# A token is replaced when so much of its life is over, which is at least and at most so long.
_RENEWED_AFTER: Final = 0.8
_RENEWED_S_MIN: Final = 1.0
_RENEWED_S_MAX: Final = 7 * 24 * 3600.0
# A server that has no token now may have one later.
_ASKED_AGAIN_S: Final = 30.0
_OPERATION_TIMEOUT_S: Final = 30.0
# Codes of servers that give no credentials.
_WITHOUT_TOKEN: Final = (ErrorCode.SECURITY_TOKEN_EXCEPTION, ErrorCode.UNSUPPORTED_VERSION)
# What a token says, and what it is called where file systems are opened.
_S3_CREDENTIALS: Final = {
    "access_key_id": "s3.access-key",
    "access_key_secret": "s3.secret-key",
    "security_token": "s3.session-token",
}
_OSS_CREDENTIALS: Final = {
    "access_key_id": "fs.oss.accessKeyId",
    "access_key_secret": "fs.oss.accessKeySecret",
    "security_token": "fs.oss.securityToken",
}
_SETTINGS: Final = {
    "fs.s3a.endpoint": "s3.endpoint",
    "fs.s3a.endpoint.region": "s3.region",
    "fs.s3a.path.style.access": "s3.path.style.access",
    "fs.oss.endpoint": "fs.oss.endpoint",
    "fs.oss.region": "fs.oss.region",
}

# How a cluster is asked for a token.
AskForToken = Callable[[], Awaitable[pb.GetFileSystemSecurityTokenResponse]]

logger = logging.getLogger(__name__)


class RemoteFile(Protocol):
    """An open file. Methods block, raise OSError, and may be called by several threads at the same time."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, memory: memoryview, position: int) -> None:
        """Fill the memory with the bytes from a position on; a file that ends before is an OSError."""
        ...

    def close(self) -> None: ...


class RemoteStorage:
    """Opens files for all scans of one client, which share file systems and credentials. Belongs to its event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._calls = SharedCalls()
        self._systems: dict[tuple[str, str], _FileSystem] = {}

    async def opener(self, location: str, ask: AskForToken) -> Callable[[], RemoteFile]:
        """Return the function that opens a file; it blocks, so it belongs on a thread.

        ``location`` is an absolute path or a URI. A FlussError says which of them cannot be read here.
        """
        path = local_path(location)
        if path is not None:
            return partial(_LocalFile, path)
        key = _key(location)
        system = self._systems.get(key)
        if system is None or asyncio.get_running_loop().time() >= system.renewed_at_s:
            system = await self._calls.join(key, partial(self._open_system, location, ask))
        return partial(_StoredFile, system, location)

    def refused(self, location: str) -> None:
        """Forget the credentials with which a file could not be read: next time the server is asked again."""
        self._systems.pop(_key(location), None)

    async def close(self) -> None:
        """Stop asking."""
        await self._calls.close()

    async def _open_system(self, location: str, ask: AskForToken) -> _FileSystem:
        properties, lifetime_s = await self._properties(location, ask)
        options = file_systems.FileSystemOptions(properties, request_timeout_s=_OPERATION_TIMEOUT_S)
        # Loads libraries, and may ask the machine who it is.
        opened = await asyncio.to_thread(file_systems.arrow_file_system, location, options)
        system = _FileSystem(opened, asyncio.get_running_loop().time() + lifetime_s)
        self._systems[_key(location)] = system
        return system

    async def _properties(self, location: str, ask: AskForToken) -> tuple[dict[str, str], float]:
        """Return options of the file system, and for how long they are good."""
        try:
            token = await ask()
        except FlussError as error:
            if error.error_code not in _WITHOUT_TOKEN:
                raise
            logger.info("%s is read with the credentials of this machine: %s", location, error.message)
            return {}, _ASKED_AGAIN_S
        properties = {_SETTINGS[entry.key]: entry.value for entry in token.addition_info if entry.key in _SETTINGS}
        names = _OSS_CREDENTIALS if _key(location)[0] == "oss" else _S3_CREDENTIALS
        properties |= {names[key]: value for key, value in _credentials(token.token).items() if key in names and value}
        if not token.HasField("expiration_time"):
            return properties, _RENEWED_S_MAX
        left_s = token.expiration_time / 1000 - self._clock()
        return properties, min(max(left_s * _RENEWED_AFTER, _RENEWED_S_MIN), _RENEWED_S_MAX)


@dataclass(frozen=True, slots=True)
class _FileSystem:
    arrow: Any
    renewed_at_s: float


class _LocalFile:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self.size_bytes = os.fstat(self._file).st_size

    def read(self, memory: memoryview, position: int) -> None:
        while memory:
            byte_count = os.preadv(self._file, [memory], position)
            if not byte_count:
                raise OSError(f"the file ends at byte {position}, more was expected")
            memory, position = memory[byte_count:], position + byte_count

    def close(self) -> None:
        os.close(self._file)


class _StoredFile:
    def __init__(self, system: _FileSystem, location: str) -> None:
        self._file = system.arrow.open_input_file(file_systems.path_of(location))
        self.size_bytes: int = self._file.size()

    def read(self, memory: memoryview, position: int) -> None:
        found = self._file.read_at(len(memory), position)
        if len(found) != len(memory):
            raise OSError(f"the object ends at byte {position + len(found)}, more was expected")
        memory[:] = found

    def close(self) -> None:
        self._file.close()


def local_path(location: str) -> Path | None:
    """Return the path of what is in a directory of this machine: an absolute path or a ``file:`` URI; else None.

    What is neither that nor a URI of a store is a FlussError that says what cannot be read from here.
    """
    path = file_systems.local_path(location)
    url = urlsplit(location)
    if path is None and (url.scheme in ("", "file") or not url.netloc):
        raise FlussError(
            f"The records are in remote storage at {location}, which this client cannot read: it has to be an absolute "
            "path, a file: URI of this machine, or a URI that names a bucket, such as s3://bucket/path; set "
            "remote.data.dir of the servers to one of these"
        )
    return path


def _key(location: str) -> tuple[str, str]:
    url = urlsplit(location)
    return url.scheme.lower(), url.netloc


def _credentials(token: bytes) -> dict[str, str]:
    """Read the credentials of a token; an empty one has none. What it says is never part of an error."""
    if not token:
        return {}
    try:
        found = json.loads(token)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise FlussError("The server gave credentials for remote storage in a form that is not known here")
    return {key: value for key, value in found.items() if isinstance(value, str)}
