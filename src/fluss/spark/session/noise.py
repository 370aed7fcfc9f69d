"""Output of Spark that says nothing, left out before a user sees it.

- ``without_noise``: lines on the standard error of Spark's processes. One line of Java about a module that Spark uses,
  at every start; and the traceback of a Python process that wanted to send something when Spark had heard enough: a
  worker after LIMIT, or the process that a stream asks for offsets when the stream is stopped.
- ``ignored_pandas_warning``: what PySpark says about pandas whenever it meets a newer one than it knows.
- ``plain_errors``: in programs, the sentence of a FlussError instead of the error of Spark that shows it.
- ``ShortTracebacks``: Spark shows the traceback of a Python worker before its last line, the sentence that says what is
  wrong. The frames below a data source mean nothing to its users.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from fluss.errors import FlussError, error_for_code

PANDAS_WARNING: Final = "PySpark does not yet fully support pandas"
_MODULE_WARNING: Final = b"WARNING: Using incubator modules: jdk.incubator.vector"
_TRACEBACK: Final = b"Traceback (most recent call last):"
_ANOTHER: Final = b"During handling of the above exception, another exception occurred:"
_FRAME: Final = b'File "'
# Spark's own code, and what it is called by and calls. A traceback with a frame of other code is passed on.
_SPARKS_FRAMES: Final = (b"/pyspark/", b'"<frozen runpy>"', b"/contextlib.py", b"/socket.py")
_BROKEN_PIPE: Final = b"BrokenPipeError:"
_END_OF_INPUT: Final = b"EOFError"
# The last line of the traceback of a FlussError.
_SENTENCE: Final = re.compile(
    r"^fluss[.\w]*Error: FlussError(\(code=(?P<code>-?\d+)\))?: (?P<message>.+)$", re.MULTILINE
)


def without_noise(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Pass on lines, except for those that mean nothing. A traceback is held back until its last line is there.

    Several workers write at the same time, so tracebacks may be mixed; then some of them are passed on.
    """
    held: list[bytes] = []
    # Whether the traceback that is held, or was just left out, may be followed by one of a chained exception.
    is_chain = False
    for line in lines:
        text = line.rstrip()
        if text == _MODULE_WARNING:
            continue
        if text == _TRACEBACK or (held and not is_chain and line.startswith(b" ")):
            held.append(line)
            is_chain = False
        elif is_chain and text in (b"", _ANOTHER):
            if held:
                held.append(line)
        elif held and not is_chain and all(map(_is_sparks, held)) and text == _END_OF_INPUT:
            held.append(line)
            is_chain = True
        elif held and not is_chain and all(map(_is_sparks, held)) and text.startswith(_BROKEN_PIPE):
            held = []
            is_chain = True
        else:
            yield from (*held, line)
            held, is_chain = [], False
    yield from held


def _is_sparks(line: bytes) -> bool:
    """Whether a line of a traceback may be one of Spark's own processes, outside of every task."""
    return _FRAME not in line or any(place in line for place in _SPARKS_FRAMES)


@contextmanager
def ignored_pandas_warning() -> Iterator[None]:
    """Run a block in which PySpark looks for pandas and complains about its version, though nothing here uses it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PANDAS_WARNING, FutureWarning)
        yield


@contextmanager
def plain_errors() -> Iterator[None]:
    """Run a block in which an error of Spark that shows the FlussError of a worker is raised as that error.

    It says what is wrong with a statement or its data. Where in Spark's and Python's processes it was found says
    nothing to the user who wrote them.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        sentences = list(_SENTENCE.finditer(str(error)))
        if not sentences:
            raise
        found = sentences[-1]
        plain = FlussError(found["message"]) if found["code"] is None else error_for_code(*_coded(found))
    else:
        return
    raise plain


def _coded(found: re.Match[str]) -> tuple[int, str]:
    return int(found["code"]), found["message"]


class ShortTracebacks:
    """A block that a FlussError leaves as a new one, which remembers nothing but its sentence."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FlussError):
            raise error.copied() from None
