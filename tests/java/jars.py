"""The jars of Apache Fluss, fetched once by Maven, and the Java programs of these tests, compiled once.

Everything lives in ``.interop/java/`` of the repository, Maven's own cache too. A directory of jars counts as complete
when its stamp names exactly what is wanted now. Several test runs may ask at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

HERE: Final = Path(__file__).resolve().parent
POM: Final = HERE / "pom.xml"
PROGRAMS: Final = HERE / "programs"
DIRECTORY: Final = HERE.parents[1] / ".interop" / "java"
# Maven fetches about 160 MB the first time.
FETCH_TIMEOUT_S: Final = 1200


class JavaUnavailableError(Exception):
    """The tests with Apache Fluss cannot run here; the text says in one sentence why, and what to do."""


def require_tools() -> None:
    """Raise JavaUnavailableError unless a JDK and Maven are in reach."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        raise JavaUnavailableError(
            f"The tests with an Apache Fluss cluster need a JDK 17 and Maven, and {' and '.join(missing)} "
            "cannot be found; install them to run these tests."
        )


def class_path(profile: Literal["server", "client"]) -> str:
    """Return the class path with the server, or with the client; fetch the jars if need be."""
    require_tools()
    wanted = POM.read_text(encoding="utf-8")
    directory = DIRECTORY / profile
    stamp = directory / "fetched.txt"
    with _locked():
        if not (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
            shutil.rmtree(directory, ignore_errors=True)
            _fetch(profile, directory)
            stamp.write_text(wanted, encoding="utf-8")
    return f"{directory}/*"


def program_class_path() -> str:
    """Return the class path with the Java client and the programs of these tests; compile them if need be."""
    jars = class_path("client")
    sources = sorted(PROGRAMS.glob("*.java"))
    wanted = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    directory = DIRECTORY / "programs"
    stamp = directory / "compiled.txt"
    with _locked():
        if not (stamp.exists() and stamp.read_text() == wanted):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            command = ["javac", "-nowarn", "-cp", jars, "-d", str(directory), *map(str, sources)]
            subprocess.run(command, check=True, timeout=FETCH_TIMEOUT_S)
            stamp.write_text(wanted)
    return f"{directory}:{jars}"


def _fetch(profile: str, directory: Path) -> None:
    command = [
        *("mvn", "--batch-mode", "--quiet", "--file", str(POM), "--activate-profiles", profile),
        f"-Dmaven.repo.local={DIRECTORY / 'maven'}",
        f"-DoutputDirectory={directory}",
        "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
    ]
    try:
        subprocess.run(command, check=True, timeout=FETCH_TIMEOUT_S, capture_output=True, text=True)
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stdout", None) or str(error)
        raise JavaUnavailableError(
            f"Maven could not fetch the jars of Apache Fluss, which takes its repository once; afterwards {DIRECTORY} "
            f"is used: {said.strip()[-2000:]}"
        ) from error


@contextmanager
def _locked() -> Iterator[None]:
    """Keep other processes out. The lock goes with the process, so a killed run leaves none behind."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
