"""Every hot path of the formats, the protocol and lake tables, as one table.

Figures are the best of several short runs, because the machine is shared; a ratio compares two figures of one run.
"""

from __future__ import annotations

import sys

from benchmarks.suites import run_suites

if __name__ == "__main__":
    sys.exit(run_suites("benchmarks.micro", ("rows", "batches", "kv", "wire", "lake"), __doc__))
