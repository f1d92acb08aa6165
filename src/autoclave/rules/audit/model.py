"""Define findings, and the facts that an audit compares.

Each fact comes from its authority: the database, Placement, the host, or libvirt.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from autoclave.rules.audit.kinds import Kind, Severity
from autoclave.rules.device_lifecycle import ARQState, Offer, Reserving, must_be_reserved
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import provider_name, split_provider_name


class Finding(NamedTuple):
    """Describe one finding.

    :param subject: the slot or the host that it concerns.
    :param seen: the observed values and their source.
    :param remedy: what to do, with all names filled in.
    :param device: uuid of the device, or of the root provider for findings about instances of a host.
    :param about: distinguishes findings of one kind at the same subject, such as by a consumer.
    :param version: the version of the row when it was found.
    """

    kind: Kind
    subject: str
    seen: str
    remedy: str
    device: str | None = None
    about: str = ""
    version: tuple[int, int] | None = None

    @property
    def counts(self) -> bool:
        """Return whether it is a disagreement, not just information."""
        return self.kind.severity is not Severity.INFO

    @property
    def identity(self) -> tuple[Any, ...]:
        """Return a value that is equal for the same finding of two audits."""
        return self.kind, self.subject, self.about, self.version


Drive = tuple[str, str]
"""Serial number and model of a drive; an unknown model is empty."""


class Stock(NamedTuple):
    """Hold the inventory of one resource class, with the fields of Placement."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class Wanted(NamedTuple):
    """Describe a provider as the database requires it.

    :param traits: all required traits, including the owner's.
    :param whole: its inventory, with nothing reserved.
    """

    uuid: str
    name: str
    resource_class: str
    traits: frozenset[str]
    whole: Stock


class Hold(NamedTuple):
    """Describe an active accelerator request.

    :param overdue: seconds since its lease expired; 0 for a running lease or none.
    :param linked: it has the device already. Otherwise it names the device's provider and will claim it.
    """

    arq: str
    state: ARQState
    instance: str | None
    overdue: float
    linked: bool


class Row(NamedTuple):
    """Describe a device as recorded in the database.

    :param cleaned: its type is erased after each instance.
    :param version: changes with its state and its pending writes.
    :param owes_offer: ``reserved`` is to be lowered (``release_pending``).
    :param found: the drive in its slot that waits for the operator's acceptance: another drive, or its own after an
        absence.
    :param known_dirty: its drive is in the ledger of dirty drives.
    :param rewritten: another service has written its provider, and no operator has handled that yet.
    :param claimed_by: instances that have it by their flavors.
    """

    uuid: str
    host: str
    address: str
    version: tuple[int, int]
    offer: Offer
    cleaned: bool
    owes_offer: bool
    drive: Drive | None
    found: Drive | None
    known_dirty: bool
    reasons: Mapping[str, str | None]
    """The reasons for its state, hold and exclusion, by the keys ``state``, ``held``, ``excluded`` and ``unreadable``.
    """
    holds: tuple[Hold, ...]
    wanted: tuple[Wanted, ...]
    rewritten: bool = False
    claimed_by: frozenset[str] = frozenset()

    @property
    def slot(self) -> str:
        """Return the form that the commands of ``autoclave device`` accept."""
        return f"{self.host}/{self.address}"

    @property
    def in_slot(self) -> bool:
        """Return whether it is a PCI function of its host. The fake driver's device is none, and has no address."""
        return all(split_provider_name(each.name) for each in self.wanted)

    @property
    def handles(self) -> int:
        """Return the number of guests that may share it."""
        return sum(each.whole.total for each in self.wanted)


class Lent(NamedTuple):
    """Describe a device that flavors ask for, with its provider, as recorded in the database.

    :param uuid: of the resource provider.
    :param device: uuid of the device.
    :param version: changes with its state.
    :param total: the number of functions published to Placement.
    :param functions: the addresses of all functions, including those that the host no longer has.
    :param claims: the instance by the address of each claimed function.
    :param unreadable: why its agent could not read it for too long, or None.
    """

    uuid: str
    device: str
    host: str
    address: str
    version: tuple[int, int]
    reserving: Reserving
    reclaim: Reclaim
    resource_class: str
    total: int
    functions: frozenset[str]
    claims: Mapping[str, str]
    unreadable: str | None = None

    @property
    def must_be_reserved(self) -> bool:
        """Return whether ``reserved`` must equal ``total``."""
        return must_be_reserved(self.reserving.offer)

    @property
    def slot(self) -> str:
        """Return the form that the commands accept."""
        return f"{self.host}/{self.address}"

    @property
    def name(self) -> str:
        """Return its name in Placement."""
        return provider_name(self.host, PCIAddress.parse(self.address))


class Root(NamedTuple):
    """Describe the root provider of a host that runs instances, as reported by the host's agent."""

    uuid: str
    host: str

    @property
    def name(self) -> str:
        """Return its name in Placement."""
        return self.host


class Instance(NamedTuple):
    """Describe an instance as recorded in the database.

    :param version: changes with the state of the instance.
    :param settled: no service builds or deletes it, so its resources should match its row.
    :param launched: its guest has run once, so it received all its resources.
    :param asked: the amounts that its flavor requests of the host itself, by resource class.
    """

    uuid: str
    host: str | None
    version: tuple[int, int]
    settled: bool
    launched: bool
    asked: Mapping[str, int]
    project_id: str
    user_id: str


class Found(NamedTuple):
    """Describe a provider as recorded in Placement.

    :param consumers: the amounts that each consumer holds of it, by resource class.
    """

    uuid: str
    name: str
    parent: str | None
    traits: frozenset[str]
    stocks: Mapping[str, Stock]
    consumers: Mapping[str, Mapping[str, int]]

    def used(self, resource_class: str) -> int:
        """Return the allocated amount of one class."""
        return sum(held.get(resource_class, 0) for held in self.consumers.values())

    def offers(self, resource_class: str) -> bool:
        """Return whether Placement would allocate a unit of the class."""
        stock = self.stocks.get(resource_class)
        if stock is None:
            return False
        return (stock.total - stock.reserved) * stock.allocation_ratio - self.used(resource_class) > 0


class Agent(NamedTuple):
    """Describe the agent of a host with devices, as recorded in the database.

    :param silent: seconds since it was last seen; None if it never was.
    """

    host: str
    silent: float | None


class Slot(NamedTuple):
    """Describe a slot as its host shows it.

    :param driver: the kernel driver of the function, or None.
    :param drive: the drive as the kernel's nvme driver reports it; None without that driver.
    :param users: its users on the host; only determined if it could be offered.
    :param other_paths: other paths to the same media.
    """

    present: bool
    driver: str | None
    drive: Drive | None
    users: tuple[str, ...]
    other_paths: tuple[str, ...]


class Guest(NamedTuple):
    """Describe a libvirt domain to which the function is attached."""

    uuid: str
    name: str
    running: bool
