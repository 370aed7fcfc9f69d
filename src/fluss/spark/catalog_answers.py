"""The catalog ``fluss`` of a Spark session: answers to the questions of ``pushdown.catalog_source``.

Spark asks while it analyses a statement, in a thread of Java. The answer is given here, in the program that made the
session, by a thread of Py4J.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TablePath
from fluss.spark.fluss_catalog import FlussCatalog
from fluss.spark.naming import TableName, table_name
from fluss.spark.pushdown.hints import SHARED_KEY
from fluss.spark.pushdown.installation import install_catalog
from fluss.spark.table_shape import COMMENT, shown_properties
from fluss.spark.type_mapping import view_schema

# Errors for which Spark has exceptions of its own.
_KINDS: Final[dict[int, str]] = {
    ErrorCode.TABLE_NOT_EXIST: "no-table",
    ErrorCode.DATABASE_NOT_EXIST: "no-database",
    ErrorCode.TABLE_ALREADY_EXIST: "table-exists",
    ErrorCode.DATABASE_ALREADY_EXIST: "database-exists",
    ErrorCode.DATABASE_NOT_EMPTY: "not-empty",
}
# Properties that Spark adds to those of CREATE TABLE and CREATE DATABASE.
_SPARKS_PROPERTIES: Final = frozenset({"provider", "owner", "location", "external", "is_managed_location"})
_OPTION_PREFIX: Final = "option."
_MICROSECONDS: Final = 1000

logger = logging.getLogger(__name__)


class CatalogAnswers:
    """Answers for one cluster. ``options`` says which options every query on a table has, the connection among them.

    ``delete`` deletes the rows of a table for which a condition of ``scan.filter`` holds.
    """

    def __init__(
        self,
        catalog: FlussCatalog,
        options: Callable[[], Mapping[str, str]],
        delete: Callable[[TablePath, str], None],
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._delete = delete

    def register(self, spark: SparkSession) -> bool:
        """Make this the catalog ``fluss`` of a session, instead of another one that answered before."""
        return install_catalog(spark, self)

    def apply(self, question: str) -> str:
        """Answer a question, both in JSON. This is what Java calls."""
        asked = json.loads(question)
        try:
            return json.dumps({"value": self._answer(asked)})
        except FlussError as error:
            return json.dumps({"error": error.message, "kind": _KINDS.get(error.error_code)})
        except Exception as error:
            # It must not get lost between Java and Python.
            logger.exception("the catalog cannot answer %s", asked.get("verb"))
            return json.dumps({"error": f"{type(error).__name__}: {error}"})

    def _answer(self, asked: Mapping[str, Any]) -> object:
        database = asked["database"]
        match asked["verb"]:
            case "databases":
                return self._catalog.list_databases()
            case "database":
                descriptor = self._catalog.database_info(database).database_descriptor
                shown = {} if descriptor.comment is None else {COMMENT: descriptor.comment}
                return {**descriptor.custom_properties, **shown}
            case "create-database":
                comment, properties = _own_properties(asked["properties"])
                self._catalog.create_database(database, comment=comment, properties=properties)
            case "alter-database":
                self._alter_database(database, asked["changes"])
            case "drop-database":
                self._catalog.drop_database(database, cascade=asked["cascade"])
            case "tables":
                return self._catalog.list_tables(database)
            case "table":
                return self._table(_named(asked), asked)
            case "create-table":
                self._create(_named(asked).path, asked)
            case "alter-table":
                self._alter(_named(asked).path, asked["changes"])
            case "drop-table":
                self._catalog.drop_table(_named(asked).path)
            case "delete":
                self._delete(_named(asked).path, asked["where"] or "TRUE")
            case verb:
                raise FlussError(f"The catalog does not know what '{verb}' is")
        return None

    def _table(self, name: TableName, asked: Mapping[str, Any]) -> dict[str, object]:
        info = self._catalog.table_info(name.path)
        properties = shown_properties(info)
        if info.primary_keys:
            properties["primary.key"] = ",".join(info.primary_keys)
        if info.comment is not None:
            properties[COMMENT] = info.comment
        return {
            "schema": view_schema(info.schema, name.view).json(),
            "partition_keys": [] if name.view else list(info.partition_keys),
            "has_key": info.has_primary_key() and not name.view,
            "properties": {**properties, "provider": "fluss"},
            "options": {**self._options(), "table": str(name), **_moment(asked), SHARED_KEY: "true"},
        }

    def _create(self, path: TablePath, asked: Mapping[str, Any]) -> None:
        comment, properties = _own_properties(asked["properties"])
        self._catalog.create_table(
            path,
            StructType.fromJson(json.loads(asked["schema"])),
            primary_keys=asked["primary_keys"],
            partition_keys=asked["partition_keys"],
            bucket_keys=asked["bucket_keys"],
            bucket_count=asked["bucket_count"],
            comment=comment,
            properties=properties,
        )

    def _alter(self, path: TablePath, changes: list[Mapping[str, Any]]) -> None:
        fields = [
            field
            for change in changes
            if "add" in change
            for field in StructType.fromJson(json.loads(change["add"])).fields
        ]
        self._catalog.alter_table(
            path,
            add_columns=StructType(fields) if fields else None,
            set_properties=dict(change["set"] for change in changes if "set" in change),
            reset_properties=[change["reset"] for change in changes if "reset" in change],
        )

    def _alter_database(self, database: str, changes: list[Mapping[str, Any]]) -> None:
        changed = dict(change["set"] for change in changes if "set" in change)
        reset = [change["reset"] for change in changes if "reset" in change]
        # An empty comment is none.
        comment = changed.pop(COMMENT, "" if COMMENT in reset else None)
        self._catalog.alter_database(
            database,
            comment=comment,
            set_properties=changed,
            reset_properties=[key for key in reset if key != COMMENT],
        )

    class Java:
        """What Py4J has to know: the interface of Java that this is."""

        implements: ClassVar[list[str]] = ["java.util.function.Function"]


def _named(asked: Mapping[str, Any]) -> TableName:
    """Return the table that is meant, or the view of one, such as ``orders$changelog``."""
    try:
        return table_name(f"{asked['database']}.{asked['table']}")
    except FlussError as error:
        raise FlussError(error.message, ErrorCode.TABLE_NOT_EXIST) from None


def _own_properties(properties: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """Take apart what Spark hands over: the comment, and what the user has said."""
    own = {
        key: value
        for key, value in properties.items()
        if key not in _SPARKS_PROPERTIES and key != COMMENT and not key.startswith(_OPTION_PREFIX)
    }
    return properties.get(COMMENT), own


def _moment(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a read of the past: TIMESTAMP AS OF, or VERSION AS OF with offsets."""
    if asked.get("timestamp_us") is not None:
        return {"scan.as-of.timestamp": str(asked["timestamp_us"] // _MICROSECONDS)}
    if asked.get("version") is not None:
        return {"scan.as-of.offsets": asked["version"]}
    return {}
