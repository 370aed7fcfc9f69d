"""Rows of a bucket as a server has copied them to remote storage: for servers that cannot return them (before 1.0).

Every so often (``kv.snapshot.interval``) such a server copies the key-value store of each bucket there, and says which
files the last copy consists of. They are linked or copied into a directory of this machine, where RocksDB reads them.
The rows are those after all changes before ``log_offset``; the changes since are in the changelog, which servers keep
from there on.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.remote_storage import RemoteFile, local_path
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.convert import pb_table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.value_batch import encode_value_batch
from fluss.row.encoded import EncodedRows
from fluss.schema.table import TableBucket, TablePath

if TYPE_CHECKING:
    from fluss.storage.kv.snapshots.snapshot_reader import SnapshotReader


# What is copied at a time.
_PIECE_BYTES: Final = 8 * 1024 * 1024


class SnapshotUnreadableError(FlussError):
    """The rows of a bucket are in files that cannot be read on this machine; trying again would not help."""


class KvFileSession:
    """The rows of the last snapshot of one bucket, batch after batch; used as a ``KvSession`` is, with the same calls.

    Belongs to the loop of the cluster; one call at a time.
    """

    def __init__(self, cluster: Cluster, path: TablePath, bucket: TableBucket) -> None:
        self._cluster = cluster
        self._path = path
        self._bucket = bucket
        self._directory: Path | None = None
        self._reader: SnapshotReader | None = None
        # Set by ``open``: every change before this offset is in the rows, and none from it on.
        self.log_offset = 0
        self.has_more = False

    async def open(self, *, bytes_max: int, row_limit: int | None = None) -> memoryview:
        """Gather the files of the last snapshot, and return its first rows; none for an empty one.

        Raises SnapshotUnreadableError if there is none or it is out of reach, and code 41 if it is replaced meanwhile.
        """
        assert row_limit is None, "rows of a while ago are no answer by themselves"
        snapshot_id = await self._latest_snapshot_id()
        question = pb.GetKvSnapshotMetadataRequest(
            table_id=self._bucket.table_id,
            partition_id=self._bucket.partition_id,
            bucket_id=self._bucket.bucket_id,
            snapshot_id=snapshot_id,
        )
        snapshot = await self._cluster.request_any_tablet(apis.GET_KV_SNAPSHOT_METADATA, question)
        self.log_offset = snapshot.log_offset
        self._directory = Path(tempfile.mkdtemp(prefix="fluss-snapshot-"))
        for file in snapshot.snapshot_files:
            await self._gather(self._directory, file.remote_path, file.local_file_name)
        self._reader = await asyncio.to_thread(self._opened, self._directory)
        return await self.next(bytes_max=bytes_max)

    async def next(self, *, bytes_max: int) -> memoryview:
        """Return further rows; only while ``has_more``."""
        assert self._reader is not None, "there is nothing more"
        records = await asyncio.to_thread(_next_records, self._reader, bytes_max)
        self.has_more = bool(records)
        return records

    async def close(self) -> None:
        """Let go of the files. Never fails; may be called again."""
        reader, directory = self._reader, self._directory
        self._reader = self._directory = None
        self.has_more = False
        await asyncio.to_thread(_close, reader, directory)

    async def _latest_snapshot_id(self) -> int:
        question = pb.GetLatestKvSnapshotsRequest(table_path=pb_table_path(self._path))
        if self._bucket.partition_id is not None:
            name = self._cluster.partition_name(self._bucket.partition_id)
            if name is None:
                raise FlussError(f"{self._bucket} of {self._path} is gone", ErrorCode.PARTITION_NOT_EXISTS)
            question.partition_name = name
        answer = await self._cluster.request_any_tablet(apis.GET_LATEST_KV_SNAPSHOTS, question)
        for snapshot in answer.latest_snapshots:
            if snapshot.bucket_id == self._bucket.bucket_id and snapshot.HasField("snapshot_id"):
                return snapshot.snapshot_id
        raise self._unreadable(FlussError("there is none"))

    async def _gather(self, directory: Path, location: str, name: str) -> None:
        """Link a file of this machine into the directory, or copy one of an object store."""
        if PurePosixPath(name).name != name:
            raise self._unreadable(FlussError(f"a file is called {name!r}"))
        try:
            remote = local_path(location)
            if remote is None:
                opened = await self._cluster.remote_storage.opener(location, self._cluster.storage_token)
                await asyncio.to_thread(_copy, opened, directory / name)
            else:
                await asyncio.to_thread(_link, remote, directory / name)
        except FileNotFoundError as error:
            raise FlussError(
                f"{location} is gone: there is a newer snapshot", ErrorCode.KV_SNAPSHOT_NOT_EXIST
            ) from error
        except OSError as error:
            raise self._unreadable(FlussError(str(error))) from error
        except FlussError as error:
            raise self._unreadable(error) from error

    def _opened(self, directory: Path) -> SnapshotReader:
        # Few programs need it, and it takes a while.
        from fluss.storage.kv.snapshots.snapshot_reader import SnapshotReader

        try:
            return SnapshotReader(directory)
        except FlussError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: FlussError) -> SnapshotUnreadableError:
        return SnapshotUnreadableError(
            f"The current rows of {self._path} cannot be read: its server cannot return them (that takes version 1.0), "
            f"the changelog of {self._bucket} no longer has all changes, and its snapshot in remote storage cannot be "
            f"used: {error.message}"
        )


def _link(remote: Path, link: Path) -> None:
    if not remote.parent.is_dir():
        raise OSError(f"there is no directory {remote.parent} on this machine")
    link.symlink_to(remote)
    # Where files cannot be read the directory may still be there.
    remote.open("rb").close()


def _copy(opened: Callable[[], RemoteFile], path: Path) -> None:
    remote = opened()
    try:
        with path.open("wb") as file:
            for position in range(0, remote.size_bytes, _PIECE_BYTES):
                piece = memoryview(bytearray(min(_PIECE_BYTES, remote.size_bytes - position)))
                remote.read(piece, position)
                file.write(piece)
    finally:
        remote.close()


def _next_records(reader: SnapshotReader, bytes_max: int) -> memoryview:
    values = reader.next_values(bytes_max)
    return memoryview(encode_value_batch(EncodedRows.from_list(values)) if values else b"")


def _close(reader: SnapshotReader | None, directory: Path | None) -> None:
    if reader is not None:
        reader.close()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
