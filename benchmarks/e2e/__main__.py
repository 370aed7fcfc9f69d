"""End to end, over a real socket to a real server: append, scan, latency, memory, idle buckets.

Every figure stands beside a limit or another client measured in the same run, because the machine is shared and only
ratios mean something. The server is a process of its own; both durability modes are measured.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from importlib.metadata import version

SUITES = ("throughput", "latency", "idle", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.e2e", description=__doc__)
    parser.add_argument("suites", nargs="*", default=SUITES, help=f"some of: {', '.join(SUITES)} (default: all)")
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"unknown suite {unknown[0]!r}; there are: {', '.join(SUITES)}")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("pyarrow", "numpy", "protobuf"))
    print(f"Python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores; {libraries}\n")
    print(f"{'what':<78} {'measured':>12} {'':<9} ratio or target")
    for suite in options.suites:
        for name, value, unit, remark in importlib.import_module(f"benchmarks.e2e.{suite}").measure():
            print(f"{name:<78} {value:>12,.2f} {unit:<9} {remark}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
