"""Give a Spark session the rule that tells readers of Fluss tables what a query needs."""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION_KEY: Final = "spark.sql.fluss.scan.pushdown"
# Interfaces of Spark have static methods, which older class files cannot refer to.
_CLASS_FILE_VERSION: Final = 8

logger = logging.getLogger(__name__)


def install_pushdown(spark: SparkSession) -> bool:
    """Add the rule to a session, unless the session says not to; return whether it is there.

    On a Spark whose inner classes are not those that the rule was written for, and where there is no Java to reach, as
    with Spark Connect, nothing is different but one line in the log: queries give the same rows and read more.
    """
    if (spark.conf.get(SESSION_KEY, "true") or "true").lower() != "true":
        return False
    try:
        # Not before: the text is of use only here.
        from fluss.spark.pushdown.java_source import RULE_CLASS

        _loaded(spark, RULE_CLASS).install(spark._jsparkSession)
    except Exception as error:
        # Errors of Py4J and of Java's compiler alike. Whatever it is, a session without the rule works.
        logger.warning("queries on Fluss tables read all columns in this session of Spark: %s", _first_line(error))
        return False
    return True


def _loaded(spark: SparkSession, class_name: str) -> Any:
    """Return an object of a class of the rule. The classes are compiled once in a process of Java."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None, "a session that runs has its Java"
    assert gateway is not None, "it was reached through this"
    # Here Spark itself looks for the classes that settings name.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(_class_file(class_name)) is None:
        _compile(jvm, loader)
    made = jvm.java.lang.Class.forName(class_name, True, loader)
    constructor = made.getDeclaredConstructor(gateway.new_array(jvm.java.lang.Class, 0))
    return constructor.newInstance(gateway.new_array(jvm.java.lang.Object, 0))


def _compile(jvm: Any, loader: Any) -> None:
    """Compile the rule with the compiler that Spark has for its own generated code."""
    from fluss.spark.pushdown.java_source import JAVA_SOURCE

    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.setTargetVersion(_CLASS_FILE_VERSION)
    compiler.cook(JAVA_SOURCE)
    directory = Path(tempfile.mkdtemp(prefix="fluss-pushdown-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name, code in dict(compiler.getBytecodes()).items():
        file = directory / _class_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(code))
    loader.addURL(jvm.java.io.File(str(directory)).toURI().toURL())


def _class_file(class_name: str) -> str:
    return class_name.replace(".", "/") + ".class"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Py4J says first that something went wrong, and then what.
    return next((line for line in lines if "Exception" in line or "Error" in line), lines[0] if lines else repr(error))
