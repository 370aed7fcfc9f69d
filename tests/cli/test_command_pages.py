"""The pages about the command tell the truth: the session of the guide is gone through, the reference is the help."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss.cli.app import root
from fluss.cli.kernel.commands import Command, Group
from fluss.cli.kernel.session import Session
from tests.cli.runner import FlussCommand
from tests.ports import free_port
from tools.generate_command_page import PAGE, page

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "command-line.md"


def _commands(
    group: Group, context: click.Context, words: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], Command]]:
    found: list[tuple[tuple[str, ...], Command]] = []
    for name in group.lazy:
        command = group.get_command(context, name)
        if isinstance(command, Group):
            found += _commands(command, context, (*words, name))
        else:
            assert isinstance(command, Command)
            found.append(((*words, name), command))
    return found


CONTEXT = click.Context(root, info_name="fluss", obj=Session())
COMMANDS = _commands(root, CONTEXT)


def test_a_new_user_gets_through_the_session_of_the_guide(fluss: FlussCommand) -> None:
    port = free_port()
    rows = {"id": [1, 2, 3, 4], "city": ["Bonn", "Kiel", "Jena", "Kiel"], "km": [3.5, 12.0, 1.5, 8.0]}
    pq.write_table(pa.table(rows), fluss.home / "trips.parquet")
    fluss.environment = {
        "FLUSS_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
        "FLUSS_BIND_LISTENERS": f"FLUSS://127.0.0.1:{port}",
        "FLUSS_DURABILITY": "os",
    }
    session = "".join(re.findall(r"```console\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
    steps = re.findall(r"^\$ fluss (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE)
    assert [line.split()[0] for line, _ in steps][:: len(steps) - 1] == ["serve", "stop"]
    try:
        for line, promised in steps:
            shown = fluss(*shlex.split(line)).out
            pattern = re.escape(promised).replace(re.escape("...\n"), r"(?:.*\n)*").replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, shown), f"{line}\n{shown}"
    finally:
        fluss.run("stop")


def test_the_reference_is_the_help_of_the_command() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"{PAGE.name} is out of date: run `make docs`"


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_every_command_has_examples_and_the_words_of_its_list(words: tuple[str, ...], command: Command) -> None:
    assert command.examples, "an example says more than a list of options"
    for example in command.examples:
        assert f"fluss {' '.join(words)}" in example
    group: Group = root
    for word in words[:-1]:
        inner = group.get_command(CONTEXT, word)
        assert isinstance(inner, Group)
        group = inner
    assert command.help is not None
    assert " ".join(command.help.partition("\n\n")[0].split()) == group.lazy[words[-1]].short_help
