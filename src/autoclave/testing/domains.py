"""Guests without libvirt."""

from collections.abc import Sequence
from dataclasses import dataclass

from autoclave.exceptions import HardwareError
from autoclave.virt.domains import Domain


@dataclass
class GivenDomains:
    """Guests that are made up: for tests, where no libvirt is."""

    domains: Sequence[Domain] = ()
    failure: HardwareError | None = None

    def all(self) -> Sequence[Domain]:
        """See :class:`~autoclave.virt.domains.Domains`."""
        if self.failure is not None:
            raise self.failure
        return self.domains
