"""What a database is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fluss.schema.value_objects import FrozenDict, ServerMade, string_dict


@dataclass(frozen=True, slots=True, init=False, repr=False)
class DatabaseDescriptor:
    """Comment and properties of a database. No comment and an empty one are different things."""

    comment: str | None
    _custom_properties: FrozenDict[str, str]

    def __init__(self, comment: str | None = None, custom_properties: Mapping[str, str] | None = None) -> None:
        if comment is not None and not isinstance(comment, str):
            raise TypeError(f"comment must be str, got {type(comment).__name__}")
        object.__setattr__(self, "comment", comment)
        object.__setattr__(self, "_custom_properties", string_dict("custom_properties", custom_properties))

    @staticmethod
    def builder() -> DatabaseDescriptorBuilder:
        """Begin a descriptor that is put together step by step."""
        return DatabaseDescriptorBuilder()

    @property
    def custom_properties(self) -> dict[str, str]:
        """Properties that mean something to users only."""
        return dict(self._custom_properties)

    def get_custom_properties(self) -> dict[str, str]:
        """Return the properties that mean something to users only."""
        return self.custom_properties

    def __repr__(self) -> str:
        return f"DatabaseDescriptor(comment={self.comment!r}, custom_properties={self.custom_properties!r})"


class DatabaseDescriptorBuilder:
    """Collects what a ``DatabaseDescriptor`` is made of."""

    def __init__(self) -> None:
        self._comment: str | None = None
        self._custom_properties: dict[str, str] = {}

    def comment(self, comment: str) -> DatabaseDescriptorBuilder:
        """Say what the database is about."""
        self._comment = comment
        return self

    def custom_property(self, key: str, value: str) -> DatabaseDescriptorBuilder:
        """Set one property of the user's own."""
        self._custom_properties[key] = value
        return self

    def custom_properties(self, properties: Mapping[str, str]) -> DatabaseDescriptorBuilder:
        """Set several properties of the user's own."""
        self._custom_properties.update(properties)
        return self

    def build(self) -> DatabaseDescriptor:
        """Return the descriptor."""
        return DatabaseDescriptor(self._comment, self._custom_properties)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class DatabaseInfo(ServerMade):
    """A database as a server knows it. Times are epoch milliseconds."""

    database_name: str
    created_time: int
    modified_time: int
    _descriptor: DatabaseDescriptor

    @classmethod
    def _create(
        cls, database_name: str, descriptor: DatabaseDescriptor, created_time: int, modified_time: int
    ) -> DatabaseInfo:
        return cls._with_fields(
            database_name=database_name,
            created_time=created_time,
            modified_time=modified_time,
            _descriptor=descriptor,
        )

    @property
    def database_descriptor(self) -> DatabaseDescriptor:
        """Comment and properties."""
        return self._descriptor

    def get_database_descriptor(self) -> DatabaseDescriptor:
        """Return comment and properties."""
        return self._descriptor

    def __repr__(self) -> str:
        return (
            f"DatabaseInfo(database_name={self.database_name!r}, created_time={self.created_time}, "
            f"modified_time={self.modified_time})"
        )


@dataclass(frozen=True, slots=True, init=False)
class DatabaseSummary(ServerMade):
    """A line in a list of databases. The time is epoch milliseconds."""

    database_name: str
    created_time: int
    table_count: int

    @classmethod
    def _create(cls, database_name: str, created_time: int, table_count: int) -> DatabaseSummary:
        return cls._with_fields(database_name=database_name, created_time=created_time, table_count=table_count)
