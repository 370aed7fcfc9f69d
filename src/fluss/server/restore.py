"""``backup.restore-from``: a new data directory from the backup of a server that is gone.

| step                                                       | what a crash before the next one leaves             |
|------------------------------------------------------------|-----------------------------------------------------|
| 1. the newest point is read, and the metadata are fetched   | nothing that counts; the restore begins anew        |
| 2. the remote directory is claimed: the other server, if it | a claim that is not used; the restore begins anew   |
|    runs after all, takes no more writes; if it has made     |                                                     |
|    another point meanwhile, 1 is done again                 |                                                     |
| 3. it is noted which logs there have to be, and from where  | the same                                            |
| 4. the metadata get their name                              | a restored server: see ``tablet.restoration``       |

Logs follow when the server runs. Everything here blocks and belongs into a thread.
"""

from __future__ import annotations

import logging
import platform
import time
from pathlib import Path
from typing import Final

from fluss.errors import FlussError
from fluss.record.framing import crc32c
from fluss.schema.table import TableBucket
from fluss.server.coordinator.metadata.metadata_backup import adapt, check_metadata, remote_logs
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME as METADATA_FILE
from fluss.server.model import Clock
from fluss.storage.backup.ownership import claim
from fluss.storage.backup.points import BackupPoint, get_chains, newest_point, no_backup
from fluss.storage.backup.restore_note import RestoreNote
from fluss.storage.log.checkpoint_file import encode_checkpoint
from fluss.storage.log.file_names import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, damaged
from fluss.storage.remote.file_systems import FileSystemOptions, check_location, open_objects
from fluss.storage.remote.store import CHUNK_BYTES, RemoteStore, RemoteTraffic
from fluss.storage.vfs import Files

_FETCHED: Final = "metadata.restoring"

logger = logging.getLogger(__name__)


def restore(source: str, options: FileSystemOptions, data_dir: Path, files: Files, clock: Clock) -> None:
    """Make a data directory from the newest point of a backup, unless it was made from there before.

    Raises FlussError if there is no backup, if it is damaged, or if the directory has data of its own.
    """
    location = check_location(source)
    note = RestoreNote.load(files, data_dir)
    if files.exists(data_dir / METADATA_FILE):
        if note is None or note.location != location:
            raise FlussError(
                f"{data_dir} has data of its own, nothing is restored into it: give a new --data-dir, or start the "
                "server without --restore-from"
            )
        logger.info("%s was restored from %s before, and goes on", data_dir, location)
        return
    store = RemoteStore(open_objects(location, options, files), RemoteTraffic())
    fetched = data_dir / _FETCHED
    looked_at = _fetch_newest(store, fetched, files)
    # Not before it is known that the backup can be used: from here on the other server takes no more writes.
    claimed = claim(store, files, data_dir, platform.node(), clock())
    point = newest_point(store)
    if point is None or point.path != looked_at.path:
        # The other server runs, and has made another one until now.
        point = _fetch_newest(store, fetched, files)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(point.time_ms / 1000))
    logger.info("restoring the backup of %s from %s", when, location)
    adapt(fetched, moved={} if point.location == location else {point.location: location})
    files.sync(fetched)
    _note_logs(store, point, fetched, data_dir, files)
    RestoreNote(location, point.path, claimed.epoch, point.time_ms).save(files, data_dir)
    files.rename(fetched, data_dir / METADATA_FILE)
    files.sync_directory(data_dir)


def _fetch_newest(store: RemoteStore, target: Path, files: Files) -> BackupPoint:
    """Fetch the metadata of the newest point, and look whether it is whole. Blocking; raises FlussError."""
    while True:
        point = newest_point(store)
        if point is None:
            raise no_backup(store.location)
        try:
            fetch_metadata(store, point, target, files)
            check_metadata(target)
            get_chains(store, point)
        except FlussError:
            newer = newest_point(store)
            if newer is None or newer.path == point.path:
                raise
            # A server that runs has removed it meanwhile.
            continue
        return point


def refuse_half_restored(data_dir: Path, files: Files) -> None:
    """Raise if a restore into a directory was not finished: it is no empty one."""
    note = RestoreNote.load(files, data_dir)
    if note is not None and not files.exists(data_dir / METADATA_FILE):
        raise FlussError(
            f"the restore into {data_dir} was interrupted before the metadata were there; start the server again with "
            f"--restore-from {note.location}"
        )


def fetch_metadata(store: RemoteStore, point: BackupPoint, target: Path, files: Files) -> None:
    """Fetch the metadata of a point into a file. One that is missing or damaged is a FlussError."""
    stored, checksum = point.metadata, 0
    name = f"{store.location}/{stored.path}"
    files.remove(target)
    files.write(target, (b"",), 0)
    try:
        if store.size(stored.path) != stored.size_bytes:
            raise damaged("backup", f"it should have {stored.size_bytes} bytes", name)
        for position in range(0, stored.size_bytes, CHUNK_BYTES):
            part = store.read(stored.path, position, min(CHUNK_BYTES, stored.size_bytes - position))
            checksum = crc32c(part, checksum)
            files.write(target, (part,), position)
    except FileNotFoundError:
        raise damaged("backup", "an object that it names is missing", name) from None
    if checksum != stored.crc:
        raise damaged("backup", "its checksum is wrong", name)
    files.sync(target)
    files.forget(target)


def _note_logs(store: RemoteStore, point: BackupPoint, metadata: Path, data_dir: Path, files: Files) -> None:
    """Write down which logs there have to be, and where they end."""
    ends: dict[TableBucket, int] = {entry.bucket: entry.end_offset for entry in remote_logs(metadata)}
    for bucket, chain in get_chains(store, point).items():
        ends[bucket] = max(chain.end_offset, ends.get(bucket, 0))
    ordered = sorted(
        (entry for entry in ends.items() if entry[1]),
        key=lambda entry: (entry[0].table_id, entry[0].partition_id or -1, entry[0].bucket_id),
    )
    for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT):
        files.replace(data_dir / name, encode_checkpoint(dict(ordered)))
