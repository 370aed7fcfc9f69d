"""``fluss profile``: addresses and logins of clusters, by name."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from fluss.cli.kernel.commands import Command, Lazy, group
from fluss.cli.kernel.exits import CommandError
from fluss.cli.kernel.profiles import Profiles, profiles_path
from fluss.cli.kernel.session import PASSWORD_KEY, SERVERS_KEY, Session, pass_session

# What these hold is a file, or a text of many lines.
_FILE_KEYS: Final = frozenset({"security.ssl.ca", "security.ssl.certificate", "security.ssl.key"})

profiles = group(
    "Keep addresses and logins of clusters by name.",
    {
        "add": Lazy("fluss.cli.cluster.profile_commands:add", "Make or replace a profile."),
        "ls": Lazy("fluss.cli.cluster.profile_commands:ls", "List the profiles."),
        "use": Lazy(
            "fluss.cli.cluster.profile_commands:use", "Choose the profile that is used unless another one is named."
        ),
        "rm": Lazy("fluss.cli.cluster.profile_commands:rm", "Remove a profile."),
    },
    examples=(
        "fluss profile add prod --server streams.example.org:9123 --user alice --tls",
        "fluss profile use prod",
        "fluss table ls --profile prod",
    ),
)


@click.command(
    cls=Command,
    examples=(
        "fluss profile add dev --server localhost:9200",
        "fluss profile add prod --server streams.example.org:9123 --user alice --ca ca.pem",
        "fluss profile add ci --server streams:9123 --user ci --password-file /run/secrets/fluss",
    ),
)
@click.argument("name")
@click.option("--use", "is_used", is_flag=True, help="Use it from now on.")
@pass_session
def add(session: Session, name: str, is_used: bool) -> None:
    """Make or replace a profile.

    --server, --user, --tls, --ca and -o are kept in it. With --user a password is asked for, unless --password-file or
    FLUSS_PASSWORD has it. The file is readable for its owner only, and passwords are never shown.
    """
    if session.server is None:
        raise click.UsageError(f"where is the cluster? fluss profile add {name} --server HOST:PORT --help")
    options = {SERVERS_KEY: session.server} | session.login_options({}) | session.options
    if session.user is not None and PASSWORD_KEY not in options:
        if not sys.stdin.isatty():
            raise CommandError("there is no terminal to ask for the password at; give --password-file")
        options[PASSWORD_KEY] = click.prompt("Password", hide_input=True, err=True)
    # A profile is used in any directory.
    options |= {key: os.path.abspath(options[key]) for key in _FILE_KEYS & options.keys() if "\n" not in options[key]}
    _check(options)
    kept = Profiles.load()
    kept.options_by_name[name] = options
    if is_used or kept.current is None:
        kept.current = name
    kept.save()
    session.out.done(
        f"Kept the profile {name} in {profiles_path()}" + ("; it is the current one." if kept.current == name else "."),
        profile=name,
        current=kept.current == name,
    )


def _check(options: dict[str, str]) -> None:
    """Refuse options that cannot be, before they are kept."""
    from fluss.config import Config

    Config(dict(options)).validate()


@click.command(cls=Command, is_local=True, examples=("fluss profile ls",))
@pass_session
def ls(session: Session) -> None:
    """List the profiles.

    Passwords are not shown.
    """
    kept = Profiles.load()
    rows = [
        (
            name,
            options.get(SERVERS_KEY),
            options.get("security.sasl.username"),
            options.get("security.protocol", "PLAINTEXT"),
            "yes" if name == kept.current else "",
        )
        for name, options in sorted(kept.options_by_name.items())
    ]
    empty = "no profiles yet; `fluss profile add NAME --server HOST:PORT` makes one"
    session.out.rows(("profile", "server", "user", "security", "current"), rows, empty=empty)


@click.command(cls=Command, is_local=True, examples=("fluss profile use prod",))
@click.argument("name")
@pass_session
def use(session: Session, name: str) -> None:
    """Choose the profile that is used unless another one is named."""
    kept = Profiles.load()
    kept.options(name)
    kept.current = name
    kept.save()
    session.out.done(f"{name} is the current profile.", profile=name, current=True)


@click.command(cls=Command, is_local=True, examples=("fluss profile rm prod",))
@click.argument("name")
@pass_session
def rm(session: Session, name: str) -> None:
    """Remove a profile."""
    kept = Profiles.load()
    kept.options(name)
    del kept.options_by_name[name]
    if kept.current == name:
        kept.current = None
    kept.save()
    session.out.done(f"Removed the profile {name}.", removed=name)
