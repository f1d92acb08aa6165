"""Define findings, and the facts that an audit compares.

What an audit finds: a kind of disagreement, where, and what to do about it.

What an audit was told, each thing by the one who knows it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from autoclave.rules.audit.kinds import Kind, Severity
from autoclave.rules.burn import BurnFacts
from autoclave.rules.device_lifecycle import ARQState, Offer
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import provider_name, split_provider_name


class Finding(NamedTuple):
    """Something that was found.

    :param subject: the slot or the host that it is about.
    :param seen: what was seen where.
    :param remedy: what to do, with all names filled in.
    :param device: uuid of the device, if it is one's; of the root provider, if it is about instances of a host.
    :param about: what tells it from others of its kind at the same subject, such as a consumer.
    :param version: of the device's row when it was found.
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
        """Whether it is a disagreement, and no mere information."""
        return self.kind.severity is not Severity.INFO

    @property
    def identity(self) -> tuple[Any, ...]:
        """The same for two looks that found the same thing."""
        return self.kind, self.subject, self.about, self.version


Drive = tuple[str, str]
"""Serial number and model of a drive; the model is empty where none is known."""


class Stock(NamedTuple):
    """The inventory of one resource class, field by field as Placement has it."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class Wanted(NamedTuple):
    """A provider as the database demands it.

    :param traits: all that it must have, the owner's included.
    :param whole: its inventory, with nothing reserved.
    """

    uuid: str
    name: str
    resource_class: str
    traits: frozenset[str]
    whole: Stock


class Hold(NamedTuple):
    """An active accelerator request.

    :param overdue: seconds that its lease has been over; 0 for one that runs, or none.
    :param linked: it has the device already; else it names the device's provider and is about to claim it.
    """

    arq: str
    state: ARQState
    instance: str | None
    overdue: float
    linked: bool


class Row(NamedTuple):
    """A device as the database has it.

    :param cleaned: its type is erased after each instance.
    :param version: moves with every change of its state, or of what it owes.
    :param owes_offer: ``reserved`` is to be lowered (``release_pending``).
    :param found: another drive that was seen in its slot, or its own after it was away, and that waits to be accepted.
    :param known_dirty: its drive is in the ledger of dirty drives.
    :param rewritten: another service has written its provider, and no operator has seen to that since.
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
    """Why it is in its state, held, or excluded, by those words."""
    holds: tuple[Hold, ...]
    wanted: tuple[Wanted, ...]
    rewritten: bool = False

    @property
    def slot(self) -> str:
        """As the commands of ``autoclave device`` take it."""
        return f"{self.host}/{self.address}"

    @property
    def in_slot(self) -> bool:
        """Whether it is a PCI function of its host: the fake driver's device is none, and no address names it."""
        return all(split_provider_name(each.name) for each in self.wanted)

    @property
    def handles(self) -> int:
        """How many guests may have a part of it at once."""
        return sum(each.whole.total for each in self.wanted)


class Lent(NamedTuple):
    """A provider of PCI functions that instances get by flavor, as the database has it.

    :param version: moves with every change of its burn.
    :param total: how many functions Placement is told of.
    :param functions: the addresses of all of them; also of those that the host has no more.
    :param claims: the instance that has it, by the address of each function that one has.
    :param unreadable: why its agent could not look at it for too long; None: it can.
    """

    uuid: str
    host: str
    address: str
    version: tuple[int, int]
    facts: BurnFacts
    resource_class: str
    total: int
    functions: frozenset[str]
    claims: Mapping[str, str]
    unreadable: str | None = None

    @property
    def slot(self) -> str:
        """As the commands of ``autoclave burned`` take it."""
        return f"{self.host}/{self.address}"

    @property
    def name(self) -> str:
        """As Placement has it."""
        return provider_name(self.host, PCIAddress.parse(self.address))


class Root(NamedTuple):
    """The root provider of a host that runs instances, as the host's agent has told it."""

    uuid: str
    host: str

    @property
    def name(self) -> str:
        """As Placement has it."""
        return self.host


class Instance(NamedTuple):
    """An instance as the database has it.

    :param version: moves with every change of what it does.
    :param settled: nobody is building or deleting it, so what its row says should be so.
    :param launched: its guest has run once, so it has had all that it was to get.
    :param asked: what its flavor asks of the host itself, by resource class.
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
    """A provider as Placement has it.

    :param consumers: what each consumer holds of it, by resource class.
    """

    uuid: str
    name: str
    parent: str | None
    traits: frozenset[str]
    stocks: Mapping[str, Stock]
    consumers: Mapping[str, Mapping[str, int]]

    def used(self, resource_class: str) -> int:
        """What is allocated of one class."""
        return sum(held.get(resource_class, 0) for held in self.consumers.values())

    def offers(self, resource_class: str) -> bool:
        """Whether Placement would give somebody a unit of the class."""
        stock = self.stocks.get(resource_class)
        if stock is None:
            return False
        return (stock.total - stock.reserved) * stock.allocation_ratio - self.used(resource_class) > 0


class Agent(NamedTuple):
    """What the database knows of the agent of a host that has devices.

    :param silent: seconds since it was last seen; None: it never was.
    """

    host: str
    silent: float | None


class Slot(NamedTuple):
    """A slot as its host has it.

    :param driver: the kernel driver that has the function; None: no driver has it.
    :param drive: what the kernel's nvme driver says of it; None where that has not got it.
    :param users: who on the host uses it, in words; not looked for unless it could be offered.
    :param other_paths: other ways to the same media.
    """

    present: bool
    driver: str | None
    drive: Drive | None
    users: tuple[str, ...]
    other_paths: tuple[str, ...]


class Guest(NamedTuple):
    """A libvirt domain that has been given the function."""

    uuid: str
    name: str
    running: bool
