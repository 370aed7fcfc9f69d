"""Files are found by paths, directories, patterns and addresses, cut into pieces, and put together to tasks.

Real files in a temporary directory; no session.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from pyarrow import fs

from fluss.errors import FlussError
from fluss.file_formats import FileFormat
from fluss.spark.bulk.file_formats import line_blocks
from fluss.spark.bulk.files import (
    DataFile,
    FileFacts,
    FilePiece,
    Unit,
    cut,
    find_files,
    pack,
    piece_bytes_for,
)
from fluss.spark.bulk.task_results import UnfitInputError


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A directory as other programs leave it: two days, a marker, something unfinished."""
    for name in ("day=1/a.csv", "day=1/b.csv", "day=2/a.csv", "_SUCCESS", "_temporary/c.csv", "day=2/.b.csv.crc"):
        path = tmp_path / "orders" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n1\n")
    return tmp_path / "orders"


def names(files: list[DataFile], base: Path) -> list[str]:
    return [str(Path(file.path).relative_to(base)) for file in files]


def test_a_directory_has_all_files_below_it_except_hidden_ones(orders: Path) -> None:
    assert names(find_files(orders), orders) == ["day=1/a.csv", "day=1/b.csv", "day=2/a.csv"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*/a.csv", ["day=1/a.csv", "day=2/a.csv"]),
        ("day=[1]/*", ["day=1/a.csv", "day=1/b.csv"]),
        ("day=[!1]/*.csv", ["day=2/a.csv"]),
        ("**/?.csv", ["day=1/a.csv", "day=1/b.csv", "day=2/a.csv"]),
    ],
)
def test_patterns_match_within_a_directory_and_two_stars_beyond(
    orders: Path, pattern: str, expected: list[str]
) -> None:
    assert names(find_files(f"{orders}/{pattern}"), orders) == expected
    assert names(find_files(f"file://{orders}/{pattern}"), orders) == expected


def test_a_file_that_several_paths_lead_to_is_loaded_once(orders: Path) -> None:
    assert names(find_files([orders, f"{orders}/*/a.csv", orders / "day=1/a.csv"]), orders) == [
        "day=1/a.csv",
        "day=1/b.csv",
        "day=2/a.csv",
    ]


def test_a_name_with_the_signs_of_patterns_is_a_name_if_there_is_such_a_file(tmp_path: Path) -> None:
    path = tmp_path / "orders[1].csv"
    path.write_text("x\n")
    assert [file.path for file in find_files(path)] == [str(path)]


@pytest.mark.parametrize(
    ("path", "problem"), [("none.csv", "no file or directory"), ("*.csv", "No file matches"), ("", "no files")]
)
def test_a_path_that_leads_to_nothing_is_refused(tmp_path: Path, path: str, problem: str) -> None:
    with pytest.raises(FlussError, match=problem):
        find_files(f"{tmp_path}/{path}")


def test_the_suffix_says_what_a_file_is_unless_the_caller_does(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.TSV", "c.csv.gz", "d.jsonl", "e.feather", "f.data"):
        (tmp_path / name).write_bytes(b"x")
    found = {name: find_files(tmp_path / name)[0].format for name in ("a.parquet", "b.TSV", "c.csv.gz", "d.jsonl")}
    assert list(found.values()) == [FileFormat.PARQUET, FileFormat.CSV, FileFormat.CSV, FileFormat.JSON]
    with pytest.raises(FlussError, match="give the format"):
        find_files(tmp_path / "f.data")
    assert find_files(tmp_path / "f.data", "json")[0].format is FileFormat.JSON
    with pytest.raises(FlussError, match="'xml' is not known"):
        find_files(tmp_path / "f.data", "xml")


def test_directories_of_a_path_state_values(tmp_path: Path) -> None:
    path = tmp_path / "day=2026-01-01" / "shop=a%2Fb" / "kind=__HIVE_DEFAULT_PARTITION__" / "x.csv"
    path.parent.mkdir(parents=True)
    path.write_text("x\n")
    assert find_files(path)[0].path_values == {"day": "2026-01-01", "shop": "a/b", "kind": None}


def test_a_file_that_has_changed_since_it_was_found_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    (file,) = find_files(path)
    path.write_text("x\n1\n2\n")
    with pytest.raises(UnfitInputError, match="had 4 when the load began"):
        file.open()


def made_up(size_bytes: int) -> DataFile:
    return DataFile("made/up.bin", size_bytes, FileFormat.PARQUET, fs.LocalFileSystem())


def test_units_that_follow_each_other_make_pieces_of_the_wanted_size() -> None:
    units = tuple(Unit(10, 100) for _ in range(7))
    pieces = cut(FileFacts(made_up(70), ("x",), units=units), 25)
    assert [(piece.start, piece.stop, piece.size_bytes, piece.rows) for piece in pieces] == [
        (0, 3, 30, 300),
        (3, 6, 30, 300),
        (6, 7, 10, 100),
    ]


def test_tasks_have_about_the_same_size_and_every_piece_once() -> None:
    sizes = [90, 10, 40, 40, 5, 5, 30, 60]
    pieces = [FilePiece(made_up(size), ("x",), number, number + 1, size, None) for number, size in enumerate(sizes)]
    tasks = pack(pieces, 100)
    assert sorted(piece.start for task in tasks for piece in task) == list(range(len(sizes)))
    assert sorted(sum(piece.size_bytes for piece in task) for task in tasks) == [90, 95, 95]
    assert all([piece.start for piece in task] == sorted(piece.start for piece in task) for task in tasks)


def test_pieces_are_small_enough_for_all_cores_and_large_enough_to_be_worth_a_task() -> None:
    megabyte = 1024 * 1024
    assert piece_bytes_for(1000 * megabyte, 2, 64 * megabyte) == 64 * megabyte
    assert piece_bytes_for(100 * megabyte, 2, 64 * megabyte) == 25 * megabyte
    assert piece_bytes_for(megabyte, 8, 64 * megabyte) == 4 * megabyte
    assert piece_bytes_for(1000 * megabyte, 2, 1000) == 1000


@pytest.mark.parametrize("last", ["\n", ""])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_every_line_is_in_exactly_one_piece(tmp_path: Path, count: int, last: str) -> None:
    lines = [f"{'x' * (number % 13)}{number}" for number in range(50)]
    path = tmp_path / "a.json"
    path.write_text("\n".join(lines) + last)
    (file,) = find_files(path)
    pieces = cut(FileFacts(file, ("x",)), file.size_bytes // count)
    assert len(pieces) >= count
    read = b"".join(block.data for piece in pieces for block in line_blocks(piece))
    assert read.decode() == path.read_text()


def test_a_compressed_file_is_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"1\n2\n3\n"))
    (file,) = find_files(path)
    (piece,) = cut(FileFacts(file, ("x",), is_whole=file.is_compressed), 3)
    assert [block.data for block in line_blocks(piece)] == [b"1\n2\n3\n"]
