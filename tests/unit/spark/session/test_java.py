"""Which Java a session is started with, and what is said when there is none.

Directories stand for installations: a file that says the version, and a program that may be asked for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.errors import FlussError
from fluss.spark.session.java import Java, find_java


def install(home: Path, version: str, *, says_version_when_asked: bool = False) -> Path:
    """Put down an installation of Java that is just large enough to be found."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n", encoding="ascii")
    binary.chmod(0o755)
    if not says_version_when_asked:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n', encoding="ascii")
    return home


def find(root: Path, **environ: str) -> Java:
    return find_java({"HOME": str(root / "home"), **environ}, platform="linux", root=root)


def test_java_home_comes_first(tmp_path: Path) -> None:
    chosen = install(tmp_path / "mine", "17.0.15")
    install(tmp_path / "usr/lib/jvm/java-21", "21.0.2")
    assert find(tmp_path, JAVA_HOME=str(chosen)) == Java(chosen, 17)


def test_then_the_one_on_the_path_through_its_link(tmp_path: Path) -> None:
    installed = install(tmp_path / "somewhere", "17.0.1")
    install(tmp_path / "usr/lib/jvm/java-21", "21.0.2")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "java").symlink_to(installed / "bin" / "java")
    assert find(tmp_path, PATH=str(programs)) == Java(installed, 17)


def test_then_the_newest_of_the_usual_places(tmp_path: Path) -> None:
    install(tmp_path / "usr/lib/jvm/java-17", "17.0.15")
    newest = install(tmp_path / "home/.sdkman/candidates/java/21-tem", "21.0.2")
    assert find(tmp_path) == Java(newest, 21)


def test_one_that_is_too_old_is_passed_over_even_in_java_home(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "1.8.0_392")
    new = install(tmp_path / "usr/lib/jvm/java-17", "17")
    assert find(tmp_path, JAVA_HOME=str(old)) == Java(new, 17)


def test_an_installation_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = install(tmp_path / "mine", "25-ea", says_version_when_asked=True)
    assert find(tmp_path, JAVA_HOME=str(home)) == Java(home, 25)


def test_a_directory_that_holds_no_java_is_none(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/jvm/empty").mkdir(parents=True)
    with pytest.raises(FlussError, match="no Java was found"):
        find(tmp_path, JAVA_HOME=str(tmp_path / "missing"))


def test_the_error_names_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "11.0.22")
    with pytest.raises(FlussError) as refused:
        find(tmp_path, JAVA_HOME=str(old))
    assert f"found only Java 11 in {old}" in refused.value.message
    assert "apt install openjdk-17" in refused.value.message
    assert "JAVA_HOME" in refused.value.message


@pytest.mark.parametrize(("platform", "command"), [("darwin", "brew install openjdk@17"), ("win32", "winget install")])
def test_other_systems_have_other_commands(tmp_path: Path, platform: str, command: str) -> None:
    with pytest.raises(FlussError, match=command):
        find_java({"HOME": str(tmp_path)}, platform=platform, root=tmp_path)


def test_places_of_other_systems_are_known(tmp_path: Path) -> None:
    home = install(tmp_path / "Library/Java/JavaVirtualMachines/temurin-17.jdk/Contents/Home", "17.0.9")
    assert find_java({"HOME": str(tmp_path / "home")}, platform="darwin", root=tmp_path) == Java(home, 17)
