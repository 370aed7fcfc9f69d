"""Tables from one place to another: within a cluster, or to another one; one table, or all of a database."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from fluss.client.wrappers import wait_for
from fluss.config import Config
from fluss.errors import FlussError
from fluss.schema.table import TablePath
from fluss.spark.bulk.handle import FlussOnSpark, refuse_speculation
from fluss.spark.bulk.progress import Listener, listener_of
from fluss.spark.bulk.reports import CopyReport
from fluss.spark.bulk.table_copy import TableCopy, check_can_be_copied
from fluss.spark.connections import open_connection
from fluss.spark.names import table_path
from fluss.spark.query_options import client_settings, option_texts


def copy(
    fs: FlussOnSpark,
    source: str,
    target: str,
    *,
    target_cluster: str | Mapping[str, str] | None = None,
    tables: Sequence[str] | None = None,
    properties: Mapping[str, str | None] | None = None,
    verify: bool = True,
    progress: bool | Listener | None = None,
) -> CopyReport:
    """Copy a table (``sales.orders``) or all tables of a database (``sales``), or those that ``tables`` names.

    The target is in the same cluster, or in ``target_cluster``: its ``bootstrap.servers``, or all options that it takes
    to reach it. The targets are created with the columns, keys, buckets, partitions, comments and properties of their
    sources, except for the number of replicas; ``properties`` changes some of them, and None leaves one out.

    What is copied is fixed at the beginning: of a log table all records in their order, each into the same bucket; of
    a primary-key table its rows, without the changes that led to them. A copy that was interrupted goes on where it
    was when ``copy`` is called again, and no row is lost or doubled; a table that is complete is not copied again. What
    it takes to know that is kept with the target, in the custom property ``bulk.copy.state``. Until a copy is complete
    nobody else may write to the target. In the end both are read and compared, bucket by bucket, unless ``verify`` is
    False. A difference is a FlussError.
    """
    started_s = time.monotonic()
    refuse_speculation(fs.spark)
    source_settings = client_settings(fs.options)
    target_settings = _settings(target_cluster) if target_cluster is not None else source_settings
    pairs = _pairs(source_settings, source, target, tables)
    if source_settings == target_settings and any(from_path == to_path for from_path, to_path in pairs):
        raise FlussError(f"{source} cannot be copied onto itself; give another name or a target_cluster")
    copies = [
        TableCopy(
            fs,
            source_settings,
            source_path,
            target_settings,
            target_path,
            dict(properties or {}),
            verify,
            listener_of(progress),
        )
        for source_path, target_path in pairs
    ]
    _prepare_databases(source_settings, target_settings, pairs)
    reports = tuple(each.run() for each in copies)
    return CopyReport(reports, time.monotonic() - started_s)


def _settings(target_cluster: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(target_cluster, str):
        return {Config.bootstrap_servers.key: target_cluster}
    settings = client_settings(option_texts(target_cluster))
    if Config.bootstrap_servers.key not in settings:
        raise FlussError(f"Which cluster is the target? Give '{Config.bootstrap_servers.key}' in target_cluster")
    return settings


def _pairs(
    settings: Mapping[str, str], source: str, target: str, tables: Sequence[str] | None
) -> list[tuple[TablePath, TablePath]]:
    """Return which table is copied to which."""
    if ("." in source) != ("." in target):
        raise FlussError(f"A table is copied to a table and a database to a database, not {source!r} to {target!r}")
    if "." in source:
        if tables is not None:
            raise FlussError(f"{source!r} is one table; 'tables' chooses some of a database")
        return [(table_path(source), table_path(target))]
    admin = open_connection(settings).get_admin()
    names = sorted(wait_for(admin.list_tables(source)))
    for name in tables or ():
        if name not in names:
            raise FlussError(f"There is no table '{name}' in the database '{source}'")
    chosen = names if tables is None else tables
    pairs = [(TablePath(source, name), TablePath(target, name)) for name in chosen]
    for path, _ in pairs:
        # Before the first of them is copied.
        check_can_be_copied(wait_for(admin.get_table_info(path)))
    return pairs


def _prepare_databases(
    source: Mapping[str, str], target: Mapping[str, str], pairs: Sequence[tuple[TablePath, TablePath]]
) -> None:
    """Create the databases that the target does not have, as they are in the source."""
    names = {to_path.database_name: from_path.database_name for from_path, to_path in pairs}
    admin = open_connection(target).get_admin()
    for name, source_name in names.items():
        if not wait_for(admin.database_exists(name)):
            found = wait_for(open_connection(source).get_admin().get_database_info(source_name))
            wait_for(admin.create_database(name, found.database_descriptor, ignore_if_exists=True))
