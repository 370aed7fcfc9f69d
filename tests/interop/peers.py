"""Environments with the official clients, one per version, made once from the package index.

An environment lives in ``.interop/<version>/`` of the repository. It counts as made when its stamp names exactly the
packages wanted now; anything else, a half-made one included, is made anew. Several test runs may ask at the same time.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What both generations are known to work with. Pinned, so that a release of another project cannot fail these tests.
SHARED_PACKAGES = ("numpy==2.4.6", "pandas==3.1.1", "pyarrow==26.0.1", "python-dateutil==4.0.0", "tzdata==2026.6")
VERSIONS = ("0.1.0", "1.0.0")

INSTALL_TIMEOUT_S = 600
DIRECTORY = Path(__file__).resolve().parents[2] / ".interop"


class PeerUnavailableError(Exception):
    """An official client could not be installed; the text says what was tried and what the installer said."""


def peer_python(version: str) -> Path:
    """Return the interpreter of the environment with ``pyfluss==version``; make the environment if need be."""
    packages = (f"pyfluss=={version}", *SHARED_PACKAGES)
    wanted = "\n".join((sys.version, *packages))
    directory = DIRECTORY / version
    python = directory / "bin" / "python"
    stamp = directory / "installed.txt"
    with _locked(version):
        if not (python.exists() and stamp.exists() and stamp.read_text() == wanted):
            _make(directory, packages)
            stamp.write_text(wanted)
    return python


@contextmanager
def _locked(version: str) -> Iterator[None]:
    """Keep other processes out. The lock goes with the process, so a killed run leaves none behind."""
    DIRECTORY.mkdir(exist_ok=True)
    with (DIRECTORY / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(directory: Path, packages: tuple[str, ...]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(directory)], packages)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--only-binary", ":all:", *packages], packages)


def _run(command: list[str], packages: tuple[str, ...]) -> None:
    try:
        subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S, capture_output=True, text=True)
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise PeerUnavailableError(
            f"the official client could not be installed ({', '.join(packages)}): {said.strip()}\n"
            f"It needs the package index once; afterwards {DIRECTORY} is used."
        ) from error
