"""Snapshots of lake tables: files that were written become rows of the table, all of them or none.

A commit is made on one state of the table. If another writer has changed the table since, it is refused, and nothing
is tried again: the planner of the files must look at the new state first.

| commit | added | deletes | replaced | operation |
|---|---|---|---|---|
| append | data files | | | append |
| row delta | data files | delete files | | overwrite |
| replace | data files | | data and delete files | replace |
| progress | | | | append, with properties only |
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

from fluss.errors import FlussError
from fluss.options import without_passwords

logger = logging.getLogger(__name__)

COMMIT_USER_KEY: Final = "commit-user"
TIERING_USER: Final = "__fluss_lake_tiering"
# In the summary of a tiered snapshot: the path of the file with the offsets up to which it has all records.
OFFSETS_KEY: Final = "fluss-offsets"

# {remote storage}/lake/{database}/{table}-{table id}/metadata/{uuid}.offsets
_OFFSETS_FILE: Final = re.compile(r"-(\d+)/metadata/[^/]+\.offsets$")
_MERGE_COUNT_KEY: Final = "commit.manifest.min-count-to-merge"
_MERGE_COUNT: Final = 10
# A manifest with so many files is not merged again: a merge costs the same in a large table.
_MERGED_FILES_MAX: Final = 1000
_MANIFEST_BYTES_KEY: Final = "commit.manifest.target-size-bytes"
_MANIFEST_BYTES: Final = 8 << 20
_CODEC: Final = "gzip"


class LakeConflictError(FlussError):
    """The table is not in the state any more on which a commit was planned. Nothing of the commit was done."""


def tiering_properties(offsets_path: str) -> dict[str, str]:
    """Return the properties that mark a snapshot as one of the tiering service, and say how far it goes."""
    return {COMMIT_USER_KEY: TIERING_USER, OFFSETS_KEY: offsets_path}


def offsets_table_id(offsets_path: str) -> int | None:
    """Return the id of the Fluss table that a file of offsets belongs to, None if its path does not say so."""
    match = _OFFSETS_FILE.search(offsets_path)
    return None if match is None else int(match[1])


def latest_tiered_snapshot(table: IcebergTable) -> Snapshot | None:
    """Return the newest snapshot of the main branch that the tiering service made; None if there is none."""
    snapshot = table.metadata.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and snapshot.summary.get(COMMIT_USER_KEY) == TIERING_USER:
            return snapshot
        parent_id = snapshot.parent_snapshot_id
        snapshot = None if parent_id is None else table.metadata.snapshot_by_id(parent_id)
    return None


def commit_files(
    table: IcebergTable,
    *,
    added: Sequence[DataFile] = (),
    deletes: Sequence[DataFile] = (),
    replaced: Sequence[DataFile] = (),
    properties: Mapping[str, str] | None = None,
) -> int:
    """Commit files on the state that ``table`` has, and return the id of the new snapshot.

    Raises LakeConflictError if the table has changed since it was loaded, or if a file to be replaced is not in it.
    After any other error the commit may have happened: the files must be left alone until the table was looked at.
    """
    return _SnapshotCommit(table, added, deletes, replaced, properties or {}).commit()


class _DeleteManifestWriter(ManifestWriterV2):
    """Writes a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


@dataclass
class _SnapshotCommit:
    table: IcebergTable
    added: Sequence[DataFile]
    deletes: Sequence[DataFile]
    replaced: Sequence[DataFile]
    properties: Mapping[str, str]
    # Files of this commit that belong to nothing if it does not happen.
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metadata = self.table.metadata
        self.parent = self.metadata.current_snapshot()
        self.snapshot_id: int = self.metadata.new_snapshot_id()
        self.uuid = uuid4()
        if self.metadata.format_version != 2:
            raise FlussError(f"Snapshots of format version {self.metadata.format_version} cannot be written, only of 2")

    def commit(self) -> int:
        try:
            manifests = self._merged([*self._new_manifests(), *self._kept_manifests()])
            snapshot = self._snapshot(manifests)
        except BaseException:
            self._clean_up()
            raise
        self._publish(snapshot)
        return self.snapshot_id

    # Manifests

    def _new_manifests(self) -> list[ManifestFile]:
        manifests = []
        for content, files in ((ManifestContent.DELETES, self.deletes), (ManifestContent.DATA, self.added)):
            entries = [
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self.snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
                for file in files
            ]
            if entries:
                manifests.append(self._write(content, self.metadata.default_spec_id, entries))
        return manifests

    def _kept_manifests(self) -> list[ManifestFile]:
        """Return the manifests of the parent; those with replaced files are written anew without them."""
        if self.parent is None:
            if self.replaced:
                raise LakeConflictError(f"Files to be replaced are not in the table {self._name}, which is empty")
            return []
        io = self.table.io
        # Manifests that have nothing but files that are gone were of use to the snapshot that removed them only.
        manifests = [each for each in self.parent.manifests(io) if each.has_added_files() or each.has_existing_files()]
        missing = {file.file_path for file in self.replaced}
        if not missing:
            return manifests
        kept: list[ManifestFile] = []
        for manifest in manifests:
            entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
            hits = {entry.data_file.file_path for entry in entries} & missing
            if not hits:
                kept.append(manifest)
                continue
            missing -= hits
            rewritten = [self._carried(entry, is_removed=entry.data_file.file_path in hits) for entry in entries]
            kept.append(self._write(manifest.content, manifest.partition_spec_id, rewritten))
        if missing:
            raise LakeConflictError(
                f"{len(missing)} files to be replaced are not in the table {self._name} any more; plan on its new state"
            )
        return kept

    def _carried(self, entry: ManifestEntry, *, is_removed: bool = False) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if is_removed else ManifestEntryStatus.EXISTING,
            snapshot_id=self.snapshot_id if is_removed else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merge manifests when there are many of about the same size, so that plans and commits stay quick.

        So a file is written into a manifest again only when its manifest has grown tenfold, and there are a few
        manifests of each size.
        """
        count = max(int(self.table.properties.get(_MERGE_COUNT_KEY, _MERGE_COUNT)), 2)
        target_bytes = int(self.table.properties.get(_MANIFEST_BYTES_KEY, _MANIFEST_BYTES))
        small: dict[tuple[ManifestContent, int, int], list[ManifestFile]] = {}
        for manifest in manifests:
            file_count = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            is_small = manifest.manifest_length < target_bytes and file_count < _MERGED_FILES_MAX
            # Those of this snapshot have no sequence number yet, and stay as they are.
            if is_small and manifest.added_snapshot_id != self.snapshot_id:
                size = next(each for each in itertools.count() if file_count < count ** (each + 1))
                small.setdefault((manifest.content, manifest.partition_spec_id, size), []).append(manifest)
        for (content, spec_id, _), merged in small.items():
            if len(merged) < count:
                continue
            entries = [
                self._carried(entry)
                for manifest in merged
                for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
            ]
            paths = {manifest.manifest_path for manifest in merged}
            manifests = [manifest for manifest in manifests if manifest.manifest_path not in paths]
            if entries:
                manifests.append(self._write(content, spec_id, entries))
        return manifests

    def _write(self, content: ManifestContent, spec_id: int, entries: Iterable[ManifestEntry]) -> ManifestFile:
        kind = _DeleteManifestWriter if content == ManifestContent.DELETES else ManifestWriterV2
        location = self._new_location(f"{self.uuid}-m{len(self.written)}.avro")
        output = self.table.io.new_output(location)
        spec = self.metadata.specs()[spec_id]
        with kind(spec, self.metadata.schema(), output, self.snapshot_id, _CODEC) as writer:
            for entry in entries:
                if entry.status == ManifestEntryStatus.ADDED:
                    writer.add(entry)
                else:
                    writer.add_entry(entry)
        return writer.to_manifest_file()

    def _new_location(self, name: str) -> str:
        location: str = self.table.location_provider().new_metadata_location(name)
        self.written.append(location)
        return location

    # The snapshot

    def _snapshot(self, manifests: list[ManifestFile]) -> Snapshot:
        sequence_number = self.metadata.next_sequence_number()
        parent_id = None if self.parent is None else self.parent.snapshot_id
        location = self._new_location(f"snap-{self.snapshot_id}-0-{self.uuid}.avro")
        with write_manifest_list(
            format_version=2,
            output_file=self.table.io.new_output(location),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence_number,
            avro_compression=_CODEC,
        ) as writer:
            writer.add_manifests(manifests)
        return Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent_id,
            manifest_list=location,
            sequence_number=sequence_number,
            summary=self._summary(),
            schema_id=self.metadata.current_schema_id,
        )

    def _summary(self) -> Summary:
        schema, specs = self.metadata.schema(), self.metadata.specs()
        collector = SnapshotSummaryCollector(partition_summary_limit=0)
        add: Callable[..., Any] = collector.add_file
        for files, count in (((*self.added, *self.deletes), add), (self.replaced, collector.remove_file)):
            for file in files:
                count(data_file=file, partition_spec=specs[file.spec_id], schema=schema)
        # pyiceberg has no totals for the operation "replace"; they are those of an overwrite.
        operation = Operation.APPEND if not self.deletes and not self.replaced else Operation.OVERWRITE
        summary = update_snapshot_summaries(
            Summary(operation=operation, **collector.build(), **self.properties),
            None if self.parent is None else self.parent.summary,
        )
        if self.replaced and not self.deletes:
            return Summary(operation=Operation.REPLACE, **summary.additional_properties)
        return summary

    def _publish(self, snapshot: Snapshot) -> None:
        updates = (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                snapshot_id=self.snapshot_id,
                parent_snapshot_id=snapshot.parent_snapshot_id,
                ref_name=MAIN_BRANCH,
                type=SnapshotRefType.BRANCH,
            ),
        )
        requirements = (
            AssertTableUUID(uuid=self.metadata.table_uuid),
            AssertRefSnapshotId(snapshot_id=snapshot.parent_snapshot_id, ref=MAIN_BRANCH),
        )
        try:
            self.table.catalog.commit_table(self.table, requirements, updates)
        except CommitFailedException as error:
            if self._has_landed():
                return
            self._clean_up()
            raise LakeConflictError(
                f"The lake table {self._name} was changed by another writer: {error}. Plan on its new state"
            ) from None
        except FlussError:
            raise
        except Exception as error:
            raise FlussError(
                f"The catalog has not answered the commit to the lake table {self._name}, which may have happened: "
                f"{without_passwords(f'{type(error).__name__}: {error}')}"
            ) from error
        try:
            self.table.refresh()
        except Exception as error:
            # It has happened all the same; who commits again on the old state is told so.
            logger.warning("the lake table %s cannot be loaded after a commit: %s", self._name, type(error).__name__)

    def _has_landed(self) -> bool:
        """Whether the commit happened although it was reported as failed, as when an answer was lost on its way."""
        return self.table.refresh().metadata.snapshot_by_id(self.snapshot_id) is not None

    def _clean_up(self) -> None:
        for location in self.written:
            with suppress(OSError):
                self.table.io.delete(location)

    @property
    def _name(self) -> str:
        return ".".join(self.table.name())
