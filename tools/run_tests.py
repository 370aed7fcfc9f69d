"""Run the default tests in two processes at once: `make test`.

Tests of single parts keep one core busy; those with servers, clients and official clients mostly wait for each other.
The second group is shown while it runs, the first one when both have ended.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The cache of failed tests belongs to one of them.
PARTS = ["tests/unit", "-q", "-p", "no:cacheprovider"]
WHOLE = ["--ignore=tests/unit"]


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
        print(f"\n{'=' * 30} tests of single parts, which ran beside these {'=' * 30}\n{output.read()}", end="")
    seconds = time.monotonic() - began_at_s
    outcome = "all tests passed" if parts_code == whole_code == 0 else "some tests FAILED, see above"
    print(f"\n{outcome}, {seconds:.0f} s", flush=True)
    return parts_code or whole_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
