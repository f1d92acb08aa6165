"""Which drive is in which slot, and what the kernel calls it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autoclave.simulator import files
from autoclave.simulator.drive_spec import DriveSpec


@dataclass
class Slot:
    """One PCI function's place.

    :param spec: what is, or was last, in it.
    :param cntlid: id of its controller within its subsystem.
    :param present: something is in it.
    :param driver: the kernel driver that has the function now.
    :param instance: the N of nvmeN while the nvme driver has it.
    :param previous: what was in it before the one that is, or was last.
    """

    spec: DriveSpec
    cntlid: int
    present: bool = True
    driver: str | None = None
    instance: int | None = None
    previous: DriveSpec | None = None

    @property
    def address(self) -> str:
        return self.spec.address


@dataclass
class Inventory:
    """The slots of one host.

    :param name: the host's name.
    :param style: the version of nvme-cli its stand-in speaks like.
    :param slots: by PCI address.
    :param heads: the N of the block devices nvmeNnY by drive. The kernel takes the subsystem's
        number for it, which need not be the controller's.
    """

    name: str
    style: str
    slots: dict[str, Slot] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> "Inventory":
        """The inventory of the simulated host in *root*.

        :raises FileNotFoundError: there is none.
        """
        document = files.read_json(root / "state" / "host.json")
        slots = {address: _slot(fields) for address, fields in document["slots"].items()}
        return cls(document["name"], document["style"], slots, document["heads"])

    @classmethod
    @contextmanager
    def change(cls, root: Path) -> Iterator["Inventory"]:
        """Lock the host's inventory, and save what the caller changes unless it raises."""
        with files.locked(root / "state" / "host.lock"):
            inventory = cls.load(root)
            yield inventory
            inventory.save(root)

    def save(self, root: Path) -> None:
        files.write_json(root / "state" / "host.json", asdict(self))

    def sharing(self, drive_id: str) -> list[Slot]:
        """The slots whose controllers belong to this drive, and are plugged in."""
        return [
            slot
            for slot in self.slots.values()
            if slot.present and slot.spec.drive_id == drive_id and slot.spec.physfn is None
        ]

    def bound(self) -> list[Slot]:
        """The slots that the nvme driver has."""
        return [slot for slot in self.slots.values() if slot.instance is not None]

    def by_controller(self, instance: int) -> Slot | None:
        """The slot of controller nvme*instance*."""
        return next((slot for slot in self.bound() if slot.instance == instance), None)

    def by_head(self, head: int) -> Slot | None:
        """A slot through which the block devices nvme*head*nY are reached."""
        return next((slot for slot in self.bound() if self.heads[slot.spec.drive_id] == head), None)

    def bind(self, *slots: Slot) -> None:
        """Give functions to the nvme driver, and number them as the kernel does."""
        for slot in slots:
            taken = {other.instance for other in self.bound()} | self._heads_in_use()
            slot.driver, slot.instance = "nvme", next(n for n in range(len(taken) + 1) if n not in taken)
        for slot in slots:
            others = [s for s in self.sharing(slot.spec.drive_id) if s.instance is not None and s not in slots]
            if not others:
                together = [s.instance for s in slots if s.spec.drive_id == slot.spec.drive_id]
                self.heads[slot.spec.drive_id] = max(n for n in together if n is not None)

    def unbind(self, slot: Slot, driver: str | None) -> None:
        """Take the function from the nvme driver and give it to *driver*."""
        slot.driver, slot.instance = driver, None

    def _heads_in_use(self) -> set[int | None]:
        return {self.heads[slot.spec.drive_id] for slot in self.bound() if slot.spec.drive_id in self.heads}


def _slot(fields: dict[str, Any]) -> Slot:
    spec, previous = fields.pop("spec"), fields.pop("previous")
    return Slot(spec=DriveSpec(**spec), previous=previous and DriveSpec(**previous), **fields)
