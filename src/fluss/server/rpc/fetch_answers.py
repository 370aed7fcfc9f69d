"""What a fetch is told: about buckets that failed, that were read, that have no news, that are in remote storage."""

from __future__ import annotations

from collections.abc import Sequence

from fluss.errors import FlussError
from fluss.protocol.bulk_messages import FetchedBucket, FetchedTable, encode_fetched_bucket
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.tablet.buckets import HostedBucket, unknown_bucket
from fluss.server.tablet.log_reads import NOTHING
from fluss.server.tablet.purgatory import BucketCursor
from fluss.server.tablet.remote.remote_logs import RemoteRange

# What a fetch is told about the first offset of a log. Clients learn the true one from ListOffsets.
LOG_START_OFFSET_TOLD = 0


def bucket_failure(bucket_id: int, partition_id: int | None, error: FlussError) -> FetchedBucket:
    """Return the answer of a bucket that cannot be read."""
    return FetchedBucket(bucket_id, partition_id, error_code=error.error_code, error_message=error.public_message)


def remote_fetch_info(found: RemoteRange) -> pb.PbRemoteLogFetchInfo:
    """Return where the records of a bucket are in remote storage, as clients are told."""
    segments = [
        pb.PbRemoteLogSegment(
            remote_log_segment_id=segment.segment_id,
            remote_log_start_offset=segment.start_offset,
            remote_log_end_offset=segment.end_offset,
            segment_size_in_bytes=segment.size_bytes,
            max_timestamp=segment.timestamp_ms_max,
        )
        for segment in found.segments
    ]
    return pb.PbRemoteLogFetchInfo(
        remote_log_tablet_dir=found.directory,
        partition_name=found.partition_name,
        remote_log_segments=segments,
        first_start_pos=found.first_position,
    )


def table_answer(table_id: int, answers: list[FetchedBucket], cursors: Sequence[BucketCursor]) -> FetchedTable:
    """Return the answer of a table: buckets that are answered already, and those that were read."""
    idle_answers: list[bytes] = []
    for cursor in cursors:
        if cursor.outcome is None and cursor.skipped_to is None:
            log = cursor.hosted.tablet
            if log is not None:
                idle_answers.append(_idle_answer(cursor.hosted, log.offset_high_watermark))
                continue
        answers.append(_bucket_answer(cursor))
    return FetchedTable(table_id, answers, b"".join(idle_answers))


def _idle_answer(hosted: HostedBucket, high_watermark: int) -> bytes:
    """Return, encoded, what a fetch is told that finds nothing. The bucket keeps it until its high watermark moves."""
    if hosted.idle_high_watermark != high_watermark:
        hosted.idle_high_watermark = high_watermark
        hosted.idle_answer = encode_fetched_bucket(
            FetchedBucket(
                hosted.bucket.bucket_id,
                hosted.bucket.partition_id,
                high_watermark=high_watermark,
                log_start_offset=LOG_START_OFFSET_TOLD,
                records=b"",
            )
        )
    return hosted.idle_answer


def _bucket_answer(cursor: BucketCursor) -> FetchedBucket:
    bucket, outcome = cursor.hosted.bucket, cursor.outcome
    if outcome is None and cursor.hosted.tablet is None:
        outcome = unknown_bucket(bucket)
    if isinstance(outcome, FlussError):
        return bucket_failure(bucket.bucket_id, bucket.partition_id, outcome)
    data = outcome or NOTHING
    skipped_to = data.filtered_end_offset
    if skipped_to is None and not data.byte_count:
        skipped_to = cursor.skipped_to
    return FetchedBucket(
        bucket.bucket_id,
        bucket.partition_id,
        high_watermark=cursor.high_watermark,
        log_start_offset=LOG_START_OFFSET_TOLD,
        records=data.records,
        filtered_end_offset=skipped_to,
    )
