"""The table in which consumers keep what they know: an ordinary primary-key table, and the log of its changes.

| column       | meaning                                                                              |
|--------------|--------------------------------------------------------------------------------------|
| table_name   | the table that is read, as ``database.table``; with ``consumer`` it chooses the bucket |
| consumer     | the name of the consumer                                                             |
| entry        | ``group``, ``partitions``, ``member/...`` or ``position/...``: what the row is about  |
| table_id     | of the table that is read: a table of the same name that came later has another one  |
| partition_id | of a position; null if the table has no partitions                                   |
| bucket_id    | of a position                                                                        |
| next_offset  | of a position: the offset at which the bucket is to be read on                       |
| epoch        | of a position: the epoch of the ownership that it was committed under                |
| member       | who wrote the row                                                                    |
| number       | grows with every row that a member writes, so that no two of them are equal           |
| is_release   | of a position: the member has given the bucket back                                  |
| detail       | more as JSON: who a member is, or the state of the group                             |

All rows of a consumer are in one bucket, so that their changes have one order. The row of a position is the last that
was written; whether a commit counts is decided by the order of the log (``group``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from fluss.client.admin.admin import FlussAdmin
from fluss.client.consume.group import (
    NO_PARTITION,
    Beat,
    BucketKey,
    Commit,
    Event,
    Group,
    Leave,
    Partitions,
    Reset,
    reset_from_json,
    reset_to_json,
)
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime
from fluss.client.kernel.table_calls import bucket_offsets
from fluss.client.lookup.keys_and_rows import LookupKeys
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.lookupers import Lookuper, PrefixLookuper
from fluss.client.scan.log_scanner import LogScanner
from fluss.client.scan.records import ScanRecord
from fluss.client.scan.table_scan import TableScan
from fluss.client.write.writer_client import WriterClient
from fluss.client.write.writers import UpsertWriter
from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.offsets import ChangeType, OffsetSpec
from fluss.schema.predicate import col
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket, TableInfo, TablePath
from fluss.schema.types import DataTypes

BUCKET_COUNT: Final = 16
_KEY: Final = ("table_name", "consumer", "entry")
_PREFIX: Final = _KEY[:2]
_COLUMNS: Final = {
    "table_name": DataTypes.string(),
    "consumer": DataTypes.string(),
    "entry": DataTypes.string(),
    "table_id": DataTypes.bigint(),
    "partition_id": DataTypes.bigint(),
    "bucket_id": DataTypes.int(),
    "next_offset": DataTypes.bigint(),
    "epoch": DataTypes.bigint(),
    "member": DataTypes.string(),
    "number": DataTypes.bigint(),
    "is_release": DataTypes.boolean(),
    "detail": DataTypes.string(),
}
_GROUP: Final = "group"
_PARTITIONS: Final = "partitions"
_MEMBER: Final = "member/"
_POSITION: Final = "position/"
_WRITTEN: Final = frozenset({ChangeType.Insert, ChangeType.UpdateAfter})


async def group_table_info(cluster: Cluster, runtime: Runtime, path: TablePath, *, creates: bool) -> TableInfo | None:
    """Return the table with the rows of all consumers, created if need be; None if there is none and shall be none."""
    try:
        await cluster.refresh([path])
    except FlussError as error:
        if error.error_code == ErrorCode.AUTHORIZATION_EXCEPTION:
            raise FlussError(
                f"Consumers keep their positions in {path}, which takes READ and WRITE there: {error.message}",
                error.error_code,
            ) from error
        if error.error_code not in (ErrorCode.TABLE_NOT_EXIST, ErrorCode.DATABASE_NOT_EXIST):
            raise
        if not creates:
            return None
        await _create(cluster, runtime, path)
        await cluster.refresh([path])
    info = cluster.table_info(path)
    if info is None:
        raise FlussError(f"{path}, which keeps the positions of consumers, was dropped", ErrorCode.TABLE_NOT_EXIST)
    if set(_COLUMNS) - set(info.schema.column_names) or info.primary_keys != list(_KEY):
        raise FlussError(
            f"{path} is not a table that positions of consumers can be kept in; choose another name by consumer.table"
        )
    return info


async def _create(cluster: Cluster, runtime: Runtime, path: TablePath) -> None:
    builder = Schema.builder()
    for name, data_type in _COLUMNS.items():
        builder = builder.column(name, data_type)
    descriptor = TableDescriptor(
        builder.primary_key(list(_KEY)).build(),
        bucket_count=BUCKET_COUNT,
        bucket_keys=list(_PREFIX),
        comment="Positions and members of consumers",
    )
    try:
        await FlussAdmin._create(cluster, runtime).create_table(path, descriptor, ignore_if_exists=True)
    except FlussError as error:
        raise FlussError(
            f"{path}, which keeps the positions of consumers, cannot be created: {error.message}; have it created by "
            "a user who may, or choose another name by consumer.table",
            error.error_code,
        ) from error


@dataclass(frozen=True, slots=True)
class GroupName:
    """A consumer of a table, as its rows name it."""

    table_name: str
    consumer: str


class GroupRows:
    """The rows of one consumer: reads, writes and follows them. Belongs to the event loop of the library.

    What it writes is sent at once, durably, and by a writer of its own: rows of users that wait for a server or for
    memory do not hold it up.
    """

    def __init__(self, cluster: Cluster, runtime: Runtime, info: TableInfo, name: GroupName) -> None:
        self.info = info
        self.name = name
        self._cluster = cluster
        self._runtime = runtime
        self._writer_client = WriterClient(cluster, runtime)
        # A member waits for a server that is away, however users want their rows to be written.
        self._writer_client.sender_settings = replace(
            self._writer_client.sender_settings, acks=-1, is_idempotent=True, in_flight_max=1, retries=INT32_MAX
        )
        self._lookup_client = LookupClient(cluster, runtime)
        # All members have to find the same bucket, however they are configured.
        self._writer_client.hash_variant = self._lookup_client.hash_variant = "java"
        self._writer = UpsertWriter(self._writer_client, info)
        located = LookupKeys(info, _KEY, "java").locate([name.table_name, name.consumer, _GROUP])
        self.bucket = TableBucket(info.table_id, located.bucket_id)
        self._number = 0

    async def close(self) -> None:
        await self._lookup_client.close()
        await self._writer_client.close(0.0)

    # Reading

    async def load(self) -> tuple[Group, int]:
        """Return the last group that was written down, and the offset that the log ends at. It may be void."""
        offset_end = await self.end()
        lookuper = Lookuper(self._lookup_client, self.info)
        row = await lookuper.lookup([self.name.table_name, self.name.consumer, _GROUP])
        if row is None:
            return Group(self.info.table_id, offset_end), offset_end
        with _readable(row):
            group = Group.from_json(self.info.table_id, row["detail"])
        earliest = await bucket_offsets(self._cluster, self.info.table_path, [self.bucket], OffsetSpec.earliest())
        if group.offset < earliest[self.bucket] or group.offset > offset_end:
            # The log does not say any more what has happened since. A void group is reset.
            return Group(self.info.table_id, offset_end), offset_end
        return group, offset_end

    async def end(self) -> int:
        """Return the offset that the next record of the log will get."""
        latest = await bucket_offsets(self._cluster, self.info.table_path, [self.bucket], OffsetSpec.latest())
        return latest[self.bucket]

    async def left_behind(self, table_id: int) -> tuple[dict[BucketKey, int], list[str]]:
        """Return positions and members as rows say them: what is left of a group whose log is gone."""
        lookuper = PrefixLookuper(self._lookup_client, self.info, _PREFIX)
        positions: dict[BucketKey, int] = {}
        members: list[str] = []
        rows = await lookuper.lookup([self.name.table_name, self.name.consumer])
        # The state of the group first: positions that have rows of their own are newer.
        for row in sorted(rows, key=lambda row: row["entry"] != _GROUP):
            if row["entry"] == _GROUP:
                with _readable(row):
                    kept = reset_from_json(row["detail"]) or Group.from_json(self.info.table_id, row["detail"])
                if kept.table_id == table_id:
                    positions |= kept.positions
            elif row["entry"].startswith(_MEMBER):
                members.append(row["member"])
            elif row["table_id"] == table_id and row["next_offset"] is not None:
                positions[_bucket_key(row)] = row["next_offset"]
        return positions, members

    def tail(self, offset: int) -> LogScanner:
        """Return a scanner of the records of this consumer from an offset on."""
        scan = TableScan(self._cluster, self._runtime, self.info)
        scan.filter((col("table_name") == self.name.table_name) & (col("consumer") == self.name.consumer))
        scanner = scan._log_scanner(is_batch_scanner=False)
        scanner.subscribe(self.bucket.bucket_id, offset)
        return scanner

    # Writing

    def write_reset(self, reset: Reset, member: str) -> None:
        self._upsert(_GROUP, member, table_id=reset.table_id, detail=reset_to_json(reset))

    def write_group(self, group: Group, member: str) -> None:
        self._upsert(_GROUP, member, table_id=group.table_id, detail=group.to_json())

    def write_partitions(self, table_id: int, partition_ids: Iterable[int], member: str) -> None:
        self._upsert(_PARTITIONS, member, table_id=table_id, detail=json.dumps(list(partition_ids)))

    def write_beat(self, member: str, about: Mapping[str, Any], *, is_join: bool) -> None:
        self._upsert(_MEMBER + member, member, detail=json.dumps({**about, "join": is_join}))

    def write_commit(
        self,
        table_id: int,
        member: str,
        positions: Mapping[BucketKey, tuple[int, int | None]],
        *,
        is_release: bool = False,
    ) -> set[int]:
        """Write positions, each with the epoch of its bucket, and return the numbers of the rows."""
        numbers = set()
        for key, (epoch, offset_next) in positions.items():
            numbers.add(
                self._put(
                    _position_entry(key),
                    member,
                    table_id=table_id,
                    partition_id=None if key.partition_id == NO_PARTITION else key.partition_id,
                    bucket_id=key.bucket_id,
                    next_offset=offset_next,
                    epoch=epoch,
                    is_release=is_release,
                )
            )
        self._send()
        return numbers

    def delete_member(self, member: str) -> None:
        self._delete(_MEMBER + member)
        self._send()

    def delete_positions(self, keys: Iterable[BucketKey]) -> None:
        for key in keys:
            self._delete(_position_entry(key))
        self._send()

    async def delete_all(self) -> None:
        """Delete every row of the consumer."""
        lookuper = PrefixLookuper(self._lookup_client, self.info, _PREFIX)
        for row in await lookuper.lookup([self.name.table_name, self.name.consumer]):
            self._delete(row["entry"])
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything that was written is stored; raises the first failure."""
        await self._writer.flush()

    async def check(self) -> None:
        """Raise what has kept rows from being stored, if anything has. While a server is away, nothing has yet."""
        if self._writer_client.failure_count:
            await self.flush()

    def _upsert(self, entry: str, member: str, **values: Any) -> None:
        self._put(entry, member, **values)
        self._send()

    def _put(self, entry: str, member: str, **values: Any) -> int:
        self._number += 1
        self._writer.upsert({**self._key(entry), "member": member, "number": self._number, **values})
        return self._number

    def _delete(self, entry: str) -> None:
        self._writer.delete(self._key(entry))

    def _send(self) -> None:
        self._writer_client.accumulator.close_all()

    def _key(self, entry: str) -> dict[str, str]:
        return {"table_name": self.name.table_name, "consumer": self.name.consumer, "entry": entry}


@contextmanager
def _readable(row: Mapping[str, Any]) -> Iterator[None]:
    """Explain what goes wrong inside: any client with the right to write to the table may have written anything."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise FlussError(
            f"The row '{row['entry']}' of consumer '{row['consumer']}' of {row['table_name']} was not written by a "
            f"consumer ({type(error).__name__}); drop the consumer with force=True, and find out who writes there"
        ) from error


def events_of(records: Iterable[ScanRecord]) -> Iterator[tuple[int, Event]]:
    """Return what records of the log say, each with its offset."""
    for record in records:
        with _readable(record.row):
            event = _event_of(record.change_type, record.row)
        if event is not None:
            yield record.offset, event


def _event_of(change_type: ChangeType, row: Mapping[str, Any]) -> Event | None:
    entry: str = row["entry"]
    if entry.startswith(_MEMBER):
        if change_type == ChangeType.Delete:
            return Leave(row["member"])
        if change_type in _WRITTEN:
            return Beat(row["member"], json.loads(row["detail"])["join"])
        return None
    if change_type not in _WRITTEN:
        return None
    if entry == _GROUP:
        return reset_from_json(row["detail"])
    if entry == _PARTITIONS:
        return Partitions(row["table_id"], tuple(json.loads(row["detail"])))
    return Commit(
        _bucket_key(row), row["member"], row["epoch"], row["next_offset"], row["is_release"], number=row["number"]
    )


def _position_entry(key: BucketKey) -> str:
    partition = "" if key.partition_id == NO_PARTITION else f"{key.partition_id}/"
    return f"{_POSITION}{partition}{key.bucket_id}"


def _bucket_key(row: Mapping[str, Any]) -> BucketKey:
    partition_id = row["partition_id"]
    return BucketKey(NO_PARTITION if partition_id is None else partition_id, row["bucket_id"])
