"""Find a Java that Spark can run on, or say exactly how to get one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluss.errors import FlussError

JAVA_VERSION_MIN: Final = 17
_VERSION_TIMEOUT_S: Final = 20
# Where package managers and installers put Java: patterns below the root directory, then below the home directory.
_PLACES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "linux": (
        ("usr/lib/jvm/*", "usr/java/*", "opt/java/*", "opt/*jdk*", "opt/*jre*"),
        (".sdkman/candidates/java/*", ".jdks/*", ".jdk/*", ".asdf/installs/java/*"),
    ),
    "darwin": (
        (
            "Library/Java/JavaVirtualMachines/*/Contents/Home",
            "opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
            "usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
        ),
        (
            "Library/Java/JavaVirtualMachines/*/Contents/Home",
            ".sdkman/candidates/java/*",
            ".jdk/*/Contents/Home",
        ),
    ),
    "win32": (
        (
            "Program Files/Java/*",
            "Program Files/Eclipse Adoptium/*",
            "Program Files/Microsoft/jdk*",
            "Program Files/Zulu/*",
            "Program Files/Amazon Corretto/*",
        ),
        (".jdks/*", ".jdk/*", "scoop/apps/*jdk*/current"),
    ),
}
_INSTALL: Final[Mapping[str, str]] = {
    "linux": (
        "Install it with `sudo apt install openjdk-17-jre-headless` (Debian, Ubuntu), "
        "`sudo dnf install java-17-openjdk-headless` (Fedora, RHEL) or `conda install -c conda-forge openjdk=17`."
    ),
    "darwin": "Install it with `brew install openjdk@17` or `conda install -c conda-forge openjdk=17`.",
    "win32": (
        "Install it with `winget install EclipseAdoptium.Temurin.17.JRE` or `conda install -c conda-forge openjdk=17`."
    ),
}


@dataclass(frozen=True, slots=True)
class Java:
    """One installed Java: its home directory and its major version."""

    home: Path
    version: int


def find_java(
    environ: Mapping[str, str] = os.environ, *, platform: str = sys.platform, root: Path | None = None
) -> Java:
    """Return the Java of ``JAVA_HOME``, else of ``PATH``, else the newest of the usual places, from version 17 on.

    ``root`` stands for the root directory. Without a Java that is new enough a FlussError says what was found and
    what to install.
    """
    too_old: list[Java] = []
    for java in _installed(environ, platform, root):
        if java.version >= JAVA_VERSION_MIN:
            return java
        if java not in too_old:
            too_old.append(java)
    found = ", ".join(f"Java {java.version} in {java.home}" for java in too_old)
    raise FlussError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {f'found only {found}' if found else 'no Java was found'}. "
        f"{_INSTALL[_system(platform)]} "
        "If there is one already, set JAVA_HOME to its directory, the one that contains bin."
    )


def _installed(environ: Mapping[str, str], platform: str, root: Path | None) -> Iterator[Java]:
    """Yield installed Javas, those that the environment names first, then the newest first."""
    if environ.get("JAVA_HOME"):
        yield from _javas([Path(environ["JAVA_HOME"])], platform)
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        # The link leads into the installation: .../bin/java.
        yield from _javas([Path(on_path).resolve().parent.parent], platform)
    yield from sorted(_javas(_usual_homes(environ, platform, root), platform), key=lambda java: -java.version)


def _usual_homes(environ: Mapping[str, str], platform: str, root: Path | None) -> Iterator[Path]:
    if environ.get("CONDA_PREFIX"):
        prefix = Path(environ["CONDA_PREFIX"])
        yield from (prefix / "lib" / "jvm", prefix / "Library" / "lib" / "jvm", prefix)
    below_root, below_home = _PLACES[_system(platform)]
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    for place, patterns in ((root or Path(home.anchor), below_root), (home, below_home)):
        for pattern in patterns:
            yield from sorted(place.glob(pattern))


def _javas(homes: Iterable[Path], platform: str) -> Iterator[Java]:
    """Yield those homes that hold a Java. What does not answer, or answers something else, is none."""
    for home in homes:
        binary = home / "bin" / ("java.exe" if platform == "win32" else "java")
        if binary.is_file():
            version = _release_version(home) or _asked_version(binary)
            if version is not None:
                yield Java(home, version)


def _release_version(home: Path) -> int | None:
    """Read the version from the file that comes with every installation; starting Java to ask takes much longer."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return _major_version(re.search(r'^JAVA_VERSION="([^"]*)"', release, re.MULTILINE))


def _asked_version(binary: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(binary), "-version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _major_version(re.search(r'version "([^"]*)"', answer.stderr + answer.stdout))


def _major_version(found: re.Match[str] | None) -> int | None:
    """Return 17 for ``17.0.15``, and 8 for ``1.8.0_392``, as it was written then."""
    parts = re.match(r"(?:1\.)?(\d+)", found[1]) if found is not None else None
    return int(parts[1]) if parts is not None else None


def _system(platform: str) -> str:
    return platform if platform in _PLACES else "linux"
