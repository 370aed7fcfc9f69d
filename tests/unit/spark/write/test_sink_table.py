"""Shows that a checkpoint knows the table that a stream writes to, and what becomes of another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.errors import FlussError
from fluss.spark.query_options import WriteOptions, write_options
from fluss.spark.write.sink_table import SinkTable, check_sink_table


def _options(location: Path | str | None, **more: str) -> WriteOptions:
    given = {"bootstrap.servers": "nowhere:1", "table": "a.b", **more}
    if location is not None:
        given["checkpointLocation"] = str(location)
    return write_options(given, is_stream=True)


def test_the_first_table_is_noted_and_the_same_one_is_welcome(tmp_path: Path) -> None:
    for _ in range(3):
        check_sink_table(_options(tmp_path), SinkTable("a.b", 7))
    assert [path.name for path in (tmp_path / "fluss-sink").iterdir()] == ["table.json"]


def test_a_stream_that_may_not_begin_leaves_no_note(tmp_path: Path) -> None:
    check_sink_table(_options(tmp_path), SinkTable("a.b", 7), is_noted=False)
    check_sink_table(_options(tmp_path), SinkTable("a.c", 8))
    with pytest.raises(FlussError, match=r"writes to a\.b"):
        check_sink_table(_options(tmp_path), SinkTable("a.b", 7), is_noted=False)


def test_a_table_that_was_created_again_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    check_sink_table(_options(tmp_path), SinkTable("a.b", 7))
    for _ in range(2):
        with pytest.raises(FlussError, match=r"a\.b was dropped and created again .* \(its id was 7 and is 8\)"):
            check_sink_table(_options(tmp_path), SinkTable("a.b", 8))
    check_sink_table(_options(tmp_path, **{"sink.on-table-change": "accept"}), SinkTable("a.b", 8))
    check_sink_table(_options(tmp_path), SinkTable("a.b", 8))
    with pytest.raises(FlussError, match="its id was 8 and is 7"):
        check_sink_table(_options(tmp_path), SinkTable("a.b", 7))


def test_another_table_is_named(tmp_path: Path) -> None:
    check_sink_table(_options(tmp_path), SinkTable("a.b", 7))
    with pytest.raises(FlussError, match=r"that of a stream into a\.b, and this one writes to a\.c"):
        check_sink_table(_options(tmp_path), SinkTable("a.c", 9))


def test_a_damaged_note_is_an_error(tmp_path: Path) -> None:
    check_sink_table(_options(tmp_path), SinkTable("a.b", 7))
    (tmp_path / "fluss-sink" / "table.json").write_text("{")
    with pytest.raises(FlussError, match="damaged"):
        check_sink_table(_options(tmp_path), SinkTable("a.b", 7))


@pytest.mark.parametrize("location", [None, "unheard-of://bucket/checkpoint"])
def test_without_files_there_is_nothing_to_compare_with(location: str | None) -> None:
    check_sink_table(_options(location, **{"sink.delivery-guarantee": "at-least-once"}), SinkTable("a.b", 7))
