"""Who looks into, or works on, which slot of the host at the moment."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from autoclave.exceptions import DeviceLocked
from autoclave.hardware.host import Deadline
from autoclave.rules.pci_address import PCIAddress


class Slots:
    """Keeps discovery and erases apart within one driver.

    A look at a disk opens it exclusively for a moment, which would fail an erase that begins in that
    moment; and an erase holds it exclusively, which would look like a use by this host.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._slots: dict[PCIAddress, threading.Lock] = {}

    @contextmanager
    def hold(self, address: PCIAddress, patience: Deadline | None = None) -> Iterator[None]:
        """Have the slot alone.

        :param patience: how long to wait for it; None: not at all.
        :raises DeviceLocked: it was not free by then.
        """
        with self._guard:
            slot = self._slots.setdefault(address, threading.Lock())
        if not slot.acquire(timeout=0 if patience is None else patience.remaining()):
            raise DeviceLocked(f"{address} is being erased or looked into at the moment")
        try:
            yield
        finally:
            slot.release()
