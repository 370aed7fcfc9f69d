"""Measure how long the command ``fluss`` takes to begin: its help, a list, a lookup; beside Python that does nothing.

``python tools/measure_command_start.py``. The least of some runs counts: whatever else a machine does only adds to it.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

import pyarrow as pa

import fluss
from fluss import blocking
from fluss.embedded import EmbeddedServer


def measured(command: list[str], environment: dict[str, str], runs: int) -> tuple[float, float]:
    """Return the least time by the clock, and the least processor time, in milliseconds."""
    clock_ms, processor_ms = [], []
    for _ in range(runs):
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        clock_ms.append((time.perf_counter() - begun) * 1000)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        processor_ms.append(used * 1000)
    return min(clock_ms), min(processor_ms)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    # Python may have been told to compile everything again and again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as home, EmbeddedServer({"durability": "os"}, process=True) as server:
        with blocking.connect(server.bootstrap_servers) as connection:
            schema = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_keys=["id"])
            connection.get_admin().create_table("fluss.users", fluss.TableDescriptor(schema, bucket_count=1))
            with connection.get_table("fluss.users").new_upsert().create_writer() as writer:
                writer.upsert({"id": 1, "name": "Ada"})
        environment = {**os.environ, "HOME": home, "FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers}
        # Without -m: that is how the installed script begins.
        script = [sys.executable, "-c", "import sys; from fluss.cli.app import run; run()"]
        for what, command in (
            ("python -c pass", [sys.executable, "-c", "pass"]),
            ("python -c 'import pyarrow'", [sys.executable, "-c", "import pyarrow"]),
            ("fluss --help", [*script, "--help"]),
            ("fluss db ls", [*script, "db", "ls"]),
            ("fluss get users 1", [*script, "get", "users", "1"]),
        ):
            clock_ms, processor_ms = measured(command, environment, runs)
            print(f"{what:28} {clock_ms:7.0f} ms   {processor_ms:7.0f} ms of a processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
