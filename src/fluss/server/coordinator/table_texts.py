"""How tables are described to clients: their stored descriptor, and for lake tables where their lake is."""

from __future__ import annotations

from fluss.schema.serde import table_to_json
from fluss.schema.table_options import LAKE_ENABLED
from fluss.server.coordinator.catalog import CatalogImage
from fluss.server.coordinator.dynamic_configs import DynamicConfigs, LakeConfig
from fluss.server.coordinator.table_descriptors import changed
from fluss.server.model import Table


class TableTexts:
    """Writes descriptors. Those of lake tables depend on the configuration of the cluster, which can change."""

    def __init__(self, catalog: CatalogImage, configs: DynamicConfigs) -> None:
        self._catalog = catalog
        self._configs = configs

    def lake(self) -> LakeConfig:
        """Return the lake that the cluster has now."""
        return LakeConfig.of(self._configs.texts())

    def table_json(self, table: Table) -> bytes:
        """Return the descriptor that clients get. Secrets of the lake are not in it."""
        if not LAKE_ENABLED.of(table.descriptor.properties):
            return self._catalog.table_json(table)
        properties = {**table.descriptor.properties, **self.lake().table_properties}
        return table_to_json(changed(table.descriptor, properties=properties))
