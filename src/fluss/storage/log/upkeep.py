"""Work on the files of a log that takes time and belongs into a thread: expiry, syncs, deletion.

All functions block and raise OSError.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fluss.storage.log.names import DELETED_SUFFIX, directories_above
from fluss.storage.log.pending_writes import PendingWrites
from fluss.storage.log.segment import Segment
from fluss.storage.log.visible_log import VisibleLog
from fluss.storage.vfs import Files


def count_expired(segments: Sequence[Segment], expired_before_ms: int) -> int:
    """Count the segments at the start of a log in which everything is older. An empty one has no age."""
    for count, segment in enumerate(segments):
        if segment.load_timestamp_max() >= expired_before_ms or not segment.size_bytes:
            return count
    return len(segments)


def remove_expired(files: Files, directory: Path, pending: PendingWrites, segments: Sequence[Segment]) -> None:
    """Remove segments at the start of a log, so that a crash finds the log whole, whenever it happens."""
    # From now on the log alone no longer tells what the writers have done.
    pending.sync_snapshot()
    files.sync_directory(directory)
    for segment in segments:
        segment.remove()
        # One after the other: a log whose middle is gone and whose beginning came back could not be opened.
        files.sync_directory(directory)


def sync_segments(files: Files, log: VisibleLog, segments: Sequence[Segment], *, is_first: bool) -> None:
    """Make segments durable, and the names in their directory; the first time the directories above it as well."""
    for segment in segments:
        try:
            files.sync(segment.path)
        except FileNotFoundError:
            # It may have expired meanwhile.
            if segment.base_offset >= log.offset_start:
                raise
    files.sync_directory(log.directory)
    if is_first:
        for directory in directories_above(log.directory, log.bucket):
            files.sync_directory(directory)


def remove_log(files: Files, directory: Path) -> None:
    """Remove the directory of a log. A missing one is not an error."""
    # The new name first: whoever sees the directory after a crash knows that it was to go.
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    files.remove_tree(doomed)
    if files.exists(directory):
        files.rename(directory, doomed)
        files.remove_tree(doomed)
