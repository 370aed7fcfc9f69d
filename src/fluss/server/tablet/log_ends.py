"""Where the logs of a partition end that is being dropped: the last thing that anyone can know about them.

Most logs need not be opened for that. What was closed in order has its end noted, and what is not on the disk ends at
0. Only logs that a crash left behind, and that nothing has asked for since, are opened.
"""

from __future__ import annotations

from typing import Final

from fluss.server.tablet.buckets import CLOSED_IN_ORDER, LEFT_BEHIND, NOTHING_ON_DISK, BucketGroup, open_all

UNKNOWN_END: Final = -1


async def know_log_ends(group: BucketGroup, *, was_clean: bool) -> None:
    """Open what has to be opened so that ``log_ends`` can tell. ``was_clean`` is how the last run of the server ended.

    The logs may be closed again at once, which notes where they end.
    """
    if group.found is None:
        # Opening any bucket makes it known what is on the disk.
        await open_all((group[0],), is_use=False)
    unknown = [number for number, end in enumerate(log_ends(group, was_clean=was_clean)) if end == UNKNOWN_END]
    await open_all([group[number] for number in unknown], is_use=False)


def log_ends(group: BucketGroup, *, was_clean: bool) -> tuple[int, ...]:
    """Return the end of each log: the offset that the next record would have had, or UNKNOWN_END.

    Records that are not acknowledged yet count, too: their writers may believe in them later.
    """
    return tuple(_log_end(group, number, was_clean=was_clean) for number in range(group.bucket_count))


def _log_end(group: BucketGroup, bucket_id: int, *, was_clean: bool) -> int:
    bucket = group.in_use.get(bucket_id)
    if bucket is not None:
        return UNKNOWN_END if bucket.tablet is None else bucket.tablet.offset_next
    if group.found is None:
        return UNKNOWN_END
    state = group.found[bucket_id]
    noted = 0 if group.high_watermarks is None else group.high_watermarks[bucket_id]
    if state == NOTHING_ON_DISK and not group.recovery_offset(bucket_id):
        return 0
    if state == CLOSED_IN_ORDER or (state == LEFT_BEHIND and was_clean):
        return noted
    return UNKNOWN_END
