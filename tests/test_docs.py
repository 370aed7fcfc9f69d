"""The guide tells the truth: its programs run, its option pages are those of the code, its links lead somewhere.

The Python blocks of a page are one program, with await allowed anywhere; what comments at a print say must be printed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_option_pages_are_those_of_the_code() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run `make docs`"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
