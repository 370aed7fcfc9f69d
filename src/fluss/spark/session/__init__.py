"""A Spark session that is right for Fluss tables: ``fluss.spark.session()``.

Importing this costs nothing: PySpark and everything else is imported when a session is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VERSION_MIN: Final = (4, 1)


def session(
    app_name: str = "fluss",
    *,
    cores: int | None = None,
    master: str | None = None,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """Return the running Spark session, or start one on this machine.

    A new one uses ``cores`` of this machine (all if not given), or ``master``, and retries tasks that fail. Python
    workers run with this interpreter and talk through Unix sockets; there is no web page, no progress bar and nothing
    in the log but errors; files that Spark needs go below the system's directory for temporary files. ``config`` has
    the last word in everything. Started by spark-submit, it leaves the master and the log as they are.

    Either way, the session is taught to tell readers of Fluss tables which columns and rows a query needs, unless it
    has the setting ``spark.sql.fluss.scan.pushdown`` = ``false``.

    Of a running one it is checked that Fluss tables can be used in it; a FlussError says what is wrong. Settings that
    make it slow are a warning. ``config`` is applied to it as far as that is possible while it runs.

    Without Java 17 or newer there is a FlussError, without PySpark an ImportError; both say what to install.
    """
    if cores is not None and master is not None:
        raise ValueError("give cores, for a session on this machine, or a master, not both")
    check_pyspark()
    from fluss.spark.pushdown.installation import install_pushdown
    from fluss.spark.session.running import adapted, running_session
    from fluss.spark.session.start import start

    made = running_session()
    if made is not None:
        made = adapted(made, cores=cores, master=master, config=config or {})
    else:
        made = start(app_name, cores=cores, master=master, config=config or {})
    install_pushdown(made)
    return made


def check_pyspark() -> None:
    """Raise an ImportError that says how to install PySpark if it is not there, or too old."""
    try:
        import pyspark
    except ImportError as error:
        if error.name != "pyspark":
            raise
        raise ImportError(
            'Fluss tables in Spark need PySpark. Install it with: pip install "flussbett[spark]"'
        ) from None
    version = tuple(int(number) for number in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < _VERSION_MIN:
        raise ImportError(
            f"Fluss tables need PySpark {'.'.join(map(str, _VERSION_MIN))} or newer, and this is "
            f"{pyspark.__version__}, which has neither the type TIME nor streams that Python writes as Arrow batches. "
            'Install a newer one with: pip install --upgrade "flussbett[spark]"'
        )


def has_read_limits() -> bool:
    """Whether Spark asks Python data sources for micro-batches of a limited size: since 4.2."""
    return find_spec("pyspark.sql.streaming.datasource") is not None
