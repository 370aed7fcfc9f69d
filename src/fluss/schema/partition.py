"""Partitions: the values of the partition columns, and the name made of them.

A partition's name is its values in partition-key order, joined with ``$``: ``2024-01-15$EMEA``. Messages show the
qualified name, ``day=2024-01-15/region=EMEA``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.frozen_dict import FrozenDict, string_dict
from fluss.schema.names import check_partition_value
from fluss.schema.server_made import ServerMade

VALUE_SEPARATOR: Final = "$"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class PartitionSpec:
    """Partition columns and their values as text: ``PartitionSpec({"region": "US"})``. Order does not matter."""

    _values: FrozenDict[str, str]

    def __init__(self, spec_map: Mapping[str, str]) -> None:
        if spec_map is None:
            raise TypeError("a partition spec must be a dict of str to str, got NoneType")
        object.__setattr__(self, "_values", string_dict("the partition spec", spec_map))

    @classmethod
    def of(cls, spec: PartitionSpec | Mapping[str, str]) -> PartitionSpec:
        """Take a spec in either form in which users give it."""
        return spec if isinstance(spec, PartitionSpec) else cls(spec)

    @property
    def spec_map(self) -> dict[str, str]:
        """The values by column."""
        return dict(self._values)

    def get_spec_map(self) -> dict[str, str]:
        """Return the values by column."""
        return self.spec_map

    def is_contained_in(self, other: PartitionSpec) -> bool:
        """Whether every value given here is the same there; a partial spec filters partitions with it."""
        return self._values.items() <= other._values.items()

    def __repr__(self) -> str:
        return f"PartitionSpec({self.spec_map!r})"


def ordered_values(spec: PartitionSpec, partition_keys: Sequence[str]) -> list[str]:
    """Return the values in key order; a spec that has other keys than the table is refused (code 43)."""
    given = spec.spec_map
    if set(given) != set(partition_keys):
        raise FlussError(
            f"The partition spec has the keys {list(given)}, but the table is partitioned by {list(partition_keys)}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    return [given[key] for key in partition_keys]


def check_partition_spec(spec: PartitionSpec, partition_keys: Sequence[str], *, creating: bool) -> None:
    """Refuse a spec that names no possible partition of a table (code 43)."""
    for value in ordered_values(spec, partition_keys):
        check_partition_value(value, creating=creating)


def partition_name(spec: PartitionSpec, partition_keys: Sequence[str]) -> str:
    """Return the name of a partition, such as ``2024-01-15$EMEA``."""
    return VALUE_SEPARATOR.join(ordered_values(spec, partition_keys))


def qualified_partition_name(spec: PartitionSpec, partition_keys: Sequence[str]) -> str:
    """Return the name for messages, such as ``day=2024-01-15/region=EMEA``."""
    values = ordered_values(spec, partition_keys)
    return "/".join(f"{key}={value}" for key, value in zip(partition_keys, values, strict=True))


def spec_of_partition_name(name: str, partition_keys: Sequence[str]) -> PartitionSpec:
    """Take a partition name apart again (code 43 when it has not one value per key)."""
    values = name.split(VALUE_SEPARATOR)
    if len(values) != len(partition_keys):
        raise FlussError(
            f"The partition name {name!r} has {len(values)} values, "
            f"but the table is partitioned by {list(partition_keys)}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    return PartitionSpec(dict(zip(partition_keys, values, strict=True)))


@dataclass(frozen=True, slots=True, init=False, repr=False)
class PartitionInfo(ServerMade):
    """A partition that exists, with its id and its values."""

    partition_id: int
    partition_name: str
    _spec: PartitionSpec

    @classmethod
    def _create(cls, partition_id: int, spec: PartitionSpec, partition_keys: Sequence[str]) -> PartitionInfo:
        return cls._with_fields(
            partition_id=partition_id, partition_name=partition_name(spec, partition_keys), _spec=spec
        )

    def get_partition_id(self) -> int:
        """Return the number of the partition, which is never used again."""
        return self.partition_id

    def get_partition_name(self) -> str:
        """Return the values joined with ``$``, such as ``2024-01-15$EMEA``."""
        return self.partition_name

    def get_partition_spec(self) -> PartitionSpec:
        """Return the values by column."""
        return self._spec

    def __repr__(self) -> str:
        return f"PartitionInfo(partition_id={self.partition_id}, partition_name={self.partition_name!r})"
