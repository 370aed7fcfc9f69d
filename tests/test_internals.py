"""The pages about the inside of the program follow it: files they name exist, packages are on the map, counts hold.

A journey is a numbered list; its heading says how many files it passes, so that a longer way is noticed. All without
Spark are taken, with a server in the same process, and every file of the list must be called on the way.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter

import pytest

from tests.pages import ROOT

INTERNALS = ROOT / "docs" / "internals"
SOURCES = ROOT / "src" / "fluss"
PAGES = [*sorted(INTERNALS.glob("*.md")), ROOT / "CONTRIBUTING.md"]
JOURNEYS = (INTERNALS / "journeys.md").read_text(encoding="utf-8")
# A comfortable module has half of that. Where a module or a folder becomes larger, a second noun hides inside.
_MODULE_LINES_MAX = 700
_FOLDER_MODULES_MAX = 24
_HEADING = re.compile(r"^## (?P<title>.+) \((?P<count>\d+) files\)$", re.MULTILINE)


def test_every_file_that_a_page_names_exists() -> None:
    named = [(page, name) for page in PAGES for name in _files_named(page.read_text(encoding="utf-8"))]
    assert named
    missing = [f"{page.name}: {name}" for page, name in named if not _exists(name)]
    assert not missing


def test_every_package_is_on_the_map() -> None:
    packages = {path.parent.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("__init__.py")} - {"."}
    shown = set(re.findall(r"`([a-z_/]+)/`", (INTERNALS / "README.md").read_text(encoding="utf-8")))
    assert shown >= packages, f"not on the map: {sorted(packages - shown)}"
    assert shown <= packages, f"on the map, but gone: {sorted(shown - packages)}"


def test_every_thread_is_on_its_page() -> None:
    page = (INTERNALS / "threads.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")]
    started = {
        str(name.value)
        for source in sources
        if "Thread" in source and '"fluss-' in source
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("Thread", "ThreadPoolExecutor"))
        for name in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(name, ast.Constant) and str(name.value).startswith("fluss-")
    }
    assert started
    assert sorted(name for name in started if f"`{name}`" not in page) == []


def test_every_package_has_its_layers() -> None:
    packages = {path.parent.relative_to(SOURCES.parent) for path in SOURCES.rglob("__init__.py")}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    contracts = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    layered = {name for contract in contracts if contract["exhaustive"] for name in contract["containers"]}
    # What is generated is one module.
    assert {".".join(package.parts) for package in packages} - layered == {"fluss.protocol.messages"}


def test_modules_and_folders_are_read_in_one_sitting() -> None:
    modules = [path for path in SOURCES.rglob("*.py") if path.name != "fluss_pb2.py"]
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in modules}
    assert [f"{path}: {count} lines" for path, count in lines.items() if count > _MODULE_LINES_MAX] == []
    folders = Counter(path.parent for path in modules if path.name != "__init__.py")
    assert [f"{path}: {count} modules" for path, count in folders.items() if count > _FOLDER_MODULES_MAX] == []


@pytest.mark.parametrize("heading", list(_HEADING.finditer(JOURNEYS)), ids=lambda heading: heading["title"])
def test_a_journey_has_as_many_files_as_its_heading_says(heading: re.Match[str]) -> None:
    files = _steps(heading)
    assert len(files) == len(set(files)), "a file is visited once"
    assert len(files) == int(heading["count"])


@pytest.mark.parametrize(
    ("title", "journey"),
    [
        ("An append", "append"),
        ("A fetch", "fetch"),
        ("An upsert", "upsert"),
        ("A lookup", "lookup"),
        *(
            pytest.param(*journey, marks=pytest.mark.slow)
            for journey in (
                ("A poll of a consumer", "consumer"),
                ("A segment that leaves", "remote"),
                ("A backup", "backup"),
                ("A round of tiering", "tiering"),
                ("A read of a table and its lake", "union"),
                ("A command", "command"),
                ("A look at the page", "page"),
            )
        ),
    ],
)
def test_every_step_of_a_journey_takes_part_in_it(title: str, journey: str) -> None:
    heading = next(heading for heading in _HEADING.finditer(JOURNEYS) if heading["title"].startswith(title))
    command = [sys.executable, "-m", "tests.journeys", journey]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert set(_steps(heading)) <= set(done.stdout.split()), "named, but not called"


def _steps(heading: re.Match[str]) -> list[str]:
    """Return the files of a journey: those that its numbered lines begin with."""
    section = JOURNEYS[heading.end() :].split("\n## ", 1)[0]
    return re.findall(r"^\d+\. `([a-z0-9_/]+\.py)`", section, re.MULTILINE)


def _files_named(text: str) -> list[str]:
    return re.findall(r"`([a-z0-9_/]+\.py)`", text)


def _exists(name: str) -> bool:
    return any((folder / name).is_file() for folder in (SOURCES, SOURCES.parent, ROOT))
