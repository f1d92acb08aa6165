"""Which guests of this host have a PCI function, as a conductor asks before it gives the function back."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from autoclave.exceptions import HardwareError
from autoclave.hardware.block import hidden_program, programs_with_open
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import pci_function, vfio_nodes
from autoclave.lifecycle.guests_seen import UNSEEN
from autoclave.rules.pci_address import PCIAddress
from autoclave.virt.domains import Domains, domains_of


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
