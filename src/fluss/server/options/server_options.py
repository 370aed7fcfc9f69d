"""Server options: every key with its default and its meaning, and the ``ServerOptions`` that hold the values.

The tables of options are ``ListenerOptions``, ``HttpOptions``, ``ProcessOptions``, ``StorageOptions`` and
``RemoteOptions``. A value comes from the first of: an argument, the environment (``FLUSS_`` and the key in capitals
with underscores), a configuration file, the default.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from fluss.errors import FlussError
from fluss.options import HIDDEN, format_value, is_secret_key, suggestion, without_passwords
from fluss.server.options.http_options import HttpOptions
from fluss.server.options.listener_options import ListenerOptions, OwnOptions, own_option, own_settings
from fluss.server.options.process_options import ProcessOptions
from fluss.server.options.server_option import (
    ENVIRONMENT_PREFIX,
    OptionFamily,
    ServerOption,
    Setting,
    invalid_config,
    is_upstream_only,
    read_options_file,
    variable_name,
)
from fluss.server.options.storage_options import DirStrategy, RemoteOptions, StorageOptions
from fluss.storage.remote.file_systems import check_location

T = TypeVar("T")

# In the order in which they are documented.
_FAMILIES: Final[tuple[type[OptionFamily], ...]] = (
    ListenerOptions,
    HttpOptions,
    ProcessOptions,
    StorageOptions,
    RemoteOptions,
)

# Variables of clients and of the scripts of Apache Fluss, and those that Kubernetes makes of services of this name.
_OTHER_VARIABLES: Final = frozenset(
    {"FLUSS_BOOTSTRAP_SERVERS", "FLUSS_HOME", "FLUSS_CONF_DIR", "FLUSS_LOG_DIR", "FLUSS_PID_DIR"}
)
_SERVICE_LINK: Final = re.compile(r"FLUSS_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*)")
# What is wanted by these is an option of another name.
_USUAL_MISTAKES: Final = {"FLUSS_PORT": "FLUSS_BIND_LISTENERS", "FLUSS_HOST": "FLUSS_BIND_LISTENERS"}


class ServerOptions(ListenerOptions, HttpOptions, ProcessOptions, StorageOptions, RemoteOptions):
    """The options of a server, checked one by one and together. They do not change.

    ``ServerOptions({"data.dir": "/data"})`` takes its values from a mapping and from nowhere else; ``load`` looks into
    the environment and a file, too. Keys that only have a meaning in other servers of this protocol are listed in
    ``ignored_keys``; unknown ones are an error.
    """

    __slots__ = ("_ignored", "_own", "_settings", "_values")

    def __init__(self, properties: Mapping[str, str | int | float | bool] | None = None) -> None:
        self._set([argument_settings(properties or {})])

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Setting],
        *,
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> ServerOptions:
        """Take values from arguments, then from the environment (the process's own unless given), then from a file."""
        from_environment = _environment_settings(os.environ if environment is None else environment)
        options = cls.__new__(cls)
        options._set([arguments, from_environment, {} if file is None else read_options_file(file)])
        return options

    @staticmethod
    def options() -> tuple[ServerOption[Any], ...]:
        """Return all options, in the order in which they are documented."""
        return tuple(option for family in _FAMILIES for option in family.members())

    @property
    def listener_users(self) -> Mapping[str, Mapping[str, str]]:
        """The users of listeners that have their own, by the name of the listener in lower case."""
        return self._own.users

    @property
    def listeners_with_tls_options(self) -> Collection[str]:
        """The listeners that have options of TLS of their own, in lower case."""
        return self._own.listeners_with_tls_options

    def tls_value(self, option: ServerOption[T], listener_name: str) -> T:
        """Return the value of an option of TLS for a listener: its own, or that of all."""
        of_all: T = self._values[option.key]
        return self._own.value(option, listener_name, of_all)

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """The keys that were given but have no effect in this server."""
        return tuple(self._ignored)

    def setting(self, option: ServerOption[Any]) -> Setting:
        """Return the text of an option and where it comes from."""
        return self._settings.get(option.key) or Setting(option.default_text, "default", is_default=True)

    def as_written(self) -> dict[str, str]:
        """Return every key that has a value, given or default, with the value's text. Some of them may be passwords."""
        written = {option.key: self.setting(option).text for option in ServerOptions.options()}
        written.update((key, setting.text) for key, setting in (self._settings | self._ignored).items())
        return {key: text for key, text in written.items() if text}

    def shown(self) -> list[tuple[str, str, str]]:
        """Return key, text and origin of every option and of all other keys that were given; secrets are hidden."""
        rows = [(option.key, self.setting(option), option.secret) for option in ServerOptions.options()]
        # Any key of a lake may be a secret.
        rows += [(key, self._settings[key], True) for key in sorted(self._settings.keys() - _OPTION_BY_KEY.keys())]
        return [
            (key, HIDDEN if is_secret and setting.text else setting.text, setting.origin)
            for key, setting, is_secret in rows
        ]

    def has_secrets_of(self, origin: str) -> bool:
        """Whether something that must not be shown was given at a place, such as a file."""
        given = {**self._settings, **self._ignored}
        return any(
            is_secret_option(key)
            for key, setting in given.items()
            if setting.text and setting.origin.startswith(origin)
        )

    def explained(self) -> str:
        """Write all options as a configuration file, with the origin of each value beside it."""
        lines = [(f"{key}: {_yaml_scalar(text)}", origin) for key, text, origin in self.shown()]
        width = min(max(len(line) for line, _ in lines), _EXPLAINED_WIDTH_MAX)
        text = "".join(f"{line:<{width}}  # {origin}\n" for line, origin in lines)
        return text + "".join(f"# {key} has no effect in this server\n" for key in self._ignored)

    def _set(self, layers: list[Mapping[str, Setting]]) -> None:
        self._settings: dict[str, Setting] = {}
        self._own = OwnOptions()
        self._ignored: dict[str, Setting] = {}
        for layer in reversed(layers):
            for key, setting in layer.items():
                # Some of our own keys begin like those of upstream servers.
                if key not in _OPTION_BY_KEY and is_upstream_only(key):
                    self._ignored[key] = setting
                else:
                    self._take(key, setting)
        self._values: dict[str, Any] = {
            option.key: option.value_of(self.setting(option)) for option in ServerOptions.options()
        }
        self._validate()

    def _take(self, key: str, setting: Setting) -> None:
        is_own = self._own.take(key, setting)
        if not is_own and key not in _OPTION_BY_KEY and not key.startswith(_LAKE_PREFIX):
            raise invalid_config(f"unknown option '{key}' ({setting.origin}){suggestion(key, _OPTION_BY_KEY)}")
        self._settings[key] = setting

    def _validate(self) -> None:
        """Check what values mean together."""
        if self.default_replication_factor != 1:
            raise self._contradiction(
                ServerOptions.default_replication_factor,
                "this server keeps one replica of each bucket; set it to 1, or use a cluster for more",
            )
        if self.authorizer_type != "default":
            raise self._contradiction(ServerOptions.authorizer_type, "there is no other authorizer than 'default'")
        if self.disk_write_recover_ratio >= self.disk_write_limit_ratio:
            limit = ServerOptions.disk_write_limit_ratio.key
            raise self._contradiction(ServerOptions.disk_write_recover_ratio, f"it must be below '{limit}'")

        self._validate_remote()

    def _validate_remote(self) -> None:
        for option, locations in (
            (ServerOptions.remote_data_dir, (self.remote_data_dir,) if self.remote_data_dir else ()),
            (ServerOptions.remote_data_dirs, self.remote_data_dirs),
            (ServerOptions.backup_restore_from, (self.backup_restore_from,) if self.backup_restore_from else ()),
        ):
            for location in locations:
                try:
                    check_location(location)
                except FlussError as error:
                    raise self._contradiction(option, error.message) from None
        is_weighted = self.remote_data_dirs_strategy is DirStrategy.WEIGHTED_ROUND_ROBIN
        if is_weighted and len(self.remote_data_dirs_weights) != len(self.remote_data_dirs):
            raise self._contradiction(
                ServerOptions.remote_data_dirs_weights,
                f"there must be one weight for each of the {len(self.remote_data_dirs)} locations of "
                f"'{ServerOptions.remote_data_dirs.key}'",
            )
        first = next(iter(self.remote_locations), "")
        if self.backup_restore_from and check_location(first) != check_location(self.backup_restore_from):
            raise self._contradiction(
                ServerOptions.backup_restore_from,
                f"a restored server goes on where its backup is, and '{ServerOptions.remote_data_dir.key}' says "
                f"'{without_passwords(first)}'; leave one of them out",
            )

    def _contradiction(self, option: ServerOption[Any], reason: str) -> FlussError:
        setting = self.setting(option)
        shown = HIDDEN if option.secret else without_passwords(setting.text)
        return invalid_config(f"'{option.key}' is '{shown}' ({setting.origin}): {reason}")

    def __repr__(self) -> str:
        given = {key: text for key, text, _ in self.shown() if key in self._settings}
        return f"ServerOptions({given!r})"


_EXPLAINED_WIDTH_MAX: Final = 70
# A family of keys with meanings of its own: what new tables are told about the lake.
_LAKE_PREFIX: Final = "datalake."
_OPTION_BY_KEY: Final = {option.key: option for option in ServerOptions.options()}


def is_secret_option(key: str) -> bool:
    """Whether the value of a key must not be shown; also of keys that only upstream servers know."""
    option = _OPTION_BY_KEY.get(key) or own_option(key)
    return is_secret_key(key) if option is None else option.secret


def variable_of(key: str) -> str | None:
    """Return the environment variable that sets an option; None if there is none."""
    return variable_name(key) if key in _OPTION_BY_KEY or own_option(key) is not None else None


def argument_settings(properties: Mapping[str, str | int | float | bool]) -> dict[str, Setting]:
    """Turn values that a caller gives into settings."""
    settings: dict[str, Setting] = {}
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise TypeError(f"options are a mapping of texts to texts, numbers or switches, got {key!r}: {type(value)}")
        settings[key] = Setting(format_value(value), "argument")
    return settings


def _environment_settings(environment: Mapping[str, str]) -> dict[str, Setting]:
    """Find options among the variables. Others with the same prefix belong to other programs."""
    settings: dict[str, Setting] = {}
    for option in ServerOptions.options():
        text = environment.get(option.environment_variable)
        if text is not None:
            settings[option.key] = Setting(text, f"environment {option.environment_variable}")
    return settings | own_settings(environment)


def meaningless_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that look like options and are none, each with the end of a sentence about it."""
    known = [option.environment_variable for option in ServerOptions.options()]
    taken = {*known, *(setting.origin.split()[-1] for setting in own_settings(environment).values()), *_OTHER_VARIABLES}
    return {
        name: _variable_suggestion(_USUAL_MISTAKES.get(name, name), known)
        for name, text in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX)
        and name not in taken
        and not (_SERVICE_LINK.fullmatch(name) or text.startswith("tcp://"))
    }


def _variable_suggestion(name: str, known: Iterable[str]) -> str:
    # What all of them begin with would make everything look similar.
    prefix = ENVIRONMENT_PREFIX
    return suggestion(name.removeprefix(prefix), (each.removeprefix(prefix) for each in known)).replace(
        "'", f"'{prefix}", 1
    )


def _yaml_scalar(text: str) -> str:
    """Quote a text that YAML would not read as it stands."""
    return text if re.fullmatch(r"[A-Za-z0-9/.][A-Za-z0-9/._ -]*", text) else json.dumps(text)
