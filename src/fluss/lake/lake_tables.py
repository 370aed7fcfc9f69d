"""Tables of a lake, created and altered together with the Fluss tables that they mirror.

| action | rule |
|---|---|
| create | the lake table is made first; one that is there already must fit, and be empty if the Fluss table is new |
| add columns | behind the columns of the user, before those of the system; columns that are there already are skipped |
| properties | set and reset under the names of ``schema_mapping.lake_property_name`` |
| drop | never: the lake keeps what it has |

Each of them can be repeated, so that a change that got only as far as the lake is completed by the next try.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import ListType, MapType, StructType

from fluss.errors import ErrorCode, FlussError
from fluss.lake.catalogs import open_catalog, retried
from fluss.lake.commits import OFFSETS_KEY, latest_tiered_snapshot, offsets_table_id
from fluss.lake.schema_mapping import (
    FLUSS_PROPERTY_PREFIX,
    SYSTEM_COLUMNS,
    changed_lake_properties,
    check_mirrored,
    lake_properties,
    lake_property_name,
    lake_schema,
    lake_type,
    partition_spec,
    sort_order,
)
from fluss.options import is_secret_key, without_passwords
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column
from fluss.schema.table import TablePath
from fluss.schema.table_options import LAKE_ENABLED

_T = TypeVar("_T")
_ALTER_ATTEMPTS = 5


class LakeTables:
    """The tables of one catalog. Every method asks the catalog, and so may take its time: not for an event loop."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    @classmethod
    def open(cls, properties: Mapping[str, str]) -> LakeTables:
        """Open the catalog that the properties describe; see ``catalogs.open_catalog``."""
        return cls(open_catalog(properties))

    def load(self, path: TablePath) -> IcebergTable:
        """Return the lake table of a Fluss table, or raise code 7."""
        table = self.find(path)
        if table is None:
            raise FlussError(
                f"Table {path} does not exist in the lake: somebody has dropped or moved it there. To begin it anew, "
                f"switch '{LAKE_ENABLED.key}' off and on; to read what Fluss itself has, set 'client.lake.read' to off",
                ErrorCode.TABLE_NOT_EXIST,
            )
        return table

    def find(self, path: TablePath) -> IcebergTable | None:
        """Return the lake table of a Fluss table, None if there is none."""

        def load() -> IcebergTable | None:
            with suppress(NoSuchTableError):
                return self.catalog.load_table(_identifier(path))
            return None

        return _asked(lambda: retried(load))

    def create(
        self,
        path: TablePath,
        descriptor: TableDescriptor,
        *,
        must_be_empty: bool = True,
        table_id: int | None = None,
    ) -> IcebergTable:
        """Create the lake table of a Fluss table, or take the one that is there if it fits.

        ``descriptor`` is complete: its number of buckets is known. Raises code 15 for a table that cannot be mirrored,
        and 54 if there is a lake table already that does not fit, has rows although it ``must_be_empty``, or was
        tiered from another Fluss table than that of ``table_id``.
        """
        check_mirrored(descriptor)
        schema = lake_schema(descriptor.schema)
        spec, order, properties = partition_spec(descriptor, schema), sort_order(schema), lake_properties(descriptor)
        existing = self.find(path)
        if existing is None:
            _asked(lambda: self._create_namespace(path.database_name))
            try:
                return _asked(
                    lambda: self.catalog.create_table(
                        _identifier(path), schema, partition_spec=spec, sort_order=order, properties=properties
                    )
                )
            except TableAlreadyExistsError:
                existing = self.load(path)
        if not must_be_empty:
            # What the Fluss table was called to be when it had its lake before, it need not be any more.
            properties = {key: each for key, each in properties.items() if not key.startswith(FLUSS_PROPERTY_PREFIX)}
        problem = _difference(existing, schema, spec, order, properties)
        if problem is None and must_be_empty and existing.metadata.current_snapshot() is not None:
            problem = "it has rows already"
        if problem is None and table_id is not None and _tiered_from(existing) not in (None, table_id):
            problem = "it has the rows of another table of this name, which was dropped"
        if problem is not None:
            raise FlussError(
                f"Table {path} exists in the lake and cannot become the copy of this table: {problem}. Choose another "
                "name, or move the lake table away",
                ErrorCode.LAKE_TABLE_ALREADY_EXIST,
            )
        if not must_be_empty:
            self.alter_properties(path, {**descriptor.properties, **descriptor.custom_properties})
            existing = self.load(path)
        return existing

    def _create_namespace(self, name: str) -> None:
        if not self.catalog.namespace_exists((name,)):
            with suppress(NamespaceAlreadyExistsError):
                self.catalog.create_namespace((name,))

    def add_columns(self, path: TablePath, columns: Sequence[Column]) -> None:
        """Add nullable columns behind those of the user. Columns that are there already, with these types, are skipped.

        Raises code 7 if there is no lake table, and 56 for a column that is there with another type.
        """

        def add(table: IcebergTable) -> None:
            existing = {field.name: field for field in table.schema().fields}
            missing = [column for column in columns if column.name not in existing]
            for column in columns:
                if column.name in existing and not _same_type(
                    existing[column.name].field_type, lake_type(column.data_type)
                ):
                    raise FlussError(
                        f"Column '{column.name}' of {path} is {existing[column.name].field_type} in the lake; it "
                        f"cannot be added as {column.data_type.text}",
                        ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
                    )
            if not missing:
                return
            first_system = next((name for name in existing if name in SYSTEM_COLUMNS), None)
            with table.update_schema() as update:
                for column in missing:
                    update.add_column(column.name, lake_type(column.data_type), doc=column.comment or None)
                    if first_system is not None:
                        update.move_before(column.name, first_system)

        self._alter(path, add)

    def alter_properties(self, path: TablePath, changed: Mapping[str, str], removed: Collection[str] = ()) -> None:
        """Set and reset properties of a Fluss table in its lake table, too. Raises code 7 if there is none."""

        def change(table: IcebergTable) -> None:
            gone = [name for name in map(lake_property_name, removed) if name in table.properties]
            values = changed_lake_properties(changed)
            new = {name: value for name, value in values.items() if table.properties.get(name) != value}
            if gone or new:
                with table.transaction() as transaction:
                    if gone:
                        transaction.remove_properties(*gone)
                    if new:
                        transaction.set_properties(**new)

        self._alter(path, change)

    def _alter(self, path: TablePath, change: Callable[[IcebergTable], None]) -> None:
        """Change a table, on its newest state again if another writer was faster."""
        for attempt in range(_ALTER_ATTEMPTS):
            table = self.load(path)
            try:
                return _asked(partial(change, table))
            except CommitFailedException:
                if attempt == _ALTER_ATTEMPTS - 1:
                    raise FlussError(
                        f"Table {path} cannot be altered: other writers of the lake were faster "
                        f"{_ALTER_ATTEMPTS} times; try again",
                        ErrorCode.REQUEST_TIME_OUT,
                    ) from None


def _identifier(path: TablePath) -> tuple[str, str]:
    return path.database_name, path.table_name


def _asked(call: Callable[[], _T]) -> _T:
    """Ask a catalog. What is no answer is a FlussError without the secrets that may be in its text."""
    try:
        return call()
    except (FlussError, CommitFailedException, TableAlreadyExistsError):
        raise
    except Exception as error:
        raise FlussError(
            f"The catalog of the lake does not answer: {without_passwords(f'{type(error).__name__}: {error}')}",
            ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
        ) from error


def _tiered_from(table: IcebergTable) -> int | None:
    """Return the id of the Fluss table whose rows a lake table has, None if nothing says so."""
    snapshot = latest_tiered_snapshot(table)
    offsets_path = None if snapshot is None or snapshot.summary is None else snapshot.summary.get(OFFSETS_KEY)
    return None if offsets_path is None else offsets_table_id(offsets_path)


# Comparing


def _difference(table: IcebergTable, schema: Any, spec: Any, order: Any, properties: Mapping[str, str]) -> str | None:
    """Return what is different in a lake table from what it should be, None if it fits."""
    actual, wanted = table.schema(), schema
    if [field.name for field in actual.fields] != [field.name for field in wanted.fields]:
        return f"its columns are {', '.join(field.name for field in actual.fields)}"
    for has, should in zip(actual.fields, wanted.fields, strict=True):
        if has.required != should.required or not _same_type(has.field_type, should.field_type):
            return f"its column '{has.name}' is {_shown(has)} and should be {_shown(should)}"
    if actual.identifier_field_names() != wanted.identifier_field_names():
        return f"its key is ({', '.join(sorted(actual.identifier_field_names()))})"
    if _spec_key(table.spec(), actual) != _spec_key(spec, wanted):
        return f"its partitions are {table.spec()}"
    if _order_key(table.sort_order(), actual) != _order_key(order, wanted):
        return f"its order is {table.sort_order()}"
    for key, value in properties.items():
        if table.properties.get(key) != value:
            shown = "another value" if is_secret_key(key) else repr(table.properties.get(key))
            return f"its property '{key}' is {shown}"
    return None


def _shown(field: Any) -> str:
    return f"{field.field_type}{' NOT NULL' if field.required else ''}"


def _same_type(first: Any, second: Any) -> bool:
    """Compare types without the ids of what is inside them."""
    if isinstance(first, ListType) and isinstance(second, ListType):
        same = first.element_required == second.element_required
        return same and _same_type(first.element_type, second.element_type)
    if isinstance(first, MapType) and isinstance(second, MapType):
        same = first.value_required == second.value_required
        return same and _same_type(first.key_type, second.key_type) and _same_type(first.value_type, second.value_type)
    if isinstance(first, StructType) and isinstance(second, StructType):
        return len(first.fields) == len(second.fields) and all(
            has.name == should.name
            and has.required == should.required
            and _same_type(has.field_type, should.field_type)
            for has, should in zip(first.fields, second.fields, strict=True)
        )
    return bool(first == second)


def _spec_key(spec: Any, schema: Any) -> list[tuple[str, str, str]]:
    return [(schema.find_column_name(field.source_id), field.name, str(field.transform)) for field in spec.fields]


def _order_key(order: Any, schema: Any) -> list[tuple[str, ...]]:
    return [
        (schema.find_column_name(field.source_id), str(field.transform), field.direction.value, field.null_order.value)
        for field in order.fields
    ]
