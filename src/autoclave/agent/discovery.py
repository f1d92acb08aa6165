"""Discover the devices of this host, and record them; see the protocol page.

A period without changes costs one Placement request and a constant number of statements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from oslo_db import exception as db_exc
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.cleaning import Cleanup
from autoclave.agent.device_tree import DeviceProviders, KnownDevice, RootProvider, known_devices
from autoclave.db import history
from autoclave.db.devices import DeviceRecord
from autoclave.db.tables import DeviceType
from autoclave.drivers.base import DiscoveredDevice, Driver, Sighting
from autoclave.exceptions import AutoclaveError, InvalidConfiguration, PlacementError, StateConflict
from autoclave.lifecycle.observe import differs, doubt, drive_of, lose, observe, take_over
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.register import FoundProvider, register
from autoclave.lifecycle.reserve import settle_others
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.placement.provider_tree import provider_named
from autoclave.placement.records import Provider
from autoclave.rules.device_lifecycle import Actor, DeviceState, must_be_reserved, shown_state
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.reclaim import RequestedBy
from autoclave.rules.resource_names import FLAVOR_TRAITS, OWNER_CYBORG, provider_name

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """Pair a device, or an unidentified device, with the driver that reports it."""

    driver: Driver
    device: DiscoveredDevice | Sighting


class DriverReports:
    """Merge the reports of the enabled drivers, so that each device belongs to one driver."""

    def __init__(self, drivers: Mapping[str, Driver]) -> None:
        self._drivers = drivers
        self._conflicts: set[str] = set()
        """Addresses claimed by two drivers that were reported to the operator."""

    def look_at(self, driver_name: str, address: str) -> DiscoveredDevice | Sighting | None:
        """Return a driver's report of one slot; None if it is empty, or the driver failed."""
        driver = self._drivers.get(driver_name)
        if driver is None:
            return None
        try:
            return driver.discover_at(address)
        except AutoclaveError as error:
            LOG.error("Driver %s could not look at %s: %s", driver_name, address, error)
        except Exception:  # a vendor's driver may raise any exception
            LOG.exception("Driver %s failed unexpectedly when it looked at %s", driver_name, address)
        return None

    def gather(self, *, starting: bool) -> tuple[dict[str, Found], dict[str, str]]:
        """Return the devices on the host by address, and the reasons by driver for drivers that failed.

        :param starting: fail if two drivers claim a device; otherwise the first driver keeps it.
        :raises InvalidConfiguration: see *starting*; or a driver cannot work as it is configured.
        """
        found: dict[str, Found] = {}
        blind: dict[str, str] = {}
        for name, driver in self._drivers.items():
            try:
                reported = list(driver.discover())
            except InvalidConfiguration:
                raise
            except AutoclaveError as error:
                LOG.error("Driver %s could not look at this host; its devices are left as they are: %s", name, error)
                blind[name] = f"its driver {name} could not look at the host: {error}"
                continue
            except Exception as error:  # a vendor's driver may raise any exception, and the others must go on
                LOG.exception("Driver %s failed unexpectedly; its devices are left as they are", name)
                blind[name] = f"its driver {name} failed unexpectedly: {type(error).__name__}: {error}"
                continue
            for device in reported:
                other = found.get(device.pci_address)
                if other is None or isinstance(other.device, Sighting):
                    found[device.pci_address] = Found(driver, device)
                    continue
                if isinstance(device, Sighting):
                    continue
                message = (
                    f"device {device.pci_address} is claimed by {other.driver.name} and by {name}; "
                    "let only one driver's device_spec match it"
                )
                if starting:
                    raise InvalidConfiguration(message, option="[agent] enabled_drivers")
                if device.pci_address not in self._conflicts:
                    LOG.error("%s. It stays with %s.", message, other.driver.name)
                    self._conflicts.add(device.pci_address)
        return found, blind


class Discovery:
    """Discover the devices of the host, every ``[agent] periodic_interval``.

    :param host: the host's name, which is also that of its root provider.
    :param unreadable_patience: seconds for which an available device may be unreadable.
    """

    def __init__(
        self,
        ports: Ports,
        drivers: Mapping[str, Driver],
        cleanup: Cleanup,
        root: RootProvider,
        *,
        host: str,
        run_id: str,
        clean_on_discovery: bool,
        unreadable_patience: float,
    ) -> None:
        self._ports = ports
        self._reports = DriverReports(drivers)
        self._providers = DeviceProviders(ports, host)
        self._cleanup = cleanup
        self._root = root
        self._host = host
        self._run_id = run_id
        self._clean_on_discovery = clean_on_discovery
        self._unreadable_patience = timedelta(seconds=unreadable_patience)
        self._unreadable_since: dict[str, datetime] = {}
        """Time since when a device has been unreadable, by uuid."""

    def run(self, context: RequestContext, *, starting: bool = False) -> None:
        """Discover once, and reconcile the database and Placement.

        :param starting: stop the agent if two drivers claim a device, as the specification demands; later, exclude and
            log it.
        :raises InvalidConfiguration: see *starting*.
        :raises DatabaseUnavailable: the database cannot be read or written.
        :raises PlacementError: the devices were recorded, but Placement failed.
        """
        known = known_devices(self._ports.db, self._host)
        found, blind = self._reports.gather(starting=starting)
        if starting and not found and not blind:
            LOG.warning("No device of %s is meant by the configuration; `autoclave plan` shows why.", self._host)
        cause = Cause(Actor.AGENT, self._host, context.request_id)
        changed = self._observe(known, _kept_excluded(known, found), blind, cause)
        root, tree = self._root.tree(keep=True)
        changed = self._exclude_foreign(known, found, tree, cause) or changed
        new = {address: seen for address, seen in found.items() if address not in known}
        if not changed and not new and self._providers.all_verified(known, tree):
            return
        untold = self._register_new(context, new, tree, cause)
        untold = self._providers.sync(root, tree) or untold
        if untold is not None:
            raise untold

    def look_again(self, context: RequestContext, device_uuid: str) -> None:
        """Read the slot of a device in ``error`` before it is cleaned.

        The operator may have accepted another drive since the last period, with another cleanup action. A read failure
        is logged; the erase reads the drive again, and fails for the same reason.

        :raises DatabaseUnavailable: the database cannot be read or written.
        """
        known = {entry.device.uuid: entry for entry in known_devices(self._ports.db, self._host).values()}
        entry = known.get(device_uuid)
        if entry is None or entry.device.device_state is not DeviceState.ERROR:
            return
        found = self._reports.look_at(entry.deployable.driver_name, entry.device.pci_address)
        if found is not None:
            cause = Cause(Actor.AGENT, self._host, context.request_id)
            self._note(entry.device, partial(observe, known=entry.device, found=found, cause=cause))

    def _observe(
        self, known: Mapping[str, KnownDevice], found: Mapping[str, Found], blind: Mapping[str, str], cause: Cause
    ) -> bool:
        """Write the reports about known devices; return whether anything changed."""
        changed = False
        drives = {
            address: drive_of(entry.device, found[address].device)
            for address, entry in known.items()
            if address in found
        }
        with self._ports.db.read() as tx:
            dirty = history.among(tx, {drive[0] for drive in drives.values() if drive is not None})
        # Missing devices first, so that a drive moved within this host is not found in two slots.
        for address, entry in sorted(known.items(), key=lambda item: item[0] in found):
            device = entry.device
            if address not in found:
                if (blindness := blind.get(entry.deployable.driver_name)) is not None:
                    overdue = self._overdue_doubt(device, blindness)
                    if overdue is not None and overdue != device.unreadable_reason:
                        self._note(device, partial(doubt, known=device, reason=overdue, cause=cause))
                        changed = True
                elif not device.missing:
                    LOG.warning("Device %s (%s) is missing.", device.uuid, device.slot)
                    reason = "no driver of the host reported it"
                    self._note(device, partial(lose, known=device, cause=cause, reason=reason))
                    changed = True
                continue
            driver, seen = found[address].driver.name, found[address].device
            if isinstance(seen, DiscoveredDevice) and (seen.device_type == DeviceType.NVME) != device.is_drive:
                changed = self._lose_to_another_type(device, driver, seen.device_type, cause) or changed
                continue
            former = entry.deployable.driver_name
            if driver != former and former not in blind and isinstance(seen, DiscoveredDevice):
                self._ports.db.transact(partial(take_over, known=device, driver_name=driver, cause=cause))
                changed = True
            overdue = self._overdue_doubt(device, seen.unreadable)
            if differs(
                device, entry.attributes, entry.handles, seen, known_dirty=drives[address] in dirty, doubt=overdue
            ):
                self._note(device, partial(observe, known=device, found=seen, cause=cause, doubt=overdue))
                changed = True
        return changed

    def _overdue_doubt(self, device: DeviceRecord, unreadable: str | None) -> str | None:
        """Return why an available device must be withheld; None if it is readable, or the patience has not expired."""
        if unreadable is None or device.device_state is not DeviceState.AVAILABLE:
            self._unreadable_since.pop(device.uuid, None)
            return None
        now = self._ports.clock()
        since = self._unreadable_since.setdefault(device.uuid, now)
        return unreadable if now - since >= self._unreadable_patience else None

    def _exclude_foreign(
        self, known: Mapping[str, KnownDevice], found: Mapping[str, Found], tree: Sequence[Provider], cause: Cause
    ) -> bool:
        """Exclude devices whose provider name is used by another service in Placement, and include the others.

        :returns: whether anything changed.
        """
        changed = False
        for address, entry in known.items():
            seen = found[address].device if address in found else None
            if not isinstance(seen, DiscoveredDevice):
                continue
            present = provider_named(tree, entry.deployable.name)
            taken = present is not None and present.uuid != entry.deployable.rp_uuid
            reason = _foreign(entry.deployable.name)
            if taken == (entry.device.excluded_reason == reason):
                continue
            observed = replace(seen, excluded=reason) if taken else seen
            self._note(entry.device, partial(observe, known=entry.device, found=observed, cause=cause))
            changed = True
        return changed

    def _lose_to_another_type(self, device: DeviceRecord, driver: str, device_type: str, cause: Cause) -> bool:
        # The row decides whether the device is cleaned, and a driver of another type would do otherwise.
        if device.missing:
            return False
        reason = (
            f"{driver} reports a device of the type {device_type} in its slot, and it is on record as "
            f"{device.type.value}; let the former driver have it again, or run `autoclave device forget` once no "
            "instance has it"
        )
        LOG.error("Device %s (%s) is not offered: %s", device.uuid, device.slot, reason)
        self._note(device, partial(lose, known=device, cause=cause, reason=reason))
        return True

    def _note(self, known: DeviceRecord, write: Callable[[Connection], DeviceRecord | None]) -> None:
        """Write the report about a device; if that ends its offer, update Placement before the next device."""
        try:
            device = self._ports.db.transact(write)
        except StateConflict as error:
            LOG.warning("What was seen of device %s is written in the next period: %s", known.uuid, error)
            return
        if device is None or must_be_reserved(known.offer) or not must_be_reserved(device.offer):
            return
        if device.device_state is DeviceState.ERROR:
            LOG.warning("Device %s (%s) is in error: %s", device.uuid, device.slot, device.state_reason)
        elif device.unreadable_reason is not None:
            LOG.warning(
                "Device %s (%s) is not offered until it can be read: %s",
                device.uuid,
                device.slot,
                device.unreadable_reason,
            )
        self._providers.withdraw(device.uuid)

    def _register_new(
        self, context: RequestContext, found: Mapping[str, Found], tree: Sequence[Provider], cause: Cause
    ) -> PlacementError | None:
        """Register each new device independently; return the last failure, if any."""
        failure: PlacementError | None = None
        for address, seen in found.items():
            if isinstance(seen.device, Sighting):
                continue
            try:
                self._register(context, seen.driver, seen.device, tree, cause)
            except PlacementError as error:
                LOG.warning("Device %s is not recorded yet: what Placement has of it is not known: %s", address, error)
                failure = error
        return failure

    def _register(
        self,
        context: RequestContext,
        driver: Driver,
        found: DiscoveredDevice,
        tree: Sequence[Provider],
        cause: Cause,
    ) -> None:
        name = provider_name(self._host, PCIAddress.parse(found.pci_address), found.name)
        provider = None
        try:
            provider = self._found_provider(provider_named(tree, name), found)
        except _NotOurs:
            # Register it nevertheless, for lists and the audit; but as not clean, since a guest may have had it.
            found = replace(found, excluded=_foreign(name), exposed=_foreign(name))
            LOG.error("Device %s is not offered: %s.", found.pci_address, found.excluded)
        try:
            device = self._ports.db.transact(
                lambda tx: register(
                    tx,
                    self._host,
                    driver.name,
                    found,
                    provider,
                    cause,
                    clean_on_discovery=self._clean_on_discovery,
                    run_id=self._run_id,
                )
            )
        except db_exc.DBDuplicateEntry as error:
            LOG.error("Device %s is skipped: it is in the database already: %s", found.pci_address, error)
            return
        except StateConflict as error:
            LOG.error("Device %s is skipped: %s", found.pci_address, error)
            return
        reason = device.excluded_reason or device.state_reason
        LOG.info("Device %s (%s) is new: %s (%s)", device.uuid, device.slot, shown_state(device.offer), reason)
        if device.device_state is not DeviceState.AVAILABLE:
            settle_others(self._ports.db, self._ports.placement, device)
        if device.device_state is DeviceState.PENDING_CLEANING:
            self._cleanup.begin_registered(context, device)

    def _found_provider(self, present: Provider | None, found: DiscoveredDevice) -> FoundProvider | None:
        if present is None:
            return None
        traits = self._ports.placement.get_traits(present.uuid).names
        # Nova publishes no providers on a host whose drives Autoclave gives to instances by flavor.
        ours = {OWNER_CYBORG} if found.requested_by is RequestedBy.PROFILE else FLAVOR_TRAITS
        if not ours <= traits:
            raise _NotOurs
        inventory = self._ports.placement.get_inventories(present.uuid).records.get(found.resource_class)
        used = sum(self._ports.placement.get_usages(present.uuid).values())
        return FoundProvider(present.uuid, inventory.reserved if inventory else 0, used)


class _NotOurs(Exception):
    """Signal that a provider of that name belongs to another service."""


def _foreign(name: str) -> str:
    return (
        f"provider {name} in Placement is not Autoclave's, so another service manages it: let only one of Autoclave "
        "and Nova's [pci] device_spec match it, then delete that provider"
    )


def _kept_excluded(known: Mapping[str, KnownDevice], found: Mapping[str, Found]) -> dict[str, Found]:
    """Return *found* with exclusions for foreign providers kept until Placement has been read."""
    kept = dict(found)
    for address, entry in known.items():
        reason = _foreign(entry.deployable.name)
        if address in found and entry.device.excluded_reason == reason:
            seen = found[address]
            if isinstance(seen.device, DiscoveredDevice):
                kept[address] = replace(seen, device=replace(seen.device, excluded=reason))
    return kept
