"""Read provider configuration: inventories and traits that YAML files add to resource providers."""

from autoclave.rules.provider_config.merging import Conflict, Merge, ProviderChange, TreeProvider, merge
from autoclave.rules.provider_config.model import COMPUTE_NODE, AddedInventory, Place, ProviderConfig, ProviderEntry
from autoclave.rules.provider_config.parsing import parse

__all__ = [
    "COMPUTE_NODE",
    "AddedInventory",
    "Conflict",
    "Merge",
    "Place",
    "ProviderChange",
    "ProviderConfig",
    "ProviderEntry",
    "TreeProvider",
    "merge",
    "parse",
]
