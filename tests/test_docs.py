"""The guide tells the truth: its programs run, its option pages are those of the code, its links lead somewhere.

The Python blocks of a page are one program, with await allowed anywhere; what comments at a print say must be printed.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fluss.errors import RETRIABLE_CODES, ErrorCode
from tests.pages import PAGES, ROOT, needs_spark, program_of, promised_lines
from tools.generate_option_pages import pages

# Those with Spark are run beside its other tests.
GUIDES = [page for page in PAGES if program_of(page) and not needs_spark(program_of(page))]
RUNNER = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
result = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(result):
    asyncio.run(result)
"""


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_programs_of_a_page_print_what_their_comments_say(page: Path) -> None:
    program = program_of(page)
    promised = promised_lines(program)
    command = [sys.executable, "-W", "error", "-c", RUNNER, page.name]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised
    assert ast.parse(program).body, "an empty program shows nothing"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_page_is_a_plain_script_or_says_how_to_make_one_of_it(page: Path) -> None:
    if _awaits_at_the_top(program_of(page), page.name):
        assert "In a script it belongs into a coroutine" in page.read_text(encoding="utf-8")
    else:
        compile(program_of(page), page.name, "exec")


def _awaits_at_the_top(program: str, name: str) -> bool:
    code = compile(program, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def test_the_guide_begins_without_asyncio() -> None:
    first = ROOT / "docs" / "guide" / "first-steps.md"
    assert "blocking.connect(" in program_of(first)
    assert "await" not in program_of(first)
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\(guide/(.*?)\.md\)", index)[0] == "first-steps"


def test_option_pages_are_those_of_the_code() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run `make docs`"


def test_the_page_of_error_codes_has_every_code_as_it_is() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (-?\d+) \| `(\w+)` \|(?: (yes))? \| (.+) \|$", page, re.MULTILINE)
    told = [(int(number), name, bool(is_retried)) for number, name, is_retried, _ in rows]
    assert told == [(int(code), code.name, code in RETRIABLE_CODES) for code in ErrorCode]


def test_the_site_has_every_page() -> None:
    told = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    documents = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert sorted(told) == sorted({page.relative_to(ROOT / "docs").as_posix() for page in PAGES} | documents)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
