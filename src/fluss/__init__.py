"""Streaming tables for Python."""

import importlib as _importlib
import typing as _typing

from fluss import neighbours as _neighbours  # noqa: F401 - it looks for what would be in the way

if _typing.TYPE_CHECKING:
    from fluss.names import *  # noqa: F403 - the list of names is there
    from fluss.names import __all__ as __all__
else:

    def __getattr__(name):
        """Load the client when its first name is taken: servers, and commands that do not need it, start sooner."""
        # Of every module Python asks for names like __path__.
        if not name.startswith("__") or name in ("__all__", "__version__"):
            names = _importlib.import_module("fluss.names")
            globals().update({public: getattr(names, public) for public in names.__all__}, __all__=names.__all__)
        if name not in globals():
            raise AttributeError(f"module 'fluss' has no attribute {name!r}")
        return globals()[name]

    def __dir__():
        """List the names that are there when the client is loaded."""
        return sorted({"__all__", *globals(), *__getattr__("__all__")})
