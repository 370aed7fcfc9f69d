"""Write docs/reference/command-line.md from the help of the command ``fluss``: part of ``make docs``.

A test compares the page with what this program would write, so that it cannot fall behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from fluss.cli.app import PROGRAM, root
from fluss.cli.kernel.commands import Command, Group, help_records
from fluss.cli.kernel.exits import EXIT_MEANINGS
from fluss.cli.kernel.session import Session

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "command-line.md"
TOP = """\
# Commands

Every command of `fluss`, from its help. [The guide](../guide/command-line.md) shows them at work.
"""


def page() -> str:
    """Return the whole page."""
    context = click.Context(root, info_name=PROGRAM, obj=Session())
    parts = [TOP, "## Options of all commands\n", _block(_shared(context)), "## Exit codes\n", _exit_codes()]
    for heading, commands in root.sections.items():
        parts.append(f"## {heading}\n")
        for name in commands:
            parts += _command(name, root, context)
    return "\n".join(parts)


def _shared(context: click.Context) -> str:
    formatter = click.HelpFormatter(width=100)
    formatter.write_dl(help_records(context, root.params))
    return formatter.getvalue().rstrip()


def _exit_codes() -> str:
    rows = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in EXIT_MEANINGS.items())
    return f"| code | meaning |\n|---|---|\n{rows}\n"


def _command(name: str, parent: Group, parent_context: click.Context) -> Iterator[str]:
    command = parent.get_command(parent_context, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent_context)
    if isinstance(command, Group):
        for inner in command.lazy:
            yield from _command(inner, command, context)
        return
    assert isinstance(command, Command)
    yield f"### {context.command_path}\n"
    formatter = click.HelpFormatter(width=100)
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    records = help_records(context, command.params[: command.own_parameter_count])
    if records:
        with formatter.section("Options"):
            formatter.write_dl(records)
    command.format_epilog(context, formatter)
    yield _block(formatter.getvalue().rstrip())


def _block(text: str) -> str:
    return f"```text\n{text}\n```\n"


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
