"""A client that lies to a primary-key table, or wants too much of it, is refused; rows, changelog and others stay well.
Shown by raw requests to a server process: a batch for each lie, small requests that would become large, and floods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import DataTypes, TablePath, blocking
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import BucketRecords
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.row import compacted
from fluss.schema.table_options import KvFormat
from fluss.testing.cluster import ServerProcess
from tests.integration import lying_keys
from tests.integration.hostile import RawConnection
from tests.integration.key_requests import Delete, KeyTable, Requests, schema_id_of
from tests.integration.keyed_tables import Copy, poll_until

MIB = 1024 * 1024
# All attacks of this file together; an idle server has about 100 MiB, answers may hold 256 MiB and writes as much.
RSS_BYTES_MAX = 1400 * MIB
# What one small request may take for a moment. Each of these would take two gigabytes or more.
GROWTH_BYTES_MAX = 600 * MIB
PASSWORDS = {"alice": "cockatoo-5", "bob": "platypus-9"}
ABC = fluss.Schema(pa.schema([("id", pa.int32()), ("a", pa.string()), ("b", pa.string())]), primary_keys=["id"])
INSERT = {"insert_if_not_exists": True, "acks": -1, "timeout_ms": 10_000}
CONFIG = f"""
bind.listeners: PLAIN://127.0.0.1:0, CLIENT://127.0.0.1:0
security.protocol.map: CLIENT:sasl
security.sasl.plain.credentials: {",".join(f"{name}:{password}" for name, password in PASSWORDS.items())}
durability: os
"""


class Prey:
    """A server, what it may be attacked with, and tables that nobody else uses."""

    def __init__(self, server: ServerProcess, requests: Requests) -> None:
        self.server = server
        self.requests = requests
        self.connection = blocking.FlussConnection.create(fluss.Config({"bootstrap.servers": server.bootstrap_servers}))
        self.admin = self.connection.get_admin()
        self._count = 0

    def create(self, schema: fluss.Schema = ABC, **descriptor: Any) -> KeyTable:
        self._count += 1
        path = TablePath("fluss", f"prey_{self._count}")
        self.admin.create_table(path, fluss.TableDescriptor(schema, **{"bucket_count": 1, **descriptor}))
        return KeyTable(self.requests, self.admin.get_table_info(path))

    def table(self, prey: KeyTable) -> blocking.FlussTable:
        return self.connection.get_table(prey.info.table_path)

    def row_counts(self) -> dict[str, int]:
        """Return how many rows the first tables have, which reads all of them."""
        names = [
            name for number in range(1, 9) if self.admin.table_exists(TablePath("fluss", name := f"prey_{number}"))
        ]
        tables = {name: self.connection.get_table(TablePath("fluss", name)) for name in names}
        return {name: table.to_arrow(columns=["id"]).num_rows for name, table in tables.items()}

    def memory_bytes(self, field: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.server.process_id}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
        return int(line.split()[1]) * 1024

    @contextmanager
    def taking_little(self) -> Iterator[None]:
        """What happens in the block must neither take long nor take much memory, for however short a time."""
        Path(f"/proc/{self.server.process_id}/clear_refs").write_text("5")
        before, begun = self.memory_bytes(), time.monotonic()
        yield
        assert self.memory_bytes("VmHWM") - before < GROWTH_BYTES_MAX
        assert time.monotonic() - begun < 60


@contextmanager
def channel_to(port: int, credentials: Credentials | None = None) -> Iterator[Requests]:
    channel = wait_for(Channel.connect("127.0.0.1", port, credentials=credentials))
    try:
        yield Requests(channel)
    finally:
        wait_for(channel.close())


@pytest.fixture(scope="module")
def prey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prey]:
    directory = tmp_path_factory.mktemp("hostile_keys")
    (directory / "server.yaml").write_text(CONFIG)
    with ServerProcess(directory / "data", "--config", str(directory / "server.yaml")) as server:
        with channel_to(server.port) as requests:
            prey = Prey(server, requests)
            yield prey
            kept = prey.row_counts()
            prey.connection.close()
            peak_bytes = prey.memory_bytes("VmHWM")
        # Nothing that was taken is found to be wrong only when the changelog is replayed.
        server.kill()
        server.start()
        with channel_to(server.port) as requests:
            restarted = Prey(server, requests)
            assert restarted.row_counts() == kept
            restarted.connection.close()
        assert server.stop() == 0
        assert "Traceback" not in server.log_text
        assert not any(password in server.log_text for password in PASSWORDS.values())
        assert peak_bytes < RSS_BYTES_MAX


def everything(prey: Prey, table: KeyTable) -> dict[int, dict[str, Any]]:
    """Read a table in every way there is. All of them must find the same rows."""
    reader = prey.table(table)
    rows = {row["id"]: row for row in reader.to_arrow().to_pylist()}
    if table.info.num_buckets == 1:
        # Otherwise a client looks where the keys should be, and not where they were put.
        looked_up = reader.new_lookup().create_lookuper().lookup_many([{"id": id} for id in rows])
        assert {row["id"]: row for row in looked_up.to_pylist()} == rows
    buckets = [fluss.TableBucket(table.info.table_id, number) for number in range(table.info.num_buckets)]
    limited = [reader.new_scan().limit(1000).create_bucket_batch_scanner(bucket).to_arrow() for bucket in buckets]
    assert {row["id"]: row for part in limited for row in part.to_pylist()} == rows
    copy = Copy("id")
    scanner = reader.new_scan().create_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(len(buckets)), fluss.EARLIEST_OFFSET))
    change_count = sum(len(table.changelog(bucket=number)) for number in range(len(buckets)))
    poll_until(lambda: copy.apply_records(scanner.poll(200)), lambda: copy.change_count == change_count)
    assert {id: row["name"] for id, row in copy.rows.items()} == {id: row["name"] for id, row in rows.items()}
    return rows


# Lies


@pytest.mark.parametrize("row_format", list(KvFormat), ids=lambda row_format: row_format.value)
def test_a_lie_is_refused_and_nothing_has_changed(prey: Prey, row_format: KvFormat) -> None:
    table = prey.create(lying_keys.schema(), bucket_count=2, kv_format=row_format.value)
    table.put_answers(BucketRecords(0, lying_keys.good_batch(row_format, 1, 2, 3)))
    keys = [lying_keys.key(number) for number in (1, 2, 3, 7)]
    before = table.lookup_answer(*keys)
    assert [schema_id_of(found.values) for found in before.values[:3]] == [1, 1, 1]
    neighbour = BucketRecords(1, lying_keys.good_batch(row_format, 7))
    for lie in lying_keys.lies(row_format):
        answers = table.put_answers(BucketRecords(0, lie.batch), neighbour)
        assert [answer.error_code for answer in answers] == [lie.code, 0], lie.name
        assert len(answers[0].error_message) > 20, lie.name
        assert len(answers[0].error_message) < 1000, lie.name
        assert table.offset_end(0) == 3, lie.name
        assert table.lookup_answer(*keys) == before, lie.name
    assert table.row_counts(0, 1) == [3, 1]
    assert set(everything(prey, table)) == {1, 2, 3, 7}


def test_what_is_strange_and_right_is_taken(prey: Prey) -> None:
    compact = KvFormat.COMPACTED
    table = prey.create(lying_keys.schema())
    record = lying_keys.record(lying_keys.key(1), lying_keys.row(compact, 1))
    deletes = [lying_keys.record(b"\xff" * length) for length in range(1, 200)]
    strange = {
        "no records": lying_keys.sealed([]),
        "unknown attributes": lying_keys.sealed([record], attributes=127),
        "negative writer": lying_keys.sealed([record], writer=-(2**63), sequence=0),
        "sequence without a writer": lying_keys.sealed([record], sequence=2**31 - 1),
        "deletes of what no key can be": lying_keys.sealed(deletes),
    }
    for name, batch in strange.items():
        end_before = table.offset_end()
        (answer,) = table.put_answers(BucketRecords(0, batch))
        assert not answer.error_code, (name, answer)
        assert answer.log_end_offset > end_before, name
    for agg_mode in (0, 1, 2, -1, 2**31 - 1):
        (answer,) = table.put_answers(BucketRecords(0, lying_keys.sealed([record])), agg_mode=agg_mode)
        assert not answer.error_code
    # The buckets of a request are carried out in its order, however often one comes.
    same = [BucketRecords(0, lying_keys.good_batch(compact, number)) for number in (4, 5, 4, 6)]
    answers = table.put_answers(*same)
    assert [answer.log_end_offset for answer in answers] == sorted(answer.log_end_offset for answer in answers)
    assert set(everything(prey, table)) == {1, 4, 5, 6}


def test_one_key_may_come_a_hundred_thousand_times_in_a_batch(prey: Prey) -> None:
    table = prey.create()
    key, types = table.key((1,)), table.info.schema.data_types
    rows = [compacted.encode_row(types, (1, f"a{number}", None)) for number in range(100_000)]
    with prey.taking_little():
        batch = lying_keys.sealed([lying_keys.record(key, row) for row in rows])
        (answer,) = table.put_answers(BucketRecords(0, batch))
        assert answer.log_end_offset == 199_999
        in_turns = [record for row in rows[:20_000] for record in (lying_keys.record(key), lying_keys.record(key, row))]
        (answer,) = table.put_answers(BucketRecords(0, lying_keys.sealed(in_turns)))
        assert answer.log_end_offset == 199_999 + 40_000
    assert table.lookup((1,)) == [(1, "a19999", None)]
    assert table.row_counts(0) == [1]


def test_a_row_near_the_limit_is_kept_whole(prey: Prey) -> None:
    table = prey.create()
    large = "x" * (33 * MIB)
    table.put((1, large, "small"))
    assert table.lookup((1,)) == [(1, large, "small")]
    table.put((2, None, large))
    # Both together are more than one answer may have.
    answer = table.lookup_answer(table.key((1,)), table.key((2,)))
    assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert table.prefix_answer(b"\1", b"\2").error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert [len(found.values) for found in table.prefix_answer(b"\1").value_lists] == [1]
    assert prey.table(table).to_arrow().num_rows == 2
    prey.admin.drop_table(table.info.table_path)


# Small requests that would become large


@pytest.mark.parametrize(
    "targets",
    [[3], [-1], [2**31 - 1, -(2**31)], [1, 2], [0, 3], list(range(100_000)), [0, *range(-100_000, 0)]],
    ids=["unknown", "negative", "edges", "no key", "one too many", "all there are", "all there are not"],
)
def test_target_columns_that_cannot_be_are_refused(prey: Prey, targets: list[int]) -> None:
    table = prey.create(bucket_count=3)
    batch = table.batch((1, "a", "b"))
    with prey.taking_little():
        answers = table.put_answers(*[BucketRecords(number % 3, batch) for number in range(3000)], targets=targets)
    assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_TARGET_COLUMN}
    assert [table.offset_end(number) for number in range(3)] == [0, 0, 0]


def test_target_columns_may_come_more_than_once(prey: Prey) -> None:
    table = prey.create()
    table.put((1, "a", "b"))
    with prey.taking_little():
        table.put((1, None, "c"), targets=[2, 0] * 100_000)
    assert table.lookup((1,)) == [(1, "a", "c")]


def wide_nulls(prey: Prey) -> tuple[KeyTable, bytes, list[int]]:
    columns = pa.schema([("id", pa.int32()), *((f"c{number}", pa.decimal128(38, 2)) for number in range(900))])
    table = prey.create(fluss.Schema(columns, primary_keys=["id"]))
    types = table.info.schema.data_types
    nulls = compacted.encode_row(types, (1, *[None] * 900))
    return table, lying_keys.sealed([lying_keys.record(b"\1", nulls)] * 100_000), []


def null_structs(prey: Prey) -> tuple[KeyTable, bytes, list[int]]:
    struct = DataTypes.row([fluss.DataField(f"f{number}", DataTypes.decimal(38, 2)) for number in range(900)])
    builder = fluss.Schema.builder().column("id", DataTypes.int()).column("list", DataTypes.array(struct))
    table = prey.create(builder.primary_key(["id"]).build())
    row = compacted.encode_row(table.info.schema.data_types, (1, [None] * 100_000))
    return table, lying_keys.sealed([lying_keys.record(b"\1", row)]), []


def updates_of_a_large_row(prey: Prey) -> tuple[KeyTable, bytes, list[int]]:
    table = prey.create()
    table.put((1, "a" * MIB, None))
    return table, bytes(table.batch(*[(1, None, "b")] * 5000)), [0, 2]


def partial_deletes_of_a_large_row(prey: Prey) -> tuple[KeyTable, bytes, list[int]]:
    table = prey.create()
    table.put((1, "a" * MIB, "b"))
    return table, bytes(table.batch(*[Delete((1,))] * 5000)), [0, 2]


def texts_that_grow(prey: Prey) -> tuple[KeyTable, bytes, list[int]]:
    columns = pa.schema([("id", pa.int32()), ("text", pa.string())])
    schema = fluss.Schema(columns, primary_keys=["id"], aggregations={"text": "listagg"})
    table = prey.create(schema, properties={"table.merge-engine": "aggregation"})
    return table, bytes(table.batch(*[(1, "0123456789")] * 50_000)), []


@pytest.mark.parametrize(
    "attack",
    [
        wide_nulls,
        null_structs,
        updates_of_a_large_row,
        partial_deletes_of_a_large_row,
        texts_that_grow,
    ],
)
def test_a_batch_that_would_take_gigabytes_is_refused(
    prey: Prey, attack: Callable[[Prey], tuple[KeyTable, bytes, list[int]]]
) -> None:
    table, batch, targets = attack(prey)
    assert len(batch) < 15 * MIB
    end_before = table.offset_end()
    with prey.taking_little():
        (answer,) = table.put_answers(BucketRecords(0, batch), targets=targets)
        assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "fewer" in answer.error_message
    assert table.offset_end() == end_before


def test_a_batch_does_not_keep_the_large_request_it_came_in(prey: Prey) -> None:
    table = prey.create()
    one = BucketRecords(0, table.batch((1, "a", None)))
    # These take a while, and nobody waits for them: what comes behind them stays in the queue.
    waiting = replace(table.put_request(*[one] * 4000), timeout_ms=0)
    large = replace(table.put_request(one, BucketRecords(77, bytes(50 * MIB))), timeout_ms=0)
    with prey.taking_little():
        prey.requests.ask(apis.PUT_KV, waiting)
        for _ in range(14):
            answers = prey.requests.ask(apis.PUT_KV, large).buckets_resp
            assert [answer.error_code for answer in answers] == [
                ErrorCode.REQUEST_TIME_OUT,
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            ]


def test_lookups_that_would_find_gigabytes_are_refused(prey: Prey) -> None:
    table = prey.create()
    table.put((1, "a" * (20 * MIB), None))
    key = table.key((1,))
    with prey.taking_little():
        for count in (20, 128, 5000):
            answer = table.lookup_answer(*[key] * count)
            assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
            assert "fewer keys" in answer.error_message
        answer = table.prefix_answer(*[key] * 200)
        assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert table.lookup((1,), (2,)) == [(1, "a" * (20 * MIB), None), None]
    prey.admin.drop_table(table.info.table_path)


def test_lookups_of_very_many_keys_are_answered_or_told_to_come_in_pieces(prey: Prey) -> None:
    table = prey.create()
    table.put((1, "a", None))
    with prey.taking_little():
        answer = table.lookup_answer(*[table.key((1,)), b"\xff"] * 60_000)
        assert [found.HasField("values") for found in answer.values] == [True, False] * 60_000
        with pytest.raises(fluss.FlussError, match="in several pieces"):
            table.lookup_answer(*[b"\xff"] * 1_000_000)
        everything_at_once = table.prefix_answer(*[b"\0", b"\1"] * 1000)
        assert len(everything_at_once.value_lists) == 2000
        assert len(table.limit_scan(2**31 - 1)) == 1


# Floods


def test_insertions_by_lookup_are_made_once_and_only_of_keys(prey: Prey) -> None:
    table = prey.create()
    keys = [table.key((id,)) for id in range(20_000)]
    with prey.taking_little():
        answers = prey.requests.ask_all(apis.LOOKUP, [table.lookup_request(*keys, **INSERT) for _ in range(5)])
    for answer in answers:
        assert [len(bucket.values) for bucket in answer.buckets_resp] == [20_000]
        assert all(found.HasField("values") for found in answer.buckets_resp[0].values)
    assert table.offset_end() < 20_000 + 5, "a batch without effect takes one offset"
    assert table.row_counts(0) == [20_000]
    for no_key in (b"\xff", b"\1\1", b"\x81\x00", b"\1" * 100_000):
        assert table.lookup_answer(no_key, **INSERT).error_code
    assert table.row_counts(0) == [20_000]


def test_scan_sessions_have_a_limit_an_owner_and_an_end(prey: Prey) -> None:
    table = prey.create(bucket_count=2)
    table.put(*[(id, "a" * 1000, None) for id in range(3000)])
    opened = [table.open_scan() for _ in range(300)]
    codes = [answer.error_code or 0 for answer in opened]
    assert codes == [0] * 8 + [ErrorCode.TOO_MANY_SCANNERS] * 292
    first = opened[0]
    others = Credentials("bob", PASSWORDS["bob"])
    with channel_to(prey.server.ports["CLIENT"], others) as stranger:
        rest = pb.ScanKvRequest(scanner_id=bytes(first.scanner_id), call_seq_id=1, batch_size_bytes=MIB)
        assert stranger.ask(apis.SCAN_KV, rest).error_code == ErrorCode.UNKNOWN_SCANNER_ID
        close = pb.ScanKvRequest(scanner_id=bytes(first.scanner_id), close_scanner=True)
        assert not stranger.ask(apis.SCAN_KV, close).error_code
    assert prey.requests.ask(apis.SCAN_KV, rest).error_code is None, "nobody else has moved or closed it"
    prey.admin.drop_table(table.info.table_path)
    for answer in opened[1:8]:
        rest = pb.ScanKvRequest(scanner_id=bytes(answer.scanner_id), call_seq_id=1, batch_size_bytes=MIB)
        assert prey.requests.ask(apis.SCAN_KV, rest).error_code == ErrorCode.SCANNER_EXPIRED
    again = prey.create()
    again.put((1, "a", None))
    assert again.open_scan().error_code is None


@pytest.mark.slow
def test_clients_that_never_read_what_they_looked_up_hold_little_memory(prey: Prey) -> None:
    table = prey.create()
    for first in range(0, 20_000, 5000):
        table.put(*[(id, "a" * 1000, None) for id in range(first, first + 5000)])
    keys = [table.key((id,)) for id in range(20_000)]
    lookup = table.lookup_request(*keys).SerializeToString()
    scan = pb.ScanKvRequest(
        bucket_scan_req=pb.PbScanReqForBucket(table_id=table.info.table_id, bucket_id=0),
        call_seq_id=0,
        batch_size_bytes=2**31 - 1,
    ).SerializeToString()
    limit = pb.LimitScanRequest(table_id=table.info.table_id, bucket_id=0, limit=2**31 - 1).SerializeToString()
    readers = [RawConnection(prey.server.port) for _ in range(20)]
    try:
        for reader in readers:
            for request_id in range(4):
                reader.send(ApiKey.LOOKUP, request_id, lookup)
                reader.send(ApiKey.SCAN_KV, request_id, scan)
                reader.send(ApiKey.LIMIT_SCAN, request_id, limit)
        # What they want would be gigabytes. Others look up and write meanwhile.
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            table.put((1, "b", None))
            assert table.lookup((1,)) == [(1, "b", None)]
        assert prey.memory_bytes() < RSS_BYTES_MAX
    finally:
        for reader in readers:
            reader.close()
