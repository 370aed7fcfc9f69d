"""``make bench``: every hot path of the formats and the protocol, as one table.

Figures are the best of several short runs, because the machine is shared; a ratio compares two figures of one run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from importlib.metadata import version

SUITES = ("rows", "batches", "kv", "wire")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__)
    parser.add_argument("suites", nargs="*", default=SUITES, help=f"some of: {', '.join(SUITES)} (default: all)")
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"unknown suite {unknown[0]!r}; there are: {', '.join(SUITES)}")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("pyarrow", "numpy", "protobuf", "crc32c"))
    print(f"Python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores; {libraries}\n")
    print(f"{'what':<66} {'measured':>14} {'':<9} target")
    for suite in options.suites:
        for name, value, unit, target in importlib.import_module(f"benchmarks.micro.{suite}").measure():
            print(f"{name:<66} {value:>14,.3f} {unit:<9} {target}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
