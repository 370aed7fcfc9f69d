"""The examples that the help of the commands shows."""

from __future__ import annotations

from collections.abc import Iterator

import click

from fluss.cli.kernel.commands import Command, Group
from fluss.cli.kernel.session import Session


def examples(group: Group) -> Iterator[str]:
    """Return the examples in the help of a group and of all that is in it."""
    context = click.Context(group, info_name="fluss", obj=Session())
    yield from group.examples
    for name in group.lazy:
        command = group.get_command(context, name)
        if isinstance(command, Group):
            yield from examples(command)
        else:
            assert isinstance(command, Command)
            yield from command.examples
