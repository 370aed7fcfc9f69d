"""Altering tables: columns are only ever added, properties have their own rules, and a refusal changes nothing.

Every request goes over a socket to a coordinator with its metadata in a real file.
"""

from __future__ import annotations

import json

import pytest

from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from tests.unit.server.coordinator.support import NOW_MS, alter_request, descriptor, new_column, path

STRING = {"type": "STRING"}
INTEGER = {"type": "INTEGER"}
THREE_COLUMNS = {"a": "INTEGER", "b": "STRING", "c": "DOUBLE"}


async def _schema_id(cluster, table: str = "fluss.t") -> int:
    return (await cluster.info(table))[0].schema_id


async def _properties(cluster, table: str = "fluss.t") -> dict[str, str]:
    return (await cluster.info(table))[1]["properties"]


async def _set_cluster(cluster, **configs: str) -> None:
    changes = [
        pb.PbAlterConfig(config_key=key.replace("_", "."), config_value=value, op_type=0)
        for key, value in configs.items()
    ]
    await cluster.ask(apis.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest(alter_configs=changes))


# Columns


async def test_two_columns_make_one_new_schema_numbered_depth_first(make_cluster, clock):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor(THREE_COLUMNS))
        clock.now_ms += 1000
        row = {
            "type": "ROW",
            "fields": [{"name": "x", "field_type": INTEGER}, {"name": "y", "field_type": STRING}],
        }
        await cluster.alter("fluss.t", columns=[new_column("d", row, comment="first"), new_column("e", STRING)])
        response, described = await cluster.info("fluss.t")
        assert response.schema_id == 2
        columns = described["schema"]["columns"]
        assert [column["id"] for column in columns] == [0, 1, 2, 3, 6]
        assert [field["field_id"] for field in columns[3]["data_type"]["fields"]] == [4, 5]
        assert columns[3]["comment"] == "first"
        assert described["schema"]["highest_field_id"] == 6
        # A new schema does not count as a modification.
        assert response.modified_time == NOW_MS
        assert [table.schema_id for table in cluster.host.altered] == [2]


COLUMN_REFUSALS = {
    "a column that exists": (56, new_column("a", STRING)),
    "a column that exists and is not nullable": (56, new_column("a", {"type": "STRING", "nullable": False})),
    "a column that is not nullable": (-1, new_column("d", {"type": "STRING", "nullable": False})),
    "a column at the front": (-1, new_column("d", STRING, column_position_type=1)),
    "a reserved name": (15, new_column("__offset", STRING)),
    "a blank name": (15, new_column("  ", STRING)),
    "a type that is none": (15, new_column("d", {"type": "NUMBER"})),
    "a function without the aggregation engine": (39, new_column("d", INTEGER, agg_function_type="sum")),
    "a function that is none": (39, new_column("d", INTEGER, agg_function_type="median")),
}


@pytest.mark.parametrize(("code", "column"), COLUMN_REFUSALS.values(), ids=COLUMN_REFUSALS.keys())
async def test_a_column_that_cannot_be_added_changes_nothing(make_cluster, code, column):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor(THREE_COLUMNS))
        error = await cluster.alter_refused("fluss.t", columns=[new_column("good", STRING), column])
        assert error.error_code == code, error
        assert await _schema_id(cluster) == 1
        assert len((await cluster.info("fluss.t"))[1]["schema"]["columns"]) == 3
        assert not cluster.host.altered


async def test_the_same_new_column_twice_is_refused(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        error = await cluster.alter_refused("fluss.t", columns=[new_column("d", STRING), new_column("d", STRING)])
        assert error.error_code == 56


@pytest.mark.parametrize(
    "change",
    [
        {"drop_columns": [pb.PbDropColumn(column_name="name")]},
        {"rename_columns": [pb.PbRenameColumn(old_column_name="name", new_column_name="n")]},
        {"modify_columns": [pb.PbModifyColumn(column_name="name", comment="c")]},
    ],
    ids=["drop", "rename", "modify"],
)
async def test_other_changes_of_columns_are_not_supported(make_cluster, change):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        assert (await cluster.alter_refused("fluss.t", **change)).error_code == -1
        assert await _schema_id(cluster) == 1


async def test_columns_of_an_aggregating_table_may_have_functions(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create(
            "fluss.t", descriptor(primary_key=["id"], properties={"table.merge-engine": "aggregation"})
        )
        text = new_column(
            "words",
            STRING,
            agg_function_type="LISTAGG",
            agg_function_params=[pb.PbKeyValue(key="delimiter", value=";")],
        )
        await cluster.alter("fluss.t", columns=[text])
        column = (await cluster.info("fluss.t"))[1]["schema"]["columns"][-1]
        assert column["agg_function"] == {"type": "listagg", "parameters": {"delimiter": ";"}}
        wrong = new_column("total", STRING, agg_function_type="sum")
        assert (await cluster.alter_refused("fluss.t", columns=[wrong])).error_code == 39
        wrong = new_column(
            "more", STRING, agg_function_type="listagg", agg_function_params=[pb.PbKeyValue(key="x", value="y")]
        )
        assert (await cluster.alter_refused("fluss.t", columns=[wrong])).error_code == 39


async def test_a_table_whose_field_ids_are_used_up_gets_no_columns(make_cluster):
    async with make_cluster() as cluster:
        columns = [{"name": "a", "data_type": INTEGER, "id": 0}]
        await cluster.create("fluss.t", descriptor(schema={"columns": columns, "highest_field_id": 2**31 - 1}))
        assert (await cluster.alter_refused("fluss.t", columns=[new_column("d", STRING)])).error_code == 56


async def test_a_lake_table_gets_no_columns_while_the_cluster_has_no_lake(make_cluster):
    async with make_cluster() as cluster:
        await _set_cluster(cluster, datalake_format="paimon")
        await cluster.create("fluss.t", descriptor(properties={"table.datalake.enabled": "true"}))
        await _set_cluster(cluster, datalake_enabled="false")
        assert (await cluster.alter_refused("fluss.t", columns=[new_column("d", STRING)])).error_code == 56


# Requests


async def test_columns_and_properties_are_changed_one_after_the_other(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        error = await cluster.alter_refused("fluss.t", values={"a": "1"}, columns=[new_column("d", STRING)])
        assert error.error_code == 56
        assert (await cluster.info("fluss.t"))[1]["custom_properties"] == {}


async def test_an_empty_request_is_a_success(make_cluster, clock):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        clock.now_ms += 1
        await cluster.alter("fluss.t")
        assert (await cluster.info("fluss.t"))[0].modified_time == NOW_MS
        assert not cluster.host.altered


async def test_a_missing_table_is_refused_or_ignored_and_a_bad_name_refused(make_cluster):
    async with make_cluster() as cluster:
        error = await cluster.alter_refused("fluss.t", values={"a": "1"})
        assert (error.error_code, error.message) == (7, "Table 'fluss.t' does not exist.")
        await cluster.alter("fluss.t", values={"a": "1"}, ignore=True)
        assert (await cluster.alter_refused("fluss.__t", values={"a": "1"}, ignore=True)).error_code == 15
        assert (await cluster.alter_refused("a b.t", values={"a": "1"}, ignore=True)).error_code == 16


@pytest.mark.parametrize("op_type", [2, 3, 9])
async def test_properties_are_no_lists(make_cluster, op_type):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        change = pb.PbAlterConfig(config_key="a", config_value="1", op_type=op_type)
        request = pb.AlterTableRequest(table_path=path("fluss.t"), ignore_if_not_exists=False, config_changes=[change])
        assert await cluster.code(apis.ALTER_TABLE, request) == -1


async def test_setting_without_a_value_is_refused(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        request = alter_request("fluss.t")
        request.config_changes.add(config_key="a", op_type=0)
        assert await cluster.code(apis.ALTER_TABLE, request) == -1


# Properties


async def test_custom_properties_are_set_and_reset_freely(make_cluster, clock):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        before = await _properties(cluster)
        clock.now_ms += 7
        await cluster.alter("fluss.t", values={"client.connect-timeout": "1s", "other": "x"})
        response, described = await cluster.info("fluss.t")
        assert described["custom_properties"] == {"client.connect-timeout": "1s", "other": "x"}
        assert described["properties"] == before
        assert response.modified_time == NOW_MS + 7
        assert response.schema_id == 1
        await cluster.alter("fluss.t", reset=["other", "never there"])
        assert (await cluster.info("fluss.t"))[1]["custom_properties"] == {"client.connect-timeout": "1s"}


async def test_retention_is_changed_live_and_reset(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        await cluster.alter("fluss.t", values={"table.log.ttl": "0ms"})
        assert (await _properties(cluster))["table.log.ttl"] == "0ms"
        assert cluster.host.altered[-1].descriptor.properties["table.log.ttl"] == "0ms"
        await cluster.alter("fluss.t", reset=["table.log.ttl"])
        assert "table.log.ttl" not in await _properties(cluster)


async def test_the_same_values_again_change_nothing(make_cluster, clock):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor(properties={"table.log.ttl": "1 d"}))
        clock.now_ms += 7
        await cluster.alter("fluss.t", values={"table.log.ttl": "1 d"}, reset=["unknown"])
        assert (await cluster.info("fluss.t"))[0].modified_time == NOW_MS
        assert not cluster.host.altered


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("table.log.tiered.local-segments", "5"),
        ("table.log.ttl", "2 d"),
        ("table.log.local-ttl", "1 d"),
        ("table.statistics.columns", "id"),
        ("table.auto-partition.num-retention", "3"),
        ("table.auto-partition.num-precreate", "1"),
    ],
)
async def test_alterable_properties_are_altered(make_cluster, key, value):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        await cluster.alter("fluss.t", values={key: value})
        assert (await _properties(cluster))[key] == value


PROPERTY_REFUSALS = {
    "the replication factor": (56, {"table.replication.factor": "1"}),
    "the log format": (56, {"table.log.format": "INDEXED"}),
    "the merge engine": (56, {"table.merge-engine": "first_row"}),
    "what deletes do": (56, {"table.delete.behavior": "ignore"}),
    "the changelog": (56, {"table.changelog.image": "WAL"}),
    "the format of rows": (56, {"table.kv.format": "INDEXED"}),
    "the numbers taken at a time": (56, {"table.auto-increment.cache-size": "9"}),
    "the time format": (56, {"table.auto-partition.time-format": "yyyy"}),
    "an unknown property": (56, {"table.unknown": "1"}),
    "a standby replica of a log table": (56, {"table.kv.standby-replica.enabled": "true"}),
    "lake freshness without a lake format": (56, {"table.datalake.freshness": "1 min"}),
    "a lake without a lake": (56, {"table.datalake.enabled": "true"}),
    "a value that is none": (39, {"table.log.ttl": "soon"}),
    "no local segments": (39, {"table.log.tiered.local-segments": "0"}),
    "a local TTL above the TTL": (39, {"table.log.local-ttl": "30 d"}),
    "auto partition without partitions": (39, {"table.auto-partition.enabled": "true"}),
    "statistics of a missing column": (39, {"table.statistics.columns": "x"}),
}


@pytest.mark.parametrize(("code", "values"), PROPERTY_REFUSALS.values(), ids=PROPERTY_REFUSALS.keys())
async def test_a_property_that_cannot_be_changed_changes_nothing(make_cluster, code, values):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        before = await _properties(cluster)
        error = await cluster.alter_refused("fluss.t", values={"custom": "1", **values})
        assert error.error_code == code, error
        described = (await cluster.info("fluss.t"))[1]
        assert described["properties"] == before
        assert described["custom_properties"] == {}
        assert not cluster.host.altered


async def test_a_standby_replica_is_a_matter_of_primary_key_tables(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor(primary_key=["id"]))
        await cluster.alter("fluss.t", values={"table.kv.standby-replica.enabled": "false"})
        assert (await _properties(cluster))["table.kv.standby-replica.enabled"] == "false"


async def test_turning_auto_partition_on_creates_partitions_at_once(make_cluster):
    async with make_cluster() as cluster:
        columns = {"id": "INTEGER", "year": "STRING"}
        properties = {"table.auto-partition.time-unit": "YEAR"}
        await cluster.create("fluss.t", descriptor(columns, partition_key=["year"], properties=properties))
        assert await cluster.partitions("fluss.t") == {}
        await cluster.alter("fluss.t", values={"table.auto-partition.enabled": "true"})
        assert set(await cluster.partitions("fluss.t")) == {"2024", "2025"}
        await cluster.alter("fluss.t", values={"table.auto-partition.num-precreate": "3"})
        assert set(await cluster.partitions("fluss.t")) == {"2024", "2025", "2026"}


# Lakes


async def test_a_plain_log_table_from_before_the_lake_can_be_tiered_later(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        await _set_cluster(cluster, datalake_format="paimon")
        await cluster.alter("fluss.t", values={"table.datalake.enabled": "true"})
        properties = await _properties(cluster)
        assert properties["table.datalake.enabled"] == "true"
        assert properties["table.datalake.format"] == "paimon"
        await cluster.alter("fluss.t", values={"table.datalake.freshness": "1 min"})


@pytest.mark.parametrize(
    "table_json",
    [descriptor(primary_key=["id"]), descriptor(bucket_key=["id"], bucket_count=2)],
    ids=["primary key", "bucket key"],
)
async def test_a_table_with_keys_from_before_the_lake_cannot(make_cluster, table_json):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", table_json)
        await _set_cluster(cluster, datalake_format="paimon")
        error = await cluster.alter_refused("fluss.t", values={"table.datalake.enabled": "true"})
        assert error.error_code == 56


@pytest.mark.parametrize(("lake_format", "code"), [("paimon", None), ("iceberg", 39)])
async def test_a_table_with_an_explicit_format_can_if_it_is_the_cluster_s(make_cluster, lake_format, code):
    async with make_cluster() as cluster:
        properties = {"table.datalake.format": lake_format}
        await cluster.create("fluss.t", descriptor(primary_key=["id"], properties=properties))
        await _set_cluster(cluster, datalake_format="paimon")
        if code is None:
            await cluster.alter("fluss.t", values={"table.datalake.enabled": "true"})
        else:
            error = await cluster.alter_refused("fluss.t", values={"table.datalake.enabled": "true"})
            assert error.error_code == code


async def test_old_schemas_survive_later_changes(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor({"a": "INTEGER"}))
        for number in range(3):
            await cluster.alter("fluss.t", columns=[new_column(f"c{number}", STRING)])
            await cluster.alter("fluss.t", values={"n": str(number)})
    async with make_cluster() as cluster:
        assert cluster.table("fluss.t").schema_id == 4
        for schema_id in range(1, 5):
            request = pb.GetTableSchemaRequest(table_path=path("fluss.t"), schema_id=schema_id)
            schema = json.loads((await cluster.ask(apis.GET_TABLE_SCHEMA, request)).schema_json)
            assert len(schema["columns"]) == schema_id
