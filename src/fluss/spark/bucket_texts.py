"""Buckets as texts, for JSON and reports: ``"<partition or nothing>:<bucket>"``.

The partition is its id where a machine reads it again, and its name where people do.
"""

from __future__ import annotations

from fluss.schema.table import TableBucket


def bucket_text(partition: str | int | None, bucket_id: int) -> str:
    """Return the text of a bucket of a partition, or of a table without any."""
    return f"{'' if partition is None else partition}:{bucket_id}"


def text_of(bucket: TableBucket) -> str:
    """Return the text of a bucket, with the id of its partition."""
    return bucket_text(bucket.partition_id, bucket.bucket_id)


def bucket_of(table_id: int, text: str) -> TableBucket:
    """Read what ``text_of`` wrote; another text is a ValueError."""
    partition_id, _, bucket_id = text.partition(":")
    return TableBucket.new_with_partition(table_id, int(partition_id) if partition_id else None, int(bucket_id))
