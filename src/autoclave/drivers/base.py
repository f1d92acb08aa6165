"""What a device driver is, and what it reports.

The class follows ``GenericDriver`` of the NVMe specification: ``init_host()``, ``discover()`` and
``cleanup(device)``, of which the first and the last do nothing unless overridden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from oslo_config import cfg

from autoclave.hardware.erase.work import Estimate
from autoclave.hardware.host import Deadline, HostPaths, Progress, ProgressSink, ToolSink
from autoclave.rules.drive_layout import DriveLayout
from autoclave.rules.resource_names import is_managed

__all__ = [
    "AttachHandle",
    "CleanableDevice",
    "CleanupControl",
    "DiscoveredDevice",
    "Driver",
    "Estimate",
    "Evidence",
    "Inspected",
    "Progress",
    "ProgressSink",
    "Sighting",
    "ToolSink",
]


@dataclass(frozen=True)
class AttachHandle:
    """One way to give a device to a guest.

    :param attach_type: ``PCI``, ``MDEV`` or ``TEST_PCI``.
    :param attach_info: for PCI: domain, bus, device, function as hexadecimal strings, and ``managed`` where it was
        configured (managed-mode specification).
    :param identity: what stays the same when attach_info changes; for PCI the full address.
    :raises ValueError: ``managed`` is neither true nor false: guests and clients could not be told how it is.
    """

    attach_type: str
    attach_info: Mapping[str, Any]
    identity: str

    def __post_init__(self) -> None:
        if self.attach_type == "PCI":
            is_managed(self.attach_info)


@dataclass(frozen=True)
class DiscoveredDevice:
    """What a driver found in one slot.

    :param pci_address: the full address in lower case; with the host it is the device's identity.
    :param vendor: vendor id, four lower-case hexadecimal digits (``device.vendor`` of the API).
    :param product: product id, likewise (``device.model`` of the API).
    :param attach_handles: at least one; several only for types that are not cleaned.
    :param serial: the drive's own serial number, where it has one that tells it from others; None also when it could
        not be read.
    :param drive_model: the drive's own model text (NVMe ``mn``); None when it could not be read. Of a card that has no
        serial number: whatever tells it from another kind of card in the same slot.
    :param by_slot: its slot and its model identify it. A drive has no serial number then; a card's is only shown.
    :param layout: the namespaces of a drive and their formats; None: they were not read, from which nothing follows.
    :param name: what its provider is called after the host's name; None: by its address.
    :param traits: traits of the provider besides ``OWNER_CYBORG``.
    :param cleanup_action: the resolved action to lock in, for types that are cleaned.
    :param excluded: why policy keeps the device from being offered, or None.
    :param unreadable: why its identity could not be read this time (bound to vfio-pci, a failing
        tool), or None. Nothing may be inferred from what is then missing.
    :param exposed: who else than a guest of ours may write to it now, or None. A device that was
        available is not vouched for from then on. Said of a fact that was seen, never of a doubt.
    """

    pci_address: str
    device_type: str
    vendor: str
    product: str
    resource_class: str
    traits: Sequence[str]
    attach_handles: Sequence[AttachHandle]
    std_board_info: Mapping[str, Any] = field(default_factory=dict)
    vendor_board_info: str | None = None
    serial: str | None = None
    drive_model: str | None = None
    cleanup_action: str | None = None
    excluded: str | None = None
    unreadable: str | None = None
    exposed: str | None = None
    by_slot: bool = False
    layout: DriveLayout | None = None
    name: str | None = None


@dataclass(frozen=True)
class Inspected:
    """A PCI function that could be a device, and what the driver makes of it: for people, in words.

    :param address: of the device, in lower case.
    :param device: what stands there: ids, model.
    :param action: how it is erased between two guests, or that it is not; None: it is not offered, or not known.
    :param refused: why it is not offered; empty: it is.
    :param partly_refused: of a device that is offered, which virtual functions are not, and why.
    :param entry: which entry of the configuration matches it, and its text.
    :param why: why that action.
    :param rejected: which other actions there would be, and why they are not taken.
    :param estimate: how long the erase will take.
    :param quicker: which erase would be quicker, and how to have it; None: there is none.
    :param holders: who on this host uses it.
    :param iommu_group: the other functions of its IOMMU group, which a guest would get as well.
    :param handles: what guests would get, where that is not the function itself.
    :param discovered: the device that :meth:`Driver.discover` reports, if it does.
    """

    address: str
    device: str
    serial: str | None = None
    action: str | None = None
    refused: Sequence[str] = ()
    partly_refused: Sequence[str] = ()
    entry: str | None = None
    why: str | None = None
    rejected: Sequence[str] = ()
    estimate: Estimate | None = None
    quicker: str | None = None
    holders: Sequence[str] = ()
    iommu_group: Sequence[str] = ()
    handles: Sequence[str] = ()
    discovered: DiscoveredDevice | None = None


@dataclass(frozen=True)
class Sighting:
    """Something in a slot that is not to be taken on as a device, so that one on record there is not taken for missing.

    :param pci_address: as the device on record has it.
    :param unreadable: why no more is said of it.
    :param exposed: see :class:`DiscoveredDevice`.
    """

    pci_address: str
    unreadable: str
    exposed: str | None = None


class CleanableDevice(Protocol):
    """What ``cleanup`` may read of the device row."""

    @property
    def uuid(self) -> str: ...
    @property
    def pci_address(self) -> str: ...
    @property
    def serial(self) -> str | None: ...
    @property
    def drive_model(self) -> str | None: ...
    @property
    def cleanup_action(self) -> str | None: ...
    @property
    def layout(self) -> str | None: ...


@dataclass(frozen=True)
class CleanupControl:
    """The optional second argument of ``cleanup``.

    :param deadline: when ``cleanup_timeout`` will have passed.
    :param progress: called whenever there is news.
    :param tools: told of every external tool.
    :param returned: a guest had the device until now. Volumes on it that this host has activated are the guest's.
    """

    deadline: Deadline
    progress: ProgressSink
    tools: ToolSink
    returned: bool = False


RETURNS_UNCLEANED = "returns uncleaned"
"""The action of a type that is neither erased nor used only once: the next guest finds what the last one left."""

Evidence = Mapping[str, Any]
"""JSON-serialisable facts that prove the device clean; kept in the device's history.

``layout``, as :meth:`DriveLayout.fields` makes it, becomes the layout on record; without it, the next look records it.
"""


class Driver:
    """Base of all device drivers. One instance serves one agent.

    :param conf: the agent's configuration.
    :param paths: where this host's kernel interfaces are.
    """

    name: ClassVar[str]
    """The entry point's name, kept in ``deployable.driver_name``."""

    def __init__(self, conf: cfg.ConfigOpts, paths: HostPaths) -> None:
        self.conf = conf
        self.paths = paths

    def init_host(self) -> None:
        """Check what the driver needs from this host, once, before the first discovery.

        :raises AutoclaveError: the agent must not start.
        """

    def host_setup(self) -> Sequence[str]:
        """Return which settings of this host would hurt the driver's devices, each with what to do, in words."""
        return []

    def discover(self) -> Sequence[DiscoveredDevice | Sighting]:
        """Return the devices of this host that are the driver's; an empty list if there are none.

        A device that cannot be read is reported with ``unreadable``; it never hides the others. Where
        a slot has something that may be a known device, but no new one, a :class:`Sighting` says so.

        :raises InvalidConfiguration: its options cannot be used.
        """
        raise NotImplementedError

    def discover_at(self, address: str) -> DiscoveredDevice | Sighting | None:
        """Return what :meth:`discover` would report of the slot at *address*; None if that is nothing.

        A driver that can look at one slot alone does so.

        :raises InvalidConfiguration: its options cannot be used.
        """
        return next((found for found in self.discover() if found.pci_address == address), None)

    def inspect(self) -> Sequence[Inspected]:
        """Say of every function that could be the driver's what would become of it. Changes nothing.

        A driver that does not say more shows what it discovers.

        :raises InvalidConfiguration: its options cannot be used.
        :raises HardwareError: this host cannot be looked at.
        """
        return [
            Inspected(
                address=found.pci_address,
                device=f"{found.vendor}:{found.product} {found.drive_model or ''}".strip(),
                serial=found.serial,
                action=found.cleanup_action or RETURNS_UNCLEANED,
                refused=[why for why in (found.excluded, found.exposed, found.unreadable) if why],
                discovered=found,
            )
            for found in self.discover()
            if isinstance(found, DiscoveredDevice)
        ]

    def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:  # noqa: ARG002
        """Erase *device* with the action that was locked in, and return the evidence.

        Returning means: proved clean, and with the layout that is on record, if there is one. The agent moves the
        device's state; a driver never does.
        Types that need no cleaning inherit this, which does nothing.

        :raises HardwareError: the device is not proved clean.
        """
        return {}
