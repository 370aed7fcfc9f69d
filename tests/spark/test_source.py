"""The data source as Spark finds it: by its name, without a registration, with the options as Spark hands them over.
Shown by loads that return the right columns, and by sentences that reach the user when something is wrong."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameReader, SparkSession

from fluss import Schema, TableDescriptor, TablePath, blocking

SCHEMA = Schema(pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string()), pa.field("price", pa.float64())]))


@pytest.fixture
def orders(connection: blocking.FlussConnection, database: str) -> str:
    path = TablePath(database, "orders")
    connection.get_admin().create_table(path, TableDescriptor(SCHEMA, bucket_count=1))
    with connection.get_table(path).new_append().create_writer() as writer:
        writer.append([1, "a", 0.5])
        writer.append([2, "b", 1.5])
    return str(path)


@pytest.fixture
def reader(spark: SparkSession, bootstrap_servers: str) -> DataFrameReader:
    return spark.read.format("fluss").option("bootstrap.servers", bootstrap_servers)


def test_columns_are_chosen_by_an_option_or_by_a_schema(reader: DataFrameReader, orders: str) -> None:
    assert reader.option("scan.columns", "price,id").load(orders).orderBy("id").collect() == [(0.5, 1), (1.5, 2)]
    chosen = reader.schema("name string").option("scan.columns", "price,name").option("table", orders).load()
    assert sorted(chosen.collect()) == [("a",), ("b",)]


def _slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


# After an error Spark ends its Python process, and the next query has to start one.
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"table": "{database}.nothing"}, "Table '{database}.nothing' does not exist"),
        ({"scan.colums": "id"}, "Unknown option 'scan.colums'; did you mean 'scan.columns'?"),
        _slow({"scan.columns": "ix"}, "Column 'ix' not found; columns are 'id', 'name', 'price'"),
        _slow({"bootstrap.servers": "127.0.0.1:1", "request-timeout": "2000"}, "no connection to 127.0.0.1:1"),
        _slow({"security.protocol": "sasl"}, "'security.sasl.username' must be set"),
    ],
)
def test_what_is_wrong_is_said_when_a_table_is_loaded(
    reader: DataFrameReader, orders: str, database: str, options: dict[str, str], sentence: str
) -> None:
    given = {key: text.format(database=database) for key, text in {"table": orders, **options}.items()}
    with pytest.raises(AnalysisException) as error:
        reader.options(**given).load()
    assert sentence.format(database=database) in str(error.value)
    # Of the library only the frames are shown that Spark itself called.
    assert str(error.value).count("File ") <= 3


@pytest.mark.slow
def test_a_schema_that_does_not_fit_is_refused_before_anything_is_read(reader: DataFrameReader, orders: str) -> None:
    for schema, sentence in (
        ("id bigint", f"Column 'id' of {orders} is int, not bigint; read it as it is, and cast it afterwards"),
        ("id int, prize double", f"{orders} has no column 'prize'"),
    ):
        with pytest.raises(AnalysisException, match=sentence):
            reader.schema(schema).load(orders).collect()
    with pytest.raises(AnalysisException, match=r"'scan\.columns' leaves out 'name'"):
        reader.schema("id int, name string").option("scan.columns", "id").load(orders).collect()


@pytest.mark.slow
def test_a_table_of_sparks_catalog_says_how_it_can_be_read(
    spark: SparkSession, bootstrap_servers: str, orders: str
) -> None:
    options = f"`bootstrap.servers` = '{bootstrap_servers}', `table` = '{orders}'"
    spark.sql(f"CREATE TABLE plain_catalog_table USING fluss OPTIONS ({options}) TBLPROPERTIES ('a.property' = '1')")
    try:
        with pytest.raises(AnalysisException, match="Spark does not hand over those of a table in its catalog"):
            spark.sql("SELECT * FROM plain_catalog_table").collect()
        rows = spark.sql(f"SELECT id FROM plain_catalog_table WITH ({options})")
        assert sorted(rows.collect()) == [(1,), (2,)]
    finally:
        spark.sql("DROP TABLE plain_catalog_table")
