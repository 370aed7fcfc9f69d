"""Commands and groups that are loaded when they are used, and the options that all of them take."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from fluss.cli.kernel.session import Session

FORMAT_NAMES: Final = ("table", "json", "csv")
# The names of the shared options that mean something without a cluster.
_LOCAL_OPTIONS: Final = ("format", "debug")


class Lazy(NamedTuple):
    """Where a command is, and what the list of commands says about it."""

    target: str
    short_help: str


def shared_options() -> list[click.Option]:
    """Return the options that may stand behind any command, and before it."""

    def kept(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
        def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
            session = context.ensure_object(Session)
            if value is not None and value != () and value is not False:
                setattr(session, name, value)

        return keep

    def option(*names: str, to: str, **settings: Any) -> click.Option:
        return click.Option([*names], expose_value=False, callback=kept(to), **settings)

    return [
        option(
            "--server",
            "-s",
            to="server",
            metavar="HOST:PORT",
            help="A server of the cluster, or several separated by commas.  [default: FLUSS_BOOTSTRAP_SERVERS, the "
            "current profile, localhost:9123]",
        ),
        option(
            "--profile",
            "-p",
            to="profile",
            metavar="NAME",
            help="Take address and login from a profile (see `fluss profile`).",
            shell_complete=_complete_profiles,
        ),
        option("--user", "-u", to="user", metavar="NAME", help="Log in as this user."),
        option(
            "--password-file",
            to="password_file",
            metavar="FILE",
            help="Read the password from a file, - for standard input.  [default: FLUSS_PASSWORD]",
        ),
        option("--tls", to="tls", is_flag=True, default=False, help="Speak TLS."),
        option("--ca", to="ca", metavar="FILE", help="Speak TLS, and trust the CAs in this file."),
        click.Option(
            ["-o", "--option"],
            expose_value=False,
            multiple=True,
            callback=_keep_options,
            metavar="KEY=VALUE",
            help="Set an option of the client, such as -o request-timeout=5000.",
        ),
        option(
            "--format",
            "-f",
            to="output_format",
            type=click.Choice(FORMAT_NAMES),
            help="How results are printed: columns for people, JSON lines or CSV.  [default: table]",
        ),
        option("--debug", to="debug", is_flag=True, default=False, help="Show tracebacks and what the client logs."),
    ]


def _keep_options(context: click.Context, parameter: click.Parameter, value: Sequence[str]) -> None:
    session = context.ensure_object(Session)
    for entry in value:
        key, equals, text = entry.partition("=")
        if not equals:
            raise click.BadParameter(f"'{key}' needs a value: -o {key}=...", context, parameter)
        if key.strip().removeprefix("client.") in ("security.sasl.password", "security.ssl.key.password"):
            raise click.BadParameter(
                f"every user of this machine can read the command line, so '{key.strip()}' is not taken here; use "
                "--password-file, FLUSS_PASSWORD or a profile",
                context,
                parameter,
            )
        session.options[key.strip()] = text.strip()


def _complete_profiles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fluss.cli.kernel.profiles import Profiles

    return [name for name in Profiles.load().options_by_name if name.startswith(incomplete)]


class Command(click.Command):
    """A command with the options of all commands, and examples at the end of its help.

    ``examples`` are lines of a shell.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), is_local: bool = False, **settings: Any) -> None:
        """``is_local`` is for commands that do not connect: they take the options about output only."""
        super().__init__(*arguments, **settings)
        self.examples = tuple(examples)
        self.own_parameter_count = len(self.params)
        taken = {name for each in self.params for name in each.opts}
        for each in shared_options():
            if not is_local or each.name in _LOCAL_OPTIONS:
                # As `fluss tail -f`, as users know it from `tail`.
                each.opts = [name for name in each.opts if name not in taken]
                self.params.append(each)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = self.params[: self.own_parameter_count]
        _write_parameters(ctx, formatter, "Options", [*own, *self.get_help_option_list(ctx)])
        _write_parameters(ctx, formatter, "Options of all commands", self.params[self.own_parameter_count :])

    def get_help_option_list(self, ctx: click.Context) -> list[click.Parameter]:
        """Return --help, which is not among the parameters."""
        found = self.get_help_option(ctx)
        return [] if found is None else [found]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """Commands by name, each of which is imported when it is run. ``sections`` are their headings, in order."""

    def __init__(
        self,
        *arguments: Any,
        sections: Mapping[str, Mapping[str, Lazy]],
        examples: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.sections = sections
        self.lazy = {name: lazy for commands in sections.values() for name, lazy in commands.items()}
        self.examples = tuple(examples)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self.lazy.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.lazy, 1)
            hint = (
                f"did you mean `{ctx.command_path} {close[0]}`?" if close else f"`{ctx.command_path} --help` lists them"
            )
            raise click.UsageError(f"there is no command '{args[0]}' here; {hint}", error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # All sections have the same columns.
        width = max(map(len, self.lazy))
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), lazy.short_help) for name, lazy in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


def group(help_text: str, members: Mapping[str, Lazy], *, examples: Sequence[str] = ()) -> Group:
    """Make a group of commands about one noun."""
    return Group(help=help_text, sections={"Commands": members}, examples=examples)


def help_records(ctx: click.Context, parameters: Sequence[click.Parameter]) -> list[tuple[str, str]]:
    """Return what the help says about options; arguments are explained in the text above."""
    options = [each for each in parameters if isinstance(each, click.Option)]
    return [record for each in options if (record := each.get_help_record(ctx)) is not None]


def _write_parameters(
    ctx: click.Context, formatter: click.HelpFormatter, heading: str, parameters: Sequence[click.Parameter]
) -> None:
    records = help_records(ctx, parameters)
    if records:
        with formatter.section(heading):
            formatter.write_dl(records)


def _write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    if examples:
        with formatter.section("Examples"):
            for line in examples:
                formatter.write(f"  {line}\n")
