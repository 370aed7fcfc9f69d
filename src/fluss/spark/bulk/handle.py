"""What bulk jobs need to know: a session of Spark, and a cluster of Fluss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from fluss.errors import FlussError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class FlussOnSpark(Protocol):
    """What every job is given; ``fluss.spark.FlussSpark`` is one."""

    @property
    def spark(self) -> SparkSession:
        """The session that runs jobs."""
        ...

    @property
    def options(self) -> Mapping[str, str]:
        """How the cluster is reached: ``bootstrap.servers`` and other options of the client."""
        ...


def context_of(spark: SparkSession) -> SparkContext:
    """Return the context of a session, which only those have that run in this process."""
    try:
        return spark.sparkContext
    except AttributeError:
        raise FlussError(
            "Bulk jobs need a session of this process, such as fluss.spark.session() returns; this one is a client of "
            "Spark Connect"
        ) from None


def refuse_speculation(spark: SparkSession) -> None:
    """Refuse to write with a session that would run attempts of a task side by side."""
    if (context_of(spark).getConf().get("spark.speculation") or "false").lower() == "true":
        raise FlussError(
            "The session has spark.speculation=true, so that two attempts of a task may write at the same time and "
            "stop each other; build the session without it"
        )
