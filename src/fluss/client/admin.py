"""Administration of a cluster: databases, tables, partitions, offsets, rights and servers."""

from __future__ import annotations

from fluss.client.admin_acls import AclAdmin
from fluss.client.admin_cluster import ClusterAdmin
from fluss.client.admin_databases import DatabaseAdmin
from fluss.client.admin_offsets import OffsetAdmin
from fluss.client.admin_tables import TableAdmin
from fluss.client.awaitables import AwaitsItself
from fluss.client.cluster import Cluster
from fluss.client.runtime import Runtime


class FlussAdmin(DatabaseAdmin, TableAdmin, OffsetAdmin, AclAdmin, ClusterAdmin, AwaitsItself):
    """Creates, describes and drops whatever a cluster holds. Get it from ``FlussConnection.get_admin()``.

    Every method is a coroutine that may be awaited on any event loop. What the server refuses is a ``FlussError``
    with the server's code. A coordinator that has moved or restarted is found again.
    """

    @classmethod
    def _create(cls, cluster: Cluster, runtime: Runtime) -> FlussAdmin:
        return cls._with_fields(_cluster=cluster, _runtime=runtime)

    def __repr__(self) -> str:
        return "FlussAdmin()"
