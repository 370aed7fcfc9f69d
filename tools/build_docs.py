"""Build the documentation as a site, into the folder site: ``make docs``.

The pages of docs are the greater part of it. Beside them the site has a page for each public module, made from its
docstrings, one for each example, and those documents of the repository that the guide links to; so everything is laid
out in the folder build/docs first. A link that leads nowhere is an error.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "mkdocs.yml"
STAGE = ROOT / "build" / "docs"
SITE = ROOT / "site"
# What programs import, and the modules that define it.
API = {
    "fluss": "fluss.names",
    "fluss.blocking": "fluss.blocking",
    "fluss.aio": "fluss.aio",
    "fluss.embedded": "fluss.embedded",
    "fluss.lake": "fluss.lake",
    "fluss.spark": "fluss.spark",
    "fluss.testing": "fluss.testing",
}
DOCUMENTS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def pages() -> dict[str, str]:
    """Return the text of every page by its address on the site."""
    found = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    found |= {name: ROOT / name for name in DOCUMENTS}
    texts = {address: _moved_links(path) for address, path in found.items()}
    texts |= {_api_page(name): f"# {name}\n\n::: {module}\n" for name, module in API.items()}
    texts |= {_example_page(path): _example(path) for path in _examples()}
    texts["examples/index.md"] = _list_of_examples()
    return texts


def settings() -> dict[str, Any]:
    """Return the settings with the generated pages where the navigation has their folder."""
    values: dict[str, Any] = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    examples = ["examples/index.md", *map(_example_page, _examples())]
    _fill(values["nav"], {"api/": [{name: _api_page(name)} for name in API], "examples/": examples})
    values["docs_dir"], values["site_dir"] = "pages", "site"
    values["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / "src")]
    return values


def main() -> int:
    shutil.rmtree(STAGE, ignore_errors=True)
    for picture in (ROOT / "docs").rglob("*"):
        if picture.is_file() and picture.suffix != ".md":
            place = STAGE / "pages" / picture.relative_to(ROOT / "docs")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, place)
    for address, text in pages().items():
        page = STAGE / "pages" / address
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    (STAGE / SETTINGS.name).write_text(yaml.safe_dump(settings(), sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(STAGE / SETTINGS.name)]
    failed = subprocess.run(command, check=False).returncode
    if not failed:
        shutil.rmtree(SITE, ignore_errors=True)
        (STAGE / "site").rename(SITE)
        print(f"{len(list(SITE.rglob('*.html')))} pages; open {SITE.relative_to(ROOT)}/index.html")
    return failed


def _moved_links(path: Path) -> str:
    """Return the text with its links to files of the repository led to the pages that show them."""

    def moved(link: re.Match[str]) -> str:
        target = (path.parent / link.group(1)).resolve().relative_to(ROOT).as_posix()
        address = _address(target)
        if address is None:
            return link.group(0)
        here = _address(path.relative_to(ROOT).as_posix())
        return f"]({posixpath.relpath(address, posixpath.dirname(here or '') or '.')}{link.group(2) or ''})"

    return _LINK.sub(moved, path.read_text(encoding="utf-8"))


def _address(file: str) -> str | None:
    """Return the page that shows this file of the repository, if there is one."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file in DOCUMENTS:
        return file
    if file == "examples":
        return "examples/index.md"
    return _example_page(ROOT / file) if ROOT / file in _examples() else None


def _examples() -> list[Path]:
    return sorted((ROOT / "examples").rglob("*.py"))


def _api_page(name: str) -> str:
    return f"api/{name}.md"


def _example_page(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix(".md").as_posix()


def _example(path: Path) -> str:
    code = path.read_text(encoding="utf-8")
    return f"# {path.relative_to(ROOT).as_posix()}\n\n{_told(path)}\n\n```python\n{code}```\n"


def _list_of_examples() -> str:
    rows = [
        f"| [{path.name}]({posixpath.relpath(_example_page(path), 'examples')}) | {_told(path).splitlines()[0]} |"
        for path in _examples()
    ]
    return "\n".join(
        ["# Examples", "", "Programs that run as they are.", "", "| program | shows |", "|---|---|", *rows, ""]
    )


def _told(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.name


def _fill(nav: list[Any], generated: dict[str, list[Any]]) -> None:
    for entry in nav:
        if isinstance(entry, dict):
            for title, value in entry.items():
                if isinstance(value, list):
                    _fill(value, generated)
                elif value in generated:
                    entry[title] = generated[value]


if __name__ == "__main__":
    sys.exit(main())
