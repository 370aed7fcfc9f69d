"""Build what is released, the wheel and the source distribution, and try both as users would: ``make dist``.

Each is checked for what it says about itself, installed into an empty environment, and runs a program there: the client
alone first, which has to say what is missing when a server is asked for, then with the server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"

PROGRAM = """
import pyarrow as pa
import fluss
from fluss import blocking, embedded
with embedded.start() as server, blocking.connect(server.bootstrap_servers) as connection:
    schema = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_keys=["id"])
    connection.get_admin().create_table("fluss.users", fluss.TableDescriptor(schema))
    table = connection.get_table("fluss.users")
    with table.new_upsert().create_writer() as writer:
        writer.upsert([1, "Ada"])
    assert table.new_lookup().create_lookuper().lookup([1]) == {"id": 1, "name": "Ada"}
print("flussbett", fluss.__version__, "works")
"""
MISSING = 'pip install "flussbett[server]"'


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    files = sorted(DIST.iterdir())
    _run(sys.executable, "-m", "twine", "check", "--strict", *files)
    for file in files:
        _try(file)
    print("\n".join(f"{file.name}  {file.stat().st_size:,} bytes" for file in files))
    return 0


def _try(file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", CONSTRAINTS)
        _run(python, *install, file)
        # Not in the repository's folder, whose own package would be found first.
        alone = subprocess.run([python, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=False)
        if MISSING not in alone.stderr:
            raise SystemExit(f"without the server's libraries the program does not say {MISSING}:\n{alone.stderr}")
        _run(python, *install, f"{file}[server]")
        _run(python, "-c", PROGRAM, folder=folder)
        _run(python, "-m", "fluss.server", "--version", folder=folder)
        _run(python, "-m", "pip", "check", "--disable-pip-version-check", folder=folder)


def _run(*command: object, folder: object = ROOT) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([str(part) for part in command], cwd=str(folder), env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
