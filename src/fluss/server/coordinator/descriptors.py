"""Table descriptors that differ in some parts from given ones."""

from __future__ import annotations

from collections.abc import Mapping

from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema


def changed(
    descriptor: TableDescriptor,
    *,
    schema: Schema | None = None,
    bucket_count: int | None = None,
    properties: Mapping[str, str] | None = None,
    custom_properties: Mapping[str, str] | None = None,
) -> TableDescriptor:
    """Return a descriptor with other parts; what is None stays as it is."""
    return TableDescriptor(
        descriptor.schema if schema is None else schema,
        partition_keys=descriptor.partition_keys,
        bucket_count=descriptor.bucket_count if bucket_count is None else bucket_count,
        bucket_keys=descriptor.bucket_keys,
        comment=descriptor.comment,
        properties=descriptor.properties if properties is None else properties,
        custom_properties=descriptor.custom_properties if custom_properties is None else custom_properties,
    )
