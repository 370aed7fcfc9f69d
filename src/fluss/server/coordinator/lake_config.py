"""Whether the cluster has a lake, and what tables show of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fluss.option_values import BOOLEAN, choice_of
from fluss.server.table_options import LAKE_PREFIX, LakeFormat

CLUSTER_LAKE_PREFIX: Final = "datalake."
CLUSTER_LAKE_FORMAT_KEY: Final = "datalake.format"
CLUSTER_LAKE_ENABLED_KEY: Final = "datalake.enabled"
_SECRET_WORDS: Final = ("password", "secret", "key")


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """The lake of the cluster. With a format but not enabled, the format is recorded on new tables and that is all."""

    lake_format: LakeFormat | None = None
    is_enabled: bool = False
    # What lake tables show: without secrets, under the names of table properties.
    table_properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> LakeConfig:
        """Read the keys ``datalake.*`` of the cluster's configuration."""
        format_text = configs.get(CLUSTER_LAKE_FORMAT_KEY)
        if format_text is None:
            return cls()
        lake_format = choice_of(LakeFormat).parse(CLUSTER_LAKE_FORMAT_KEY, format_text)
        is_enabled = BOOLEAN.parse(CLUSTER_LAKE_ENABLED_KEY, configs.get(CLUSTER_LAKE_ENABLED_KEY, "true"))
        prefix = f"{CLUSTER_LAKE_PREFIX}{lake_format}."
        shown = {
            LAKE_PREFIX + key.removeprefix(CLUSTER_LAKE_PREFIX): value
            for key, value in configs.items()
            if key.startswith(prefix) and not any(word in key.lower() for word in _SECRET_WORDS)
        }
        return cls(lake_format, is_enabled, shown)
