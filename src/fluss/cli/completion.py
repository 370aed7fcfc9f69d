"""``fluss completion``: what a shell has to know to complete commands, options, and names of tables."""

from __future__ import annotations

import click

from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.session import Session, pass_session

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Command,
    is_local=True,
    examples=(
        'eval "$(fluss completion bash)"                                   # in ~/.bashrc',
        'eval "$(fluss completion zsh)"                                    # in ~/.zshrc',
        "fluss completion fish > ~/.config/fish/completions/fluss.fish",
    ),
)
@click.argument("shell", type=click.Choice(_SHELLS))
@pass_session
def completion(session: Session, shell: str) -> None:
    """Print the completion of a shell.

    Names of databases and tables are completed from the cluster, if it answers within two seconds.
    """
    from click.shell_completion import get_completion_class

    from fluss.cli.app import PROGRAM, root

    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    session.out.raw(found(root, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source() + "\n")
