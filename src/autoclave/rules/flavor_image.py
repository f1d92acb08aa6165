"""What a flavor asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_MIB_PER_GIB = 1024


@dataclass(frozen=True)
class Flavor:
    """A flavor as it was when the instance was asked for.

    :param ram: MiB.
    :param disk: GiB of the root disk.
    :param ephemeral: GiB beside the root disk.
    :param swap: MiB.
    """

    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    extra_specs: Mapping[str, str]

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> "Flavor":
        """From what an instance keeps of its flavor."""
        return cls(**{field.name: snapshot[field.name] for field in fields(cls)})

    def resources(self) -> dict[str, int]:
        """Amounts by resource class, those that are 0 too; a begun GiB of swap counts whole."""
        swap = -(-self.swap // _MIB_PER_GIB)
        return {"VCPU": self.vcpus, "MEMORY_MB": self.ram, "DISK_GB": self.disk + self.ephemeral + swap}
