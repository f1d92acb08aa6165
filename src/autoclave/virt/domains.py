"""List the PCI functions that libvirt has attached to the guests of a host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from xml.etree import ElementTree

from autoclave.exceptions import ToolFailed, ToolGarbage, ToolMissing
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Deadline, HostPaths
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.plain_text import excerpt
from autoclave.simulator.guests import Guests
from autoclave.simulator.host import SimulatedHost

_CONNECTION = ("virsh", "--readonly", "--connect", "qemu:///system")
_PATIENCE = 30.0
"""Seconds for one answer of libvirt."""


@dataclass(frozen=True)
class Domain:
    """Describe a guest.

    :param uuid: libvirt's, which equals the instance's in Nova.
    :param functions: the attached PCI functions of the host, whether it runs or not. For a running guest, they include
        those of its next start.
    """

    uuid: str
    name: str
    running: bool
    functions: frozenset[PCIAddress]


class Domains(Protocol):
    """List the guests of one host."""

    def all(self) -> Sequence[Domain]:
        """Return every guest that is defined or running.

        :raises HardwareError: libvirt did not answer, or its answer is invalid.
        """


class SimulatedDomains:
    """List the guests of a simulated host from the XML that libvirt would get."""

    def __init__(self, host: SimulatedHost) -> None:
        self._guests = Guests(host)

    def all(self) -> Sequence[Domain]:
        """Implement :meth:`Domains.all`."""
        return [_read(each.uuid, each.xml, each.running) for each in self._guests.all().values()]


class Virsh:
    """List the guests of the system's libvirt by virsh, through its read-only socket.

    :param commands: runs virsh as this process's user.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    @classmethod
    def of(cls, paths: HostPaths) -> "Virsh | None":
        """Return the instance for the host, or None without virsh."""
        commands = Commands(replace(paths, helper=None))
        try:
            commands.find("virsh")
        except ToolMissing:
            return None
        return cls(commands)

    def all(self) -> Sequence[Domain]:
        """Implement :meth:`Domains.all`."""
        running = set(self._ask("list", "--uuid").split())
        return list(self._domains(self._ask("list", "--all", "--uuid").split(), running))

    def _domains(self, uuids: Sequence[str], running: set[str]) -> Iterator[Domain]:
        for uuid in uuids:
            try:
                descriptions = [self._ask("dumpxml", uuid)]
                if uuid in running:
                    descriptions.append(self._ask("dumpxml", "--inactive", uuid))
            except ToolFailed:
                if uuid in self._ask("list", "--all", "--uuid").split():
                    raise
                continue  # it has ended in the meantime
            now, *later = [_read(uuid, description, uuid in running) for description in descriptions]
            yield replace(now, functions=now.functions.union(*(each.functions for each in later)))

    def _ask(self, *arguments: str) -> str:
        argv = (*_CONNECTION, *arguments)
        answer = self._commands.run(argv, deadline=Deadline.after(_PATIENCE))
        if answer.returncode != 0:
            said = excerpt(answer.stderr) or excerpt(answer.stdout) or f"exit code {answer.returncode}"
            raise ToolFailed(f"virsh {' '.join(arguments)} failed: {said}", argv, answer.returncode)
        return answer.stdout


def domains_of(paths: HostPaths) -> Domains | None:
    """Return the guests of the host, simulated or real; None without virsh."""
    simulated = SimulatedHost.of_nodes(paths.dev)
    return Virsh.of(paths) if simulated is None else SimulatedDomains(simulated)


def _read(uuid: str, description: str, running: bool) -> Domain:
    try:
        root = ElementTree.fromstring(description)  # noqa: S314 - the host's own libvirt wrote it
        # The source address of a hostdev, an interface of type hostdev, or a disk of type nvme is a PCI slot.
        sources = [each for each in root.iterfind("./devices/*/source/address") if "slot" in each.attrib]
        functions = frozenset(_function(source) for source in sources)
    except (ElementTree.ParseError, ValueError, KeyError) as error:
        raise ToolGarbage(f"the description of domain {uuid} by virsh cannot be parsed: {error}", ["virsh"]) from error
    return Domain(uuid, root.findtext("name", ""), running, functions)


def _function(source: ElementTree.Element) -> PCIAddress:
    return PCIAddress(*(int(source.attrib[name], 16) for name in ("domain", "bus", "slot", "function")))
