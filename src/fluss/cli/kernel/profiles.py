"""Profiles: the options of clients that lead to a cluster, by name, in one file of the user.

    current = "prod"

    [profile.prod]
    "bootstrap.servers" = "streams.example.org:9123"
    "security.protocol" = "sasl"

The file is for its owner only (mode 0600), since it may hold passwords. They are never shown.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fluss.cli.kernel.exits import CommandError, Exit

FILE_VARIABLE: Final = "FLUSS_PROFILES"
PROFILE_VARIABLE: Final = "FLUSS_PROFILE"
_PRIVATE: Final = 0o600


def profiles_path() -> Path:
    """Return where the profiles are kept."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "fluss" / "profiles.toml"


@dataclass
class Profiles:
    """All profiles, and the name of the one that is used unless another is named."""

    current: str | None = None
    options_by_name: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None) -> Profiles:
        """Read the file; without one there are no profiles."""
        path = path or profiles_path()
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            found = content.get("profile", {})
            options = {name: {key: str(value) for key, value in each.items()} for name, each in found.items()}
            return cls(content.get("current"), options)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise CommandError(f"the profiles in {path} cannot be read: {error.strerror}; correct its rights") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
            # The text of the file is not shown: there may be a password in it.
            place = str(error).rpartition("(")[2].rstrip(")") if "(" in str(error) else "somewhere"
            raise CommandError(f"the profiles in {path} are not valid TOML ({place}); correct or delete it") from None

    def options(self, name: str) -> dict[str, str]:
        """Return the options of a profile."""
        if name not in self.options_by_name:
            known = ", ".join(sorted(self.options_by_name)) or "none yet"
            raise CommandError(
                f"there is no profile '{name}' (there is: {known}); `fluss profile add {name} --server HOST:PORT` "
                "makes one",
                Exit.NOT_FOUND,
            )
        return self.options_by_name[name]

    def save(self, path: Path | None = None) -> None:
        """Write the file, for its owner only; others never see a half of it."""
        path = path or profiles_path()
        unfinished = path.with_name(f"{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                unfinished.unlink()
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self._text())
            os.replace(unfinished, path)
        except OSError as error:
            raise CommandError(f"the profiles cannot be written to {path}: {error.strerror}") from None

    def _text(self) -> str:
        lines: list[str] = []
        if self.current is not None:
            lines += [f"current = {_quoted(self.current)}", ""]
        for name, options in sorted(self.options_by_name.items()):
            lines += [f"[profile.{_quoted(name)}]", *_entries(options), ""]
        return "\n".join(lines)


def _entries(options: Mapping[str, str]) -> list[str]:
    return [f"{_quoted(key)} = {_quoted(value)}" for key, value in options.items()]


def _quoted(text: Any) -> str:
    # A string of JSON is one of TOML, except for one character.
    return json.dumps(str(text)).replace("\x7f", "\\u007f")
