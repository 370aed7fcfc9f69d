"""Which parts of a table can hold rows for which a filter holds: the others are not read at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final, get_args

from fluss.client.kernel.placement import lake_format
from fluss.client.scan.table_buckets import checked_choices, chosen_partitions
from fluss.row.bucketing import HashVariant, bucket_for
from fluss.row.key import bucket_key_encoder
from fluss.row.values import internal_from_arrow
from fluss.schema.partition import PartitionInfo, PartitionSpec
from fluss.schema.table import TableInfo
from fluss.schema.types import TypeRoot

if TYPE_CHECKING:
    from fluss.spark.filters import RowFilter

# With more keys than this that a filter names, all buckets are read.
_KEYS_MAX: Final = 1000
# Types of which equal values have equal keys. Times may have more digits than they show, and zeros two signs.
_EXACT_ROOTS: Final = frozenset(
    {
        TypeRoot.BOOLEAN,
        TypeRoot.TINYINT,
        TypeRoot.SMALLINT,
        TypeRoot.INTEGER,
        TypeRoot.BIGINT,
        TypeRoot.CHAR,
        TypeRoot.STRING,
        TypeRoot.BINARY,
        TypeRoot.BYTES,
        TypeRoot.DECIMAL,
        TypeRoot.DATE,
    }
)


def matching_partitions(
    info: TableInfo,
    existing: Sequence[PartitionInfo],
    choices: Iterable[str | PartitionSpec] | None,
    row_filter: RowFilter | None,
) -> list[PartitionInfo]:
    """Return the partitions that were chosen and may have rows for which the filter holds.

    A choice that no partition fits is a FlussError (code 36); a filter that fits none leaves none.
    """
    chosen = chosen_partitions(info, existing, checked_choices(info, choices))
    if row_filter is None:
        return chosen
    return [each for each in chosen if row_filter.may_match(each.get_partition_spec().spec_map)]


def matching_buckets(info: TableInfo, row_filter: RowFilter | None) -> list[int]:
    """Return the buckets that may have rows for which the filter holds.

    These are all of them, unless the filter says what the columns of the bucket key are equal to.
    """
    everywhere = list(range(info.num_buckets))
    keys = info.bucket_keys
    if row_filter is None or not keys:
        return everywhere
    types = [info.schema.column(name).data_type for name in keys]
    choices = row_filter.choices()
    if any(name not in choices for name in keys) or any(each.root not in _EXACT_ROOTS for each in types):
        return everywhere
    values = [internal_from_arrow(choices[name].drop_null(), type_) for name, type_ in zip(keys, types, strict=True)]
    if prod(map(len, values)) > _KEYS_MAX:
        return everywhere
    lake = lake_format(info)
    encode = bucket_key_encoder(types, lake).encode
    encoded = [encode(key) for key in product(*values)]
    # Some writers hash differently, and there is no telling who has written a table.
    variants = get_args(HashVariant)
    return sorted({bucket_for(key, info.num_buckets, lake, variant) for key in encoded for variant in variants})
