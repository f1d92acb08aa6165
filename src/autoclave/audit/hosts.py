"""A host, as an audit takes it down. Nothing is asked of a drive, and none is opened that a worker may want."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from autoclave.exceptions import DeviceVanished, DriverMismatch, HardwareError
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.sysfs import pci_function
from autoclave.hardware.usage import holders
from autoclave.rules.audit.devices import about, of_guests, of_slot
from autoclave.rules.audit.instances import of_lent_guests
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding, Guest, Lent, Row, Slot
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.pci_address import PCIAddress
from autoclave.virt.domains import Domains


class HostView:
    """One look after the other at one host.

    :param allowed: devices that may be offered although the host uses them (``[agent] allow_host_device``).
    :param domains: its guests; None: there is no libvirt to ask.
    """

    def __init__(self, name: str, paths: HostPaths, allowed: frozenset[PCIAddress], domains: Domains | None) -> None:
        self.name = name
        self._paths = paths
        self._allowed = allowed
        self._domains = domains

    def guests(self) -> Mapping[str, Sequence[Guest]] | None:
        """Its guests, by the address of each function that they have been given; None: there is nobody to ask.

        :raises HardwareError: whoever is to be asked does not answer.
        """
        return None if self._domains is None else _guests(self._domains)

    def compare(self, rows: Sequence[Row], lent: Sequence[Lent]) -> Iterator[Finding]:
        """What of the host disagrees with *rows* and *lent*, which are its own. What cannot be read is a finding."""
        guests: Mapping[str, Sequence[Guest]] | None = {}
        try:
            guests = self.guests()
        except HardwareError as error:
            kind = Kind.LIBVIRT_UNREADABLE
            yield Finding(kind, self.name, str(error), kind.remedy.format(host=self.name))
        if guests is None:
            kind = Kind.LIBVIRT_NOT_LOOKED_AT
            yield Finding(kind, self.name, "its libvirt was not looked at", kind.remedy)
            guests = {}
        for each in lent:
            yield from of_lent_guests(each, guests)
        for row in rows:
            yield from of_guests(row, guests.get(row.address, ()))
            try:
                yield from of_slot(row, self._slot(row))
            except HardwareError as error:
                yield about(Kind.HOST_UNREADABLE, row, str(error))

    def _slot(self, row: Row) -> Slot:
        address = PCIAddress.parse(row.address)
        try:
            function = pci_function(self._paths, address)
        except DeviceVanished:
            return Slot(False, None, None, (), ())
        if not row.cleaned:
            return Slot(True, function.driver, None, (), ())
        try:
            controller = controller_at(self._paths, address)
        except DriverMismatch as error:
            return Slot(True, error.driver, None, (), ())
        users: tuple[str, ...] = ()
        if row.offer.device_state is DeviceState.AVAILABLE and address not in self._allowed:
            users = tuple(holders(self._paths, controller))
        drive = (controller.serial, controller.model)
        return Slot(True, function.driver, drive, users, controller.other_paths)


def _guests(domains: Domains) -> Mapping[str, Sequence[Guest]]:
    found: defaultdict[str, list[Guest]] = defaultdict(list)
    for domain in domains.all():
        for function in domain.functions:
            found[str(function)].append(Guest(domain.uuid, domain.name, domain.running))
    return found
