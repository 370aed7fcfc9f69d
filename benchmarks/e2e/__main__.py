"""End to end, over a real socket to a real server: append, scan, latency, memory, idle buckets, keys.

Every figure stands beside a limit or another client measured in the same run, because the machine is shared and only
ratios mean something. The server is a process of its own; both durability modes are measured.
"""

from __future__ import annotations

import sys

from benchmarks.suites import run_suites

if __name__ == "__main__":
    sys.exit(
        run_suites(
            "benchmarks.e2e",
            (
                "throughput",
                "latency",
                "idle",
                "memory",
                "upserts",
                "lookups",
                "buckets",
                "keys",
                "filters",
                "filtered_scans",
                "frames",
                "bounds",
                "fitting",
                "consumers",
                "scrubbing",
                "monitoring",
                "remote",
                "backup",
                "snapshots",
                "tls",
                "spark",
                "spark_errors",
                "spark_large",
                "spark_plan",
                "tiering",
                "union",
            ),
            __doc__,
            # Fetched from elsewhere, and only where there is a JDK.
            on_request=("java",),
        )
    )
