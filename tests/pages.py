"""The pages of the guide as programs: the Python blocks of a page are one, and its comments say what it prints."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def program_of(page: Path) -> str:
    """Return the Python blocks of a page as one program, empty if there are none."""
    return "\n".join(_blocks(page))


def readme_programs() -> list[str]:
    """Return the Python blocks of the README, each of which is a program of its own."""
    return _blocks(ROOT / "README.md")


def _blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def needs_spark(program: str) -> bool:
    return "fluss.spark" in program


def promised_lines(program: str) -> list[str]:
    """Return what the comments say is printed: a comment behind a print, or those in the lines below it."""
    promised: list[str] = []
    for behind, below in re.findall(r"print\(.*\)(?:  # (.*)|\n((?:# .*\n)+))", program):
        promised += [line.removeprefix("# ") for line in below.splitlines()] or [behind]
    return promised
