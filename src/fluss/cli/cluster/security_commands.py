"""``fluss acl`` and ``fluss user``: who may do what, and who may come in."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.kernel.commands import Command, Lazy, group
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.session import PASSWORD_VARIABLE, Session, full_name, pass_session

if TYPE_CHECKING:
    from fluss.schema.acl import AclBinding, AclFilter, AclResource

_OPERATIONS = ("all", "read", "write", "create", "drop", "alter", "describe")

acls = group(
    "List, grant and revoke rights.",
    {
        "ls": Lazy("fluss.cli.cluster.security_commands:ls", "List who may do what."),
        "grant": Lazy("fluss.cli.cluster.security_commands:grant", "Allow a user to do something."),
        "revoke": Lazy("fluss.cli.cluster.security_commands:revoke", "Take rights away again."),
    },
    examples=("fluss acl grant alice read,write --table sales.orders", "fluss acl ls --database sales"),
)

users = group(
    "Keep a file of users, and make hashes of passwords.",
    {
        "hash": Lazy("fluss.cli.cluster.security_commands:hash_password", "Print the hash of a password."),
        "add": Lazy("fluss.cli.cluster.security_commands:add", "Add a user to a file, or change the password."),
        "ls": Lazy("fluss.cli.cluster.security_commands:ls_users", "List the users of a file."),
        "rm": Lazy("fluss.cli.cluster.security_commands:rm", "Remove a user from a file."),
    },
    examples=("fluss user add alice --file users", "fluss user ls --file users"),
)


# Rights


def _resource(table: str | None, database: str | None, cluster: bool) -> AclResource | None:
    from fluss.schema.acl import AclResource
    from fluss.schema.table import TablePath

    if (table is not None) + (database is not None) + cluster > 1:
        raise click.UsageError("give one of --table, --database and --cluster")
    if table is not None:
        return AclResource.table(TablePath.of(full_name(table)))
    if database is not None:
        return AclResource.database(database)
    return AclResource.cluster() if cluster else None


def _principal(user: str) -> str:
    return user if ":" in user else f"User:{user}"


def _row(binding: AclBinding) -> dict[str, Any]:
    return {
        "user": binding.principal.removeprefix("User:"),
        "operation": binding.operation.name.lower(),
        "on": binding.resource.resource_type.name.lower(),
        "name": binding.resource.name,
        "host": binding.host,
    }


_table_option = click.option("--table", metavar="TABLE", help="On a table.")
_database_option = click.option("--database", metavar="DATABASE", help="On a database and its tables.")
_cluster_option = click.option("--cluster", is_flag=True, help="On everything.")


def _filter(
    table: str | None, database: str | None, cluster: bool, user: str | None, operation: str | None
) -> AclFilter:
    from fluss.schema.acl import AclFilter, AclOperation, AclResourceType

    resource = _resource(table, database, cluster)
    return AclFilter(
        resource_type=AclResourceType.ANY if resource is None else resource.resource_type,
        resource_name=None if resource is None else resource.name,
        principal=None if user is None else _principal(user),
        operation=AclOperation.ANY if operation is None else AclOperation[operation.upper()],
    )


@click.command(cls=Command, examples=("fluss acl ls", "fluss acl ls --for alice --table sales.orders"))
@click.option("--for", "who", metavar="USER", help="Those of one user.")
@_table_option
@_database_option
@_cluster_option
@pass_session
def ls(session: Session, who: str | None, table: str | None, database: str | None, cluster: bool) -> None:
    """List who may do what."""
    found = [_row(each) for each in session.admin.list_acls(_filter(table, database, cluster, who, None))]
    found.sort(key=lambda row: tuple(map(str, row.values())))
    columns = ("user", "operation", "on", "name", "host")
    session.out.rows(
        columns, [tuple(row.values()) for row in found], empty="nobody has been granted anything like that"
    )


def _operations(text: str) -> list[str]:
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _OPERATIONS:
            raise click.UsageError(f"there is no operation '{name}'; there are {', '.join(_OPERATIONS)}")
    return names


@click.command(
    cls=Command,
    examples=("fluss acl grant alice read,write --table sales.orders", "fluss acl grant '*:*' describe --cluster"),
)
@click.argument("who", metavar="USER")
@click.argument("operations", metavar="OPERATION[,OPERATION...]")
@_table_option
@_database_option
@_cluster_option
@click.option("--host", default="*", show_default=True, help="From this address only.")
@pass_session
def grant(
    session: Session, who: str, operations: str, table: str | None, database: str | None, cluster: bool, host: str
) -> None:
    """Allow a user to do something.

    OPERATION is all, read, write, create, drop, alter or describe. USER is a name, or '*:*' for everybody.
    """
    from fluss.schema.acl import AclBinding, AclOperation

    resource = _resource(table, database, cluster)
    if resource is None:
        raise click.UsageError("on what? Give --table, --database or --cluster")
    names = _operations(operations)
    session.admin.create_acls(
        [AclBinding(resource, _principal(who), AclOperation[name.upper()], host) for name in names]
    )
    session.out.done(f"{who} may {', '.join(names)} on {resource.name}.", granted=names, user=who, on=resource.name)


@click.command(
    cls=Command,
    examples=("fluss acl revoke alice write --table sales.orders", "fluss acl revoke alice --database sales"),
)
@click.argument("who", metavar="USER")
@click.argument("operations", required=False, metavar="[OPERATION[,OPERATION...]]")
@_table_option
@_database_option
@_cluster_option
@pass_session
def revoke(
    session: Session, who: str, operations: str | None, table: str | None, database: str | None, cluster: bool
) -> None:
    """Take rights away again.

    Without operations all of them; without a table or database those on everything.
    """
    names: list[str | None] = [None] if operations is None else [*_operations(operations)]
    filters = [_filter(table, database, cluster, who, name) for name in names]
    dropped = session.admin.drop_acls(filters)
    if not dropped:
        raise CommandError(
            f"{who} has no such rights; `fluss acl ls --for {who}` shows those there are", Exit.NOT_FOUND
        )
    session.out.done(f"Revoked {len(dropped)} rights of {who}.", revoked=len(dropped), user=who)


# Users of servers of this package, which keep them in a file


_file_option = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    required=True,
    help="The file that 'security.sasl.users.file' of the server names.",
)


def _new_password(user: str) -> str:
    """Ask for a password, or take it from a pipe or the environment."""
    found = os.environ.get(PASSWORD_VARIABLE)
    if found:
        return found
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password: str = click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    return password


def _hashed(user: str) -> str:
    from fluss.protocol.stored_password import StoredPassword

    password = _new_password(user)
    if not password:
        raise CommandError(
            "there is no password: type it, or give it on standard input or in FLUSS_PASSWORD", Exit.USAGE
        )
    return str(StoredPassword.of(password))


@click.command(cls=Command, is_local=True, examples=("fluss user hash", "echo secret | fluss user hash alice"))
@click.argument("name", required=False)
@pass_session
def hash_password(session: Session, name: str | None) -> None:
    """Print the hash of a password.

    It can stand in 'security.sasl.plain.credentials' in the place of the password; with a name the line has both.
    """
    hashed = _hashed(name or "the user")
    session.out.raw(f"{hashed if name is None else f'{name}:{hashed}'}\n")


def _users(path: Path) -> dict[str, str]:
    from fluss.server.security_files import read_users

    return read_users(path) if path.exists() else {}


def _save(path: Path, users: dict[str, str]) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("".join(f"{name}:{hashed}\n" for name, hashed in users.items()))
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


@click.command(
    cls=Command,
    is_local=True,
    examples=("fluss user add alice --file users", "echo secret | fluss user add alice --file users"),
)
@click.argument("name")
@_file_option
@pass_session
def add(session: Session, name: str, path: Path) -> None:
    """Add a user to a file, or change the password.

    A server that has this file as 'security.sasl.users.file' takes it within seconds. The file holds hashes, and its
    owner only can read it. On an Apache Fluss cluster users are a matter of its configuration.
    """
    from fluss.server.listener_parsing import add_user

    users = _users(path)
    is_new = name not in users
    hashed = _hashed(name)
    users.pop(name, None)
    if any(character in name for character in ":,#\n") or name != name.strip():
        raise CommandError("a user name has no colon, comma or #, and no blanks around it", Exit.USAGE)
    add_user(users, name, hashed)
    _save(path, users)
    told = f"Added {name} to {path}." if is_new else f"Changed the password of {name} in {path}."
    session.out.done(told, user=name, file=str(path), added=is_new)


@click.command(cls=Command, is_local=True, examples=("fluss user ls --file users",))
@_file_option
@pass_session
def ls_users(session: Session, path: Path) -> None:
    """List the users of a file."""
    if not path.exists():
        raise CommandError(f"there is no file {path}; `fluss user add NAME --file {path}` makes it", Exit.NOT_FOUND)
    session.out.rows(("user",), [(name,) for name in sorted(_users(path))], empty=f"{path} has no users")


@click.command(cls=Command, is_local=True, examples=("fluss user rm alice --file users",))
@click.argument("name")
@_file_option
@pass_session
def rm(session: Session, name: str, path: Path) -> None:
    """Remove a user from a file."""
    users = _users(path)
    if users.pop(name, None) is None:
        raise CommandError(f"{path} has no user '{name}'", Exit.NOT_FOUND)
    _save(path, users)
    session.out.done(f"Removed {name} from {path}.", user=name, file=str(path))
