"""Drive PCI functions other than NVMe drives, and clean those whose entry names a method."""

import time
from collections import defaultdict
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import ClassVar

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.conf.agent import allowed_host_devices
from autoclave.conf.compute import PASSTHROUGH_KEYS, PASSTHROUGH_OPTION
from autoclave.drivers.base import (
    AttachHandle,
    CleanableDevice,
    CleanupControl,
    DiscoveredDevice,
    Driver,
    Evidence,
    Inspected,
    Sighting,
)
from autoclave.exceptions import DeviceInUse, EraseUnsupported, HardwareError, WrongDrive
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.function_work import FunctionWork
from autoclave.hardware.erase.methods import FUNCTION_METHODS, function_lack
from autoclave.hardware.function_access import function_users
from autoclave.hardware.host import Deadline, HostPaths, Progress
from autoclave.hardware.pci_functions import card_serial
from autoclave.hardware.sysfs import (
    BRIDGE_CLASS,
    NVME_CLASS,
    PCIFunction,
    Unreadable,
    iommu_group_members,
    pci_function,
    pci_functions,
)
from autoclave.hardware.usage import host_uses, is_with_vfio, objection
from autoclave.rules.device_spec import DeviceSpec, first_match, parse_device_spec
from autoclave.rules.pci_address import PCIAddress, unattachable
from autoclave.rules.pci_inventory import DEVICE_SPEC_OPTION, FUNCTIONS_DRIVER, parse_pci_device_spec
from autoclave.rules.reclaim import Reclaim, ReclaimPolicy
from autoclave.rules.resource_names import PCI_CLASS, pci_traits

LOG = logging.getLogger(__name__)

DEVICE_TYPE = "PCI"
"""The ``device.type`` of the accelerator API."""


@dataclass(frozen=True)
class Candidate:
    """Describe one function that an entry of ``[pci] passthrough_whitelist`` matches.

    :param entry: that entry.
    :param withheld: why it is not offered now.
    :param holders: its users on this host.
    :param iommu_group: the other functions of its IOMMU group.
    """

    function: PCIFunction
    entry: DeviceSpec
    withheld: str | None
    holders: Sequence[str] = ()
    iommu_group: Sequence[PCIAddress] = ()

    @property
    def handle(self) -> AttachHandle:
        """Return its attach handle, with ``managed`` only if it was configured (managed-mode specification)."""
        address = self.function.address
        managed = {"managed": self.entry.extra["managed"]} if "managed" in self.entry.extra else {}
        return AttachHandle("PCI", {**address.as_attach_info(), **managed}, str(address))

    @property
    def policy(self) -> ReclaimPolicy:
        """Return what becomes of it after each instance."""
        return ReclaimPolicy.of(self.entry.extra)

    @property
    def words(self) -> str:
        """Describe the function as one of several of a device."""
        driver = self.function.driver or "no driver"
        mode = {True: ", managed", False: ", not managed", None: ""}[self.entry.extra.get("managed")]
        return f"{self.function.address} ({driver}{mode})" + (f": {self.withheld}" if self.withheld else "")


@dataclass(frozen=True)
class Card:
    """Describe one slot with candidates: a function itself, or a physical function with virtual functions.

    :param slot: the function in the slot, to which the device belongs.
    :param candidates: the functions for guests: itself, or its virtual functions.
    :param serial: from its Device Serial Number; None if missing or unreadable.
    """

    slot: PCIFunction
    candidates: Sequence[Candidate]
    serial: str | None = None

    @property
    def offered(self) -> Sequence[Candidate]:
        """Return the candidates that are not withheld."""
        return [candidate for candidate in self.candidates if candidate.withheld is None]

    @property
    def excluded(self) -> str | None:
        """Return why the card is not offered at all, or None."""
        if self.offered:
            return None
        return "; ".join(dict.fromkeys(candidate.withheld or "" for candidate in self.candidates))

    @property
    def policy(self) -> ReclaimPolicy:
        """Return what becomes of the card after each instance; virtual functions are always returned uncleaned."""
        own = [candidate for candidate in self.candidates if candidate.function is self.slot]
        return own[0].policy if own else ReclaimPolicy()

    def device(self) -> DiscoveredDevice:
        """Return the device for discovery."""
        shown = (
            self.offered or self.candidates
        )  # Placement does not accept an empty inventory: all of it is reserved then
        given = shown[0].function  # virtual functions of one physical function have one product id (SR-IOV 3.4.1.3)
        return DiscoveredDevice(
            pci_address=str(self.slot.address),
            device_type=DEVICE_TYPE,
            vendor=given.vendor_id,
            product=given.product_id,
            resource_class=PCI_CLASS,
            traits=pci_traits(given.vendor_id, given.product_id),
            attach_handles=[candidate.handle for candidate in shown],
            std_board_info={"product_id": given.product_id, "pci_address": str(self.slot.address)},
            serial=self.serial,
            drive_model=f"{self.slot.vendor_id}:{self.slot.product_id}",
            by_slot=True,  # some vendors give one serial to all functions of a card, or even to all cards
            excluded=self.excluded,
            cleanup_action=self.policy.cleanup_action,
            policy=self.policy.reclaim,
        )

    def inspected(self) -> Inspected:
        """Convert the card into text for operators."""
        own = [candidate for candidate in self.candidates if candidate.function is self.slot]
        entries = [f"{each.entry.entry}: {each.entry.text}" for each in self.candidates]
        given = self.candidates[0].function
        virtual = "" if own else f", {of_card(self.candidates, len(self.offered))} {given.vendor_id}:{given.product_id}"
        members = {member for each in self.candidates for member in each.iommu_group}
        return Inspected(
            address=str(self.slot.address),
            device=f"{self.slot.vendor_id}:{self.slot.product_id}{virtual}",
            action=self.policy.guarantee if self.excluded is None else None,
            refused=[self.excluded] if self.excluded else [],
            partly_refused=[] if self.excluded else [each.words for each in self.candidates if each.withheld],
            entry="; ".join(dict.fromkeys(entries)),
            why="pci_driver erases nothing" if self.policy == ReclaimPolicy() else f"the entry has {self.policy.words}",
            holders=[holder for each in self.candidates for holder in each.holders],
            iommu_group=[str(member) for member in sorted(members)],
            handles=[] if own else [candidate.words for candidate in self.candidates],
            discovered=self.device(),
        )


def of_card(meant: Sized, offered: int) -> str:
    """Describe the number of virtual functions that entries select, and how many of them are offered, if not all."""
    number = len(meant)
    count = f"{offered} of {number}" if 0 < offered < number else str(number)
    return f"{count} virtual function{'' if number == 1 else 's'}"


def look(
    paths: HostPaths, specs: Sequence[DeviceSpec], allowed_host_devices: frozenset[PCIAddress]
) -> tuple[list[Card], list[Sighting]]:
    """Inspect every function that *specs* match, in bus order; also return those that cannot be read.

    A virtual function belongs to the slot of its physical function. If both match, only the virtual functions are
    offered: a guest with the physical function would take them from other guests. Unreadable functions do not become
    missing.

    :param allowed_host_devices: functions that may be offered although this host uses them.
    :raises HardwareError: the bus itself cannot be listed.
    """
    functions, unreadable = pci_functions(paths)
    virtual: dict[PCIAddress, list[PCIFunction]] = defaultdict(list)
    for function in functions:
        if function.physfn is not None:
            virtual[function.physfn].append(function)
    cards = []
    for slot in functions:
        if slot.physfn is None:
            mine = virtual[slot.address]
            matched = _matched(mine, specs) or _matched([slot], specs)
            try:
                candidates = [
                    _candidate(paths, function, entry, allowed_host_devices, len(mine) if function is slot else 0)
                    for function, entry in matched
                ]
            except Exception as error:  # an unexpected error of one slot must not hide the others
                LOG.exception("Looking at %s failed in a way that was not foreseen", slot.address)
                reason = f"looking at it failed unexpectedly: {type(error).__name__}: {error}"
                unreadable.append(Unreadable(str(slot.address), reason))
                continue
            if candidates:
                cards.append(Card(slot, candidates, _serial(paths, slot.address)))
    return cards, [Sighting(each.address, each.reason) for each in unreadable]


def _serial(paths: HostPaths, address: PCIAddress) -> str | None:
    """Return the serial of a card, without the slow Vital Product Data: uncleaned devices do not need it."""
    try:
        return card_serial(paths, address, vital_product_data=False)
    except HardwareError as error:
        LOG.debug("The serial of %s is not known: %s", address, error)
        return None


def _matched(functions: Sequence[PCIFunction], specs: Sequence[DeviceSpec]) -> list[tuple[PCIFunction, DeviceSpec]]:
    matched = []
    for function in functions:
        entry = first_match(specs, function.vendor_id, function.product_id, function.address, function.physfn)
        if entry is not None and not function.class_code.startswith(BRIDGE_CLASS):
            matched.append((function, entry))
    return matched


def _candidate(
    paths: HostPaths, function: PCIFunction, entry: DeviceSpec, allowed: frozenset[PCIAddress], virtual_functions: int
) -> Candidate:
    address = function.address
    try:
        group = iommu_group_members(paths, address)
        with_vfio = is_with_vfio(paths, function)
        users = [] if address in allowed else host_uses(paths, function)
        lack = function_lack(paths, function, ReclaimPolicy.of(entry.extra))
    except HardwareError as e:
        return Candidate(function, entry, str(e))
    withheld = unattachable(address)
    if withheld is not None:
        return Candidate(function, entry, withheld, users, group)
    policy, is_drive = ReclaimPolicy.of(entry.extra), function.class_code.startswith(NVME_CLASS)
    if is_drive and policy.reclaim is Reclaim.ERASE:
        withheld = "it is an NVMe controller, which [pci] cannot erase: name it in [nvme] device_spec"
    elif is_drive and policy.reclaim is Reclaim.NONE and entry.address.single != address:
        withheld = (
            "it is an NVMe controller, which nvme_driver erases between two guests and this driver would not; to offer "
            f'it uncleaned nevertheless, give an entry its exact address, "{address}"'
        )
    elif function.physfn is not None and policy.reclaim is not Reclaim.NONE:
        withheld = (
            f'it is a virtual function. Only whole cards can have "reclaim": "{policy.reclaim}", since virtual '
            "functions share a device"
        )
    else:
        managed = entry.extra.get("managed", True)
        withheld = lack or objection(
            function, users, with_vfio=with_vfio, managed=managed, virtual_functions=virtual_functions
        )
    return Candidate(function, entry, withheld, users, group)


class FunctionDriver(Driver):
    """Provide the base of the drivers that clean PCI functions by the entries of an option.

    :cvar option: that option, for messages.
    """

    option: ClassVar[str]

    @property
    def device_specs(self) -> Sequence[DeviceSpec]:
        """Return the entries of the option."""
        raise NotImplementedError

    def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
        """Clean the function by its locked-in action, as its entry configures it now.

        :raises EraseUnsupported: the configuration does not have the locked-in action.
        :raises WrongDrive: the slot has another function.
        :raises DeviceInUse: something uses the function, also after ``[agent] rebind_timeout``.
        :raises HardwareError: the function is not clean.
        """
        control = control or self.own_control()
        function = self._wait_until_free(self._expected(device), control)
        policy = self._locked_in(device, function)
        work = FunctionWork(
            paths=self.paths,
            commands=Commands(self.paths),
            function=function,
            device_uuid=device.uuid,
            command=policy.command,
            control=control,
            stall_timeout=self.conf.nvme.stall_timeout,
        )
        began = datetime.now(UTC)
        facts = FUNCTION_METHODS[policy.cleanup_action or ""].run(work)
        users = function_users(self.paths, self._expected(device))
        if users:
            raise DeviceInUse(
                f"{work.name} was cleaned, but is in use: {'; '.join(users)}. End that, and clean the device again",
                users,
            )
        return {
            "action": policy.cleanup_action,
            "device": f"{function.vendor_id}:{function.product_id}",
            "address": str(function.address),
            "began": began.isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            **facts,
        }

    def _expected(self, device: CleanableDevice) -> PCIFunction:
        """Return the function in the device's slot, which must be of the recorded kind."""
        function = pci_function(self.paths, PCIAddress.parse(device.pci_address))
        found = f"{function.vendor_id}:{function.product_id}"
        if device.drive_model not in (None, found):
            raise WrongDrive(
                f"{device.pci_address}: the slot has {found}, but the device {device.uuid} is {device.drive_model}; it "
                "was not touched"
            )
        return function

    def _wait_until_free(self, function: PCIFunction, control: CleanupControl) -> PCIFunction:
        """Wait until nothing uses the function: libvirt may still detach it from its guest."""
        patience = Deadline.after(min(self.conf.agent.rebind_timeout, control.deadline.remaining()))
        while users := function_users(self.paths, function):
            if patience.passed:
                raise DeviceInUse(
                    f"{function.address} is in use: {'; '.join(users)}, also after {self.conf.agent.rebind_timeout:g} "
                    "s ([agent] rebind_timeout); it was not touched",
                    users,
                )
            control.progress(Progress(None, f"waiting until nothing uses it: {'; '.join(users)}"))
            time.sleep(min(self.conf.nvme.poll_interval, patience.remaining()))
        return pci_function(self.paths, function.address)

    def _locked_in(self, device: CleanableDevice, function: PCIFunction) -> ReclaimPolicy:
        """Return the policy of the function's entry, which must have the locked-in action."""
        entry = first_match(
            self.device_specs, function.vendor_id, function.product_id, function.address, function.physfn
        )
        policy = ReclaimPolicy() if entry is None else ReclaimPolicy.of(entry.extra)
        if policy.cleanup_action is None or policy.cleanup_action != device.cleanup_action:
            configured = "no entry matches it" if entry is None else f"entry {entry.entry} is {entry.text}"
            raise EraseUnsupported(
                f"{device.pci_address} is to be cleaned by {device.cleanup_action or 'no method'}, which {self.option} "
                f"does not have for it: {configured}; it was not touched. Restore the entry, restart the agent, and "
                "clean the device again"
            )
        return policy


class PCIDriver(FunctionDriver):
    """Discover the functions of ``[pci] passthrough_whitelist`` in sysfs."""

    name: ClassVar[str] = "pci_driver"
    option: ClassVar[str] = PASSTHROUGH_OPTION

    def __init__(self, conf: cfg.ConfigOpts, paths: HostPaths) -> None:
        super().__init__(conf, paths)
        self._told: dict[str, str | None] = {}

    def init_host(self) -> None:
        """Verify that the options are valid.

        :raises InvalidConfiguration: ``[pci] passthrough_whitelist`` or ``[agent] allow_host_device`` is invalid.
        """
        if not self.device_specs:
            LOG.warning("%s is empty: the driver %s manages no device", PASSTHROUGH_OPTION, self.name)
        allowed_host_devices(self.conf)

    @cached_property
    def device_specs(self) -> Sequence[DeviceSpec]:
        """Return the entries of ``[pci] passthrough_whitelist``."""
        return parse_device_spec(
            self.conf.pci.passthrough_whitelist, option=PASSTHROUGH_OPTION, extra_keys=PASSTHROUGH_KEYS
        )

    def discover(self) -> Sequence[DiscoveredDevice | Sighting]:
        cards, unreadable = self._look()
        for card in cards:
            self._tell(card)
        return [*(card.device() for card in cards), *unreadable]

    def inspect(self) -> Sequence[Inspected]:
        cards, unreadable = self._look()
        unread = [Inspected(each.pci_address, "?", refused=[each.unreadable]) for each in unreadable]
        return [*(card.inspected() for card in cards), *unread]

    def _look(self) -> tuple[list[Card], list[Sighting]]:
        return look(self.paths, self.device_specs, allowed_host_devices(self.conf))

    def _tell(self, card: Card) -> None:
        """Log why a configured function is not offered, once per change."""
        for candidate in card.candidates:
            address = str(candidate.function.address)
            if candidate.withheld != self._told.get(address):
                self._told[address] = candidate.withheld
                entry = f"{PASSTHROUGH_OPTION} entry {candidate.entry.entry}"
                if candidate.withheld:
                    LOG.error("%s (%s) is not offered: %s", address, entry, candidate.withheld)
                else:
                    LOG.info("%s (%s) may be offered", address, entry)


class PCIDeviceSpecDriver(FunctionDriver):
    """Clean the functions of ``[pci] device_spec``. It discovers none: the agent offers them by flavor."""

    name: ClassVar[str] = FUNCTIONS_DRIVER
    option: ClassVar[str] = DEVICE_SPEC_OPTION

    @cached_property
    def device_specs(self) -> Sequence[DeviceSpec]:
        """Return the entries of ``[pci] device_spec``."""
        return parse_pci_device_spec(self.conf.pci.device_spec)

    def discover(self) -> Sequence[DiscoveredDevice | Sighting]:
        return []
