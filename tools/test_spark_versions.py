"""Run tests with every supported version of Spark, each in an environment of its own: `make test-spark-versions`.

    python tools/test_spark_versions.py                    a small set that touches every part, with all versions
    python tools/test_spark_versions.py 4.1.4 --all        all tests with Spark, the long ones too, with one version

Environments are made below `.spark-versions`, once: a version takes 500 MB, and a minute to install.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ENVIRONMENTS: Final = ROOT / ".spark-versions"
# The newest release of each minor version, and what it needs that others do not: before 4.2 PySpark does not know
# pandas 3.
VERSIONS: Final = {"4.3.0": "pandas", "4.2.1": "pandas", "4.1.4": "pandas<3"}
TOOLS: Final = ("duckdb", "hypothesis", "polars", "psutil", "pytest", "pytest-timeout", "pytest-xdist", "moto[server]")
# Reads, writes, streams, exactly once, pushdown, types, SQL: the default tests of these files.
TESTS: Final = (
    "tests/unit/spark",
    "tests/spark/test_batch_read.py",
    "tests/spark/test_catalog.py",
    "tests/spark/test_exactly_once.py",
    "tests/spark/test_fluss_spark.py",
    "tests/spark/test_pushdown.py",
    "tests/spark/test_sql.py",
    "tests/spark/test_stream_read.py",
    "tests/spark/test_types.py",
    "tests/spark/test_writes.py",
)
# What only these environments can run, since they have what Spark Connect needs; marked as slow.
LONG_TESTS: Final = ("tests/spark/test_connect.py",)
# Sockets that PySpark itself leaves open are no findings.
WARNINGS: Final = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def environment(version: str) -> Path:
    """Return the Python of an environment with this version, made if it is not there."""
    directory = ENVIRONMENTS / version
    python = directory / "bin" / "python"
    if not (directory / ".installed").exists():
        print(f"Installing Spark {version} into {directory.relative_to(ROOT)} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        wanted = [f"pyspark[connect]=={version}", VERSIONS.get(version, "pandas"), *TOOLS]
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *wanted, "--editable", f"{ROOT}[server]"], check=True)
        (directory / ".installed").touch()
    return python


def run(version: str, tests: list[str], *, has_all: bool) -> bool:
    """Run tests with a version; return whether all passed."""
    command = [str(environment(version)), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    for warning in WARNINGS:
        command += ["-W", warning]
    if has_all:
        command += ["-m", "slow or not slow"]
    print(f"\nSpark {version}", flush=True)
    began_s = time.monotonic()
    # A home of another version would have its jars.
    variables = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    passed = subprocess.run(command, cwd=ROOT, env=variables).returncode == 0
    print(f"Spark {version}: {'passed' if passed else 'FAILED'}, {time.monotonic() - began_s:.0f} s", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=list(VERSIONS), help=f"default: {', '.join(VERSIONS)}")
    parser.add_argument("--all", action="store_true", help="all tests with Spark, the long ones too")
    parser.add_argument("--tests", nargs="+", help="these tests instead")
    options = parser.parse_args()
    tests = options.tests or (["tests/spark", "tests/unit/spark"] if options.all else list(TESTS))
    # All of them are run, whatever fails before.
    passed = {version: run(version, tests, has_all=options.all) for version in options.versions}
    if not options.tests and not options.all:
        for version in options.versions:
            passed[version] &= run(version, list(LONG_TESTS), has_all=True)
    failed = [version for version in options.versions if not passed[version]]
    if failed:
        print(f"failed with Spark {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
