"""What may be in the way of this package: an older Python, and another package of its name.

Looked at when a module is imported that programs begin with. Everything here works in older versions of Python, too.
"""

from __future__ import annotations

import os
import sys
import warnings

# pyfluss is this file beside an ``__init__.py``; installed into the same place, it replaces that of this package.
_PYFLUSS_BEGINNING = "_fluss."
_CURE = "keep one of them: pip uninstall pyfluss, then pip install --force-reinstall --no-deps flussbett"


def check_python() -> None:
    """Refuse a Python that is too old, before something less clear does."""
    if sys.version_info < (3, 11):  # noqa: UP036 - it is what this is about
        version = ".".join(map(str, sys.version_info[:3]))
        raise ImportError(f"Flussbett needs Python 3.11 or newer, and this is {version} ({sys.executable})")


def check_pyfluss() -> None:
    """Warn of pyfluss in the same environment; where it has taken the place of this package, refuse to go on."""
    ours = os.path.dirname(os.path.abspath(__file__))
    # Not by asking for the name: that would load the client.
    if "_fluss" in vars(sys.modules["fluss"]):
        raise ImportError(
            f"pyfluss has replaced a part of flussbett in {ours}, as both are the package 'fluss'; {_CURE}"
        )
    places = [ours, *(os.path.join(os.path.abspath(entry), "fluss") for entry in sys.path)]
    found = [place for place in dict.fromkeys(places) if _has_pyfluss(place)]
    if found:
        warnings.warn(
            f"pyfluss is installed beside flussbett, in {found[0]}, and both are the package 'fluss': which of them a "
            f"program gets depends on what was installed last; {_CURE}",
            RuntimeWarning,
            stacklevel=3,
        )


def _has_pyfluss(directory: str) -> bool:
    try:
        return any(name.startswith(_PYFLUSS_BEGINNING) for name in os.listdir(directory))
    except OSError:
        return False


check_python()
check_pyfluss()
