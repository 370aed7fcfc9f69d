"""A catalog without a service: a directory with tables in the layout of Hadoop catalogs.

    {warehouse}/{database}/{table}/metadata/v{version}.metadata.json    each state of the table
    {warehouse}/{database}/{table}/metadata/version-hint.text           the newest version, or one shortly before it
    {warehouse}/{database}/{table}/data/                                data files

A commit links a complete file to the name of the next version. Exactly one of several writers can do that; the others
are told that their commit failed. So the directory must be on a file system with hard links.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlparse
from uuid import uuid4

from pyiceberg.catalog import Catalog, MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from fluss.errors import ErrorCode, FlussError

_VERSION_FILE: Final = re.compile(r"v(\d+)(\.gz)?\.metadata\.json")
_HINT_FILE: Final = "version-hint.text"
_KNOWN_STATES_MAX: Final = 32


class _KnownStates:
    """States of tables that this process has read or made. Their files never change, and take long to read.

    What goes in and out has schemas of its own: pyiceberg's remember what was asked of them, so that one thread would
    change a schema while another copies it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[str, tuple[tuple[int, ...], TableMetadata]] = OrderedDict()

    def get(self, path: Path) -> TableMetadata | None:
        """Return the state in a file, None if it is not known, or the file is another one by now."""
        with self._lock:
            found = self._states.get(str(path))
            return _with_own_schemas(found[1]) if found is not None and found[0] == _identity(path) else None

    def put(self, path: Path, metadata: TableMetadata) -> None:
        """Keep a state; that of the same table before is forgotten."""
        with self._lock:
            directory = f"{path.parent}{os.sep}"
            for known in [each for each in self._states if each.startswith(directory)]:
                del self._states[known]
            self._states[str(path)] = _identity(path), _with_own_schemas(metadata)
            while len(self._states) > _KNOWN_STATES_MAX:
                self._states.popitem(last=False)


def _with_own_schemas(metadata: TableMetadata) -> TableMetadata:
    own = {"schemas": deepcopy(metadata.schemas), "partition_specs": deepcopy(metadata.partition_specs)}
    return metadata.model_copy(update=own)


def _identity(path: Path) -> tuple[int, ...]:
    """Tell a file from another of the same name, as when a table was dropped and created again."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


_known_states = _KnownStates()


class DirectoryCatalog(MetastoreCatalog):
    """The tables below a directory; databases are its subdirectories."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._warehouse = local_path(properties["warehouse"])

    # Tables

    def load_table(self, identifier: Any) -> Table:
        directory = self._table_dir(identifier)
        version = _newest_version(directory)
        if version is None:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(self.identifier_to_tuple(identifier))}")
        return self._load_version(identifier, directory, version)

    def table_exists(self, identifier: Any) -> bool:
        return _newest_version(self._table_dir(identifier)) is not None

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = None,
    ) -> Table:
        directory = self._table_dir(identifier)
        if location is not None and local_path(location) != directory:
            raise ValueError(f"a table of a directory catalog is where its name says, at {_location(directory)}")
        if not directory.parent.is_dir():
            raise NoSuchNamespaceError(f"Namespace does not exist: {directory.parent.name}")
        metadata = new_table_metadata(
            location=_location(directory),
            schema=self._convert_schema_if_needed(schema),
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties=dict(properties or {}),
        )
        try:
            if _newest_version(directory) is not None:
                raise CommitFailedException
            _publish(directory, metadata, 1)
        except CommitFailedException:
            raise TableAlreadyExistsError(f"Table already exists: {directory.parent.name}.{directory.name}") from None
        return self.load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        identifier = table.name()
        directory = self._table_dir(identifier)
        current = self.load_table(identifier)
        metadata = self._updated(current, requirements, updates)
        if metadata is current.metadata:
            return CommitTableResponse(metadata=current.metadata, metadata_location=current.metadata_location)
        version = _version_of(current.metadata_location) + 1
        _publish(directory, metadata, version)
        path = _version_file(directory, version)
        _known_states.put(path, metadata)
        _delete_old_versions(current.metadata, metadata)
        return CommitTableResponse(metadata=metadata, metadata_location=_location(path))

    def _updated(self, current: Table, requirements: Any, updates: Any) -> TableMetadata:
        """Return the next state of a table.

        pyiceberg copies all of a state, so that the snapshots of years would be copied for each new one. Those that a
        new snapshot has nothing to do with are left out meanwhile.
        """
        before = current.metadata
        is_addition = all(isinstance(update, AddSnapshotUpdate | SetSnapshotRefUpdate) for update in updates)
        if not is_addition:
            staged = self._update_and_stage_table(current, current.name(), requirements, updates)
            return before if staged.metadata == before else staged.metadata
        # Those of branches and tags, and those that one is set to: a rollback, a tag of something older.
        named = {ref.snapshot_id for ref in before.refs.values()}
        named |= {update.snapshot_id for update in updates if isinstance(update, SetSnapshotRefUpdate)}
        kept = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id in named]
        small = before.model_copy(update={"snapshots": kept, "snapshot_log": [], "metadata_log": []})
        table = Table(current.name(), small, current.metadata_location, current.io, self)
        after = self._update_and_stage_table(table, current.name(), requirements, updates).metadata
        if after == small:
            return before
        kept_ids = {snapshot.snapshot_id for snapshot in kept}
        added = [snapshot for snapshot in after.snapshots if snapshot.snapshot_id not in kept_ids]
        return after.model_copy(
            update={
                "snapshots": [*before.snapshots, *added],
                "snapshot_log": [*before.snapshot_log, *after.snapshot_log],
                "metadata_log": [*before.metadata_log, *after.metadata_log][-_versions_max(before) :],
            }
        )

    def drop_table(self, identifier: Any) -> None:
        """Delete a table with its data: the directory is the table."""
        if not self.table_exists(identifier):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(self.identifier_to_tuple(identifier))}")
        shutil.rmtree(self._table_dir(identifier))

    def purge_table(self, identifier: Any) -> None:
        self.drop_table(identifier)

    def list_tables(self, namespace: Any) -> list[tuple[str, ...]]:
        directory = self._namespace_dir(namespace)
        if not directory.is_dir():
            raise NoSuchNamespaceError(f"Namespace does not exist: {directory.name}")
        names = sorted(each.name for each in directory.iterdir() if _newest_version(each) is not None)
        return [(*self.identifier_to_tuple(namespace), name) for name in names]

    def _load_version(self, identifier: Any, directory: Path, version: int) -> Table:
        path = _version_file(directory, version)
        if not path.exists():
            path = directory / "metadata" / f"v{version}.gz.metadata.json"
        location = _location(path)
        io = self._load_file_io(location=location)
        metadata = _known_states.get(path)
        if metadata is None:
            metadata = FromInputFile.table_metadata(io.new_input(location))
            _known_states.put(path, metadata)
        return Table(self.identifier_to_tuple(identifier), metadata, location, io, self)

    # Databases

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        try:
            self._namespace_dir(namespace).mkdir(parents=True)
        except FileExistsError:
            raise NamespaceAlreadyExistsError(f"Namespace already exists: {namespace}") from None

    def namespace_exists(self, namespace: Any) -> bool:
        return self._namespace_dir(namespace).is_dir()

    def drop_namespace(self, namespace: Any) -> None:
        directory = self._namespace_dir(namespace)
        try:
            directory.rmdir()
        except FileNotFoundError:
            raise NoSuchNamespaceError(f"Namespace does not exist: {directory.name}") from None
        except OSError:
            raise NamespaceNotEmptyError(f"Namespace is not empty: {directory.name}") from None

    def list_namespaces(self, namespace: Any = ()) -> list[tuple[str, ...]]:
        if namespace or not self._warehouse.is_dir():
            return []
        return [(each.name,) for each in sorted(self._warehouse.iterdir()) if each.is_dir()]

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        directory = self._namespace_dir(namespace)
        if not directory.is_dir():
            raise NoSuchNamespaceError(f"Namespace does not exist: {directory.name}")
        return {"location": _location(directory)}

    def update_namespace_properties(self, *_: Any, **__: Any) -> PropertiesUpdateSummary:
        _refuse("properties of databases")

    # What a directory has no place for

    def rename_table(self, *_: Any, **__: Any) -> Table:
        _refuse("renaming: a table is where its name says")

    def register_table(self, *_: Any, **__: Any) -> Table:
        _refuse("registering tables from elsewhere")

    def list_views(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def view_exists(self, *_: Any, **__: Any) -> bool:
        return False

    def load_view(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("views")

    def create_view(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("views")

    def register_view(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("views")

    def drop_view(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("views")

    # Paths

    def _namespace_dir(self, namespace: Any) -> Path:
        return self._warehouse.joinpath(*_checked_names(self.identifier_to_tuple(namespace)))

    def _table_dir(self, identifier: Any) -> Path:
        return self._warehouse.joinpath(*_checked_names(Catalog.identifier_to_tuple(identifier)))


def local_path(location: str) -> Path:
    """Return the path of a location on this machine; any other is a FlussError."""
    parsed = urlparse(location)
    if parsed.scheme not in ("", "file"):
        raise FlussError(
            f"A catalog of type 'hadoop' needs a directory that is mounted here, and {location!r} is none: object "
            "stores cannot tell two writers apart. Use a catalog of type 'rest', 'sql', 'glue' or 'hive' with it",
            ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
        )
    # Hadoop writes file:/path, others file:///path.
    return Path(re.sub(r"^file:(//)?", "", location)).absolute()


def _location(path: Path) -> str:
    """Return the address of a path. Like all readers of such tables it takes characters as they are."""
    return f"file://{path}"


def _checked_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} cannot be the name of a directory")
    return names


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(f"a directory catalog does not support {what}")


def _version_file(directory: Path, version: int) -> Path:
    return directory / "metadata" / f"v{version}.metadata.json"


def _version_of(location: str) -> int:
    match = _VERSION_FILE.fullmatch(location.rsplit("/", 1)[-1])
    assert match is not None, f"{location} is a version of a table"
    return int(match[1])


def _newest_version(directory: Path) -> int | None:
    """Return the version that counts: the hint may be older, but never newer, because it is written afterwards."""
    metadata = directory / "metadata"
    try:
        version = int((metadata / _HINT_FILE).read_text())
    except (OSError, ValueError):
        version = 0
    if not _has_version(metadata, version):
        try:
            matches = (_VERSION_FILE.fullmatch(name) for name in os.listdir(metadata))
        except OSError:
            return None
        version = max((int(match[1]) for match in matches if match is not None), default=0)
    while _has_version(metadata, version + 1):
        version += 1
    return version or None


def _has_version(metadata: Path, version: int) -> bool:
    return (metadata / f"v{version}.metadata.json").exists() or (metadata / f"v{version}.gz.metadata.json").exists()


def _versions_max(metadata: TableMetadata) -> int:
    """Return how many versions a table lists, besides the newest."""
    told = metadata.properties.get(TableProperties.METADATA_PREVIOUS_VERSIONS_MAX)
    return max(1, int(told or TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT))


def _delete_old_versions(before: TableMetadata, after: TableMetadata) -> None:
    """Delete the versions that a table no longer lists: each of them has all its snapshots.

    Other catalogs keep them unless they are told otherwise, as this one does if it is told so.
    """
    if str(after.properties.get(TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, "true")).lower() != "true":
        return
    listed = {entry.metadata_file for entry in after.metadata_log}
    for entry in before.metadata_log:
        if entry.metadata_file not in listed:
            with suppress(OSError):
                local_path(entry.metadata_file).unlink(missing_ok=True)


class _KnownTexts:
    """Lists in states of tables as JSON: from one state to the next they only grow, to thousands of snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: OrderedDict[tuple[Any, str], tuple[list[Any], bytearray]] = OrderedDict()

    def of(self, table_uuid: Any, name: str, items: Sequence[Any]) -> bytes:
        with self._lock:
            known, text = self._texts.pop((table_uuid, name), ([], bytearray()))
            # Mostly they are the same objects, which are not compared any further.
            if known != items[: len(known)]:
                known, text = [], bytearray()
            for item in items[len(known) :]:
                text += b"," if text else b""
                text += item.model_dump_json().encode()
            self._texts[table_uuid, name] = list(items), text
            while len(self._texts) > 2 * _KNOWN_STATES_MAX:
                self._texts.popitem(last=False)
            return bytes(text)


_known_texts = _KnownTexts()


def metadata_json(metadata: TableMetadata) -> list[bytes]:
    """Return a state of a table as its file has it: what ``model_dump_json`` returns, in pieces and in less time."""
    rest = metadata.model_copy(update={"snapshots": [], "snapshot_log": []}).model_dump_json(
        exclude={"snapshots", "snapshot_log"}
    )
    snapshots = _known_texts.of(metadata.table_uuid, "snapshots", metadata.snapshots)
    log = _known_texts.of(metadata.table_uuid, "snapshot-log", metadata.snapshot_log)
    return [rest[:-1].encode(), b',"snapshots":[', snapshots, b'],"snapshot-log":[', log, b"]}"]


def _publish(directory: Path, metadata: Any, version: int) -> None:
    """Make a new version of a table. Raises CommitFailedException if there is one of that number."""
    target = _version_file(directory, version)
    target.parent.mkdir(parents=True, exist_ok=True)
    if _has_version(target.parent, version):
        raise CommitFailedException(f"version {version} of the table was made by another writer")
    unfinished = target.with_name(f".{uuid4().hex}.unfinished")
    try:
        _write_durably(unfinished, metadata_json(metadata))
        os.link(unfinished, target)
        if version > 1 and not _has_version(target.parent, version - 1):
            # So many versions were made meanwhile that those of this number and before are deleted. If this one was
            # made before them, it is among what they have, and the writer finds it there.
            target.unlink(missing_ok=True)
            raise CommitFailedException(f"version {version} of the table was made by another writer long ago")
    except FileExistsError:
        raise CommitFailedException(f"version {version} of the table was made by another writer") from None
    finally:
        unfinished.unlink(missing_ok=True)
    hint = target.with_name(f".{uuid4().hex}.hint")
    _write_durably(hint, [str(version).encode()])
    os.replace(hint, target.with_name(_HINT_FILE))
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_durably(path: Path, pieces: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
