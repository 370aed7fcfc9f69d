"""What a server notes about its logs, so that the next start is quick.

| file in the data directory             | content                                                            |
|----------------------------------------|--------------------------------------------------------------------|
| ``recovery-point-offset-checkpoint``     | per bucket: everything below this offset is on the disk for certain |
| ``high-watermark-checkpoint``            | per bucket: everything below this offset was visible to readers     |
| ``.fluss_cleanshutdown``                 | all logs were closed in order, there is nothing to recover          |

All three may be missing or damaged: then more is looked at than necessary, and nothing is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from fluss.errors import FlussError
from fluss.schema.table import TableBucket
from fluss.storage.log.checkpoint_file import decode_checkpoint, encode_checkpoint
from fluss.storage.log.file_names import CLEAN_SHUTDOWN_MARKER, HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from fluss.storage.vfs import Files

logger = logging.getLogger(__name__)


class Checkpoints:
    """Reads and writes the files. All methods block."""

    def __init__(self, data_dir: Path, files: Files) -> None:
        self._data_dir = data_dir
        self._files = files

    def take_clean_shutdown_marker(self) -> bool:
        """Tell whether the last shutdown was clean. From now on it was not, until the next one is."""
        marker = self._data_dir / CLEAN_SHUTDOWN_MARKER
        if not self._files.exists(marker):
            return False
        self._files.remove(marker)
        self._files.sync_directory(self._data_dir)
        return True

    def write_clean_shutdown_marker(self) -> None:
        self._files.replace(self._data_dir / CLEAN_SHUTDOWN_MARKER, b"")

    def read_recovery_offsets(self) -> dict[TableBucket, int]:
        """Return the recovery offsets; none if they are not known."""
        path = self._data_dir / RECOVERY_POINT_CHECKPOINT
        if not self._files.exists(path):
            return {}
        try:
            return decode_checkpoint(self._files.read(path, 0, self._files.size(path)), str(path))
        except (FlussError, OSError) as error:
            logger.warning("the recovery offsets are not known, all logs are read from their start: %s", error)
            return {}

    def write(self, recovery_offsets: Mapping[TableBucket, int], high_watermarks: Mapping[TableBucket, int]) -> None:
        """Replace both checkpoints, each of them all or nothing."""
        self._files.replace(self._data_dir / RECOVERY_POINT_CHECKPOINT, encode_checkpoint(recovery_offsets))
        self._files.replace(self._data_dir / HIGH_WATERMARK_CHECKPOINT, encode_checkpoint(high_watermarks))
