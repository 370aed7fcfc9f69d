"""Data fits by name: from Arrow, pandas, polars, duckdb and files of texts, to log tables and tables with keys.
Shown on a real server by what is read back, and by refusals that write nothing."""

from __future__ import annotations

import datetime as dt
import io
import math
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

import fluss
from fluss import DataTypes, FlussError, blocking, embedded
from fluss.client.kernel.runtime import wait_for
from tests.integration.keyed_tables import Tables

SCHEMA = (
    fluss.Schema.builder()
    .column("id", DataTypes.int().not_null())
    .column("name", DataTypes.string())
    .column("price", DataTypes.decimal(8, 2))
    .column("score", DataTypes.double())
    .column("day", DataTypes.date())
    .column("at", DataTypes.timestamp(6))
    .column("instant", DataTypes.timestamp_ltz(3))
    .column("tags", DataTypes.array(DataTypes.string()))
    .build()
)
KEYED = fluss.Schema(SCHEMA.to_arrow(), primary_keys=["id"])
DAY = dt.date(2026, 1, 2)
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000)
ROW = {
    "id": 1,
    "name": "a",
    "price": Decimal("2.50"),
    "score": 0.5,
    "day": DAY,
    "at": AT,
    "instant": AT.replace(tzinfo=dt.UTC),
    "tags": ["x", "y"],
}


class Target:
    """A table of one kind, and how data is written to it."""

    def __init__(self, tables: Tables, has_key: bool) -> None:
        self.table = tables.create(KEYED) if has_key else tables.create_log(SCHEMA)
        self._writer: Any = (
            self.table.new_upsert().create_writer() if has_key else self.table.new_append().create_writer()
        )
        self.write = self._writer.upsert_arrow if has_key else self._writer.write_arrow
        self.write_batch = self._writer.upsert_arrow_batch if has_key else self._writer.write_arrow_batch
        self.write_pandas = self._writer.write_pandas

    def rows(self) -> list[dict[str, Any]]:
        wait_for(self._writer.flush())
        found: list[dict[str, Any]] = self.table.to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["id"])


@pytest.fixture(params=[False, True], ids=["log", "keys"])
def target(request: pytest.FixtureRequest, tables: Tables) -> Target:
    return Target(tables, request.param)


def _other_types() -> pa.Table:
    """The row with other types, in another order."""
    return pa.table(
        {
            "tags": pa.array([["x", "y"]], pa.large_list(pa.string_view())),
            "instant": pa.array([AT.replace(tzinfo=dt.UTC)], pa.timestamp("ns", "Asia/Tokyo")),
            "at": pa.array([AT], pa.timestamp("ns")),
            "day": pa.array([DAY], pa.date64()),
            "score": pa.array([Decimal("0.5")]),
            "price": pa.array([2.5]),
            "name": pa.array(["a"]).dictionary_encode(),
            "id": pa.array([1], pa.uint64()),
        }
    )


def test_columns_in_any_order_and_of_other_types(target: Target) -> None:
    given = _other_types()
    target.write(given)
    assert target.rows() == [ROW]
    target.write_batch(given.set_column(7, "id", pa.array([2], pa.int8())).to_batches()[0])
    third = given.set_column(7, given.schema.field("id"), pa.array([3], pa.uint64()))
    target.write(third.to_reader())
    assert target.rows() == [{**ROW, "id": number} for number in (1, 2, 3)]


def test_missing_columns_are_null(target: Target) -> None:
    target.write(pa.table({"name": ["b"], "id": [7]}))
    assert target.rows() == [{**dict.fromkeys(ROW), "id": 7, "name": "b"}]
    with pytest.raises(FlussError, match="The data has no column 'id', which is int NOT NULL; it has 'name'"):
        target.write(pa.table({"name": ["b"]}))


def test_pandas(target: Target) -> None:
    frame = pd.DataFrame({name: [value] for name, value in ROW.items()})
    target.write_pandas(frame)
    target.write(frame.assign(id=2.0, name=pd.Categorical(["a"]), at=pd.to_datetime([AT]).astype("datetime64[ns]")))
    target.write_pandas(frame.assign(id=3).set_index("id"))
    target.write_pandas(pd.DataFrame({"id": [4], "score": [math.nan], "name": [None]}, index=["ignored"]))
    target.write_pandas(pd.DataFrame({"id": ["5"], "price": [Decimal("2.5")], "day": ["2026-01-02"]}))
    assert target.rows() == [
        *({**ROW, "id": number} for number in (1, 2, 3)),
        {**dict.fromkeys(ROW), "id": 4},
        {**dict.fromkeys(ROW), "id": 5, "price": Decimal("2.50"), "day": DAY},
    ]


def test_polars(target: Target) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame([ROW]).with_columns(
        pl.col("name").cast(pl.Categorical), pl.col("score").cast(pl.Float32), pl.col("at").cast(pl.Datetime("ns"))
    )
    target.write(frame.select(reversed(frame.columns)))
    target.write(frame.select(pl.lit(2, pl.UInt8).alias("id"), "tags"))
    assert target.rows() == [ROW, {**dict.fromkeys(ROW), "id": 2, "tags": ["x", "y"]}]
    with pytest.raises(
        FlussError, match=r"a column 'tag', which the table does not have; did you mean 'tags'\? Rename it"
    ):
        target.write(frame.rename({"tags": "tag"}))
    with pytest.raises(TypeError, match=r"got LazyFrame; collect\(\) it first"):
        target.write(frame.lazy())


def test_duckdb(target: Target) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = """
        SELECT ['x', 'y'] AS tags, TIMESTAMP '2026-01-02 03:04:05.678' AS at, DATE '2026-01-02' AS day, 2.5 AS price,
            TIMESTAMPTZ '2026-01-02 03:04:05.678+00' AS instant, 'a' AS name, 0.5::FLOAT AS score, sum(1)::HUGEINT AS id
    """
    with duckdb.connect() as database:
        target.write(database.sql(query))
        target.write(database.sql("SELECT range + 10 AS id FROM range(5000)"))
        with pytest.raises(FlussError, match="Row 4999 has 2147483648 in column 'id', which does not fit int"):
            target.write(database.sql("SELECT CASE range WHEN 4999 THEN 2147483648 ELSE 9 END AS id FROM range(5000)"))
    rows = target.rows()
    assert rows[0] == ROW
    # The rows of a stream before the one that does not fit may be there.
    assert [row["id"] for row in rows if row["id"] > 9] == list(range(10, 5010))


def test_files_of_texts(target: Target) -> None:
    text = b"day,id,price,score,at,instant\n2026-01-02,1,2.50,0.5,2026-01-02 03:04:05.678,2026-01-02T03:04:05.678Z\n"
    names = text.split(b"\n")[0].decode().split(",")
    options = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    target.write(pa.csv.read_csv(io.BytesIO(text), convert_options=options))
    target.write_pandas(pd.read_csv(io.BytesIO(text.replace(b"02,1,2", b"02,2,2")), dtype=str))
    target.write(pa.csv.open_csv(io.BytesIO(text.replace(b"02,1,2", b"02,3,2"))))
    expected = {**ROW, "name": None, "tags": None}
    assert target.rows() == [{**expected, "id": number} for number in (1, 2, 3)]
    with pytest.raises(FlussError, match="Row 0 has '2,50' in column 'price', which does not fit decimal"):
        target.write(pa.table({"id": ["4"], "price": ["2,50"]}))


def test_refusals_name_column_value_and_row_and_write_nothing(target: Target) -> None:
    good = pa.table({"id": list(range(100))})
    for given, problem in [
        (pa.table({"id": [1], "more": [2]}), "a column 'more', which the table does not have"),
        (pa.table([[1], [2]], names=["id", "id"]), "two columns named 'id'"),
        (pa.concat_tables([good, pa.table({"id": [None, 2**31]})]), "contains null in row 100"),
        (pa.concat_tables([good, pa.table({"id": [2**31]})]), "Row 100 has 2147483648 in column 'id'"),
        (pa.table({"id": [1, 2], "day": ["2026-01-02", "2026-99-01"]}), "Row 1 has '2026-99-01' in column 'day'"),
        (pa.table({"id": [1], "name": [5]}), "Column 'name' is string and takes no int64, such as 5 in row 0"),
        (pa.table({"id": [1], "tags": [[1]]}), "Column 'tags' is array<string> and takes no list<item: int64>"),
    ]:
        with pytest.raises(FlussError, match=problem):
            target.write(given)
    for frame, problem in [
        ({"id": [1], "more": [2]}, "a column 'more', which the table does not have"),
        ({"id": [1, None]}, "contains null in row 1"),
        ({"id": [1, 2], "name": ["a", 5]}, "Row 1 has 5 in column 'name', which does not fit string"),
        ({"id": [1, 2], "day": [DAY, AT]}, "Row 1 has .* in column 'day', which does not fit date"),
    ]:
        with pytest.raises(FlussError, match=problem):
            target.write_pandas(pd.DataFrame(frame))
    assert target.rows() == []


def test_strictly(target: Target) -> None:
    exact = pa.RecordBatch.from_pylist([ROW], schema=target.table.arrow_schema)
    target.write(exact, strict=True)
    target.write_batch(exact.set_column(0, "id", pa.array([2], pa.int32())).cast(exact.schema), strict=True)
    assert [row["id"] for row in target.rows()] == [1, 2]
    for given in (pa.table({"id": [3]}), exact.select(list(reversed(range(8)))), _other_types()):
        with pytest.raises(FlussError):
            target.write(given, strict=True)
    with pytest.raises(FlussError, match="a column 'more'"):
        target.write_pandas(pd.DataFrame({"id": [3], "more": [1]}), strict=True)
    assert len(target.rows()) == 2


def test_keys_to_delete(tables: Tables) -> None:
    target = Target(tables, has_key=True)
    target.write(pa.table({"id": list(range(6))}))
    writer = target.table.new_upsert().create_writer()
    writer.delete_arrow(pa.table({"id": pa.array([0], pa.uint8())}))
    writer.delete_arrow(pa.table({"id": ["1"]}))
    writer.delete_arrow(pd.DataFrame({"id": [2.0]}))
    writer.delete_arrow_batch(pa.record_batch({"id": [3]}))
    wait_for(writer.flush())
    assert [row["id"] for row in target.rows()] == [4, 5]
    with pytest.raises(FlussError, match=r"Row 0 has 4\.5 in column 'id'"):
        writer.delete_arrow(pa.table({"id": [4.5]}))
    with pytest.raises(FlussError, match="A delete takes exactly the primary-key columns 'id'"):
        writer.delete_arrow(pa.table({"id": [4], "name": ["a"]}))


def test_partial_updates(tables: Tables) -> None:
    target = Target(tables, has_key=True)
    target.write_pandas(pd.DataFrame({name: [value] for name, value in ROW.items()}))
    writer = target.table.new_upsert(columns=["id", "score", "name"]).create_writer()
    writer.upsert_arrow(pa.table({"score": [7], "id": [1]}))
    wait_for(writer.flush())
    # What is written and missing becomes null, what is not written stays.
    assert target.rows() == [{**ROW, "score": 7.0, "name": None}]
    with pytest.raises(FlussError, match="a column 'price', which the partial update does not have"):
        writer.upsert_arrow(pa.table({"id": [1], "price": [1]}))


@pytest.mark.parametrize(("unit", "digits"), [("us", 12_345), ("ns", 12_000_001)])
def test_digits_of_times_that_rows_with_keys_cannot_hold_are_refused(tables: Tables, unit: str, digits: int) -> None:
    # They were cut off, so that a value changed, and two keys became one.
    schema = pa.schema([("at", pa.time64(unit)), ("end", pa.time64(unit))])
    table = tables.create(schema, ("at",))
    writer = table.new_upsert().create_writer()
    fine, coarse = pa.array([digits], pa.time64(unit)), pa.array([0], pa.time64(unit))
    for at, end in ((fine, coarse), (coarse, fine)):
        with pytest.raises(FlussError, match=r"has 00:00:00\.012\S+, with digits below a millisecond; .*: round it"):
            writer.upsert_arrow(pa.table({"at": at, "end": end}))
    with pytest.raises(FlussError, match="Column 'at' has 00:00:00"):
        writer.delete_arrow(pa.table({"at": fine}))
    writer.upsert_arrow(pa.table({"at": coarse, "end": pa.nulls(1, pa.time64(unit))}))
    wait_for(writer.flush())
    assert table.to_arrow().to_pylist() == [{"at": dt.time(), "end": None}]


@pytest.mark.parametrize("log_format", ["ARROW", "COMPACTED", "INDEXED"])
def test_times_inside_of_values_are_looked_at_where_rows_cannot_hold_them(tables: Tables, log_format: str) -> None:
    time = pa.time64("us")
    nested = [pa.list_(time), pa.map_(pa.string(), pa.list_(time)), pa.struct([("t", time), ("u", pa.int32())]), time]
    schema = pa.schema([("id", pa.int32()), *((f"c{number}", kind) for number, kind in enumerate(nested))])
    fine, coarse = dt.time(microsecond=12_345), dt.time(microsecond=12_000)
    values = [lambda t: [t], lambda t: [("a", [coarse, t]), ("b", None)], lambda t: {"t": t, "u": 1}, lambda t: t]
    good = {"id": 1} | {f"c{number}": make(coarse) for number, make in enumerate(values)}
    keyed = tables.create(schema, ("id",))
    log = tables.create_log(schema, properties={"table.log.format": log_format})
    upserts, appends = keyed.new_upsert().create_writer(), log.new_append().create_writer()
    for number, make in enumerate(values):
        # The fine one of a slice that begins behind another one.
        rows = pa.Table.from_pylist([good | {f"c{number}": make(fine)}] * 2 + [good], schema)
        with pytest.raises(FlussError, match=rf"Column 'c{number}' has 00:00:00\.012345, with digits below"):
            upserts.upsert_arrow(rows.slice(1))
        if log_format != "ARROW":
            with pytest.raises(FlussError, match=rf"Column 'c{number}' has 00:00:00\.012345, .* is ARROW keep them"):
                appends.write_arrow(rows.slice(1))
        upserts.upsert_arrow(rows.slice(2))
    appends.write_arrow(pa.Table.from_pylist([good], schema))
    for writer in (upserts, appends):
        wait_for(writer.flush())
    for table in (keyed, log):
        assert table.to_arrow().to_pylist() == [good]


def test_without_an_event_loop(server: embedded.EmbeddedServer, tables: Tables) -> None:
    path = tables.create_log(SCHEMA).table_path
    with blocking.FlussConnection.create(server.config()) as connection:
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.write_arrow(_other_types())
            writer.write_pandas(pd.DataFrame({"id": [2]}))
            writer.write_arrow_batch(pa.record_batch({"id": [3]})).wait()
            with pytest.raises(FlussError, match="Column 0 is named 'tags'"):
                writer.write_arrow(_other_types(), strict=True)
        assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]


# Whatever a schema takes can be stored

_NOON = dt.datetime(2026, 1, 1, 12)
SAMPLES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, None]),
    *((type_, [0, 127]) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((type_, [0, 127]) for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.float32(), [1.5]),
    (pa.float64(), [0.1]),
    *((type_, ["a", ""]) for type_ in (pa.string(), pa.large_string(), pa.string_view())),
    *((type_, [b"a", b""]) for type_ in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(2), [b"ab"]),
    *((type_, [_NOON.date()]) for type_ in (pa.date32(), pa.date64())),
    *((type_, [_NOON.time()]) for type_ in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *((pa.timestamp(unit), [_NOON]) for unit in ("s", "ms", "us", "ns")),
    *((pa.timestamp(unit, "Asia/Tokyo"), [_NOON.replace(tzinfo=dt.UTC)]) for unit in ("s", "ms", "us", "ns")),
    (pa.decimal128(10, 2), [Decimal("1.50")]),
    (pa.list_(pa.int64()), [[1, None], []]),
    (pa.large_list(pa.uint8()), [[1]]),
    (pa.list_(pa.list_(pa.timestamp("ns", "UTC"))), [[[_NOON.replace(tzinfo=dt.UTC)]]]),
    (pa.map_(pa.large_string(), pa.date64()), [[("a", _NOON.date())]]),
    (pa.struct([("a", pa.uint16()), ("b", pa.string_view())]), [{"a": 1, "b": "x"}]),
    (pa.dictionary(pa.int8(), pa.large_string()), ["a", "b", "a"]),
    (pa.dictionary(pa.int32(), pa.int64()), [5]),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["a"]]),
]


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(type_):
        return pa.array(values, type_)
    # Older versions of pyarrow make no dictionaries of large texts from Python objects.
    encoded = pa.array(values, type_.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(type_.index_type), encoded.dictionary)


def test_whatever_a_schema_takes_can_be_stored(tables: Tables) -> None:
    schema = pa.schema([("id", pa.int32()), *((f"c{number}", type_) for number, (type_, _) in enumerate(SAMPLES))])
    given = pa.table(
        {
            "id": [0, 1, 2],
            **{f"c{number}": _array((values * 3)[:3], type_) for number, (type_, values) in enumerate(SAMPLES)},
        },
        schema=schema,
    )
    log, keyed = tables.create_log(schema), tables.create(schema)
    appends, upserts = log.new_append().create_writer(), keyed.new_upsert().create_writer()
    appends.write_arrow(given)
    upserts.upsert_arrow(given)
    for writer in (appends, upserts):
        wait_for(writer.flush())
    for table in (log, keyed):
        assert table.to_arrow().sort_by("id").to_pylist() == given.to_pylist()


def _not_utf8(*texts: bytes) -> pa.Array:
    """Texts as pyarrow reads them from files: it does not look at their bytes."""
    plain = pa.array(texts, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(plain), plain.buffers())


def test_text_that_is_not_utf8_is_refused_before_it_is_written(target: Target) -> None:
    names = _not_utf8(b"Ann", b"Zo\xeb")
    for data in (
        pa.table({"id": pa.array([1, 2], pa.int32()), "name": names}),
        pa.table({"name": names.cast(pa.large_string()), "id": pa.array([1, 2], pa.int64())}),
    ):
        with pytest.raises(FlussError, match=r"Row 1 has b'Zo\\xeb' in column 'name', which does not fit string: "):
            target.write(data)
    # As the table has its columns: nothing needs to be converted.
    full = pa.Table.from_pylist([ROW, {**ROW, "id": 2}], SCHEMA.to_arrow())
    with pytest.raises(FlussError, match=r"Row 1 has b'Zo\\xeb' in column 'name', which does not fit string: "):
        target.write(full.set_column(1, full.schema.field("name"), pa.chunked_array([names])))
    target.write(full.slice(0, 1))
    assert [row["name"] for row in target.rows()] == ["a"]
