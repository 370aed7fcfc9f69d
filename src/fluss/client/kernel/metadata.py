"""What a client knows about a cluster: its servers, the tables it has met, and the leaders of their buckets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.protocol.convert import server_node, table_info, table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.cluster_info import ServerNode, ServerType
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket, TableInfo, TablePath

# Tables that are told apart from others with the same id, also when they are forgotten otherwise.
_IDENTITIES_MAX: Final = 10_000


@dataclass(slots=True)
class _KnownTable:
    info: TableInfo
    # The JSON the info was made of: most answers repeat it, and need not be read again.
    table_json: bytes
    schemas: dict[int, Schema] = field(default_factory=dict)
    partition_ids: dict[str, int] = field(default_factory=dict)
    # Leaders by bucket id, per partition; None stands for the table without partitions.
    leaders: dict[int | None, dict[int, int]] = field(default_factory=dict)


class Metadata:
    """Merges metadata answers. New facts replace old ones; what an answer does not mention stays.

    A table that was dropped and created again has a new id: with it, everything known about the old one goes. A table
    that has the id of another one is of another cluster, behind the same address: a server was started with another
    data directory. Rows of the one must not reach the other, so nothing is known about such an id any more.
    """

    def __init__(self) -> None:
        self.coordinator: ServerNode | None = None
        self.tablet_servers: dict[int, ServerNode] = {}
        self._tables: dict[TablePath, _KnownTable] = {}
        self._by_id: dict[int, _KnownTable] = {}
        self._partition_names: dict[int, str] = {}
        # What each id stood for when it was first met: a name, and when it was created.
        self._identities: dict[int, tuple[TablePath, int]] = {}
        self._reused_ids: set[int] = set()

    def merge(self, response: pb.MetadataResponse) -> list[TablePath]:
        """Take in an answer. Every answer lists all living tablet servers, so that list is replaced.

        Returns the tables about which it says less than is known, and was not heard: either it was on its way while
        they were created anew, or they are those of another cluster.
        """
        if response.HasField("coordinator_server"):
            self.coordinator = server_node(response.coordinator_server, ServerType.COORDINATOR_SERVER)
        nodes = (server_node(node, ServerType.TABLET_SERVER) for node in response.tablet_servers)
        self.tablet_servers = {node.id: node for node in nodes}
        doubtful = [table_path(table.table_path) for table in response.table_metadata if not self._merge_table(table)]
        for partition in response.partition_metadata:
            self._merge_partition(partition)
        return doubtful

    def _merge_table(self, table: pb.PbTableMetadata) -> bool:
        """Take in what is said about a table; False if something newer is known."""
        path = table_path(table.table_path)
        if self._is_reused(table.table_id, path, table.created_time):
            return True
        known = self._tables.get(path)
        if known is not None and known.info.table_id > table.table_id and known.info.created_time >= table.created_time:
            # Ids and times only grow.
            return False
        if known is not None and known.info.table_id != table.table_id:
            self.forget_table(path)
            known = None
        if known is None:
            known = self._tables[path] = _KnownTable(table_info(path, table), table.table_json)
            self._by_id[table.table_id] = known
        elif not _is_same(known, table):
            known.info, known.table_json = table_info(path, table), table.table_json
        known.schemas[table.schema_id] = known.info.schema
        known.leaders[None] = _leaders(table.bucket_metadata)
        return True

    def _is_reused(self, table_id: int, path: TablePath, created_time: int) -> bool:
        """Whether an id stands for another table than before; then whatever is known about both goes."""
        identity = (path, created_time)
        previous = self._identities.get(table_id)
        if previous is None:
            while len(self._identities) >= _IDENTITIES_MAX:
                del self._identities[next(iter(self._identities))]
            self._identities[table_id] = identity
        elif previous != identity:
            self._reused_ids.add(table_id)
            self._identities[table_id] = identity
        if table_id not in self._reused_ids:
            return False
        self.forget_table(path)
        if (other := self._by_id.get(table_id)) is not None:
            self.forget_table(other.info.table_path)
        return True

    def check_table(self, path: TablePath, table_id: int) -> None:
        """Refuse a table with the id of another one."""
        if table_id in self._reused_ids:
            raise FlussError(
                f"{path} is another table than the one that had the id {table_id} before: another cluster answers at "
                "the same address, perhaps a server that was started with another data directory; "
                "create a new connection to use its tables",
                ErrorCode.TABLE_NOT_EXIST,
            )

    def _merge_partition(self, partition: pb.PbPartitionMetadata) -> None:
        known = self._by_id.get(partition.table_id)
        if known is None:
            # An answer about a table that has been created anew since.
            return
        previous_id = known.partition_ids.get(partition.partition_name)
        if previous_id is not None and previous_id != partition.partition_id:
            self._forget_partition(known, previous_id)
        known.partition_ids[partition.partition_name] = partition.partition_id
        known.leaders[partition.partition_id] = _leaders(partition.bucket_metadata)
        self._partition_names[partition.partition_id] = partition.partition_name

    def forget_table(self, path: TablePath) -> None:
        known = self._tables.pop(path, None)
        if known is None:
            return
        del self._by_id[known.info.table_id]
        for partition_id in known.partition_ids.values():
            self._partition_names.pop(partition_id, None)

    def _forget_partition(self, known: _KnownTable, partition_id: int) -> None:
        known.leaders.pop(partition_id, None)
        self._partition_names.pop(partition_id, None)

    def forget_partition(self, path: TablePath, partition_name: str) -> None:
        known = self._tables.get(path)
        if known is not None and partition_name in known.partition_ids:
            self._forget_partition(known, known.partition_ids.pop(partition_name))

    def forget_leader(self, server_id: int) -> None:
        """Let the leaders of all buckets that a server leads be looked up again."""
        for known in self._tables.values():
            for partition_id, leaders in known.leaders.items():
                if server_id in leaders.values():
                    others = {bucket_id: leader for bucket_id, leader in leaders.items() if leader != server_id}
                    known.leaders[partition_id] = others

    def forget_leaders(self, table_id: int, partition_id: int | None) -> None:
        known = self._by_id.get(table_id)
        if known is not None:
            known.leaders.pop(partition_id, None)

    def table_info(self, path: TablePath) -> TableInfo | None:
        known = self._tables.get(path)
        return None if known is None else known.info

    def leader_of(self, bucket: TableBucket) -> int | None:
        """Return the id of a living tablet server; a leader that is not in the server list counts as unknown."""
        leader_id = self.named_leader_of(bucket)
        return leader_id if leader_id in self.tablet_servers else None

    def named_leader_of(self, bucket: TableBucket) -> int | None:
        """Return the id of the leader that was last named, also if no such server is known."""
        known = self._by_id.get(bucket.table_id)
        return None if known is None else known.leaders.get(bucket.partition_id, {}).get(bucket.bucket_id)

    def has_all_leaders(self, path: TablePath, partition_id: int | None) -> bool:
        """Whether the leader of every bucket of a table, or of one of its partitions, is known."""
        known = self._tables.get(path)
        if known is None:
            return False
        leaders = known.leaders.get(partition_id, {})
        return all(leaders.get(bucket_id) in self.tablet_servers for bucket_id in range(known.info.num_buckets))

    def partition_id(self, path: TablePath, partition_name: str) -> int | None:
        known = self._tables.get(path)
        return None if known is None else known.partition_ids.get(partition_name)

    def partition_name(self, partition_id: int) -> str | None:
        return self._partition_names.get(partition_id)

    def schema(self, path: TablePath, schema_id: int) -> Schema | None:
        known = self._tables.get(path)
        return None if known is None else known.schemas.get(schema_id)

    def put_schema(self, path: TablePath, schema_id: int, schema: Schema) -> None:
        known = self._tables.get(path)
        if known is not None:
            known.schemas[schema_id] = schema


def _is_same(known: _KnownTable, table: pb.PbTableMetadata) -> bool:
    info = known.info
    return (info.schema_id, info.modified_time, known.table_json) == (
        table.schema_id,
        table.modified_time,
        table.table_json,
    )


def _leaders(buckets: Iterable[pb.PbBucketMetadata]) -> dict[int, int]:
    # An absent leader id reads as 0, which is a server id; some servers say -1 instead.
    return {
        bucket.bucket_id: bucket.leader_id
        for bucket in buckets
        if bucket.HasField("leader_id") and bucket.leader_id >= 0
    }
