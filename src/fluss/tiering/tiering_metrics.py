"""The figures of rounds as metrics, in the text form of Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from fluss.metrics import Metrics, Sample
from fluss.tiering.progress import RoundProgress


class TieringMetrics:
    """Counts what rounds have done, by table. Told from any thread."""

    def __init__(self) -> None:
        self._metrics = Metrics()
        self._lock = threading.Lock()
        self._lag_rows: dict[str, float] = {}
        self._lag_s: dict[str, float] = {}
        self._metrics.gauges(
            "fluss_tiering_lag_records", "Records that the lake did not have when a round ended", self._rows
        )
        self._metrics.gauges(
            "fluss_tiering_lag_seconds", "Age of the newest record that a round brought to the lake", self._seconds
        )

    def add(self, progress: RoundProgress) -> None:
        """Add a round that has ended."""
        table, report = progress.table, progress.report
        with self._lock:
            self._metrics.counter(
                "fluss_tiering_rounds_total", "Rounds by how they ended", table=table, state=progress.state
            ).add()
            if report is None:
                return
            for name, meaning, amount in (
                ("rows", "Rows brought to the lake", report.rows),
                ("deleted_rows", "Rows of the lake replaced or deleted", report.deleted_rows),
                ("expired_rows", "Records that had expired before a round came to them", report.expired_rows),
                ("files", "Files written to the lake", report.data_files + report.delete_files),
                ("bytes", "Bytes of files written to the lake", report.bytes),
                ("seconds", "Time that rounds took", report.seconds),
            ):
                self._metrics.counter(f"fluss_tiering_{name}_total", meaning, table=table).add(amount)
            self._lag_rows[table] = report.lag_rows
            if report.lag_s is not None:
                self._lag_s[table] = report.lag_s

    def text(self) -> str:
        """Return all metrics as text."""
        with self._lock:
            return self._metrics.text()

    def _rows(self) -> Iterable[Sample]:
        return [Sample(value, (("table", table),)) for table, value in self._lag_rows.items()]

    def _seconds(self) -> Iterable[Sample]:
        return [Sample(value, (("table", table),)) for table, value in self._lag_s.items()]
