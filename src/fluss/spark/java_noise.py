"""What Spark's processes write to standard error without meaning anything by it.

- One line of Java about a module that Spark uses, at every start.
- The traceback of a Python worker that wanted to send something when Spark had heard enough, as after LIMIT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

_MODULE_WARNING: Final = b"WARNING: Using incubator modules: jdk.incubator.vector"
_TRACEBACK: Final = b"Traceback (most recent call last):"
_FRAME_OF_DAEMON: Final = b'/pyspark/daemon.py", line '
_BROKEN_PIPE: Final = b"BrokenPipeError:"


def without_noise(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Pass on lines, except for those that mean nothing. A traceback is held back until its last line is there.

    Several workers write at the same time, so tracebacks may be mixed; then some of them are passed on.
    """
    held: list[bytes] = []
    for line in lines:
        text = line.rstrip()
        if text == _MODULE_WARNING:
            continue
        if text == _TRACEBACK or (held and line.startswith(b" ")):
            held.append(line)
            continue
        if held:
            is_noise = text.startswith(_BROKEN_PIPE) and all(map(_is_of_daemon, held))
            if not is_noise:
                yield from (*held, line)
            held = []
            continue
        yield line
    yield from held


def _is_of_daemon(line: bytes) -> bool:
    """Whether a line of a traceback shows the loop of a worker itself, outside of every task."""
    return line.rstrip() == _TRACEBACK or _FRAME_OF_DAEMON in line
