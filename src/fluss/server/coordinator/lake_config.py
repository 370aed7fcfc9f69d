"""Whether the cluster has a lake, and what tables show of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fluss.errors import ErrorCode
from fluss.options import BOOLEAN, Option, choice_of
from fluss.schema.table_options import LAKE_PREFIX, LakeFormat

CLUSTER_LAKE_PREFIX: Final = "datalake."
CLUSTER_LAKE_FORMAT_KEY: Final = "datalake.format"
CLUSTER_LAKE_ENABLED_KEY: Final = "datalake.enabled"
_LAKE_FORMAT: Final = Option(
    CLUSTER_LAKE_FORMAT_KEY,
    choice_of(LakeFormat),
    "",
    "The format of the cluster's lake.",
    error_code=ErrorCode.INVALID_CONFIG_EXCEPTION,
)
_LAKE_ENABLED: Final = Option(
    CLUSTER_LAKE_ENABLED_KEY,
    BOOLEAN,
    "true",
    "Whether tables can be tiered to it.",
    error_code=ErrorCode.INVALID_CONFIG_EXCEPTION,
)
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
        lake_format = _LAKE_FORMAT.parse(format_text)
        is_enabled = _LAKE_ENABLED.parse(configs.get(CLUSTER_LAKE_ENABLED_KEY, "true"))
        prefix = f"{CLUSTER_LAKE_PREFIX}{lake_format}."
        shown = {
            LAKE_PREFIX + key.removeprefix(CLUSTER_LAKE_PREFIX): value
            for key, value in configs.items()
            if key.startswith(prefix) and not any(word in key.lower() for word in _SECRET_WORDS)
        }
        return cls(lake_format, is_enabled, shown)
