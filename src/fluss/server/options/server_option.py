"""One option of a server, families of options, and where their values come from: the configuration file.

A family is a class whose body is a table of options. ``ServerOptions`` is made of all families and holds the values.

A configuration file is YAML with dotted keys, flat or nested:

    log.segment.file-size: 512 mb
    log:
      index.interval-size: 4 kb        # the same as log.index.interval-size
    bind.listeners: [A://localhost:1, B://localhost:2]  # the same as A://localhost:1,B://localhost:2

Upstream-only options have a meaning in other servers of this protocol and no effect in this one. They are about a
coordination service, replication, tiering, and a runtime with its threads. A configuration that was made for such a
server starts here, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from fluss.errors import ErrorCode, FlussError
from fluss.options import HIDDEN, Option, without_passwords

if TYPE_CHECKING:
    import yaml


# Given instead of a file, it means to read the options from there.
STANDARD_INPUT: Final = Path("-")
# No configuration nests deeper; a file that refers to itself does.
_DEPTH_MAX: Final = 16
_FILE_BYTES_MAX: Final = 1024 * 1024
_NULL_TAG: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of an option as it was written, and where. Not shown: it may be a password."""

    text: str
    origin: str
    is_default: bool = False

    def __repr__(self) -> str:
        return f"Setting({self.origin})"


def read_options_file(path: Path) -> dict[str, Setting]:
    """Return the options of a file by key. Raises FlussError that names file and line."""
    try:
        import yaml
    except ImportError:
        raise FlussError(
            f'reading {path} needs PyYAML: pip install "flussbett[server]", or pip install pyyaml alone'
        ) from None
    try:
        content = _content(path)
    except OSError as error:
        raise FlussError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    if len(content) > _FILE_BYTES_MAX:
        raise FlussError(f"the configuration file {path} has more than {_FILE_BYTES_MAX} bytes; is it the right one?")
    try:
        # The tree of nodes, not the values: it keeps the texts as they were written, and it creates no objects.
        root = yaml.compose(content, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise FlussError(f"the configuration file {path} is not valid YAML: {_problem(error)}") from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise FlussError(f"the configuration file {path} must consist of 'key: value' lines")
    settings: dict[str, Setting] = {}
    for key, setting in _entries(path, "", root, _DEPTH_MAX):
        if key in settings:
            raise FlussError(f"{setting.origin}: '{key}' is set a second time (first in {settings[key].origin})")
        settings[key] = setting
    return settings


def _content(path: Path) -> bytes:
    """Return what is in a file, up to a byte more than there may be."""
    if path == STANDARD_INPUT:
        return _standard_input()
    with open(path, "rb") as file:
        return file.read(_FILE_BYTES_MAX + 1)


@cache
def _standard_input() -> bytes:
    """Return what comes in by standard input, which can be read once."""
    return sys.stdin.buffer.read(_FILE_BYTES_MAX + 1)


def _entries(path: Path, prefix: str, mapping: yaml.MappingNode, depth_left: int) -> Iterator[tuple[str, Setting]]:
    import yaml

    for key_node, value_node in mapping.value:
        origin = f"{'standard input' if path == STANDARD_INPUT else path} line {key_node.start_mark.line + 1}"
        if depth_left == 0 or not isinstance(key_node, yaml.ScalarNode):
            raise FlussError(f"{origin}: expected a dotted key such as log.segment.file-size")
        key = prefix + key_node.value
        if isinstance(value_node, yaml.MappingNode):
            yield from _entries(path, f"{key}.", value_node, depth_left - 1)
        elif isinstance(value_node, yaml.SequenceNode):
            yield key, Setting(",".join(_text(origin, key, node) for node in value_node.value), origin)
        else:
            yield key, Setting(_text(origin, key, value_node), origin)


def _text(origin: str, key: str, node: yaml.Node) -> str:
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        raise FlussError(f"{origin}: the value of '{key}' must be a text or a list of texts")
    if node.tag == _NULL_TAG:
        raise FlussError(f"{origin}: '{key}' has no value; give it one or remove the line")
    return str(node.value)


def _problem(error: Exception) -> str:
    """Say where and what, without quoting the file, which may hold passwords."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be parsed"
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem


# Upstream-only options

_UPSTREAM_PREFIXES: Final = (
    "client.",
    "coordinator.",
    "env.",
    "fs.",
    "kafka.",
    "kv.",
    "lake.",
    "log.replica.",
    "metrics.",
    "oss.",
    "plugin.",
    "remote.",
    "s3.",
    "server.historical-partition.",
    "tablet-server.controlled-shutdown.",
    "zookeeper.",
)
_UPSTREAM_KEYS: Final = frozenset(
    {
        "acl.notification.expiration-time",
        "log.file-preallocate",
        "log.flush.interval-messages",
        "netty.client.num-network-threads",
        "netty.server.max-queued-historical-requests",
        "netty.server.num-network-threads",
        "netty.server.num-worker-threads",
        "server.background.threads",
        "server.buffer.page-size",
        "server.buffer.per-request-memory-size",
        "server.buffer.wait-timeout",
        "server.io-pool.size",
        "tablet-server.host",
        "tablet-server.port",
    }
)


def is_upstream_only(key: str) -> bool:
    """Whether an option is known to have a meaning in upstream servers only."""
    return key in _UPSTREAM_KEYS or key.startswith(_UPSTREAM_PREFIXES)


T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "FLUSS_"


class ServerOption(Option[T]):
    """An option of servers, whose default is a text. On ``ServerOptions`` it is the property with the value."""

    @overload
    def __get__(self, options: None, owner: type) -> ServerOption[T]: ...
    @overload
    def __get__(self, options: OptionFamily, owner: type) -> T: ...
    def __get__(self, options: OptionFamily | None, owner: type) -> ServerOption[T] | T:
        return self if options is None else cast(T, options._values[self.key])

    @property
    def environment_variable(self) -> str:
        return variable_name(self.key)

    def value_of(self, setting: Setting) -> T:
        """Read the value; a text that is none is a FlussError that says where the text stands."""
        try:
            return self.read(setting.text)
        except FlussError as error:
            raise invalid_config(f"'{self.key}' ({setting.origin}): {error.message}") from None
        except ValueError as error:
            shown = HIDDEN if self.secret else without_passwords(setting.text)
            raise invalid_config(f"'{self.key}' is '{shown}' ({setting.origin}): {error}") from None

    def _below_lowest(self) -> str:
        return f"expected {self.value_type.expected}, not below {self.lowest}{self.value_type.unit}"

    def _above_highest(self) -> str:
        return f"expected {self.value_type.expected}, not above {self.highest}{self.value_type.unit}"


class OptionFamily:
    """Options that belong together. Their order in the class body is the one in which they are documented."""

    __slots__ = ()

    _values: dict[str, Any]

    @classmethod
    def members(cls) -> tuple[ServerOption[Any], ...]:
        """Return the options of this family alone."""
        return tuple(option for option in vars(cls).values() if isinstance(option, ServerOption))


def variable_name(key: str) -> str:
    """Return the environment variable for a key, or for a part of one."""
    return ENVIRONMENT_PREFIX + re.sub("[.-]", "_", key).upper()


def invalid_config(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
