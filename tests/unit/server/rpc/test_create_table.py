"""Which tables can be created, with which code and in which order others are refused, and what is stored.

One case per rule, sent as JSON over a socket; after a refusal nothing may be left of the table.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from fluss.errors import FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from tests.unit.server.coordinator.support import NOW_MS, create_request, descriptor, path

ROW = {"type": "ROW", "fields": [{"name": "x", "field_type": {"type": "INTEGER"}}]}
ARRAY = {"type": "ARRAY", "element_type": {"type": "INTEGER"}}
MAP = {"type": "MAP", "key_type": {"type": "STRING"}, "value_type": {"type": "INTEGER"}}
DECIMAL = {"type": "DECIMAL", "precision": 10, "scale": 2}
AUTO = {"table.auto-partition.enabled": "true"}


def _pk(properties=None, **more) -> bytes:
    return descriptor(primary_key=["id"], properties=properties, **more)


def _log(properties=None, **more) -> bytes:
    return descriptor(properties=properties, **more)


def _partitioned(properties=None, *, columns=None, keys=("day",)) -> bytes:
    columns = columns or {"id": "INTEGER", "day": "STRING", "region": "STRING"}
    return descriptor(columns, partition_key=list(keys), properties=properties)


# Structure: all of it has code 15

STRUCTURE = {
    "not JSON": b"{",
    "an empty primary key": descriptor(primary_key=[]),
    "a primary key that is no column": descriptor(primary_key=["x"]),
    "a column twice in the primary key": descriptor(primary_key=["id", "id"]),
    "two columns of one name": json.dumps(
        {
            "version": 1,
            "schema": {"columns": [{"name": "a", "data_type": {"type": "INTEGER"}}] * 2},
            "partition_key": [],
            "properties": {},
            "custom_properties": {},
        }
    ).encode(),
    "a blank column name": descriptor({" ": "INTEGER"}),
    "an unknown type": descriptor({"id": "NUMBER"}),
    "a type out of range": descriptor({"id": {"type": "DECIMAL", "precision": 39, "scale": 0}}),
    "an id that is given twice": json.dumps(
        {
            "version": 1,
            "schema": {
                "columns": [
                    {"name": "a", "data_type": {"type": "INTEGER"}, "id": 1},
                    {"name": "b", "data_type": {"type": "INTEGER"}, "id": 1},
                ]
            },
            "partition_key": [],
            "properties": {},
            "custom_properties": {},
        }
    ).encode(),
    "a highest field id below an id": descriptor(
        schema={"columns": [{"name": "a", "data_type": {"type": "INTEGER"}, "id": 5}], "highest_field_id": 4}
    ),
    "two auto increment columns": descriptor(
        {"id": "INTEGER", "a": "INTEGER", "b": "INTEGER"},
        primary_key=["id"],
        schema={"auto_increment_column": ["a", "b"]},
    ),
    "an auto increment column in a log table": descriptor(schema={"auto_increment_column": ["id"]}),
    "an auto increment column in the primary key": _pk(schema={"auto_increment_column": ["id"]}),
    "an auto increment column that is missing": _pk(schema={"auto_increment_column": ["x"]}),
    "an auto increment column of text": _pk(schema={"auto_increment_column": ["name"]}),
    "a function on a primary key column": _pk(functions={"id": {"type": "sum"}}),
    "a partition key outside the primary key": descriptor(primary_key=["id"], partition_key=["name"]),
    "a primary key that is all partition keys": descriptor(primary_key=["id"], partition_key=["id"]),
    "a partition key that is no column": descriptor(partition_key=["x"]),
    "a bucket key that is no column": descriptor(bucket_key=["x"], bucket_count=1),
    "a bucket key that is a partition key": descriptor(partition_key=["name"], bucket_key=["name"], bucket_count=1),
    "a bucket key outside the primary key": _pk(bucket_key=["name"], bucket_count=1),
    "a bucket count without bucket keys": json.dumps(
        {**json.loads(descriptor()), "bucket_count": 3}  # The key is missing, not empty.
    ).encode(),
    "no buckets": descriptor(bucket_count=0),
    "a negative number of buckets": descriptor(bucket_count=-1, partition_key=["name"]),
    "a property that is null": descriptor(properties={"table.log.ttl": None}),
    "no properties at all": json.dumps(
        {key: value for key, value in json.loads(descriptor()).items() if key != "properties"}
    ).encode(),
}

# Meaning: in the order of the rules

MEANING = {
    "an unknown table property": (39, _log({"table.log.tl": "7 d"})),
    "a property without the prefix": (39, _log({"connector": "fluss"})),
    "a switch that is neither true nor false": (39, _log({"table.datalake.enabled": "yes"})),
    "a number that is none": (39, _log({"table.replication.factor": "one"})),
    "a duration without a unit": (39, _log({"table.log.ttl": "7"})),
    "a choice that is none": (39, _log({"table.log.format": "AVRO"})),
    "a time zone that is none": (39, _partitioned({"table.auto-partition.time-zone": "Mars/Phobos"})),
    "a merge engine that is none": (39, _pk({"table.merge-engine": "last_row"})),
    "too many buckets": (49, _log(bucket_count=4097)),
    "an array as bucket key": (15, descriptor({"id": ARRAY}, bucket_key=["id"], bucket_count=1)),
    "a map as bucket key": (15, descriptor({"id": MAP}, bucket_key=["id"], bucket_count=1)),
    "a row as bucket key": (15, descriptor({"id": ROW}, bucket_key=["id"], bucket_count=1)),
    "an array in the primary key": (
        15,
        descriptor({"id": "INTEGER", "b": ARRAY}, primary_key=["id", "b"], bucket_key=["id"], bucket_count=1),
    ),
    "no replica": (39, _log({"table.replication.factor": "0"})),
    "a negative number of replicas": (39, _log({"table.replication.factor": "-1"})),
    "two replicas": (17, _log({"table.replication.factor": "2"})),
    "two replicas of a partitioned table": (17, _partitioned({"table.replication.factor": "2"})),
    "compacted rows with an indexed changelog": (39, _pk({"table.log.format": "INDEXED"})),
    "a compression level of 0": (39, _log({"table.log.arrow.compression.zstd.level": "0"})),
    "a compression level of 23": (39, _log({"table.log.arrow.compression.zstd.level": "23"})),
    "a function without the aggregation engine": (39, _pk(functions={"name": {"type": "max"}})),
    "a function with another engine": (
        39,
        _pk({"table.merge-engine": "first_row"}, functions={"name": {"type": "max"}}),
    ),
    "a merge engine on a log table": (39, _log({"table.merge-engine": "first_row"})),
    "versioned without a version column": (39, _pk({"table.merge-engine": "versioned"})),
    "versioned with a missing column": (
        39,
        _pk({"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "x"}),
    ),
    "versioned with a column of text": (
        39,
        _pk({"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "name"}),
    ),
    "aggregation with a WAL image": (39, _pk({"table.merge-engine": "aggregation", "table.changelog.image": "WAL"})),
    "a sum of texts": (39, _pk({"table.merge-engine": "aggregation"}, functions={"name": {"type": "sum"}})),
    "an empty delimiter": (
        39,
        _pk(
            {"table.merge-engine": "aggregation"},
            functions={"name": {"type": "listagg", "parameters": {"delimiter": ""}}},
        ),
    ),
    "a delete behaviour on a log table": (39, _log({"table.delete.behavior": "ignore"})),
    "deletes allowed for first_row": (39, _pk({"table.merge-engine": "first_row", "table.delete.behavior": "ALLOW"})),
    "deletes allowed for versioned": (
        39,
        descriptor(
            {"id": "INTEGER", "v": "BIGINT"},
            primary_key=["id"],
            properties={
                "table.merge-engine": "versioned",
                "table.merge-engine.versioned.ver-column": "v",
                "table.delete.behavior": "allow",
            },
        ),
    ),
    "no local segments": (39, _log({"table.log.tiered.local-segments": "0"})),
    "a local TTL above the TTL": (39, _log({"table.log.ttl": "1 h", "table.log.local-ttl": "2 h"})),
    "a historical partition without its needs": (39, _log({"table.datalake.historical-partition.enabled": "true"})),
    "auto partition without partitions": (39, _log(AUTO)),
    "a decimal as partition key": (15, _partitioned(columns={"id": "INTEGER", "day": DECIMAL})),
    "an array as partition key": (15, _partitioned(columns={"id": "INTEGER", "day": ARRAY})),
    "a time format without its fields": (
        15,
        _partitioned({"table.auto-partition.time-format": "yyyy-MM"}),
    ),
    "a time format in the wrong order": (
        15,
        _partitioned({**AUTO, "table.auto-partition.time-format": "dd-MM-yyyy"}),
    ),
    "auto partition by several keys, none named": (15, _partitioned(AUTO, keys=("day", "region"))),
    "auto partition by a key that is none": (
        15,
        _partitioned({**AUTO, "table.auto-partition.key": "id"}, keys=("day", "region")),
    ),
    "partitions ahead with several keys": (
        15,
        _partitioned(
            {**AUTO, "table.auto-partition.key": "day", "table.auto-partition.num-precreate": "2"},
            keys=("day", "region"),
        ),
    ),
    "a date key by hour": (
        15,
        _partitioned({**AUTO, "table.auto-partition.time-unit": "HOUR"}, columns={"id": "INTEGER", "day": "DATE"}),
    ),
    "a date key in the default format": (15, _partitioned(AUTO, columns={"id": "INTEGER", "day": "DATE"})),
    "a reserved column name": (15, descriptor({"id": "INTEGER", "__offset": "BIGINT"})),
    "statistics on a primary-key table": (39, _pk({"table.statistics.columns": "*"})),
    "statistics of nothing": (39, _log({"table.statistics.columns": ""})),
    "statistics of a missing column": (39, _log({"table.statistics.columns": "id,x"})),
    "statistics of bytes": (39, descriptor({"id": "BYTES"}, properties={"table.statistics.columns": "id"})),
    "a lake the cluster does not have": (15, _log({"table.datalake.enabled": "true"})),
    "a version of keys from the future": (39, _pk({"table.kv.format-version": "3"})),
    "a version of keys before the first": (39, _pk({"table.kv.format-version": "0"})),
}


@pytest.mark.parametrize("table_json", STRUCTURE.values(), ids=STRUCTURE.keys())
async def test_a_descriptor_without_the_right_structure_is_refused(make_cluster, table_json):
    async with make_cluster() as cluster:
        error = await cluster.refused(apis.CREATE_TABLE, create_request("fluss.t", table_json))
        assert error.error_code == 15, error
        assert not cluster.catalog.tables()
        assert not cluster.host.events


@pytest.mark.parametrize(("code", "table_json"), MEANING.values(), ids=MEANING.keys())
async def test_a_table_that_makes_no_sense_is_refused(make_cluster, code, table_json):
    async with make_cluster() as cluster:
        error = await cluster.refused(apis.CREATE_TABLE, create_request("fluss.t", table_json))
        assert error.error_code == code, error
        assert not cluster.catalog.tables()
        assert not cluster.host.events


ALLOWED = {
    "all formats of a log": [_log({"table.log.format": name}) for name in ("arrow", "INDEXED", "Compacted")],
    "indexed rows with an Arrow changelog": [_pk({"table.kv.format": "INDEXED", "table.log.format": "ARROW"})],
    "indexed rows with an indexed changelog": [_pk({"table.kv.format": "INDEXED", "table.log.format": "INDEXED"})],
    "compacted rows with a compacted changelog": [_pk({"table.log.format": "COMPACTED"})],
    "the most buckets": [_log(bucket_count=4096)],
    "deletes allowed for aggregation": [_pk({"table.merge-engine": "aggregation", "table.delete.behavior": "allow"})],
    "the edges of compression levels": [
        _log({"table.log.arrow.compression.zstd.level": level}) for level in ("1", "22")
    ],
    "a lake format without a lake": [_log({"table.datalake.format": "paimon"})],
    "a local TTL when records are kept for ever": [_log({"table.log.ttl": "0ms", "table.log.local-ttl": "1 d"})],
    "statistics of all columns": [_log({"table.statistics.columns": "*"})],
    "a date key by day": [
        _partitioned(
            {**AUTO, "table.auto-partition.time-format": "yyyy-MM-dd"}, columns={"id": "INTEGER", "day": "DATE"}
        )
    ],
    "bucket keys in another order than the primary key": [
        descriptor({"a": "INTEGER", "b": "INTEGER"}, primary_key=["a", "b"], bucket_key=["b", "a"], bucket_count=3)
    ],
    "an unknown function, which is dropped": [_pk(functions={"name": {"type": "median"}})],
    "a table without columns": [descriptor(schema={"columns": []})],
}


@pytest.mark.parametrize("table_jsons", ALLOWED.values(), ids=ALLOWED.keys())
async def test_what_is_allowed_is_created(make_cluster, table_jsons):
    async with make_cluster() as cluster:
        for number, table_json in enumerate(table_jsons):
            await cluster.create(f"fluss.t{number}", table_json)


# Order


async def test_names_are_looked_at_before_anything_else(make_cluster):
    async with make_cluster() as cluster:
        assert await cluster.code(apis.CREATE_TABLE, create_request("__d.t", b"{")) == 16
        assert await cluster.code(apis.CREATE_TABLE, create_request("missing.a b", b"{")) == 15


async def test_the_descriptor_is_looked_at_before_the_database(make_cluster):
    async with make_cluster() as cluster:
        bad = _log({"table.x": "1"})
        assert await cluster.code(apis.CREATE_TABLE, create_request("missing.t", bad)) == 39
        error = await cluster.refused(apis.CREATE_TABLE, create_request("missing.t", descriptor()))
        assert (error.error_code, error.message) == (4, "Database missing does not exist.")
        assert await cluster.code(apis.CREATE_TABLE, create_request("missing.t", descriptor(), ignore=True)) == 4


async def test_an_existing_table_is_refused_or_left_alone_but_never_with_a_bad_descriptor(make_cluster):
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", descriptor())
        error = await cluster.refused(apis.CREATE_TABLE, create_request("fluss.t", descriptor()))
        assert (error.error_code, error.message) == (8, "Table fluss.t already exists.")
        again = await cluster.create("fluss.t", descriptor(bucket_count=5), ignore=True)
        assert again is table
        bad = create_request("fluss.t", _log({"table.x": "1"}), ignore=True)
        assert await cluster.code(apis.CREATE_TABLE, bad) == 39


async def test_kinds_of_tables_can_be_forbidden(make_cluster):
    async with make_cluster(settings={"log_tables_allowed": False}) as cluster:
        assert await cluster.code(apis.CREATE_TABLE, create_request("fluss.t", descriptor())) == 15
        await cluster.create("fluss.k", _pk())
    async with make_cluster(settings={"kv_tables_allowed": False}) as cluster:
        assert await cluster.code(apis.CREATE_TABLE, create_request("fluss.k2", _pk())) == 15
        await cluster.create("fluss.t", descriptor())


async def test_an_unknown_property_comes_with_the_nearest_match(make_cluster):
    async with make_cluster() as cluster:
        error = await cluster.refused(apis.CREATE_TABLE, create_request("fluss.t", _log({"table.log.tll": "1 d"})))
        assert "did you mean 'table.log.ttl'?" in error.message


# What is stored


async def test_a_primary_key_table_gets_its_defaults(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", _pk())
        response, described = await cluster.info("fluss.t")
        assert (response.table_id, response.schema_id) == (0, 1)
        assert (response.created_time, response.modified_time) == (NOW_MS, NOW_MS)
        assert described == {
            "version": 1,
            "schema": {
                "version": 1,
                "columns": [
                    {"name": "id", "data_type": {"type": "INTEGER", "nullable": False}, "id": 0},
                    {"name": "name", "data_type": {"type": "STRING"}, "id": 1},
                ],
                "primary_key": ["id"],
                "highest_field_id": 1,
            },
            "partition_key": [],
            "bucket_key": ["id"],
            "bucket_count": 1,
            "properties": {
                "table.replication.factor": "1",
                "table.kv.format-version": "2",
                "table.kv.standby-replica.enabled": "true",
            },
            "custom_properties": {},
        }


async def test_a_log_table_gets_buckets_and_replicas_only(make_cluster):
    async with make_cluster(settings={"default_bucket_count": 3}) as cluster:
        await cluster.create("fluss.t", descriptor(comment="words"))
        described = (await cluster.info("fluss.t"))[1]
        assert described["bucket_count"] == 3
        assert described["bucket_key"] == []
        assert described["properties"] == {"table.replication.factor": "1"}
        assert described["comment"] == "words"
        assert "primary_key" not in described["schema"]


async def test_what_was_sent_comes_back_letter_by_letter(make_cluster):
    async with make_cluster() as cluster:
        sent = {
            "table.log.format": "arrow",
            "table.log.ttl": " 7  Days",
            "table.replication.factor": "+1",
            "table.datalake.enabled": "FALSE",
        }
        custom = {"client.connect-timeout": "1s", "naïve": "ü"}
        await cluster.create("fluss.t", descriptor(properties=sent, custom_properties=custom))
        described = (await cluster.info("fluss.t"))[1]
        assert described["properties"] == sent
        assert described["custom_properties"] == custom


@pytest.mark.parametrize("engine", ["first_row", "VERSIONED", "aggregation"])
async def test_tables_with_a_merge_engine_ignore_deletes(make_cluster, engine):
    async with make_cluster() as cluster:
        properties = {"table.merge-engine": engine, "table.merge-engine.versioned.ver-column": "v"}
        await cluster.create(
            "fluss.t", descriptor({"id": "INTEGER", "v": "BIGINT"}, primary_key=["id"], properties=properties)
        )
        described = (await cluster.info("fluss.t"))[1]["properties"]
        assert (described["table.merge-engine"], described["table.delete.behavior"]) == (engine, "IGNORE")


async def test_an_explicit_version_of_keys_is_kept(make_cluster):
    async with make_cluster() as cluster:
        properties = {"table.kv.format-version": "1", "table.datalake.format": "paimon"}
        await cluster.create(
            "fluss.t",
            descriptor(
                {"a": "INTEGER", "b": "INTEGER"}, primary_key=["a", "b"], bucket_key=["a"], bucket_count=3
            ).replace(b'"properties": {}', b'"properties": ' + json.dumps(properties).encode()),
        )
        assert (await cluster.info("fluss.t"))[1]["properties"]["table.kv.format-version"] == "1"


async def test_bucket_keys_default_to_the_primary_key_without_partition_keys(make_cluster):
    async with make_cluster() as cluster:
        columns = {"a": "INTEGER", "day": "STRING", "b": "INTEGER"}
        await cluster.create("fluss.t", descriptor(columns, primary_key=["b", "day", "a"], partition_key=["day"]))
        assert (await cluster.info("fluss.t"))[1]["bucket_key"] == ["b", "a"]


async def test_several_partition_keys_mean_no_partitions_ahead(make_cluster):
    async with make_cluster() as cluster:
        table_json = _partitioned({**AUTO, "table.auto-partition.key": "day"}, keys=("day", "region"))
        await cluster.create("fluss.t", table_json)
        assert (await cluster.info("fluss.t"))[1]["properties"]["table.auto-partition.num-precreate"] == "0"
        assert await cluster.partitions("fluss.t") == {}


async def test_fields_without_ids_are_numbered_depth_first(make_cluster):
    async with make_cluster() as cluster:

        def row(*fields):
            return {"type": "ROW", "fields": [{"name": name, "field_type": kind} for name, kind in fields]}

        nested = row(("x", {"type": "INTEGER"}), ("label", {"type": "STRING"}))
        deep = row(("inner", row(("n", {"type": "INTEGER"}))))
        await cluster.create("fluss.t", descriptor({"id": "INTEGER", "nested": nested, "deep": deep}))
        schema = (await cluster.info("fluss.t"))[1]["schema"]
        assert [column["id"] for column in schema["columns"]] == [0, 1, 4]
        _, nested_column, deep_column = schema["columns"]
        assert [field["field_id"] for field in nested_column["data_type"]["fields"]] == [2, 3]
        (inner,) = deep_column["data_type"]["fields"]
        assert inner["field_id"] == 5
        assert inner["field_type"]["fields"][0]["field_id"] == 6
        assert schema["highest_field_id"] == 6


async def test_the_cluster_s_lake_format_is_recorded(make_cluster):
    async with make_cluster() as cluster:
        change = pb.PbAlterConfig(config_key="datalake.format", config_value="paimon", op_type=0)
        await cluster.ask(apis.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest(alter_configs=[change]))
        await cluster.create("fluss.t", _log({"table.datalake.enabled": "true"}))
        assert (await cluster.info("fluss.t"))[1]["properties"]["table.datalake.format"] == "paimon"
        other = _log({"table.datalake.enabled": "true", "table.datalake.format": "iceberg"})
        assert await cluster.code(apis.CREATE_TABLE, create_request("fluss.u", other)) == 39


# Ids and buckets


async def test_ids_count_from_zero_and_are_never_used_again(make_cluster):
    async with make_cluster() as cluster:
        ids = [(await cluster.create(f"fluss.t{number}", descriptor())).table_id for number in range(3)]
        assert ids == [0, 1, 2]
        for _ in range(3):
            drop = pb.DropTableRequest(table_path=path("fluss.t2"), ignore_if_not_exists=False)
            await cluster.ask(apis.DROP_TABLE, drop)
            ids.append((await cluster.create("fluss.t2", descriptor())).table_id)
        assert ids == [0, 1, 2, 3, 4, 5]


async def test_buckets_are_ready_when_the_answer_comes(make_cluster):
    async with make_cluster() as cluster:
        plain = await cluster.create("fluss.t", descriptor())
        assert cluster.host.open == {(plain.table_id, None)}
        await cluster.create("fluss.p", _partitioned())
        # A partitioned table has buckets only in its partitions.
        assert cluster.host.open == {(plain.table_id, None)}


@pytest.mark.parametrize("failure", [FlussError("no room", 26), RuntimeError("a bug")])
async def test_nothing_is_left_of_a_table_whose_buckets_cannot_be_opened(make_cluster, failure):
    async with make_cluster() as cluster:
        cluster.host.failure = failure
        code = await cluster.code(apis.CREATE_TABLE, create_request("fluss.t", descriptor()))
        assert code == (26 if isinstance(failure, FlussError) else -1)
        assert not cluster.catalog.tables()
        assert [event[0] for event in cluster.host.events] == ["open", "drop"]
        cluster.host.failure = None
        await cluster.create("fluss.t", descriptor())
    async with make_cluster() as cluster:
        assert [str(table.path) for table in cluster.catalog.tables()] == ["fluss.t"]


async def test_of_many_clients_that_create_one_table_one_succeeds(make_cluster):
    async with make_cluster() as cluster:
        requests = [cluster.ask(apis.CREATE_TABLE, create_request("fluss.t", descriptor())) for _ in range(20)]
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [getattr(result, "error_code", 0) for result in results].count(0) == 1
        assert {result.error_code for result in results if isinstance(result, FlussError)} == {8}
        assert len(cluster.host.open) == 1


async def test_a_table_is_finished_even_if_its_creator_hangs_up(make_cluster):
    async with make_cluster() as cluster:
        gate = asyncio.Event()
        opened = asyncio.Event()
        open_buckets = cluster.host.open_buckets

        async def slow(table, partition):
            opened.set()
            await gate.wait()
            await open_buckets(table, partition)

        cluster.host.open_buckets = slow
        other = await cluster.connect()
        request = asyncio.create_task(
            cluster.ask(apis.CREATE_TABLE, create_request("fluss.t", descriptor()), channel=other)
        )
        await opened.wait()
        await other.close()
        with pytest.raises(FlussError):
            await request
        gate.set()
        exists = pb.TableExistsRequest(table_path=path("fluss.t"))
        while not (await cluster.ask(apis.TABLE_EXISTS, exists)).exists:
            await asyncio.sleep(0.001)
