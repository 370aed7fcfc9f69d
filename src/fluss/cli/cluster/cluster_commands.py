"""``fluss config`` and ``fluss health``: what servers are set to do, and how they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click

from fluss.cli.kernel.commands import Command, Lazy, group
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.parameters import KEY_VALUE, mapping_of, names_of
from fluss.cli.kernel.session import Session, pass_session

config = group(
    "Look at options, change them, and explain them.",
    {
        "get": Lazy("fluss.cli.cluster.cluster_commands:get", "Show the options of the servers."),
        "set": Lazy("fluss.cli.cluster.cluster_commands:set_options", "Change options of running servers."),
        "explain": Lazy(
            "fluss.cli.cluster.cluster_commands:explain", "Explain options of servers, clients, tables and Spark."
        ),
    },
    examples=("fluss config get", "fluss config explain log.ttl"),
)


@click.command(cls=Command, examples=("fluss config get", "fluss config get log.segment.file-size --format json"))
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@pass_session
def get(session: Session, keys: tuple[str, ...]) -> None:
    """Show the options of the servers.

    All of them, or those whose keys begin with one of KEY. Passwords are masked by the servers.
    """
    entries = sorted(session.admin.describe_cluster_configs(), key=lambda entry: entry.key)
    if keys:
        entries = [entry for entry in entries if entry.key.startswith(keys)]
        if not entries:
            raise CommandError(
                f"the servers tell of no option {', '.join(keys)}; `fluss config explain` shows what there is",
                Exit.NOT_FOUND,
            )
    rows = [(entry.key, entry.value, "while running" if entry.is_dynamic else "at the start") for entry in entries]
    session.out.rows(("key", "value", "set"), rows)


@click.command(
    cls=Command,
    examples=(
        "fluss config set quota.produce.bytes-per-second=20mb",
        "fluss config set --reset quota.produce.bytes-per-second",
    ),
)
@click.argument("values", type=KEY_VALUE, nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--reset", multiple=True, metavar="KEYS", help="Back to what the servers were started with.")
@pass_session
def set_options(session: Session, values: tuple[tuple[str, str], ...], reset: tuple[str, ...]) -> None:
    """Change options of running servers.

    All of them or none. Not every option can be changed without a restart: the server says so.
    """
    changed, back = mapping_of(values, "option"), names_of(reset)
    if not changed and not back:
        raise click.UsageError("what is to be changed? Give KEY=VALUE, or --reset KEY")
    session.admin.alter_cluster_configs(set_configs=changed, reset_configs=back)
    session.out.done(f"Changed {', '.join([*changed, *back])}.", set=list(changed), reset=back)


@click.command(
    cls=Command,
    is_local=True,
    examples=("fluss config explain table.log.ttl", "fluss config explain timeout", "fluss config explain --of client"),
)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option(
    "--of", "family", type=click.Choice(("server", "client", "table", "spark")), help="Only options of these."
)
@pass_session
def explain(session: Session, words: tuple[str, ...], family: str | None) -> None:
    """Explain options of servers, clients, tables and Spark.

    Those whose keys or meanings have all the words in them. A key as a whole is explained alone.
    """
    found = [row for row in _options() if family is None or row["of"] == family]
    exact = [row for row in found if row["key"] in words]
    lowered = [word.lower() for word in words]
    matching = exact or [
        row for row in found if all(word in f"{row['key']} {row['meaning']}".lower() for word in lowered)
    ]
    if not matching:
        raise CommandError(f"no option has '{' '.join(words)}' in it; `fluss config explain` lists all", Exit.NOT_FOUND)
    if len(matching) == 1 and session.out.format == "table":
        session.out.record(matching[0])
        return
    session.out.rows(("of", "key", "default", "meaning"), [tuple(row.values()) for row in matching])


def _options() -> Iterator[dict[str, Any]]:
    from fluss.config import Config
    from fluss.options import Option
    from fluss.schema.table_options import TABLE_OPTIONS
    from fluss.spark.source_options import SPARK_OPTIONS

    families: dict[str, list[Option[Any]]] = {
        "client": list(Config.options()),
        "table": list(TABLE_OPTIONS.values()),
        "spark": list(SPARK_OPTIONS),
    }
    # Without the libraries of a server there are none to explain.
    with suppress(ImportError):
        from fluss.server.options.server_options import ServerOptions

        families = {"server": list(ServerOptions.options()), **families}
    for family, options in families.items():
        for option in options:
            yield {"of": family, "key": option.key, "default": option.default_text, "meaning": option.doc}


@click.command(cls=Command, examples=("fluss health", "fluss health --format json"))
@pass_session
def health(session: Session) -> int:
    """Show how the cluster is: its servers, and whether all replicas are there.

    The exit code is 0 if everything is well, and 1 if not.
    """
    from fluss.errors import ErrorCode, FlussError

    admin = session.admin
    nodes = admin.get_server_nodes()
    facts: dict[str, Any] = {"status": "unknown"}
    try:
        found = admin.get_cluster_health()
        facts = {
            "status": found.status.name.lower(),
            "replicas": found.num_replicas,
            "in_sync": found.in_sync_replicas,
            "leaders": found.num_leader_replicas,
            "active_leaders": found.active_leader_replicas,
        }
    except FlussError as error:
        if error.error_code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNKNOWN_SERVER_ERROR):
            raise
        session.out.note("these servers cannot tell how their replicas are; they answer, and that is all that is known")
    servers = [
        {"server": node.uid, "role": str(node.server_type), "address": f"{node.host}:{node.port}"} for node in nodes
    ]
    if session.out.format == "table":
        session.out.record(facts)
        session.out.say("")
        session.out.rows(("server", "role", "address"), [tuple(row.values()) for row in servers])
    else:
        session.out.record({**facts, "servers": servers})
    return Exit.OK if facts["status"] in ("green", "unknown") else Exit.FAILED
