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
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.record.arrow_batch import decode_arrow_batch
from fluss.record.arrow_ipc import BodyCodec, parse_message
from fluss.record.log_batch import iter_batches
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
            # Those who may not even see the table are told that there is none.
            refused = ErrorCode.AUTHORIZATION_EXCEPTION
            assert set(codes.values()) <= {
                0,
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION if user == "nobody" else refused,
            }
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
        # What was begun before may still go.
        eventually(
            lambda: min(int(file.stem) for file in data_dir.glob("fluss/*/log-0/*.log")) == table.offset(EARLIEST)
        )
        begin = table.offset(EARLIEST)
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
    (store,) = (tmp_path / "1").glob("kv.shared/*")
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
