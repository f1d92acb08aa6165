"""Inspect NVMe controllers: offered or not, and why."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from oslo_log import log as logging

from autoclave.drivers.base import AttachHandle, DiscoveredDevice, Estimate, Inspected, Sighting
from autoclave.exceptions import DeviceLocked, DeviceVanished, DriverMismatch, HardwareError, ToolError, ToolFailed
from autoclave.hardware import sysfs
from autoclave.hardware.erase.found_layout import read_layout
from autoclave.hardware.erase.methods import METHODS
from autoclave.hardware.host import Deadline, HostPaths
from autoclave.hardware.nvme import Controller, block_directory, controller_at
from autoclave.hardware.nvme_cli import NvmeCli, refused_as_unsupported
from autoclave.hardware.nvme_json import ControllerIdentity
from autoclave.hardware.sysfs import NVME_CLASS, PCIFunction, function_directory, iommu_group_members, pci_functions
from autoclave.hardware.usage import holders
from autoclave.rules.cleanup_policy import Capabilities, CleanupAction, Resolution, quicker_format, resolve
from autoclave.rules.device_spec import DeviceSpec, first_match
from autoclave.rules.drive_layout import DriveLayout
from autoclave.rules.pci_address import PCIAddress, unattachable
from autoclave.rules.plain_text import tells_apart
from autoclave.rules.reclaim import RequestedBy
from autoclave.rules.resource_names import FLAVOR_TRAITS, nvme_resource_class, pci_resource_class

LOG = logging.getLogger(__name__)


class Slots:
    """Separate discovery and erases within one driver.

    An inspection opens a disk exclusively for a short time, which would fail a concurrent erase. An erase holds the
    disk exclusively, which an inspection would mistake for a use by this host.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._slots: dict[PCIAddress, threading.Lock] = {}

    @contextmanager
    def hold(self, address: PCIAddress, patience: Deadline | None = None) -> Iterator[None]:
        """Lock the slot.

        :param patience: the deadline of waiting for it; None to not wait.
        :raises DeviceLocked: it was not free in time.
        """
        with self._guard:
            slot = self._slots.setdefault(address, threading.Lock())
        if not slot.acquire(timeout=0 if patience is None else patience.remaining()):
            raise DeviceLocked(f"{address} is being erased or inspected")
        try:
            yield
        finally:
            slot.release()


DEVICE_TYPE = "NVME"
"""The ``device.type`` of the accelerator API."""


@dataclass(frozen=True)
class Finding:
    """Describe one PCI function that is, or is configured as, an NVMe controller.

    :param address: the full address in lower case.
    :param vendor: vendor id; None if unreadable.
    :param product: product id; None if unreadable.
    :param entry: the matching ``[nvme] device_spec`` entry.
    :param driver: its kernel driver.
    :param capabilities: the controller's; None if it was not queried or did not answer.
    :param resolution: the result of the entry's policy for them.
    :param foreign: it is not an NVMe controller, and no entry has its exact address, so its refusal is expected.
    :param refused: why it is not registered as a device at all.
    :param excluded: why policy keeps it from being offered.
    :param exposed: what else, other than a guest of Autoclave, may write to it.
    :param unreadable: why it could not be identified this time.
    :param busy: it was skipped because a worker of this agent has it, which is not a fault of the drive.
    :param holders: the users of its disks on this host.
    :param iommu_group: the other functions of its IOMMU group, which a guest would get as well.
    :param by_slot: the operator configured its slot to identify it.
    :param layout: its namespaces; None if they were not read.
    :param device: the device that may be registered.
    """

    address: str
    vendor: str | None = None
    product: str | None = None
    entry: DeviceSpec | None = None
    driver: str | None = None
    serial: str | None = None
    model: str | None = None
    capabilities: Capabilities | None = None
    resolution: Resolution | None = None
    foreign: bool = False
    refused: str | None = None
    excluded: str | None = None
    exposed: str | None = None
    unreadable: str | None = None
    busy: bool = False
    holders: Sequence[str] = ()
    iommu_group: Sequence[str] = ()
    by_slot: bool = False
    layout: DriveLayout | None = None
    device: DiscoveredDevice | None = field(default=None, repr=False)

    def inspected(self, estimate: Estimate | None) -> Inspected:
        """Convert the finding into text for operators.

        :param estimate: the estimated duration of its erase.
        """
        # A refusal already names the users; with another driver, ``exposed`` and ``unreadable`` have the same reason.
        reasons = (self.refused or self.exposed, self.excluded, self.unreadable)
        resolution = self.resolution
        return Inspected(
            address=self.address,
            device=f"{self.vendor or '?'}:{self.product or '?'} {self.model or ''}".strip(),
            serial=self.serial,
            action=str(resolution.action) if resolution and resolution.action else None,
            refused=list(dict.fromkeys(why for why in reasons if why)),
            entry=f"{self.entry.entry}: {self.entry.text}" if self.entry else None,
            why=resolution.reason if resolution else None,
            rejected=[f"{each.action}: {each.reason}" for each in resolution.rejected] if resolution else [],
            estimate=estimate,
            quicker=self._quicker,
            holders=self.holders,
            iommu_group=self.iommu_group,
            discovered=self.device,
        )

    @property
    def _quicker(self) -> str | None:
        action = self.resolution.action if self.resolution else None
        way = quicker_format(action, self.capabilities) if self.capabilities else None
        if way is None:
            return None
        return (
            f'{way}, with "clear_action": "format" in the entry: minutes at most, whatever the capacity; its proof '
            "is that markers written before are gone"
        )

    @property
    def reported(self) -> DiscoveredDevice | Sighting | None:
        """Return the report for discovery; None if the function cannot be a device of Autoclave."""
        if self.device is None and (why := self.unreadable or self.exposed):
            return Sighting(self.address, why, self.exposed)
        return self.device


class EraseTrials:
    """Check by read-only commands, once for each drive, whether it answers the queries of an erase."""

    def __init__(self) -> None:
        self._passed: set[tuple[str, str, str, CleanupAction]] = set()

    def lack(
        self, nvme: NvmeCli, controller: Controller, identity: ControllerIdentity, action: CleanupAction
    ) -> str | None:
        """Return why every erase of the drive by *action* would fail, or None.

        :raises HardwareError: the drive does not answer now, which proves nothing.
        """
        trial = (str(controller.address), identity.serial, identity.firmware, action)
        if trial in self._passed:
            return None
        try:
            if lack := METHODS[action].lack(nvme, controller, identity):
                return lack
        except ToolFailed as error:
            if not refused_as_unsupported(error):
                raise
            return f"{action} needs a command that the drive refuses: {error}"
        self._passed.add(trial)
        return None


class LayoutReadings:
    """Cache the layouts of drives; each is read again only after the drive has changed."""

    def __init__(self) -> None:
        self._known: dict[PCIAddress, tuple[object, DriveLayout | None]] = {}

    def of(
        self, paths: HostPaths, nvme: NvmeCli, controller: Controller, identity: ControllerIdentity
    ) -> DriveLayout | None:
        """Return the layout of a drive, or None if it does not report it.

        The caller has read *controller* in this inspection, and the drive is not being erased.
        """
        address = controller.address
        now = (identity.serial, identity.model, identity.firmware, identity.unvmcap, _shown(paths, controller))
        if (known := self._known.get(address)) is not None and known[0] == now:
            return known[1]
        self.forget(address)
        layout = None
        try:
            layout = read_layout(nvme, controller.path, identity).layout
        except ToolError as error:
            LOG.info("Cannot read the layout of %s at %s: %s", controller.name, address, error)
            if not isinstance(error, ToolFailed) or not refused_as_unsupported(error):
                return None
        self._known[address] = now, layout
        return layout

    def forget(self, address: PCIAddress) -> None:
        """Drop the cached layout of the drive at *address*: a guest or an erase may have changed it."""
        self._known.pop(address, None)


def _shown(paths: HostPaths, controller: Controller) -> object:
    """Return what the host shows of the namespaces of a controller."""
    return [
        (each, sysfs.read_if_there(block_directory(paths, controller, each) / "queue/logical_block_size"))
        for each in controller.namespaces
    ]


def inspect(
    paths: HostPaths,
    nvme: NvmeCli,
    specs: Sequence[DeviceSpec],
    allowed_host_devices: frozenset[PCIAddress],
    slots: Slots,
    trials: EraseTrials,
    layouts: LayoutReadings,
    slots_that_identify: frozenset[PCIAddress],
    *,
    only: str | None = None,
) -> list[Finding]:
    """Inspect every NVMe controller of the host, and all other functions that *specs* match, in bus order.

    A function that cannot be read is a finding too; it does not prevent the inspection of others.

    :param allowed_host_devices: devices that may be offered although this host uses them.
    :param slots: a drive that is being erased is skipped, and so not identified.
    :param trials: checks of the erases that the policy selects.
    :param layouts: cached layouts.
    :param slots_that_identify: ``[nvme] identify_by_slot``.
    :param only: inspect this slot alone.
    :raises HardwareError: the bus itself cannot be listed.
    """
    functions, unreadable = pci_functions(paths)
    findings = [Finding(each.address, refused="it cannot be identified", unreadable=each.reason)
                for each in unreadable if only in (None, each.address)]  # fmt: skip
    for function in functions:
        if only not in (None, str(function.address)):
            continue
        entry = first_match(specs, function.vendor_id, function.product_id, function.address, function.physfn)
        if entry is None and not function.class_code.startswith(NVME_CLASS):
            continue
        try:
            by_slot = function.address in slots_that_identify
            looked = _Inspection(paths, nvme, function, entry, allowed_host_devices, slots, trials, layouts, by_slot)
            findings.append(looked.run())
        except DeviceVanished:
            continue
        except Exception as error:  # an unexpected error of one function must not hide the others
            LOG.exception("Inspection of %s failed unexpectedly", function.address)
            findings.append(
                Finding(
                    str(function.address),
                    entry=entry,
                    unreadable=f"inspection failed unexpectedly: {type(error).__name__}: {error}",
                )
            )
    return sorted(findings, key=lambda finding: finding.address)


@dataclass(frozen=True)
class _Inspection:
    """Inspect one function."""

    paths: HostPaths
    nvme: NvmeCli
    function: PCIFunction
    entry: DeviceSpec | None
    allowed_host_devices: frozenset[PCIAddress]
    slots: Slots
    trials: EraseTrials
    layouts: LayoutReadings
    by_slot: bool

    def run(self) -> Finding:
        address = self.function.address
        finding = Finding(
            address=str(address),
            vendor=self.function.vendor_id,
            product=self.function.product_id,
            entry=self.entry,
            driver=self.function.driver,
        )
        try:
            group = iommu_group_members(self.paths, address)
            finding = replace(finding, iommu_group=tuple(str(member) for member in group))
            refused = self._refused()
            if refused:
                return replace(finding, refused=refused, foreign=self._is_foreign())
            with self.slots.hold(address):
                finding = self._look_inside(finding)
        except DriverMismatch as e:
            self.layouts.forget(address)
            # Without a driver, nothing writes to it: the kernel also leaves a failed controller without one.
            finding = replace(finding, unreadable=str(e), exposed=None if e.driver is None else str(e))
        except HardwareError as e:
            # The controller disappears with its driver. The slot is empty only if the function is gone, too.
            if isinstance(e, DeviceVanished) and not sysfs.is_there(function_directory(self.paths, address)):
                raise
            finding = replace(finding, unreadable=str(e), busy=isinstance(e, DeviceLocked))
        return finding if finding.refused else replace(finding, device=self._device(finding))

    def _refused(self) -> str | None:
        """Return why sysfs alone excludes the function, without a query to it, or None."""
        if self.entry is None:
            return "no device_spec entry matches"
        if not self.function.class_code.startswith(NVME_CLASS):
            return f"it is not an NVMe controller: its PCI class is {self.function.class_code}"
        if self.function.physfn is not None:
            return (
                f"it is a virtual function of {self.function.physfn}: its data lies on that drive, which cannot be "
                "erased for one function alone"
            )
        return None

    def _is_foreign(self) -> bool:
        named = self.entry is not None and self.entry.address.single == self.function.address
        return not named and not self.function.class_code.startswith(NVME_CLASS)

    def _look_inside(self, finding: Finding) -> Finding:
        controller = controller_at(self.paths, self.function.address)
        users = holders(self.paths, controller)
        if users:
            finding = replace(finding, holders=tuple(users), serial=controller.serial, model=controller.model)
            if self.function.address not in self.allowed_host_devices:
                used = f"this host uses it ({'; '.join(users)})"
                way_out = f"to offer it anyway, which erases it, add allow_host_device = {finding.address} to [agent]"
                if any("open exclusively" in user for user in users):
                    way_out += "; Autoclave also opens a drive to erase it: check `autoclave device list` first"
                return replace(finding, refused=f"{used}; {way_out}", exposed=used)
        identity = self.nvme.identify(controller.path)
        finding = replace(finding, serial=identity.serial, model=identity.model, capabilities=identity.capabilities)
        assert self.entry is not None, "a function that no entry matches was refused"
        resolution = None
        excluded = unattachable(self.function.address) or self.entry.contradiction
        if self.entry.contradiction is None:
            resolution = resolve(self.entry.clear_action, self.entry.clear_strategy, identity.capabilities)
            if excluded is None and not self.by_slot and not tells_apart(identity.serial):
                excluded = (
                    f"its serial number ({identity.serial or 'none'}) does not distinguish it from other drives; to "
                    f"identify it by its slot, add identify_by_slot = {finding.address} to [nvme]"
                )
            elif resolution.action is None:
                excluded = excluded or resolution.reason
            elif excluded is None:
                excluded = self.trials.lack(self.nvme, controller, identity, resolution.action)
        exposed = None
        if controller.other_paths:
            exposed = (
                f"the same drive is also reached through {', '.join(controller.other_paths)}, so it cannot be erased "
                "safely: unbind or detach the other controller"
            )
        layout = self.layouts.of(self.paths, self.nvme, controller, identity)
        return replace(
            finding, resolution=resolution, excluded=excluded, exposed=exposed, by_slot=self.by_slot, layout=layout
        )

    def _device(self, finding: Finding) -> DiscoveredDevice:
        address, function = self.function.address, self.function
        action = finding.resolution.action if finding.resolution else None
        requested_by = self.entry.requested_by if self.entry else RequestedBy.PROFILE
        return DiscoveredDevice(
            pci_address=str(address),
            device_type=DEVICE_TYPE,
            vendor=function.vendor_id,
            product=function.product_id,
            resource_class=self._resource_class(requested_by),
            traits=self._traits(requested_by, finding),
            attach_handles=(AttachHandle("PCI", address.as_attach_info(), str(address)),),
            std_board_info={"product_id": function.product_id, "pci_address": str(address)},
            serial=finding.serial if not finding.by_slot and tells_apart(finding.serial) else None,
            drive_model=finding.model,
            by_slot=finding.by_slot,
            layout=None if finding.unreadable else finding.layout,
            cleanup_action=None if action is None else str(action),
            excluded=finding.excluded,
            unreadable=finding.unreadable,
            exposed=finding.exposed,
            requested_by=requested_by,
        )

    def _resource_class(self, requested_by: RequestedBy) -> str:
        vendor, product = self.function.vendor_id, self.function.product_id
        if requested_by is RequestedBy.PROFILE or self.entry is None:
            return nvme_resource_class(vendor, product)
        configured: str | None = self.entry.extra.get("resource_class")
        return configured or pci_resource_class(vendor, product)

    def _traits(self, requested_by: RequestedBy, finding: Finding) -> Sequence[str]:
        able: Sequence[str] = finding.capabilities.traits if finding.capabilities else ()
        if requested_by is RequestedBy.PROFILE or self.entry is None:
            return able
        configured: frozenset[str] = self.entry.extra.get("traits", frozenset())
        return sorted({*able, *configured, *FLAVOR_TRAITS})
