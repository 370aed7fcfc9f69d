"""Partitions that rows belong to and that do not exist: how a writer makes sure of it, what it says, and creates them.

Servers learn of a new partition one after the other, and any of them may be asked for metadata. The coordinator knows
all of them: what it does not know either will not appear by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Final

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.shared_calls import SharedCalls
from fluss.client.kernel.table_calls import partition_infos
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.convert import pb_partition_spec, pb_table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.row.partition_names import TimePattern, parse_partition_value, partition_form
from fluss.schema.table import (
    PartitionSpec,
    TableInfo,
    TablePath,
    check_partition_spec,
    ordered_values,
    spec_of_partition_name,
)
from fluss.schema.table_options import (
    AUTO_PARTITION_ENABLED,
    AUTO_PARTITION_KEY,
    AUTO_PARTITION_TIME_FORMAT,
    AUTO_PARTITION_TIME_UNIT,
)

# The newest names are the ones that a user compares with.
_NAMES_SHOWN_MAX: Final = 10

logger = logging.getLogger(__name__)


class MissingPartitions:
    """Looks for partitions that a tablet server does not know. Belongs to the event loop of the cluster.

    Callers that miss partitions of a table at the same time share a request.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls = SharedCalls()

    async def require(self, info: TableInfo, name: str) -> FlussError | None:
        """Return why a partition will not be there; None if the coordinator knows it, or cannot be asked.

        With ``client.writer.create-missing-partitions`` it is created. Raises what creating it failed with.
        """
        path = info.table_path
        try:
            spec = spec_of_partition_name(name, info.partition_keys)
            check_partition_spec(spec, info.partition_keys, creating=True)
        except FlussError as error:
            return FlussError(f"Rows belong to a partition of {path} that cannot be: {error.message}", error.error_code)
        if self._cluster.config.writer_create_missing_partitions:
            await create_partition(self._cluster, path, spec, ignore_if_exists=True)
            return None
        try:
            infos = await self._calls.join_next(path, partial(partition_infos, self._cluster, path))
        except FlussError as error:
            logger.debug("the coordinator cannot be asked for the partitions of %s: %s", path, error.message)
            return None
        names = sorted(known.partition_name for known in infos)
        return None if name in names else _missing(info, name, spec, names)

    async def close(self) -> None:
        """Stop asking."""
        await self._calls.close()


async def create_partition(cluster: Cluster, path: TablePath, spec: PartitionSpec, *, ignore_if_exists: bool) -> None:
    """Create a partition of a table."""
    request = pb.CreatePartitionRequest(
        table_path=pb_table_path(path),
        partition_spec=pb_partition_spec(spec),
        # The protocol calls it so; it means to ignore a partition that exists.
        ignore_if_not_exists=ignore_if_exists,
    )
    await cluster.request_coordinator(apis.CREATE_PARTITION, request)


def check_possible(info: TableInfo, spec: PartitionSpec) -> None:
    """Refuse values that no row of the table can have in its partition columns (code 43)."""
    keys = info.partition_keys
    patterns = _patterns(info)
    for key, value in zip(keys, ordered_values(spec, keys), strict=True):
        if key not in patterns:
            parse_partition_value(value, info.schema.column(key).data_type)


def _patterns(info: TableInfo) -> dict[str, str]:
    """Return how the time of a partition is written, by column, in a table that follows the clock."""
    properties, keys = info.properties, info.partition_keys
    time_format = AUTO_PARTITION_TIME_FORMAT.of(properties)
    key = keys[0] if len(keys) == 1 else AUTO_PARTITION_KEY.of(properties)
    if key is None or not (AUTO_PARTITION_ENABLED.of(properties) or time_format is not None):
        return {}
    with suppress(FlussError):
        return {key: TimePattern.of(AUTO_PARTITION_TIME_UNIT.of(properties), time_format).text}
    # Other servers may know patterns that are not known here.
    return {key: time_format or "a time"}


def _missing(info: TableInfo, name: str, spec: PartitionSpec, names: list[str]) -> FlussError:
    path = info.table_path
    call = f"admin.create_partition(fluss.TablePath({path.database_name!r}, {path.table_name!r}), {spec.spec_map!r})"
    form = partition_form({key: info.schema.column(key).data_type for key in info.partition_keys}, _patterns(info))
    return FlussError(
        f"Rows belong to partition '{name}' of {path}, which does not exist; create it first with {call}, or have "
        f"writers do so (client.writer.create-missing-partitions). {shown_partitions(names)}; names are written as "
        f"{form}",
        ErrorCode.PARTITION_NOT_EXISTS,
    )


def shown_partitions(names: Collection[str]) -> str:
    """Return a sentence that says which partitions there are: the last names, since times are often part of them."""
    if not names:
        return "The table has no partitions yet"
    shown = ", ".join(map(repr, sorted(names)[-_NAMES_SHOWN_MAX:]))
    earlier = len(names) - _NAMES_SHOWN_MAX
    return f"There are {shown}" + (f" and {earlier} before them" if earlier > 0 else "")
