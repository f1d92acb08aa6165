"""Look at the PCI functions that flavors ask for, and at their users.

What ``[pci] device_spec`` means of a host's PCI functions at this moment.

Which guests of this host have a PCI function, as a conductor asks before it gives the function back.

PCI functions for flavors that their agent cannot look at: after a while they are not offered.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.conf.agent import allowed_host_devices
from autoclave.db import pci
from autoclave.db.pci import ProviderRecord
from autoclave.exceptions import HardwareError
from autoclave.hardware.block import hidden_program, programs_with_open
from autoclave.hardware.host import HostPaths
from autoclave.hardware.pci_functions import HostFunctions, card_serial
from autoclave.hardware.sysfs import pci_function, vfio_nodes
from autoclave.lifecycle.guests_seen import UNSEEN
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause, move
from autoclave.rules.burn import BurnEvent
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import (
    PCIProvider,
    all_matches,
    double_claims,
    matches,
    parse_pci_device_spec,
    translate,
)
from autoclave.virt.domains import Domains, domains_of

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """One look at the bus.

    :param providers: of what instances may get.
    :param unreadable: functions that are there and do not say what they are: why, by their addresses.
    :param unclear: functions of which the host does not say who uses them: why, by their addresses.
    """

    providers: tuple[PCIProvider, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    unclear: Mapping[str, str] = field(default_factory=dict)


class PCIBus:
    """Looks at the bus, by sysfs.

    :param paths: where the host's kernel interfaces are.
    :raises InvalidConfiguration: ``[pci] device_spec`` cannot be read.
    """

    def __init__(self, conf: cfg.ConfigOpts, paths: HostPaths) -> None:
        self._conf = conf
        self._paths = paths
        self._specs = parse_pci_device_spec(conf.pci.device_spec)
        self._told: dict[PCIAddress, str] = {}

    def look(self, taken: Mapping[PCIAddress, str]) -> Look:
        """Return the providers of what instances may get, and what could not be read.

        A function that must not be given away, and a slot whose entries contradict each other on this host, are left
        out, and logged once.

        :param taken: what device drivers have, and the name of the driver.
        :raises HardwareError: the bus cannot be listed.
        """
        if not self._specs:
            return Look()
        host = HostFunctions(self._paths)
        allowed = allowed_host_devices(self._conf)
        withheld = {address: str(fault) for address, fault in double_claims(host.functions, self._specs, taken).items()}
        meant = {match.function.address for match in all_matches(host.functions, self._specs)}
        for match in matches(host.functions, self._specs):
            address = match.function.address
            why = str(match.fault) if match.fault is not None else host.withheld(match, allowed, meant)
            if why is not None:
                withheld.setdefault(address, why)
        given = [function for function in host.functions if function.address not in withheld]
        translated = translate(given, self._specs)
        withheld |= {slot: str(fault) for slot, fault in translated.faults.items()}
        for address, why in withheld.items():
            if self._told.get(address) != why:
                LOG.error("%s is not offered: %s", address, why)
        self._told = withheld
        return Look(translated.providers, host.unreadable, host.unclear)

    def serials(self, providers: Sequence[PCIProvider]) -> Mapping[str, str]:
        """Return what tells the whole devices of this host from all others, by their addresses.

        It is made of the ids, the number of the function and the serial: all functions of a card may have one serial.
        What two devices have in common, and what cannot be read, is left out.
        """
        found: dict[str, str] = {}
        for provider in providers:
            it = provider.functions[0]
            if it.address != provider.address:
                continue  # virtual functions
            try:
                serial = card_serial(self._paths, it.address, vital_product_data=provider.one_time_use)
            except HardwareError as error:
                LOG.debug("The serial of %s is not known: %s", it.address, error)
                continue
            if serial is not None:
                found[str(it.address)] = f"{it.vendor_id}:{it.product_id}.{it.address.function} {serial}"
        count = Counter(found.values())
        return {address: serial for address, serial in found.items() if count[serial] == 1}


class FunctionUsers:
    """Looks for the users of PCI functions of one host.

    :param paths: where the host's kernel interfaces are.
    :param look: finds the host's guests; None: there is nothing to ask.
    """

    def __init__(self, paths: HostPaths, look: Callable[[HostPaths], Domains | None] = domains_of) -> None:
        self._paths = paths
        self._look = look

    def of(self, addresses: Sequence[str]) -> dict[str, list[str]]:
        """Return the users of each function in words, by its address; an empty list: no guest has it.

        A guest that is off counts: it gets the function when it is started. So does a program that has the function
        open through VFIO, for a guest that this libvirt does not know. A function that cannot be looked at counts as
        used.

        :raises HardwareError: the guests of this host cannot be listed, so that nothing is known.
        """
        try:
            domains = self._look(self._paths)
            known = None if domains is None else _by_function(domains)
        except HardwareError as error:
            # Of one class for every kind of failure, which any conductor can read.
            raise HardwareError(f"the guests cannot be listed: {error}") from error
        if known is None:
            raise HardwareError("the guests cannot be listed: there is no virsh; install libvirt-clients")
        return {address: [*known.get(address, ()), *self._seen(address)] for address in addresses}

    def _seen(self, address: str) -> list[str]:
        try:
            function = PCIAddress.parse(address)
            pci_function(self._paths, function)
            nodes = vfio_nodes(self._paths, function)
            programs = programs_with_open(self._paths, nodes) if nodes else []
            if nodes and not programs and (hidden := hidden_program(self._paths)) is not None:
                raise HardwareError(f"the open files of process {hidden} are not shown without CAP_SYS_PTRACE")
        except (HardwareError, ValueError) as error:
            return [f"{UNSEEN}: {error}"]
        return [f"{program.node} is open by {program}" for program in programs]


def _by_function(domains: Domains) -> Mapping[str, Sequence[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for domain in domains.all():
        for function in domain.functions:
            state = "runs" if domain.running else "is off"
            found[str(function)].append(f"domain {domain.name} ({domain.uuid}), which {state}")
    return found


class UnreadableFunctions:
    """Records why providers are not to be offered until their functions can be read again.

    Nothing else follows from that. What is burned stays burned, what an instance has stays with it, and what others
    have reserved in Placement stays reserved.

    :param patience: seconds for which a function may be one that cannot be looked at, as with devices.
    """

    def __init__(self, ports: Ports, host: str, patience: float) -> None:
        self._ports = ports
        self._host = host
        self._patience = timedelta(seconds=patience)
        self._since: dict[str, datetime] = {}
        """When a provider, by its uuid, was first one of which a function could not be looked at."""

    def note(self, look: Look) -> None:
        """Record what one look at the bus has not shown.

        :raises DatabaseUnavailable: nothing could be read or written.
        """
        for row, addresses in self._rows():
            if (why := _first(look.unclear, row, addresses)) is not None:
                self._since.setdefault(row.uuid, self._ports.clock())
                self._write(row, why)
            else:
                self._judge(row, _first(look.unreadable, row, addresses))

    def note_blind(self, why: str) -> None:
        """Record that the bus could not be listed.

        :raises DatabaseUnavailable: nothing could be read or written.
        """
        for row, _ in self._rows():
            self._judge(row, why)

    def _rows(self) -> list[tuple[ProviderRecord, set[str]]]:
        with self._ports.db.read() as tx:
            rows = pci.providers(tx, self._host)
            functions = pci.functions(tx, self._host)
        addresses: defaultdict[int, set[str]] = defaultdict(set)
        for each in functions:
            addresses[each.provider_id].add(each.address)
        return [(row, addresses[row.id]) for row in rows]

    def _judge(self, row: ProviderRecord, why: str | None) -> None:
        if why is None:
            self._since.pop(row.uuid, None)
            self._write(row, None)
            return
        now = self._ports.clock()
        since = self._since.setdefault(row.uuid, now)
        # What is withheld already stays so without a patience; its reason may change.
        if row.unreadable_reason is not None or now - since >= self._patience:
            self._write(row, why)

    def _write(self, row: ProviderRecord, why: str | None) -> None:
        """Write the reason if it is news. If the row has moved on, the next period does it."""
        if why == row.unreadable_reason:
            return
        cause = Cause(Actor.AGENT, self._host, reason=why or "its agent can tell again what is in the slot")
        event = BurnEvent.READABLE if why is None else BurnEvent.UNREADABLE
        values = {"unreadable_reason": why}
        if why is not None and row.unreadable_reason is not None:
            self._ports.db.transact(lambda tx: pci.describe(tx, row, values))
        elif self._ports.db.transact(lambda tx: move(tx, row, event, cause, values)):
            if why is None:
                LOG.info("%s of %s can be read again.", row.address, self._host)
            else:
                LOG.warning("%s of %s is not offered until it can be read: %s", row.address, self._host, why)


def _first(reasons: Mapping[str, str], row: ProviderRecord, addresses: Collection[str]) -> str | None:
    """Return why the first function of a provider, in the order of addresses, could not be read; None: all could."""
    for address in sorted({row.address, *addresses}):
        if (why := reasons.get(address)) is not None:
            return why if address == row.address else f"{address}: {why}"
    return None
