"""What ``FlussSpark.sql`` does itself: one class for each statement. Everything else is Spark's.

Types of columns are text here; Spark's own parser reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

# The catalog that names of Fluss may begin with, and that of Spark itself.
FLUSS_CATALOG = "fluss"
SPARK_CATALOG = "spark_catalog"


@dataclass(frozen=True, slots=True)
class Name:
    """A name of one or more parts, and where in the statement it begins: ``orders``, ``fluss.sales.orders``."""

    parts: tuple[str, ...]
    position: int = field(default=0, compare=False)

    @property
    def is_of_fluss(self) -> bool:
        """Whether the name says that it is Fluss's: its first part is the catalog, or the database of that name."""
        return self.parts[0].lower() == FLUSS_CATALOG

    @property
    def is_of_spark(self) -> bool:
        """Whether the name says that it is Spark's."""
        return self.parts[0].lower() == SPARK_CATALOG

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class ColumnText:
    """A column of CREATE TABLE or ADD COLUMNS."""

    name: str
    type_text: str
    nullable: bool = True
    comment: str | None = None
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    name: Name
    if_not_exists: bool = False
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DropDatabase:
    name: Name
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class CommentOnDatabase:
    """``comment`` is None if there is to be none."""

    name: Name
    comment: str | None


@dataclass(frozen=True, slots=True)
class ShowDatabases:
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeDatabase:
    name: Name


@dataclass(frozen=True, slots=True)
class CreateTable:
    """``query`` is the text after AS, with nothing before it in ``columns``."""

    name: Name
    columns: tuple[ColumnText, ...] = ()
    primary_keys: tuple[str, ...] = ()
    partition_keys: tuple[str, ...] = ()
    bucket_keys: tuple[str, ...] = ()
    bucket_count: int | None = None
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    query: str | None = None


@dataclass(frozen=True, slots=True)
class DropTable:
    name: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddColumns:
    name: Name
    columns: tuple[ColumnText, ...]


@dataclass(frozen=True, slots=True)
class SetProperties:
    name: Name
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UnsetProperties:
    name: Name
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddPartitions:
    name: Name
    specs: tuple[Mapping[str, str], ...]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropPartitions:
    name: Name
    specs: tuple[Mapping[str, str], ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowTables:
    """``database`` is None for the one that is current."""

    database: Name | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class ShowPartitions:
    name: Name
    spec: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShowCreateTable:
    name: Name


@dataclass(frozen=True, slots=True)
class ShowProperties:
    name: Name
    key: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeTable:
    name: Name
    is_extended: bool = False


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """``condition`` is SQL, and None if all rows are meant."""

    name: Name
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """``values`` are SQL, by the names of columns."""

    name: Name
    values: Mapping[str, str]
    condition: str | None = None


Statement: TypeAlias = (
    CreateDatabase
    | DropDatabase
    | CommentOnDatabase
    | ShowDatabases
    | DescribeDatabase
    | CreateTable
    | DropTable
    | AddColumns
    | SetProperties
    | UnsetProperties
    | AddPartitions
    | DropPartitions
    | ShowTables
    | ShowPartitions
    | ShowCreateTable
    | ShowProperties
    | DescribeTable
    | DeleteRows
    | UpdateRows
)
