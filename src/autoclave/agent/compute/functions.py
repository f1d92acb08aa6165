"""Look at the PCI functions that flavors ask for, and at their users.

The functions are translated by ``[pci] device_spec``. A conductor asks for their users before it gives a function back.
Functions that stay unreadable are no longer offered.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from oslo_config import cfg
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.conf.agent import allowed_host_devices
from autoclave.db import devices as device_rows
from autoclave.db import pci
from autoclave.db.pci import ProviderRecord
from autoclave.exceptions import HardwareError
from autoclave.hardware.block import hidden_program, programs_with_open
from autoclave.hardware.host import HostPaths
from autoclave.hardware.pci_functions import HostFunctions, card_serial
from autoclave.hardware.sysfs import pci_function, vfio_nodes
from autoclave.lifecycle.guests_seen import UNSEEN
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause, remark
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import (
    FUNCTIONS_DRIVER,
    PCIProvider,
    all_matches,
    double_claims,
    matches,
    parse_pci_device_spec,
    translate,
)
from autoclave.rules.reclaim import Reclaim
from autoclave.virt.domains import Domains, domains_of

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """Hold the result of one inspection of the PCI bus.

    :param providers: providers of the functions that instances may get.
    :param unreadable: reasons by address for functions that are present but cannot be read.
    :param unclear: reasons by address for functions whose users the host does not report.
    """

    providers: tuple[PCIProvider, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    unclear: Mapping[str, str] = field(default_factory=dict)


class PCIBus:
    """Inspect the PCI bus through sysfs.

    :param paths: paths of the host's kernel interfaces.
    :raises InvalidConfiguration: ``[pci] device_spec`` cannot be read.
    """

    def __init__(self, conf: cfg.ConfigOpts, paths: HostPaths) -> None:
        self._conf = conf
        self._paths = paths
        self._specs = parse_pci_device_spec(conf.pci.device_spec)
        self._told: dict[PCIAddress, str] = {}

    def look(self, taken: Mapping[PCIAddress, str]) -> Look:
        """Return the providers of the functions that instances may get, and the functions that could not be read.

        Functions that must not be assigned are skipped, as are slots with contradictory entries. Each is logged once.

        :param taken: names of device drivers by the address of their functions.
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
        """Return a unique identifier of each whole device of this host, by address.

        It consists of ids, function number and serial number, because all functions of a card may share a serial
        number. Devices whose identifier is ambiguous or unreadable are skipped.
        """
        found: dict[str, str] = {}
        for provider in providers:
            it = provider.functions[0]
            if it.address != provider.address:
                continue  # virtual functions
            try:
                serial = card_serial(self._paths, it.address, vital_product_data=provider.reclaim is Reclaim.HOLD)
            except HardwareError as error:
                LOG.debug("The serial of %s is not known: %s", it.address, error)
                continue
            if serial is not None:
                found[str(it.address)] = f"{it.vendor_id}:{it.product_id}.{it.address.function} {serial}"
        count = Counter(found.values())
        return {address: serial for address, serial in found.items() if count[serial] == 1}


class FunctionUsers:
    """Find the users of PCI functions of one host.

    :param paths: paths of the host's kernel interfaces.
    :param look: returns the host's guests; its result is None if there is no hypervisor.
    """

    def __init__(self, paths: HostPaths, look: Callable[[HostPaths], Domains | None] = domains_of) -> None:
        self._paths = paths
        self._look = look

    def of(self, addresses: Sequence[str]) -> dict[str, list[str]]:
        """Return descriptions of the users of each function, by address; an empty list if it has none.

        A guest that is off counts, because it gets the function at its next start. A program that has the function open
        through VFIO also counts: its guest may be unknown to libvirt. A function that cannot be inspected counts as
        used.

        :raises HardwareError: the guests of this host cannot be listed, so all users are unknown.
        """
        try:
            domains = self._look(self._paths)
            known = None if domains is None else _by_function(domains)
        except HardwareError as error:
            # One class for every failure, which a conductor of any release can decode.
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
    """Record why providers must not be offered until their functions can be read again.

    This changes nothing else: burns, assigned functions, and reservations of other writers stay.

    :param patience: seconds for which a function may be unreadable.
    """

    def __init__(self, ports: Ports, host: str, patience: float) -> None:
        self._ports = ports
        self._host = host
        self._patience = timedelta(seconds=patience)
        self._since: dict[str, datetime] = {}
        """Time since when a function of a provider has been unreadable, by provider uuid."""

    def note(self, look: Look) -> None:
        """Record what one inspection of the bus could not read.

        :raises DatabaseUnavailable: the database cannot be read or written.
        """
        for row, addresses in self._rows():
            if (why := _first(look.unclear, row, addresses)) is not None:
                self._since.setdefault(row.uuid, self._ports.clock())
                self._write(row, why)
            else:
                self._judge(row, _first(look.unreadable, row, addresses))

    def note_blind(self, why: str) -> None:
        """Record that the bus could not be listed.

        :raises DatabaseUnavailable: the database cannot be read or written.
        """
        for row, _ in self._rows():
            self._judge(row, why)

    def _rows(self) -> list[tuple[ProviderRecord, set[str]]]:
        with self._ports.db.read() as tx:
            rows = pci.providers(tx, self._host, driver=FUNCTIONS_DRIVER)
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
        # A provider that is withheld stays so without further patience; only its reason may change.
        if row.device.unreadable_reason is not None or now - since >= self._patience:
            self._write(row, why)

    def _write(self, row: ProviderRecord, why: str | None) -> None:
        """Write the reason if it has changed. If the row has changed, the next period retries."""
        known = row.device.unreadable_reason
        if why == known:
            return
        cause = Cause(Actor.AGENT, self._host, reason=why or "it was read again")

        def write(tx: Connection) -> bool:
            device = device_rows.get_by_id(tx, row.id, lock=True)
            if device is None or device.state_version != row.device.state_version:
                return False
            values = {"unreadable_reason": why}
            if why is not None and known is not None:
                device_rows.update(tx, device, values)
            else:
                remark(tx, device, "readable" if why is None else "unreadable", cause, values)
            return True

        if not self._ports.db.transact(write) or (why is not None and known is not None):
            return
        if why is None:
            LOG.info("%s of %s can be read again.", row.address, self._host)
        else:
            LOG.warning("%s of %s is not offered until it can be read: %s", row.address, self._host, why)


def _first(reasons: Mapping[str, str], row: ProviderRecord, addresses: Collection[str]) -> str | None:
    """Return why the first unreadable function of a provider, by address, cannot be read; None if all can."""
    for address in sorted({row.address, *addresses}):
        if (why := reasons.get(address)) is not None:
            return why if address == row.address else f"{address}: {why}"
    return None
