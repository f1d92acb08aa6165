"""What Placement is told of each device's provider, and which of them need not be looked at again."""

from collections.abc import Mapping, Sequence

from oslo_log import log as logging

from autoclave.agent.known_devices import KnownDevice, known_devices
from autoclave.agent.lowered import LoweredReserved, Version
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import PlacementError
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import note_rewritten, raise_reserved, settle
from autoclave.placement.provider_tree import DesiredProvider, ensure_provider, provider_named, whole_record
from autoclave.placement.records import Inventories, Provider
from autoclave.rules.device_lifecycle import must_be_reserved
from autoclave.rules.resource_names import traits_in

LOG = logging.getLogger(__name__)


class DeviceProviders:
    """The providers of the devices of *host*.

    A provider whose generation is the one that was last found to be right, for a row that has not
    changed, is not looked at again.
    """

    def __init__(self, ports: Ports, host: str) -> None:
        self._ports = ports
        self._host = host
        self._verified: dict[str, tuple[object, ...]] = {}
        self._renamed: set[str] = set()
        """Providers whose names are not ours, of which the operator has been told."""
        self._lowered = LoweredReserved()
        self._foreign: dict[str, str] = {}
        """By provider, the foreign one that has its name, of which the operator has been told."""

    def withdraw(self, device_uuid: str) -> None:
        """Tell Placement at once that a device is no longer offered; what fails is done when it is synced."""
        raise_reserved(self._ports.db, self._ports.placement, device_uuid)

    def all_verified(self, known: Mapping[str, KnownDevice], tree: Sequence[Provider]) -> bool:
        """Whether every provider is as it was when it was last found to be right, and so is every row."""
        providers = {provider.uuid: provider for provider in tree}
        return all(
            self._verified.get(entry.deployable.rp_uuid) == entry.fingerprint(providers.get(entry.deployable.rp_uuid))
            for entry in known.values()
        )

    def sync(self, root: str, tree: Sequence[Provider]) -> PlacementError | None:
        """Make Placement agree, each provider by itself; returns why the last one does not, if so."""
        providers = {provider.uuid: provider for provider in tree}
        failure: PlacementError | None = None
        for entry in known_devices(self._ports.db, self._host).values():
            try:
                self._sync_one(root, tree, providers.get(entry.deployable.rp_uuid), entry)
            except PlacementError as error:
                LOG.warning("Provider %s is not as it should be yet: %s", entry.deployable.name, error)
                failure = error
        return failure

    def _sync_one(self, root: str, tree: Sequence[Provider], present: Provider | None, entry: KnownDevice) -> None:
        device, deployable = entry.device, entry.deployable
        if present is not None and not present.is_named(deployable.name) and present.uuid not in self._renamed:
            self._renamed.add(present.uuid)
            LOG.warning(
                "Provider %s of device %s is named %s in Placement: somebody renamed it. Run `openstack resource "
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
        traits = traits_in(entry.attributes)
        desired = DesiredProvider(deployable.rp_uuid, deployable.name, root, deployable.resource_class, traits)
        state = ensure_provider(
            self._ports.placement, desired, present, lambda: note_rewritten(self._ports.db, device.uuid)
        )
        inventories = state.known_inventories or self._ports.placement.get_inventories(deployable.rp_uuid)
        if not state.rewritten and self._agrees(entry, present, inventories):
            self._verified[deployable.rp_uuid] = fingerprint
            return
        fresh = state.with_inventories(inventories)
        settle(self._ports.db, self._ports.placement, device.uuid, {deployable.rp_uuid: fresh} if fresh else {})

    def _agrees(self, entry: KnownDevice, present: Provider | None, inventories: Inventories) -> bool:
        """Whether Placement's inventory is what the row demands, at the generation that the tree showed."""
        record = inventories.records.get(entry.deployable.resource_class)
        total = entry.deployable.num_accelerators
        must = must_be_reserved(entry.device.offer)
        owes = entry.device.release_pending and not must
        if not must:
            self._lowered.saw(entry.deployable.rp_uuid)
        elif record is not None:
            self._compare_reserved(entry, record.reserved)
        if record is None or owes or record != whole_record(total, record.reserved) or len(inventories.records) > 1:
            return False
        if must and record.reserved != total:
            return False
        if entry.deployable.published_total != total:
            return False  # it was written, and its answer lost: settle notes that it was Autoclave
        if not must and record.reserved >= total:
            return False  # settle says that this is an operator's hold, and leaves it
        return present is not None and inventories.generation == present.generation

    def _compare_reserved(self, entry: KnownDevice, reserved: int) -> None:
        """Report a provider that has less reserved than a row demands that must not be offered."""
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
