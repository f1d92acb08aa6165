"""Publish the providers of a host's devices to Placement.

The providers are children of the host's root provider. A provider is inspected again only after a change of its
generation or its row. Another writer is reported only on evidence.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import handles as handle_rows
from autoclave.db import pci
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.handles import HandleUse
from autoclave.db.pci import Addition, AdditionKind
from autoclave.exceptions import PlacementConflict, PlacementError, PlacementNotFound
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import note_rewritten, raise_reserved, settle
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import (
    DesiredProvider,
    ProviderState,
    change_traits,
    create_provider,
    ensure_provider,
    provider_named,
    whole_record,
)
from autoclave.placement.records import Inventories, Provider
from autoclave.rules.device_lifecycle import DeviceState, must_be_reserved
from autoclave.rules.pci_inventory import FUNCTIONS_DRIVER
from autoclave.rules.reclaim import RequestedBy
from autoclave.rules.resource_names import traits_in

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownDevice:
    """Bundle the records of a device that discovery compares.

    :param attributes: attributes that discovery wrote last.
    :param added: what the operator's provider configuration adds to its provider.
    """

    device: DeviceRecord
    deployable: DeployableRecord
    attributes: Mapping[str, str]
    handles: Sequence[HandleUse]
    added: frozenset[Addition] = frozenset()

    @property
    def traits(self) -> frozenset[str]:
        """Return the traits that its provider should have, without those of its owner."""
        return traits_in(self.attributes) | {each.name for each in self.added if each.kind is AdditionKind.TRAIT}

    @property
    def added_classes(self) -> frozenset[str]:
        """Return the resource classes that the operator's provider configuration adds."""
        return frozenset(each.name for each in self.added if each.kind is AdditionKind.INVENTORY)

    @property
    def claimed(self) -> int:
        """Return the number of its handles that are in use."""
        return sum(use.in_use for use in self.handles)

    def fingerprint(self, present: Provider | None) -> tuple[object, ...]:
        """Return the values whose change requires the provider to be inspected again.

        :param present: the provider as Placement has it.
        """
        return (
            present.generation if present else None,
            must_be_reserved(self.device.offer),
            self.device.release_pending,
            self.device.withheld,
            self.device.device_state is DeviceState.SPENT and self.device.burn_confirmed,
            self.device.reclaim,
            self.claimed,
            self.added,
            self.deployable.resource_class,
            self.deployable.num_accelerators,
            tuple(sorted(self.attributes.items())),
        )


def known_devices(db: Database, host: str) -> dict[str, KnownDevice]:
    """Return every device of the host that a device driver discovers, by its address.

    It takes four statements for any number of devices, and one more if flavors ask for some.
    """
    with db.read() as tx:
        return _known(tx, host, functions=False)


def known_functions(db: Database, host: str) -> dict[str, KnownDevice]:
    """Return every device of the host that ``[pci] device_spec`` selects, by its address."""
    with db.read() as tx:
        return _known(tx, host, functions=True)


def _known(tx: Connection, host: str, *, functions: bool) -> dict[str, KnownDevice]:
    devices = device_rows.list_all(tx, hostname=host)
    deployables = device_rows.deployables_of(tx, [device.id for device in devices])
    by_device = {each.device_id: each for each in deployables if functions == (each.driver_name == FUNCTIONS_DRIVER)}
    ids = [deployable.id for deployable in by_device.values()]
    attributes = attribute_rows.discovered(tx, ids)
    handles = handle_rows.of_deployables(tx, ids)
    own_devices = [device for device in devices if device.id in by_device]
    lent = any(device.requested_by is RequestedBy.FLAVOR for device in own_devices)
    added = pci.of_host(tx, host) if lent else frozenset()
    return {
        device.pci_address: KnownDevice(
            device,
            own,
            attributes.get(own.id, {}),
            handles.get(own.id, ()),
            frozenset(each for each in added if each.rp_uuid == own.rp_uuid),
        )
        for device in own_devices
        for own in (by_device[device.id],)
    }


Version = tuple[object, ...]
"""Values that change with every change of a row that affects ``reserved``."""


class LoweredReserved:
    """Detect that another writer has lowered ``reserved``.

    A row is committed before Placement is updated, so a lower ``reserved`` may be a pending update. It proves another
    writer only if Placement had reserved everything for the same version of the row before.
    """

    def __init__(self) -> None:
        self._full: dict[str, Version] = {}
        self._looked_at: set[str] = set()

    def saw_full(self, rp_uuid: str, version: Version) -> None:
        """Record that Placement has reserved everything, as *version* of the row demands."""
        self._looked_at.add(rp_uuid)
        self._full[rp_uuid] = version

    def saw(self, rp_uuid: str) -> None:
        """Record that the provider was inspected, and nothing had to be reserved."""
        self._looked_at.add(rp_uuid)

    def report(self, rp_uuid: str, version: Version, now: Version | None, what: str) -> None:
        """Log that Placement has reserved too little, as precisely as the evidence permits.

        :param version: version of the row when Placement was read.
        :param now: version of the row as read again since; None if it is gone.
        :param what: description of the provider, its ``reserved``, and why that is too little.
        """
        first = rp_uuid not in self._looked_at
        self._looked_at.add(rp_uuid)
        if now != version:
            LOG.debug("%s This was changing while it was looked at.", what)
        elif self._full.get(rp_uuid) == version:
            LOG.warning("%s Something other than Autoclave lowered it: it was reserved before.", what)
        elif first:
            LOG.warning("%s Its last change had not reached Placement, or something other than Autoclave wrote.", what)
        else:
            LOG.info("%s Its last change had not reached Placement yet.", what)


class DeviceProviders:
    """Reconcile the providers of the devices of *host*.

    A provider is skipped if its generation and its row have not changed since it was last verified.

    :param known: returns the devices, by address.
    """

    def __init__(
        self, ports: Ports, host: str, known: Callable[[Database, str], Mapping[str, KnownDevice]] = known_devices
    ) -> None:
        self._ports = ports
        self._host = host
        self._known = known
        self.made = False
        """True if the last :meth:`sync` has created a provider."""
        self._verified: dict[str, tuple[object, ...]] = {}
        self._renamed: set[str] = set()
        """Renamed providers that were reported to the operator."""
        self._lowered = LoweredReserved()
        self._foreign: dict[str, str] = {}
        """Foreign providers that were reported to the operator, by the uuid of the provider whose name they have."""

    def withdraw(self, device_uuid: str) -> None:
        """Reserve a device at once that is no longer offered; :meth:`sync` retries a failure."""
        raise_reserved(self._ports.db, self._ports.placement, device_uuid)

    def note_changed(self, rp_uuids: Iterable[str]) -> None:
        """Record that this process has just changed rows, so that Placement is outdated by no other writer."""
        for rp_uuid in rp_uuids:
            self._lowered.saw(rp_uuid)

    def all_verified(self, known: Mapping[str, KnownDevice], tree: Sequence[Provider]) -> bool:
        """Return whether no provider and no row has changed since it was last verified."""
        providers = {provider.uuid: provider for provider in tree}
        return all(
            self._verified.get(entry.deployable.rp_uuid) == entry.fingerprint(providers.get(entry.deployable.rp_uuid))
            for entry in known.values()
        )

    def sync(
        self, root: str, tree: Sequence[Provider], then: Callable[[KnownDevice], bool] = lambda _entry: False
    ) -> PlacementError | None:
        """Reconcile each provider independently; return the last failure, if any.

        :param then: called after a device was reconciled; returns whether it has changed the device, which is then
            reconciled again.
        """
        providers = {provider.uuid: provider for provider in tree}
        failure: PlacementError | None = None
        self.made = False
        for entry in self._known(self._ports.db, self._host).values():
            try:
                self._sync_one(root, tree, providers.get(entry.deployable.rp_uuid), entry, then)
            except PlacementError as error:
                LOG.warning("Provider %s is not as it should be yet: %s", entry.deployable.name, error)
                failure = error
        return failure

    def _sync_one(
        self,
        root: str,
        tree: Sequence[Provider],
        present: Provider | None,
        entry: KnownDevice,
        then: Callable[[KnownDevice], bool],
    ) -> None:
        device, deployable = entry.device, entry.deployable
        if present is not None and not present.is_named(deployable.name) and present.uuid not in self._renamed:
            self._renamed.add(present.uuid)
            LOG.warning(
                "Provider %s of device %s is named %s in Placement: it was renamed there. Run `openstack resource "
                "provider set --name %s %s`.",
                present.uuid,
                device.uuid,
                present.name,
                deployable.name,
                present.uuid,
            )
        fingerprint = entry.fingerprint(present)
        if present is not None and self._verified.get(deployable.rp_uuid) == fingerprint:
            return
        if present is None and (taken := provider_named(tree, deployable.name)) is not None:
            if self._foreign.get(deployable.rp_uuid) != taken.uuid:
                self._foreign[deployable.rp_uuid] = taken.uuid
                LOG.error(
                    "Provider %s of device %s has the uuid %s in Placement, and %s here: delete the foreign one.",
                    deployable.name,
                    device.uuid,
                    taken.uuid,
                    deployable.rp_uuid,
                )
            return
        self._foreign.pop(deployable.rp_uuid, None)
        state = self._ensure(root, present, entry)
        inventories = state.known_inventories or self._ports.placement.get_inventories(deployable.rp_uuid)
        agrees = not (state.rewritten and device.requested_by is RequestedBy.PROFILE) and self._agrees(
            entry, present, inventories
        )
        if not agrees:
            fresh = state.with_inventories(inventories)
            settle(self._ports.db, self._ports.placement, device.uuid, {deployable.rp_uuid: fresh} if fresh else {})
        # After reconciling: a release ends an earlier burn, but not one by a later allocation.
        if then(entry):
            settle(self._ports.db, self._ports.placement, device.uuid)
        elif agrees:
            self._verified[deployable.rp_uuid] = fingerprint

    def _ensure(self, root: str, present: Provider | None, entry: KnownDevice) -> ProviderState:
        """Create the provider if it is absent, and write its traits."""
        device, deployable = entry.device, entry.deployable
        self.made = self.made or present is None
        if device.requested_by is RequestedBy.PROFILE:
            desired = DesiredProvider(
                deployable.rp_uuid, deployable.name, root, deployable.resource_class, entry.traits
            )
            return ensure_provider(
                self._ports.placement, desired, present, lambda: note_rewritten(self._ports.db, device.uuid)
            )
        placement = self._ports.placement
        made = create_provider(placement, deployable.rp_uuid, deployable.name, root) if present is None else None
        # Traits first, so that a reader of the inventory finds the owner.
        return change_traits(placement, deployable.rp_uuid, lambda _known: entry.traits, made)

    def _agrees(self, entry: KnownDevice, present: Provider | None, inventories: Inventories) -> bool:
        """Return whether Placement has the inventory that the row demands, at the generation of the tree."""
        record = inventories.records.get(entry.deployable.resource_class)
        total = entry.deployable.num_accelerators
        must = must_be_reserved(entry.device.offer)
        owes = (entry.device.release_pending or entry.device.withheld) and not must
        if entry.device.device_state is DeviceState.SPENT and not entry.device.burn_confirmed:
            return False  # settle() confirms it
        if not must:
            self._lowered.saw(entry.deployable.rp_uuid)
        elif record is not None:
            self._compare_reserved(entry, record.reserved)
        others = inventories.records.keys() - {entry.deployable.resource_class} - entry.added_classes
        if record is None or owes or record != whole_record(total, record.reserved) or others:
            return False
        if must and record.reserved != total:
            return False
        if entry.deployable.published_total != total:
            return False  # the write's answer was lost: let settle() record the published total
        if not must and record.reserved >= total:
            return False  # settle() recognizes an operator's hold, and leaves it
        return present is not None and inventories.generation == present.generation

    def _compare_reserved(self, entry: KnownDevice, reserved: int) -> None:
        """Report a provider that has too little reserved for a device that must not be offered."""
        device, deployable = entry.device, entry.deployable
        total = deployable.num_accelerators
        version = _version(device, total)
        if reserved >= total:
            self._lowered.saw_full(deployable.rp_uuid, version)
            return
        with self._ports.db.read() as tx:
            now = device_rows.get(tx, device.uuid)
        self._lowered.report(
            deployable.rp_uuid,
            version,
            None if now is None else _version(now, total),
            f"Provider {deployable.name} has reserved={reserved}, but device {device.uuid} is {device.device_state} "
            f"and must not be offered: raised to {total}.",
        )


def _version(device: DeviceRecord, total: int) -> Version:
    return device.state_version, device.release_number, device.offer, total


class RootProvider:
    """Find the root provider by the host's name, and cache its uuid; create the provider if configured.

    :param create: ``[placement] create_root_provider``; off where nova-compute creates it.
    """

    def __init__(self, placement: PlacementClient, host: str, *, create: bool) -> None:
        self._placement = placement
        self._host = host
        self._create = create
        self._uuid: str | None = None
        self._seen: tuple[str, list[Provider]] | None = None

    def tree(self, *, keep: bool = False) -> tuple[str, list[Provider]]:
        """Return the root's uuid and all providers of its tree, including itself; one request if the uuid is cached.

        An empty tree shows that the root was deleted. It may have been created again with another uuid.

        :param keep: keep the result for :meth:`tree_once_more`.
        :raises PlacementNotFound: the root does not exist and must not be created here, or was deleted concurrently.
        :raises PlacementError: Placement failed.
        """
        if self._uuid is None or not (providers := self._placement.providers_in_tree(self._uuid)):
            self._uuid = self._find_or_make()
            providers = self._placement.providers_in_tree(self._uuid)
            if not providers:
                raise PlacementNotFound(f"provider {self._uuid} of {self._host} was deleted a moment ago")
        if keep:
            self._seen = self._uuid, providers
        return self._uuid, providers

    def tree_once_more(self) -> tuple[str, list[Provider]]:
        """Return the tree that :meth:`tree` kept, at most once, or else read it.

        Its generations may be outdated. The next period detects that.

        :raises PlacementError: see :meth:`tree`.
        """
        seen, self._seen = self._seen, None
        return seen or self.tree()

    def _find_or_make(self) -> str:
        found = self._placement.find_provider(self._host)
        if found is not None:
            return found.uuid
        if not self._create:
            raise PlacementNotFound(
                f"Placement has no provider named {self._host}. Start nova-compute on this host, or correct "
                "[agent] resource_provider_name, or set [placement] create_root_provider."
            )
        try:
            made = str(uuid.uuid4())
            create_provider(self._placement, made, self._host)
            return made
        except PlacementConflict:
            # another writer created it between both requests
            found = self._placement.find_provider(self._host)
            if found is None:
                raise
            return found.uuid
