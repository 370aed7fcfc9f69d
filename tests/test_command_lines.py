"""The command lines of the documents are right: targets, suites, extras and modules exist, arguments are understood.

What they do is tested where it is made; certificates are made as their page says in `integration/test_tls.py`.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from fluss.cli.app import root
from fluss.cli.kernel.session import Session
from fluss.server.__main__ import main
from tests.pages import PAGES, ROOT

DOCUMENTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in DOCUMENTS}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def command_lines(program: str) -> list[tuple[str, str]]:
    """Return what stands in the documents behind this program, in blocks for the shell and between backticks."""
    found = []
    for page, text in TEXTS.items():
        blocks = "\n".join(re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
        inline = [part.replace("\n", " ") for part in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
        lines = [line for line in [*blocks.splitlines(), *inline] if line.startswith(f"{program} ")]
        found += [(page, line.split("  #")[0].strip()) for line in lines]
    assert found, f"no document has a command line of {program}"
    return found


def test_targets_of_make_exist_and_take_what_they_are_given() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    for page, line in command_lines("make"):
        for word in shlex.split(line)[1:]:
            name, _, value = word.partition("=")
            assert f"$({name})" in MAKEFILE if value else word in targets, (page, line)


def test_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for page, text in TEXTS.items():
        for names in re.findall(r"flussbett\[([a-z,]+)\]", text):
            assert set(names.split(",")) <= extras.keys(), (page, names)


def test_addresses_of_the_package_have_labels_that_an_index_takes() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls
    for label, url in urls.items():
        assert len(label) <= 32, f"PyPI refuses a label of {len(label)} characters: {label}"
        assert url.startswith("https://"), url


def test_modules_that_are_run_exist() -> None:
    for page, line in command_lines("python -m"):
        module = shlex.split(line)[2]
        assert importlib.util.find_spec(module) is not None, (page, line)


def test_suites_of_benchmarks_exist() -> None:
    for page, line in [*command_lines("python -m benchmarks.e2e"), *command_lines("make bench")]:
        suites = line.partition("SUITES=")[2] if line.startswith("make") else line.partition("benchmarks.e2e")[2]
        for suite in suites.strip(' "').split():
            if suite != "...":
                assert (ROOT / "benchmarks" / "e2e" / f"{suite}.py").exists(), (page, line)


def test_a_server_understands_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.yaml").touch()
    others = ("hash-password", "--verify-backup")  # They start no server, and have no options to show.
    lines = {line for _, line in command_lines("python -m fluss.server") if not any(word in line for word in others)}
    assert len(lines) > 2
    for line in lines:
        arguments = shlex.split(line)[3:]
        assert main([*arguments, "--print-config"]) == 0, line
        assert "data.dir" in capsys.readouterr().out


def test_the_command_understands_its_lines() -> None:
    for page, line in command_lines("fluss"):
        # `fluss tail ...` is no line of its own, but the name of one.
        words = [word.partition("|")[0] for word in shlex.split(line.partition(" | ")[0].partition(" < ")[0])[1:]]
        group: click.Command = root
        with click.Context(root, obj=Session()) as context:
            while isinstance(group, click.Group) and words and not words[0].startswith("-"):
                _, found, words = group.resolve_command(context, words)
                assert found is not None, (page, line)
                group = found
            # Neither asks nor runs anything.
            group.make_context(line, list(words), parent=context, resilient_parsing=True)
