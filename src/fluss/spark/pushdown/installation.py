"""Give a Spark session the rule that tells readers of Fluss tables what a query needs, and the catalog ``fluss``."""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOGS: Final = "spark.sql.catalog"
CATALOG: Final = "fluss"
SESSION_KEY: Final = "spark.sql.fluss.scan.pushdown"
# Interfaces of Spark have static methods, which older class files cannot refer to.
_CLASS_FILE_VERSION: Final = 8

# What this Spark does not have, so that it is tried, and said, once.
_missing: set[str] = set()
logger = logging.getLogger(__name__)


def install_pushdown(spark: SparkSession) -> bool:
    """Add the rule to a session, unless the session says not to; return whether it is there.

    On a Spark whose inner classes are not those that the rule was written for, and where there is no Java to reach, as
    with Spark Connect, nothing is different but one line in the log: queries give the same rows and read more.
    """
    if "rule" in _missing or (spark.conf.get(SESSION_KEY, "true") or "true").lower() != "true":
        return False
    try:
        # Not before: the text is of use only here.
        from fluss.spark.pushdown.java_source import RULE_CLASS

        _loaded(spark, RULE_CLASS).install(spark._jsparkSession)
    except Exception as error:
        # Errors of Py4J and of Java's compiler alike. Whatever it is, a session without the rule works.
        _missing.add("rule")
        logger.warning("queries on Fluss tables read all columns in this session of Spark: %s", _first_line(error))
        return False
    return True


def install_catalog(spark: SparkSession, answers: object) -> bool:
    """Make ``fluss`` a catalog of a session, whose questions are answered by ``answers``; return whether it is one.

    ``answers`` has a method ``apply``, from a text to a text. As with pushdown, a session where this is not possible is
    left as it was; so is a catalog of this name that was set up by the user.
    """
    key = f"{_CATALOGS}.{CATALOG}"
    if _missing or not hasattr(spark, "_jsparkSession"):
        return False
    try:
        from pyspark.java_gateway import ensure_callback_server_started

        from fluss.spark.pushdown.catalog_source import CATALOG_CLASS

        if spark.conf.get(key, CATALOG_CLASS) != CATALOG_CLASS:
            return False
        made = _loaded(spark, CATALOG_CLASS)
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call] # PySpark's own
        answered_by = f"{spark._jsparkSession.sessionUUID()}/{CATALOG}"
        made.answerBy(answered_by, answers)
        spark.conf.set(f"{key}.answers", answered_by)
        spark.conf.set(key, CATALOG_CLASS)
    except Exception as error:
        # As above.
        _missing.add("catalog")
        logger.warning("there is no catalog 'fluss' in this session of Spark: %s", _first_line(error))
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
        _compile(jvm, loader, class_name)
    made = jvm.java.lang.Class.forName(class_name, True, loader)
    constructor = made.getDeclaredConstructor(gateway.new_array(jvm.java.lang.Class, 0))
    return constructor.newInstance(gateway.new_array(jvm.java.lang.Object, 0))


def _compile(jvm: Any, loader: Any, class_name: str) -> None:
    """Compile a class with the compiler that Spark has for its own generated code."""
    from fluss.spark.pushdown.catalog_source import CATALOG_CLASS, CATALOG_SOURCE
    from fluss.spark.pushdown.java_source import JAVA_SOURCE, RULE_CLASS

    if class_name == CATALOG_CLASS and loader.getResource(_class_file(RULE_CLASS)) is None:
        _compile(jvm, loader, RULE_CLASS)
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.setTargetVersion(_CLASS_FILE_VERSION)
    compiler.cook(CATALOG_SOURCE if class_name == CATALOG_CLASS else JAVA_SOURCE)
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
    lines = [line.strip(" :") for line in str(error).splitlines() if line.strip(" :")]
    # Py4J says first that something went wrong, and then what.
    return next((line for line in lines if "Exception" in line or "Error" in line), lines[0] if lines else repr(error))
