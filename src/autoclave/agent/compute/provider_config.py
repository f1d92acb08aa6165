"""What the operator's provider config adds to the providers of a host (provider-config-file specification).

Each addition is remembered before it is written to Placement, and forgotten after it was taken away there: so that
what is ours is always known as ours.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from oslo_log import log as logging

from autoclave.db import devices as device_rows
from autoclave.db import pci
from autoclave.db.pci import Addition, AdditionKind
from autoclave.exceptions import InvalidConfiguration, PlacementConflict, PlacementError
from autoclave.lifecycle.ports import Ports
from autoclave.placement.provider_tree import IN_USE, change_inventories, change_traits
from autoclave.placement.records import Inventory, Provider
from autoclave.rules.provider_config import (
    COMPUTE_NODE,
    AddedInventory,
    Conflict,
    Merge,
    ProviderChange,
    ProviderConfig,
    ProviderEntry,
    TreeProvider,
    merge,
)

LOG = logging.getLogger(__name__)

OPTION = "[compute] provider_config_location"
_KEPT_DIGITS = 1e-5
"""How far a ratio may be from what was written: Placement's column has no more than six digits of it in MariaDB."""


@dataclass(frozen=True)
class _Owned:
    """What other parts of this agent write at a provider."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    traits_only: bool = False


class ProviderAdditions:
    """Merges the provider config of a host into its tree.

    :param config: read when the agent started.
    """

    def __init__(self, ports: Ports, config: ProviderConfig, host: str) -> None:
        self._ports = ports
        self._config = config
        self._host = host
        self._named = {each.uuid or (each.name or "").casefold() for each in config.entries}
        self._settled: tuple[object, ...] | None = None
        self._told: frozenset[object] = frozenset()
        self._unfinished: Mapping[str, str] = {}
        """What the operator has been told of providers of which not all is done, by their uuids."""

    def sync(
        self,
        root: str,
        tree: Sequence[Provider],
        root_classes: frozenset[str],
        root_traits: frozenset[str],
        *,
        starting: bool,
    ) -> PlacementError | None:
        """Add what is configured, and take away what no longer is. The last thing of a sync.

        A tree in which the providers concerned are at the generations at which all was found right is not looked at.

        :param root_classes: what this agent itself writes at the root.
        :param starting: an entry that cannot be followed stops the agent; later it is logged, once, and left out.
        :returns: why Placement does not have all of it yet, if so. A class that is to go and is in use is no such
            reason: it is told, once for each time that this changes, and goes when it is given back.
        :raises InvalidConfiguration: see *starting*.
        :raises PlacementError: Placement could not be asked.
        """
        with self._ports.db.read() as tx:
            remembered = pci.of_host(tx, self._host)
        if not self._config.entries and not remembered:
            return None
        concerned = [each for each in tree if self._concerns(each, root, remembered)]
        state = (remembered, tuple((each.uuid, each.name, each.generation) for each in concerned))
        if state == self._settled:
            return None
        owned = self._owned(root, root_classes, root_traits)
        merged = merge(
            self._config,
            [self._tree_provider(each, each in concerned, root, owned, remembered) for each in tree],
        )
        self._tell(merged, starting)
        failure: PlacementError | None = None
        wrote = False
        unfinished: dict[str, str] = {}
        for rp_uuid, change in merged.changes.items():
            try:
                wrote = self._apply(rp_uuid, change, remembered) or wrote
            except PlacementError as error:
                unfinished[rp_uuid] = str(error)
                if not isinstance(error, PlacementConflict) or error.code != IN_USE:
                    failure = error
                if self._unfinished.get(rp_uuid) != str(error):
                    LOG.warning("What is configured for provider %s is not all done yet: %s", rp_uuid, error)
        self._unfinished = unfinished
        self._forget_gone(remembered, tree)
        self._settled = None if unfinished or wrote else state
        return failure

    def _concerns(self, provider: Provider, root: str, remembered: Iterable[Addition]) -> bool:
        return (
            not self._named.isdisjoint([provider.uuid.lower(), provider.name.casefold()])
            or any(each.rp_uuid == provider.uuid for each in remembered)
            or (provider.uuid == root and COMPUTE_NODE in self._named)
        )

    def _owned(self, root: str, root_classes: frozenset[str], root_traits: frozenset[str]) -> dict[str, _Owned]:
        with self._ports.db.read() as tx:
            functions = pci.providers(tx, self._host)
            devices = device_rows.list_all(tx, hostname=self._host)
            deployables = device_rows.deployables_of(tx, [device.id for device in devices])
        owned = {root: _Owned(root_classes, root_traits)}
        owned |= {row.uuid: _Owned(frozenset({row.resource_class}), row.trait_names) for row in functions}
        owned |= {each.rp_uuid: _Owned(frozenset({each.resource_class}), traits_only=True) for each in deployables}
        return owned

    def _tree_provider(
        self,
        provider: Provider,
        concerned: bool,
        root: str,
        owned: Mapping[str, _Owned],
        remembered: Iterable[Addition],
    ) -> TreeProvider:
        own = owned.get(provider.uuid, _Owned())
        if not concerned:
            return TreeProvider(provider.uuid, provider.name)
        placement = self._ports.placement
        mine = [each for each in remembered if each.rp_uuid == provider.uuid]
        return TreeProvider(
            uuid=provider.uuid,
            name=provider.name,
            is_compute_node=provider.uuid == root,
            classes=frozenset(placement.get_inventories(provider.uuid).records),
            traits=placement.get_traits(provider.uuid).names,
            owned_classes=own.classes,
            owned_traits=own.traits,
            remembered_classes=frozenset(each.name for each in mine if each.kind is AdditionKind.INVENTORY),
            remembered_traits=frozenset(each.name for each in mine if each.kind is AdditionKind.TRAIT),
            traits_only=own.traits_only,
        )

    def _tell(self, merged: Merge, starting: bool) -> None:
        if starting and merged.conflicts:
            raise InvalidConfiguration("; ".join(str(each) for each in merged.conflicts), option=OPTION)
        told: set[Conflict | ProviderEntry] = set()
        for conflict in merged.conflicts:
            told.add(conflict)
            if conflict not in self._told:
                LOG.warning("%s; the entry is not followed in that", conflict)
        for entry in merged.absent:
            told.add(entry)
            if entry not in self._told:
                LOG.warning("%s: there is no provider %r on this host", entry.place, entry.provider)
        self._told = frozenset(told)  # what was put right and is wrong again, is told again

    def _apply(self, rp_uuid: str, change: ProviderChange, remembered: frozenset[Addition]) -> bool:
        """Remember, write, forget; returns whether anything was written.

        Each class that goes is taken away by itself, and last: one that instances use keeps nothing else away. It is
        reserved until it is unused, so that no other instance gets it.

        :raises PlacementError: not all of it is done.
        """
        new = _additions(rp_uuid, change.inventories, change.traits) - remembered
        if new:
            self._ports.db.transact(lambda tx: pci.remember(tx, self._host, new))
        wrote = self._write_traits(rp_uuid, change)
        forgot = self._forget(_additions(rp_uuid, (), change.forgotten_traits) & remembered)
        wrote = self._write_inventories(rp_uuid, change.inventories) or wrote
        failure: PlacementConflict | None = None
        for name in sorted(change.forgotten_classes):
            try:
                if name in change.removed_classes:
                    wrote = self._remove(rp_uuid, name) or wrote
            except PlacementConflict as error:
                failure = error
                continue
            forgot = self._forget(_additions(rp_uuid, (name,), ()) & remembered) or forgot
        if failure is not None:
            raise failure
        return wrote or forgot or bool(new)

    def _forget(self, forgotten: frozenset[Addition]) -> bool:
        if forgotten:
            self._ports.db.transact(lambda tx: pci.forget(tx, self._host, forgotten))
        return bool(forgotten)

    def _write_traits(self, rp_uuid: str, change: ProviderChange) -> bool:
        def wanted(known: frozenset[str]) -> frozenset[str]:
            return (known - change.removed_traits) | change.traits

        return change_traits(self._ports.placement, rp_uuid, wanted).wrote

    def _remove(self, rp_uuid: str, name: str) -> bool:
        """Take a class away; returns whether anything was written.

        :raises PlacementConflict: instances use it: all of it is reserved.
        """
        try:
            return self._write_inventories(rp_uuid, {}, without=name)
        except PlacementConflict as error:
            if error.code == IN_USE:
                self._write_inventories(rp_uuid, {}, reserve=name)
            raise

    def _write_inventories(
        self, rp_uuid: str, added: Mapping[str, AddedInventory], *, without: str = "", reserve: str = ""
    ) -> bool:
        """What others have at the provider is written back as it was read, at the generation at which it was read.

        :param without: the class that goes.
        :param reserve: the class of which nothing more is to be allocated.
        """

        def wanted(known: Mapping[str, Inventory]) -> Mapping[str, Inventory]:
            kept = {
                name: replace(record, reserved=record.total) if name == reserve else record
                for name, record in known.items()
                if name != without
            }
            return kept | {name: _record(each, known.get(name)) for name, each in added.items()}

        return change_inventories(self._ports.placement, rp_uuid, wanted) is None

    def _forget_gone(self, remembered: frozenset[Addition], tree: Sequence[Provider]) -> None:
        there = {each.uuid for each in tree}
        self._forget(frozenset(each for each in remembered if each.rp_uuid not in there))


def _additions(rp_uuid: str, classes: Iterable[str], traits: Iterable[str]) -> frozenset[Addition]:
    return frozenset(
        [Addition(rp_uuid, AdditionKind.INVENTORY, name) for name in classes]
        + [Addition(rp_uuid, AdditionKind.TRAIT, name) for name in traits]
    )


def _record(added: AddedInventory, known: Inventory | None) -> Inventory:
    """What is to be written; its ratio as Placement has kept it, where it has."""
    record = Inventory(
        total=added.total,
        reserved=added.reserved,
        min_unit=added.min_unit,
        max_unit=added.max_unit,
        step_size=added.step_size,
        allocation_ratio=added.allocation_ratio,
    )
    if known and math.isclose(known.allocation_ratio, added.allocation_ratio, rel_tol=_KEPT_DIGITS):
        return replace(record, allocation_ratio=known.allocation_ratio)
    return record
