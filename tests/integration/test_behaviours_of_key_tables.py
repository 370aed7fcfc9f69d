"""Promises of a server about primary-key tables: what changes a batch makes, who is refused, what survives a restart.
Shown with raw requests over a socket against whole servers, so that no client can hide, repeat or repair anything."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss import (
    AclBinding,
    AclOperation,
    AclResource,
    AggFunction,
    Config,
    DataTypes,
    ScanRecord,
    Schema,
    TableDescriptor,
    TablePath,
    blocking,
    embedded,
)
from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.record.arrow_batch import decode_arrow_batch
from fluss.record.arrow_ipc import BodyCodec, parse_message
from fluss.record.log_batch import iter_batches
from fluss.row.values import Timestamp
from fluss.schema.serde import table_to_json
from fluss.testing.waiting import eventually
from tests.integration.key_requests import (
    EARLIEST,
    Delete,
    KeyTable,
    Requests,
    Row,
    change_texts,
    requests_to,
    schema_id_of,
)

ABC = Schema(pa.schema([("id", pa.int32()), ("a", pa.string()), ("b", pa.string())]), primary_keys=["id"])
NUMBERED = Schema(
    pa.schema([("word", pa.string()), ("note", pa.string()), ("number", pa.int64())]),
    primary_keys=["word"],
    auto_increment_column="number",
)
INSERT = {"insert_if_not_exists": True, "acks": -1, "timeout_ms": 10_000}


class Cluster:
    """A running server, and tables of it that nobody else uses."""

    def __init__(self, server: embedded.EmbeddedServer, requests: Requests, config: Config | None = None) -> None:
        self.server = server
        self.requests = requests
        self.connection = blocking.FlussConnection.create(config or server.config(writer_batch_timeout_ms=0))
        self.admin = self.connection.get_admin()
        self._numbers = itertools.count()

    def create(self, schema: Schema = ABC, properties: Mapping[str, str] | None = None, **more: Any) -> KeyTable:
        """Create a table, by default of one bucket; properties need no ``table.`` in front."""
        named = {f"table.{key}": value for key, value in (properties or {}).items()}
        path = TablePath("fluss", f"t{next(self._numbers)}")
        descriptor = TableDescriptor(schema, properties=named, **{"bucket_count": 1, **more})
        self.admin.create_table(path, descriptor)
        return KeyTable(self.requests, self.admin.get_table_info(path))

    def add_column(self, table: KeyTable, name: str) -> KeyTable:
        """Add a column of text, and return the table as it is then."""
        self.admin.alter_table(table.info.table_path, add_columns=[pa.field(name, pa.string())])
        return KeyTable(
            self.requests, self.admin.get_table_info(table.info.table_path), {table.info.schema_id: table.info.schema}
        )

    def partition(self, table: KeyTable, **values: str) -> int:
        """Create a partition and return its id."""
        self.admin.create_partition(table.info.table_path, values)
        (info,) = self.admin.list_partition_infos(table.info.table_path, values)
        return info.partition_id

    def close(self) -> None:
        self.connection.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        embedded.start({"durability": "os"}, data_dir=tmp_path_factory.mktemp("server")) as server,
        requests_to(server) as requests,
    ):
        made = Cluster(server, requests)
        yield made
        made.close()


def path_message(path: TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database_name, table_name=path.table_name)


def records_of(scanner: blocking.LogScanner, count: int) -> list[ScanRecord]:
    """Poll until there are so many records."""
    found: list[ScanRecord] = []
    deadline_s = time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < deadline_s, "they did not come"
        found += scanner.poll(500)
    return found


# What a batch changes


FULL, WAL = "FULL", "WAL"
# What is written, with its target columns, and the changes of either kind of changelog.
STORY: list[tuple[Row | Delete, list[int], list[tuple[str, Row]], list[tuple[str, Row]]]] = [
    ((1, "a", "b"), [], [("+I", (1, "a", "b"))], [("+U", (1, "a", "b"))]),
    ((1, "c", "b"), [], [("-U", (1, "a", "b")), ("+U", (1, "c", "b"))], [("+U", (1, "c", "b"))]),
    # The same row again is not suppressed.
    ((1, "c", "b"), [], [("-U", (1, "c", "b")), ("+U", (1, "c", "b"))], [("+U", (1, "c", "b"))]),
    ((1, None, None), [0], [], []),
    ((2, None, None), [0], [("+I", (2, None, None))], [("+I", (2, None, None))]),
    ((2, None, None), [0], [], []),
    ((2, None, "x"), [0, 2], [("-U", (2, None, None)), ("+U", (2, None, "x"))], [("+U", (2, None, "x"))]),
    (Delete((1,)), [0, 1], [("-U", (1, "c", "b")), ("+U", (1, None, "b"))], [("+U", (1, None, "b"))]),
    (Delete((1,)), [0, 2], [("-D", (1, None, "b"))], [("-D", (1, None, "b"))]),
    (Delete((1,)), [0, 2], [], []),
    (Delete((1,)), [], [], []),
    (Delete((2,)), [], [("-D", (2, None, "x"))], [("-D", (2, None, "x"))]),
]


@pytest.mark.parametrize("image", [FULL, WAL])
def test_every_kind_of_write_has_its_changes_and_ends_behind_them(cluster: Cluster, image: str) -> None:
    table = cluster.create(properties={"changelog.image": image.lower()})
    end = 0
    for change, targets, full, wal in STORY:
        expected = full if image == FULL else wal
        begin, end = end, table.put(change, targets=targets)
        assert end - begin == max(1, len(expected)), "what changes nothing takes one offset"
        assert table.shown(begin) == expected
        (batch,) = table.log_batches(begin)
        header = batch.header
        assert (header.base_offset, header.offset_next, header.record_count) == (begin, end, len(expected))
        assert table.offset_end() == end
    assert table.lookup((1,), (2,)) == [None, None]


def test_an_auto_increment_column_makes_a_short_changelog_tell_new_rows(cluster: Cluster) -> None:
    table = cluster.create(NUMBERED, {"changelog.image": WAL})
    for note in ("x", "y"):
        table.put(("a", note, None), targets=[0, 1])
    assert table.shown() == [("+I", ("a", "x", 1)), ("+U", ("a", "y", 1))]


def test_batches_that_delete_nothing_take_ten_offsets_and_have_no_records(cluster: Cluster) -> None:
    table = cluster.create()
    assert [table.put(Delete((number,))) for number in range(10)] == list(range(1, 11))
    assert [batch.header.record_count for batch in table.log_batches()] == [0] * 10
    table.put((1, "a", None))
    assert table.changelog() == [(10, "+I", (1, "a", None))]
    # Neither does a batch that has no records at all.
    assert table.put() == 12


def test_each_record_of_a_batch_builds_on_the_one_before(cluster: Cluster) -> None:
    table = cluster.create()
    assert table.put((1, "a", None), (2, "x", None)) == 2
    assert table.put((1, "b", None), Delete((2,)), (1, "c", None), (2, "y", None), writer=4, sequence=0) == 8
    assert table.changelog(2) == [
        (2, "-U", (1, "a", None)),
        (3, "+U", (1, "b", None)),
        (4, "-D", (2, "x", None)),
        (5, "-U", (1, "b", None)),
        (6, "+U", (1, "c", None)),
        (7, "+I", (2, "y", None)),
    ]
    (batch,) = table.log_batches(2)
    assert (batch.header.writer_id, batch.header.batch_sequence) == (4, 0), "one batch of its writer"


def test_a_batch_out_of_order_leaves_nothing_behind(cluster: Cluster) -> None:
    table = cluster.create()
    table.put((1, "a", None), writer=7, sequence=0)
    for sequence in (2, 6):
        assert table.put_code((1, "lost", None), (2, "lost", None), writer=7, sequence=sequence) == 31
    assert (table.offset_end(), table.lookup((1,), (2,))) == (1, [(1, "a", None), None])
    assert table.put((1, "b", None), writer=7, sequence=1) == 3
    assert table.shown(1) == [("-U", (1, "a", None)), ("+U", (1, "b", None))]
    # A writer that nobody has heard of begins with its first batch.
    assert table.put_code((3, "x", None), writer=8, sequence=1) == 31


def test_a_batch_that_is_sent_again_is_answered_as_before_and_changes_nothing(cluster: Cluster) -> None:
    table = cluster.create(properties={"delete.behavior": "ignore"})
    sent: list[tuple[list[Row | Delete], int]] = [
        ([(1, "a", None), (2, "b", None)], 2),
        ([(1, "c", None)], 4),
        ([Delete((1,))], 5),
        ([(1, "d", None), (2, "e", None)], 9),
        ([(3, "f", None)], 10),
    ]
    for _ in range(3):
        for sequence, (rows, end) in enumerate(sent):
            assert table.put(*rows, writer=11, sequence=sequence) == end
    assert table.offset_end() == 10
    # Five are remembered.
    assert table.put((4, "g", None), writer=11, sequence=5) == 11
    assert table.put_code((1, "a", None), (2, "b", None), writer=11, sequence=0) == 31
    assert table.put((1, "c", None), writer=11, sequence=1) == 4
    assert table.lookup((1,), (2,), (3,), (4,)) == [(1, "d", None), (2, "e", None), (3, "f", None), (4, "g", None)]


# Schemas


def test_rows_keep_the_schema_they_came_with_and_the_changelog_has_the_newest(cluster: Cluster) -> None:
    old = cluster.create()
    old.put((1, "a", "b"), (2, "a", "b"))
    new = cluster.add_column(old, "c")
    new.put((3, "a", "b"), schema_id=1)
    new.put((1, "A", "b", None), targets=[0, 1])
    new.put((4, "a", "b", "c"))
    new.put((2, "A", "b"), schema_id=1)
    assert new.changelog() == [
        (0, "+I", (1, "a", "b")),
        (1, "+I", (2, "a", "b")),
        (2, "+I", (3, "a", "b", None)),
        (3, "-U", (1, "a", "b", None)),
        (4, "+U", (1, "A", "b", None)),
        (5, "+I", (4, "a", "b", "c")),
        (6, "-U", (2, "a", "b", None)),
        (7, "+U", (2, "A", "b", None)),
    ]
    assert [batch.header.schema_id for batch in new.log_batches()] == [1, 2, 2, 2, 2]
    values = new.lookup_answer(*(new.key((number,)) for number in (1, 2, 3, 4))).values
    # Whole rows are stored as they came; a row that was put together here has the newest schema.
    assert [schema_id_of(value.values) for value in values] == [2, 1, 1, 2]
    for unknown in (0, 3, 32767):
        assert new.put_code((5, "a", "b", "c"), schema_id=unknown) == ErrorCode.SCHEMA_NOT_EXIST
    assert new.offset_end() == 8


def test_targets_are_columns_of_the_newest_schema_and_all_of_them_are_whole_rows(cluster: Cluster) -> None:
    old = cluster.create()
    new = cluster.add_column(old, "c")
    new.put((1, "a", "b", "c"))
    # All columns that an older writer knows: the column that came later stays.
    new.put((1, "A", "B"), targets=[0, 1, 2], schema_id=1)
    assert new.lookup((1,)) == [(1, "A", "B", "c")]
    new.put((1, "AA", None, "cc"), targets=[0, 1, 2, 3])
    assert new.lookup((1,)) == [(1, "AA", None, "cc")]
    new.put((1, "AAA", "BBB"), schema_id=1)
    assert new.lookup((1,)) == [(1, "AAA", "BBB", None)]


def test_targets_that_cannot_be_are_refused(cluster: Cluster) -> None:
    strict = (
        Schema.builder()
        .column("id", DataTypes.int())
        .column("a", DataTypes.string())
        .column("must", DataTypes.string().not_null())
        .primary_key(["id"])
        .build()
    )
    two_keys = Schema(
        pa.schema([("k1", pa.int32()), ("v", pa.string()), ("k2", pa.int32())]), primary_keys=["k1", "k2"]
    )
    for schema, row, refused in (
        (ABC, (1, "a", "b"), ([1], [1, 2], [0, 3], [0, -1])),
        (strict, (1, "a", "b"), ([0], [0, 1], [0, 2])),
        (two_keys, (1, "v", 2), ([0], [0, 1], [1, 2], [2])),
        (NUMBERED, ("a", "n", None), ([], [0, 1, 2], [0, 2])),
    ):
        table = cluster.create(schema)
        for targets in refused:
            assert table.put_code(row, targets=targets) == ErrorCode.INVALID_TARGET_COLUMN, (schema, targets)
        assert table.offset_end() == 0
    # Naming every column is writing whole rows, for which a column may be NOT NULL.
    assert cluster.create(strict).put((1, "a", "b"), targets=[0, 1, 2]) == 1


# Merge engines and deletes


def test_the_first_row_of_a_key_is_the_only_one(cluster: Cluster) -> None:
    table = cluster.create(properties={"merge-engine": "First_Row"})
    for version in range(10):
        table.put(*((key, f"v{version}", None) for key in range(3)))
    assert table.shown() == [("+I", (key, "v0", None)) for key in range(3)]
    assert table.offset_end() == 3 + 9
    table.put(Delete((1,)))
    assert table.lookup((1,)) == [(1, "v0", None)], "deletes are ignored"
    for targets in ([0, 1], [0, 1, 2]):
        assert table.put_code((1, "x", None), targets=targets) == ErrorCode.INVALID_TARGET_COLUMN


@pytest.mark.parametrize(
    ("version_type", "versions"),
    [
        (pa.int32(), (-5, 0, 7)),
        (pa.int64(), (-(2**63) + 1, 5, 2**62)),
        (pa.timestamp("us"), (Timestamp(-1, 999_000), Timestamp(0, 0), Timestamp(0, 1_000))),
        (pa.timestamp("ms", tz="UTC"), (Timestamp(1), Timestamp(2), Timestamp(3))),
    ],
)
def test_of_versions_the_highest_stays(cluster: Cluster, version_type: pa.DataType, versions: tuple[Any, ...]) -> None:
    schema = Schema(pa.schema([("id", pa.int32()), ("v", version_type), ("a", pa.string())]), primary_keys=["id"])
    table = cluster.create(schema, {"merge-engine": "versioned", "merge-engine.versioned.ver-column": "v"})
    low, middle, high = versions
    story = [
        (None, "none"),
        (None, "none again"),
        (middle, "x"),
        (low, "y"),
        (None, "z"),
        (middle, "equal"),
        (high, "h"),
    ]
    for version, text in story:
        table.put((1, version, text))
    assert [row[2] for change, row in table.shown() if change != "-U"] == ["none", "none again", "x", "equal", "h"]
    assert table.offset_end() == 1 + 2 + 2 + 1 + 1 + 2 + 2
    table.put(Delete((1,)))
    assert table.lookup((1,)) == [(1, high, "h")], "deletes are ignored"
    assert table.put_code((1, high, "p"), targets=[0, 1, 2]) == ErrorCode.INVALID_TARGET_COLUMN


@pytest.mark.parametrize("engine", [None, "aggregation"])
def test_refused_deletes_take_their_batch_with_them(cluster: Cluster, engine: str | None) -> None:
    properties = {"delete.behavior": "Disable"} | ({"merge-engine": engine} if engine else {})
    table = cluster.create(properties=properties)
    table.put((1, "a", None), writer=3, sequence=0)
    batch: list[Row | Delete] = [(1, "b", None), (2, "b", None), Delete((3,))]
    assert table.put_code(*batch, writer=3, sequence=1) == ErrorCode.DELETION_DISABLED_EXCEPTION
    assert (table.offset_end(), table.lookup((1,), (2,))) == (1, [(1, "a", None), None])
    assert table.put((1, "c", None), writer=3, sequence=1) == 3, "its number is free"


def test_ignored_deletes_are_skipped_and_the_rest_of_their_batch_is_written(cluster: Cluster) -> None:
    table = cluster.create(properties={"delete.behavior": "IGNORE"})
    table.put((1, "a", None))
    assert table.put(Delete((1,)), (2, "b", None), Delete((2,))) == 2
    assert table.put(Delete((1,)), Delete((2,)), targets=[0, 1]) == 3
    assert table.lookup((1,), (2,)) == [(1, "a", None), (2, "b", None)]
    assert table.shown() == [("+I", (1, "a", None)), ("+I", (2, "b", None))]


def test_a_write_may_bypass_the_merge_engine(cluster: Cluster) -> None:
    total = (
        Schema.builder()
        .column("id", DataTypes.int())
        .column("n", DataTypes.bigint(), aggregation=AggFunction("sum"))
        .column("m", DataTypes.int(), aggregation=AggFunction("max"))
        .primary_key(["id"])
        .build()
    )
    table = cluster.create(total, {"merge-engine": "aggregation"})
    table.put((1, 10, 10))
    table.put((1, 5, 5), agg_mode=0)
    table.put((1, 1, None), agg_mode=7)
    assert table.lookup((1,)) == [(1, 16, 10)], "all other values mean to merge"
    table.put((1, 3, 3), agg_mode=1)
    assert table.lookup((1,)) == [(1, 3, 3)]
    table.put((1, None, 8), targets=[0, 1], agg_mode=1)
    assert table.lookup((1,)) == [(1, None, 3)]
    table.put(Delete((1,)))
    assert table.lookup((1,)) == [(1, None, 3)], "deletes are ignored unless a table says otherwise"
    table.put(Delete((1,)), agg_mode=1)
    assert table.lookup((1,)) == [None]
    first = cluster.create(properties={"merge-engine": "first_row"})
    first.put((1, "a", "b"))
    first.put((1, "c", None), agg_mode=1)
    first.put((1, None, "d"), targets=[0, 2], agg_mode=1)
    assert first.lookup((1,)) == [(1, "c", "d")]


# Aggregate functions


NUMBER_TYPES = {"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"}
ORDERED_TYPES = NUMBER_TYPES | {"char", "string", "date", "time", "timestamp", "timestamp_ltz"}
TYPES = {
    **{name: getattr(DataTypes, name)() for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float")},
    **{name: getattr(DataTypes, name)() for name in ("double", "string", "bytes", "date", "time", "timestamp")},
    "timestamp_ltz": DataTypes.timestamp_ltz(),
    "char": DataTypes.char(3),
    "binary": DataTypes.binary(3),
    "decimal": DataTypes.decimal(10, 2),
    "array": DataTypes.array(DataTypes.int()),
    "map": DataTypes.map(DataTypes.int(), DataTypes.int()),
}
# The column types that each function takes.
FUNCTIONS = {
    "sum": NUMBER_TYPES,
    "product": NUMBER_TYPES,
    "max": ORDERED_TYPES,
    "min": ORDERED_TYPES,
    "last_value": set(TYPES),
    "last_value_ignore_nulls": set(TYPES),
    "first_value": set(TYPES),
    "first_value_ignore_nulls": set(TYPES),
    "listagg": {"string", "char"},
    "string_agg": {"string", "char"},
    "bool_and": {"boolean"},
    "bool_or": {"boolean"},
    "rbm32": {"bytes"},
    "rbm64": {"bytes"},
}


def create_with(cluster: Cluster, path: TablePath, data_type: Any, function: Mapping[str, Any]) -> None:
    """Create an aggregating table whose one column has a function, written as a client might write it."""
    schema = Schema.builder().column("id", DataTypes.int()).column("v", data_type).primary_key(["id"]).build()
    descriptor = TableDescriptor(schema, bucket_count=1, properties={"table.merge-engine": "aggregation"})
    table_json = json.loads(table_to_json(descriptor))
    table_json["schema"]["columns"][1]["agg_function"] = function
    request = pb.CreateTableRequest(
        table_path=path_message(path),
        table_json=json.dumps(table_json).encode(),
        ignore_if_exists=False,
    )
    cluster.requests.ask(apis.CREATE_TABLE, request)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_is_taken_by_the_columns_it_fits(cluster: Cluster, function: str) -> None:
    for number, (name, data_type) in enumerate(TYPES.items()):
        # Letter case and the separator of words do not matter.
        spelt = (function, function.upper(), function.replace("_", "-"))[number % 3]
        path = TablePath("fluss", f"{function}_{name}")
        if name in FUNCTIONS[function]:
            create_with(cluster, path, data_type, {"type": spelt})
            (_, column) = cluster.admin.get_table_info(path).schema.columns
            assert column.aggregation == AggFunction(function)
        else:
            with pytest.raises(FlussError) as refused:
                create_with(cluster, path, data_type, {"type": spelt})
            assert refused.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_a_function_that_is_none_is_dropped_and_one_that_is_added_later_refused(cluster: Cluster) -> None:
    path = TablePath("fluss", "median")
    create_with(cluster, path, DataTypes.int(), {"type": "median"})
    info = cluster.admin.get_table_info(path)
    assert info.schema.columns[1].aggregation is None
    table = KeyTable(cluster.requests, info)
    for value in (5, None):
        table.put((1, value))
    assert table.lookup((1,)) == [(1, 5)], "without a function, the last value that is not null stays"
    change = pb.PbAddColumn(
        column_name="w",
        data_type_json=json.dumps({"type": "INTEGER"}).encode(),
        column_position_type=0,
        agg_function_type="median",
    )
    request = pb.AlterTableRequest(
        table_path=path_message(path),
        ignore_if_not_exists=False,
        add_columns=[change],
    )
    with pytest.raises(FlussError) as refused:
        cluster.requests.ask(apis.ALTER_TABLE, request)
    assert refused.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert cluster.admin.get_table_info(path).schema_id == 1
    for parameters in ({"delimiter": ""}, {"separator": ";"}):
        with pytest.raises(FlussError) as refused:
            create_with(
                cluster, TablePath("fluss", "x"), DataTypes.string(), {"type": "listagg", "parameters": parameters}
            )
        assert refused.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def bitmap(*numbers: int) -> bytes:
    """Return a 32-bit roaring bitmap of a few numbers below 65,536, as an array."""
    values = b"".join(number.to_bytes(2, "little") for number in sorted(numbers))
    header = (12346).to_bytes(4, "little") + (1).to_bytes(4, "little")
    return (
        header
        + (0).to_bytes(2, "little")
        + (len(numbers) - 1).to_bytes(2, "little")
        + (16).to_bytes(4, "little")
        + values
    )


def test_every_function_merges_what_is_written(cluster: Cluster) -> None:
    functions: dict[str, tuple[Any, str | AggFunction | None, list[Any], Any]] = {
        "total": (DataTypes.tinyint(), "sum", [100, 100, None, 1], -55),
        "factor": (DataTypes.int(), "product", [2**31 - 1, 2, None], -2),
        "cents": (DataTypes.decimal(3, 1), "sum", [995, 5, 1], 1),
        "high": (DataTypes.string(), "max", ["b", None, "ä", "c"], "ä"),
        "low": (DataTypes.date(), "min", [5, -3, None], -3),
        "last": (DataTypes.int(), "last_value", [1, None], None),
        "last_known": (DataTypes.int(), "last_value_ignore_nulls", [1, None], 1),
        "first": (DataTypes.int(), "first_value", [None, 2, 3], 2),
        "first_known": (DataTypes.int(), "first_value_ignore_nulls", [None, 2, 3], 2),
        "words": (DataTypes.string(), AggFunction.of("listagg", delimiter=" | "), ["a", None, "b"], "a | b"),
        "list": (DataTypes.string(), "string_agg", ["a", "", "b"], "a,,b"),
        "all": (DataTypes.boolean(), "bool_and", [True, None, False, True], False),
        "any": (DataTypes.boolean(), "bool_or", [False, None, True, False], True),
        "seen": (DataTypes.bytes(), "rbm32", [bitmap(1, 5), None, bitmap(3)], bitmap(1, 3, 5)),
        "plain": (DataTypes.int(), None, [7, None], 7),
    }
    builder = Schema.builder().column("id", DataTypes.int())
    for name, (data_type, function, _, _) in functions.items():
        chosen = AggFunction(function) if isinstance(function, str) else function
        builder = builder.column(name, data_type, aggregation=chosen)
    table = cluster.create(builder.primary_key(["id"]).build(), {"merge-engine": "aggregation"})
    width = max(len(values) for _, _, values, _ in functions.values())
    rows = [
        # Where there is nothing more to say, the last value is said again, which is null for most functions.
        (1, *(values[number] if number < len(values) else None for _, _, values, _ in functions.values()))
        for number in range(width)
    ]
    for row in rows:
        table.put(row)
    expected = (1, *(result for _, _, _, result in functions.values()))
    assert table.lookup((1,)) == [expected]
    # All in one batch is the same, and every step is in the changelog.
    table.put(*((2, *row[1:]) for row in rows))
    assert table.lookup((2,)) == [(2, *expected[1:])]
    of_one, of_two = ([(kind, row[1:]) for kind, row in table.shown() if row[0] == key] for key in (1, 2))
    assert of_one == of_two
    assert [kind for kind, _ in of_one] == ["+I", *["-U", "+U"] * (width - 1)]


def test_a_column_that_is_added_with_a_function_is_merged_by_it(cluster: Cluster) -> None:
    schema = Schema.builder().column("id", DataTypes.int()).primary_key(["id"]).build()
    old = cluster.create(schema, {"merge-engine": "aggregation"})
    old.put((1,))
    change = pb.PbAddColumn(
        column_name="total",
        data_type_json=json.dumps({"type": "BIGINT"}).encode(),
        column_position_type=0,
        agg_function_type="SUM",
    )
    request = pb.AlterTableRequest(
        table_path=path_message(old.info.table_path), ignore_if_not_exists=False, add_columns=[change]
    )
    cluster.requests.ask(apis.ALTER_TABLE, request)
    new = KeyTable(cluster.requests, cluster.admin.get_table_info(old.info.table_path), {1: schema})
    for total in (None, 5, 6):
        new.put((1, total))
    new.put((1,), (2,), schema_id=1)
    assert new.lookup((1,), (2,)) == [(1, 11), (2, None)]


# Auto increment


def test_numbers_are_given_to_new_rows_from_blocks_of_their_bucket(cluster: Cluster) -> None:
    table = cluster.create(NUMBERED, bucket_count=2)
    for number in range(3):
        table.put((f"a{number}", "x", None), targets=[0, 1])
    table.put(("b", "x", None), targets=[0, 1], bucket=1)
    table.put(("a0", "updated", None), ("a3", "x", None), targets=[0, 1])
    assert table.lookup(*((f"a{number}",) for number in range(4))) == [
        ("a0", "updated", 1),
        ("a1", "x", 2),
        ("a2", "x", 3),
        ("a3", "x", 4),
    ]
    assert table.lookup(("b",), bucket=1) == [("b", "x", 100_001)]


def test_whoever_inserts_by_a_lookup_gets_the_one_number_of_the_key(cluster: Cluster) -> None:
    table = cluster.create(NUMBERED)
    requests = [table.lookup_request(table.key(("a",)), table.key((f"w{n % 3}",)), **INSERT) for n in range(30)]
    answers = [answer.buckets_resp[0] for answer in cluster.requests.ask_all(apis.LOOKUP, requests)]
    found = {row for answer in answers for row in table.rows_of(answer) if row is not None}
    assert sorted(row[2] for row in found) == [1, 2, 3, 4]
    assert {row[0] for row in found} == {"a", "w0", "w1", "w2"}
    assert [change for change, _ in table.shown()] == ["+I"] * 4, "one row for each key"
    assert table.lookup(("a",), **INSERT) == [row for row in found if row[0] == "a"]
    assert table.offset_end() >= 4


def test_a_lookup_that_inserts_says_what_it_needs(cluster: Cluster) -> None:
    table = cluster.create()
    key = table.key((1,))
    for missing in ("acks", "timeout_ms"):
        options = {name: value for name, value in INSERT.items() if name != missing}
        assert table.lookup_answer(key, **options).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert table.lookup_answer(key, **{**INSERT, "acks": 5}).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert table.offset_end() == 0
    assert table.lookup((1,), **INSERT) == [(1, None, None)]
    for engine in (
        {"merge-engine": "first_row"},
        {"merge-engine": "versioned", "merge-engine.versioned.ver-column": "n"},
    ):
        schema = Schema(pa.schema([("id", pa.int32()), ("n", pa.int32())]), primary_keys=["id"])
        whole = cluster.create(schema, engine)
        assert whole.lookup_answer(whole.key((1,)), **INSERT).error_code == ErrorCode.INVALID_TARGET_COLUMN


def test_numbers_and_counts_go_on_after_restarts_and_crashes(tmp_path: Path) -> None:
    before, crashed = tmp_path / "before", tmp_path / "crashed"
    with embedded.start(data_dir=before) as server, requests_to(server) as requests:
        cluster = Cluster(server, requests)
        numbered = cluster.create(NUMBERED, {"auto-increment.cache-size": "5"})
        counted, short = cluster.create(), cluster.create(properties={"changelog.image": WAL})
        counted.put(*((number, "a", None) for number in range(100)), writer=1, sequence=0)
        counted.put(*(Delete((number,)) for number in range(30)), writer=1, sequence=1)
        short.put((1, "a", None))
        numbered.put(*((f"w{number}", None, None) for number in range(3)), targets=[0, 1])
        cluster.close()
        # What a crash leaves behind is a copy of the files while the server runs.
        shutil.copytree(before, crashed)
    # In order, after the crash, and twice more: numbers go on from one block of five to the next and further.
    for data_dir, count in ((before, 3), (crashed, 3), (crashed, 6), (crashed, 9)):
        with embedded.start(data_dir=data_dir) as server, requests_to(server) as requests:
            again = KeyTable(requests, numbered.info)
            words = [f"w{number}" for number in range(count + 3)]
            again.put(*((word, "again", None) for word in words), targets=[0, 1])
            assert [row and row[2] for row in again.lookup(*((word,) for word in words))] == [*range(1, count + 4)]
            rows = KeyTable(requests, counted.info)
            assert rows.row_counts(0) == [70]
            # What was sent before the end is not done again.
            assert rows.put(*(Delete((number,)) for number in range(30)), writer=1, sequence=1) == 130
            (refused,) = KeyTable(requests, short.info).stats_answers(0)
            assert refused.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


# Reads


def test_values_come_in_the_order_of_the_keys_with_repetitions(cluster: Cluster) -> None:
    table = cluster.create()
    table.put((1, "a", None), (2, "b", None), (3, "c", None))
    table.put(Delete((2,)))
    one, three = (1, "a", None), (3, "c", None)
    assert table.lookup((3,), (1,), (9,), (2,), (3,)) == [three, one, None, None, three]
    assert table.lookup() == []


def test_rows_are_found_by_the_beginning_of_their_key_and_in_its_order(cluster: Cluster) -> None:
    schema = Schema(
        pa.schema([("shop", pa.string()), ("v", pa.string()), ("number", pa.int32())]), primary_keys=["shop", "number"]
    )
    table = cluster.create(schema, bucket_keys=["shop"])
    for shop in ("b", "a", "ab"):
        table.put(*((shop, None, number) for number in (300, 2, -1, 1)))
    # 300 is written as ac 02, and -1 as ff ff ff ff 0f.
    of_a, nothing = table.prefix_lookup(table.prefix("a"), table.prefix("c"))
    assert ([row[2] for row in of_a], nothing) == ([1, 2, 300, -1], [])
    assert {row[0] for row in of_a} == {"a"}
    assert table.prefix_lookup(table.prefix("ab", 2)) == [[("ab", None, 2)]]


def test_the_first_rows_of_a_bucket_come_in_key_order(cluster: Cluster) -> None:
    table = cluster.create()
    table.put(*((number, None, None) for number in reversed(range(10))))
    assert [row[0] for row in table.limit_scan(5)] == [0, 1, 2, 3, 4]
    assert len(table.limit_scan(50)) == 10
    assert table.limit_scan_answer(5).is_log_table is False
    assert cluster.create().limit_scan(3) == []


def test_each_request_says_for_which_kind_of_table_it_is(cluster: Cluster) -> None:
    plain = Schema(pa.schema([("id", pa.int32())]))
    path = TablePath("fluss", "plain")
    cluster.admin.create_table(path, TableDescriptor(plain, bucket_count=1))
    log, keyed = KeyTable(cluster.requests, cluster.admin.get_table_info(path)), cluster.create()
    batch = keyed.batch((1, "a", None))
    (put,) = log.put_answers(BucketRecords(0, batch))
    codes = [
        put.error_code,
        log.lookup_answer(b"\x01").error_code,
        log.lookup_answer(b"\x01", **INSERT).error_code,
        log.prefix_answer(b"\x01").error_code,
        log.open_scan().error_code,
    ]
    assert codes == [ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION] * 5
    assert log.row_counts(0) == [0]
    assert log.limit_scan_answer(1).is_log_table is True
    request = ProduceLogRequest(-1, keyed.info.table_id, 30_000, [BucketRecords(0, batch)])
    (produced,) = cluster.requests.ask(apis.PRODUCE_LOG, request).buckets_resp
    assert produced.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_a_scan_sees_the_rows_of_its_beginning_and_says_where_changes_begin(cluster: Cluster) -> None:
    table = cluster.create()
    empty = table.open_scan()
    assert (empty.scanner_id, empty.has_more_results, empty.log_offset, empty.records) == (None, False, 0, None)
    table.put(*((number, "a", None) for number in range(10)))
    table.put(Delete((0,)))
    first = table.open_scan(limit=3)
    assert ([row[0] for row in table.values_of(first)], first.log_offset) == ([1, 2, 3], 11)
    assert first.has_more_results is False
    assert [row[0] for row in table.values_of(table.open_scan())] == list(range(1, 10))


def test_whoever_has_read_a_change_finds_it_by_its_key(cluster: Cluster) -> None:
    table = cluster.create()
    rows = [(number, "x" * 50, None) for number in range(2, 300)]

    def write() -> None:
        with requests_to(cluster.server) as requests:
            writer = KeyTable(requests, table.info)
            for number in range(60):
                writer.put(*rows, (1, str(number), None))

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        read = -1
        while read < 59:
            end = table.offset_end()
            if end:
                # The last record is the newest version of the key.
                read = int(table.changelog(end - 1)[-1].row[1])
                (found,) = table.lookup((1,))
                assert found is not None
                assert int(found[1]) >= read
        writing.result()


def test_scans_are_bounded_in_number_size_and_time(tmp_path: Path) -> None:
    options = {
        "durability": "os",
        "kv.scanner.ttl": "3s",
        "kv.scanner.expiration-interval": "10ms",
        "kv.scanner.max-per-bucket": "2",
        "kv.scanner.max-per-server": "3",
        "kv.scanner.max-batch-size": "1kb",
    }
    with embedded.start(options, data_dir=tmp_path) as server, requests_to(server) as requests:
        cluster = Cluster(server, requests)
        tables = [cluster.create(), cluster.create()]
        for table in tables:
            table.put(*((number, "x" * 100, None) for number in range(50)))
        first, second = tables
        scans = [first.open_scan(bytes_max=10**6), first.open_scan(), second.open_scan(bytes_max=1)]
        assert [len(table.values_of(scan)) for table, scan in zip((first, first, second), scans, strict=True)] == [
            10,
            10,
            1,
        ]
        for table in tables:
            assert table.open_scan().error_code == ErrorCode.TOO_MANY_SCANNERS
        # A scan that is ended makes room; ending it again is no error.
        for _ in range(2):
            assert second.scan(scanner_id=scans[2].scanner_id, close_scanner=True).error_code is None
        third = second.open_scan()
        assert third.error_code is None
        # Calls are counted, and a wrong one is the end.
        assert [row[0] for row in first.values_of(first.continue_scan(scans[0].scanner_id, 1))] == [*range(10, 20)]
        assert first.continue_scan(scans[0].scanner_id, 1).error_code == ErrorCode.INVALID_SCAN_REQUEST
        assert first.continue_scan(scans[0].scanner_id, 2).error_code == ErrorCode.UNKNOWN_SCANNER_ID
        wanted = pb.PbScanReqForBucket(table_id=first.info.table_id, bucket_id=0)
        for fields in (
            {},
            {"bucket_scan_req": wanted, "scanner_id": third.scanner_id, "call_seq_id": 0, "batch_size_bytes": 1},
            {"bucket_scan_req": wanted, "close_scanner": True},
            {"bucket_scan_req": wanted, "call_seq_id": 0},
            {"bucket_scan_req": wanted, "call_seq_id": 0, "batch_size_bytes": 0},
            {"bucket_scan_req": wanted, "call_seq_id": 1, "batch_size_bytes": 1},
        ):
            assert first.scan(**fields).error_code == ErrorCode.INVALID_SCAN_REQUEST, fields
        # Nobody asks for more of the second scan.
        time.sleep(3.5)
        assert first.continue_scan(scans[1].scanner_id, 1).error_code == ErrorCode.SCANNER_EXPIRED
        assert first.continue_scan(b"never there", 1).error_code == ErrorCode.UNKNOWN_SCANNER_ID
        cluster.close()


# Properties


@pytest.mark.parametrize(
    ("properties", "codec"),
    [
        ({}, BodyCodec.ZSTD),
        ({"log.arrow.compression.zstd.level": "19"}, BodyCodec.ZSTD),
        ({"log.arrow.compression.type": "lz4_frame"}, BodyCodec.LZ4_FRAME),
        ({"log.arrow.compression.type": "NONE"}, None),
    ],
)
def test_a_changelog_is_compressed_as_its_table_says(
    cluster: Cluster, properties: dict[str, str], codec: BodyCodec | None
) -> None:
    table = cluster.create(properties=properties)
    rows = [(number, "text " * 50, "more" * 50) for number in range(100)]
    table.put(*rows)
    (batch,) = table.log_batches()
    assert parse_message(batch.arrow_message).codec == codec
    assert [row for _, _, row in table.changelog()] == rows
    assert (batch.header.size < 10_000) is (codec is not None)


def test_some_columns_of_a_changelog_are_fetched_with_all_change_types(cluster: Cluster) -> None:
    table = cluster.create()
    table.put((1, "a", "b"))
    table.put(Delete((7,)))
    table.put((1, "c", "d"))
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=2**20)
    wanted = request.tables_req.add(
        table_id=table.info.table_id, projection_pushdown_enabled=True, projected_fields=[0, 2]
    )
    wanted.buckets_req.add(bucket_id=0, fetch_offset=0, max_fetch_bytes=2**20)
    ((fetched,),) = (answer.buckets for answer in cluster.requests.ask(apis.FETCH_LOG, request).tables)
    batches = list(iter_batches(fetched.records_view))
    assert [batch.header.offset_next for batch in batches] == [1, 2, 4], "batches without records keep their offset"
    assert [change_texts(batch) for batch in batches] == [["+I"], [], ["-U", "+U"]]
    schema = pa.schema([ABC.to_arrow().field(index) for index in (0, 2)])
    assert decode_arrow_batch(batches[2], schema).to_pylist() == [{"id": 1, "b": "b"}, {"id": 1, "b": "d"}]


def test_the_properties_of_a_table_come_back_as_they_were_sent_and_some_can_be_changed(cluster: Cluster) -> None:
    sent = {"merge-engine": "AGGREGATION", "delete.behavior": "Allow", "auto-increment.cache-size": "7"}
    table = cluster.create(properties=sent)
    found = table.info.properties
    assert {key: found[f"table.{key}"] for key in sent} == sent
    assert (found["table.kv.format-version"], found["table.kv.standby-replica.enabled"]) == ("2", "true")
    admin, path = cluster.admin, table.info.table_path
    admin.alter_table(path, set_properties={"table.kv.standby-replica.enabled": "false", "table.log.ttl": "3 d"})
    assert admin.get_table_info(path).properties["table.log.ttl"] == "3 d"
    for key, value in (
        ("table.merge-engine", "first_row"),
        ("table.delete.behavior", "ignore"),
        ("table.changelog.image", "WAL"),
        ("table.kv.format", "INDEXED"),
        ("table.auto-increment.cache-size", "9"),
    ):
        with pytest.raises(FlussError) as refused:
            admin.alter_table(path, set_properties={key: value})
        assert refused.value.error_code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
    assert {key: admin.get_table_info(path).properties[f"table.{key}"] for key in sent} == sent


@pytest.mark.parametrize("version", [None, "1", "2"])
def test_keys_of_a_lake_are_found_by_their_beginning(cluster: Cluster, version: str | None) -> None:
    properties = {"datalake.format": "paimon"} | ({"kv.format-version": version} if version else {})
    schema = Schema(
        pa.schema([("shop", pa.int32()), ("number", pa.int32()), ("v", pa.string())]), primary_keys=["shop", "number"]
    )
    table = cluster.create(schema, properties, bucket_keys=["shop"], bucket_count=2)
    assert table.info.properties["table.kv.format-version"] == (version or "2")
    opened = cluster.connection.get_table(table.info.table_path)
    with opened.new_upsert().create_writer() as writer:
        for shop, number in ((1, 2), (1, 1), (2, 1), (1, 300)):
            writer.upsert([shop, number, f"{shop}/{number}"])
    by_shop = opened.new_lookup().lookup_by(["shop"]).create_lookuper()
    assert sorted(row["number"] for row in by_shop.lookup([1])) == [1, 2, 300]
    assert by_shop.lookup({"shop": 3}) == []
    assert opened.new_lookup().create_lookuper().lookup([2, 1]) == {"shop": 2, "number": 1, "v": "2/1"}
    # Clients of the first version would encode the keys of the second one wrongly.
    expected = ErrorCode.NONE if version == "1" else ErrorCode.UNSUPPORTED_VERSION
    codes = [
        table.put_answer((9, 9, "x"), version=0).error_code,
        table.lookup_answer(table.key((9, 9)), version=0).error_code,
        table.prefix_answer(b"\x09", version=0).error_code,
    ]
    assert codes == [expected] * 3


# Partitions


REGIONAL = Schema(
    pa.schema([("id", pa.int32()), ("region", pa.string()), ("v", pa.string())]), primary_keys=["region", "id"]
)


def test_partitions_have_rows_changelogs_and_counts_of_their_own(cluster: Cluster) -> None:
    table = cluster.create(REGIONAL, partition_keys=["region"], bucket_count=2)
    eu, us = (cluster.partition(table, region=region) for region in ("EU", "US"))
    assert table.put((1, "EU", "a"), partition=eu, bucket=1) == 1
    assert table.put((1, "US", "b"), (2, "US", "c"), partition=us, bucket=1) == 2
    # The key has no partition columns: it is the same in both.
    assert table.lookup((1,), (2,), partition=eu, bucket=1) == [(1, "EU", "a"), None]
    assert table.lookup((1,), (2,), partition=us, bucket=1) == [(1, "US", "b"), (2, "US", "c")]
    assert table.changelog(partition=eu, bucket=1) == [(0, "+I", (1, "EU", "a"))]
    assert table.row_counts(0, 1, partition=us) == [0, 2]
    assert cluster.admin.get_table_stats(table.info.table_path).row_count == 3
    assert [row[2] for row in table.limit_scan(9, partition=us, bucket=1)] == ["b", "c"]
    assert table.values_of(table.open_scan(partition=eu, bucket=1)) == [(1, "EU", "a")]
    # Rows that a lookup inserts know their partition.
    assert table.lookup((7,), partition=eu, bucket=0, **INSERT) == [(7, "EU", None)]


def test_what_is_not_there_is_unknown_to_every_request(cluster: Cluster) -> None:
    table = cluster.create(REGIONAL, partition_keys=["region"])
    gone = cluster.partition(table, region="EU")
    table.put((1, "EU", "a"), partition=gone)
    (directory,) = (cluster.server.data_dir / "fluss").glob(f"*-{table.info.table_id}/EU-p{gone}")
    cluster.admin.drop_partition(table.info.table_path, {"region": "EU"})
    dropped = cluster.create()
    dropped.put((1, "a", "b"))
    cluster.admin.drop_table(dropped.info.table_path)
    plain = cluster.create()
    for asked, place in (
        (table, {"partition": gone, "bucket": 0}),
        (table, {"partition": 99_999, "bucket": 0}),
        (table, {"bucket": 0}),
        (dropped, {"bucket": 0}),
        (plain, {"bucket": 1}),
        (plain, {"bucket": -1}),
        (plain, {"partition": 0, "bucket": 0}),
    ):
        bucket, partition = place["bucket"], place.get("partition")
        key = asked.key((1, "EU", "a"))
        (stats,) = asked.stats_answers(bucket, partition=partition)
        answers = [
            asked.put_answer((1, "EU", "a"), **place),
            asked.lookup_answer(key, **place),
            asked.lookup_answer(key, **place, **INSERT),
            asked.prefix_answer(key, **place),
            asked.limit_scan_answer(1, **place),
            asked.open_scan(**place),
            stats,
        ]
        text = f"Unknown table or bucket: TableBucket{{tableId={asked.info.table_id}, "
        text += f"partitionId={partition}, bucket={bucket}}}" if partition is not None else f"bucket={bucket}}}"
        for answer in answers:
            assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, (place, answer)
            assert text in answer.error_message
    eventually(lambda: not directory.exists())


def test_partitions_of_a_key_table_come_by_themselves(cluster: Cluster) -> None:
    auto = {"auto-partition.enabled": "true", "auto-partition.time-unit": "YEAR", "auto-partition.num-precreate": "2"}
    table = cluster.create(REGIONAL, auto, partition_keys=["region"])
    infos = cluster.admin.list_partition_infos(table.info.table_path)
    assert len(infos) == 2
    for info in infos:
        year = info.partition_name
        assert table.put((1, year, "a"), partition=info.partition_id) == 1
        assert table.lookup((1,), partition=info.partition_id) == [(1, year, "a")]


# Rights


def test_each_request_needs_its_right(tmp_path: Path) -> None:
    users = ("root", "reader", "writer", "both", "nobody")
    jaas = "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required "
    options = {
        "security.protocol.map": "CLIENT:SASL",
        "bind.listeners": "CLIENT://127.0.0.1:0",
        "internal.listener.name": "INTERNAL",
        "security.sasl.enabled.mechanisms": "PLAIN",
        "security.sasl.plain.jaas.config": jaas + " ".join(f'user_{user}="{user}"' for user in users) + ";",
        "authorizer.enabled": "true",
        "super.users": "User:root",
    }
    with embedded.start(options, data_dir=tmp_path) as server:
        with requests_to(server, Credentials("root", "root")) as requests:
            config = server.config(
                security_protocol="sasl", security_sasl_username="root", security_sasl_password="root"
            )
            cluster = Cluster(server, requests, config)
            table = cluster.create()
            table.put((1, "a", "b"))
            cluster.admin.create_acls(
                [
                    AclBinding(AclResource.table(table.info.table_path), f"User:{user}", operation)
                    for user, operation in (
                        ("reader", AclOperation.READ),
                        ("writer", AclOperation.WRITE),
                        ("both", AclOperation.READ),
                        ("both", AclOperation.WRITE),
                    )
                ]
            )
            cluster.close()
        allowed: dict[str, set[str]] = {}
        for user in users:
            with requests_to(server, Credentials(user, user)) as requests:
                asked = KeyTable(requests, table.info)
                key = asked.key((1,))
                (stats,) = asked.stats_answers(0)
                answers = {
                    "put": asked.put_answer((1, "a", "b")),
                    "lookup": asked.lookup_answer(key),
                    "insert": asked.lookup_answer(key, **INSERT),
                    "prefix": asked.prefix_answer(key),
                    "limit": asked.limit_scan_answer(1),
                    "scan": asked.open_scan(),
                    "stats": stats,
                }
            codes = {name: answer.error_code or 0 for name, answer in answers.items()}
            assert set(codes.values()) <= {0, ErrorCode.AUTHORIZATION_EXCEPTION}
            allowed[user] = {name for name, code in codes.items() if not code}
    reads = {"lookup", "prefix", "limit", "scan", "stats"}
    assert allowed == {
        "root": {*reads, "put", "insert"},
        "reader": reads,
        "writer": {"put"},
        # Whoever inserts by a lookup sees rows that others have written.
        "both": {*reads, "put", "insert"},
        "nobody": set(),
    }


# Snapshots


def test_snapshots_are_not_offered_to_readers_who_would_open_them(cluster: Cluster) -> None:
    table = cluster.create(bucket_count=2)
    table.put((1, "a", "b"))
    request = pb.GetLatestKvSnapshotsRequest(table_path=path_message(table.info.table_path))
    answer = cluster.requests.ask(apis.GET_LATEST_KV_SNAPSHOTS, request)
    assert [(entry.bucket_id, entry.HasField("snapshot_id")) for entry in answer.latest_snapshots] == [
        (0, False),
        (1, False),
    ]
    # They read the changelog from its beginning instead.
    assert table.changelog() == [(0, "+I", (1, "a", "b"))]


# The life of a table


def test_changes_expire_and_all_rows_stay(tmp_path: Path) -> None:
    options = {"durability": "os", "log.segment.file-size": "300b", "log.retention.check-interval": "20ms"}
    data_dir = tmp_path / "0"
    with embedded.start(options, data_dir=data_dir) as server, requests_to(server) as requests:
        cluster = Cluster(server, requests)
        table = cluster.create(NUMBERED)
        for number in range(20):
            table.put((f"w{number}", f"n{number}", None), targets=[0, 1], writer=5, sequence=number)
        # The number is no target: it stays, and with it the row.
        table.put(Delete(("w0",)), targets=[0, 1], writer=5, sequence=20)
        path = table.info.table_path
        cluster.admin.alter_table(path, set_properties={"table.log.ttl": "1ms"})
        eventually(lambda: table.offset(EARLIEST) > 10)
        cluster.admin.alter_table(path, set_properties={"table.log.ttl": "0ms"})
        begin = table.offset(EARLIEST)
        eventually(lambda: min(int(file.stem) for file in data_dir.glob("fluss/*/log-0/*.log")) == begin)
        with pytest.raises(AssertionError, match="19"):
            table.log_batches(begin - 1)
        rows = table.limit_scan(100)
        assert sorted(row[2] for row in rows) == [*range(1, 21)]
        # Whoever wants all rows and then all changes finds both.
        opened = cluster.connection.get_table(path)
        scanner = opened.new_scan().create_log_scanner()
        scanner.subscribe_from_snapshot()
        assert len(records_of(scanner, 20)) == 20
        end = table.put(("w20", None, None), targets=[0, 1], writer=5, sequence=21)
        assert [record.row["number"] for record in records_of(scanner, 1)] == [21]
        cluster.close()
        shutil.copytree(data_dir, tmp_path / "1")
    # The rows themselves are lost: they come back from the copy that allowed the changes to expire.
    (store,) = (tmp_path / "1").glob("fluss/*/kv-0")
    shutil.rmtree(store)
    for directory in (data_dir, tmp_path / "1"):
        with embedded.start(options, data_dir=directory) as server, requests_to(server) as requests:
            again = KeyTable(requests, table.info)
            found = again.limit_scan(100)
            assert [row for row in found if row[0] != "w20"] == rows
            assert again.put(("w20", None, None), targets=[0, 1], writer=5, sequence=21) == end, "a duplicate"
            again.put(("w21", None, None), targets=[0, 1], writer=5, sequence=22)
            assert again.lookup(("w21",)) == [("w21", None, 22)]


def test_a_table_made_again_is_empty_and_nothing_is_left_of_the_others(tmp_path: Path) -> None:
    with embedded.start({"durability": "os"}, data_dir=tmp_path) as server, requests_to(server) as requests:
        cluster = Cluster(server, requests)
        kept, path = cluster.create(), TablePath("fluss", "again")
        kept.put((1, "a", "b"))
        ids = []
        for number in range(3):
            cluster.admin.create_table(path, TableDescriptor(NUMBERED, bucket_count=1))
            table = KeyTable(requests, cluster.admin.get_table_info(path))
            assert (table.offset_end(), table.row_counts(0), table.lookup(("a",))) == (0, [0], [None])
            table.put(("a", f"{number}", None), targets=[0, 1])
            assert table.lookup(("a",)) == [("a", f"{number}", 1)], "it counts from one again"
            cluster.admin.drop_table(path)
            ids.append(table.info.table_id)
        assert ids == sorted(set(ids))
        cluster.close()
        eventually(lambda: not list((tmp_path / "fluss").glob("again-*")))
        # What a crash in the middle of a drop would leave.
        leftover = tmp_path / "fluss" / f"again-{ids[0]}" / "kv-0"
        leftover.mkdir(parents=True)
        (leftover / "CURRENT").write_bytes(b"x")
        server.restart()
        eventually(lambda: not leftover.parent.exists())
    with embedded.start(data_dir=tmp_path) as server, requests_to(server) as requests:
        assert KeyTable(requests, kept.info).lookup((1,)) == [(1, "a", "b")]
