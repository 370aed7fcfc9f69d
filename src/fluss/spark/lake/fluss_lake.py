"""The lake of tables, for people: compact, expire, verify, find forgotten files."""

from __future__ import annotations

from collections.abc import Mapping

from fluss import FlussTable
from fluss.schema.table import TablePath
from fluss.spark.bulk.jobs import FlussOnSpark
from fluss.spark.connections import await_table
from fluss.spark.lake.spark_tasks import SparkTasks
from fluss.spark.naming import table_path
from fluss.spark.query_options import client_settings
from fluss.tiering import compaction, upkeep, verification
from fluss.tiering.compaction import CompactionReport
from fluss.tiering.upkeep import ExpiryReport, OrphanReport
from fluss.tiering.verification import VerificationReport


class FlussLake:
    """What can be done with the lake of a table: ``fs.lake``. Rows are read and written by tasks of the session.

    Every method takes ``lake_properties``: credentials of the lake's catalog and files, named as pyiceberg names them,
    which servers do not tell.
    """

    def __init__(self, fs: FlussOnSpark) -> None:
        self._fs = fs

    def compact(
        self,
        table: str | TablePath,
        *,
        everything: bool = True,
        lake_properties: Mapping[str, str] | None = None,
    ) -> CompactionReport:
        """Put small files together, and leave out rows that were deleted. Safe beside rounds of tiering.

        Without ``everything`` it is done for buckets where it pays off, as the option
        ``table.datalake.auto-compaction`` does after rounds.
        """
        run_tasks = SparkTasks(self._fs)
        return compaction.compact(
            self._table(table), lake_properties=lake_properties, run_tasks=run_tasks, everything=everything
        )

    def expire(
        self,
        table: str | TablePath,
        *,
        min_age_s: float = upkeep.MIN_AGE_S,
        lake_properties: Mapping[str, str] | None = None,
    ) -> ExpiryReport:
        """Remove old snapshots, and the files that only they had. Reads that began on one of them fail from then on."""
        return upkeep.expire(self._table(table), lake_properties=lake_properties, min_age_s=min_age_s)

    def remove_orphans(
        self,
        table: str | TablePath,
        *,
        min_age_s: float = upkeep.ORPHAN_AGE_S,
        dry_run: bool = False,
        lake_properties: Mapping[str, str] | None = None,
    ) -> OrphanReport:
        """Delete files that belong to no snapshot, such as those of rounds whose service was killed.

        With ``dry_run`` they are only named.
        """
        return upkeep.remove_orphans(
            self._table(table), lake_properties=lake_properties, min_age_s=min_age_s, dry_run=dry_run
        )

    def verify(self, table: str | TablePath, *, lake_properties: Mapping[str, str] | None = None) -> VerificationReport:
        """Compare the lake with the table: offsets without gap or overlap, keys once, the same rows.

        Both may change meanwhile. The report says what is wrong, bucket by bucket.
        """
        run_tasks = SparkTasks(self._fs)
        return verification.verify(self._table(table), lake_properties=lake_properties, run_tasks=run_tasks)

    def _table(self, table: str | TablePath) -> FlussTable:
        return await_table(client_settings(self._fs.options), table_path(table))
