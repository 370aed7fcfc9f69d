"""The frame of a benchmark program: which suites to run, where, and a table of what they measured."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from importlib.metadata import version

_LIBRARIES = ("pyarrow", "numpy", "protobuf", "crc32c")


def run_suites(
    package: str, suites: tuple[str, ...], description: str | None, *, on_request: tuple[str, ...] = ()
) -> int:
    """Run the modules of a package that the command line names, by default all but those ``on_request``.

    Each has a function ``measure`` that yields name, value, unit, and what to compare it with.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=description)
    known = (*suites, *on_request)
    only = f", {', '.join(on_request)} only by name" if on_request else ""
    parser.add_argument("suites", nargs="*", default=suites, help=f"some of: {', '.join(known)} (default: all{only})")
    parser.add_argument(
        "--step", action="store_true", help="wait for a line of standard input before each row is measured"
    )
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in known]
    if unknown:
        parser.error(f"unknown suite {unknown[0]!r}; there are: {', '.join(known)}")
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    print(f"Python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores; {libraries}\n")
    print(f"{'what':<76} {'measured':>12} {'':<9} target or comparison")
    rows = (row for suite in options.suites for row in importlib.import_module(f"{package}.{suite}").measure())
    while not options.step or sys.stdin.readline():
        row = next(rows, None)
        if row is None:
            break
        name, value, unit, remark = row
        print(f"{name:<76} {value:>12,.3f} {unit:<9} {remark}", flush=True)
    return 0
