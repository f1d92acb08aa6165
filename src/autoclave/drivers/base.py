"""Define the interface of a device driver, and its reports.

The class follows ``GenericDriver`` of the NVMe specification: ``init_host()``, ``discover()`` and ``cleanup(device)``.
The first and the last do nothing unless overridden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.hardware.erase.work import Estimate
from autoclave.hardware.host import Deadline, HostPaths, Progress, ProgressSink, ToolSink
from autoclave.rules.drive_layout import DriveLayout
from autoclave.rules.reclaim import RETURNS_UNCLEANED, Reclaim, RequestedBy, policy_of
from autoclave.rules.resource_names import is_managed

__all__ = [
    "RETURNS_UNCLEANED",
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


LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttachHandle:
    """Describe one way to attach a device to a guest.

    :param attach_type: ``PCI``, ``MDEV`` or ``TEST_PCI``.
    :param attach_info: for PCI: domain, bus, device, function as hexadecimal strings, and ``managed`` if it was
        configured (managed-mode specification).
    :param identity: stays the same when attach_info changes; for PCI the full address.
    :raises ValueError: ``managed`` is neither true nor false.
    """

    attach_type: str
    attach_info: Mapping[str, Any]
    identity: str

    def __post_init__(self) -> None:
        if self.attach_type == "PCI":
            is_managed(self.attach_info)


@dataclass(frozen=True)
class DiscoveredDevice:
    """Describe the device that a driver found in one slot.

    :param pci_address: the full address in lower case; together with the host it identifies the device.
    :param vendor: vendor id, four lower-case hexadecimal digits (``device.vendor`` of the API).
    :param product: product id, four lower-case hexadecimal digits (``device.model`` of the API).
    :param attach_handles: at least one; several only for types that are not cleaned.
    :param serial: the drive's serial number, if it is distinctive and readable, or None.
    :param drive_model: the drive's model text (NVMe ``mn``); None if unreadable. For a card without a serial number, a
        text that distinguishes it from another kind of card in the same slot.
    :param by_slot: its slot and its model identify it. Then a drive has no serial number here, and a card's is only
        shown.
    :param layout: the namespaces of a drive and their formats; None if they were not read, which proves nothing.
    :param name: the suffix of its provider's name; None for its address.
    :param traits: traits of the provider in addition to ``OWNER_CYBORG``.
    :param cleanup_action: the resolved action to lock in, for types that are cleaned.
    :param excluded: why policy keeps the device from being offered, or None.
    :param unreadable: why its identity could not be read this time (bound to vfio-pci, a failing tool), or None.
        Missing fields prove nothing then.
    :param exposed: what else, other than a guest of Autoclave, may write to it now, or None. An available device
        becomes suspect. It is set only for an observed fact, never for a doubt.
    :param requested_by: how instances ask for it.
    :param policy: its reclaim policy; None for that of its type: a drive is erased, another device is not.
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
    requested_by: RequestedBy = RequestedBy.PROFILE
    policy: Reclaim | None = None

    @property
    def reclaim(self) -> Reclaim:
        """Return its reclaim policy."""
        return self.policy or policy_of(self.device_type)


@dataclass(frozen=True)
class Inspected:
    """Describe a PCI function that could be a device, and the driver's decision, for operators.

    :param address: the address of the device, in lower case.
    :param device: its ids and model.
    :param action: how it is erased between two guests, or that it is not; None if it is not offered, or unknown.
    :param refused: why it is not offered; empty if it is.
    :param partly_refused: for a device that is offered, the virtual functions that are not, with the reasons.
    :param entry: the matching entry of the configuration, and its text.
    :param why: why that action was selected.
    :param rejected: the other actions, with the reasons against them.
    :param estimate: the estimated duration of the erase.
    :param quicker: a quicker erase and how to select it, or None.
    :param holders: its users on this host.
    :param iommu_group: the other functions of its IOMMU group, which a guest would get as well.
    :param handles: the functions that guests would get, if not the function itself.
    :param discovered: the device that :meth:`Driver.discover` reports, if any.
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
    """Report an unidentified device, so that a known device in its slot does not become missing.

    :param pci_address: the address, as on record.
    :param unreadable: why it is not identified.
    :param exposed: see :class:`DiscoveredDevice`.
    """

    pci_address: str
    unreadable: str
    exposed: str | None = None


class CleanableDevice(Protocol):
    """Define the fields of the device row that ``cleanup`` may read."""

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
    """Control a cleanup: the optional second argument of ``cleanup``.

    :param deadline: the end of ``cleanup_timeout``.
    :param progress: called whenever the progress changes.
    :param tools: notified of every external tool.
    :param returned: a guest had the device until now. Volumes on it that this host has activated are the guest's.
    """

    deadline: Deadline
    progress: ProgressSink
    tools: ToolSink
    returned: bool = False


Evidence = Mapping[str, Any]
"""JSON-serialisable facts that prove the device clean; recorded in the device's history.

``layout``, as returned by :meth:`DriveLayout.fields`, becomes the recorded layout. Without it, the next inspection
records the layout.
"""


class Driver:
    """Provide the base of all device drivers. One instance serves one agent.

    :param conf: the agent's configuration.
    :param paths: the roots of this host's kernel interfaces.
    """

    name: ClassVar[str]
    """The entry point's name, recorded in ``deployable.driver_name``."""

    def __init__(self, conf: cfg.ConfigOpts, paths: HostPaths) -> None:
        self.conf = conf
        self.paths = paths

    def init_host(self) -> None:
        """Verify the driver's requirements on this host, once, before the first discovery.

        :raises AutoclaveError: the agent must not start.
        """

    def host_setup(self) -> Sequence[str]:
        """Return the settings of this host that would harm the driver's devices, each with its remedy."""
        return []

    def discover(self) -> Sequence[DiscoveredDevice | Sighting]:
        """Return the driver's devices on this host; an empty list if there are none.

        A device that cannot be read is reported with ``unreadable``, and never hides the others. A :class:`Sighting`
        reports a slot with an unidentified device, which may be a known one but is not registered.

        :raises InvalidConfiguration: its options cannot be used.
        """
        raise NotImplementedError

    def discover_at(self, address: str) -> DiscoveredDevice | Sighting | None:
        """Return the report of :meth:`discover` for the slot at *address*, or None.

        Override it in a driver that can read one slot alone.

        :raises InvalidConfiguration: its options cannot be used.
        """
        return next((found for found in self.discover() if found.pci_address == address), None)

    def inspect(self) -> Sequence[Inspected]:
        """Describe the decision for every function that could be the driver's. Change nothing.

        By default, it shows the discovered devices.

        :raises InvalidConfiguration: its options cannot be used.
        :raises HardwareError: this host cannot be read.
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
        """Erase *device* by its locked-in action, and return the evidence.

        After the return, the device is proved clean, with its recorded layout, if any. The agent changes the device's
        state; a driver never does. Types that need no cleaning inherit this method, which does nothing.

        :raises HardwareError: the device is not proved clean.
        """
        return {}

    def own_control(self) -> CleanupControl:
        """Return a control for an unmonitored cleanup, with ``[nvme] cleanup_timeout`` from now on."""
        return CleanupControl(Deadline.after(self.conf.nvme.cleanup_timeout), _Unwatched.progress, _Unwatched())


class _Unwatched:
    """Log the reports of an unmonitored cleanup."""

    @staticmethod
    def progress(progress: Progress) -> None:
        LOG.debug("%s", progress)

    def started(self, pid: int, argv: Sequence[str]) -> None:
        LOG.debug("%s runs as process %d", argv[0], pid)

    def ended(self, pid: int) -> None:
        LOG.debug("process %d has ended", pid)
