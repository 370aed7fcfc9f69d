"""Snapshots of a bucket's rows in remote storage: uploaded, fetched, removed.

An SST file that an earlier snapshot has is not uploaded again. Its name in remote storage follows from the file itself:
from its size and its end, where RocksDB keeps an id that no other SST file has. So nothing has to be remembered to know
it again, also after a restart, or in a store that was built from a snapshot.

Everything here blocks and belongs into a thread. What is damaged is neither uploaded nor used: SST files are read from
one end to the other before the one and after the other.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.schema.table import TableBucket
from fluss.storage.kv.rocks import DISK
from fluss.storage.kv.snapshots.completed_snapshot import (
    METADATA_NAME,
    SHARED_DIRECTORY,
    CompletedSnapshot,
    SnapshotFile,
    decode_snapshot,
    encode_snapshot,
    snapshot_id_of,
    snapshot_name,
)
from fluss.storage.kv.snapshots.sst_check import SstCheck, UnknownFormatError
from fluss.storage.kv.snapshots.store_export import SST_SUFFIX, database_files
from fluss.storage.kv.state import KvState
from fluss.storage.remote.store import CHUNK_BYTES, RemoteStore

T = TypeVar("T")

_ROOT: Final = "kv"
# The end of an SST file, with its properties: an id among them.
_TAIL_BYTES: Final = 64 * 1024


def remote_kv_directory(tablet_path: str) -> str:
    """Return where the snapshots of a bucket are, by its directory in remote storage."""
    return f"{_ROOT}/{tablet_path}"


class SnapshotUploader:
    """Uploads exported copies of one bucket's store."""

    def __init__(self, store: RemoteStore, directory: str, *, threads: int, check: Callable[[], None]) -> None:
        """``directory`` is that of the bucket's snapshots. ``check`` raises if there is no use in going on."""
        self._store = store
        self._directory = directory
        self._threads = threads
        self._check = check

    def upload(
        self, source: Path, bucket: TableBucket, snapshot_id: int, state: KvState, before: CompletedSnapshot | None
    ) -> CompletedSnapshot:
        """Upload what the snapshot before does not have, and at last the description, which is returned.

        Raises KvDamagedError for damage of the source, FlussError for a store that fails.
        """
        sst_files, other_files = database_files(source)
        known = {file.path: file for file in before.shared} if before is not None else {}
        snapshot_path = f"{self._directory}/{snapshot_name(snapshot_id)}"
        shared = [self._named(f"{self._directory}/{SHARED_DIRECTORY}", path, _content_id(path)) for path in sst_files]
        private = [self._named(snapshot_path, path, str(uuid.uuid4())) for path in other_files]
        new = [
            (path, file)
            for path, file in zip([*sst_files, *other_files], [*shared, *private], strict=True)
            if file.path not in known
        ]
        _for_each(self._threads, self._put, new)
        snapshot = CompletedSnapshot(
            bucket,
            snapshot_id,
            f"{self._store.location}/{snapshot_path}",
            tuple(shared),
            tuple(private),
            sum(file.size_bytes for _, file in new),
            state.applied_offset,
            state.row_count,
            state.ids,
        )
        self._check()
        self._store.put(f"{snapshot_path}/{METADATA_NAME}", encode_snapshot(snapshot))
        return snapshot

    def _named(self, directory: str, path: Path, name: str) -> SnapshotFile:
        return SnapshotFile(f"{self._store.location}/{directory}/{name}", DISK.size(path), path.name)

    def _put(self, new: tuple[Path, SnapshotFile]) -> None:
        self._check()
        path, file = new
        check_sst(path)
        self._store.put_file(file.path.removeprefix(f"{self._store.location}/"), DISK, path, file.size_bytes)


def load_snapshot(store: RemoteStore, directory: str, snapshot_id: int) -> CompletedSnapshot:
    """Read the description of a snapshot. Damage, and one that is missing, is a FlussError."""
    path = f"{directory}/{snapshot_name(snapshot_id)}/{METADATA_NAME}"
    try:
        return decode_snapshot(store.get(path), path)
    except FileNotFoundError as error:
        raise FlussError(
            f"the description {store.location}/{path} of a key-value snapshot is missing from remote storage",
            ErrorCode.KV_SNAPSHOT_NOT_EXIST,
        ) from error


def fetch_snapshot(
    store: RemoteStore,
    directory: str,
    snapshot: CompletedSnapshot,
    target: Path,
    *,
    threads: int,
    check: Callable[[], None],
) -> None:
    """Bring the files of a snapshot to a directory of the disk, checked and durable. What was there is gone.

    Raises KvDamagedError if something of it is missing or damaged, FlussError for a store that fails.
    """
    DISK.remove_tree(target)
    DISK.make_directory(target)

    def get(item: tuple[str, SnapshotFile]) -> None:
        path, file = item
        local = target / file.local_name
        DISK.write(local, (b"",), 0)
        position = 0
        try:
            while position < file.size_bytes:
                check()
                piece = store.read(path, position, min(CHUNK_BYTES, file.size_bytes - position))
                if not len(piece):
                    raise KvDamagedError(f"{store.location}/{path} has {position} bytes instead of {file.size_bytes}")
                DISK.write(local, (piece,), position)
                position += len(piece)
        except FileNotFoundError as error:
            raise KvDamagedError(f"{store.location}/{path} is missing from remote storage") from error
        DISK.sync(local)
        check_sst(local)
        DISK.forget(local)

    _for_each(threads, get, list(snapshot.paths(directory)))
    DISK.sync_directory(target)


def remove_snapshot_orphans(
    store: RemoteStore, directory: str, live: Sequence[CompletedSnapshot], *, check: Callable[[], None] = lambda: None
) -> int:
    """Remove what lies among the snapshots of a bucket and belongs to none of these; return how much it was.

    Only for the one who writes to the directory, while it does not; ``check`` raises if that is another one by now, and
    is called before anything is removed.
    """
    named = {snapshot.snapshot_id: {file.name for file in snapshot.private} for snapshot in live}
    snapshots, files = [], []
    for name in store.names(directory):
        snapshot_id = snapshot_id_of(name)
        if snapshot_id is None:
            continue
        if snapshot_id not in named:
            snapshots.append(f"{directory}/{name}")
            continue
        known = {METADATA_NAME, *named[snapshot_id]}
        files += [f"{directory}/{name}/{other}" for other in store.names(f"{directory}/{name}") if other not in known]
    shared = {file.name for snapshot in live for file in snapshot.shared}
    names = store.names(f"{directory}/{SHARED_DIRECTORY}")
    files += [f"{directory}/{SHARED_DIRECTORY}/{name}" for name in names if name not in shared]
    check()
    for path in snapshots:
        store.remove_all(path)
    for path in files:
        store.remove(path)
    return len(snapshots) + len(files)


def check_sst(path: Path) -> None:
    """Read an SST file and raise KvDamagedError if it is damaged; other files, and unknown formats, are left alone."""
    if path.name.endswith(SST_SUFFIX):
        with suppress(UnknownFormatError):
            SstCheck(path, DISK.size(path), lambda position, count: bytes(DISK.read(path, position, count))).run()


def _content_id(path: Path) -> str:
    """Return what an SST file is called in remote storage."""
    size = DISK.size(path)
    start = max(0, size - _TAIL_BYTES)
    digest = hashlib.blake2b(DISK.read(path, start, size - start), digest_size=16, person=size.to_bytes(16, "big"))
    return str(uuid.UUID(bytes=digest.digest(), version=4))


def _for_each(threads: int, work: Callable[[T], None], items: Iterable[T]) -> None:
    """Do something with each item, several at the same time; the first failure ends it."""
    with ThreadPoolExecutor(threads, thread_name_prefix="fluss-kv-transfer") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
