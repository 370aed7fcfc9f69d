"""Questions before something is gone."""

from __future__ import annotations

import sys

import click

from fluss.cli.kernel.exits import CommandError, Exit


def confirm(question: str, is_sure: bool) -> None:
    """Ask a person; a program has to say --yes."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Say --yes: there is no terminal to ask at", Exit.USAGE)
    click.confirm(question, abort=True, err=True)
