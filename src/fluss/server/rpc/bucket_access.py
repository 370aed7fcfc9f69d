"""How requests find their tables and buckets, if the sender may have them, and what else they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError
from fluss.net.request_handler import RequestContext
from fluss.schema.acl import AclOperation, AclResource
from fluss.schema.table import TableBucket
from fluss.schema.table_options import KV_FORMAT_VERSION, LAKE_FORMAT
from fluss.server.authorizer import Authorizer
from fluss.server.kv.batches import ACKS_ALL
from fluss.server.model import CatalogView, Table
from fluss.server.tablet.buckets import HostedBucket, HostedTable, not_hosted, unknown_bucket
from fluss.server.tablet.fetch_memory import FetchMemory, ReadTurns
from fluss.server.tablet.purgatory import FetchPurgatory

_ACKS: Final = (ACKS_ALL, 0, 1)
_OWN_KEY_ENCODING_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class ReadResources:
    """What requests that read buckets share: how they find them, and what reading takes."""

    access: BucketAccess
    # Of the answers until they have left, and the turns in which it is taken.
    memory: FetchMemory
    turns: ReadTurns
    # Where answers that say "try again" are held back.
    purgatory: FetchPurgatory
    # The threads that read logs and stores.
    readers: Executor


class BucketAccess:
    """Finds what requests ask for. Belongs to the event loop."""

    def __init__(self, tables: Mapping[int, HostedTable], catalog: CatalogView, authorizer: Authorizer) -> None:
        self._tables = tables
        self._catalog = catalog
        self._authorizer = authorizer

    def table(self, context: RequestContext, table_id: int, operation: AclOperation) -> HostedTable | None:
        """Return a table, None if there is none that the sender may see; raise code 48 if it may not do this with it.

        A table of which nothing is here yet has no buckets, see ``bucket``.
        """
        known = self._catalog.table_by_id(table_id)
        if known is None or not self._authorizer.finds(context, operation, AclResource.table(known.path)):
            return None
        hosted = self._tables.get(table_id)
        return HostedTable(known) if hosted is None else hosted

    def bucket(
        self, table: HostedTable | None, table_id: int, partition_id: int | None, bucket_id: int
    ) -> HostedBucket:
        """Return a bucket, whose log need not be open; raise code 21 if there is none, and 12 if it is not here yet."""
        group = None if table is None else table.groups.get(partition_id)
        if group is not None:
            hosted = group.in_use.get(bucket_id)
            if hosted is not None:
                return hosted
            if 0 <= bucket_id < group.bucket_count:
                return group[bucket_id]
        bucket = TableBucket.new_with_partition(table_id, partition_id, bucket_id)
        raise not_hosted(bucket) if table is not None and self._exists(bucket) else unknown_bucket(bucket)

    def _exists(self, bucket: TableBucket) -> bool:
        table = self._catalog.table_by_id(bucket.table_id)
        if table is None or not 0 <= bucket.bucket_id < table.bucket_count:
            return False
        if bucket.partition_id is None:
            return not table.is_partitioned
        partition = self._catalog.partition_by_id(bucket.partition_id)
        return partition is not None and partition.table_id == table.table_id


def check_key_version(table: Table, api_version: int) -> None:
    """Refuse (code 2) a PutKv, Lookup or PrefixLookup of a client that would encode keys of this table wrongly.

    Version 0 of these requests comes from clients that know one encoding for the keys of lake tables. Tables of key
    format version 2 whose bucket key is not their whole primary key have another one.
    """
    if api_version > 0:
        return
    descriptor = table.descriptor
    properties = descriptor.properties
    if (
        LAKE_FORMAT.of(properties) is not None
        and KV_FORMAT_VERSION.of(properties) == _OWN_KEY_ENCODING_VERSION
        and descriptor.bucket_keys != descriptor.physical_primary_keys
    ):
        raise FlussError(
            f"Table {table.path} has keys of format version {_OWN_KEY_ENCODING_VERSION}, which this client does not "
            "know; use a newer client",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def check_acks(acks: int) -> None:
    """Refuse an unknown number of acknowledgements (code 18)."""
    if acks not in _ACKS:
        raise FlussError(f"Invalid required acks {acks}: write -1 (all), 1 or 0", ErrorCode.INVALID_REQUIRED_ACKS)


def is_try_again(failures: Iterable[FlussError | None]) -> bool:
    """Whether an answer says nothing but "try again": all buckets have failed, and each with a retriable code."""
    is_any = False
    for failure in failures:
        if failure is None or failure.error_code not in RETRIABLE_CODES:
            return False
        is_any = True
    return is_any
