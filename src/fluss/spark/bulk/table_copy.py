"""Tables from one place to another, by tasks of Spark or by this process.

Each table is a ``TableCopy``: its target is made, its rows are copied, both are compared, and a note says it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar

from fluss import FlussTable
from fluss.client.bulk import (
    named_buckets_of,
    new_writer_id,
    offsets_of,
    only_in_lake_of,
    partitions_of,
    row_counts_of,
    wait_for,
)
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import estimated_row_bytes
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableInfo, TablePath, spec_of_partition_name
from fluss.schema.table_options import (
    KV_STANDBY_REPLICA_ENABLED,
    LAKE_PREFIX,
    REPLICATION_FACTOR,
    TABLE_OPTIONS,
    TABLE_PREFIX,
)
from fluss.spark.bulk.copy_work import BucketPair, CheckWork, CopyWork, TableRef
from fluss.spark.bulk.files import piece_bytes_for
from fluss.spark.bulk.reports import BucketCheck, CopyReport, Listener, TableCopyReport
from fluss.spark.bulk.states import STATE_PROPERTY, CopyState
from fluss.spark.bulk.task_results import BulkTaskResult
from fluss.spark.connections import await_table, open_connection
from fluss.spark.naming import table_path
from fluss.spark.read.planner import Split, pack

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT", bound=BulkTaskResult)

# Small buckets share a task.
_TASK_BYTES: Final = 64 * 1024 * 1024
_TASKS_MAX: Final = 10_000
# Clusters decide by themselves how many replicas they have, and older ones know nothing of standby replicas.
_NOT_COPIED: Final = frozenset({REPLICATION_FACTOR.key, KV_STANDBY_REPLICA_ENABLED.key})
# Servers forget writers after some days. Until then it is safer to go on under the same id.
_WRITER_AGE_MS_MAX: Final = 24 * 3600 * 1000
# Counting the rows of the target takes a request or more for each partition.
_COUNT_INTERVAL_S: Final = 1.0
_SHOWN_MAX: Final = 5


class CopyTasks(Protocol):
    """Does the work of a copy, somewhere."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        ...

    def run(
        self,
        what: str,
        work: Callable[[ItemT], ResultT],
        items: Sequence[ItemT],
        weights: Sequence[int],
        *,
        rows_known: int | None,
        rows_before: int = 0,
        listener: Listener,
        rows_done: Callable[[], int] | None = None,
    ) -> list[ResultT]:
        """Do something with every item, and return the results in their order."""
        ...


def copy_tables(
    tasks: CopyTasks,
    source_settings: Mapping[str, str],
    source: str,
    target_settings: Mapping[str, str],
    target: str,
    *,
    tables: Sequence[str] | None,
    properties: Mapping[str, str | None],
    verify: bool,
    listener: Listener,
) -> CopyReport:
    """Copy a table or a database; see ``fluss.spark.bulk.copy``."""
    started_s = time.monotonic()
    pairs = _pairs(source_settings, source, target, tables)
    if source_settings == target_settings and any(from_path == to_path for from_path, to_path in pairs):
        raise FlussError(f"{source} cannot be copied onto itself; give another name or a target_cluster")
    copies = [
        TableCopy(tasks, source_settings, source_path, target_settings, target_path, dict(properties), verify, listener)
        for source_path, target_path in pairs
    ]
    _prepare_databases(source_settings, target_settings, pairs)
    for each in copies:
        # Refused before the first table is copied.
        each.check()
    reports = tuple(each.run() for each in copies)
    return CopyReport(reports, time.monotonic() - started_s)


def _pairs(
    settings: Mapping[str, str], source: str, target: str, tables: Sequence[str] | None
) -> list[tuple[TablePath, TablePath]]:
    """Return which table is copied to which."""
    if ("." in source) != ("." in target):
        raise FlussError(f"A table is copied to a table and a database to a database, not {source!r} to {target!r}")
    if "." in source:
        if tables is not None:
            raise FlussError(f"{source!r} is one table; 'tables' chooses some of a database")
        return [(table_path(source), table_path(target))]
    admin = open_connection(settings).get_admin()
    names = sorted(wait_for(admin.list_tables(source)))
    for name in tables or ():
        if name not in names:
            raise FlussError(f"There is no table '{name}' in the database '{source}'")
    chosen = names if tables is None else tables
    pairs = [(TablePath(source, name), TablePath(target, name)) for name in chosen]
    for path, _ in pairs:
        # Refused before the first table is copied.
        check_can_be_copied(wait_for(admin.get_table_info(path)))
    return pairs


def _prepare_databases(
    source: Mapping[str, str], target: Mapping[str, str], pairs: Sequence[tuple[TablePath, TablePath]]
) -> None:
    """Create the databases that the target does not have, as they are in the source."""
    names = {to_path.database_name: from_path.database_name for from_path, to_path in pairs}
    admin = open_connection(target).get_admin()
    for name, source_name in names.items():
        if not wait_for(admin.database_exists(name)):
            found = wait_for(open_connection(source).get_admin().get_database_info(source_name))
            wait_for(admin.create_database(name, found.database_descriptor, ignore_if_exists=True))


# One table


@dataclass(frozen=True)
class TableCopy:
    """A copy of one table to another place. ``properties`` replace those of the source, None removes one."""

    tasks: CopyTasks = field(repr=False)
    source_settings: Mapping[str, str] = field(repr=False)
    source_path: TablePath
    target_settings: Mapping[str, str] = field(repr=False)
    target_path: TablePath
    properties: Mapping[str, str | None]
    is_verified: bool
    listener: Listener
    clock: Callable[[], float] = time.time

    def check(self) -> None:
        """Refuse a table that would be copied in part, unless it is copied already, or on its way."""
        source = await_table(self.source_settings, self.source_path)
        check_can_be_copied(source.get_table_info())
        if self._found(source) is None:
            check_all_in_fluss(source)

    def run(self) -> TableCopyReport:
        """Copy what is not there yet: of the rows that the source had when the copy began."""
        started_s = time.monotonic()
        source = await_table(self.source_settings, self.source_path)
        target, state = self._prepared(source)
        partition_count = len(state.ranges) if source.get_table_info().is_partitioned() else 0
        if state.rows_finished is not None:
            rows = rows_before = state.rows_finished
            checks = None
        else:
            buckets = self._bucket_pairs(source, target, state)
            rows_before = _row_count(target, buckets)
            rows = self._copy(source, target, state, buckets, rows_before)
            checks = self._compare(source, target, buckets, rows) if self.is_verified else None
            self._save(state.finished(rows))
        seconds = time.monotonic() - started_s
        names = str(self.source_path), str(self.target_path)
        return TableCopyReport(*names, partition_count, rows, rows_before, checks, seconds)

    # The target

    def _prepared(self, source: FlussTable) -> tuple[FlussTable, CopyState]:
        """Return the target and what is to be copied: as an earlier run has left it, or new."""
        target, state = self._found(source) or self._created(source)
        now_ms = int(self.clock() * 1000)
        if not state.is_finished and now_ms - state.writer_since_ms > _WRITER_AGE_MS_MAX:
            state = state.with_writer(new_writer_id(target), now_ms)
            self._save(state)
        return target, state

    def _found(self, source: FlussTable) -> tuple[FlussTable, CopyState] | None:
        """Return the target of an earlier run, None if there is no such table."""
        try:
            target = await_table(self.target_settings, self.target_path)
        except FlussError as error:
            if error.error_code != ErrorCode.TABLE_NOT_EXIST:
                raise
            return None
        text = target.get_table_info().custom_properties.get(STATE_PROPERTY)
        if text is None:
            raise FlussError(
                f"{self.target_path} is there, and is no copy; choose another name, or drop it to have it created as a "
                "copy"
            )
        state = CopyState.from_text(text, str(self.target_path))
        state.check_source(source.get_table_info(), str(self.target_path))
        return target, state

    def _created(self, source: FlussTable) -> tuple[FlussTable, CopyState]:
        state = CopyState.begin(source.get_table_info(), _ranges(source))
        descriptor = _descriptor(source.get_table_info(), self.properties, state)
        admin = open_connection(self.target_settings).get_admin()
        wait_for(admin.create_table(self.target_path, descriptor))
        return await_table(self.target_settings, self.target_path), state

    def _save(self, state: CopyState) -> None:
        admin = open_connection(self.target_settings).get_admin()
        wait_for(admin.alter_table(self.target_path, set_properties={STATE_PROPERTY: state.to_text()}))

    # The rows

    def _bucket_pairs(self, source: FlussTable, target: FlussTable, state: CopyState) -> list[BucketPair]:
        """Return the buckets that have something to copy, with those that they are copied to; partitions are made."""
        info = source.get_table_info()
        source_ids: dict[str, int | None] = {"": None}
        target_ids: dict[str, int | None] = {"": None}
        if info.is_partitioned():
            self._create_partitions(target, list(state.ranges))
            source_ids = {each.partition_name: each.partition_id for each in partitions_of(source)}
            target_ids = {each.partition_name: each.partition_id for each in partitions_of(target)}
        kind: Literal["log", "rows"] = "rows" if info.has_primary_key() else "log"
        pairs = []
        for name, ranges in state.ranges.items():
            if name not in source_ids:
                raise FlussError(
                    f"Partition '{name}' of {info.table_path} was dropped before it was copied; drop "
                    f"{self.target_path} to copy anew"
                )
            for bucket_id, (start, stop) in enumerate(ranges):
                if start < stop:
                    part = Split(source_ids[name], name or None, bucket_id, start, stop, kind)
                    pairs.append(BucketPair(part, Split(target_ids[name], name or None, bucket_id, 0, 0, kind)))
        return pairs

    def _create_partitions(self, target: FlussTable, names: Sequence[str]) -> None:
        admin = open_connection(self.target_settings).get_admin()
        there = {partition.partition_name for partition in partitions_of(target)}
        for name in names:
            if name not in there:
                spec = spec_of_partition_name(name, target.get_table_info().partition_keys)
                wait_for(admin.create_partition(self.target_path, spec, ignore_if_exists=True))

    def _copy(
        self, source: FlussTable, target: FlussTable, state: CopyState, pairs: Sequence[BucketPair], rows_before: int
    ) -> int:
        source_ref, target_ref = self._refs(source, target)
        work = CopyWork(source_ref, target_ref, state.writer_ids)
        tasks = self._packed(source, pairs)
        counted = _Counted(lambda: _row_count(target, pairs))
        results = self.tasks.run(
            f"copy {self.source_path}",
            work,
            tasks,
            [_weight(task) for task in tasks],
            rows_known=_rows_known(source, pairs),
            rows_before=rows_before,
            listener=self.listener,
            rows_done=counted,
        )
        return sum(result.rows for result in results)

    def _compare(
        self, source: FlussTable, target: FlussTable, pairs: Sequence[BucketPair], rows: int
    ) -> tuple[BucketCheck, ...]:
        """Read both tables, and make sure that every bucket has the same rows."""
        buckets = [pair.target.bucket(target.get_table_info().table_id) for pair in pairs]
        stops = offsets_of(target, buckets, OffsetSpec.latest()) if buckets else {}
        ended = [
            pair._replace(target=_until(pair.target, stops[bucket]))
            for pair, bucket in zip(pairs, buckets, strict=True)
        ]
        tasks = self._packed(source, ended)
        work = CheckWork(*self._refs(source, target))
        weights = [_weight(task) for task in tasks]
        what = f"compare {self.target_path}"
        results = self.tasks.run(what, work, tasks, weights, rows_known=rows, listener=self.listener)
        found = (check for result in results for check in result.checks)
        checks = tuple(sorted(found, key=lambda check: (check.partition or "", check.bucket)))
        different = [check for check in checks if not check.is_equal]
        if different:
            shown = "; ".join(map(str, different[:_SHOWN_MAX]))
            raise FlussError(
                f"{self.target_path} is not the same as {self.source_path} in {len(different)} of {len(checks)} "
                f"buckets: {shown}. Was the target written to by somebody else? Drop it to copy anew"
            )
        return checks

    def _packed(self, source: FlussTable, pairs: Sequence[BucketPair]) -> list[tuple[BucketPair, ...]]:
        """Give buckets to tasks; a bucket stays whole, so that its rows stay in order."""
        schema = source.get_table_info().schema
        row_bytes = estimated_row_bytes(schema, schema.column_names)
        total_bytes = int(_weight(pairs) * row_bytes)
        by_split = {pair.source: pair for pair in pairs}
        tasks = pack(
            list(by_split),
            [row_bytes] * len(by_split),
            target_task_bytes=piece_bytes_for(total_bytes, self.tasks.parallelism, _TASK_BYTES),
            tasks_max=_TASKS_MAX,
            may_split=False,
        )
        return [tuple(by_split[split] for split in task) for task in tasks]

    def _refs(self, source: FlussTable, target: FlussTable) -> tuple[TableRef, TableRef]:
        return (
            TableRef(self.source_settings, self.source_path, source.get_table_info().table_id),
            TableRef(self.target_settings, self.target_path, target.get_table_info().table_id),
        )


def check_can_be_copied(info: TableInfo) -> None:
    """Refuse a table whose rows cannot be written as they are."""
    numbered = info.schema.get_auto_increment_columns()
    if numbered:
        raise FlussError(
            f"{info.table_path} numbers its rows itself, in column '{numbered[0]}', and a copy would get other "
            "numbers; export it instead"
        )


def check_all_in_fluss(source: FlussTable) -> None:
    """Refuse a table of which something is in its lake only: rows are copied from Fluss."""
    missing = only_in_lake_of(source)
    if missing:
        raise FlussError(
            f"{source.table_path} has {missing} in its lake only, and a copy takes what Fluss has; set "
            "'client.lake.read' to off to copy that and no more, or export the table, which takes all rows, and load "
            "the files"
        )


def _ranges(source: FlussTable) -> dict[str, tuple[tuple[int, int], ...]]:
    """Fix what is copied: the offsets of all buckets, by partition."""
    info = source.get_table_info()
    buckets = {bucket: name or "" for bucket, name in named_buckets_of(source).items()}
    stops = offsets_of(source, buckets, OffsetSpec.latest())
    starts = offsets_of(source, buckets, OffsetSpec.earliest())
    ranges: dict[str, list[tuple[int, int]]] = {name: [] for name in buckets.values()}
    for bucket, stop in stops.items():
        # Rows of a primary-key table do not depend on how much of its changelog is left.
        start = 0 if info.has_primary_key() else min(starts[bucket], stop)
        ranges[buckets[bucket]].append((start, stop))
    return {name: tuple(found) for name, found in ranges.items()}


def _descriptor(info: TableInfo, changes: Mapping[str, str | None], state: CopyState) -> TableDescriptor:
    """Describe the target: as the source, but for some properties."""
    properties = {key: text for key, text in info.properties.items() if not _is_of_cluster(key)}
    custom_properties = info.custom_properties
    for key, text in changes.items():
        changed = properties if key.startswith(TABLE_PREFIX) else custom_properties
        changed.pop(key, None)
        if text is not None:
            changed[key] = text
    return TableDescriptor(
        info.schema,
        partition_keys=info.partition_keys,
        bucket_count=info.num_buckets,
        bucket_keys=info.bucket_keys,
        comment=info.comment,
        properties=properties,
        custom_properties={**custom_properties, STATE_PROPERTY: state.to_text()},
    )


def _is_of_cluster(key: str) -> bool:
    """Whether a property is a matter of the cluster: its replicas, and where its lake is, which it fills in itself."""
    return key in _NOT_COPIED or (key.startswith(LAKE_PREFIX) and key not in TABLE_OPTIONS)


def _weight(pairs: Sequence[BucketPair]) -> int:
    return sum(pair.source.weight for pair in pairs)


def _until(split: Split, stop: int) -> Split:
    return Split(split.partition_id, split.partition_name, split.bucket_id, 0, stop, split.kind)


def _rows_known(source: FlussTable, pairs: Sequence[BucketPair]) -> int | None:
    if not source.has_primary_key():
        return _weight(pairs)
    counts = row_counts_of(source, [pair.source.bucket(source.get_table_info().table_id) for pair in pairs])
    return sum(counts.values()) if len(counts) == len(pairs) else None


def _row_count(target: FlussTable, pairs: Sequence[BucketPair]) -> int:
    """Count what was written to the target: every row is a record of its log."""
    buckets = [pair.target.bucket(target.get_table_info().table_id) for pair in pairs]
    return sum(offsets_of(target, buckets, OffsetSpec.latest()).values()) if buckets else 0


class _Counted:
    """Counts rows, but not more often than is good for the servers that are asked."""

    def __init__(self, count: Callable[[], int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._rows = 0
        self._next_s = 0.0

    def __call__(self) -> int:
        now_s = self._clock()
        if now_s >= self._next_s:
            self._rows = self._count()
            self._next_s = self._clock() + max(_COUNT_INTERVAL_S, 10 * (self._clock() - now_s))
        return self._rows
