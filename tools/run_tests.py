"""Run the default tests in two processes at once: `make test`.

Tests of single parts keep one core busy, and those with Spark more than one; those with servers, clients and official
clients mostly wait for each other. The last group is shown while it runs, the others when all have ended.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The cache of failed tests belongs to one of them.
PARTS = ["tests/unit", "tests/spark", "-q", "-p", "no:cacheprovider"]
WHOLE = ["--ignore=tests/unit", "--ignore=tests/spark"]


def main(arguments: list[str]) -> int:
    """Run both groups with more arguments for pytest; return 0 if all tests passed."""
    pytest = [sys.executable, "-m", "pytest"]
    began_at_s = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        parts = subprocess.Popen([*pytest, *PARTS, *arguments], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            whole_code = subprocess.call([*pytest, *WHOLE, *arguments], cwd=ROOT)
            parts_code = parts.wait()
        finally:
            parts.kill()
            parts.wait()
        output.seek(0)
        title = "tests of single parts and with Spark, which ran beside these"
        print(f"\n{'=' * 25} {title} {'=' * 25}\n{output.read()}", end="")
    seconds = time.monotonic() - began_at_s
    outcome = "all tests passed" if parts_code == whole_code == 0 else "some tests FAILED, see above"
    print(f"\n{outcome}, {seconds:.0f} s", flush=True)
    return parts_code or whole_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
