"""Burned devices with what is known of their functions."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db import pci
from autoclave.db.compute_tables import pci_functions, pci_providers
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.db.query import columns, fetch_all


@dataclass(frozen=True)
class BurnedView:
    """A provider that is burned; of one time use are whole devices only, which have one function."""

    provider: ProviderRecord
    functions: Sequence[FunctionRecord]

    @property
    def instance_uuid(self) -> str | None:
        """The instance that has it now; None: it is idle."""
        return next((each.instance_uuid for each in self.functions if each.instance_uuid is not None), None)

    @property
    def missing(self) -> bool:
        """Whether its host, or the configuration there, has it no more."""
        return all(each.missing for each in self.functions)


def list_all(tx: Connection, hostname: str | None = None) -> list[BurnedView]:
    """All that is burned, of one host or of all. Two queries."""
    query = (
        sa.select(*columns(FunctionRecord, pci_functions))
        .join(pci_providers, pci_functions.c.provider_id == pci_providers.c.id)
        .where(pci_providers.c.burned.is_(True))
        .order_by(pci_functions.c.address)
    )
    if hostname is not None:
        query = query.where(pci_providers.c.hostname == hostname)
    functions: dict[int, list[FunctionRecord]] = defaultdict(list)
    for function in fetch_all(tx, FunctionRecord, query):
        functions[function.provider_id].append(function)
    return [BurnedView(each, functions[each.id]) for each in pci.providers(tx, hostname, burned=True)]


def view(tx: Connection, provider: ProviderRecord) -> BurnedView:
    """The same of one provider."""
    return BurnedView(provider, pci.functions_of(tx, provider))
